"""equinox and flax linen: BatchNorm in evaluation takes the root of a 16-bit running variance in 16 bit, though x is wider.

Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import equinox
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen

var = jnp.full(1, 1.7109375, jnp.bfloat16)  # a value of bfloat16
x = jnp.ones((2, 1), jnp.float32)
exact = 1 / np.sqrt(1.7109375 + 1e-5)

norm, state = equinox.nn.make_with_state(equinox.nn.BatchNorm)(1, "batch", mode="batch", dtype=jnp.bfloat16)
state = state.set(norm.batch_state_index, (jnp.zeros(1, jnp.bfloat16), var))
got = {"equinox": float(jax.vmap(lambda x: norm(x, state, inference=True)[0], axis_name="batch")(x)[0, 0])}
given = {"params": {"scale": jnp.ones(1), "bias": jnp.zeros(1)}, "batch_stats": {"mean": jnp.zeros(1, jnp.bfloat16), "var": var}}
got["flax.linen"] = float(linen.BatchNorm(use_running_average=True).apply(given, x)[0, 0])
for name, y in got.items():
    print(f"{name}: y={y}, but should be {exact:.7f} within 1e-6")
sys.exit(any(abs(y - exact) > 1e-6 for y in got.values()))
