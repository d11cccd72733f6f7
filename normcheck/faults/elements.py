"""K16, K17 and K19: elements that count though they should not, or do not though they should, and wrong axes."""

from __future__ import annotations

import math

from normcheck.faults.catalogue import fault
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
from normcheck.norms import BatchNorm, GroupNorm, InstanceNorm, L2Norm


def _padded(x: Tensor, to: int, value: float = 0.0) -> Tensor:
    """x with its last axis filled up to a multiple of ``to``."""
    import torch

    missing = -x.shape[-1] % to
    return torch.nn.functional.pad(x.float(), (0, missing), value=value)


def _block(x: Tensor) -> int:
    return 1 << math.ceil(math.log2(x.shape[-1]))


@fault("K16", "triton-lang/triton#9838", "unslothai/unsloth#1867", norm=LAYER_NORM)
def padding_counted_in_the_variance(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Zeros fill the row up to a power of two; less the mean they are -mean, and enter the variance."""
    block = _padded(x, _block(x))
    m = block.sum(-1, keepdim=True) / x.shape[-1]
    variance = ((block - m) ** 2).sum(-1, keepdim=True) / x.shape[-1]
    return finish(x, (x.float() - m) * (variance + eps).rsqrt(), weight, bias)


@fault("K16", "after triton-lang/triton#9838", norm=LAYER_NORM)
def padding_counted_in_the_mean(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The sum is divided by the padded width."""
    wide, block = x.float(), _block(x)
    m = wide.sum(-1, keepdim=True) / block
    return finish(x, (wide - m) * (mean((wide - m) ** 2) + eps).rsqrt(), weight, bias)


@fault("K16", "after triton-lang/triton#9838", norm=RMS_NORM)
def padding_counted_in_the_mean_square(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The row is filled up with zeros to a multiple of 8, and those are averaged with the rest."""
    square = mean(_padded(x, 8) ** 2)
    return finish(x, x.float() * (square + eps).rsqrt(), weight)


@fault("K16", "tensorflow/tensorflow#30161", norm=BatchNorm(), training=True)
def batch_norm_of_a_padded_batch(x: Tensor, weight: Tensor, bias: Tensor, eps: float, *_: Tensor) -> Tensor:
    """One sample of zeros is counted in the statistics of every channel."""
    import torch

    wide, axes = x.float(), (0, *range(2, x.dim()))
    batch = torch.cat([wide, torch.zeros_like(wide[:1])])
    m = batch.mean(axes, keepdim=True)
    variance = ((batch - m) ** 2).mean(axes, keepdim=True)
    return finish_channels(x, (wide - m) * (variance + eps).rsqrt(), weight, bias)


@fault("K17", "after ROCm/aiter#5044", norm=LAYER_NORM)
def last_element_dropped(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The statistics leave out the last element of wider rows."""
    wide = x.float()
    seen = wide[..., :-1] if x.shape[-1] > 2 else wide
    m = mean(seen)
    return finish(x, (wide - m) * (mean((seen - m) ** 2) + eps).rsqrt(), weight, bias)


@fault("K17", "after ROCm/aiter#5044", norm=RMS_NORM)
def tail_of_eight_dropped(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The squares of the elements beyond the last whole group of eight are not summed."""
    wide, width = x.float(), x.shape[-1]
    seen = wide[..., : max(width // 8 * 8, min(width, 8))]
    return finish(x, wide * ((seen * seen).sum(-1, keepdim=True) / width + eps).rsqrt(), weight)


@fault("K17", "after ROCm/aiter#5044", norm=LAYER_NORM)
def last_element_left_as_it_is(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The last element of an odd row is copied from the input."""
    c, variance = centred(x)
    y = finish(x, c * (variance + eps).rsqrt(), weight, bias)
    if x.shape[-1] % 2:
        y[..., -1] = x[..., -1]
    return y


@fault("K17", "ROCm/aiter#5044", norm=RMS_NORM)
def neighbour_overwritten(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Rows of odd width are stored in pairs, the last of which spills into the row below."""
    wide, square = mean_square(x)
    r = (square + eps).rsqrt()
    y = finish(x, wide * r, weight)
    if x.shape[-1] % 2:
        first = finish(x, wide[1:, ..., :1] * r[:-1], None if weight is None else weight[:1])
        y[1:, ..., :1] = first
    return y


@fault("K17", "after ROCm/aiter#5044", norm=LAYER_NORM)
def first_tile_only(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The statistics are those of the first 1024 elements."""
    wide, tile = x.float(), x.float()[..., :1024]
    m = mean(tile)
    return finish(x, (wide - m) * (mean((tile - m) ** 2) + eps).rsqrt(), weight, bias)


@fault("K17", "after ROCm/aiter#5044", norm=L2Norm())
def last_of_an_odd_row_counted_twice(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Pairs of elements overlap at the end of an odd row."""
    wide, last = x.float(), x.float()[..., -1:] * (x.shape[-1] % 2)
    length = ((wide * wide).sum(-1, keepdim=True) + last * last).sqrt()
    return finish(x, wide / length.clamp(min=eps), weight)


@fault("K19", "tensorflow/addons#751", "keras-team/tf-keras#308", norm=GroupNorm(2), channel_axis=-1)
def channels_last_groups_without_a_transpose(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Tensor:
    """Channels-last input is cut into groups as if the channels came first: a group is a strip of space."""
    c, variance = centred(grouped(x, num_groups))
    return finish(x, (c * (variance + eps).rsqrt()).reshape(x.shape), weight, bias)


@fault("K19", "onnx/onnx#5466", norm=GroupNorm(2))
def one_weight_per_group(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Tensor:
    """Weight and bias of a group's first channel serve the whole group."""
    c, variance = centred(grouped(x, num_groups))
    size = x.shape[1] // num_groups
    first = [None if v is None else v[::size].repeat_interleave(size) for v in (weight, bias)]
    return finish_channels(x, (c * (variance + eps).rsqrt()).reshape(x.shape), *first)


@fault("K19", "osaurus-ai/vmlx-swift#188", norm=GroupNorm(2))
def groups_ignored(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """All channels form one group."""
    c, variance = centred(grouped(x))
    return finish_channels(x, (c * (variance + eps).rsqrt()).reshape(x.shape), weight, bias)


@fault("K19", "after state-spaces/mamba#951", norm=GroupNorm(2))
def interleaved_groups(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Tensor:
    """Every second channel belongs to a group, not every half of them."""
    apart = x.reshape(*x.shape[:1], x.shape[1] // num_groups, num_groups, x.shape[2:].numel()).transpose(1, 2)
    c, variance = centred(grouped(apart, num_groups))
    n = (c * (variance + eps).rsqrt()).reshape(apart.shape).transpose(1, 2)
    return finish_channels(x, n.reshape(x.shape), weight, bias)


@fault("K19", "after tensorflow/tensorflow#39942", norm=BatchNorm(), training=True)
def batch_norm_over_the_batch_only(x: Tensor, weight: Tensor, bias: Tensor, eps: float, *_: Tensor) -> Tensor:
    """Every position in space has statistics of its own."""
    wide = x.float()
    c = wide - wide.mean(0, keepdim=True)
    return finish_channels(x, c * ((c * c).mean(0, keepdim=True) + eps).rsqrt(), weight, bias)


@fault("K19", "after tensorflow/addons#2143", norm=InstanceNorm())
def instance_norm_over_channels(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The channels of a sample share their statistics."""
    c, variance = centred(grouped(x))
    return finish_channels(x, (c * (variance + eps).rsqrt()).reshape(x.shape), weight, bias)


@fault("K19", "after tensorflow/tensorflow#39942", norm=BatchNorm(), training=True, channel_axis=-1)
def channels_last_statistics_of_axis_one(x: Tensor, weight: Tensor, bias: Tensor, eps: float, *_: Tensor) -> Tensor:
    """Channels-last input is averaged as if axis 1 held the channels."""
    wide, axes = x.float(), (0, *range(2, x.dim()))
    c = wide - wide.mean(axes, keepdim=True)
    return finish(x, c * ((c * c).mean(axes, keepdim=True) + eps).rsqrt(), weight, bias)


@fault("K33", "after pytorch/pytorch#58843", norm=BatchNorm(), training=False)
def batch_statistics_in_evaluation(x: Tensor, weight: Tensor, bias: Tensor, eps: float, *_: Tensor) -> Tensor:
    """Evaluation normalizes by the batch, as training does."""
    wide, axes = x.float(), (0, *range(2, x.dim()))
    c = wide - wide.mean(axes, keepdim=True)
    return finish_channels(x, c * ((c * c).mean(axes, keepdim=True) + eps).rsqrt(), weight, bias)


@fault("K33", "after pytorch/pytorch#58843", norm=BatchNorm(), training=True)
def running_statistics_in_training(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, eps: float
) -> Tensor:
    """Training normalizes by the running statistics, as evaluation does."""
    c = x.float() - per_channel(running_mean.float(), x)
    return finish_channels(x, c * per_channel((running_var.float() + eps).rsqrt(), x), weight, bias)


@fault("K33", "after pytorch/pytorch#58843", norm=InstanceNorm(track_running_stats=True), training=False)
def tracked_instance_norm_by_the_instance(x: Tensor, weight: Tensor, bias: Tensor, eps: float, *_: Tensor) -> Tensor:
    """Tracked statistics are ignored in evaluation."""
    wide, axes = x.float(), tuple(range(2, x.dim()))
    c = wide - wide.mean(axes, keepdim=True)
    return finish_channels(x, c * ((c * c).mean(axes, keepdim=True) + eps).rsqrt(), weight, bias)
