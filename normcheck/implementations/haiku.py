"""haiku: norms that calculate in the input's dtype. Channels are last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from normcheck.implementations.base import Implementation
from normcheck.implementations.jax import OWN_DTYPE, row
from normcheck.norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, Norm, RMSNorm


def layer_norm(x: Any, weight: Any, bias: Any, eps: float, fast: bool) -> Any:
    """``haiku.LayerNorm``."""
    import haiku

    def call(x, scale, offset):  # type: ignore[no-untyped-def]
        return haiku.LayerNorm(-1, False, False, eps=eps, use_fast_variance=fast)(x, scale, offset)

    return haiku.without_apply_rng(haiku.transform(call)).apply({}, x, weight, bias)


def rms_norm(x: Any, weight: Any, eps: float) -> Any:
    """``haiku.RMSNorm``."""
    import haiku

    call = haiku.transform(lambda x: haiku.RMSNorm(-1, eps=eps)(x))
    return haiku.without_apply_rng(call).apply({"rms_norm": {"scale": weight}}, x)


def group_norm(x: Any, num_groups: int, weight: Any, bias: Any, eps: float) -> Any:
    """``haiku.GroupNorm``."""
    import haiku

    call = haiku.transform(lambda x: haiku.GroupNorm(num_groups, eps=eps)(x))
    return haiku.without_apply_rng(call).apply({"group_norm": {"scale": weight, "offset": bias}}, x)


def instance_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """``haiku.InstanceNorm``."""
    import haiku

    def call(x, scale, offset):  # type: ignore[no-untyped-def]
        return haiku.InstanceNorm(False, False, eps=eps)(x, scale, offset)

    return haiku.without_apply_rng(haiku.transform(call)).apply({}, x, weight, bias)


def batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float) -> Any:
    """``haiku.BatchNorm``; its running statistics are averages before they are freed from their start at zero."""
    import haiku
    import jax.numpy as jnp

    def call(x, scale, offset):  # type: ignore[no-untyped-def]
        return haiku.BatchNorm(False, False, momentum, eps=eps)(x, training, scale=scale, offset=offset)

    def kept(value):  # type: ignore[no-untyped-def]
        shaped = value.reshape([1] * (x.ndim - 1) + [-1])
        return {"hidden": shaped, "average": shaped, "counter": jnp.zeros((), jnp.int32)}

    names = ("batch_norm/~/mean_ema", "batch_norm/~/var_ema")
    state = dict(zip(names, map(kept, (mean, var)), strict=True))
    y, left = haiku.without_apply_rng(haiku.transform_with_state(call)).apply({}, state, x, weight, bias)
    return y, *(left[name]["hidden"].reshape(-1) for name in names)


_AFFINE = ("x", "weight", "bias", "eps")
_RUNNING = ("x", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
_PROMOTED = replace(OWN_DTYPE, output="promote")
_MERGED = replace(_PROMOTED, momentum_convention="keras", running_ddof=0)


def builtins() -> Iterator[Implementation]:
    """The norms with their defaults, and LayerNorm with a variance of one pass, as BatchNorm always has it."""
    yield _row("LayerNorm", "layer_norm", LayerNorm(), (*_AFFINE, False))
    yield _row("LayerNorm[one pass]", "layer_norm", LayerNorm(), (*_AFFINE, True))
    yield _row("RMSNorm", "rms_norm", RMSNorm(eps=1e-5), ("x", "weight", "eps"))
    yield _row("GroupNorm", "group_norm", GroupNorm(4), ("x", "num_groups", "weight", "bias", "eps"))
    yield _row("InstanceNorm", "instance_norm", InstanceNorm(), _AFFINE)
    for mode, training in (("train", True), ("eval", False)):
        yield _row(f"BatchNorm[{mode}]", "batch_norm", BatchNorm(momentum=0.99), _RUNNING, contract=_MERGED, training=training)


def _row(name: str, function: str, norm: Norm, arguments: tuple[Any, ...], **options: Any) -> Implementation:
    given = {"contract": _PROMOTED, "requires": "dm-haiku", "channel_axis": -1, **options}
    return row(f"haiku.{name}", norm, f"{__name__}:{function}", arguments, **given)
