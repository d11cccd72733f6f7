"""equinox: BatchNorm takes mean and variance of float16 input in float16, which overflows for values of a few hundred.

Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import equinox
import jax
import jax.numpy as jnp
import numpy as np

x = jnp.asarray(np.resize([400.0, -400.0], (64, 1)), jnp.float16)
norm, state = equinox.nn.make_with_state(equinox.nn.BatchNorm)(1, "batch", mode="batch", dtype=jnp.float16)
y, state = jax.vmap(norm, (0, None), (0, None), axis_name="batch")(x, state)
print(f"y={float(y[0, 0])} for values of 400 and -400, but should be 1.0 (a variance of 160000 is no float16)")
sys.exit(abs(float(y[0, 0]) - 1) > 1e-2)
