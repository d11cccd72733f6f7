"""K32: fused kernels of norm and quantization that round twice, once too few, toward zero, or with another scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from normcheck.faults.catalogue import fault, sound_norm
from normcheck.faults.parts import RMS_NORM, Tensor, affine, finish, mean_square
from normcheck.implementations.companions import Quantized

_ROUNDING = ("quantized-rounding",)
_SCALE = ("quantized-scale",)
_Pair = tuple[Tensor, Tensor]


def _rms_norm(x: Tensor, weight: Tensor | None) -> Tensor:
    return finish(x, _wide(x, None), weight)


def _wide(x: Tensor, weight: Tensor | None) -> Tensor:
    """The normalized value in float32."""
    wide, square = mean_square(x)
    return affine(wide * (square + RMS_NORM.eps).rsqrt(), weight)


def _role(**options: Any) -> Callable[[Callable[..., Any]], dict[str, Any]]:
    """A sound RMSNorm, and the decorated code as its quantized kernel."""
    return lambda function: {"call": _rms_norm, "arguments": ("x", "weight"), "quantized": Quantized(function, **options)}


_FP8 = _role()
_E5M2 = _role(dtype="float8_e5m2")
_BY_BFLOAT16 = _role(intermediate="bfloat16")
INT8 = _role(dtype="int8", per_row=True)


def _fp8(y: Tensor) -> Tensor:
    import torch

    return y.clamp(-448, 448).to(torch.float8_e4m3fn)


def _int8(y: Tensor, scale: Tensor) -> Tensor:
    import torch

    return (y / scale).round().clamp(-127, 127).to(torch.int8)


@sound_norm(RMS_NORM, role=_FP8, warns=("overflow",))
def fused_norm_and_float8(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """From float32 to float8 in one rounding."""
    return _fp8(_wide(x, weight) / scale)


@sound_norm(RMS_NORM, role=_E5M2, warns=("overflow",))
def fused_norm_and_wide_float8(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """From float32 to the wider float8, by a reciprocal of the scale."""
    import torch

    return (_wide(x, weight) * (1 / scale)).to(torch.float8_e5m2)


@sound_norm(RMS_NORM, role=_BY_BFLOAT16, warns=("overflow",))
def norm_then_float8(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """The norm rounds to bfloat16, and that is quantized."""
    return _fp8(_wide(x, weight).bfloat16().float() / scale)


@sound_norm(RMS_NORM, role=INT8, warns=("overflow",))
def norm_and_int8_by_row(x: Tensor, weight: Tensor) -> _Pair:
    """Each row is scaled by its largest value."""
    y = _wide(x, weight)
    scale = y.abs().amax(-1, keepdim=True) / 127
    return _int8(y, scale), scale


@fault("K32", "vllm-project/vllm#37838", norm=RMS_NORM, role=_FP8, expected=_ROUNDING)
def double_rounding_by_bfloat16(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """The value is rounded to bfloat16 before it is quantized, where one rounding is claimed."""
    return _fp8(_wide(x, weight).bfloat16().float() / scale)


@fault("K32", "vllm-project/vllm#37838", norm=RMS_NORM, role=_FP8, expected=_ROUNDING)
def double_rounding_by_float16(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """The value is rounded to float16 before it is quantized, where one rounding is claimed."""
    return _fp8(_wide(x, weight).half().float() / scale)


@fault("K32", "vllm-project/vllm#37838", norm=RMS_NORM, role=_BY_BFLOAT16, expected=_ROUNDING)
def intermediate_rounding_left_out(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """The fused kernel keeps float32, where the unfused path rounds to bfloat16."""
    return _fp8(_wide(x, weight) / scale)


@fault("K32", "vllm-project/vllm#37838", norm=RMS_NORM, role=INT8, expected=(*_ROUNDING, "quantized-noise"))
def truncation_to_int8(x: Tensor, weight: Tensor) -> _Pair:
    """The cast to int8 rounds toward zero."""
    import torch

    y = _wide(x, weight)
    scale = y.abs().amax(-1, keepdim=True) / 127
    return (y / scale).to(torch.int8), scale


@fault("K32", "vllm-project/vllm#37838", norm=RMS_NORM, role=INT8, expected=_SCALE)
def scale_of_the_whole_tensor(x: Tensor, weight: Tensor) -> _Pair:
    """All rows have the scale of the largest one."""
    y = _wide(x, weight)
    scale = (y.abs().amax() / 127).expand(*y.shape[:-1], 1)
    return _int8(y, scale), scale


@fault("K32", "vllm-project/vllm#37838", norm=RMS_NORM, role=INT8, expected=_SCALE)
def scale_before_the_weight(x: Tensor, weight: Tensor) -> _Pair:
    """The scale is that of the standardized row, without the weight: large weights saturate."""
    scale = _wide(x, None).abs().amax(-1, keepdim=True) / 127
    return _int8(_wide(x, weight), scale), scale


@fault("K32", "vllm-project/vllm#37838", norm=RMS_NORM, role=INT8, expected=_ROUNDING)
def scale_rounded_where_it_is_used(x: Tensor, weight: Tensor) -> _Pair:
    """The quotient takes the scale in bfloat16, and what is returned is the one in float32."""
    y = _wide(x, weight)
    scale = y.abs().amax(-1, keepdim=True) / 127
    return _int8(y, scale.bfloat16().float()), scale
