"""numpy: the adapter, and textbook norms written plainly and soundly, which are audited where no framework is installed.

The norms calculate in float32 (float64 input in float64), with two passes and numpy's pairwise sums, and round once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt

from normcheck.contract import Contract
from normcheck.formats import Array
from normcheck.implementations.arrays import LAYOUTS, VIEWS, decode, encode
from normcheck.implementations.base import Implementation
from normcheck.implementations.targets import Named
from normcheck.norms import (
    BatchNorm,
    GroupNorm,
    InstanceNorm,
    L2Norm,
    LayerNorm,
    Norm,
    PartialRMSNorm,
    RMSNorm,
    ScaleNorm,
)

Native = npt.NDArray[Any]
FLOATS = ("float64", "float32", "float16", "bfloat16")


class Numpy:
    """The adapter. bfloat16 and float8 arrays have the dtypes of ml_dtypes."""

    name = "numpy"

    def available(self) -> str | None:
        """None: numpy is always there."""
        return None

    def version(self) -> str:
        """numpy's version."""
        return np.__version__

    def devices(self) -> tuple[str, ...]:
        """The CPU."""
        return ("cpu",)

    def pin_threads(self, count: int) -> None:
        """Nothing to set: numpy's arithmetic outside BLAS runs in one thread."""

    def guard(self) -> AbstractContextManager[Any]:
        """A context without floating-point warnings."""
        return np.errstate(all="ignore")

    def to_native(self, values: Array, dtype: str, device: str = "cpu", layout: str = "contiguous") -> Native:
        """See `encode`."""
        return encode(values, dtype, layout)

    def to_values(self, native: Any) -> tuple[Array, str]:
        """See `decode`; numpy scalars count as arrays of rank 0."""
        if not isinstance(native, np.ndarray | np.generic):
            raise TypeError(f"returned {type(native).__name__}, but should return a numpy.ndarray")
        return decode(native)

    def bind(self, module: Any, state: Mapping[str, Any], training: bool, dtype: str, device: str) -> Callable[..., Any]:
        """Set attributes."""
        for name, value in {**state, "training": training}.items():
            setattr(module, name, value)
        return module  # type: ignore[no-any-return]

    def snippet_array(self, name: str, dtype: str, device: str, layout: str, rank: int) -> str:
        """``x = x.astype(...)``."""
        typed = f"astype({'np' if dtype in FLOATS[:3] else 'ml_dtypes'}.{dtype})"
        if layout in VIEWS:
            return f"{name} = {_VIEW_TEXTS[layout].format(f'{name}.{typed}', f'{name}.shape')}"
        order = LAYOUTS[layout](rank)
        if layout == "contiguous":
            return f"{name} = {name}.{typed}"
        back = tuple(int(axis) for axis in np.argsort(order))
        return f"{name} = {name}.transpose({order}).{typed}.copy().transpose({back})"

    def snippet_bind(self, state: Iterable[str], training: bool, dtype: str, device: str) -> list[str]:
        """Attributes."""
        return [*(f"module.{name} = {name}" for name in state), f"module.training = {training}"]

    def snippet_value(self, expression: str) -> str:
        """The element itself."""
        return expression

    def threads(self) -> int:
        """One."""
        return 1

    def shares_memory(self, one: Any, other: Any) -> bool:
        """Whether the memory of two arrays overlaps."""
        return bool(np.may_share_memory(one, other))


ADAPTER = Numpy()

_VIEW_TEXTS = {
    "strided": "np.repeat({0}, 2, -1)[..., ::2]",
    "strided_rows": "np.repeat({0}, 2, 0)[::2]",
    "sliced": "np.concatenate([{0}[..., :1], {0}, {0}[..., :1], {0}[..., :1]], -1)[..., 1:-2]",
    "reversed": "{0}[..., ::-1].copy()[..., ::-1]",
    "unaligned": "np.append({0}.ravel()[:1], {0}.ravel())[1:].reshape({1})",
    "expanded": "np.broadcast_to({0}[:1], {1})",
}


def layer_norm(x: Native, weight: Native | None, bias: Native | None, eps: float) -> Native:
    """w * (x - mean) / sqrt(var + eps) + b over the last axis."""
    c = _centred(_wide(x))
    return _affine(c / np.sqrt(_mean_square(c) + eps), weight, bias).astype(x.dtype)


def annotated_layer_norm(x: Native, weight: Native | None, bias: Native | None, eps: float) -> Native:
    """w * (x - mean) / (std + eps) + b with Bessel's correction, as in the Annotated Transformer."""
    c = _centred(_wide(x))
    std = np.sqrt(np.sum(c * c, axis=-1, keepdims=True) / (x.shape[-1] - 1))
    return _affine(c / (std + eps), weight, bias).astype(x.dtype)


def rms_norm(x: Native, weight: Native | None, eps: float) -> Native:
    """w * x / sqrt(mean(x**2) + eps) over the last axis."""
    wide = _wide(x)
    return _affine(wide / np.sqrt(_mean_square(wide) + eps), weight).astype(x.dtype)


def partial_rms_norm(x: Native, weight: Native | None, eps: float, fraction: float) -> Native:
    """RMSNorm with the mean square of the first ceil(fraction * D) elements."""
    wide = _wide(x)
    count = max(1, math.ceil(round(fraction * x.shape[-1], 9)))
    return _affine(wide / np.sqrt(_mean_square(wide[..., :count]) + eps), weight).astype(x.dtype)


