"""Liger-Kernel: its norms in Triton. RMSNorm's casting modes are those of the models that it is put into."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from normcheck.contract import Contract
from normcheck.implementations.base import Implementation
from normcheck.implementations.triton import row
from normcheck.norms import GroupNorm, LayerNorm, Norm, RMSNorm


def layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """``LigerLayerNormFunction``."""
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return LigerLayerNormFunction.apply(x, weight, bias, eps)


def rms_norm(x: Any, weight: Any, eps: float, offset: Any, mode: Any) -> Any:
    """``LigerRMSNormFunction`` as it is by default: its backward pass writes dx over dy."""
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return LigerRMSNormFunction.apply(x, weight, eps, offset, ("none", "llama", "gemma")[mode + 1])


def fused_add_rms_norm(x: Any, residual: Any, weight: Any, eps: float, offset: Any, mode: Any) -> Any:
    """``LigerFusedAddRMSNormFunction``."""
    import torch
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

    residual = torch.zeros_like(x) if residual is None else residual
    return LigerFusedAddRMSNormFunction.apply(x, residual, weight, eps, offset, ("none", "llama", "gemma")[mode + 1])


def group_norm(x: Any, weight: Any, bias: Any, num_groups: int, eps: float) -> Any:
    """``LigerGroupNormFunction``."""
    from liger_kernel.ops.group_norm import LigerGroupNormFunction

    return LigerGroupNormFunction.apply(x, weight, bias, x.shape[1], num_groups, eps)


_ONCE = Contract(eps_dtype="float32")
_MODES: tuple[tuple[str, int, float, Contract], ...] = (
    ("none", -1, 0.0, replace(_ONCE, compute="bfloat16")),
    ("llama", 0, 0.0, replace(_ONCE, cast="before_weight")),
    ("gemma", 1, 1.0, _ONCE),
)


def builtins() -> Iterator[Implementation]:
    """LayerNorm, GroupNorm, and RMSNorm in each mode, by itself and after a residual is added."""
    yield _row("LigerLayerNormFunction", LayerNorm(), "layer_norm", ("x", "weight", "bias", "eps"))
    yield _row("LigerGroupNormFunction", GroupNorm(4), "group_norm", ("x", "weight", "bias", "num_groups", "eps"))
    for mode, number, offset, contract in _MODES:
        norm = RMSNorm(weight_offset=offset)
        passed = ("weight", "eps", offset, number)
        yield _row(f"LigerRMSNormFunction[{mode}]", norm, "rms_norm", ("x", *passed), contract=contract)
        added: dict[str, Any] = {"contract": replace(contract, residual_rounding="storage"), "residual": True}
        yield _row(f"LigerFusedAddRMSNormFunction[{mode}]", norm, "fused_add_rms_norm", ("x", "residual", *passed), **added)


def _row(name: str, norm: Norm, function: str, arguments: tuple[Any, ...], **options: Any) -> Implementation:
    return row("liger-kernel", f"liger_kernel.{name}", norm, f"{__name__}:{function}", arguments, **options)
