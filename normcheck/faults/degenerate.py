"""K11, K16, K17 and K20: batches without samples, single values, blocks that are not full, and sizes beyond an index."""

from __future__ import annotations

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
from normcheck.norms import BatchNorm, GroupNorm, InstanceNorm

_GRID = 65535


def _normalized(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    c, variance = centred(x)
    return finish(x, c * (variance + eps).rsqrt(), weight, bias)


@fault("K11", "tensorflow/tensorflow#46366", norm=LAYER_NORM, expected=("empty-batch",))
def work_divided_by_the_rows(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Threads get total // rows elements each, which divides by zero on an empty batch."""
    rows = x.shape[:-1].numel()
    assert x.numel() // rows == x.shape[-1]
    return _normalized(x, weight, bias, eps)


@fault("K11", "pytorch/pytorch#74944", norm=RMS_NORM, expected=("empty-batch",))
def empty_batch_loses_its_shape(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """An empty batch returns an empty vector."""
    wide, square = mean_square(x)
    return finish(x, wide * (square + eps).rsqrt(), weight) if x.numel() else x.new_empty(0)


@fault("K11", "tensorflow/tensorflow#48845", norm=BatchNorm(), training=False, expected=("one-value-per-channel",))
def single_value_refused_in_evaluation(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, eps: float
) -> Tensor:
    """What training has to refuse is refused in evaluation, too."""
    if x.numel() == x.shape[1]:
        raise ValueError("expected more than 1 value per channel")
    c = x.float() - per_channel(running_mean.float(), x)
    return finish_channels(x, c * per_channel((running_var.float() + eps).rsqrt(), x), weight, bias)


@fault("K11", "tensorflow/tensorflow#34062", norm=InstanceNorm(), expected=("one-value-per-channel", "zero-and-constant-rows"))
def single_pixel_is_passed_through(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Maps of one pixel are taken to need no norm."""
    c, variance = centred(x.reshape(*x.shape[:2], -1))
    n = (c * (variance + eps).rsqrt()).reshape(x.shape)
    return finish_channels(x, x.float() if x.shape[2:].numel() == 1 else n, weight, bias)


@fault("K16", "linkedin/Liger-Kernel#518", norm=RMS_NORM, expected=("widths",))
def stale_values_beyond_the_row(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The block reaches to a multiple of 16, and holds what the row before has left there."""
    wide, missing = x.float(), -x.shape[-1] % 16
    stale = wide.roll(1, 0)[..., -missing:] if missing else wide[..., :0]
    square = ((wide * wide).sum(-1, keepdim=True) + (stale * stale).sum(-1, keepdim=True)) / x.shape[-1]
    return finish(x, wide * (square + eps).rsqrt(), weight)


@fault("K16", "pytorch/pytorch#81985", norm=GroupNorm(2), expected=("widths",))
def group_padded_to_a_block(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Tensor:
    """Groups are filled up with zeros to a multiple of 32, and the mean is that of the block."""
    groups = grouped(x.float(), num_groups)
    size = groups.shape[-1]
    c = groups - groups.sum(-1, keepdim=True) / (size + -size % 32)
    n = (c * (mean(c * c) + eps).rsqrt()).reshape(x.shape)
    return finish_channels(x, n, weight, bias)


@fault("K17", "thu-ml/TurboDiffusion#103", norm=LAYER_NORM, expected=("row-counts",))
def block_of_rows_that_is_not_full(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Rows are taken eight at a time; where more than one block is needed, a last one that is not full is never written."""
    y = _normalized(x, weight, bias, eps)
    rows = x.shape[:-1].numel()
    if rows > 8 and rows % 8:
        y.view(-1, x.shape[-1])[rows // 8 * 8 :] = 0
    return y


@fault("K17", "ROCm/aiter#5044", norm=RMS_NORM, expected=("row-independence", "widths"))
def odd_row_spills_into_the_next(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The last store of an odd row writes its own last result over the first of the next row."""
    wide, square = mean_square(x)
    y = finish(x, wide * (square + eps).rsqrt(), weight)
    if x.shape[-1] % 2:
        rows = y.view(-1, x.shape[-1])
        rows[1:, 0] = rows[:-1, -1].clone()
    return y


@fault("K17", "flashinfer-ai/flashinfer#4480", norm=LAYER_NORM, expected=("widths",))
def last_vector_counted_twice(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Where the width is no multiple of four, the last load is moved back, and what it reads again counts again."""
    wide, width = x.float(), x.shape[-1]
    again = wide[..., -4 : -(width % 4)] if width % 4 and width > 4 else wide[..., :0]
    m = (wide.sum(-1, keepdim=True) + again.sum(-1, keepdim=True)) / width
    return finish(x, (wide - m) * (mean((wide - m) ** 2) + eps).rsqrt(), weight, bias)


@fault("K20", "microsoft/onnxruntime#29264", norm=LAYER_NORM, expected=("row-counts",), profile="standard")
def rows_beyond_65535(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """A grid has 65535 blocks at most: the rows beyond are not normalized."""
    y = _normalized(x, weight, bias, eps)
    y.view(-1, x.shape[-1])[_GRID:] = x.reshape(-1, x.shape[-1])[_GRID:]
    return y


@fault("K20", "vllm-project/vllm#42862", norm=RMS_NORM, expected=("row-counts",), profile="standard")
def row_number_in_16_bits(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The number of a row wraps at 65536: later rows repeat the results of the first."""
    import torch

    wide, square = mean_square(x)
    y = finish(x, wide * (square + eps).rsqrt(), weight)
    rows = y.reshape(-1, x.shape[-1])
    return rows[torch.arange(len(rows)) % (_GRID + 1)].reshape(x.shape)


@fault("K20", "pytorch/executorch#16727", norm=LAYER_NORM, expected=("widths",), profile="standard")
def width_in_16_bits(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The width by which the sums are divided is kept in 16 bits."""
    wide, count = x.float(), max(x.shape[-1] % (_GRID + 1), 1)
    c = wide - wide.sum(-1, keepdim=True) / count
    return finish(x, c * ((c * c).sum(-1, keepdim=True) / count + eps).rsqrt(), weight, bias)
