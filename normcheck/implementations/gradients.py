"""One backward pass of the code under judgement: exact values in, exact values out, by autograd or by its own function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

from normcheck.formats import Array
from normcheck.implementations.base import Framework, Implementation, Inputs
from normcheck.implementations.calls import arguments, callee, native_values, results, user_code
from normcheck.implementations.registry import frameworks, require

DIFFERENTIATED = ("x", "weight", "bias", "residual")

Run = Callable[[dict[str, Any]], list[Any]]


@runtime_checkable
class Autograd(Protocol):
    """An adapter whose framework differentiates."""

    def pull_back(self, run: Run, at: Mapping[str, Any], slopes: Sequence[Any], passes: int = 1) -> dict[str, Any]:
        """Gradients of <slopes, run(at)> with respect to each native array of ``at``, None where none came.

        One forward pass, after which so many backward passes are run and their gradients accumulate.
        """

    def pull_back_twice(self, run: Run, at: Mapping[str, Any], slope: Any, along: Mapping[str, Any]) -> dict[str, Any]:
        """Gradients of <gradients, along>, with respect to each of ``at`` and, under ``"y"``, to the slope."""


@dataclass(frozen=True, eq=False)
class Gradients:
    """What one backward pass returned.

    Attributes
    ----------
    values : float64 arrays in the shapes that came back, by the name of what they are the gradient of: x weight bias residual,
        and y for the slope of a double backward pass; None where no gradient came
    dtypes : the dtypes that they came in, by the same names
    slopes : dy, and the residual's if there is one, as they are after the call
    """

    values: Mapping[str, Array | None]
    dtypes: Mapping[str, str]
    slopes: tuple[Array, ...] = ()


def differentiable(implementation: Implementation) -> str:
    """Why the code has no gradients, or ``""`` if it has."""
    if implementation.grad is None:
        return f"grad=None: gradients of {implementation.name} are not judged; grad='autograd' (--autograd) asks for them"
    if implementation.grad == "autograd" and not isinstance(frameworks()[implementation.framework], Autograd):
        return f"{implementation.framework} does not differentiate: give grad=backward"
    return ""


def backward(
    implementation: Implementation,
    inputs: Inputs,
    dy: Array,
    *,
    dresidual: Array | None = None,
    dtype: str | None = None,
    layout: str = "contiguous",
    passes: int = 1,
    of: Collection[str] = DIFFERENTIATED,
    again: bool = False,
    unused: bool = False,
) -> Gradients:
    """Call an implementation once and pull a gradient back through it.

    With ``grad="autograd"`` the arrays of `Inputs` that are given are differentiated; x and residual are results of an earlier
    operation there, weight and bias are leaves. With a function, ``backward(inputs, grads)`` gets dicts of native arrays: inputs
    by name (None where absent, with the norm's settings beside them), grads under ``"y"`` and ``"residual"``; it returns a dict
    of gradients by the name of their input.

    Parameters
    ----------
    dy : gradient of y, in its shape
    dresidual : gradient of the returned residual, where the code returns one
    dtype : of dy; None means that of x
    layout : of dy in memory, see `encode`
    passes : backward passes after the one forward pass, whose gradients accumulate; 1 for a function
    of : names of the inputs that need a gradient: the others are constants for autograd; a function always gives all
    again : autograd's backward pass comes after a second call of the same code, with x * x for x
    unused : autograd starts from the returned residual alone, as where nobody looks at y

    Raises
    ------
    CallError : if it raises anything but KeyboardInterrupt, returns what is no array, or y is not connected with the inputs
    ValueError : if it has no gradients, and as `call` does
    MissingPackageError : if its framework is not installed
    """
    framework = _framework(implementation, inputs)
    values = native_values(implementation, framework, inputs)
    details = (dtype or inputs.dtype, inputs.device)
    slopes = [framework.to_native(dy, *details, layout)]
    if dresidual is not None:
        slopes.append(framework.to_native(dresidual, *details))
    with user_code(framework, inputs):
        if callable(implementation.grad):
            grads = dict(zip(("y", "residual"), slopes, strict=False))
            returned = implementation.grad(_named(implementation, inputs, values), grads)
            if not isinstance(returned, Mapping):
                raise TypeError(f"backward returned {type(returned).__name__}, but should return a dict of gradients")
            found = {name: returned.get(name) for name in _present(values)}
        else:
            run = _runner(implementation, framework, inputs, values, ("y", "new_residual")[unused : len(slopes)], again)
            at = {name: value for name, value in _present(values).items() if name in of}
            found = cast(Autograd, framework).pull_back(run, at, slopes[unused:], passes)
        return _read(framework, found, slopes)


def backward_twice(
    implementation: Implementation, inputs: Inputs, dy: Array, along: Mapping[str, Array], *, dtype: str | None = None
) -> Gradients:
    """Differentiate the backward pass: gradients of the sum of <gradient, along> over the inputs that ``along`` names.

    Parameters
    ----------
    along : directions, by the name of what is differentiated first

    Raises
    ------
    what `backward` raises; ValueError too for a backward pass that is a function
    """
    framework = _framework(implementation, inputs)
    if implementation.grad != "autograd":
        raise ValueError(f"grad={implementation.grad!r}, but should be 'autograd' for a double backward pass")
    values = native_values(implementation, framework, inputs)
    own = {name: inputs.dtype if name in ("x", "residual") else inputs.weight_dtype or inputs.dtype for name in DIFFERENTIATED}
    directions = {name: framework.to_native(array, own[name], inputs.device) for name, array in along.items()}
    slope = framework.to_native(dy, dtype or inputs.dtype, inputs.device)
    with user_code(framework, inputs):
        run = _runner(implementation, framework, inputs, values, ("y",))
        return _read(framework, cast(Autograd, framework).pull_back_twice(run, _present(values), slope, directions), [])


def _framework(implementation: Implementation, inputs: Inputs) -> Framework:
    reason = differentiable(implementation)
    if reason:
        raise ValueError(reason)
    return require(implementation, inputs.device)


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in DIFFERENTIATED if values[name] is not None}


def _runner(
    implementation: Implementation,
    framework: Framework,
    inputs: Inputs,
    values: dict[str, Any],
    ends: Sequence[str],
    again: bool = False,
) -> Run:
    def run(leaves: dict[str, Any]) -> list[Any]:
        given = {**values, **leaves}
        function = callee(implementation, framework, inputs, given)
        returned = function(*arguments(implementation, inputs, given))
        if again:
            function(*arguments(implementation, inputs, {**given, "x": given["x"] * given["x"]}))
        parts = results(implementation, returned)
        return [parts[name] for name in ends]

    return run


def _named(implementation: Implementation, inputs: Inputs, values: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs of a backward function: arrays, flags and the norm's settings by name."""
    known = [name for name in ("eps", "normalized_shape", "num_groups", "fraction") if implementation.knows(name)]
    return {**values, **{name: implementation.setting(name, inputs.x.shape) for name in known}}


def _read(framework: Framework, found: Mapping[str, Any], slopes: Sequence[Any]) -> Gradients:
    read = {name: framework.to_values(native) for name, native in found.items() if native is not None}
    values = {name: read[name][0] if name in read else None for name in found}
    return Gradients(values, {name: dtype for name, (_, dtype) in read.items()}, tuple(framework.to_values(s)[0] for s in slopes))
