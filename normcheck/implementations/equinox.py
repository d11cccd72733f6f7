"""equinox: norms of a single example, which jax.vmap spreads over a batch. Channels are first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from normcheck.contract import Contract
from normcheck.implementations.base import Implementation
from normcheck.implementations.jax import OWN_DTYPE, row
from normcheck.norms import BatchNorm, GroupNorm, LayerNorm, Norm, RMSNorm


def layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """``equinox.nn.LayerNorm`` over the last axis."""
    import equinox
    import jax

    norm = equinox.nn.LayerNorm(x.shape[-1], eps=eps, dtype=weight.dtype)
    norm = equinox.tree_at(lambda norm: (norm.weight, norm.bias), norm, (weight, bias))
    return jax.vmap(norm)(x.reshape(-1, x.shape[-1])).reshape(x.shape)


def rms_norm(x: Any, weight: Any, eps: float) -> Any:
    """``equinox.nn.RMSNorm`` over the last axis, without bias."""
    import equinox
    import jax

    norm = equinox.nn.RMSNorm(x.shape[-1], eps=eps, use_bias=False, dtype=weight.dtype)
    norm = equinox.tree_at(lambda norm: norm.weight, norm, weight)
    return jax.vmap(norm)(x.reshape(-1, x.shape[-1])).reshape(x.shape)


def group_norm(x: Any, num_groups: int, weight: Any, bias: Any, eps: float) -> Any:
    """``equinox.nn.GroupNorm``."""
    import equinox
    import jax

    norm = equinox.nn.GroupNorm(num_groups, x.shape[1], eps=eps, dtype=weight.dtype)
    norm = equinox.tree_at(lambda norm: (norm.weight, norm.bias), norm, (weight, bias))
    return jax.vmap(norm)(x)


def batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float) -> Any:
    """``equinox.nn.BatchNorm`` in its mode "batch"; running statistics are averages before they are freed from their start."""
    import equinox
    import jax

    made = equinox.nn.make_with_state(equinox.nn.BatchNorm)
    norm, state = made(x.shape[1], "batch", eps=eps, momentum=momentum, dtype=weight.dtype, mode="batch")
    norm = equinox.tree_at(lambda norm: (norm.weight, norm.bias), norm, (weight, bias))
    state = state.set(norm.batch_state_index, (mean, var))
    call = jax.vmap(lambda x, state: norm(x, state, inference=not training), (0, None), (0, None), axis_name="batch")
    y, state = call(x, state)
    return y, *state.get(norm.batch_state_index)


_AFFINE = ("x", "weight", "bias", "eps")
_RUNNING = ("x", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
_MERGED = replace(OWN_DTYPE, output="promote", momentum_convention="keras", running_ddof=0)


def builtins() -> Iterator[Implementation]:
    """The norms over the last axis, and those of channels; BatchNorm as the other libraries have it."""
    yield _row("LayerNorm", "layer_norm", LayerNorm(), _AFFINE)
    yield _row("RMSNorm", "rms_norm", RMSNorm(eps=1e-5), ("x", "weight", "eps"))
    yield _row("GroupNorm", "group_norm", GroupNorm(4), ("x", "num_groups", "weight", "bias", "eps"))
    for mode, training in (("train", True), ("eval", False)):
        yield _row(f"BatchNorm[{mode}]", "batch_norm", BatchNorm(momentum=0.99), _RUNNING, contract=_MERGED, training=training)


def _row(name: str, function: str, norm: Norm, arguments: tuple[Any, ...], **options: Any) -> Implementation:
    given = {"contract": Contract(), "requires": "equinox", **options}
    return row(f"equinox.nn.{name}", norm, f"{__name__}:{function}", arguments, **given)
