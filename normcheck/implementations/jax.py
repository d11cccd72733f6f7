"""JAX: the adapter, and the norms that ship with jax itself. Those of other libraries stand in their own files."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from normcheck.contract import Contract
from normcheck.formats import Array
from normcheck.implementations.arrays import LayoutError, decode, encode
from normcheck.implementations.base import Implementation
from normcheck.implementations.targets import Pasted
from normcheck.norms import LayerNorm, Norm, RMSNorm

FLOATS = ("float32", "float16", "bfloat16")
DEVICES = ("cpu", "cuda", "rocm", "tpu")
_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"


class Jax:
    """The adapter. Arrays are immutable and have no strides; float64 is switched on for the calls that take it."""

    name = "jax"
    immutable = True

    def __init__(self) -> None:
        self._threads = 0

    def available(self) -> str | None:
        """None, or the line that installs jax."""
        return None if importlib.util.find_spec("jax") else "pip install 'normcheck[jax]'"

    def version(self) -> str:
        """jax's version."""
        return importlib.metadata.version("jax")

    def devices(self) -> tuple[str, ...]:
        """The CPU and the accelerators that jax finds."""
        import jax

        found = []
        for name in DEVICES:
            with contextlib.suppress(RuntimeError):
                found += [name] * bool(jax.devices(name))
        return tuple(found)

    def pin_threads(self, count: int) -> None:
        """Ask XLA for one thread inside one operation; it is only asked before its first use, and knows one or all."""
        if "jax" not in sys.modules:
            flags = os.environ.get("XLA_FLAGS", "").replace(_ONE_THREAD, "").split()
            os.environ["XLA_FLAGS"] = " ".join([*flags, *[_ONE_THREAD] * (count == 1)])
        self._threads = count

    def forget(self) -> None:
        """Let go of what was compiled for other shapes and norms, which would fill the memory in a long audit."""
        jax = sys.modules.get("jax")
        if jax is not None:
            jax.clear_caches()

    def threads(self) -> int:
        """The number that was asked for, else that of the cores."""
        return self._threads or os.cpu_count() or 1

    def guard(self) -> AbstractContextManager[Any]:
        """A context in which nothing is recorded, as always in jax."""
        return np.errstate(all="ignore")

    def with_float64(self) -> AbstractContextManager[Any]:
        """A context in which arrays may be float64."""
        import jax

        return jax.enable_x64(True)  # type: ignore[no-any-return]

    def to_native(self, values: Array, dtype: str, device: str = "cpu", layout: str = "contiguous") -> Any:
        """An array with exactly these values, in memory of its own; numpy's bits are taken as they are."""
        import jax
        import jax.numpy as jnp

        if layout != "contiguous":
            raise LayoutError(f"layout={layout!r}, but jax has no strides")
        with self.with_float64():
            array = jnp.array(encode(values, dtype), copy=True)
            return array if device == "cpu" else jax.device_put(array, _place(device))

    def to_values(self, native: Any) -> tuple[Array, str]:
        """The values of an array and the name of its dtype."""
        import jax

        if not isinstance(native, jax.Array) or isinstance(native, jax.core.Tracer):
            raise TypeError(f"returned {type(native).__name__}, but should return a jax.Array")
        return decode(np.asarray(native))

    def bind(self, module: Any, state: Mapping[str, Any], training: bool, dtype: str, device: str) -> Callable[..., Any]:
        """Set attributes."""
        for name, value in {**state, "training": training}.items():
            setattr(module, name, value)
        return module  # type: ignore[no-any-return]

    def pull_back(
        self, run: Callable[[dict[str, Any]], list[Any]], at: Mapping[str, Any], slopes: Sequence[Any], passes: int = 1
    ) -> dict[str, Any]:
        """Gradients by ``jax.vjp``; those of several passes are added in their own dtype."""
        import jax

        _, back = jax.vjp(run, dict(at))
        found = [back(list(slopes))[0] for _ in range(passes)]
        return {name: sum((one[name] for one in found[1:]), found[0][name]) for name in at}

    def pull_back_twice(
        self, run: Callable[[dict[str, Any]], list[Any]], at: Mapping[str, Any], slope: Any, along: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Gradients of <gradients, along>, with respect to the leaves and, under ``"y"``, to the slope."""
        import jax

        def gradients(point: dict[str, Any]) -> dict[str, Any]:
            _, back = jax.vjp(lambda leaves: run(leaves)[0], {name: point[name] for name in at})
            found = back(point["y"])[0]
            return {name: found[name] for name in along}

        _, back = jax.vjp(gradients, {**at, "y": slope})
        return dict(back(dict(along))[0])

    def snippet_array(self, name: str, dtype: str, device: str, layout: str, rank: int) -> str:
        """``x = jnp.asarray(x, jnp.bfloat16)``, exact because the values are the dtype's."""
        text = f"jnp.asarray({name}, jnp.{dtype})"
        placed = text if device == "cpu" else f"jax.device_put({text}, jax.devices({device!r})[0])"
        wide = ['jax.config.update("jax_enable_x64", True)'] * (dtype == "float64")
        return "\n".join([*wide, f"{name} = {placed}"])

    def snippet_bind(self, state: Iterable[str], training: bool, dtype: str, device: str) -> list[str]:
        """Attributes."""
        return [*(f"module.{name} = {name}" for name in state), f"module.training = {training}"]

    def snippet_value(self, expression: str) -> str:
        """The element itself."""
        return expression

    def snippet_pull_back(self, called: Sequence[str], leaf: str) -> tuple[list[str], str]:
        """``jax.vjp`` of the lines that make the call."""
        name = leaf.rpartition(".")[2]
        function = [f"def forward({name}):", *(f"    {line}" for line in called), "    return y"]
        return [*function, f"y, pull_back = jax.vjp(forward, {name})", "(gradient,) = pull_back(dy)"], "gradient"

    def shares_memory(self, one: Any, other: Any) -> bool:
        """No: nothing can be written into an array."""
        return False


def _place(device: str) -> Any:
    import jax

    kind, _, number = device.partition(":")
    return jax.devices(kind)[int(number or 0)]


ADAPTER = Jax()


@dataclass(frozen=True)
class Jitted:
    """A function compiled as a whole, over its arrays; what is no array is fixed."""

    function: Callable[..., Any]

    def __call__(self, *passed: Any) -> Any:
        """Compile it for these arguments and call it."""
        import jax

        def traced(*arrays: Any) -> Any:
            given = iter(arrays)
            return self.function(*(next(given) if isinstance(value, jax.Array) else value for value in passed))

        return jax.jit(traced)(*(value for value in passed if isinstance(value, jax.Array)))


def row(name: str, norm: Norm, function: str, arguments: tuple[Any, ...], **options: Any) -> Implementation:
    """A row of a table: the function, as it is and compiled.

    Parameters
    ----------
    function : target, such as ``module:callable``
    options : any of `Implementation`
    """
    call = Pasted(function)
    settings = {"dtypes": FLOATS, "devices": DEVICES, "validates": False, "static": True, **options}
    settings.setdefault("variants", {"jit": Jitted(call)})
    return Implementation(call, norm, name=name, framework="jax", arguments=arguments, **settings)


def standardize_fast(x: Any, eps: float) -> Any:
    """``jax.nn.standardize`` as it is by default."""
    import jax

    return jax.nn.standardize(x, epsilon=eps)


def standardize_stable(x: Any, eps: float) -> Any:
    """``jax.nn.standardize`` with two passes."""
    import jax

    return jax.nn.standardize(x, epsilon=eps, algorithm="stable")


def pallas_layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """Pallas' LayerNorm, interpreted."""
    from jax.experimental.pallas.ops.gpu.layer_norm import layer_norm

    return layer_norm(x, weight, bias, eps=eps, interpret=True)


def pallas_rms_norm(x: Any, weight: Any, eps: float) -> Any:
    """Pallas' RMSNorm, interpreted, with a bias of zeros."""
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.gpu.rms_norm import rms_norm

    return rms_norm(x, weight, jnp.zeros_like(weight), eps=eps, interpret=True)


# the arithmetic is that of the input's dtype, whatever it is
OWN_DTYPE = Contract(compute="bfloat16")


# kernels for three dimensions that are interpreted, and compiled for it shape by shape
_PALLAS: dict[str, Any] = {"dtypes": ("float32",), "devices": ("cpu",), "ranks": (3,), "variants": {}}


def builtins() -> Iterator[Implementation]:
    """``jax.nn.standardize`` with both of its algorithms, and the kernels of Pallas."""
    own: dict[str, Any] = {"contract": OWN_DTYPE, "affine": False, "dtypes": ("float64", *FLOATS)}
    yield row("jax.nn.standardize", LayerNorm(), f"{__name__}:standardize_fast", ("x", "eps"), **own)
    yield row("jax.nn.standardize[stable]", LayerNorm(), f"{__name__}:standardize_stable", ("x", "eps"), **own)
    kernels = "jax.experimental.pallas.ops.gpu"
    arguments = ("x", "weight", "bias", "eps")
    yield row(f"{kernels}.layer_norm", LayerNorm(), f"{__name__}:pallas_layer_norm", arguments, **_PALLAS)
    yield row(f"{kernels}.rms_norm", RMSNorm(eps=1e-5), f"{__name__}:pallas_rms_norm", ("x", "weight", "eps"), **_PALLAS)
