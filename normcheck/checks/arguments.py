"""Arguments: what no norm can take is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from normcheck.checks.base import Context, describe, register
from normcheck.checks.cases import Case
from normcheck.checks.spoiled import spoiled
from normcheck.checks.verdicts import some_rows
from normcheck.implementations import CallError, Implementation, Inputs, Named, call
from normcheck.implementations.snippets import Script
from normcheck.results import Outcome, Result, Severity, Witness

_EPS = (-1.0, -1e-6, math.nan)


def _needs_validation(context: Context) -> str:
    implementation = context.implementation
    if implementation.validates is None and implementation.module is None and not isinstance(implementation.call, Named):
        return "a bare function is not asked: give validates=True"
    if implementation.validates is False:
        return "validates=False: the code looks at no argument"
    dtypes = context.implementation.dtypes
    first = "float32" if "float32" in dtypes else dtypes[0]
    return "" if context.dtype == first else f"judged in {first}"


def _needs_eps(context: Context) -> str:
    if "eps" not in context.implementation.variable:
        return "eps is fixed: give make= so that it can be varied"
    return _needs_validation(context)


@register("invalid-epsilon", applies=_needs_eps)
def invalid_epsilon(context: Context) -> Iterator[Result]:
    """A negative eps and a NaN are refused.

    Statement
    ---------
    eps = -1, -1e-6 and NaN raise, in the constructor of a module or in the call.

    Why it matters
    --------------
    With a negative eps rows of small variance become NaN, and all others come out plausible and wrong.

    Holds for
    ---------
    Code whose eps can be varied and that validates its arguments. eps = 0 is allowed.

    Tolerance
    ---------
    None. Silent acceptance is a warning: the formula has a value for most rows.

    Known exceptions
    ----------------
    Inner kernels leave it to their callers: ``validates=False``.

    References
    ----------
    Kind K30 of the catalogue of faults: ml-explore/mlx#4312, pytorch/pytorch#166405.
    """
    inputs = _case(context).inputs
    where: dict[str, Any] = {"shape": inputs.x.shape, "regime": "standard"}
    taken = {eps: _after(context, eps, inputs) for eps in _EPS}
    taken = {eps: after for eps, after in taken.items() if after}
    if not taken:
        yield context.result("invalid-epsilon", Outcome.PASSED, **where)
        return
    found = ", ".join(f"eps={eps!r} ({after})" for eps, after in taken.items())
    text = f"{found} accepted, but should be refused [x: {inputs.dtype}{list(inputs.x.shape)}]"
    yield context.result("invalid-epsilon", Outcome.WARNED, text, severity=Severity.WARNING, **where)


@register("invalid-sizes", applies=_needs_validation)
def invalid_sizes(context: Context) -> Iterator[Result]:
    """Sizes that do not fit the input are refused.

    Statement
    ---------
    A weight with one element too many or too few, groups that do not divide the channels, and a normalized_shape that is not
    that of the input raise.

    Why it matters
    --------------
    What a kernel does with them instead is read beyond the end of an array, or leave elements out.

    Holds for
    ---------
    Code that validates its arguments; whichever of the three it takes.

    Tolerance
    ---------
    None: acceptance is an error, since there is nothing that could rightly be computed.

    Known exceptions
    ----------------
    A weight of one element may be meant as one for all, and is not tried.

    References
    ----------
    Kind K30 of the catalogue of faults: pytorch/pytorch#166756, #173337.
    """
    yield from _sizes(context)


@register("invalid-dtype", applies=_needs_validation)
def invalid_dtype(context: Context) -> Iterator[Result]:
    """Integers and booleans are refused, or normalized as the numbers they are.

    Statement
    ---------
    An x of int32 or bool raises; code that takes it returns floating-point numbers.

    Why it matters
    --------------
    A result that is cast back to the input's integers is 0, 1 and -1.

    Holds for
    ---------
    Code that validates its arguments.

    Tolerance
    ---------
    None. An integer result is an error, any other silent acceptance a warning.

    Known exceptions
    ----------------
    None known.

    References
    ----------
    Kind K30 of the catalogue of faults.
    """
    case = _case(context)
    where: dict[str, Any] = {"shape": tuple(case.fold.shape), "regime": "standard"}
    for name in ("int32", "bool"):
        try:
            output = call(context.implementation, case.inputs, _converted(context, name))
        except CallError:
            yield context.result("invalid-dtype", Outcome.PASSED, **where)
            continue
        lost = "float" not in output.dtype and "complex" not in output.dtype
        text = f"x of {name} is accepted, but should be refused; y is {output.dtype} [{describe(case)}]"
        outcome, severity = (Outcome.FAILED, Severity.ERROR) if lost else (Outcome.WARNED, Severity.WARNING)
        torch = context.implementation.framework == "torch"
        method = {"int32": "int"}.get(name, name) + "()" if torch else f"astype({name!r})"
        where["witness"] = _accepted(context.implementation, case.inputs, f"x of {name}", x=f"(x * 8).{method}")
        yield context.result("invalid-dtype", outcome, text, severity=severity, **where)


def _case(context: Context) -> Case:
    """Rows of +-1/4, whose variance is below 1, with weights."""
    shape = some_rows(context)
    fold = context.norm.fold(shape, context.implementation.channel_axis)
    rows = 0.25 * np.resize([1.0, -1.0, -1.0, 1.0, 1.0], (fold.rows, fold.width))
    return context.case_of(rows, shape)


def _after(context: Context, eps: float, inputs: Inputs) -> str:
    """What comes of an eps; ``""`` where it is refused."""
    try:
        output = call(spoiled(context.implementation, eps=eps), inputs)
    except CallError:
        return ""
    bad = int(np.count_nonzero(~np.isfinite(output.y)))
    return f"{bad} of {output.y.size} outputs not finite"


def _refused(
    context: Context,
    check: str,
    implementation: Implementation,
    inputs: Inputs,
    what: str,
) -> Result:
    where: dict[str, Any] = {"shape": inputs.x.shape, "regime": "standard"}
    try:
        output = call(implementation, inputs)
    except CallError:
        return context.result(check, Outcome.PASSED, **where)
    shape = list(inputs.x.shape)
    text = f"{what} is accepted, but should be refused; y has shape {output.y.shape} [x: {inputs.dtype}{shape}]"
    return context.result(check, Outcome.FAILED, text, witness=_accepted(implementation, inputs, what), **where)


def _accepted(implementation: Implementation, inputs: Inputs, what: str, **replaced: str) -> Witness:
    """The call, behind which nothing should come."""
    script = Script(implementation).arrays(inputs).call(inputs, **replaced).add("print(y)")
    return Witness(script.add(f'raise AssertionError("{what} is accepted")').text, what)


def _sizes(context: Context) -> Iterator[Result]:
    case, implementation = _case(context), context.implementation
    if case.inputs.weight is not None and case.inputs.weight.size > 2:
        size = case.inputs.weight.size
        for wrong in (size + 1, size - 1):
            given = replace(case.inputs, weight=np.resize(case.inputs.weight, wrong), bias=None)
            what = f"a weight of {wrong} elements for {size}"
            yield _refused(context, "invalid-sizes", implementation, given, what)
    if "num_groups" in implementation.variable:
        channels = case.fold.shape[implementation.channel_axis]
        wrong = next(n for n in range(2, channels + 2) if channels % n)
        given = replace(case.inputs, weight=None, bias=None)
        what = f"num_groups={wrong} for {channels} channels"
        yield _refused(context, "invalid-sizes", spoiled(implementation, num_groups=wrong), given, what)
    if "normalized_shape" in implementation.variable:
        width = case.fold.shape[-1]
        for wrong in (width + 1, width - 1, 2 * width):
            given = replace(case.inputs, weight=None, bias=None)
            what = f"normalized_shape={(wrong,)} for rows of {width} elements"
            other = spoiled(implementation, normalized_shape=(wrong,))
            yield _refused(context, "invalid-sizes", other, given, what)


def _converted(context: Context, dtype: str) -> Callable[[Callable[..., Any], list[Any]], Any]:
    """Makes the call with x converted to integers or booleans."""
    place = context.implementation.passes.index("x")

    def around(function: Callable[..., Any], passed: list[Any]) -> Any:
        x = passed[place] * 8
        other = x.astype(dtype) if hasattr(x, "astype") else getattr(x, {"int32": "int"}.get(dtype, dtype))()
        return function(*passed[:place], other, *passed[place + 1 :])

    return around
