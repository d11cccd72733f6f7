"""Liger-Kernel: the backward pass of LigerRMSNormFunction writes dx over the gradient that it is given, by default.

in_place=True is documented, and right only where nothing reads that gradient again: a second backward pass does, and so does a
second derivative, which comes out wrong without a word. Shown in Triton's interpreter, which needs two mendings for Liger's
kernels. Exits with 1 where the fault shows, with 0 where it is mended.
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
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]], requires_grad=True)
    dy = torch.tensor([[1.0, -1.0, 0.5, 2.0]])
    before = dy.clone()
    LigerRMSNormFunction.apply(x, torch.ones(4), 1e-6).backward(dy)
    print(f"dy={dy.tolist()} after the backward pass, but should be {before.tolist()} as before")
    slope = before.clone().requires_grad_()
    dx = torch.autograd.grad(LigerRMSNormFunction.apply(x, torch.ones(4), 1e-6), x, slope * 1, create_graph=True)[0]
    second = torch.autograd.grad(dx.sum(), [x, slope], allow_unused=True)
    print(f"derivatives of the sum of dx={second}, but should be those that torch.nn.functional.rms_norm has, or an exception")
    return not torch.equal(dy, before)


sys.exit(main())
