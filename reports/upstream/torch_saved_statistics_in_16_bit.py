"""torch: LayerNorm and GroupNorm on CPU keep mean and rstd for the backward pass in 16 bit where the parameters are 16 bit.

A mean of 10 that is rounded to bfloat16 is off by up to 1/32 of a standard deviation, and dx with it. With float32 weight and
bias the same input gives a dx that is right but for the last rounding. Exits with 1 where the fault shows, with 0 where it is
mended.
"""

import sys

import torch
from torch.nn.functional import group_norm, layer_norm


def exact(x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """dx in float64, for weights of 1."""
    x, g = x.double(), dy.double()
    c = x - x.mean(-1, keepdim=True)
    r = ((c * c).mean(-1, keepdim=True) + 1e-5).rsqrt()
    n = c * r
    return r * (g - g.mean(-1, keepdim=True) - n * (g * n).mean(-1, keepdim=True))


shown = False
rng = torch.Generator().manual_seed(0)
for dtype in (torch.bfloat16, torch.float16):
    x, dy = ((torch.randn(16, 256, generator=rng) + shift).to(dtype) for shift in (10.0, 0.5))
    for name, norm in (
        ("layer_norm", lambda x, w, b: layer_norm(x, (256,), w, b)),
        ("group_norm", lambda x, w, b: group_norm(x, 1, w, b)),
    ):
        share = {}
        for parameters in (dtype, torch.float32):
            leaf = x.clone().requires_grad_()
            norm(leaf, torch.ones(256, dtype=parameters), torch.zeros(256, dtype=parameters)).backward(dy)
            share[parameters] = (leaf.grad != exact(x, dy).to(dtype)).double().mean().item()
        expected = f"{share[torch.float32]:.1%} as with float32 parameters"
        print(f"{name} {dtype}: dx not correctly rounded={share[dtype]:.1%}, but should be {expected}")
        shown |= share[dtype] > 0.1 > share[torch.float32]
sys.exit(shown)
