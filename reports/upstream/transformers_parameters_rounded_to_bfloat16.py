"""transformers: EsmFoldLayerNorm rounds float32 parameters to bfloat16 where its input is bfloat16; torch takes them as they are.

Exits with 1 where it shows, with 0 where it is mended.
"""

import sys

import torch
from transformers.models.esm.modeling_esmfold import EsmFoldLayerNorm

torch.manual_seed(0)
norm = EsmFoldLayerNorm(256)
norm.weight.data.normal_(1.0, 0.1)
x = torch.randn(8, 256).bfloat16()
with torch.no_grad():
    got, plain = norm(x), torch.nn.functional.layer_norm(x, (256,), norm.weight, norm.bias, norm.eps)
different = int((got != plain).sum())
print(f"{different} of {x.numel()} outputs differ from torch.nn.functional.layer_norm, but should be 0 [weight: float32]")
sys.exit(different > 0)
