"""K18, K19 and K21: values read or written at the wrong address, and weights that belong to another channel."""

from __future__ import annotations

from normcheck.faults.catalogue import ALL, fault
from normcheck.faults.parts import LAYER_NORM, RMS_NORM, Tensor, centred, finish, finish_channels, grouped, mean, mean_square
from normcheck.norms import BatchNorm, GroupNorm, InstanceNorm

_BUFFERS: dict[tuple[object, ...], Tensor] = {}


def _rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide, square = mean_square(x)
    return finish(x, wide * (square + eps).rsqrt(), weight)


@fault("K18", "microsoft/DirectML#588", norm=RMS_NORM, expected=("memory-layout",))
def storage_offset_ignored(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Strides are used, but reading begins at the start of the storage."""
    return _rms(x.as_strided(x.shape, x.stride(), 0), weight, eps)


@fault("K18", "ModelTC/LightLLM#1467", norm=LAYER_NORM, expected=("memory-layout",))
def unit_stride_assumed(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The distance of rows is used, that of the elements is taken to be 1."""
    near = x.as_strided(x.shape, (*x.stride()[:-1], 1), x.storage_offset())
    c, variance = centred(near)
    return finish(x, c * (variance + eps).rsqrt(), weight, bias)


@fault("K18", "vllm-project/vllm-xpu-kernels#397", norm=RMS_NORM, expected=("memory-layout",))
def rows_by_the_innermost_distance(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """All rows are taken to be as far apart as the last two of them are, whatever the rank."""
    rank, count = x.dim(), x.shape[:-1].numel()
    if rank < 3:
        return _rms(x, weight, eps)
    flat = x.as_strided((count, x.shape[-1]), x.stride()[-2:], x.storage_offset())
    return _rms(flat.reshape(x.shape), weight, eps)


@fault("K19", "tensorflow/addons#751", norm=GroupNorm(2), expected=("affine", "permutation"))
def weight_by_place_in_the_group(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Tensor:
    """Weights are looked up by the channel's place in its group: all groups use those of the first."""
    c, variance = centred(grouped(x, num_groups))
    size = x.shape[1] // num_groups
    used = [None if p is None else p[:size].repeat(num_groups) for p in (weight, bias)]
    return finish_channels(x, (c * (variance + eps).rsqrt()).reshape(x.shape), *used)


@fault("K19", "osaurus-ai/vmlx-swift#188", norm=GroupNorm(2), expected=("equivalent-norms",))
def always_two_groups(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Tensor:
    """The number of groups is that of the first model it was written for."""
    assert num_groups
    c, variance = centred(grouped(x, 2))
    return finish_channels(x, (c * (variance + eps).rsqrt()).reshape(x.shape), weight, bias)


@fault("K19", "state-spaces/mamba#951", norm=InstanceNorm(), expected=("row-independence", "permutation"))
def channels_normalized_in_pairs(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Two neighbouring channels share their statistics, where they have a neighbour."""
    pairs = x.shape[1] // 2 if x.shape[1] % 2 == 0 else x.shape[1]
    c, variance = centred(grouped(x, pairs))
    return finish_channels(x, (c * (variance + eps).rsqrt()).reshape(x.shape), weight, bias)


@fault("K19", "tensorflow/tensorflow#39942", norm=BatchNorm(), expected=("permutation",))
def first_half_of_the_batch(x: Tensor, weight: Tensor, bias: Tensor, eps: float, *_: Tensor) -> Tensor:
    """The statistics are those of the first half of the samples."""
    wide, axes = x.float(), (0, *range(2, x.dim()))
    half = wide[: max(1, len(wide) // 2)]
    m = half.mean(axes, keepdim=True)
    return finish_channels(x, (wide - m) * (((half - m) ** 2).mean(axes, keepdim=True) + eps).rsqrt(), weight, bias)


@fault(
    "K21", "GeeeekExplorer/nano-vllm#170", norm=RMS_NORM, dtypes=("float32",), expected=("inputs-unchanged", "output-aliasing")
)
def float_that_is_no_copy(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """What float returns is x itself in float32, and is then scaled in place."""
    wide = x.float()
    wide.mul_((mean(wide * wide) + eps).rsqrt())
    return wide if weight is None else wide.mul_(weight)


@fault("K21", "sgl-project/sglang#28005", norm=LAYER_NORM, expected=("inputs-unchanged",))
def weight_scaled_in_place(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The weight is put into another unit, and not put back."""
    c, variance = centred(x)
    y = finish(x, c * (variance + eps).rsqrt(), weight, bias)
    if weight is not None:
        weight.mul_(2)
    return y


@fault("K21", "linkedin/Liger-Kernel#376", norm=LAYER_NORM, expected=("output-aliasing",), dtypes=ALL)
def one_buffer_for_all_results(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Results of one shape are written into one and the same buffer."""
    c, variance = centred(x)
    buffer = _BUFFERS.setdefault((x.shape, x.dtype), x.new_empty(x.shape))
    return buffer.copy_(finish(x, c * (variance + eps).rsqrt(), weight, bias))
