"""JAX: jax.nn.standardize computes E[x**2] - E[x]**2 unless it is told algorithm="stable", and in the input's own dtype.

At mean/std = 1000 nothing is left in float32; in bfloat16 that is so from mean/std = 16 on, and in float16 the squares overflow
to NaN. Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

rows = np.random.default_rng(0).standard_normal((8, 256))
shown = False
for dtype, mean in ((jnp.float32, 3000), (jnp.bfloat16, 16), (jnp.float16, 1000)):
    x = jnp.asarray(rows + mean, dtype)
    wide = np.asarray(x.astype(jnp.float32), np.float64)
    c = wide - wide.mean(-1, keepdims=True)
    exact = c / np.sqrt((c * c).mean(-1, keepdims=True) + 1e-5)
    errors = [
        np.abs(np.asarray(jax.nn.standardize(x, algorithm=algorithm).astype(jnp.float32)) - exact).max()
        for algorithm in ("fast", "stable")
    ]
    print(f"{dtype.__name__} at mean/std={mean}: largest error={errors[0]:.2g}, but should be about {errors[1]:.2g}")
    shown |= not errors[0] <= 10 * errors[1]
sys.exit(shown)
