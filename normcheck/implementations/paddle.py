"""PaddlePaddle: the adapter, and its norms, of which the CPU has no kernels for 16 bit. eps and momentum are held in float32."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from normcheck.contract import Contract
from normcheck.formats import Array
from normcheck.implementations.arrays import LayoutError, decode, encode
from normcheck.implementations.base import Implementation
from normcheck.implementations.targets import Pasted
from normcheck.norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, Norm

FLOATS = ("float64", "float32")
_THREADS = "FLAGS_paddle_num_threads"


class Paddle:
    """The adapter. Tensors are contiguous."""

    name = "paddle"

    def available(self) -> str | None:
        """None, or the line that installs PaddlePaddle."""
        return None if importlib.util.find_spec("paddle") else "pip install 'normcheck[paddle]'"

    def version(self) -> str:
        """PaddlePaddle's version."""
        return importlib.metadata.version("paddlepaddle")

    def devices(self) -> tuple[str, ...]:
        """The CPU."""
        return ("cpu",)

    def pin_threads(self, count: int) -> None:
        """Set the number of threads inside one operation."""
        import paddle

        paddle.set_flags({_THREADS: count})

    def threads(self) -> int:
        """The number of threads inside one operation."""
        import paddle

        return int(paddle.get_flags([_THREADS])[_THREADS])

    def guard(self) -> AbstractContextManager[Any]:
        """A context in which no gradients are recorded."""
        import paddle

        return paddle.no_grad()  # type: ignore[no-any-return]

    def to_native(self, values: Array, dtype: str, device: str = "cpu", layout: str = "contiguous") -> Any:
        """A tensor with exactly these values, in memory of its own."""
        import paddle

        if layout != "contiguous":
            raise LayoutError(f"layout={layout!r}, but should be 'contiguous' for PaddlePaddle")
        return paddle.to_tensor(encode(values, dtype), place=paddle.CPUPlace())

    def to_values(self, native: Any) -> tuple[Array, str]:
        """The values of a tensor and the name of its dtype."""
        import paddle

        if not isinstance(native, paddle.Tensor):
            raise TypeError(f"returned {type(native).__name__}, but should return a paddle.Tensor")
        return decode(native.detach().numpy())

    def bind(self, module: Any, state: Mapping[str, Any], training: bool, dtype: str, device: str) -> Callable[..., Any]:
        """Set attributes and the mode; a plain tensor hides the parameter of that name, so that the gradient reaches it."""
        for name, value in state.items():
            object.__setattr__(module, name, value)
        module.training = training
        return module  # type: ignore[no-any-return]

    def pull_back(
        self, run: Callable[[dict[str, Any]], list[Any]], at: Mapping[str, Any], slopes: Sequence[Any], passes: int = 1
    ) -> dict[str, Any]:
        """Gradients by ``paddle.grad``; those of several passes are added in their own dtype."""
        import paddle

        with paddle.enable_grad():
            leaves = _leaves(at)
            outputs = run(dict(leaves))
            settings = {"retain_graph": True, "allow_unused": True}
            found = [paddle.grad(outputs, list(leaves.values()), list(slopes), **settings) for _ in range(passes)]
        return dict(zip(at, map(_added, zip(*found, strict=True)), strict=True))

    def pull_back_twice(
        self, run: Callable[[dict[str, Any]], list[Any]], at: Mapping[str, Any], slope: Any, along: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Gradients of <gradients, along>, with respect to the leaves and, under ``"y"``, to the slope."""
        import paddle

        with paddle.enable_grad():
            leaves = _leaves({**at, "y": slope})
            y = run({name: leaves[name] for name in at})[:1]
            first = paddle.grad(y, [leaves[name] for name in along], [leaves["y"]], create_graph=True)
            second = paddle.grad(first, list(leaves.values()), list(along.values()), allow_unused=True)
        return dict(zip(leaves, second, strict=True))

    def snippet_array(self, name: str, dtype: str, device: str, layout: str, rank: int) -> str:
        """``x = paddle.to_tensor(...)``, exact because the values are the dtype's."""
        return f"{name} = paddle.to_tensor({name}.astype(np.{dtype}))"

    def snippet_bind(self, state: Iterable[str], training: bool, dtype: str, device: str) -> list[str]:
        """What `bind` does."""
        return [*(f"object.__setattr__(module, {name!r}, {name})" for name in state), f"module.training = {training}"]

    def snippet_value(self, expression: str) -> str:
        """``y[0].item()``."""
        return f"{expression}.item()"

    def snippet_pull_back(self, called: Sequence[str], leaf: str) -> tuple[list[str], str]:
        """``paddle.grad``."""
        return [f"{leaf}.stop_gradient = False", *called, f"(gradient,) = paddle.grad([y], [{leaf}], [dy])"], "gradient"

    def shares_memory(self, one: Any, other: Any) -> bool:
        """Whether two tensors begin at the same place."""
        return bool(one.data_ptr() == other.data_ptr())


def _leaves(at: Mapping[str, Any]) -> dict[str, Any]:
    leaves = {name: value.detach() for name, value in at.items()}
    for leaf in leaves.values():
        leaf.stop_gradient = False
    return leaves


def _added(parts: Sequence[Any]) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total = None if part is None else total + part
    return total


ADAPTER = Paddle()


def layer_norm(x: Any, weight: Any, bias: Any, normalized_shape: Any, eps: float) -> Any:
    """``paddle.nn.functional.layer_norm``."""
    import paddle

    return paddle.nn.functional.layer_norm(x, list(normalized_shape), weight, bias, eps)


def group_norm(x: Any, num_groups: int, weight: Any, bias: Any, eps: float) -> Any:
    """``paddle.nn.functional.group_norm``."""
    import paddle

    return paddle.nn.functional.group_norm(x, num_groups, eps, weight, bias)


def instance_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """``paddle.nn.functional.instance_norm``."""
    import paddle

    return paddle.nn.functional.instance_norm(x, weight=weight, bias=bias, eps=eps)


def batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float) -> Any:
    """``paddle.nn.functional.batch_norm``, which must be given running statistics and writes them."""
    import paddle

    mean = paddle.zeros([x.shape[1]], x.dtype) if mean is None else mean
    var = paddle.ones([x.shape[1]], x.dtype) if var is None else var
    form = ("NC", "NCL", "NCHW", "NCDHW")[x.ndim - 2]
    return paddle.nn.functional.batch_norm(x, mean, var, weight, bias, training, momentum, eps, form)


