"""torchnorm: its kernels in Triton. On the CPU its modules call torch's own norms, which are judged as such."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from normcheck.contract import Contract
from normcheck.implementations.base import Implementation
from normcheck.implementations.triton import row
from normcheck.norms import LayerNorm, Norm, RMSNorm


def layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """``fused_layer_norm``."""
    from torchnorm._triton import fused_layer_norm

    return fused_layer_norm(x, weight, bias, eps)


def rms_norm(x: Any, weight: Any, eps: float) -> Any:
    """``fused_rms_norm``."""
    from torchnorm._triton import fused_rms_norm

    return fused_rms_norm(x, weight, eps)


def fused_add_rms_norm(x: Any, residual: Any, weight: Any, eps: float) -> Any:
    """``fused_add_rms_norm``, which returns the sum as well."""
    import torch
    from torchnorm._triton import fused_add_rms_norm

    residual = torch.zeros_like(x) if residual is None else residual
    return fused_add_rms_norm(x, residual, weight, eps)


def builtins() -> Iterator[Implementation]:
    """The three kernels."""
    yield _row("layer_norm", LayerNorm(), ("x", "weight", "bias", "eps"))
    yield _row("rms_norm", RMSNorm(), ("x", "weight", "eps"))
    added: dict[str, Any] = {"contract": Contract(eps_dtype="float32", residual_rounding="compute"), "residual": True}
    yield _row("add_rms_norm", RMSNorm(), ("x", "residual", "weight", "eps"), **added)


def _row(name: str, norm: Norm, arguments: tuple[str, ...], **options: Any) -> Implementation:
    function = {"add_rms_norm": "fused_add_rms_norm"}.get(name, name)
    return row("torchnorm", f"torchnorm.fused_{name}", norm, f"{__name__}:{function}", arguments, **options)
