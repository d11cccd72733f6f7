"""torch: group_norm with weight=None and a bias has a forward pass, and a backward pass that raises.

Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import torch
from torch.nn.functional import group_norm, layer_norm

shown = False
for name, norm in (
    ("layer_norm", lambda x, b: layer_norm(x, (4,), None, b)),
    ("group_norm", lambda x, b: group_norm(x, 2, None, b)),
):
    x, bias = torch.randn(3, 4, requires_grad=True), torch.zeros(4, requires_grad=True)
    y = norm(x, bias)
    try:
        y.backward(torch.ones(3, 4))
        got = str(bias.grad.tolist())
    except RuntimeError as error:
        got = f"RuntimeError: {error}"
    print(f"{name}: dbias={got}, but should be [3.0, 3.0, 3.0, 3.0]")
    shown |= got != "[3.0, 3.0, 3.0, 3.0]"
sys.exit(shown)
