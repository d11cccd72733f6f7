"""Liger-Kernel: LigerGroupNormFunction has the variance E[x**2] - E[x]**2, unclamped, and sums in float16 where x is float16.

The variance of groups with a large mean is noise or negative, which makes NaN; in float16 squares overflow beyond 256. Shown in
Triton's interpreter, which needs two mendings for Liger's kernels; the arithmetic is that of the source. Exits with 1 where the
fault shows, with 0 where it is mended.
"""

import os
import sys

import numpy as np
import torch

os.environ["TRITON_INTERPRET"] = "1"


def mend_interpreter():
    """Numbers with a point become float32, as they do in compiled kernels, and libdevice.rsqrt computes something."""
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime import interpreter

    plain = interpreter._implicit_cvt

    def converted(arg):
        if not isinstance(arg, float):
            return plain(arg)
        return tl.tensor(interpreter.TensorHandle(np.array([arg], np.float32), tl.float32), tl.float32)

    interpreter._implicit_cvt = converted
    libdevice.rsqrt = lambda x: tl.rsqrt(x)


def main():
    """Show it."""
    mend_interpreter()
    from liger_kernel.ops.group_norm import LigerGroupNormFunction

    shown = False
    for dtype, mean in ((torch.float32, 1e4), (torch.float16, 1e3)):
        x = mean + torch.arange(64.0, dtype=torch.float64).reshape(1, 4, 16) % 3
        given = x.to(dtype), torch.ones(4, dtype=dtype), torch.zeros(4, dtype=dtype)
        y = LigerGroupNormFunction.apply(*given, 4, 2, 1e-5)
        due = torch.nn.functional.group_norm(given[0].double(), 2)
        error = (y.double() - due).abs().max().item()
        print(f"{dtype}, mean {mean:g}: error={error}, but should be far below outputs of up to {due.abs().max().item():.2f}")
        shown |= not error < 0.1
    return shown


sys.exit(main())
