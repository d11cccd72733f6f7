"""torchnorm: fused_add_rms_norm rounds the sum to bfloat16 in every dtype, and its backward pass drops a gradient.

The new residual has 8 bits also in float32 and float16, and so has what the backward pass computes with. The gradient that comes
back through the new residual is not added to that of x and of the residual: in a chain of blocks all but the last branch is cut.
Shown in Triton's interpreter. Exits with 1 where the fault shows, with 0 where it is mended.
"""

import os
import sys

import torch

os.environ["TRITON_INTERPRET"] = "1"


def main():
    """Show it."""
    from torchnorm._triton import fused_add_rms_norm

    x, residual = torch.tensor([[1.001, 2.0, 3.0, 4.0]], requires_grad=True), torch.zeros(1, 4)
    _, total = fused_add_rms_norm(x, residual, torch.ones(4), 1e-6)
    print(f"new residual={total[0, 0].item()}, but should be {x[0, 0].item()}")
    total.sum().backward()
    print(f"gradient of the new residual's sum={x.grad.tolist()}, but should be ones")
    return not (torch.equal(total, x) and torch.equal(x.grad, torch.ones(1, 4)))


sys.exit(main())
