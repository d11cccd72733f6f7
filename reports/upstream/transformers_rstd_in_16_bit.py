"""transformers: DeepseekV4UnweightedRMSNorm rounds 1/rms to 16 bit before it multiplies: a row of 1234 gives 0.9995 in float16.

Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import torch
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4UnweightedRMSNorm

shown = False
for dtype in (torch.float16, torch.bfloat16):
    x = torch.full((1, 1), 1234.0).to(dtype)
    y = DeepseekV4UnweightedRMSNorm()(x)
    print(f"y={y.item()} in {dtype} for one element of {x.item()}, but should be 1.0")
    shown |= y.item() != 1.0
sys.exit(shown)
