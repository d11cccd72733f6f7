"""K14, K15 and kin: dtypes of mixed calls and under autocast, statistics that are kept, eps and counts in the wrong dtype."""

from __future__ import annotations

from normcheck.contract import Contract
from normcheck.faults.catalogue import HALF, fault, sound_norm
from normcheck.faults.parts import LAYER_NORM, RMS_NORM, Tensor, affine, centred, finish, mean, mean_square
from normcheck.norms import RMSNorm

_MIXED = ("mixed-dtypes",)
_AUTOCAST = ("autocast",)
_SAVED = ("saved-statistics",)
_KEPT = ("y", "mean", "rstd")
_Result = tuple[Tensor, Tensor, Tensor]


@fault(
    "K14", "huggingface/transformers#30236", norm=RMS_NORM, dtypes=HALF, expected=_MIXED, contract=Contract(cast="before_weight")
)
def promotion_by_float32_weights(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """float32 weights turn a 16-bit output into float32, where the input's dtype is promised."""
    wide, square = mean_square(x)
    n = (wide * (square + eps).rsqrt()).to(x.dtype)
    return n if weight is None else weight * n


@fault("K14", "NVIDIA/TransformerEngine#371", norm=LAYER_NORM, dtypes=HALF, expected=_MIXED)
def weights_rounded_to_the_dtype_of_x(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """float32 weights are rounded to the input's 16 bits before they are used."""
    c, variance = centred(x)
    weight = None if weight is None else weight.to(x.dtype)
    return finish(x, c * (variance + eps).rsqrt(), weight, bias)


@fault("K14", "tensorflow/tensorflow#35817", norm=LAYER_NORM, dtypes=HALF, expected=_MIXED)
def output_in_the_dtype_of_the_weight(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The output has the weight's dtype, where the input's is promised."""
    c, variance = centred(x)
    y = affine(c * (variance + eps).rsqrt(), weight, bias)
    return y.to(x.dtype if weight is None else weight.dtype)


@fault("K14", "pytorch/pytorch#167308", "pytorch/pytorch#188955", norm=RMS_NORM, dtypes=("float32",), expected=_AUTOCAST)
def output_in_the_dtype_of_autocast(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Under autocast the output is cast to its 16-bit dtype, as if the norm were a matrix product."""
    import torch

    wide, square = mean_square(x)
    y = finish(x, wide * (square + eps).rsqrt(), weight)
    kind = x.device.type
    return y.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else y


@fault("K14", "pytorch/pytorch#188955", norm=RMS_NORM, dtypes=("float32", "float16"), expected=_AUTOCAST)
def mean_square_by_a_matrix_product(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The mean square is a product with a vector of ones, which autocast makes in bfloat16."""
    wide = x.float()
    square = (wide * wide) @ wide.new_full((x.shape[-1], 1), 1 / x.shape[-1])
    return finish(x, wide * (square.float() + eps).rsqrt(), weight)


@sound_norm(LAYER_NORM, returns=_KEPT, warns=("overflow",))
def layer_norm_that_keeps_its_statistics(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> _Result:
    """Mean and reciprocal deviation come back in float32."""
    c, variance = centred(x)
    r = (variance + eps).rsqrt()
    return finish(x, c * r, weight, bias), mean(x.float()), r


@fault("K15", "pytorch/pytorch#168126", norm=LAYER_NORM, dtypes=HALF, expected=_SAVED, returns=_KEPT)
def statistics_kept_in_the_dtype_of_x(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> _Result:
    """Mean and reciprocal deviation are used in float32 and kept in the input's dtype."""
    c, variance = centred(x)
    r = (variance + eps).rsqrt()
    return finish(x, c * r, weight, bias), mean(x.float()).to(x.dtype), r.to(x.dtype)


@fault("K15", "amd/IRON#139", norm=LAYER_NORM, expected=_SAVED, returns=_KEPT)
def reciprocal_deviation_kept_in_bfloat16(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> _Result:
    """The kept reciprocal deviation went through bfloat16, and comes back in float32."""
    c, variance = centred(x)
    r = (variance + eps).rsqrt()
    return finish(x, c * r, weight, bias), mean(x.float()), r.bfloat16().float()


@fault("K15", "microsoft/onnxruntime#31973", norm=LAYER_NORM, expected=_SAVED, returns=_KEPT)
def variance_kept_for_its_reciprocal_root(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> _Result:
    """What is kept as the reciprocal deviation is the variance."""
    c, variance = centred(x)
    return finish(x, c * (variance + eps).rsqrt(), weight, bias), mean(x.float()), variance


@fault("K13", "vllm-project/vllm#29810", norm=RMSNorm(eps=1e-6, weight_offset=1.0), expected=("offset-weight-precision",))
def offset_weight_in_float16(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """1 + w is formed in float16 whatever the weight's dtype."""
    wide, square = mean_square(x)
    return finish(x, wide * (square + eps).rsqrt(), None if weight is None else 1 + weight.half())


@fault("K13", "linkedin/Liger-Kernel#89", norm=RMS_NORM, dtypes=HALF, expected=("cast-order",))
def cast_of_the_other_model(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """A norm that claims Gemma's one rounding casts before the weight, as Llama does."""
    wide, square = mean_square(x)
    n = (wide / (square + eps).sqrt()).to(x.dtype)
    return n if weight is None else (n.float() * weight.float()).to(x.dtype)


@fault("K04", "tensorflow/tensorflow#24979", norm=LAYER_NORM, dtypes=("float16",), expected=("epsilon-precision",))
def eps_rounded_to_the_input(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """eps is rounded to the input's dtype: 1e-8 is 0 in float16, and zero rows become NaN."""
    import torch

    c, variance = centred(x)
    return finish(x, c * (variance + torch.tensor(eps).to(x.dtype).float()).rsqrt(), weight, bias)


@fault("K07", "pytorch/pytorch#189581", norm=RMS_NORM, dtypes=HALF, expected=("default-epsilon",))
def default_eps_of_the_dtype(x: Tensor, weight: Tensor, eps: float | None) -> Tensor:
    """eps=None stands for the machine epsilon of the input's dtype: 0.0078 in bfloat16."""
    import torch

    wide, square = mean_square(x)
    return finish(x, wide * (square + (torch.finfo(x.dtype).eps if eps is None else eps)).rsqrt(), weight)


@fault("K02", "pytorch/executorch#16727", norm=LAYER_NORM, dtypes=("float16",), expected=("narrow-range",))
def count_in_the_dtype_of_x(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The number of elements is held in the input's dtype: 2049 counts as 2048."""
    import torch

    wide, count = x.float(), torch.tensor(x.shape[-1]).to(x.dtype).float()
    c = wide - wide.sum(-1, keepdim=True) / count
    return finish(x, c * ((c * c).sum(-1, keepdim=True) / count + eps).rsqrt(), weight, bias)


@fault("K03", "neuroneural/brainchop-cli#56", norm=RMS_NORM, dtypes=("float16",), expected=("narrow-range",))
def squares_beyond_the_range_of_x(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Squares beyond 65504 are infinite before they are summed in float32: a compiler has widened the sum alone."""
    wide = x.float()
    square = mean((wide * wide).masked_fill(wide.abs() > 255.9, float("inf")))
    return finish(x, wide * (square + eps).rsqrt(), weight)
