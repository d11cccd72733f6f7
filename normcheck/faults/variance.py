"""K01: variances in one pass, which cancel."""

from __future__ import annotations

from normcheck.faults.catalogue import HALF, fault
from normcheck.faults.parts import LAYER_NORM, Tensor, finish, finish_channels, grouped, mean
from normcheck.norms import BatchNorm, GroupNorm, InstanceNorm

_FOUND = ("accuracy", "shift-invariance", "condition-sweep")


@fault("K01", "pytorch/pytorch#51102", "microsoft/onnxruntime#28463", norm=LAYER_NORM, expected=(*_FOUND, "finite-in-finite-out"))
def single_pass_variance(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The variance is E[x**2] - E[x]**2, and may come out negative."""
    wide = x.float()
    m = mean(wide)
    return finish(x, (wide - m) * (mean(wide * wide) - m * m + eps).rsqrt(), weight, bias)


@fault("K01", "microsoft/onnxruntime#28463", "google/flax#1491", norm=LAYER_NORM, expected=_FOUND)
def single_pass_variance_clamped(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The variance is max(0, E[x**2] - E[x]**2): no NaN any more, and still the wrong scale."""
    wide = x.float()
    m = mean(wide)
    return finish(x, (wide - m) * ((mean(wide * wide) - m * m).clamp(min=0) + eps).rsqrt(), weight, bias)


@fault("K01", "after microsoft/onnxruntime#28463", norm=LAYER_NORM, expected=_FOUND)
def single_pass_variance_absolute(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The variance is |E[x**2] - E[x]**2|."""
    wide = x.float()
    m = mean(wide)
    return finish(x, (wide - m) * ((mean(wide * wide) - m * m).abs() + eps).rsqrt(), weight, bias)


@fault("K01", "after tracel-ai/burn#5607", norm=LAYER_NORM, expected=_FOUND)
def sums_of_squares(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The variance is (sum x**2 - (sum x)**2/D)/D."""
    wide, count = x.float(), x.shape[-1]
    total, squares = wide.sum(-1, keepdim=True), (wide * wide).sum(-1, keepdim=True)
    variance = ((squares - total * total / count) / count).clamp(min=0)
    return finish(x, (wide - total / count) * (variance + eps).rsqrt(), weight, bias)


@fault("K01", "tenstorrent/tt-metal#45968", "k2-fsa/sherpa-onnx#3857", norm=LAYER_NORM, dtypes=HALF, expected=_FOUND)
def rounded_moments(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """E[x**2] and E[x] are rounded to the input's 16 bits before they are subtracted."""
    wide = x.float()
    m, square = mean(wide).to(x.dtype).float(), mean(wide * wide).to(x.dtype).float()
    return finish(x, (wide - m) * ((square - m * m).clamp(min=0) + eps).rsqrt(), weight, bias)


@fault("K01", "after pytorch/pytorch#51102", norm=LAYER_NORM, dtypes=("float32",))
def shifted_by_the_first_element(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """One pass over x - x[0], which cancels where x[0] is the outlier."""
    moved = x.float() - x[..., :1].float()
    m = mean(moved)
    return finish(x, (moved - m) * ((mean(moved * moved) - m * m).clamp(min=0) + eps).rsqrt(), weight, bias)


@fault("K01", "after pytorch/pytorch#51102", norm=LAYER_NORM, dtypes=("float32", "bfloat16"))
def shifted_by_the_largest_element(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """One pass over x - max(x), which cancels where a row has an outlier."""
    moved = x.float() - x.float().amax(-1, keepdim=True)
    m = mean(moved)
    return finish(x, (moved - m) * ((mean(moved * moved) - m * m).clamp(min=0) + eps).rsqrt(), weight, bias)


@fault("K01", "google/flax#1491", "keras-team/keras#18795", norm=BatchNorm(), training=True, expected=_FOUND)
def single_pass_batch_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, *_: Tensor) -> Tensor:
    """Batch statistics in one pass, the variance clamped at 0."""
    wide, axes = x.float(), (0, *range(2, x.dim()))
    m = wide.mean(axes, keepdim=True)
    variance = ((wide * wide).mean(axes, keepdim=True) - m * m).clamp(min=0)
    return finish_channels(x, (wide - m) * (variance + eps).rsqrt(), weight, bias)


@fault("K01", "after google/flax#1491", norm=InstanceNorm(), expected=_FOUND)
def single_pass_instance_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Statistics of each sample and channel in one pass, the variance clamped at 0."""
    wide, axes = x.float(), tuple(range(2, x.dim()))
    m = wide.mean(axes, keepdim=True)
    variance = ((wide * wide).mean(axes, keepdim=True) - m * m).clamp(min=0)
    return finish_channels(x, (wide - m) * (variance + eps).rsqrt(), weight, bias)


@fault("K01", "after google/flax#1491", norm=GroupNorm(2), expected=_FOUND)
def single_pass_group_norm(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Tensor:
    """Statistics of each group in one pass, the variance clamped at 0."""
    groups = grouped(x.float(), num_groups)
    m = mean(groups)
    n = (groups - m) * ((mean(groups * groups) - m * m).clamp(min=0) + eps).rsqrt()
    return finish_channels(x, n.reshape(x.shape), weight, bias)