_CONTRACT = Contract(eps_dtype="float32")
# as a float32 attribute holds it
_MOMENTUM = float(np.float32(0.9))
# momentum is the old statistic's share, and the running variance is the biased one
_MOVING = Contract(eps_dtype="float32", momentum_convention="keras", running_ddof=0)
_RUNNING = ("x", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")


def builtins() -> Iterator[Implementation]:
    """The norms that have kernels for the CPU."""
    # it refuses an eps beyond 0.001, so that eps is not varied
    yield _row("layer_norm", LayerNorm(eps=1e-5), ("x", "weight", "bias", "normalized_shape", 1e-5), ranks=(2, 3, 4, 5))
    grouped = ("x", "num_groups", "weight", "bias", "eps")
    yield _row("group_norm", GroupNorm(4), grouped, ranks=(3, 4, 5), contract=Contract())
    yield _row("instance_norm", InstanceNorm(), ("x", "weight", "bias", "eps"), ranks=(3, 4, 5))
    for mode, training in (("train", True), ("eval", False)):
        own: dict[str, Any] = {"training": training, "widths": range(2, 2**62) if training else None, "ranks": (2, 3, 4, 5)}
        norm = BatchNorm(momentum=_MOMENTUM)
        yield _row("batch_norm", norm, _RUNNING, f"[{mode}]", contract=_MOVING, mutates=_RUNNING[3:5], **own)


def _row(function: str, norm: Norm, arguments: tuple[Any, ...], mark: str = "", **options: Any) -> Implementation:
    return Implementation(
        Pasted(f"{__name__}:{function}"),
        norm,
        name=f"paddle.nn.functional.{function}{mark}",
        framework="paddle",
        arguments=arguments,
        requires="paddlepaddle",
        **{"contract": _CONTRACT, "dtypes": FLOATS, "validates": False, **options},
    )
