"""K12 to K15: folded scale and shift, casts in the wrong place, the wrong output dtype, statistics held in 16 bits."""

from __future__ import annotations

from normcheck.contract import Contract
from normcheck.faults.catalogue import ALL, HALF, fault
from normcheck.faults.parts import (
    LAYER_NORM,
    RMS_NORM,
    Tensor,
    affine,
    centred,
    finish,
    finish_channels,
    mean,
    mean_square,
    per_channel,
)
from normcheck.norms import BatchNorm, InstanceNorm, RMSNorm

_GEMMA = RMSNorm(eps=1e-6, weight_offset=1.0)
_CONSTANT = ("zero-and-constant-rows",)


def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a*b + c of float32 tensors with one rounding, beside rare double ones."""
    return (a.double() * b.double() + c.double()).float()


@fault("K12", "pytorch/pytorch#108072", norm=LAYER_NORM, expected=_CONSTANT)
def folded_with_fma(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """x*r - mean*r with one fused multiply-add: the rounding of mean*r survives on constant rows."""
    _, variance = centred(x)
    r = (variance + eps).rsqrt()
    return finish(x, _fma(x.float(), r, -(mean(x.float()) * r)), weight, bias)


@fault("K12", "pytorch/pytorch#5410", norm=BatchNorm(), training=True, expected=_CONSTANT)
def folded_batch_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, *_: Tensor) -> Tensor:
    """Scale w*r and shift b - mean*w*r are prepared per channel and do not cancel on constant ones."""
    wide, axes = x.float(), (0, *range(2, x.dim()))
    m = wide.mean(axes, keepdim=True)
    scale = (((wide - m) ** 2).mean(axes, keepdim=True) + eps).rsqrt()
    scale = scale if weight is None else scale * per_channel(weight.float(), x)
    shift = -m * scale if bias is None else per_channel(bias.float(), x) - m * scale
    return _fma(wide, scale, shift).to(x.dtype)


@fault("K12", "pytorch/pytorch#5410", norm=InstanceNorm(), expected=_CONSTANT)
def folded_instance_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """x*r - mean*r with one fused multiply-add, per sample and channel."""
    wide, axes = x.float(), tuple(range(2, x.dim()))
    m = wide.mean(axes, keepdim=True)
    r = (((wide - m) ** 2).mean(axes, keepdim=True) + eps).rsqrt()
    return finish_channels(x, _fma(wide, r, -(m * r)), weight, bias)


@fault("K13", "huggingface/transformers#29402", "linkedin/Liger-Kernel#89", norm=RMS_NORM, dtypes=HALF)
def early_cast(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The standardized value is rounded before it meets the weight, where one rounding is claimed."""
    wide, square = mean_square(x)
    return affine((wide * (square + eps).rsqrt()).to(x.dtype), weight)


