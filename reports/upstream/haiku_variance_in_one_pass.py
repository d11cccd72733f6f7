"""haiku: BatchNorm, and LayerNorm with use_fast_variance=True, compute E[x**2] - E[x]**2 and let it become negative.

A batch of mean 1000 and standard deviation 0.01 gives NaN in float32. Exits with 1 where the fault shows, with 0 where it is
mended.
"""

import sys

import haiku
import jax.numpy as jnp
import numpy as np

x = jnp.asarray(1000 + 0.01 * np.random.default_rng(0).standard_normal((256, 64)), jnp.float32)
batch = haiku.transform_with_state(lambda x: haiku.BatchNorm(True, True, 0.9)(x, is_training=True))
layer = haiku.transform_with_state(lambda x: haiku.LayerNorm(-1, True, True, use_fast_variance=True)(x))
shown = False
for name, norm in (("BatchNorm", batch), ("LayerNorm(use_fast_variance=True)", layer)):
    y, _ = norm.apply(*norm.init(None, x), None, x)
    print(f"{name}: {int(jnp.isnan(y).sum())} of {y.size} elements are NaN, but none should be")
    shown |= bool(jnp.isnan(y).any())
sys.exit(shown)
