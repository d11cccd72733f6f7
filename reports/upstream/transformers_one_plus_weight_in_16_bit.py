"""transformers: three layers add 1 to their weight in its own dtype, which rounds in 16 bit before the result is rounded again.

GemmaRMSNorm converts the weight to float32 first. Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import torch
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.muse_spark.modeling_muse_spark import MuseSparkTextCenteredRMSNorm
from transformers.models.nemotron.modeling_nemotron import NemotronLayerNorm1P
from transformers.models.videoprism.modeling_videoprism import VideoPrismLayerNorm

torch.manual_seed(0)
x = torch.randn(8, 256).bfloat16()
weight = (torch.randn(256) / 8).bfloat16()
wide = x.double()
shown = False
for kind in (GemmaRMSNorm, MuseSparkTextCenteredRMSNorm, NemotronLayerNorm1P, VideoPrismLayerNorm):
    norm = kind(256).bfloat16()
    norm.weight.data.copy_(weight)
    centred = wide - wide.mean(-1, keepdim=True) if isinstance(norm, torch.nn.LayerNorm) else wide
    right = centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * (1 + weight.double())
    ulp = 2.0 ** (right.abs().log2().floor() - 7)
    error = ((norm(x).double() - right).abs() / ulp).max().item()
    print(f"{kind.__name__}: error={error:.3f} ulp in bfloat16, but should be 0.5")
    shown |= error > 0.51
sys.exit(shown)
