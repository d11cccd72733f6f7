"""MLX: nn.BatchNorm in evaluation takes the root of var + eps in the dtype of the running variance, whatever that of the input.

With float32 activations and 16-bit statistics every output has the error of a 16-bit scale. torch refuses the mixture. Exits with
1 where the fault shows, with 0 where it is mended.
"""

import sys

import mlx.core as mx
import mlx.nn as nn

layer = nn.BatchNorm(1)
layer.set_dtype(mx.bfloat16)
layer.running_var = mx.array([3.0], mx.bfloat16)
layer.eval()
got, due = layer(mx.ones((1, 1), mx.float32)).item(), (3.0 + 1e-5) ** -0.5
print(f"y={got} for x=1 in float32 with a bfloat16 variance of 3, but should be {due}")
sys.exit(abs(got / due - 1) > 1e-5)
