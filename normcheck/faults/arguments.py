"""K30: norms that accept what no norm can take. But for the one thing that each overlooks they refuse it."""

from __future__ import annotations

from typing import Any

from normcheck.faults.catalogue import fault, sound_norm
from normcheck.faults.parts import LAYER_NORM, Tensor, centred, finish, finish_channels
from normcheck.norms import GroupNorm

_SIZES = ("invalid-sizes",)
_ALERT: dict[str, Any] = {"validates": True, "dtypes": ("float32",)}


def _refuse_dtype(x: Tensor) -> None:
    if not x.is_floating_point():
        raise TypeError(f"x is {x.dtype}, but should be floating point")


def _refuse_eps(eps: float) -> None:
    if not eps >= 0:
        raise ValueError(f"eps={eps}, but should be >= 0")


def _refuse_sizes(width: int, *parameters: Tensor | None) -> None:
    for parameter in parameters:
        if parameter is not None and parameter.numel() != width:
            raise ValueError(f"a parameter has {parameter.numel()} elements, but should have {width}")


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    c, variance = centred(x)
    return finish(x, c * (variance + eps).rsqrt(), weight, bias)


@sound_norm(LAYER_NORM, warns=("overflow",), **_ALERT)
def layer_norm_that_refuses(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Every argument is looked at."""
    _refuse_dtype(x)
    _refuse_eps(eps)
    _refuse_sizes(x.shape[-1], weight, bias)
    return _layer_norm(x, weight, bias, eps)


@fault("K30", "ml-explore/mlx#4312", "pytorch/pytorch#166405", norm=LAYER_NORM, expected=("invalid-epsilon",), **_ALERT)
def negative_eps_accepted(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Nobody looks at eps: with a negative one quiet rows become NaN."""
    _refuse_dtype(x)
    _refuse_sizes(x.shape[-1], weight, bias)
    return _layer_norm(x, weight, bias, eps)


@fault("K30", "pytorch/pytorch#173337", norm=LAYER_NORM, expected=("invalid-epsilon",), **_ALERT)
def nan_eps_accepted(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """eps < 0 raises, which does not hold of NaN."""
    if eps < 0:
        raise ValueError(f"eps={eps}, but should be >= 0")
    _refuse_dtype(x)
    _refuse_sizes(x.shape[-1], weight, bias)
    return _layer_norm(x, weight, bias, eps)


@fault("K30", "pytorch/pytorch#166756", norm=LAYER_NORM, expected=_SIZES, **_ALERT)
def long_weights_accepted(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """As many weights are taken as there are elements, and the rest is left."""
    _refuse_dtype(x)
    _refuse_eps(eps)
    if weight is not None and weight.numel() < x.shape[-1]:
        raise ValueError(f"weight has {weight.numel()} elements, but should have {x.shape[-1]}")
    return _layer_norm(x, None if weight is None else weight[: x.shape[-1]], bias, eps)


@fault("K30", "pytorch/pytorch#166756", norm=LAYER_NORM, expected=_SIZES, **_ALERT)
def normalized_shape_ignored(x: Tensor, weight: Tensor, bias: Tensor, normalized_shape: tuple[int, ...], eps: float) -> Tensor:
    """Whatever normalized_shape says, the last dimension is normalized."""
    _refuse_dtype(x)
    _refuse_eps(eps)
    _refuse_sizes(x.shape[-1], weight, bias)
    return _layer_norm(x, weight, bias, eps) if normalized_shape else x


@fault("K30", "pytorch/pytorch#166756", norm=GroupNorm(2), expected=_SIZES, **_ALERT)
def groups_that_leave_channels_out(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Tensor:
    """Where the groups do not divide the channels, the last channels are in no group and pass."""
    _refuse_dtype(x)
    _refuse_eps(eps)
    _refuse_sizes(x.shape[1], weight, bias)
    taken = x.shape[1] // num_groups * num_groups
    n = x.float().clone()
    c, variance = centred(x[:, :taken].reshape(x.shape[0], num_groups, -1))
    n[:, :taken] = (c * (variance + eps).rsqrt()).reshape(n[:, :taken].shape)
    return finish_channels(x, n, weight, bias)


@fault("K30", "pytorch/pytorch#173337", norm=LAYER_NORM, expected=("invalid-dtype",), **_ALERT)
def integers_cast_back(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Integers are normalized in float32 and cast back to integers."""
    _refuse_eps(eps)
    _refuse_sizes(x.shape[-1], weight, bias)
    return _layer_norm(x, weight, bias, eps)
