"""K04, K17, K19, K20, K27, K29: code that is right but for one branch, taken for one size, one setting or one value."""

from __future__ import annotations

from normcheck.faults.catalogue import fault
from normcheck.faults.parts import LAYER_NORM, RMS_NORM, Tensor, centred, finish, finish_channels, grouped, mean, mean_square
from normcheck.norms import GroupNorm

_WIDTHS = ("widths",)
_PARAMETERS = ("parameter-range",)
_BIGGEST = 2**20
_TABLE = 8192
_LANES = 16


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    c, variance = centred(x)
    return finish(x, c * (variance + eps).rsqrt(), weight, bias)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide, square = mean_square(x)
    return finish(x, wide * (square + eps).rsqrt(), weight)


@fault("K04", "after VeriSilicon/TIM-VX#589", norm=RMS_NORM, expected=("epsilon-precision",))
def eps_of_zero_is_not_given(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """An eps of 0 counts as none, and the default takes its place: eps or 1e-5."""
    return _rms_norm(x, weight, eps or 1e-5)


@fault("K17", "after triton-lang/triton#9838", norm=RMS_NORM, expected=_WIDTHS)
def whole_blocks_less_one_element(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Rows of whole blocks of 1024 have a kernel without a mask, whose last index is one too small."""
    wide, square = mean_square(x)
    width = x.shape[-1]
    if width % 1024 == 0:
        square = (wide[..., :-1] ** 2).sum(-1, keepdim=True) / width
    return finish(x, wide * (square + eps).rsqrt(), weight)


@fault("K17", "after ROCm/aiter#5044", norm=RMS_NORM, expected=_WIDTHS)
def kernel_for_4096_alone(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The hidden size of most models has a kernel of its own, which leaves out the last four elements."""
    wide, square = mean_square(x)
    if x.shape[-1] == 4096:
        square = mean(wide[..., :4092] ** 2)
    return finish(x, wide * (square + eps).rsqrt(), weight)


@fault("K17", "after tile-ai/tilelang-ascend#890", norm=LAYER_NORM, expected=_WIDTHS)
def chunks_merged_as_if_alike(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Means of chunks of 4096 are averaged, also where the last one is shorter."""
    wide = x.float().contiguous()
    parts = wide.split(4096, -1)
    c = wide - sum(mean(part) for part in parts) / len(parts)
    return finish(x, c * (mean(c * c) + eps).rsqrt(), weight, bias)


@fault("K19", "after NVIDIA/apex#1715", norm=RMS_NORM, expected=_WIDTHS)
def weights_beyond_the_shared_memory(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Shared memory holds 8192 weights, and those beyond are read from its start."""
    size = x.shape[-1]
    if weight is None or size <= _TABLE:
        return _rms_norm(x, weight, eps)
    return _rms_norm(x, weight[:_TABLE].repeat(-(-size // _TABLE))[:size], eps)


@fault("K19", "after osaurus-ai/vmlx-swift#188", norm=GroupNorm(2), expected=("equivalent-norms",))
def groups_beyond_the_lanes(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Tensor:
    """Sixteen lanes keep a group's deviation each: those of later groups are read from the first ones."""
    c, variance = centred(grouped(x, num_groups))
    r = (variance + eps).rsqrt()
    if num_groups > _LANES:
        r = r[:, :_LANES].repeat(1, -(-num_groups // _LANES), 1)[:, :num_groups]
    return finish_channels(x, (c * r).reshape(x.shape), weight, bias)


@fault("K17", "after triton-lang/triton#9838", norm=GroupNorm(2), expected=("ranks",))
def images_of_whole_blocks(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Tensor:
    """Images of a multiple of 64 pixels have a kernel without a mask, which squares one element too few."""
    c, variance = centred(grouped(x, num_groups))
    if x.dim() > 2 and x.shape[2:].numel() % 64 == 0:
        variance = (c[..., :-1] ** 2).sum(-1, keepdim=True) / c.shape[-1]
    return finish_channels(x, (c * (variance + eps).rsqrt()).reshape(x.shape), weight, bias)


@fault("K20", "after pytorch/pytorch#181555", norm=LAYER_NORM, dtypes=("float32",), expected=("row-counts",), profile="standard")
def large_tensors_in_one_pass(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """From a million elements on a parallel kernel takes over, which has the variance from one pass."""
    c, variance = centred(x)
    if x.numel() > _BIGGEST:
        wide = x.float()
        variance = mean(wide * wide) - mean(wide) ** 2
    return finish(x, c * (variance + eps).rsqrt(), weight, bias)


@fault("K27", "after pytorch/pytorch#54293", norm=LAYER_NORM, expected=("thread-invariance",))
def rows_that_no_thread_takes(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Each thread takes rows // threads of them, and the rest stay as they were."""
    import torch

    y = _layer_norm(x, weight, bias, eps)
    rows, threads = x.shape[:-1].numel(), torch.get_num_threads()
    if rows >= threads and rows % threads:
        y = y.reshape(rows, -1).clone()
        y[rows // threads * threads :] = x.reshape(rows, -1)[rows // threads * threads :]
    return y.reshape(x.shape)


@fault("K29", "after Blaizzy/mlx-vlm#2111", norm=LAYER_NORM, expected=_PARAMETERS)
def bias_forgotten_beside_weights_of_one(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Where all weights are 1 the affine step is left out, and the bias with it."""
    plain = weight is not None and bool((weight == 1).all())
    return _layer_norm(x, None, None, eps) if plain else _layer_norm(x, weight, bias, eps)


@fault("K29", "after Blaizzy/mlx-vlm#2111", norm=LAYER_NORM, expected=_PARAMETERS)
def bias_forgotten_beside_weights_of_zero(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Where all weights are 0 zeros are returned, without the bias."""
    y = _layer_norm(x, weight, bias, eps)
    return y if weight is None or bool(weight.any()) else 0 * y
