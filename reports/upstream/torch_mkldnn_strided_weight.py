"""torch on CPU: batch_norm of a tensor in MKLDNN's layout reads a strided weight as if it were contiguous.

Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import torch
from torch.nn.functional import batch_norm

x, weight, bias = torch.randn(2, 4, 3, 3), torch.arange(8.0)[::2], torch.zeros(4)
mean, var = torch.zeros(4), torch.ones(4)
plain = batch_norm(x, mean, var, weight, bias)
if not torch.backends.mkldnn.is_available():
    sys.exit("this build of torch has no MKLDNN")
got = batch_norm(x.to_mkldnn(), mean, var, weight, bias).to_dense()
ratio = (got / x)[0, :, 0, 0].tolist()
print(f"y/x={ratio}, but should be about {weight.tolist()}, as without MKLDNN")
sys.exit(not torch.allclose(got, plain))
