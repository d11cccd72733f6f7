"""torch: the gradient of ldexp(x, k) with a negative whole k is 0.

A norm that scales its rows by powers of two to save them from overflow stops learning. Exits with 1 where the fault shows, with
0 where it is mended.
"""

import sys

import torch

shown = False
for k in (torch.tensor([4]), torch.tensor([-4.0]), torch.tensor([-4])):
    x = torch.tensor([3.0], requires_grad=True)
    torch.ldexp(x, k).backward()
    expected = 2.0 ** k.item()
    print(f"ldexp(x, {k.item()}): gradient={x.grad.item()}, but should be {expected}")
    shown |= x.grad.item() != expected
sys.exit(shown)
