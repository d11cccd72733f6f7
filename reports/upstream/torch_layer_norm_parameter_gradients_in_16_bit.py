"""torch: LayerNorm on CPU adds up the gradients of weight and bias in the input's dtype, also where the parameters are float32.

Each thread has a buffer of the input's dtype: in bfloat16 with one thread the sum of 8192 ones stands still at 256. float32
input and torch's RMSNorm are right. Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import torch
from torch.nn.functional import layer_norm

torch.set_num_threads(1)
rows, shown = 8192, False
for dtype in (torch.bfloat16, torch.float16, torch.float32):
    for parameters in (dtype, torch.float32):
        x = torch.randn(rows, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
        weight, bias = torch.ones(8, dtype=parameters, requires_grad=True), torch.zeros(8, dtype=parameters, requires_grad=True)
        layer_norm(x, (8,), weight, bias).backward(torch.ones(rows, 8, dtype=dtype))
        got = bias.grad[0].item()
        print(f"x: {dtype}, parameters: {parameters}: dbias={got}, but should be {rows}.0")
        shown |= got != rows
sys.exit(shown)
