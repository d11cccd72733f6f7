"""flax: the norms of nnx and of linen.

Channels are last, statistics are at least float32, and the variance is taken in one pass unless that is switched off.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from normcheck.contract import Contract
from normcheck.implementations.base import Implementation
from normcheck.implementations.jax import FLOATS, row
from normcheck.norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, Norm, RMSNorm


def nnx_layer_norm(x: Any, weight: Any, bias: Any, eps: float, fast: bool) -> Any:
    """``nnx.LayerNorm``."""
    from flax import nnx

    norm = nnx.LayerNorm(x.shape[-1], epsilon=eps, use_fast_variance=fast, rngs=nnx.Rngs(0))
    norm.scale, norm.bias = nnx.Param(weight), nnx.Param(bias)
    return norm(x)


def nnx_rms_norm(x: Any, weight: Any, eps: float) -> Any:
    """``nnx.RMSNorm``."""
    from flax import nnx

    norm = nnx.RMSNorm(x.shape[-1], epsilon=eps, rngs=nnx.Rngs(0))
    norm.scale = nnx.Param(weight)
    return norm(x)


def nnx_group_norm(x: Any, num_groups: int, weight: Any, bias: Any, eps: float, fast: bool) -> Any:
    """``nnx.GroupNorm``."""
    from flax import nnx

    norm = nnx.GroupNorm(x.shape[-1], num_groups, epsilon=eps, use_fast_variance=fast, rngs=nnx.Rngs(0))
    norm.scale, norm.bias = nnx.Param(weight), nnx.Param(bias)
    return norm(x)


def nnx_instance_norm(x: Any, weight: Any, bias: Any, eps: float, fast: bool) -> Any:
    """``nnx.InstanceNorm``."""
    from flax import nnx

    norm = nnx.InstanceNorm(x.shape[-1], epsilon=eps, use_fast_variance=fast, rngs=nnx.Rngs(0))
    norm.scale, norm.bias = nnx.Param(weight), nnx.Param(bias)
    return norm(x)


def nnx_batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float, fast: bool, narrow: bool
) -> Any:
    """``nnx.BatchNorm``; narrow: with ``dtype`` that of x, where it takes the widest of all that it is given otherwise."""
    from flax import nnx

    norm = nnx.BatchNorm(
        x.shape[-1],
        use_running_average=not training,
        momentum=momentum,
        epsilon=eps,
        dtype=x.dtype if narrow else None,
        use_fast_variance=fast,
        rngs=nnx.Rngs(0),
    )
    norm.scale, norm.bias = nnx.Param(weight), nnx.Param(bias)
    norm.mean, norm.var = nnx.BatchStat(mean), nnx.BatchStat(var)
    return norm(x), norm.mean[...], norm.var[...]


def linen_layer_norm(x: Any, weight: Any, bias: Any, eps: float, fast: bool) -> Any:
    """``linen.LayerNorm``."""
    from flax import linen

    norm = linen.LayerNorm(epsilon=eps, use_fast_variance=fast, param_dtype=weight.dtype)
    return norm.apply({"params": {"scale": weight, "bias": bias}}, x)


def linen_rms_norm(x: Any, weight: Any, eps: float) -> Any:
    """``linen.RMSNorm``."""
    from flax import linen

    return linen.RMSNorm(epsilon=eps, param_dtype=weight.dtype).apply({"params": {"scale": weight}}, x)


def linen_group_norm(x: Any, num_groups: int, weight: Any, bias: Any, eps: float, fast: bool) -> Any:
    """``linen.GroupNorm``."""
    from flax import linen

    norm = linen.GroupNorm(num_groups, epsilon=eps, use_fast_variance=fast, param_dtype=weight.dtype)
    return norm.apply({"params": {"scale": weight, "bias": bias}}, x)


def linen_instance_norm(x: Any, weight: Any, bias: Any, eps: float, fast: bool) -> Any:
    """``linen.InstanceNorm``."""
    from flax import linen

    norm = linen.InstanceNorm(epsilon=eps, use_fast_variance=fast, param_dtype=weight.dtype)
    return norm.apply({"params": {"scale": weight, "bias": bias}}, x)


def linen_batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float, fast: bool, narrow: bool
) -> Any:
    """``linen.BatchNorm``; narrow: with ``dtype`` that of x, where it takes the widest of x and parameters otherwise."""
    from flax import linen

    norm = linen.BatchNorm(
        not training,
        momentum=momentum,
        epsilon=eps,
        dtype=x.dtype if narrow else None,
        param_dtype=weight.dtype,
        use_fast_variance=fast,
    )
    state = {"params": {"scale": weight, "bias": bias}, "batch_stats": {"mean": mean, "var": var}}
    y, left = norm.apply(state, x, mutable=["batch_stats"])
    kept = left.get("batch_stats", state["batch_stats"])
    return y, kept["mean"], kept["var"]


_AFFINE = ("x", "weight", "bias", "eps")
_GROUPED = ("x", "num_groups", "weight", "bias", "eps")
_RUNNING = ("x", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
_MERGED: dict[str, Any] = {"momentum_convention": "keras", "running_ddof": 0}
# what is computed in float32 is rounded to the dtype that x and the parameters promote to
_FLAX: dict[str, Any] = {"requires": "flax", "channel_axis": -1, "contract": Contract(output="promote")}


def builtins() -> Iterator[Implementation]:
    """The norms of both interfaces, with the variance that is theirs by default and with that of two passes."""
    for api in ("nnx", "linen"):
        yield _row(api, "RMSNorm", "rms_norm", RMSNorm(), ("x", "weight", "eps"))
        for fast in (True, False):
            marks = [] if fast else ["two passes"]
            yield _row(api, "LayerNorm", "layer_norm", LayerNorm(eps=1e-6), (*_AFFINE, fast), marks)
            yield _row(api, "GroupNorm", "group_norm", GroupNorm(4, eps=1e-6), (*_GROUPED, fast), marks)
            yield _row(api, "InstanceNorm", "instance_norm", InstanceNorm(eps=1e-6), (*_AFFINE, fast), marks)
            yield from _batch_norm(api, ["train", *marks], training=True, fast=fast)
        yield from _batch_norm(api, ["eval"], training=False, fast=True)


def _batch_norm(api: str, marks: list[str], training: bool, fast: bool) -> Iterator[Implementation]:
    """Parameters and running statistics are float32 where x is narrower; so is y then, unless the layer is told another dtype."""
    norm, options = BatchNorm(momentum=0.99), {"training": training, "contract": Contract(output="promote", **_MERGED)}
    yield _row(api, "BatchNorm", "batch_norm", norm, (*_RUNNING, fast, False), marks, dtypes=FLOATS[:1], **options)
    options |= {"dtypes": FLOATS[1:], "weight_dtype": "float32"}
    yield _row(api, "BatchNorm", "batch_norm", norm, (*_RUNNING, fast, False), [*marks, "float32 parameters"], **options)
    if fast:
        options["contract"] = Contract(**_MERGED)
        yield _row(api, "BatchNorm", "batch_norm", norm, (*_RUNNING, fast, True), [*marks, "dtype of x"], **options)


def _row(
    api: str, name: str, function: str, norm: Norm, arguments: tuple[Any, ...], marks: list[str] | None = None, **options: Any
) -> Implementation:
    label = f"[{', '.join(marks)}]" if marks else ""
    return row(f"flax.{api}.{name}{label}", norm, f"{__name__}:{api}_{function}", arguments, **{**_FLAX, **options})
