"""K11, K18 and K20: degenerate sizes, memory layouts, and indices that wrap."""

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
)
from normcheck.norms import BatchNorm, GroupNorm

_STRIDED = ("contiguous", "transposed")
_IMAGES = ("contiguous", "channels_last")


def _as_it_lies(x: Tensor) -> Tensor:
    """The elements in the order of memory, taken for a contiguous array of the same shape."""
    return x.as_strided(x.shape, x.new_empty(x.shape).stride())


@fault("K11", "after pytorch/pytorch#1381", norm=LAYER_NORM, expected=("zero-and-constant-rows",))
def one_element_is_nan(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The variance goes through the unbiased one, which is 0/0 for one element."""
    wide, count = x.float(), x.shape[-1]
    variance = wide.var(-1, keepdim=True) * ((count - 1) / count)
    return finish(x, (wide - mean(wide)) * (variance + eps).rsqrt(), weight, bias)


@fault("K11", "after FluxML/Flux.jl#2716", norm=LAYER_NORM, expected=("zero-and-constant-rows",))
def one_element_is_passed_through(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Rows of one element are taken to need no norm."""
    c, variance = centred(x)
    return finish(x, x.float() if x.shape[-1] == 1 else c * (variance + eps).rsqrt(), weight, bias)


@fault("K11", "after FluxML/Flux.jl#2716", norm=GroupNorm(2))
def one_channel_per_group_is_passed_through(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Tensor:
    """Groups of one channel are taken to need no statistics."""
    c, variance = centred(grouped(x, num_groups))
    n = (c * (variance + eps).rsqrt()).reshape(x.shape)
    return finish_channels(x, x.float() if x.shape[1] == num_groups else n, weight, bias)


@fault("K18", "after ModelTC/LightLLM#1467", norm=LAYER_NORM, layouts=_STRIDED)
def strides_ignored(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Memory is read as if the input were contiguous."""
    c, variance = centred(_as_it_lies(x))
    return finish(x, c * (variance + eps).rsqrt(), weight, bias)


@fault("K18", "ModelTC/LightLLM#1467", norm=RMS_NORM, layouts=_STRIDED)
def stride_used_in_one_pass_only(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The mean square is that of the strided row, and what is scaled is what lies next to it in memory."""
    _, square = mean_square(x)
    return finish(x, _as_it_lies(x).float() * (square + eps).rsqrt(), weight)


@fault("K18", "after pytorch/pytorch#51102", norm=GroupNorm(2), layouts=_IMAGES)
def single_pass_where_channels_come_last(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Tensor:
    """The kernel for channels-last memory takes the variance in one pass, the other one does not."""
    groups = grouped(x.float(), num_groups)
    c, variance = centred(groups)
    if not x.is_contiguous():
        variance = (mean(groups * groups) - mean(groups) ** 2).clamp(min=0)
    return finish_channels(x, (c * (variance + eps).rsqrt()).reshape(x.shape), weight, bias)


@fault("K18", "after ModelTC/LightLLM#1467", norm=BatchNorm(), training=True, layouts=_IMAGES)
def channels_last_output_in_the_wrong_order(x: Tensor, weight: Tensor, bias: Tensor, eps: float, *_: Tensor) -> Tensor:
    """The kernel for channels-last memory writes its result as if the channels came first."""
    wide, axes = x.float(), (0, *range(2, x.dim()))
    c = wide - wide.mean(axes, keepdim=True)
    y = finish_channels(x, c * ((c * c).mean(axes, keepdim=True) + eps).rsqrt(), weight, bias)
    return y if x.is_contiguous() else _as_it_lies(y)


@fault("K18", "after microsoft/DirectML#588", norm=RMS_NORM, dtypes=("float32",), expected=("layout-invariance",))
def summed_in_the_order_of_memory(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Strided rows are summed in another order, so that the bits depend on how they lie."""
    wide = x.float()
    squares = (wide * wide).contiguous()
    parts = (squares,) if x.is_contiguous() else (squares[..., ::2], squares[..., 1::2])
    total = sum(part.sum(-1, keepdim=True) for part in parts)
    return finish(x, wide * (total / x.shape[-1] + eps).rsqrt(), weight)


@fault("K20", "pytorch/pytorch#181555", "PaddlePaddle/Paddle#79528", norm=LAYER_NORM)
def row_offset_that_wraps(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The offset of a row is kept in 12 bits, as a stand-in for 32: later rows read the memory of earlier ones."""
    import torch

    flat, width = x.reshape(-1, x.shape[-1]), x.shape[-1]
    start = (torch.arange(len(flat)) * width) % 4096
    taken = (start[:, None] + torch.arange(width)) % max(flat.numel(), 1)
    c, variance = centred(flat.reshape(-1)[taken].reshape(x.shape))
    return finish(x, c * (variance + eps).rsqrt(), weight, bias)


@fault("K20", "after pytorch/pytorch#181555", norm=RMS_NORM)
def elements_beyond_the_index(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Elements are numbered in 12 bits, as a stand-in for 32: those beyond are never written."""
    wide, square = mean_square(x)
    y = finish(x, wide * (square + eps).rsqrt(), weight)
    y.view(-1)[4096:] = 0
    return y


@fault("K20", "after pytorch/pytorch#181555", norm=LAYER_NORM)
def rows_beyond_the_grid(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The grid has room for 4 rows, as a stand-in for 65535: the rest are not normalized."""
    c, variance = centred(x)
    y = finish(x, c * (variance + eps).rsqrt(), weight, bias)
    y.view(-1, x.shape[-1])[4:] = x.reshape(-1, x.shape[-1])[4:]
    return y