def l2_norm(x: Native, weight: Native | None, eps: float) -> Native:
    """w * x / max(||x||, eps) over the last axis."""
    wide = _wide(x)
    length = np.sqrt(np.sum(wide * wide, axis=-1, keepdims=True))
    return _affine(wide / np.maximum(length, eps), weight).astype(x.dtype)


def scale_norm(x: Native, weight: Native | None, eps: float) -> Native:
    """g * x / max(||x||, eps) over the last axis, with one scalar g."""
    return l2_norm(x, weight, eps)


def group_norm(x: Native, num_groups: int, weight: Native | None, bias: Native | None, eps: float) -> Native:
    """w * (x - mean) / sqrt(var + eps) + b over the channels of a group and space; channels are axis 1."""
    c = _centred(_wide(x).reshape(x.shape[0], num_groups, math.prod(x.shape[1:]) // num_groups))
    n = (c / np.sqrt(_mean_square(c) + eps)).reshape(x.shape)
    return _affine(n, *_per_channel((weight, bias), x.ndim)).astype(x.dtype)


def instance_norm(x: Native, weight: Native | None, bias: Native | None, eps: float) -> Native:
    """w * (x - mean) / sqrt(var + eps) + b over space; channels are axis 1."""
    return group_norm(x, x.shape[1], weight, bias, eps)


def batch_norm(
    x: Native,
    weight: Native | None,
    bias: Native | None,
    running_mean: Native | None,
    running_var: Native | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Native, Native | None, Native | None]:
    """w * (x - mean) / sqrt(var + eps) + b over batch and space, and the new running statistics; channels are axis 1.

    Running statistics: new = (1 - m) * old + m * batch, with the unbiased variance of the batch.
    """
    wide = _wide(x)
    if training or running_mean is None or running_var is None:
        rows = np.moveaxis(wide, 1, 0).reshape(x.shape[1], -1)
        mean = rows.mean(axis=-1, keepdims=True)
        var = _mean_square(rows - mean)
        batch = (mean.reshape(-1), var.reshape(-1) * (rows.shape[1] / max(rows.shape[1] - 1, 1)))
        new = [_running(old, now, momentum) for old, now in zip((running_mean, running_var), batch, strict=True)]
    else:
        mean, var, new = running_mean.astype(wide.dtype), running_var.astype(wide.dtype), [running_mean, running_var]
    mean, var = _per_channel((mean, var), x.ndim)
    n = (wide - mean) / np.sqrt(var + eps)
    return _affine(n, *_per_channel((weight, bias), x.ndim)).astype(x.dtype), new[0], new[1]


def _wide(x: Native) -> Native:
    return x if x.dtype in (np.float64, np.float32) else x.astype(np.float32)


def _centred(x: Native) -> Native:
    return x - x.mean(axis=-1, keepdims=True)  # type: ignore[no-any-return]


def _mean_square(c: Native) -> Native:
    return np.mean(c * c, axis=-1, keepdims=True)  # type: ignore[no-any-return]


def _affine(n: Native, weight: Native | None, bias: Native | None = None) -> Native:
    if weight is not None:
        n = n * _wide(weight)
    return n if bias is None else n + _wide(bias)


def _per_channel(parameters: Sequence[Any], rank: int) -> list[Any]:
    return [p if p is None else p.reshape(-1, *[1] * (rank - 2)) for p in parameters]


def _running(old: Native | None, batch: Native, momentum: float) -> Native | None:
    return None if old is None else ((1 - momentum) * _wide(old) + momentum * batch).astype(old.dtype)


_ELEMENTS = ("x", "weight", "bias", "eps")
_RUNNING = ("x", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
_TEXTBOOK: tuple[tuple[str, Norm, tuple[str, ...], dict[str, Any]], ...] = (
    ("layer_norm", LayerNorm(), _ELEMENTS, {}),
    ("annotated_layer_norm", LayerNorm(eps=1e-6, eps_placement="outside", ddof=1), _ELEMENTS, {"widths": range(2, 2**62)}),
    ("rms_norm", RMSNorm(), ("x", "weight", "eps"), {}),
    ("partial_rms_norm", PartialRMSNorm(), ("x", "weight", "eps", "fraction"), {}),
    ("l2_norm", L2Norm(), ("x", "weight", "eps"), {}),
    ("scale_norm", ScaleNorm(), ("x", "weight", "eps"), {}),
    ("group_norm", GroupNorm(4), ("x", "num_groups", "weight", "bias", "eps"), {}),
    ("instance_norm", InstanceNorm(), _ELEMENTS, {}),
    ("batch_norm[train]", BatchNorm(), _RUNNING, {"training": True}),
    ("batch_norm[eval]", BatchNorm(), _RUNNING, {"training": False}),
)


def builtins() -> Iterator[Implementation]:
    """The textbook norms."""
    for name, norm, arguments, options in _TEXTBOOK:
        yield Implementation(
            Named(f"{__name__}:{name.partition('[')[0]}"),
            norm,
            Contract(),
            name=f"textbook.{name}",
            framework="numpy",
            dtypes=FLOATS,
            grad=None,
            arguments=arguments,
            validates=False,
            **options,
        )
