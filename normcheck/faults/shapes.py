"""K17 to K21: kernels that are right for the usual shapes and parameters, and wrong for others."""

from __future__ import annotations

from collections.abc import Callable

from normcheck.contract import Contract
from normcheck.faults.catalogue import fault
from normcheck.faults.parts import LAYER_NORM, RMS_NORM, Tensor, centred, finish, finish_channels, grouped, mean_square
from normcheck.norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm

_RANKS = ("ranks",)
_RANGE = ("parameter-range",)
_PLACES = ("parameter-layouts",)
_STORED = Contract(residual_rounding="storage")


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    c, variance = centred(x)
    return finish(x, c * (variance + eps).rsqrt(), weight, bias)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide, square = mean_square(x)
    return finish(x, wide * (square + eps).rsqrt(), weight)


def _per_row(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Tensor:
    c, variance = centred(grouped(x, num_groups))
    return finish_channels(x, (c * (variance + eps).rsqrt()).reshape(x.shape), weight, bias)


def _batch_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    wide, axes = x.float(), (0, *range(2, x.dim()))
    c = wide - wide.mean(axes, keepdim=True)
    return finish_channels(x, c * ((c * c).mean(axes, keepdim=True) + eps).rsqrt(), weight, bias)


def _left_alone(x: Tensor, y: Tensor, axis: int, start: int) -> Tensor:
    """y, with x in its place from an index of an axis on: those threads were never started."""
    y.narrow(axis, start, y.shape[axis] - start).copy_(x.narrow(axis, start, x.shape[axis] - start))
    return y


@fault("K20", "after vllm-project/vllm#42862", norm=LAYER_NORM, expected=("row-counts",))
def wide_rows_of_a_second_wave(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Of wide rows only the first 300 are normalized; narrow ones have another kernel."""
    y, wide = _layer_norm(x, weight, bias, eps), x.shape[-1] >= 64
    flat, rows = y.view(-1, x.shape[-1]), x.reshape(-1, x.shape[-1])
    if wide and len(rows) > 300:
        _left_alone(rows, flat, 0, 300)
    return y


@fault("K17", "after ROCm/aiter#5044", norm=RMS_NORM, expected=("widths",))
def table_of_widths_with_one_mistake(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Kernels are chosen from a table of widths, and that of 101 leaves out the last element."""
    return _rms_norm(x, weight, eps) if x.shape[-1] != 101 else _left_alone(x, _rms_norm(x, weight, eps), -1, 100)


@fault("K17", "after flashinfer-ai/flashinfer#4480", norm=LAYER_NORM, expected=("widths",), profile="standard")
def hidden_size_taken_for_a_power_of_two(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The statistics of rows of 6144 are those of the first 4096 elements."""
    seen = x.float()[..., : 4096 if x.shape[-1] == 6144 else x.shape[-1]]
    c, variance = centred(seen)
    return finish(x, (x.float() - (seen - c)[..., :1]) * (variance + eps).rsqrt(), weight, bias)


@fault("K20", "after pytorch/pytorch#181555", norm=RMS_NORM, dtypes=("float32",), expected=("widths",), profile="deep")
def index_of_seventeen_bits(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Elements of a row are numbered in 17 bits, less one: the last of 131072 is not written."""
    y = _rms_norm(x, weight, eps)
    return y if x.shape[-1] < 131072 else _left_alone(x, y, -1, 131071)


@fault("K19", "after tensorflow/tensorflow#39942", norm=BatchNorm(), training=True, expected=_RANKS)
def height_beyond_the_width(x: Tensor, weight: Tensor, bias: Tensor, eps: float, *_: Tensor) -> Tensor:
    """Rows of an image are counted up to its width: high images are normalized in their upper part only."""
    y = _batch_norm(x, weight, bias, eps)
    return _left_alone(x, y, 2, x.shape[3]) if x.dim() == 4 and x.shape[2] > x.shape[3] else y


@fault("K20", "after PaddlePaddle/Paddle#79528", norm=InstanceNorm(), expected=_RANKS)
def columns_beyond_a_block(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """A block has 100 threads along the last axis of an image, and is not started again."""
    y = _per_row(x, weight, bias, x.shape[1], eps)
    return _left_alone(x, y, 3, 100) if x.dim() == 4 and x.shape[3] > 100 else y


@fault("K20", "after PaddlePaddle/Paddle#79528", norm=InstanceNorm(), expected=_RANKS)
def rows_of_an_image_beyond_a_block(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """A block has 128 threads along the height of an image, and is not started again."""
    y = _per_row(x, weight, bias, x.shape[1], eps)
    return _left_alone(x, y, 2, 128) if x.dim() == 4 and x.shape[2] > 128 else y


@fault("K20", "after microsoft/onnxruntime#29264", norm=GroupNorm(2), expected=_RANKS)
def samples_beyond_the_grid(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Tensor:
    """The grid has room for 70 images."""
    y = _per_row(x, weight, bias, num_groups, eps)
    return _left_alone(x, y, 0, 70) if x.dim() == 4 and len(x) > 70 else y


@fault("K18", "after vllm-project/vllm-xpu-kernels#397", norm=LAYER_NORM, expected=_RANKS)
def tokens_beyond_a_block(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Of a batch of sequences 16 tokens each are normalized."""
    y = _layer_norm(x, weight, bias, eps)
    return _left_alone(x, y, 1, 16) if x.dim() == 3 and x.shape[1] > 16 else y


@fault("K27", "after tensorflow/addons#2745", norm=RMS_NORM, expected=_RANKS)
def batch_of_one_squeezed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The axis of a batch of one sequence is dropped, and the statistic is taken over tokens and elements."""
    if x.dim() != 3 or len(x) != 1 or x.shape[1] == 1:
        return _rms_norm(x, weight, eps)
    wide, square = mean_square(x.reshape(1, 1, -1))
    return finish(x, (wide * (square + eps).rsqrt()).reshape(x.shape), weight)


@fault("K19", "after osaurus-ai/vmlx-swift#188", norm=GroupNorm(2), expected=_RANKS)
def channels_beyond_a_table(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Tensor:
    """Weights of the channels from the 128th on are those of the channels from the first on."""
    table = [None if p is None else p[:128].repeat(-(-x.shape[1] // 128))[: x.shape[1]] for p in (weight, bias)]
    return _per_row(x, table[0], table[1], num_groups, eps)


@fault("K19", "after tensorflow/addons#2143", norm=LayerNorm(), expected=("normalized-shape",))
def last_axis_alone(x: Tensor, normalized_shape: tuple[int, ...], weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Of several normalized axes the statistics are taken over the last one."""
    assert normalized_shape
    return _layer_norm(x, weight, bias, eps)


@fault("K29", "after linkedin/Liger-Kernel#74", norm=LAYER_NORM, expected=_RANGE)
def clipped_bias(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The bias is clipped to -2..2, as for an activation that follows."""
    return _layer_norm(x, weight, None if bias is None else bias.clamp(-2, 2), eps)


@fault("K13", "after vllm-project/vllm#29810", norm=RMS_NORM, expected=_RANGE)
def clipped_weight(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The weight is clipped to -4..4, the range of the table that it was quantized for."""
    return _rms_norm(x, None if weight is None else weight.clamp(-4, 4), eps)


@fault("K29", "after torch-spyre/torch-spyre#1980", norm=LAYER_NORM, expected=_RANGE)
def weights_without_a_positive_one(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """A weight whose largest element is below 0 is taken for one that was never loaded."""
    loaded = weight is not None and bool((weight > 0).any())
    return _layer_norm(x, weight if loaded else None, bias, eps)


def _reread(parameter: Tensor, how: Callable[[Tensor], tuple[int, int]]) -> Tensor:
    stride, offset = how(parameter)
    return parameter.as_strided(parameter.shape, (stride,), offset)


@fault("K18", "after ModelTC/LightLLM#1467", norm=RMS_NORM, expected=_PLACES)
def weight_of_unit_stride_assumed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The strides of x are looked at, that of the weight is taken to be 1."""
    near = None if weight is None else _reread(weight, lambda w: (1, w.storage_offset()))
    return _rms_norm(x, near, eps)


@fault("K18", "after microsoft/DirectML#588", norm=LAYER_NORM, expected=_PLACES)
def parameters_from_an_aligned_address(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Vector loads of weight and bias begin at a multiple of four elements."""
    near = [None if p is None else _reread(p, lambda p: (p.stride(0), p.storage_offset() // 4 * 4)) for p in (weight, bias)]
    return _layer_norm(x, near[0], near[1], eps)


@fault("K18", "after NVIDIA/TransformerEngine#1017", norm=BatchNorm(), training=False, expected=_PLACES)
def statistics_of_unit_stride_assumed(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, eps: float
) -> Tensor:
    """The running variance is read as if it were contiguous."""
    variance = _reread(running_var, lambda v: (1, v.storage_offset())).float()
    shape = (1, -1, *[1] * (x.dim() - 2))
    n = (x.float() - running_mean.float().view(shape)) * (variance + eps).rsqrt().view(shape)
    return finish_channels(x, n, weight, bias)


def _added(x: Tensor, weight: Tensor, residual: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x.clone() if residual is None else x + residual
    return _rms_norm(total, weight, eps), total


@fault("K21", "after vllm-project/vllm#48271", norm=RMS_NORM, contract=_STORED, residual=True, expected=("residual-sum",))
def residual_of_images_forgotten(x: Tensor, weight: Tensor, residual: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """With four axes another kernel is called, which knows of no residual."""
    return _added(x, weight, None if x.dim() == 4 else residual, eps)


@fault("K21", "after thu-ml/TurboDiffusion#103", norm=RMS_NORM, contract=_STORED, residual=True, expected=("residual-sum",))
def residual_beyond_the_first_block(x: Tensor, weight: Tensor, residual: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The residual is added in the first 40 rows only."""
    if residual is not None:
        residual = residual.clone()
        residual.view(-1, x.shape[-1])[40:] = 0
    return _added(x, weight, residual, eps)
