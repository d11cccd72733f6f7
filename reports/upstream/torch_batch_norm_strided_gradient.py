"""torch: BatchNorm on CPU in 16 bit adds up the gradients of weight and bias in 16 bit where dy does not lie as x does.

The parameters are float32 here, and so are their gradients; they hold no more than the bits of the input's dtype. A dy that is
transposed, or contiguous where x is channels-last, suffices. Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import torch
from torch.nn.functional import batch_norm

rng = torch.Generator().manual_seed(0)
x, dy = torch.randn(64, 8, generator=rng).bfloat16(), (torch.rand(64, 8, generator=rng) + 0.25).bfloat16()
exact, shown = dy.double().sum(0), False
for label, slope in (("contiguous", dy), ("transposed", dy.T.contiguous().T)):
    weight, bias = torch.ones(8, requires_grad=True), torch.zeros(8, requires_grad=True)
    batch_norm(x.clone().requires_grad_(), None, None, weight, bias, True).backward(slope)
    error = (bias.grad.double() - exact).abs().max().item()
    print(f"dy {label}: dbias[0]={bias.grad[0].item()}, but should be {exact[0].item()}; largest error {error}")
    shown |= error > 1e-4
sys.exit(shown)
