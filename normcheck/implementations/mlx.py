"""MLX: the adapter, and its norms on the CPU. Channels are last.

Layers have a weight and a bias or neither, so one that is absent is ones or zeros.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from normcheck.contract import Contract
from normcheck.formats import Array, format_of
from normcheck.implementations.arrays import LayoutError, decode, encode
from normcheck.implementations.base import Implementation
from normcheck.implementations.targets import Pasted
from normcheck.norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, Norm, RMSNorm

FLOATS = ("float32", "float16", "bfloat16")


class Mlx:
    """The adapter. Arrays have no strides of their own, and are computed when they are read."""

    name = "mlx"

    def available(self) -> str | None:
        """None, or the line that installs MLX for the CPU."""
        found = importlib.util.find_spec("mlx") and importlib.util.find_spec("mlx.core")
        return None if found else "pip install 'normcheck[mlx]'"

    def version(self) -> str:
        """MLX's version."""
        return importlib.metadata.version("mlx")

    def devices(self) -> tuple[str, ...]:
        """The CPU."""
        return ("cpu",)

    def pin_threads(self, count: int) -> None:
        """Nothing to set: an operation runs in one thread."""

    def threads(self) -> int:
        """One."""
        return 1

    def guard(self) -> AbstractContextManager[Any]:
        """A context whose operations run on the CPU; nothing is recorded that has no gradient taken of it."""
        import mlx.core as mx

        return mx.stream(mx.cpu)  # type: ignore[no-any-return]

    def to_native(self, values: Array, dtype: str, device: str = "cpu", layout: str = "contiguous") -> Any:
        """An array with exactly these values, in memory of its own."""
        import mlx.core as mx

        if layout != "contiguous":
            raise LayoutError(f"layout={layout!r}, but should be 'contiguous' for MLX")
        return mx.array(encode(values, dtype))

    def to_values(self, native: Any) -> tuple[Array, str]:
        """The values of an array, computed now, and the name of its dtype; of bfloat16 by its bits."""
        import mlx.core as mx

        if not isinstance(native, mx.array):
            raise TypeError(f"returned {type(native).__name__}, but should return an mlx.core.array")
        if native.dtype == mx.bfloat16:
            return decode(np.array(native.view(mx.uint16)).view(format_of("bfloat16").dtype))
        return decode(np.array(native))

    def bind(self, module: Any, state: Mapping[str, Any], training: bool, dtype: str, device: str) -> Callable[..., Any]:
        """Set attributes and the mode."""
        for name, value in state.items():
            setattr(module, name, value)
        module.train(training)
        return module  # type: ignore[no-any-return]

    def pull_back(
        self, run: Callable[[dict[str, Any]], list[Any]], at: Mapping[str, Any], slopes: Sequence[Any], passes: int = 1
    ) -> dict[str, Any]:
        """Gradients by ``mx.vjp``; those of several passes are added in their own dtype."""
        import mlx.core as mx

        def outputs(*leaves: Any) -> list[Any]:
            return run(dict(zip(at, leaves, strict=True)))

        found = [mx.vjp(outputs, list(at.values()), list(slopes))[1] for _ in range(passes)]
        return {name: sum(parts[1:], parts[0]) for name, parts in zip(at, zip(*found, strict=True), strict=True)}

    def pull_back_twice(
        self, run: Callable[[dict[str, Any]], list[Any]], at: Mapping[str, Any], slope: Any, along: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Gradients of <gradients, along>, with respect to the leaves and, under ``"y"``, to the slope."""
        import mlx.core as mx

        def gradients(*leaves: Any) -> list[Any]:
            found = self.pull_back(lambda point: run(point)[:1], dict(zip(at, leaves, strict=False)), [leaves[-1]])
            return [found[name] for name in along]

        second = mx.vjp(gradients, [*at.values(), slope], list(along.values()))[1]
        return dict(zip([*at, "y"], second, strict=True))

    def snippet_array(self, name: str, dtype: str, device: str, layout: str, rank: int) -> str:
        """``x = mx.array(...)``, exact because the values are the dtype's."""
        return f"{name} = mx.array({name}.astype({'ml_dtypes' if dtype == 'bfloat16' else 'np'}.{dtype}))"

    def snippet_bind(self, state: Iterable[str], training: bool, dtype: str, device: str) -> list[str]:
        """What `bind` does."""
        return [*(f"module.{name} = {name}" for name in state), f"module.train({training})"]

    def snippet_value(self, expression: str) -> str:
        """``y[0].item()``."""
        return f"{expression}.item()"

    def snippet_pull_back(self, called: Sequence[str], leaf: str) -> tuple[list[str], str]:
        """``mx.vjp`` of the lines that make the call."""
        name = leaf.rpartition(".")[2]
        function = [f"def forward({name}):", *(f"    {line}" for line in called), "    return y"]
        return [*function, f"(y,), (gradient,) = mx.vjp(forward, [{name}], [dy])"], "gradient"

    def shares_memory(self, one: Any, other: Any) -> bool:
        """Whether two are the same array: others are copied when they are written to."""
        return one is other


ADAPTER = Mlx()


def layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """``mlx.core.fast.layer_norm``."""
    import mlx.core as mx

    return mx.fast.layer_norm(x, weight, bias, eps)


def rms_norm(x: Any, weight: Any, eps: float) -> Any:
    """``mlx.core.fast.rms_norm``."""
    import mlx.core as mx

    return mx.fast.rms_norm(x, weight, eps)


def group_norm(x: Any, num_groups: int, weight: Any, bias: Any, eps: float) -> Any:
    """``mlx.nn.GroupNorm`` with torch's groups, which are neighbouring channels."""
    import mlx.core as mx
    import mlx.nn

    norm = mlx.nn.GroupNorm(num_groups, x.shape[-1], eps, pytorch_compatible=True)
    norm.weight = mx.ones(x.shape[-1], x.dtype) if weight is None else weight
    norm.bias = mx.zeros(x.shape[-1], x.dtype) if bias is None else bias
    return norm(x)


def interleaved_group_norm(x: Any, num_groups: int, weight: Any, bias: Any, eps: float) -> Any:
    """``mlx.nn.GroupNorm`` with its own groups, which are every so many channels: they are brought there and back."""
    import mlx.core as mx
    import mlx.nn

    order = mx.arange(x.shape[-1]).reshape(num_groups, -1).T.flatten()
    norm = mlx.nn.GroupNorm(num_groups, x.shape[-1], eps)
    norm.weight = (mx.ones(x.shape[-1], x.dtype) if weight is None else weight)[order]
    norm.bias = (mx.zeros(x.shape[-1], x.dtype) if bias is None else bias)[order]
    return norm(x[..., order])[..., mx.argsort(order)]


def instance_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """``mlx.nn.InstanceNorm``."""
    import mlx.core as mx
    import mlx.nn

    norm = mlx.nn.InstanceNorm(x.shape[-1], eps, affine=True)
    norm.weight = mx.ones(x.shape[-1], x.dtype) if weight is None else weight
    norm.bias = mx.zeros(x.shape[-1], x.dtype) if bias is None else bias
    return norm(x)


def batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float) -> Any:
    """``mlx.nn.BatchNorm``."""
    import mlx.core as mx
    import mlx.nn

    norm = mlx.nn.BatchNorm(x.shape[-1], eps, momentum)
    norm.weight = mx.ones(x.shape[-1], x.dtype) if weight is None else weight
    norm.bias = mx.zeros(x.shape[-1], x.dtype) if bias is None else bias
    if mean is not None:
        norm.running_mean, norm.running_var = mean, var
    norm.train(training)
    return norm(x), norm.running_mean, norm.running_var


