"""torch on CPU: batch_norm in evaluation with 16-bit parameters computes in 16 bit unless x and parameters are contiguous.

The same values in contiguous memory are right but for the last rounding. Exits with 1 where the fault shows, with 0 where it is
mended.
"""

import sys

import torch
from torch.nn.functional import batch_norm

shown = False
for dtype in (torch.bfloat16, torch.float16):
    generator = torch.Generator().manual_seed(0)
    x, mean = (torch.randn(shape, generator=generator).to(dtype) for shape in ((33, 12), (12,)))
    var = (torch.rand(12, generator=generator) + 0.5).to(dtype)
    exact = ((x.double() - mean.double()) / (var.double() + 1e-5).sqrt()).to(dtype)
    contiguous = (batch_norm(x, mean, var) != exact).double().mean().item()
    transposed = (batch_norm(x.t().contiguous().t(), mean, var) != exact).double().mean().item()
    print(f"{dtype}: not correctly rounded={transposed:.1%} transposed, but should be {contiguous:.1%} as contiguous")
    strided = batch_norm(x, mean.repeat_interleave(2)[::2], var.repeat_interleave(2)[::2])
    apart = (strided != exact).double().mean().item()
    print(f"{dtype}: not correctly rounded={apart:.1%} with every second element of larger statistics")
    shown |= max(transposed, apart) > 0.1 > contiguous
sys.exit(shown)
