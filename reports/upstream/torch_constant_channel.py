"""torch on CPU: batch_norm and instance_norm of a constant channel of 1e7 give about -105 instead of 0.

They form x*r - mean*r with r = 1/sqrt(eps), which is sound but leaves the rounding of two products of 3e9. (x - mean)*r gives 0.
Exits with 1 where it shows, with 0 where it is mended.
"""

import sys

import torch
from torch.nn.functional import batch_norm, instance_norm

x = torch.full((8, 4, 8), 1e7)
shown = False
for name, y in (("batch_norm", batch_norm(x, None, None, training=True)), ("instance_norm", instance_norm(x))):
    print(f"{name} of a constant 1e7={y.flatten()[0].item()}, but should be 0.0")
    shown |= y.abs().max().item() > 1
sys.exit(shown)