# the kernels compute in float32 and round before the weight; what layers compose is in the dtype of their input
_FAST = Contract(cast="before_weight", output="promote")
_OWN = Contract(compute="bfloat16", output="promote")
_GROUPS = ("x", "num_groups", "weight", "bias", "eps")
_RUNNING = ("x", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")


def builtins() -> Iterator[Implementation]:
    """The kernels, and the layers that are more than a call of one."""
    yield _row("core.fast.layer_norm", "layer_norm", LayerNorm(), ("x", "weight", "bias", "eps"))
    yield _row("core.fast.rms_norm", "rms_norm", RMSNorm(eps=1e-5), ("x", "weight", "eps"))
    yield _row("nn.GroupNorm[pytorch_compatible]", "group_norm", GroupNorm(4), _GROUPS)
    yield _row("nn.GroupNorm", "interleaved_group_norm", GroupNorm(4), _GROUPS, contract=_OWN)
    yield _row("nn.InstanceNorm", "instance_norm", InstanceNorm(), ("x", "weight", "bias", "eps"), ranks=range(3, 9))
    for mode, training in (("train", True), ("eval", False)):
        own: dict[str, Any] = {"training": training, "widths": range(2, 2**62) if training else None, "ranks": (2, 3, 4)}
        yield _row(f"nn.BatchNorm[{mode}]", "batch_norm", BatchNorm(), _RUNNING, contract=_OWN, **own)


def _row(name: str, function: str, norm: Norm, arguments: tuple[str, ...], **options: Any) -> Implementation:
    return Implementation(
        Pasted(f"{__name__}:{function}"),
        norm,
        name=f"mlx.{name}",
        framework="mlx",
        arguments=arguments,
        **{"contract": _FAST, "dtypes": FLOATS, "channel_axis": -1, "validates": False, **options},
    )
