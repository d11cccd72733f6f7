"""torch on CPU: LayerNorm and GroupNorm return NaN for finite rows from about 1e20 in float32.

A row has a finite result whatever its scale. Merging partial variances forms inf - inf once a partial sum of squares overflows.
See pytorch/pytorch 162489. Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import torch
from torch.nn.functional import group_norm, layer_norm

shown = False
for dtype, scale in ((torch.float32, 1e20), (torch.bfloat16, 1e20), (torch.float64, 1e155)):
    x = (torch.arange(16) % 2 * 2 - 1).to(dtype).reshape(1, 16) * scale
    for name, y in (("layer_norm", layer_norm(x, (16,))), ("group_norm", group_norm(x, 1))):
        print(f"{name}({dtype} row of +-{scale:g})={y[0, :2].tolist()}, but should be [-1.0, 1.0]")
        shown |= bool(y.isnan().any())
sys.exit(shown)
