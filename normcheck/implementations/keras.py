"""Keras: the adapter for whichever backend the process has, and its layers, called eagerly. Channels are last.

Where parameters have another dtype than x, the layers are those of mixed precision.

The backend is chosen by the environment variable KERAS_BACKEND before Keras is imported: tensorflow, jax, torch or numpy.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from normcheck.contract import Contract
from normcheck.formats import Array
from normcheck.implementations.arrays import LayoutError, decode, encode
from normcheck.implementations.base import Implementation
from normcheck.implementations.jax import ADAPTER as JAX
from normcheck.implementations.jax import OWN_DTYPE
from normcheck.implementations.targets import Pasted
from normcheck.implementations.torch import ADAPTER as TORCH
from normcheck.norms import BatchNorm, GroupNorm, L2Norm, LayerNorm, Norm, RMSNorm

FLOATS = ("float64", "float32", "float16", "bfloat16")
_IMPORTED = {"tensorflow": ("tensorflow",), "jax": ("jax",), "torch": ("torch",), "numpy": ("jax",)}


def backend() -> str:
    """The backend of this process."""
    loaded: Any = sys.modules.get("keras")
    return str(loaded.backend.backend()) if loaded is not None else os.environ.get("KERAS_BACKEND") or "tensorflow"


def _keras() -> Any:
    """Keras, without the log of its backend."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("KERAS_BACKEND", backend())
    import keras

    return keras


