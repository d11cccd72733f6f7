"""torch: InstanceNorm with given statistics adds up the gradients of 16-bit weights and biases over samples in 16 bit.

It repeats the parameters for each sample, so that their gradients are rounded once per sample before they are added. BatchNorm
with the same statistics is right. Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import torch
from torch.nn.functional import batch_norm, instance_norm

rng, shown = torch.Generator().manual_seed(0), False
x, dy = (torch.randn(64, 4, 8, generator=rng).bfloat16() for _ in range(2))
exact = dy.double().sum((0, 2)).bfloat16()
mean, variance = torch.zeros(4).bfloat16(), torch.ones(4).bfloat16()
for name, norm in (
    ("batch_norm", lambda w, b: batch_norm(x, mean, variance, w, b, False)),
    ("instance_norm", lambda w, b: instance_norm(x, mean, variance, w, b, False)),
):
    weight, bias = torch.ones(4).bfloat16().requires_grad_(), torch.zeros(4).bfloat16().requires_grad_()
    norm(weight, bias).backward(dy)
    print(f"{name}: dbias={bias.grad.tolist()}, but should be {exact.tolist()}")
    shown |= not torch.equal(bias.grad, exact)
sys.exit(shown)
