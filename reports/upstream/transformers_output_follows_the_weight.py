"""transformers: T5LayerNorm gives float32 activations back in the dtype of a 16-bit weight; torch promotes to float32.

Exits with 1 where it shows, with 0 where it is mended.
"""

import sys

import torch
from transformers.models.t5.modeling_t5 import T5LayerNorm

shown = False
for dtype in (torch.float16, torch.bfloat16):
    y = T5LayerNorm(4).to(dtype)(torch.randn(2, 4))
    print(f"dtype={y.dtype}, but should be torch.float32 [x: float32, weight: {dtype}]")
    shown |= y.dtype != torch.float32
sys.exit(shown)
