"""transformers: five norm layers compute in the dtype of their input: float16 gives zeros or infinities, bfloat16 wrong digits.

Their LayerNorms and RMSNorms elsewhere convert to float32 first. Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import torch
from transformers.models.detr.modeling_detr import DetrFrozenBatchNorm2d
from transformers.models.gradium_phonon_tts.modeling_gradium_phonon_tts import (
    GradiumPhononTTSFlowLayerNorm,
    GradiumPhononTTSTimestepNorm,
)
from transformers.models.imagegpt.modeling_imagegpt import ImageGPTLayerNorm
from transformers.models.vitdet.modeling_vitdet import VitDetLayerNorm

image_gpt = ImageGPTLayerNorm(4)
torch.nn.init.ones_(image_gpt.weight)
frozen = DetrFrozenBatchNorm2d(4)
frozen.running_var.fill_(1e-8)
x = torch.tensor([[300.0, -600.0, 900.0, 1200.0]])
shown = False
for name, norm, row in (
    ("ImageGPTLayerNorm", image_gpt, x),
    ("GradiumPhononTTSTimestepNorm", GradiumPhononTTSTimestepNorm(4), x),
    ("GradiumPhononTTSFlowLayerNorm", GradiumPhononTTSFlowLayerNorm(4), x),
    ("VitDetLayerNorm", VitDetLayerNorm(4), x.reshape(1, 4, 1, 1)),
    ("DetrFrozenBatchNorm2d, running_var=1e-8", frozen, x.reshape(1, 4, 1, 1) / 8192),
):
    right = norm.double()(row.double()).flatten()
    for dtype in (torch.float16, torch.bfloat16):
        got = norm.to(dtype)(row.to(dtype)).flatten().double()
        # one rounding to the dtype, and as much again for the input's
        bound = torch.finfo(dtype).eps * right.abs()
        print(f"{name} in {dtype}: {got.tolist()}, but should be {right.tolist()}")
        shown |= not bool(((got - right).abs() <= bound).all())
sys.exit(shown)
