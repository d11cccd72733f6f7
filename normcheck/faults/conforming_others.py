"""Sound norms beside LayerNorm: root mean squares as the models write them, lengths, channels, batches."""

from __future__ import annotations

from typing import Any

import numpy as np

from normcheck.contract import Contract
from normcheck.faults.catalogue import HALF, sound_norm
from normcheck.faults.parts import (
    RMS_NORM,
    Tensor,
    affine,
    centred,
    finish,
    finish_channels,
    grouped,
    mean,
    mean_square,
    per_channel,
    widened,
)
from normcheck.faults.sums import Values, halving, sequential
from normcheck.norms import BatchNorm, GroupNorm, InstanceNorm, L2Norm, PartialRMSNorm, RMSNorm, ScaleNorm

_PROMOTED = Contract(cast="before_weight", output="promote")
_OVERFLOW = ("overflow",)
_NUMPY: dict[str, Any] = {"framework": "numpy", "grad": None}


@sound_norm(RMS_NORM, warns=_OVERFLOW)
def rms_by_reciprocal_root(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x times the reciprocal root."""
    wide, square = mean_square(x)
    return finish(x, wide * (square + eps).rsqrt(), weight)


@sound_norm(RMS_NORM, warns=_OVERFLOW)
def rms_by_division(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x over the root."""
    wide, square = mean_square(x)
    return finish(x, wide / (square + eps).sqrt(), weight)


@sound_norm(RMS_NORM, warns=_OVERFLOW)
def rms_from_the_sum(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The sum of squares is divided by D after it is formed."""
    wide = widened(x)
    total = (wide * wide).sum(-1, keepdim=True)
    return finish(x, wide * (total / x.shape[-1] + eps).rsqrt(), weight)


@sound_norm(RMS_NORM)
def rms_in_float64(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Everything is computed in float64, and rounded once."""
    wide = x.double().contiguous()
    return finish(x, wide * (mean(wide * wide) + eps).rsqrt(), weight)


@sound_norm(RMS_NORM, contract=_PROMOTED, warns=_OVERFLOW)
def llama(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The standardized value is rounded before the weight, as in Hugging Face's Llama."""
    wide, square = mean_square(x)
    n = (wide * (square + eps).rsqrt()).to(x.dtype)
    return n if weight is None else weight * n


@sound_norm(RMS_NORM, dtypes=HALF, contract=_PROMOTED, warns=("overflow", "input-gradient"))
def t5(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As Llama, but the input is widened twice, so that autograd adds two parts of its gradient in 16 bits."""
    n = x * (mean(widened(x) ** 2) + eps).rsqrt()
    return n.to(x.dtype) if weight is None else weight * n.to(weight.dtype)


@sound_norm(
    RMS_NORM, dtypes=HALF, weight_dtype="float32", contract=Contract(cast="before_weight", output="promote"), warns=_OVERFLOW
)
def llama_with_float32_weights(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As Llama, with weights that promote the output to float32, as its contract says."""
    wide, square = mean_square(x)
    n = (wide * (square + eps).rsqrt()).to(x.dtype)
    return n if weight is None else weight * n


@sound_norm(RMSNorm(eps=1e-6, weight_offset=1.0), warns=_OVERFLOW)
def gemma(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """1 + w is formed in float32, and there is one rounding."""
    wide, square = mean_square(x)
    return finish(x, wide * (square + eps).rsqrt(), None if weight is None else 1.0 + weight.float())


@sound_norm(RMS_NORM, contract=Contract(accumulation="sequential"), warns=_OVERFLOW, **_NUMPY)
def rms_by_sequential_sums(x: Values, weight: Values, eps: float) -> Values:
    """Running sums of squares."""
    wide = np.ascontiguousarray(x, np.float32)
    n = wide / np.sqrt(sequential(wide * wide) / np.float32(x.shape[-1]) + np.float32(eps))
    return (n if weight is None else n * weight.astype(np.float32)).astype(x.dtype)


@sound_norm(RMS_NORM, warns=_OVERFLOW, **_NUMPY)
def rms_by_halving(x: Values, weight: Values, eps: float) -> Values:
    """Sums of squares by a tree."""
    wide = np.ascontiguousarray(x, np.float32)
    n = wide / np.sqrt(halving(wide * wide) / np.float32(x.shape[-1]) + np.float32(eps))
    return (n if weight is None else n * weight.astype(np.float32)).astype(x.dtype)


@sound_norm(L2Norm(eps=1e-12), warns=_OVERFLOW)
def query_key_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x over its length, in float32."""
    wide = widened(x)
    return finish(x, wide / (wide * wide).sum(-1, keepdim=True).clamp(min=eps * eps).sqrt(), weight)


@sound_norm(ScaleNorm(eps=1e-5), warns=_OVERFLOW)
def scaled_length(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """One learned scalar times x over its length."""
    wide = widened(x)
    return finish(x, wide / (wide * wide).sum(-1, keepdim=True).clamp(min=eps * eps).sqrt(), weight)


@sound_norm(PartialRMSNorm(fraction=0.25), warns=_OVERFLOW)
def partial_root_mean_square(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The root mean square of the first quarter."""
    wide = widened(x)
    square = mean(wide[..., : -(-x.shape[-1] // 4)] ** 2)
    return finish(x, wide * (square + eps).rsqrt(), weight)


@sound_norm(PartialRMSNorm(fraction=0.1, rounding="floor"), warns=_OVERFLOW)
def partial_root_mean_square_of_its_authors(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The root mean square of the first int(0.1*D) elements, at least one."""
    wide = widened(x)
    square = mean(wide[..., : max(1, int(0.1 * x.shape[-1]))] ** 2)
    return finish(x, wide * (square + eps).rsqrt(), weight)


@sound_norm(BatchNorm(), training=True, warns=_OVERFLOW)
def batch_norm_in_two_passes(x: Tensor, weight: Tensor, bias: Tensor, eps: float, *_: Tensor) -> Tensor:
    """Training: the batch's mean, then its variance, per channel."""
    wide, axes = widened(x), (0, *range(2, x.dim()))
    c = wide - wide.mean(axes, keepdim=True)
    return finish_channels(x, c * ((c * c).mean(axes, keepdim=True) + eps).rsqrt(), weight, bias)


@sound_norm(BatchNorm(), training=False)
def batch_norm_by_given_statistics(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, eps: float
) -> Tensor:
    """Evaluation: subtract, scale, then the affine step."""
    c = x.float() - per_channel(running_mean.float(), x)
    return finish_channels(x, c * per_channel((running_var.float() + eps).rsqrt(), x), weight, bias)


@sound_norm(BatchNorm(), training=False)
def folded_evaluation(x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, eps: float) -> Tensor:
    """Evaluation: scale and shift are prepared per channel in float32."""
    r = (running_var.float() + eps).rsqrt()
    scale = affine(r, weight)
    shift = affine(-running_mean.float() * scale, None, bias)
    return (x.float() * per_channel(scale, x) + per_channel(shift, x)).to(x.dtype)


@sound_norm(BatchNorm(), training=False)
def shift_by_a_product_of_its_own(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, eps: float
) -> Tensor:
    """Evaluation: the shift is formed from mean and weight, not from the rounded scale."""
    root = (running_var.float() + eps).sqrt()
    wide = None if weight is None else weight.float()  # once: two casts would round two parts of its gradient
    scale = affine(1 / root, wide)
    shift = affine(affine(-running_mean.float(), wide) / root, None, bias)
    return (x.float() * per_channel(scale, x) + per_channel(shift, x)).to(x.dtype)


@sound_norm(RMSNorm(eps=1e-6, weight_offset=1.0), warns=(*_OVERFLOW, "signed-zeros"))
def offset_added_to_the_product(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """n + w*n, without 1 + w: where w is near -1 two numbers of the size of n cancel."""
    wide, square = mean_square(x)
    n = wide * (square + eps).rsqrt()
    return (n if weight is None else n + weight.float() * n).to(x.dtype)


@sound_norm(GroupNorm(2), warns=_OVERFLOW)
def group_norm_in_two_passes(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Tensor:
    """Each half of the channels on its own."""
    c, variance = centred(grouped(x, num_groups))
    return finish_channels(x, (c * (variance + eps).rsqrt()).reshape(x.shape), weight, bias)


@sound_norm(InstanceNorm(), warns=_OVERFLOW)
def instance_norm_in_two_passes(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Each sample and channel on its own."""
    wide, axes = widened(x), tuple(range(2, x.dim()))
    c = wide - wide.mean(axes, keepdim=True)
    return finish_channels(x, c * ((c * c).mean(axes, keepdim=True) + eps).rsqrt(), weight, bias)
