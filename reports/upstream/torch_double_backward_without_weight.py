"""torch: the second derivative of a norm with weight=None and a bias forgets the bias.

d(dbias)/d(dy) is the identity; layer_norm, batch_norm and instance_norm give None, which is 0, and group_norm raises in the
first backward pass already when a graph of it is asked for. Exits with 1 where the fault shows, with 0 where it is mended.
Reported for layer_norm as pytorch/pytorch 79705.
"""

import sys

import torch
from torch.nn.functional import batch_norm, group_norm, instance_norm, layer_norm

NORMS = {
    "layer_norm": lambda x, w, b: layer_norm(x, (4,), w, b),
    "group_norm": lambda x, w, b: group_norm(x, 2, w, b),
    "batch_norm": lambda x, w, b: batch_norm(x, None, None, w, b, True),
    "instance_norm": lambda x, w, b: instance_norm(x, None, None, w, b),
}
shown = False
for name, norm in NORMS.items():
    for weight in (torch.ones(4, requires_grad=True), None):
        x, dy = (torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0)).requires_grad_() for _ in range(2))
        bias = torch.zeros(4, requires_grad=True)
        got: object = None
        try:
            (dbias,) = torch.autograd.grad(norm(x, weight, bias), bias, dy, create_graph=True)
            (got,) = torch.autograd.grad(dbias.sum(), dy, allow_unused=True)
        except RuntimeError as error:
            got = error
        right = isinstance(got, torch.Tensor) and bool((got == 1).all())
        given = "None" if weight is None else "given"
        print(f"{name}, weight {given}: d(dbias)/d(dy)={'ones' if right else got}, but should be ones")
        shown |= not right
sys.exit(shown)
