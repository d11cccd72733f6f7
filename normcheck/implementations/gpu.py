"""Packages whose kernels need a CUDA GPU: an adapter for each, so that an audit without one names what it leaves out, and why.

The rows follow the signatures of the released packages.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from normcheck.contract import Contract
from normcheck.implementations.base import Implementation
from normcheck.implementations.targets import Pasted
from normcheck.implementations.torch import Torch
from normcheck.norms import LayerNorm, Norm, RMSNorm

FLOATS = ("float32", "float16", "bfloat16")
_DRIVER = Path("/dev/nvidiactl")


class Gpu(Torch):
    """The adapter of one package. Arrays are torch's.

    Parameters
    ----------
    name : of the distribution
    module : that it installs
    line : installs it
    """

    def __init__(self, name: str, module: str, line: str) -> None:
        self.name = name
        self._module = module
        self._line = line

    def available(self) -> str | None:
        """None, or the line that installs the package, and what it needs."""
        where = "on a machine with a CUDA GPU, for which these kernels are written"
        if not all(map(importlib.util.find_spec, ("torch", self._module))):
            return f"{self._line}, {where}"
        return None if _DRIVER.exists() else f"run it {where}"

    def version(self) -> str:
        """The package's version."""
        return importlib.metadata.version(self.name)

    def devices(self) -> tuple[str, ...]:
        """The GPU, if torch finds it."""
        return tuple(name for name in super().devices() if name == "cuda")


_SOURCE = "pip install --no-build-isolation"
ADAPTERS = (
    Gpu("apex", "apex", f"{_SOURCE} git+https://github.com/NVIDIA/apex"),
    Gpu("flash-attn", "flash_attn", f"{_SOURCE} flash-attn"),
    Gpu("quack-kernels", "quack", "pip install quack-kernels"),
    Gpu("transformer-engine", "transformer_engine", f"{_SOURCE} 'transformer-engine[pytorch]'"),
    Gpu("vllm", "vllm", "pip install vllm"),
    Gpu("xformers", "xformers", "pip install xformers"),
)


def apex_layer_norm(x: Any, weight: Any, bias: Any, normalized_shape: Any, eps: float) -> Any:
    """``apex.normalization.fused_layer_norm.fused_layer_norm_affine``."""
    from apex.normalization.fused_layer_norm import fused_layer_norm_affine

    return fused_layer_norm_affine(x, weight, bias, normalized_shape, eps)


def apex_rms_norm(x: Any, weight: Any, normalized_shape: Any, eps: float) -> Any:
    """``apex.normalization.fused_layer_norm.fused_rms_norm_affine``."""
    from apex.normalization.fused_layer_norm import fused_rms_norm_affine

    return fused_rms_norm_affine(x, weight, normalized_shape, eps)


def flash_attn_layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """``flash_attn.ops.triton.layer_norm.layer_norm_fn``."""
    from flash_attn.ops.triton.layer_norm import layer_norm_fn

    return layer_norm_fn(x, weight, bias, eps=eps)


def flash_attn_rms_norm(x: Any, weight: Any, eps: float) -> Any:
    """``flash_attn.ops.triton.layer_norm.rms_norm_fn``."""
    from flash_attn.ops.triton.layer_norm import rms_norm_fn

    return rms_norm_fn(x, weight, None, eps=eps)


def quack_rms_norm(x: Any, weight: Any, eps: float) -> Any:
    """``quack.rmsnorm``."""
    from quack import rmsnorm

    return rmsnorm(x, weight, eps=eps)


def transformer_engine_layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """``transformer_engine.pytorch.LayerNorm``."""
    import torch
    from transformer_engine.pytorch import LayerNorm

    norm = LayerNorm(x.shape[-1], eps, device=x.device, dtype=x.dtype)
    return torch.func.functional_call(norm, {"weight": weight, "bias": bias}, (x,))


def transformer_engine_rms_norm(x: Any, weight: Any, eps: float) -> Any:
    """``transformer_engine.pytorch.RMSNorm``."""
    import torch
    from transformer_engine.pytorch import RMSNorm

    norm = RMSNorm(x.shape[-1], eps, device=x.device, dtype=x.dtype)
    return torch.func.functional_call(norm, {"weight": weight}, (x,))


def vllm_rms_norm(x: Any, weight: Any, eps: float) -> Any:
    """``vllm._custom_ops.rms_norm``."""
    import torch
    from vllm import _custom_ops

    y = torch.empty_like(x)
    _custom_ops.rms_norm(y, x, weight, eps)
    return y


def vllm_fused_add_rms_norm(x: Any, residual: Any, weight: Any, eps: float) -> Any:
    """``vllm._custom_ops.fused_add_rms_norm``, which writes y over x and the sum over the residual."""
    import torch
    from vllm import _custom_ops

    residual = torch.zeros_like(x) if residual is None else residual
    _custom_ops.fused_add_rms_norm(x, residual, weight, eps)
    return x, residual


def xformers_rms_norm(x: Any, weight: Any, eps: float) -> Any:
    """``xformers.ops.rmsnorm.rms_norm``."""
    from xformers.ops.rmsnorm import rms_norm

    return rms_norm(x, weight, eps)


def builtins() -> Iterator[Implementation]:
    """LayerNorm and RMSNorm of each package."""
    affine, scaled = ("x", "weight", "bias", "eps"), ("x", "weight", "eps")
    shaped = ("x", "weight", "bias", "normalized_shape", "eps")
    yield _row("apex", "layer_norm", LayerNorm(), shaped)
    yield _row("apex", "rms_norm", RMSNorm(eps=1e-5), ("x", "weight", "normalized_shape", "eps"))
    yield _row("flash-attn", "layer_norm", LayerNorm(), affine)
    yield _row("flash-attn", "rms_norm", RMSNorm(eps=1e-5), scaled)
    yield _row("quack-kernels", "rms_norm", RMSNorm(), scaled)
    yield _row("transformer-engine", "layer_norm", LayerNorm(), affine)
    yield _row("transformer-engine", "rms_norm", RMSNorm(eps=1e-5), scaled)
    before = Contract(cast="before_weight")
    yield _row("vllm", "rms_norm", RMSNorm(), scaled, grad=None, contract=before)
    added = Contract(cast="before_weight", residual_rounding="storage")
    own: dict[str, Any] = {"grad": None, "contract": added, "residual": True, "mutates": ("x", "residual")}
    yield _row("vllm", "fused_add_rms_norm", RMSNorm(), ("x", "residual", "weight", "eps"), **own)
    yield _row("xformers", "rms_norm", RMSNorm(), scaled, grad=None)


def _row(package: str, function: str, norm: Norm, arguments: tuple[str, ...], **options: Any) -> Implementation:
    place = package.removesuffix("-kernels").replace("-", "_")
    return Implementation(
        Pasted(f"{__name__}:{place}_{function}"),
        norm,
        name=f"{place}.{function}",
        framework=package,
        arguments=arguments,
        **{"dtypes": FLOATS, "devices": ("cuda",), "validates": False, **options},
    )
