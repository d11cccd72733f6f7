"""K21: fused residuals, and blocks whose norm, sublayer and skip are connected wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from normcheck.contract import Contract
from normcheck.faults.catalogue import HALF, fault, sound_norm
from normcheck.faults.parts import LAYER_NORM, RMS_NORM, Tensor, centred, finish, mean_square
from normcheck.implementations.companions import Block, Wiring

_STORED = Contract(residual_rounding="storage")
_COMPUTED = Contract(residual_rounding="compute")
_SUM = ("residual-sum",)
_ABSENT = ("residual-absent",)
_ALIAS = ("residual-aliasing",)
_BLOCK = ("block-wiring",)
_Pair = tuple[Tensor, Tensor]


def _layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    c, variance = centred(x)
    return finish(x, c * (variance + LAYER_NORM.eps).rsqrt(), weight, bias)


def _rms_norm(x: Tensor, wide: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    wide, square = mean_square(wide)
    return finish(x, wide * (square + eps).rsqrt(), weight)


@sound_norm(RMS_NORM, contract=_STORED, residual=True, warns=("overflow",))
def fused_add_and_norm(x: Tensor, weight: Tensor, residual: Tensor | None, eps: float) -> _Pair:
    """The sum is rounded to storage, normalized and returned."""
    total = x.clone() if residual is None else x + residual
    return _rms_norm(x, total, weight, eps), total


@sound_norm(RMS_NORM, contract=_COMPUTED, residual=True, warns=("overflow",))
def fused_add_and_norm_in_float32(x: Tensor, weight: Tensor, residual: Tensor | None, eps: float) -> _Pair:
    """The norm sees the sum in float32; what is returned is rounded."""
    total = x.float().clone() if residual is None else x.float() + residual.float()
    return _rms_norm(x, total, weight, eps), total.to(x.dtype)


@fault("K21", "vllm-project/vllm#48271", norm=RMS_NORM, dtypes=HALF, contract=_STORED, residual=True, expected=_SUM)
def sum_kept_in_float32(x: Tensor, weight: Tensor, residual: Tensor | None, eps: float) -> _Pair:
    """The norm sees the sum in float32, where a sum rounded to storage is promised."""
    total = x.float() if residual is None else x.float() + residual.float()
    return _rms_norm(x, total, weight, eps), total.to(x.dtype)


@fault("K21", "vllm-project/vllm#48271", norm=RMS_NORM, dtypes=HALF, contract=_COMPUTED, residual=True, expected=_SUM)
def sum_rounded_to_storage(x: Tensor, weight: Tensor, residual: Tensor | None, eps: float) -> _Pair:
    """The norm sees a rounded sum, where one in float32 is promised."""
    total = x if residual is None else x + residual
    return _rms_norm(x, total, weight, eps), total


@fault("K21", "NVIDIA-NeMo/Speech#4350", norm=RMS_NORM, contract=_STORED, residual=True, expected=_SUM)
def old_residual_returned(x: Tensor, weight: Tensor, residual: Tensor | None, eps: float) -> _Pair:
    """The residual that comes back is the one that went in."""
    total = x if residual is None else x + residual
    return _rms_norm(x, total, weight, eps), total if residual is None else residual


@fault("K21", "NVIDIA-NeMo/Speech#4350", norm=RMS_NORM, contract=_STORED, residual=True, expected=_SUM)
def normalized_residual_returned(x: Tensor, weight: Tensor, residual: Tensor | None, eps: float) -> _Pair:
    """The residual that comes back is the normalized value, as a Post-Norm stack has it."""
    y = _rms_norm(x, x if residual is None else x + residual, weight, eps)
    return y, y.clone()


@fault("K21", "microsoft/onnxruntime#28442", norm=RMS_NORM, contract=_STORED, residual=True, expected=_SUM)
def residual_added_after_the_norm(x: Tensor, weight: Tensor, residual: Tensor | None, eps: float) -> _Pair:
    """The norm sees x alone, and the residual is added to the result."""
    y = _rms_norm(x, x, weight, eps)
    return (y, x) if residual is None else (y + residual, x + residual)


_SCRATCH: dict[tuple[Any, ...], Any] = {}


@fault("K21", "sgl-project/sglang#28005", norm=RMS_NORM, contract=_STORED, residual=True, expected=_ABSENT)
def residual_out_of_scratch_memory(x: Tensor, weight: Tensor, residual: Tensor | None, eps: float) -> _Pair:
    """Without a residual the kernel adds what its scratch memory holds, the last call's residual."""
    key = (tuple(x.shape), x.dtype)
    if residual is not None:
        _SCRATCH[key] = residual.detach().clone()
    total = x + _SCRATCH.get(key, 0)
    return _rms_norm(x, total, weight, eps), total


@fault("K21", "sgl-project/sglang#28005", norm=RMS_NORM, contract=_STORED, residual=True, expected=_ABSENT)
def absent_residual_counts_as_x(x: Tensor, weight: Tensor, residual: Tensor | None, eps: float) -> _Pair:
    """Without a residual x is added to itself."""
    total = x + (x if residual is None else residual)
    return _rms_norm(x, total, weight, eps), total


@fault("K21", "sgl-project/sglang#28005", norm=RMS_NORM, contract=_STORED, residual=True, expected=_ALIAS)
def sum_written_into_the_residual(x: Tensor, weight: Tensor, residual: Tensor | None, eps: float) -> _Pair:
    """The sum is written into the residual, which the code does not say."""
    total = x.clone() if residual is None else residual.add_(x)
    return _rms_norm(x, total, weight, eps), total


