"""torchnorm: its kernels read weight and bias as if they were contiguous, and so other memory where they are not.

Shown in Triton's interpreter. Exits with 1 where the fault shows, with 0 where it is mended.
"""

import os
import sys

import torch

os.environ["TRITON_INTERPRET"] = "1"


def main():
    """Show it."""
    from torchnorm._triton import fused_layer_norm, fused_rms_norm

    x = torch.tensor([[1.0, -1.0, 1.0, -1.0]])
    weight = torch.tensor([1.0, 9.0, 2.0, 9.0, 3.0, 9.0, 4.0, 9.0])[::2]
    bias = torch.tensor([0.0, 9.0, 0.0, 9.0, 0.0, 9.0, 0.0, 9.0])[::2]
    shown = False
    for function, parameters in ((fused_layer_norm, (weight, bias)), (fused_rms_norm, (weight,))):
        got = function(x, *parameters, 1e-5)
        due = function(x, *(part.contiguous() for part in parameters), 1e-5)
        print(f"{function.__name__}={got.tolist()} with parameters that are not contiguous, but should be {due.tolist()}")
        shown |= not torch.equal(got, due)
    return shown


sys.exit(main())
