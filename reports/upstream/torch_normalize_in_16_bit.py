"""torch on CPU: F.normalize in 16 bit. Its length and eps are rounded to the input's dtype before the division.

In float16 the default eps=1e-12 is 0, so that zero rows are 0/0, and lengths beyond 65504 are infinite: such rows become 0.
In either dtype the length has 8 or 11 bits, which is an error of the whole row. Exits with 1 where the fault shows, with 0 where
it is mended.
"""

import sys

import torch
from torch.nn.functional import normalize

zero = normalize(torch.zeros(1, 3, dtype=torch.float16))
print(f"float16, a row of zeros: y={zero[0, 0].item()}, but should be 0.0")
large = normalize(torch.full((1, 1024), 4096.0, dtype=torch.float16))
print(f"float16, 1024 elements of 4096: y={large[0, 0].item()}, but should be 0.03125")
shown = bool(zero.isnan().any()) or large[0, 0].item() != 0.03125
for dtype in (torch.float16, torch.bfloat16):
    x = torch.randn(64, 100, generator=torch.Generator().manual_seed(0)).to(dtype)
    exact = normalize(x.double())
    wide = normalize(x.float()).to(dtype)
    got, due = ((y.double() / exact - 1).mean(-1).abs().max().item() for y in (normalize(x), wide))
    print(f"{dtype}: mean relative error of a row={got:.1e}, but should be {due:.1e} as computed in float32")
    shown |= got > 4 * due
sys.exit(shown)
