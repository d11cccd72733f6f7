"""torch on CPU: group_norm on channels-last input computes E[x**2] - E[x]**2 and loses all digits at mean/std = 1000.

The same values in contiguous memory give an error of about 1e-4. Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import torch
from torch.nn.functional import group_norm

x = torch.randn(2, 8, 16, 16, generator=torch.Generator().manual_seed(0)) + 1000
c = x.double().reshape(2, 4, -1)
c = c - c.mean(-1, keepdim=True)
exact = (c / torch.sqrt((c * c).mean(-1, keepdim=True) + 1e-5)).reshape(x.shape)
contiguous = (group_norm(x, 4) - exact).abs().max().item()
last = (group_norm(x.contiguous(memory_format=torch.channels_last), 4) - exact).abs().max().item()
print(f"largest error channels-last={last:.2g}, but should be about {contiguous:.2g} as contiguous")
sys.exit(last > 100 * contiguous)
