"""equinox: after one training step nn.BatchNorm(mode="batch") evaluates with a running variance that is too large by 99.

The average starts at 1, but is divided by 1 - momentum**steps as if it had started at 0. Exits with 1 where the fault shows, with
0 where it is mended.
"""

import sys

import equinox
import jax
import jax.numpy as jnp
import numpy as np

x = jnp.asarray(np.random.default_rng(0).standard_normal((4096, 1)), jnp.float32)
norm, state = equinox.nn.make_with_state(equinox.nn.BatchNorm)(1, "batch", mode="batch")


def call(norm, state):
    """One pass over the batch."""
    return jax.vmap(norm, (0, None), (0, None), axis_name="batch")(x, state)


trained, state = call(norm, state)
evaluated, _ = call(equinox.nn.inference_mode(norm), state)
ratio = float(evaluated.std() / trained.std())
print(f"std of y in evaluation={ratio:.3g} times that in training, but should be about 1 after one step on the same data")
sys.exit(ratio < 0.5)
