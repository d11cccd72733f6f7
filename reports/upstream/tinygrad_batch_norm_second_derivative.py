"""tinygrad: the second derivative of nn.BatchNorm in training is wrong.

The mean inside the variance is detached, because the derivative of the variance with respect to it is 0. The derivative of that
is not, so that Hessian-vector products through the layer are wrong. Exits with 1 where the fault shows, with 0 where it is
mended.
"""

import sys

import numpy as np
from tinygrad import Context, Tensor
from tinygrad.nn import BatchNorm

values, slope, along = np.array([[[1.0], [2.0], [4.0]], [[1.0], [-2.0], [0.5]], [[1.0], [0.0], [0.0]]])


def product(x):
    """<dx, along>, in numpy."""
    c = x - x.mean()
    rstd = 1 / np.sqrt((c * c).mean() + 1e-5)
    h = c * rstd
    return float((rstd * (slope - slope.mean() - h * (slope * h).mean()) * along).sum())


layer, x = BatchNorm(1), Tensor(values)
for name in ("weight", "bias", "running_mean", "running_var"):
    setattr(layer, name, Tensor(np.full(1, float(name in ("weight", "running_var")))))
with Context(TRAINING=1):
    dx = layer(x).gradient(x, gradient=Tensor(slope))[0]
    got = (dx * Tensor(along)).sum().gradient(x)[0].numpy().ravel()
steps = 1e-6 * np.eye(3)[:, :, None]
due = np.array([(product(values + step) - product(values - step)) / 2e-6 for step in steps])
print(f"gradient of <dx, along>={got.tolist()}, but should be {due.tolist()}")
sys.exit(not np.allclose(got, due, rtol=1e-4, atol=1e-4))