@fault(
    "K21", "GeeeekExplorer/nano-vllm#170", norm=RMS_NORM, dtypes=("float32",), contract=_STORED, residual=True, expected=_ALIAS
)
def product_in_place_of_what_float_returned(x: Tensor, weight: Tensor, residual: Tensor | None, eps: float) -> _Pair:
    """x.float() is x itself in float32, and the product in place destroys it."""
    wide = x.float()
    if residual is not None:
        wide.add_(residual.float())
    total = wide.clone()
    _, square = mean_square(wide)
    return finish(x, wide.mul_((square + eps).rsqrt()), weight), total.to(x.dtype)


@fault("K21", "linkedin/Liger-Kernel#376", norm=RMS_NORM, contract=_STORED, residual=True, expected=("input-gradient",))
def gradient_of_the_residual_forgotten(x: Tensor, weight: Tensor, residual: Tensor | None, eps: float) -> _Pair:
    """The returned residual carries no gradient: what flows through the skip is lost."""
    total = x if residual is None else x + residual
    return _rms_norm(x, total, weight, eps), total.detach().clone().requires_grad_(total.requires_grad)


def block(wiring: Wiring) -> Callable[[Callable[..., Any]], dict[str, Any]]:
    """The fields of `Implementation` that hold a block around a sound LayerNorm."""

    def role(function: Callable[..., Any]) -> dict[str, Any]:
        return {"call": _layer_norm, "arguments": ("x", "weight", "bias"), "block": Block(function, wiring)}

    return role


_PRE, _POST, _DEEP = block("pre"), block("post"), block("deep")


@sound_norm(LAYER_NORM, role=_PRE, warns=("overflow",))
def pre_norm_block(x: Tensor, weight: Tensor, bias: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """x + f(norm(x))."""
    return x + f(_layer_norm(x, weight, bias))


@sound_norm(LAYER_NORM, role=_POST, warns=("overflow",))
def post_norm_block(x: Tensor, weight: Tensor, bias: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """norm(x + f(x))."""
    return _layer_norm(x + f(x), weight, bias)


@sound_norm(LAYER_NORM, role=_DEEP, warns=("overflow",))
def deep_norm_block(x: Tensor, weight: Tensor, bias: Tensor, f: Callable[[Tensor], Tensor], alpha: float) -> Tensor:
    """norm(alpha*x + f(x))."""
    return _layer_norm(alpha * x + f(x), weight, bias)


@fault("K21", "tracel-ai/burn#1056", norm=LAYER_NORM, role=_PRE, expected=_BLOCK)
def norm_before_the_branch_point(x: Tensor, weight: Tensor, bias: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """The skip starts behind the norm: n + f(n)."""
    n = _layer_norm(x, weight, bias)
    return n + f(n)


@fault("K21", "facebookresearch/xformers#233", norm=LAYER_NORM, role=_PRE, expected=_BLOCK)
def sublayer_before_the_norm(x: Tensor, weight: Tensor, bias: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """The sublayer sees x, and its result is normalized: x + norm(f(x))."""
    return x + _layer_norm(f(x), weight, bias)


@fault("K21", "Howuhh/faster-trajectory-transformer#3", norm=LAYER_NORM, role=_PRE, expected=_BLOCK)
def post_norm_under_the_name_of_pre_norm(x: Tensor, weight: Tensor, bias: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """norm(x + f(x)), where x + f(norm(x)) is claimed."""
    return _layer_norm(x + f(x), weight, bias)


@fault("K21", "NVIDIA-NeMo/Speech#4350", norm=LAYER_NORM, role=_POST, expected=_BLOCK)
def skip_forgotten(x: Tensor, weight: Tensor, bias: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """norm(f(x)): nothing is added."""
    return _layer_norm(f(x), weight, bias)


@fault("K21", "NVIDIA-NeMo/Speech#4350", norm=LAYER_NORM, role=_POST, expected=_BLOCK)
def skip_around_the_norm(x: Tensor, weight: Tensor, bias: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """x + norm(f(x)), where norm(x + f(x)) is claimed."""
    return x + _layer_norm(f(x), weight, bias)


@fault("K21", "labmlai/annotated_deep_learning_paper_implementations#145", norm=LAYER_NORM, role=_DEEP, expected=_BLOCK)
def alpha_on_the_sublayer(x: Tensor, weight: Tensor, bias: Tensor, f: Callable[[Tensor], Tensor], alpha: float) -> Tensor:
    """alpha scales the sublayer, not the skip."""
    return _layer_norm(x + alpha * f(x), weight, bias)


@fault("K21", "labmlai/annotated_deep_learning_paper_implementations#145", norm=LAYER_NORM, role=_DEEP, expected=_BLOCK)
def alpha_on_both_branches(x: Tensor, weight: Tensor, bias: Tensor, f: Callable[[Tensor], Tensor], alpha: float) -> Tensor:
    """alpha scales the sum, which the norm takes out again."""
    return _layer_norm(alpha * (x + f(x)), weight, bias)


@fault("K08", "labmlai/annotated_deep_learning_paper_implementations#145", norm=LAYER_NORM, role=_DEEP, expected=_BLOCK)
def deep_norm_without_its_norm(x: Tensor, weight: Tensor, bias: Tensor, f: Callable[[Tensor], Tensor], alpha: float) -> Tensor:
    """x + alpha*f(x): nothing is normalized, and alpha is on the wrong branch."""
    y = x + alpha * f(x)
    return y if weight is None else y * weight + (0 if bias is None else bias)