class Keras:
    """The adapter. Arrays are the backend's."""

    name = "keras"
    immutable = True

    def available(self) -> str | None:
        """None, or the line that installs Keras and its backend."""
        needed = ("keras", *_IMPORTED.get(backend(), (backend(),)))
        if all(importlib.util.find_spec(name) for name in needed):
            return None
        return "pip install 'normcheck[keras]'" if backend() == "tensorflow" else f"pip install {' '.join(needed)}"

    def version(self) -> str:
        """Keras' version."""
        return importlib.metadata.version("keras")

    def devices(self) -> tuple[str, ...]:
        """The CPU, and "cuda" where the backend has a GPU."""
        if backend() in ("jax", "torch"):
            found = (JAX if backend() == "jax" else TORCH).devices()
        else:
            found = _keras().distribution.list_devices("gpu") if backend() == "tensorflow" else ()
        return ("cpu", *["cuda"] * any("gpu" in name or name == "cuda" for name in found))

    def pin_threads(self, count: int) -> None:
        """Set the number of threads inside one operation; TensorFlow and XLA are only asked before their first use."""
        os.environ["TF_NUM_INTRAOP_THREADS"] = str(count)
        if backend() == "torch":
            TORCH.pin_threads(count)
        else:
            JAX.pin_threads(count)

    def threads(self) -> int:
        """The number that was asked for, else that of the cores."""
        return TORCH.threads() if backend() == "torch" else JAX.threads()

    def guard(self) -> AbstractContextManager[Any]:
        """A context in which no gradients are recorded."""
        return TORCH.guard() if backend() == "torch" else np.errstate(all="ignore")

    def with_float64(self) -> AbstractContextManager[Any]:
        """A context in which arrays may be float64."""
        return JAX.with_float64() if backend() == "jax" else nullcontext()

    def to_native(self, values: Array, dtype: str, device: str = "cpu", layout: str = "contiguous") -> Any:
        """A tensor of the backend with exactly these values."""
        if layout != "contiguous":
            raise LayoutError(f"layout={layout!r}, but should be 'contiguous' for Keras")
        keras = _keras()
        if backend() in ("jax", "torch"):
            return (JAX if backend() == "jax" else TORCH).to_native(values, dtype, device)
        with keras.device("cpu" if device == "cpu" else device.replace("cuda", "gpu")):
            return keras.ops.convert_to_tensor(encode(values, dtype).copy(), dtype)

    def to_values(self, native: Any) -> tuple[Array, str]:
        """The values of a tensor and the name of its dtype."""
        keras = _keras()
        if not keras.ops.is_tensor(native):
            raise TypeError(f"returned {type(native).__name__}, but should return a tensor of the backend {backend()}")
        return decode(keras.ops.convert_to_numpy(native))

    def bind(self, module: Any, state: Mapping[str, Any], training: bool, dtype: str, device: str) -> Callable[..., Any]:
        """Set attributes."""
        for name, value in {**state, "training": training}.items():
            setattr(module, name, value)
        return module  # type: ignore[no-any-return]

    def pull_back(
        self, run: Callable[[dict[str, Any]], list[Any]], at: Mapping[str, Any], slopes: Sequence[Any], passes: int = 1
    ) -> dict[str, Any]:
        """Gradients by the backend."""
        if backend() in ("jax", "torch"):
            return (JAX if backend() == "jax" else TORCH).pull_back(run, at, slopes, passes)
        import tensorflow as tf

        with tf.GradientTape(persistent=True) as tape:
            tape.watch(list(at.values()))
            outputs = run(dict(at))
        found = [tape.gradient(outputs, list(at.values()), list(slopes)) for _ in range(passes)]
        return dict(zip(at, (_added(parts) for parts in zip(*found, strict=True)), strict=True))

    def pull_back_twice(
        self, run: Callable[[dict[str, Any]], list[Any]], at: Mapping[str, Any], slope: Any, along: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Gradients of <gradients, along>, with respect to the leaves and, under ``"y"``, to the slope."""
        if backend() in ("jax", "torch"):
            return (JAX if backend() == "jax" else TORCH).pull_back_twice(run, at, slope, along)
        import tensorflow as tf

        leaves = {**at, "y": slope}
        with tf.GradientTape() as outer:
            outer.watch(list(leaves.values()))
            with tf.GradientTape() as inner:
                inner.watch(list(at.values()))
                y = run(dict(at))[0]
            first = inner.gradient(y, [at[name] for name in along], slope)
        return dict(zip(leaves, outer.gradient(first, list(leaves.values()), list(along.values())), strict=True))

    def snippet_array(self, name: str, dtype: str, device: str, layout: str, rank: int) -> str:
        """``x = keras.ops.convert_to_tensor(...)``, exact because the values are the dtype's."""
        typed = f"{name}.astype({'np' if dtype in FLOATS[:3] else 'ml_dtypes'}.{dtype})"
        return f'{name} = keras.ops.convert_to_tensor({typed}, "{dtype}")'

    def snippet_bind(self, state: Iterable[str], training: bool, dtype: str, device: str) -> list[str]:
        """Attributes."""
        return [*(f"module.{name} = {name}" for name in state), f"module.training = {training}"]

    def snippet_value(self, expression: str) -> str:
        """The element itself."""
        return expression

    def snippet_pull_back(self, called: Sequence[str], leaf: str) -> tuple[list[str], str]:
        """The backend's own way."""
        if backend() == "jax":
            return JAX.snippet_pull_back(called, leaf)
        if backend() == "torch":
            return [f"{leaf}.requires_grad_()", *called, "y.backward(dy)"], f"{leaf}.grad"
        body = [f"    {line}" for line in called]
        lines = ["import tensorflow as tf", "with tf.GradientTape() as tape:", f"    tape.watch({leaf})", *body]
        return [*lines, f"gradient = tape.gradient(y, {leaf}, dy)"], "gradient"

    def shares_memory(self, one: Any, other: Any) -> bool:
        """Whether writing into one tensor can change the other; those of TensorFlow and JAX are immutable."""
        if backend() == "torch":
            return TORCH.shares_memory(one, other)
        return backend() == "numpy" and bool(np.may_share_memory(one, other))


def _added(parts: Sequence[Any]) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total = None if part is None else total + part
    return total


ADAPTER = Keras()


def layer_normalization(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """``keras.layers.LayerNormalization``."""
    import keras

    dtype, own = (keras.backend.standardize_dtype(array.dtype) for array in (x, weight))
    policy = f"mixed_{dtype}" if own != dtype != "float32" else dtype
    layer = keras.layers.LayerNormalization(epsilon=eps, dtype=policy)
    layer.build(tuple(x.shape))
    return layer.stateless_call([weight, bias], [], x)[0]


def rms_scaling(x: Any, weight: Any, eps: float) -> Any:
    """``keras.layers.LayerNormalization`` with ``rms_scaling=True``."""
    import keras

    dtype, own = (keras.backend.standardize_dtype(array.dtype) for array in (x, weight))
    policy = f"mixed_{dtype}" if own != dtype != "float32" else dtype
    layer = keras.layers.LayerNormalization(epsilon=eps, rms_scaling=True, dtype=policy)
    layer.build(tuple(x.shape))
    return layer.stateless_call([weight], [], x)[0]


def rms_normalization(x: Any, weight: Any, eps: float) -> Any:
    """``keras.layers.RMSNormalization``."""
    import keras

    dtype, own = (keras.backend.standardize_dtype(array.dtype) for array in (x, weight))
    policy = f"mixed_{dtype}" if own != dtype != "float32" else dtype
    layer = keras.layers.RMSNormalization(epsilon=eps, dtype=policy)
    layer.build(tuple(x.shape))
    return layer.stateless_call([weight], [], x)[0]


def group_normalization(x: Any, num_groups: int, weight: Any, bias: Any, eps: float) -> Any:
    """``keras.layers.GroupNormalization``."""
    import keras

    dtype, own = (keras.backend.standardize_dtype(array.dtype) for array in (x, weight))
    policy = f"mixed_{dtype}" if own != dtype != "float32" else dtype
    layer = keras.layers.GroupNormalization(num_groups, epsilon=eps, dtype=policy)
    layer.build(tuple(x.shape))
    return layer.stateless_call([weight, bias], [], x)[0]


def batch_normalization(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float) -> Any:
    """``keras.layers.BatchNormalization``."""
    import keras

    dtype, own = (keras.backend.standardize_dtype(array.dtype) for array in (x, weight))
    policy = f"mixed_{dtype}" if own != dtype != "float32" else dtype
    layer = keras.layers.BatchNormalization(momentum=momentum, epsilon=eps, dtype=policy)
    layer.build(tuple(x.shape))
    y, (mean, var) = layer.stateless_call([weight, bias], [mean, var], x, training=training)
    return y, mean, var


def unit_normalization(x: Any) -> Any:
    """``keras.layers.UnitNormalization``."""
    import keras

    return keras.layers.UnitNormalization(dtype=keras.backend.standardize_dtype(x.dtype))(x)


_RUNNING = ("x", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
_MERGED = Contract(momentum_convention="keras", running_ddof=0)


def builtins() -> Iterator[Implementation]:
    """The layers on the backend of this process."""
    affine = ("x", "weight", "bias", "eps")
    yield _row("LayerNormalization", "layer_normalization", LayerNorm(eps=1e-3), affine)
    yield _row("LayerNormalization", "rms_scaling", RMSNorm(eps=1e-3), ("x", "weight", "eps"), ["rms_scaling"])
    yield _row("RMSNormalization", "rms_normalization", RMSNorm(), ("x", "weight", "eps"))
    grouped = ("x", "num_groups", "weight", "bias", "eps")
    yield _row("GroupNormalization", "group_normalization", GroupNorm(4, eps=1e-3), grouped)
    yield _row("UnitNormalization", "unit_normalization", L2Norm(), ("x",), affine=False, contract=OWN_DTYPE)
    for mode, training in (("train", True), ("eval", False)):
        norm, options = BatchNorm(eps=1e-3, momentum=0.99), {"contract": _MERGED, "training": training}
        yield _row("BatchNormalization", "batch_normalization", norm, _RUNNING, [mode], **options)
        mixed = {"dtypes": FLOATS[2:], "weight_dtype": "float32", **options}
        yield _row("BatchNormalization", "batch_normalization", norm, _RUNNING, [mode, "float32 parameters"], **mixed)


def _row(
    name: str, function: str, norm: Norm, arguments: tuple[Any, ...], marks: Sequence[str] = (), **options: Any
) -> Implementation:
    call, label = Pasted(f"{__name__}:{function}"), ", ".join([backend(), *marks])
    given = {"dtypes": FLOATS, "devices": ("cpu", "cuda"), "channel_axis": -1, "validates": False, **options}
    if backend() == "numpy":
        given["grad"] = None
    static = backend() == "jax"
    named = f"keras.layers.{name}[{label}]"
    return Implementation(call, norm, name=named, framework="keras", arguments=arguments, static=static, **given)
