"""MLX on CPU: mx.mean sums in float16, and the sum overflows where the mean is far from it.

nn.BatchNorm and nn.GroupNorm (without pytorch_compatible=True) take their statistics by it, so a channel with a sum beyond 65504
has infinite statistics, and gradients of NaN. Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import mlx.core as mx
import mlx.nn as nn

x = mx.full((128, 1), 1000.0, mx.float16)
x[1::2] = 1001.0
mean = mx.mean(x).item()
print(f"mean of 128 elements of 1000 and 1001={mean}, but should be 1000.5")
layer = nn.BatchNorm(1)
layer.set_dtype(mx.float16)
layer.train()
y = layer(x)
print(f"running_mean={layer.running_mean.item()}, but should be near 100.05, as batch norm's momentum is 0.1; y={y[0].item()}")
sys.exit(not mx.isfinite(mx.mean(x)).item())
