"""K02 and K03: sums that lose their addends, miscount them, or leave the range of a narrow format."""

from __future__ import annotations

from normcheck.contract import Contract
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
)
from normcheck.norms import BatchNorm, GroupNorm, L2Norm


def _halves(x: Tensor) -> Tensor:
    """Sum over the last axis by a binary tree, each addition rounded to the dtype of x."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        left, right, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        x = left + right
        if rest.shape[-1]:
            x[..., :1] += rest
    return x


@fault("K02", "after pytorch/executorch#16727", norm=LAYER_NORM)
def bfloat16_accumulation(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Sums are held in bfloat16."""
    wide, count = x.float(), x.shape[-1]
    c = wide - _halves(wide.bfloat16()).float() / count
    variance = _halves((c * c).bfloat16()).float() / count
    return finish(x, c * (variance + eps).rsqrt(), weight, bias)


@fault("K02", "pytorch/executorch#16727", norm=LAYER_NORM)
def float16_accumulation(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Sums are held in float16."""
    wide, count = x.float(), x.shape[-1]
    c = wide - _halves(wide.half()).float() / count
    variance = _halves((c * c).half()).float() / count
    return finish(x, c * (variance + eps).rsqrt(), weight, bias)


@fault("K02", "after pytorch/executorch#16727", norm=RMS_NORM)
def bfloat16_sum_of_squares(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The sum of squares is held in bfloat16."""
    wide = x.float()
    return finish(x, wide * (_halves((wide * wide).bfloat16()).float() / x.shape[-1] + eps).rsqrt(), weight)


@fault("K02", "after pytorch/pytorch#54293", norm=LAYER_NORM)
def bfloat16_mean(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Only the mean is summed in bfloat16; the variance about it is right."""
    wide = x.float()
    c = wide - _halves(wide.bfloat16()).float() / x.shape[-1]
    return finish(x, c * (mean(c * c) + eps).rsqrt(), weight, bias)


@fault("K02", "pytorch/executorch#16727", norm=LAYER_NORM)
def count_in_float16(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The element count is rounded to float16: 2048 for 2049, infinite from 65520 on."""
    wide = x.float()
    count = wide.new_tensor([x.shape[-1]]).half().float()
    c = wide - wide.sum(-1, keepdim=True) / count
    return finish(x, c * ((c * c).sum(-1, keepdim=True) / count + eps).rsqrt(), weight, bias)


@fault("K02", "after pytorch/executorch#16727", norm=RMS_NORM, dtypes=HALF)
def count_in_the_input_dtype(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The element count is rounded to the input's dtype: 256 for 257 in bfloat16, 2048 for 2049 in float16."""
    wide, count = x.float(), x.new_tensor([x.shape[-1]]).float()
    return finish(x, wide * ((wide * wide).sum(-1, keepdim=True) / count + eps).rsqrt(), weight)


@fault("K02", "pytorch/executorch#16727", norm=GroupNorm(2), dtypes=HALF)
def group_norm_summed_in_the_input_dtype(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Tensor:
    """The sums of a group are held in the input's dtype."""
    groups = grouped(x, num_groups)
    count = groups.shape[-1]
    c = groups.float() - _halves(groups).float() / count
    variance = _halves((c * c).to(x.dtype)).float() / count
    return finish_channels(x, (c * (variance + eps).rsqrt()).reshape(x.shape), weight, bias)


@fault("K02", "after pytorch/pytorch#54293", norm=LAYER_NORM, dtypes=("float32",))
def tensor_core_statistics(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The elements are cut to the 11 bits of a matrix unit's inputs before they are averaged."""
    import torch

    cut = (x.view(torch.int32) & ~0x1FFF).view(torch.float32)
    c = x - mean(cut)
    return finish(x, c * (mean(c * c) + eps).rsqrt(), weight, bias)


@fault("K03", "neuroneural/brainchop-cli#56", norm=LAYER_NORM)
def squares_in_float16(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The squares are formed in float16, infinite beyond 255 and zero below 2**-13, and summed in float32."""
    c, _ = centred(x)
    square = c.half() * c.half()
    return finish(x, c * (mean(square.float()) + eps).rsqrt(), weight, bias)


@fault("K03", "microsoft/onnxruntime#28442", norm=RMS_NORM)
def mean_square_in_float16(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x*(x/D) is formed and summed in float16."""
    half = x.half()
    square = _halves(half * (half / x.shape[-1]))
    return finish(x, x.float() * (square.float() + eps).rsqrt(), weight)


@fault("K03", "apple/coremltools#2821", norm=RMS_NORM, expected=("accuracy", "zero-and-constant-rows", "epsilon-placement"))
def rescue_that_scales_eps(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Rows are divided by max|x| against overflow and eps is not: it counts max|x|**2 times, and a zero row is 0/0."""
    wide = x.float()
    largest = wide.abs().amax(-1, keepdim=True)
    scaled = wide / largest
    return finish(x, wide / ((mean(scaled * scaled) + eps).sqrt() * largest), weight)


@fault("K03", "after apple/coremltools#2821", norm=LAYER_NORM)
def rescue_by_a_fixed_scale(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Everything is divided by 64 before squaring, and eps is added to what is left."""
    c, variance = centred(x / 64)
    return finish(x, c * (variance + eps).rsqrt(), weight, bias)


@fault("K03", "after xlite-dev/LeetCUDA#335", norm=RMS_NORM)
def clipped_input(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Elements are clipped at 255 so that their squares fit float16."""
    n, square = mean_square(x.float().clamp(-255, 255))
    return finish(x, n * (square + eps).rsqrt(), weight)


@fault("K03", "after microsoft/onnxruntime#28442", norm=RMS_NORM, expected=("accuracy", "outlier-sensitivity"))
def saturated_sum_of_squares(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The sum of squares saturates at 65504."""
    wide = x.float()
    total = (wide * wide).sum(-1, keepdim=True).clamp(max=65504)
    return finish(x, wide * (total / x.shape[-1] + eps).rsqrt(), weight)


@fault(
    "K03",
    "pytorch/pytorch#162489",
    norm=LAYER_NORM,
    dtypes=("float32", "bfloat16"),
    expected=("overflow",),
    contract=Contract(full_range=True),
)
def full_range_that_is_none(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Right results for every finite row are promised, and the squares overflow at 1e19."""
    c, variance = centred(x)
    return finish(x, c * (variance + eps).rsqrt(), weight, bias)


@fault("K03", "after microsoft/onnxruntime#28442", norm=L2Norm(), dtypes=HALF)
def norm_in_the_input_dtype(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The squares of a query or key are formed and summed in its 16 bits."""
    length = _halves(x * x).float().sqrt()
    return finish(x, x.float() / length.clamp(min=eps), weight)


@fault("K03", "after neuroneural/brainchop-cli#56", norm=BatchNorm(), training=True, dtypes=ALL)
def batch_norm_squares_in_float16(x: Tensor, weight: Tensor, bias: Tensor, eps: float, *_: Tensor) -> Tensor:
    """The squares of a channel are formed in float16 and averaged in float32."""
    wide, axes = x.float(), (0, *range(2, x.dim()))
    c = wide - wide.mean(axes, keepdim=True)
    square = (c.half() * c.half()).float().mean(axes, keepdim=True)
    return finish_channels(x, c * (square + eps).rsqrt(), weight, bias)
