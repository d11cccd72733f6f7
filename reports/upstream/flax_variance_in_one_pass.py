"""flax: LayerNorm, GroupNorm, InstanceNorm and BatchNorm of nnx and linen compute E[x**2] - E[x]**2 by default.

With use_fast_variance=True, the default, a row of mean 100 and standard deviation 0.01 loses all digits in float32. Exits with 1
where the fault shows, with 0 where it is mended.
"""

import sys

import jax
import numpy as np
from flax import linen, nnx

x = np.float32(100 + 0.01 * np.random.default_rng(0).standard_normal((4, 16, 8)))


def exact(axes, groups):
    """The norm in float64, with the eps of 1e-6 that is flax's default (1e-5 for BatchNorm)."""
    wide = x.astype(np.float64).reshape(*x.shape[:-1], groups, -1)
    c = wide - wide.mean(axes, keepdims=True)
    eps = 1e-5 if axes == (0, 1) else 1e-6
    return (c / np.sqrt((c * c).mean(axes, keepdims=True) + eps)).reshape(x.shape)


shown = False
keys = nnx.Rngs(0)
for name, options, answer in (
    ("LayerNorm", {}, exact((2, 3), 1)),
    ("GroupNorm", {"num_groups": 2}, exact((1, 3), 2)),
    ("InstanceNorm", {}, exact((1,), 8)),
    ("BatchNorm", {"use_running_average": False}, exact((0, 1), 8)),
):
    for fast in (True, False):
        given = {**options, "use_fast_variance": fast}
        layer = getattr(linen, name)(**given)
        ys = [getattr(nnx, name)(8, **given, rngs=keys)(x)]
        ys.append(layer.apply(layer.init(jax.random.key(0), x), x, mutable=["batch_stats"])[0])
        errors = [float(np.abs(np.asarray(y, np.float64) - answer).max()) for y in ys]
        print(f"{name}(use_fast_variance={fast}): largest error in nnx={errors[0]:.2g}, in linen={errors[1]:.2g}")
        shown |= fast and max(errors) > 0.5
sys.exit(shown)
