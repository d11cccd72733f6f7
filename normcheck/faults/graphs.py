"""K28 and kin: what other ways of calling one norm compute: compiled and exported graphs, inference mode, vmap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from normcheck.faults.catalogue import HALF, fault
from normcheck.faults.parts import LAYER_NORM, RMS_NORM, Tensor, affine, centred, finish, mean, mean_square

_FORMS = ("other-forms",)


def _layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    c, variance = centred(x)
    return finish(x, c * (variance + LAYER_NORM.eps).rsqrt(), weight, bias)


def _rms_norm(x: Tensor, weight: Tensor | None) -> Tensor:
    wide, square = mean_square(x)
    return finish(x, wide * (square + RMS_NORM.eps).rsqrt(), weight)


def _form(name: str, call: Callable[..., Any], *arguments: str) -> Callable[[Callable[..., Any]], dict[str, Any]]:
    """A sound norm whose form of this name is the decorated code."""
    return lambda function: {"call": call, "arguments": arguments, "variants": {name: function}}


_COMPILED = _form("compiled", _layer_norm, "x", "weight", "bias")
_EXPORTED = _form("exported", _rms_norm, "x", "weight")


@fault("K28", "pytorch/pytorch#143182", "pytorch/pytorch#168126", norm=LAYER_NORM, role=_COMPILED, expected=_FORMS)
def decomposition_in_one_pass(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The compiled graph takes the variance in one pass, the eager kernel in two."""
    wide = x.float()
    variance = (mean(wide * wide) - mean(wide) ** 2).clamp(min=0)
    return finish(x, (wide - mean(wide)) * (variance + LAYER_NORM.eps).rsqrt(), weight, bias)


@fault("K28", "pytorch/pytorch#186577", norm=LAYER_NORM, dtypes=HALF, role=_COMPILED, expected=_FORMS)
def decomposition_in_the_dtype_of_x(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The compiled graph has lost the casts to float32."""
    c = x - mean(x)
    return affine(c * (mean(c * c) + LAYER_NORM.eps).rsqrt(), weight, bias)


@fault("K28", "tensorflow/tensorflow#58863", norm=RMS_NORM, role=_EXPORTED, expected=_FORMS)
def exported_with_the_default_eps(x: Tensor, weight: Tensor) -> Tensor:
    """The exported operator has lost its eps, and the default, 1e-5, is used."""
    wide, square = mean_square(x)
    return finish(x, wide * (square + 1e-2).rsqrt(), weight)


@fault("K28", "pytorch/executorch#22444", norm=RMS_NORM, role=_EXPORTED, expected=_FORMS)
def exported_without_its_weight(x: Tensor, weight: Tensor) -> Tensor:
    """The exported graph has the weight folded away as if it were ones."""
    wide, square = mean_square(x)
    return finish(x, wide * (square + RMS_NORM.eps).rsqrt(), None if weight is None else weight * 0 + 1)


@fault("K28", "pytorch/pytorch#173885", norm=LAYER_NORM, expected=("inference-mode",))
def fast_path_of_inference(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """In inference mode a reciprocal root of 12 bits is used."""
    import torch

    c, variance = centred(x)
    r = (variance + eps).rsqrt()
    return finish(x, c * (r.bfloat16().float() if torch.is_inference_mode_enabled() else r), weight, bias)


@fault("K24", "pytorch/functorch#534", norm=LAYER_NORM, expected=("vmap",))
def batching_rule_that_mixes_samples(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Under vmap the statistics are those of all samples together."""
    return _mixing()(x, weight, bias, eps)


def _mixing() -> Callable[..., Any]:
    """The norm as a function with a batching rule of its own."""
    import torch

    class Mixing(torch.autograd.Function):  # type: ignore[misc]
        """Sound as it is called, wrong under vmap."""

        @staticmethod
        def forward(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
            """The sound norm."""
            c, variance = centred(x)
            return finish(x, c * (variance + eps).rsqrt(), weight, bias)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            """Nothing is kept."""

        @staticmethod
        def vmap(_info: Any, _dims: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, int]:
            """The new dimension is normalized with the rows."""
            c = x.float() - x.float().mean((0, -1), keepdim=True)
            n = c * ((c * c).mean((0, -1), keepdim=True) + eps).rsqrt()
            return finish(x, n, weight, bias), 0

    return Mixing.apply  # type: ignore[no-any-return]


@fault("K28", "pytorch/pytorch#143182", norm=LAYER_NORM, expected=("compiled",), profile="deep")
def branch_for_the_compiler(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Where torch.compile traces the code, it takes the variance in one pass."""
    import torch

    wide = x.float()
    c, variance = centred(x)
    if torch.compiler.is_compiling():
        variance = (mean(wide * wide) - mean(wide) ** 2).clamp(min=0)
    return finish(x, c * (variance + eps).rsqrt(), weight, bias)


@fault("K28", "pytorch/pytorch#18525", norm=RMS_NORM, expected=("exported",), profile="deep")
def branch_for_the_exporter(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Where torch.export traces the code, eps is the constant 1e-2."""
    import torch

    wide, square = mean_square(x)
    return finish(x, wide * (square + (1e-2 if torch.compiler.is_exporting() else eps)).rsqrt(), weight)
