"""equinox: GroupNorm adds up the gradient of its weight over positions and over the batch in 16 bit, where x has 16 bit.

Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import equinox
import jax
import jax.numpy as jnp
import numpy as np

rng = np.random.default_rng(0)
x = jnp.asarray(rng.standard_normal((2, 32, 64)), jnp.bfloat16)
dy = jnp.asarray(1 + rng.random((2, 32, 64)), jnp.bfloat16)


def dbias(dtype):
    """The gradient of the bias for one and the same dy: its sum over batch and positions."""
    norm = equinox.nn.GroupNorm(4, 32, dtype=dtype)

    def loss(bias):
        changed = equinox.tree_at(lambda norm: norm.bias, norm, bias)
        return (jax.vmap(changed)(x.astype(dtype)) * dy.astype(dtype)).astype(jnp.float32).sum()

    return np.asarray(jax.grad(loss)(norm.bias), np.float64)


exact = np.asarray(dy, np.float64).sum((0, 2))
error = np.abs(dbias(jnp.bfloat16) - exact) / exact
print(f"dbias in bfloat16: largest relative error={error.max():.2g}, but should be at most {2.0**-8:.2g}, one rounding")
sys.exit(bool(error.max() > 2.0**-8))
