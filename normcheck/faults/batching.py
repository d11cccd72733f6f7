"""K27, K29 and K31: bits that depend on the batch, the run or the threads; absent parameters; NaN and infinity."""

from __future__ import annotations

from normcheck.faults.catalogue import fault
from normcheck.faults.parts import (
    LAYER_NORM,
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
)
from normcheck.norms import BatchNorm, GroupNorm

_FLOAT32 = ("float32",)


def _in_lanes(values: Tensor, count: int) -> Tensor:
    """Sum over the last axis: every ``count``-th element in a lane, then the lanes."""
    import torch

    lanes = torch.nn.functional.pad(values, (0, -values.shape[-1] % count)).reshape(*values.shape[:-1], -1, count)
    total = lanes[..., 0, :]
    for step in range(1, lanes.shape[-2]):
        total = total + lanes[..., step, :]
    return total.sum(-1, keepdim=True)


def _as_they_come(values: Tensor) -> Tensor:
    """Sum over the last axis: eight parts, one after the other in a random order."""
    import torch

    parts = [part.sum(-1, keepdim=True) for part in values.tensor_split(8, -1)]
    return sum((parts[i] for i in torch.randperm(8).tolist()), torch.zeros(()))


@fault(
    "K27", "vllm-project/vllm#48391", "vllm-project/vllm#48271", norm=RMS_NORM, dtypes=_FLOAT32, expected=("batch-invariance",)
)
def lanes_by_the_number_of_rows(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Squares are added in 64 lanes below 256 rows and in 16 lanes above."""
    wide = x.float()
    total = _in_lanes(wide * wide, 64 if x.shape[:-1].numel() < 256 else 16)
    return finish(x, wide * (total / x.shape[-1] + eps).rsqrt(), weight)


@fault("K27", "tensorflow/addons#2745", norm=GroupNorm(2), expected=("batch-invariance",))
def other_variance_for_a_single_sample(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Tensor:
    """A batch of one takes another path, with the unbiased variance."""
    c, variance = centred(grouped(x, num_groups))
    if len(x) == 1 and c.shape[-1] > 1:
        variance = variance * (c.shape[-1] / (c.shape[-1] - 1))
    return finish_channels(x, (c * (variance + eps).rsqrt()).reshape(x.shape), weight, bias)


@fault("K27", "sgl-project/sglang#28787", norm=LAYER_NORM, dtypes=_FLOAT32, expected=("run-to-run",))
def atomic_additions(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Elements are added in the order in which threads happen to arrive."""
    c = x.float()
    c = c - _as_they_come(c) / x.shape[-1]
    return finish(x, c * (_as_they_come(c * c) / x.shape[-1] + eps).rsqrt(), weight, bias)


@fault("K27", "ROCm/aiter#5044", norm=LAYER_NORM, expected=("poisoned-scratch",))
def partial_sums_never_cleared(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Sums are added to scratch memory that is taken to be zero."""
    c, variance = centred(x)
    scratch = x.new_empty(x.shape)
    scratch += finish(x, c * (variance + eps).rsqrt(), weight, bias)
    return scratch


@fault("K27", "pytorch/pytorch#143182", norm=RMS_NORM, dtypes=_FLOAT32, expected=("thread-invariance",))
def sums_split_over_the_threads(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Each thread adds a part of the row, and the parts are added at the end."""
    import torch

    wide = x.float()
    parts = (wide * wide).tensor_split(torch.get_num_threads(), -1)
    square = sum(part.sum(-1, keepdim=True) for part in parts) / x.shape[-1]
    return finish(x, wide * (square + eps).rsqrt(), weight)


@fault("K29", "pytorch/pytorch#69208", norm=LAYER_NORM, expected=("optional-affine",))
def no_weight_without_a_bias(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """One flag stands for both: where the bias is missing, the weight is left out, too."""
    c, variance = centred(x)
    n = c * (variance + eps).rsqrt()
    return finish(x, n, None, None) if weight is None or bias is None else finish(x, n, weight, bias)


@fault("K29", "torch-spyre/torch-spyre#1980", norm=RMS_NORM, expected=("optional-affine",))
def absent_weight_counts_as_zero(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The buffer of an absent weight holds zeros."""
    wide, square = mean_square(x)
    return finish(x, wide * (square + eps).rsqrt(), x.new_zeros(x.shape[-1]) if weight is None else weight)


@fault("K29", "flagos-ai/FlagGems#323", norm=GroupNorm(2), expected=("optional-affine",))
def weight_read_for_an_absent_bias(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Tensor:
    """Where the bias is missing, its pointer is that of the weight."""
    c, variance = centred(grouped(x, num_groups))
    used = weight if bias is None else bias
    return finish_channels(x, (c * (variance + eps).rsqrt()).reshape(x.shape), weight, used)


@fault("K31", "ohdearquant/lattice#862", norm=LAYER_NORM, expected=("nonfinite-rows",))
def nan_left_out_of_the_statistics(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The statistics are those of the elements that are numbers: the others of the row stay finite."""
    wide = x.float()
    c = wide - wide.nanmean(-1, keepdim=True)
    return finish(x, c * ((c * c).nanmean(-1, keepdim=True) + eps).rsqrt(), weight, bias)


@fault("K31", "pytorch/pytorch#173885", norm=RMS_NORM, expected=("nonfinite-rows",))
def nan_replaced_by_zero(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """What is not a number at the end becomes 0."""
    wide, square = mean_square(x)
    return finish(x, (wide * (square + eps).rsqrt()).nan_to_num(0.0), weight)


@fault("K31", "xlite-dev/LeetCUDA#335", norm=LAYER_NORM, expected=("nonfinite-rows",))
def infinity_clamped(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Infinities are cut to the largest number whose square is finite before anything else."""
    c, variance = centred(x.float().clamp(-1e18, 1e18))
    return finish(x, c * (variance + eps).rsqrt(), weight, bias)


@fault("K31", "pytorch/pytorch#173885", norm=RMS_NORM, expected=("nonfinite-rows",))
def flag_added_up_over_the_batch(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """A sum over all rows is added with factor 0, which is NaN as soon as one of them is."""
    wide, square = mean_square(x)
    flag = (wide / wide.abs().amax().clamp(min=1)).sum() * 0
    return finish(x, affine(wide * (square + eps).rsqrt(), weight) + flag, None)


@fault("K31", "pytorch/pytorch#173885", norm=BatchNorm(), training=False, expected=("nonfinite-rows",))
def nan_of_one_pixel_spreads(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, eps: float
) -> Tensor:
    """Evaluation subtracts 0 times the batch's mean, so that one NaN reaches the whole channel."""
    axes = (0, *range(2, x.dim()))
    bounded = x.float().clamp(-1e30, 1e30)
    c = x.float() - per_channel(running_mean.float(), x) - 0 * mean(bounded.mean(axes[1:] or (0,), keepdim=True))
    return finish_channels(x, c * per_channel((running_var.float() + eps).rsqrt(), x), weight, bias)