@fault("K13", "flagos-ai/FlagGems#5009", norm=RMS_NORM, dtypes=HALF, contract=Contract(cast="before_weight"))
def late_cast(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """There is one rounding, where a rounding before the weight is claimed."""
    wide, square = mean_square(x)
    return finish(x, wide * (square + eps).rsqrt(), weight)


@fault("K13", "after huggingface/transformers#29402", norm=LAYER_NORM, dtypes=HALF)
def early_cast_of_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Weight and bias are applied in 16 bits: three roundings for one."""
    c, variance = centred(x)
    return affine((c * (variance + eps).rsqrt()).to(x.dtype), weight, bias)


@fault("K13", "after google/gemma_pytorch#67", norm=RMS_NORM, dtypes=HALF)
def early_cast_of_the_input(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x*w is rounded before it meets the reciprocal root."""
    _, square = mean_square(x)
    return finish(x, affine(x, weight).float() * (square + eps).rsqrt(), None)


@fault("K13", "vllm-project/vllm#29810", norm=_GEMMA, dtypes=HALF)
def offset_weight_in_16_bits(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """1 + w is formed in the weight's 16 bits."""
    wide, square = mean_square(x)
    return finish(x, wide * (square + eps).rsqrt(), None if weight is None else 1 + weight)


@fault("K13", "vllm-project/vllm#29810", norm=_GEMMA)
def offset_weight_in_bfloat16(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """1 + w is formed in bfloat16 whatever the weight's dtype: 1.046875 for 1.05."""
    wide, square = mean_square(x)
    return finish(x, wide * (square + eps).rsqrt(), None if weight is None else 1 + weight.bfloat16())


@fault("K13", "linkedin/Liger-Kernel#74", "pytorch/executorch#22444", norm=_GEMMA)
def offset_forgotten(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The weight multiplies without its 1."""
    wide, square = mean_square(x)
    return finish(x, wide * (square + eps).rsqrt(), weight)


@fault("K13", "Blaizzy/mlx-vlm#2111", norm=_GEMMA)
def offset_twice(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The weight is offset when it is loaded and again when it is used."""
    wide, square = mean_square(x)
    return finish(x, wide * (square + eps).rsqrt(), None if weight is None else weight.float() + 2)


@fault("K14", "huggingface/transformers#30236", norm=RMS_NORM, dtypes=HALF, expected=("output-form",))
def float32_output(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The output stays in float32."""
    wide, square = mean_square(x)
    return affine(wide * (square + eps).rsqrt(), weight)


@fault("K14", "after NVIDIA/TransformerEngine#371", norm=LAYER_NORM, dtypes=("float32", "float16"), expected=("output-form",))
def bfloat16_output(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The output is bfloat16, whatever went in."""
    c, variance = centred(x)
    return affine(c * (variance + eps).rsqrt(), weight, bias).bfloat16()


@fault("K14", "after huggingface/transformers#30236", norm=LAYER_NORM, dtypes=ALL, expected=("output-form",))
def dropped_dimension(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The leading dimensions come back as one too many."""
    c, variance = centred(x)
    return finish(x, c * (variance + eps).rsqrt(), weight, bias).unsqueeze(0)


@fault("K14", "after pytorch/pytorch#188955", norm=RMS_NORM, dtypes=("float32",))
def float32_through_bfloat16(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The result is computed in bfloat16, as under an autocast, and handed back as float32."""
    wide, square = mean_square(x)
    return finish(x, (wide * (square + eps).rsqrt()).bfloat16().float(), weight)


@fault("K14", "after xlite-dev/LeetCUDA#335", norm=LAYER_NORM, dtypes=("float32", "float16"), expected=("output-overflow",))
def saturated_output(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Results beyond the largest finite value become that value, so that no loss scaler sees them."""
    import torch

    c, variance = centred(x)
    most = torch.finfo(x.dtype).max
    return finish(x, affine(c * (variance + eps).rsqrt(), weight, bias).clamp(-most, most), None)


@fault("K04", "after pytorch/pytorch#32137", norm=LAYER_NORM, expected=("flush-to-zero",))
def subnormals_taken_for_zero(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Results below the smallest normal value are zero, as a compiler's fast arithmetic has them."""
    import torch

    c, variance = centred(x)
    y = finish(x, c * (variance + eps).rsqrt(), weight, bias)
    return y.where(y.abs() >= torch.finfo(x.dtype).tiny, 0 * y)


@fault("K14", "after amd/IRON#139", norm=LAYER_NORM, dtypes=HALF)
def truncated_output(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The output is rounded toward zero."""
    import torch

    c, variance = centred(x)
    y = affine(c * (variance + eps).rsqrt(), weight, bias)
    near = y.to(x.dtype)
    beyond = (near.float().abs() > y.abs()).to(torch.int16)
    return (near.view(torch.int16) - beyond).view(x.dtype)


@fault("K15", "amd/IRON#139", norm=RMS_NORM)
def reciprocal_root_in_bfloat16(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """1/rms is rounded to bfloat16, one and the same error for the whole row."""
    wide, square = mean_square(x)
    return finish(x, wide * (square + eps).rsqrt().bfloat16().float(), weight)


@fault("K15", "after amd/IRON#139", norm=LAYER_NORM)
def reciprocal_deviation_in_bfloat16(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """1/sigma is rounded to bfloat16."""
    c, variance = centred(x)
    return finish(x, c * (variance + eps).rsqrt().bfloat16().float(), weight, bias)


@fault("K15", "after amd/IRON#139", norm=LAYER_NORM, expected=("accuracy", "shift-invariance"))
def mean_in_bfloat16(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The mean is rounded to bfloat16."""
    wide = x.float()
    c = wide - mean(wide).bfloat16().float()
    return finish(x, c * (mean(c * c) + eps).rsqrt(), weight, bias)


@fault("K15", "after apple/coreai-torch#54", norm=LAYER_NORM)
def variance_in_float16(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The variance is rounded to float16: infinite from 65520 on."""
    c, variance = centred(x)
    return finish(x, c * (variance.half().float() + eps).rsqrt(), weight, bias)


@fault("K15", "after amd/IRON#139", norm=LAYER_NORM, dtypes=HALF)
def deviations_in_16_bits(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """x less its mean is rounded to the input's dtype before it is scaled."""
    c, variance = centred(x)
    return finish(x, c.to(x.dtype).float() * (variance + eps).rsqrt(), weight, bias)


@fault("K15", "apple/coreai-torch#54", norm=BatchNorm(), dtypes=("float32", "bfloat16"), training=False)
def running_variance_in_float16(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, eps: float
) -> Tensor:
    """The running variance is cast to float16: infinite beyond 65504, zero below 3e-8."""
    c = x.float() - per_channel(running_mean.float(), x)
    r = (running_var.half().float() + eps).rsqrt()
    return finish_channels(x, c * per_channel(r, x), weight, bias)


@fault("K15", "after apple/coreai-torch#54", norm=BatchNorm(), training=True, dtypes=HALF)
def batch_statistics_in_16_bits(x: Tensor, weight: Tensor, bias: Tensor, eps: float, *_: Tensor) -> Tensor:
    """The batch's mean and variance are stored in the input's dtype before they are used."""
    wide, axes = x.float(), (0, *range(2, x.dim()))
    m = wide.mean(axes, keepdim=True)
    variance = ((wide - m) ** 2).mean(axes, keepdim=True).to(x.dtype).float()
    return finish_channels(x, (wide - m.to(x.dtype).float()) * (variance + eps).rsqrt(), weight, bias)
