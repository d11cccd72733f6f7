"""tinygrad: the adapter, and the norms of ``tinygrad.nn`` on the CPU, whose kernels clang compiles shape by shape.

They are judged in float32 and float16: the clang of many systems cannot compile bfloat16. All but RMSNorm have a
weight and a bias or neither, so one that is absent is ones or zeros. Channels are first.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from normcheck.contract import Contract
from normcheck.formats import Array
from normcheck.implementations.arrays import LayoutError, decode, encode
from normcheck.implementations.base import Implementation
from normcheck.implementations.targets import Pasted
from normcheck.norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, Norm, RMSNorm

FLOATS = ("float32", "float16")


class Tinygrad:
    """The adapter. Tensors are computed when they are read."""

    name = "tinygrad"

    def available(self) -> str | None:
        """None, or the line that installs tinygrad, or the compiler that it calls for the CPU."""
        if not importlib.util.find_spec("tinygrad"):
            return "pip install 'normcheck[tinygrad]'"
        compiler = os.environ.get("CC", "clang")
        return None if shutil.which(compiler) else f"apt-get install {compiler}, the compiler that it calls"

    def version(self) -> str:
        """tinygrad's version."""
        return importlib.metadata.version("tinygrad")

    def devices(self) -> tuple[str, ...]:
        """The CPU."""
        return ("cpu",)

    def pin_threads(self, count: int) -> None:
        """Set the number of threads inside one kernel."""
        from tinygrad.helpers import NUM_CPU_THREADS

        NUM_CPU_THREADS.value = count

    def threads(self) -> int:
        """The number of threads inside one kernel."""
        from tinygrad.helpers import NUM_CPU_THREADS

        return int(NUM_CPU_THREADS.value)

    def guard(self) -> AbstractContextManager[Any]:
        """A context without floating-point warnings; nothing is recorded that has no gradient taken of it."""
        return np.errstate(all="ignore")

    def to_native(self, values: Array, dtype: str, device: str = "cpu", layout: str = "contiguous") -> Any:
        """A tensor with exactly these values, in memory of its own."""
        from tinygrad import Tensor

        if layout != "contiguous":
            raise LayoutError(f"layout={layout!r}, but tinygrad has no strides")
        return Tensor(encode(values, dtype), device="CPU").realize()

    def to_values(self, native: Any) -> tuple[Array, str]:
        """The values of a tensor, computed now, and the name of its dtype."""
        from tinygrad import Tensor

        if not isinstance(native, Tensor):
            raise TypeError(f"returned {type(native).__name__}, but should return a tinygrad.Tensor")
        return decode(native.numpy())

    def bind(self, module: Any, state: Mapping[str, Any], training: bool, dtype: str, device: str) -> Callable[..., Any]:
        """Set attributes; the mode is that of the process, so the call is made in it."""
        from tinygrad import Context

        for name, value in state.items():
            setattr(module, name, value)

        def called(*passed: Any) -> Any:
            with Context(TRAINING=int(training)):
                return module(*passed)

        return called

    def pull_back(
        self, run: Callable[[dict[str, Any]], list[Any]], at: Mapping[str, Any], slopes: Sequence[Any], passes: int = 1
    ) -> dict[str, Any]:
        """Gradients by ``Tensor.gradient``; those of several outputs and passes are added in their own dtype."""
        outputs = run(dict(at))
        return dict(zip(at, _gradients(outputs * passes, [*slopes] * passes, list(at.values())), strict=True))

    def pull_back_twice(
        self, run: Callable[[dict[str, Any]], list[Any]], at: Mapping[str, Any], slope: Any, along: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Gradients of <gradients, along>, with respect to the leaves and, under ``"y"``, to the slope."""
        first = run(dict(at))[0].gradient(*(at[name] for name in along), gradient=slope)
        leaves = {**at, "y": slope}
        return dict(zip(leaves, _gradients(first, list(along.values()), list(leaves.values())), strict=True))

    def snippet_array(self, name: str, dtype: str, device: str, layout: str, rank: int) -> str:
        """``x = tinygrad.Tensor(...)``, exact because the values are the dtype's."""
        return f"{name} = tinygrad.Tensor({name}.astype(np.{dtype}))"

    def snippet_bind(self, state: Iterable[str], training: bool, dtype: str, device: str) -> list[str]:
        """Attributes, and the mode of the process."""
        mode = f"tinygrad.helpers.TRAINING.value = {int(training)}"
        return [*(f"module.{name} = {name}" for name in state), mode]

    def snippet_value(self, expression: str) -> str:
        """The element of the whole array: that of one element by itself would be another kernel."""
        array, _, place = expression.rpartition("[")
        return f"{array}.numpy()[{place}"

    def snippet_pull_back(self, called: Sequence[str], leaf: str) -> tuple[list[str], str]:
        """``Tensor.gradient``."""
        return [*called, f"(gradient,) = y.gradient({leaf}, gradient=dy)"], "gradient"

    def shares_memory(self, one: Any, other: Any) -> bool:
        """Whether two tensors are the same memory."""
        return one.uop.base is other.uop.base


def _gradients(outputs: Sequence[Any], slopes: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
    found = [output.gradient(*leaves, gradient=slope) for output, slope in zip(outputs, slopes, strict=True)]
    return [sum(parts[1:], parts[0]) for parts in zip(*found, strict=True)]


ADAPTER = Tinygrad()


def layer_norm(x: Any, weight: Any, bias: Any, normalized_shape: Any, eps: float) -> Any:
    """``tinygrad.nn.LayerNorm``."""
    from tinygrad import Tensor
    from tinygrad.nn import LayerNorm

    norm = LayerNorm(normalized_shape, eps)
    norm.weight = Tensor.ones(*normalized_shape, dtype=x.dtype) if weight is None else weight
    norm.bias = Tensor.zeros(*normalized_shape, dtype=x.dtype) if bias is None else bias
    return norm(x)


def rms_norm(x: Any, weight: Any, eps: float) -> Any:
    """``tinygrad.nn.RMSNorm``."""
    from tinygrad.nn import RMSNorm

    norm = RMSNorm(x.shape[-1], eps)
    norm.weight = weight
    return norm(x)


def group_norm(x: Any, num_groups: int, weight: Any, bias: Any, eps: float) -> Any:
    """``tinygrad.nn.GroupNorm``."""
    from tinygrad import Tensor
    from tinygrad.nn import GroupNorm

    norm = GroupNorm(num_groups, x.shape[1], eps)
    norm.weight = Tensor.ones(x.shape[1], dtype=x.dtype) if weight is None else weight
    norm.bias = Tensor.zeros(x.shape[1], dtype=x.dtype) if bias is None else bias
    return norm(x)


def instance_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """``tinygrad.nn.InstanceNorm``."""
    from tinygrad import Tensor
    from tinygrad.nn import InstanceNorm

    norm = InstanceNorm(x.shape[1], eps)
    norm.weight = Tensor.ones(x.shape[1], dtype=x.dtype) if weight is None else weight
    norm.bias = Tensor.zeros(x.shape[1], dtype=x.dtype) if bias is None else bias
    return norm(x)


def batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float) -> Any:
    """``tinygrad.nn.BatchNorm``, which assigns to the running statistics that it is given."""
    from tinygrad import Context, Tensor
    from tinygrad.nn import BatchNorm

    norm = BatchNorm(x.shape[1], eps, momentum=momentum)
    norm.weight = Tensor.ones(x.shape[1], dtype=x.dtype) if weight is None else weight
    norm.bias = Tensor.zeros(x.shape[1], dtype=x.dtype) if bias is None else bias
    if mean is not None:
        norm.running_mean, norm.running_var = mean, var
    with Context(TRAINING=int(training)):
        return norm(x)


# all but RMSNorm compute in the dtype of their input, and a wider weight widens the output
_OWN = Contract(compute="bfloat16", output="promote")
_AFFINE = ("x", "weight", "bias", "eps")
_RUNNING = ("x", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")


def builtins() -> Iterator[Implementation]:
    """The norms of ``tinygrad.nn``."""
    wide = replace(_OWN, compute="float32", cast="before_weight")
    yield _row("LayerNorm", "layer_norm", LayerNorm(), ("x", "weight", "bias", "normalized_shape", "eps"))
    yield _row("RMSNorm", "rms_norm", RMSNorm(), ("x", "weight", "eps"), contract=wide)
    yield _row("GroupNorm", "group_norm", GroupNorm(4), ("x", "num_groups", "weight", "bias", "eps"))
    yield _row("InstanceNorm", "instance_norm", InstanceNorm(), _AFFINE)
    for mode, training in (("train", True), ("eval", False)):
        own: dict[str, Any] = {"training": training, "widths": range(2, 2**62) if training else None}
        yield _row(f"BatchNorm[{mode}]", "batch_norm", BatchNorm(), _RUNNING, mutates=_RUNNING[3:5], **own)


def _row(name: str, function: str, norm: Norm, arguments: tuple[str, ...], **options: Any) -> Implementation:
    return Implementation(
        Pasted(f"{__name__}:{function}"),
        norm,
        name=f"tinygrad.nn.{name}",
        framework="tinygrad",
        arguments=arguments,
        **{"contract": _OWN, "dtypes": FLOATS, "validates": False, "static": True, **options},
    )
