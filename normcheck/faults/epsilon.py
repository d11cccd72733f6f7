"""K04 to K07: eps that vanishes, stands in the wrong place, has the wrong value or comes from the dtype."""

from __future__ import annotations

from normcheck.faults.catalogue import ALL, HALF, fault
from normcheck.faults.parts import (
    LAYER_NORM,
    RMS_NORM,
    Tensor,
    centred,
    finish,
    finish_channels,
    grouped,
    mean,
    mean_square,
    per_channel,
)
from normcheck.norms import BatchNorm, GroupNorm, InstanceNorm, L2Norm, LayerNorm, RMSNorm

_PLACED = ("accuracy", "epsilon-placement")
_NONE = ("accuracy", "epsilon-placement", "finite-in-finite-out")
_FP16 = ("float16",)


@fault("K04", "deeplearning4j/deeplearning4j#8241", "deeplearning4j/deeplearning4j#9821", norm=LAYER_NORM, expected=_NONE)
def no_eps(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Nothing is added to the variance."""
    c, variance = centred(x)
    return finish(x, c * variance.rsqrt(), weight, bias)


@fault("K04", "VeriSilicon/TIM-VX#589", norm=RMS_NORM, expected=_PLACED)
def whole_number_eps(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """eps is passed as a whole number, and is 0."""
    wide, square = mean_square(x)
    return finish(x, wide * (square + int(eps)).rsqrt(), weight)


@fault("K04", "after pytorch/pytorch#41527", norm=LAYER_NORM, expected=(*_PLACED, "power-of-two-scaling"))
def eps_in_float16(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """eps is rounded to float16, of which it is a subnormal: 1.00136e-5 for 1e-5."""
    c, variance = centred(x)
    rounded = variance.new_tensor([eps]).half().float()
    return finish(x, c * (variance + rounded).rsqrt(), weight, bias)


@fault(
    "K04", "pytorch/pytorch#41527", "huggingface/diffusers#13316", norm=RMSNorm(eps=1e-8), dtypes=("float16",), expected=_PLACED
)
def eps_lost_to_float16(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """eps is cast to the input's float16, in which 1e-8 is 0."""
    wide, square = mean_square(x)
    return finish(x, wide * (square + x.new_tensor([eps]).float()).rsqrt(), weight)


@fault("K04", "after pytorch/pytorch#41527", norm=LAYER_NORM, dtypes=HALF)
def eps_added_to_a_rounded_variance(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Variance and eps meet in the input's 16 bits, where eps vanishes beside the variance and the variance below 6e-8."""
    c, variance = centred(x)
    return finish(x, c * (variance.to(x.dtype) + eps).float().rsqrt(), weight, bias)


@fault("K04", "pytorch/pytorch#32137", norm=L2Norm(eps=1e-12), dtypes=_FP16, expected=("zero-and-constant-rows",))
def eps_of_a_maximum_in_float16(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """max(norm, eps) with eps rounded to float16, that is to 0: zero rows are 0/0."""
    length = x.float().norm(dim=-1, keepdim=True)
    return finish(x, x.float() / length.maximum(x.new_tensor([eps]).float()), weight)


@fault("K05", "pyg-team/pytorch_geometric#2917", "tracel-ai/burn#1992", norm=LAYER_NORM, expected=_PLACED)
def eps_outside_the_root(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The denominator is sigma + eps."""
    c, variance = centred(x)
    return finish(x, c / (variance.sqrt() + eps), weight, bias)


@fault("K05", "allenai/OLMo#281", "tile-ai/tilelang#1243", norm=RMS_NORM, expected=_PLACED)
def rms_plus_eps(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The denominator is rms + eps."""
    wide, square = mean_square(x)
    return finish(x, wide / (square.sqrt() + eps), weight)


@fault("K05", "after vacancy/Synchronized-BatchNorm-PyTorch#43", norm=LAYER_NORM, expected=_PLACED)
def maximum_of_sigma_and_eps(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The denominator is max(sigma, eps)."""
    c, variance = centred(x)
    return finish(x, c / variance.sqrt().clamp(min=eps), weight, bias)


@fault("K05", "vacancy/Synchronized-BatchNorm-PyTorch#43", norm=BatchNorm(), training=True, expected=_PLACED)
def clamped_variance(x: Tensor, weight: Tensor, bias: Tensor, eps: float, *_: Tensor) -> Tensor:
    """The denominator is sqrt(max(variance, eps))."""
    wide, axes = x.float(), (0, *range(2, x.dim()))
    c = wide - wide.mean(axes, keepdim=True)
    variance = (c * c).mean(axes, keepdim=True)
    return finish_channels(x, c * variance.clamp(min=eps).rsqrt(), weight, bias)


@fault("K05", "after allenai/OLMo#281", norm=RMS_NORM, expected=_PLACED)
def eps_on_the_count(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """eps is added to the sum of squares before the division by D, and counts 1/D."""
    wide, _ = mean_square(x)
    total = (wide * wide).sum(-1, keepdim=True)
    return finish(x, wide * ((total + eps) / x.shape[-1]).rsqrt(), weight)


@fault("K05", "taokong/group_normalization#1", norm=GroupNorm(2), expected=_PLACED)
def group_norm_plus_eps(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Tensor:
    """The denominator of a group is sigma + eps."""
    c, variance = centred(grouped(x, num_groups))
    return finish_channels(x, (c / (variance.sqrt() + eps)).reshape(x.shape), weight, bias)


@fault("K05", "after keras-team/keras#8726", norm=LAYER_NORM, expected=_PLACED)
def eps_twice(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The denominator is sqrt(variance + eps) + eps."""
    c, variance = centred(x)
    return finish(x, c / ((variance + eps).sqrt() + eps), weight, bias)


@fault("K05", "after keras-team/keras#8726", norm=LAYER_NORM, expected=_PLACED)
def eps_squared(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The denominator is sqrt(variance + eps**2)."""
    c, variance = centred(x)
    return finish(x, c * (variance + eps * eps).rsqrt(), weight, bias)


@fault("K06", "ggml-org/llama.cpp#2373", "huggingface/transformers#15332", norm=LAYER_NORM, expected=_PLACED)
def eps_1e6_for_1e5(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """eps is fixed at 1e-6, and 1e-5 is what was asked for."""
    c, variance = centred(x)
    return finish(x, c * (variance + 1e-6).rsqrt(), weight, bias)


@fault("K06", "after ggml-org/llama.cpp#2373", norm=RMS_NORM, expected=_PLACED)
def eps_1e5_for_1e6(x: Tensor, weight: Tensor) -> Tensor:
    """eps is fixed at 1e-5, and 1e-6 is what was asked for."""
    wide, square = mean_square(x)
    return finish(x, wide * (square + 1e-5).rsqrt(), weight)


@fault("K06", "gzuidhof/nn-transfer#3", norm=BatchNorm(), training=True, expected=_PLACED)
def eps_of_another_framework(x: Tensor, weight: Tensor, bias: Tensor, *_: Tensor) -> Tensor:
    """eps is Keras' 1e-3 where torch's 1e-5 was meant."""
    wide, axes = x.float(), (0, *range(2, x.dim()))
    c = wide - wide.mean(axes, keepdim=True)
    return finish_channels(x, c * ((c * c).mean(axes, keepdim=True) + 1e-3).rsqrt(), weight, bias)


@fault("K06", "microsoft/onnxruntime#3768", norm=LayerNorm(eps=1e-12), expected=_PLACED)
def eps_clipped_by_the_backend(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The backend takes no eps below 1e-5 and uses that."""
    c, variance = centred(x)
    return finish(x, c * (variance + max(eps, 1e-5)).rsqrt(), weight, bias)


@fault("K06", "pytorch/vision#2169", norm=BatchNorm(), training=False)
def frozen_batch_norm_without_eps(x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor) -> Tensor:
    """Given statistics are applied without eps."""
    c = x.float() - per_channel(running_mean.float(), x)
    return finish_channels(x, c * per_channel(running_var.float().rsqrt(), x), weight, bias)


@fault("K07", "pytorch/pytorch#189581", norm=RMSNorm(eps=2.0**-23), dtypes=HALF, expected=_PLACED)
def eps_of_the_dtype(x: Tensor, weight: Tensor) -> Tensor:
    """eps is the spacing of the input's dtype at 1: 2**-7 in bfloat16 where 2**-23 was meant."""
    import torch

    wide, square = mean_square(x)
    return finish(x, wide * (square + torch.finfo(x.dtype).eps).rsqrt(), weight)


@fault("K07", "after pytorch/pytorch#189581", norm=LAYER_NORM, dtypes=HALF, expected=_PLACED)
def eps_at_least_that_of_the_dtype(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """eps is raised to the spacing of the input's dtype at 1."""
    import torch

    c, variance = centred(x)
    return finish(x, c * (variance + max(eps, torch.finfo(x.dtype).eps)).rsqrt(), weight, bias)


@fault("K07", "after pytorch/pytorch#189581", norm=InstanceNorm(), dtypes=ALL, expected=_PLACED)
def eps_raised_for_16_bits_and_lowered_for_32(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """eps is 1e-3 for 16-bit input and 1e-7 for the rest, whatever was asked for."""
    wide, axes = x.float(), tuple(range(2, x.dim()))
    c = wide - wide.mean(axes, keepdim=True)
    chosen = 1e-3 if x.element_size() == 2 else 1e-7
    return finish_channels(x, c * ((c * c).mean(axes, keepdim=True) + chosen).rsqrt(), weight, bias)


@fault("K05", "after allenai/OLMo#281", norm=RMS_NORM, expected=_PLACED)
def eps_that_grows_with_the_width(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """eps is multiplied by D in the mean of squares, as where it is added to each of them before the sum."""
    wide, _ = mean_square(x)
    return finish(x, wide * (mean(wide * wide + eps * x.shape[-1])).rsqrt(), weight)
