"""One call of the code under judgement: exact values in, exact values out, whatever it does in between."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from normcheck.formats import Array
from normcheck.implementations.base import ARRAYS, CallError, Framework, Implementation, Inputs, Output
from normcheck.implementations.registry import require
from normcheck.implementations.targets import describe, encodable

_PACKAGE = str(Path(__file__).resolve().parents[1])

_LIBRARIES = {"torch", "numpy", "jax", "jaxlib", "onnx", "onnxruntime", "tinygrad", "importlib", "contextlib.py"}

Around = Callable[[Callable[..., Any], list[Any]], Any]
"""Makes a call: takes the function and its arguments, returns what it returned."""


def call(implementation: Implementation, inputs: Inputs, around: Around | None = None) -> Output:
    """Call an implementation once.

    The arrays that it gets are new ones, so that it may write into them. Its warnings are dropped, gradients are not recorded.

    Parameters
    ----------
    around : makes the call in another way, such as those of `ways`

    Raises
    ------
    CallError : if it raises anything but KeyboardInterrupt, or returns something that is no array
    MissingPackageError : if its framework is not installed
    ValueError : for inputs that it cannot be given: values that the dtype does not have, an array that it does not take, a
        device that is not there
    """
    try:
        return _called(implementation, require(implementation, inputs.device), inputs, around)[0]
    except CallError as error:
        error.called = (implementation, inputs) if around is None else None
        raise


def natives(implementation: Implementation, inputs: Inputs) -> dict[str, Any]:
    """The inputs as new native arrays by name, whether the code takes them or not; raises as `call` does."""
    return native_values(implementation, require(implementation, inputs.device), inputs, every=True)


@runtime_checkable
class Switched(Protocol):
    """An adapter whose framework has float64 only where it is switched on."""

    def with_float64(self) -> AbstractContextManager[Any]:
        """A context in which arrays may be float64."""


@contextmanager
def user_code(framework: Framework, inputs: Inputs) -> Iterator[None]:
    """A context in which code under judgement runs: no gradients, no warnings, and what it raises becomes a CallError."""
    wide = "float64" in (inputs.dtype, inputs.weight_dtype)
    switched = framework.with_float64() if wide and isinstance(framework, Switched) else nullcontext()
    try:
        with framework.guard(), switched, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - user code may raise anything, SystemExit included
        raise CallError(f"{describe(error)}{place(error)}", _traceback(error)) from None


@dataclass(frozen=True, eq=False)
class Observation:
    """A call and what it left in memory.

    Attributes
    ----------
    output : what came back
    after : values of the arrays that were passed, by name, read after the call
    returned : names of what came back, y among them
    shared : names of those in whose memory y lies
    reread : reads y again, as later calls have left it
    """

    output: Output
    after: Mapping[str, Array]
    returned: tuple[str, ...]
    shared: tuple[str, ...]
    reread: Callable[[], Array]


def observe(implementation: Implementation, inputs: Inputs) -> Observation:
    """As `call`, and look at the memory of what was passed and of what came back. Raises what `call` raises."""
    framework = require(implementation, inputs.device)
    output, values, parts = _called(implementation, framework, inputs)
    y = parts["y"]
    given = {name: values[name] for name in ARRAYS if values[name] is not None}
    after = {name: framework.to_values(native)[0] for name, native in given.items()}
    shared = tuple(name for name, native in given.items() if framework.shares_memory(y, native))
    return Observation(output, after, tuple(parts), shared, lambda: framework.to_values(y)[0])


def _called(
    implementation: Implementation, framework: Framework, inputs: Inputs, around: Around | None = None
) -> tuple[Output, dict[str, Any], dict[str, Any]]:
    """What came back, the native arrays that were passed, and the native results by name."""
    values = native_values(implementation, framework, inputs)
    with user_code(framework, inputs):
        function = callee(implementation, framework, inputs, values)
        passed = arguments(implementation, inputs, values)
        returned = function(*passed) if around is None else around(function, passed)
        parts = results(implementation, returned)
        output = _output(implementation, framework, inputs, parts, _left(implementation, function, values))
        return output, values, parts


def arguments(implementation: Implementation, inputs: Inputs, values: dict[str, Any]) -> list[Any]:
    """What the callable is passed: values by name, settings of the norm, constants."""

    def argument(name: Any) -> Any:
        if not isinstance(name, str):
            return name
        return values[name] if name in values else implementation.setting(name, inputs.x.shape)

    return [argument(name) for name in implementation.passes]


def _left(implementation: Implementation, function: Any, values: dict[str, Any]) -> dict[str, Any]:
    """The values after the call: a module may have put new arrays in the place of its running statistics."""
    if implementation.module is None:
        return values
    names = [name for name in ("running_mean", "running_var") if name not in implementation.passes]
    return values | {name: getattr(function, name, values[name]) for name in names}


def native_values(implementation: Implementation, framework: Framework, inputs: Inputs, every: bool = False) -> dict[str, Any]:
    """New native arrays and flags by the name of what they are passed as; raises as `call` does for what is not taken."""
    momentum = inputs.momentum if inputs.momentum is not None else getattr(implementation.norm, "momentum", None)
    values: dict[str, Any] = {"training": inputs.training, "momentum": momentum}
    parameter_dtype = inputs.weight_dtype or inputs.dtype
    for name in ARRAYS:
        array: Array | None = getattr(inputs, name)
        if array is not None and not (every or implementation.takes(name)):
            raise ValueError(f"{name} given, but {implementation.name} does not take it")
        if name in ("x", "residual"):
            details = (inputs.dtype, inputs.device, inputs.layout)
        else:
            details = (parameter_dtype, inputs.device, inputs.parameter_layout)
        values[name] = None if array is None else framework.to_native(array, *details)
    return values


def callee(implementation: Implementation, framework: Framework, inputs: Inputs, values: dict[str, Any]) -> Callable[..., Any]:
    """What is called: the function, or what make or module give for these inputs."""
    if implementation.call is not None:
        return implementation.call
    made: Any = implementation.target(implementation.norm, shape=inputs.x.shape, dtype=inputs.dtype, device=inputs.device)
    if implementation.make is not None:
        return made  # type: ignore[no-any-return]
    dtype, bound = inputs.weight_dtype or inputs.dtype, state(implementation, values)
    _refuse_unbound(made, bound)
    return framework.bind(made, bound, inputs.training, dtype, inputs.device)


def _refuse_unbound(module: Any, bound: Iterable[str]) -> None:
    """Raise where a module has not the attributes that are set: an attribute that it does not know would change nothing."""
    lacking = [name for name in bound if not hasattr(module, name)]
    if lacking:
        own = [name for name in ("gamma", "beta", "scale", "g", "b", "moving_mean", "moving_var") if hasattr(module, name)]
        names = f", but has {' and '.join(own)}" if own else ""
        raise TypeError(
            f"{type(module).__name__} has no attribute {' and no '.join(lacking)}{names}: normcheck sets "
            f"{', '.join(bound)}; where it takes none of these, affine= says so"
        )


def state(implementation: Implementation, values: dict[str, Any]) -> dict[str, Any]:
    """What a stateful module is given as attributes: parameters and running statistics that its forward does not take."""
    names = ("weight", "bias", "running_mean", "running_var")
    return {name: values[name] for name in names if values[name] is not None and name not in implementation.passes}


def _output(
    implementation: Implementation, framework: Framework, inputs: Inputs, returned: Mapping[str, Any], values: dict[str, Any]
) -> Output:
    y, dtype = framework.to_values(returned["y"])
    parts = {name: part for name, part in returned.items() if name != "y"}
    for name in ("running_mean", "running_var"):
        native = values[name]
        if name not in parts and native is not None and _written(implementation, framework, inputs, name, native):
            parts[name] = native
    rest = {name: framework.to_values(part) for name, part in parts.items() if part is not None}
    dtypes = {"y": dtype} | {name: found for name, (_, found) in rest.items()}
    return Output(y, dtype, **{name: array for name, (array, _) in rest.items()}, dtypes=dtypes)


def _written(implementation: Implementation, framework: Framework, inputs: Inputs, name: str, native: Any) -> bool:
    """Whether a statistic that was not returned counts as written: a module's, declared, changed, or due in training.

    Training has to where the code is given a momentum and could write.
    """
    if implementation.module is not None or name in implementation.mutates:
        return True
    updates = "momentum" in implementation.passes and not getattr(framework, "immutable", False)
    if updates and inputs.training and implementation.training is not False:
        return True
    return not np.array_equal(framework.to_values(native)[0], getattr(inputs, name), equal_nan=True)


def results(implementation: Implementation, returned: Any) -> dict[str, Any]:
    """The results by name."""
    running = ("running_mean", "running_var") if implementation.norm.has_running else ()
    residual = ("new_residual",) if implementation.residual else ()
    forms = [("y", *residual), ("y", *running, *residual)] if implementation.returns is None else [implementation.returns]
    results = tuple(returned) if isinstance(returned, tuple) else (returned,)
    for form in forms:
        if len(form) == len(results):
            return dict(zip(form, results, strict=True))
    wanted = " or ".join(dict.fromkeys("y" if len(form) == 1 else f"({', '.join(form)})" for form in forms))
    got = f"a tuple of {len(results)}" if isinstance(returned, tuple) else type(returned).__name__
    raise TypeError(f"returned {got}, but should return {wanted}")


def place(error: BaseException) -> str:
    """File and line of the innermost frame that is the user's own, neither normcheck's nor a framework's; or ``""``."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith((_PACKAGE, "<"))]
    own = [frame for frame in frames if not _LIBRARIES & set(Path(frame.filename).parts)]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def _traceback(error: BaseException) -> str:
    report = traceback.TracebackException.from_exception(error)
    seen: list[traceback.TracebackException | None] = [report]
    while seen:
        part = seen.pop()
        if part is not None:
            part.stack[:] = [frame for frame in part.stack if not frame.filename.startswith(_PACKAGE)]
            seen += [part.__cause__, part.__context__]
    return encodable("".join(report.format()))
