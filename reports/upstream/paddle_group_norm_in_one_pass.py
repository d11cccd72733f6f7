"""PaddlePaddle on CPU: group_norm takes the variance as E[x**2] - E[x]**2, clamped at 0.

Groups with a large mean come out hundreds of times too large, in float32 and float64. Where squares overflow it gives NaN. Exits
with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import numpy as np
import paddle

shown = False
for dtype, mean in (("float32", 1e4), ("float64", 1e9)):
    x = (mean + np.arange(64.0).reshape(1, 4, 16) % 3).astype(dtype)
    y = paddle.nn.functional.group_norm(paddle.to_tensor(x), 2).numpy().astype(np.float64)
    c = (x.astype(np.float64) - mean).reshape(2, 32)
    c -= c.mean(1, keepdims=True)
    due = (c / np.sqrt((c * c).mean(1, keepdims=True) + 1e-5)).reshape(x.shape)
    error = np.abs(y - due).max()
    print(f"{dtype}, mean {mean:g}: error={error}, but should be far below outputs of up to {np.abs(due).max():.2f}")
    shown |= bool(not error < 0.1)
sys.exit(shown)
