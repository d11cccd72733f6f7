"""What checks that make several calls share: inputs, and how an output is held against its bound or against another output."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from normcheck.checks.base import Context, SkipCaseError, describe
from normcheck.checks.cases import Case, make_case, numerics, with_statistics
from normcheck.checks.terms import terms
from normcheck.checks.witness import beyond, pass_class, shown, witness
from normcheck.formats import Array, Mask
from normcheck.implementations import LAYOUTS, VIEWS, CallError, Implementation, Inputs, frameworks
from normcheck.norms import Norm
from normcheck.regimes import biases, weights
from normcheck.results import Outcome, Result, Severity, Witness

Called = tuple[Implementation, Case]

_SCALES = (1.0, 0.25, 8.0)
_MEANS = (1.0, -2.0, 0.5, 3.0, -1.0)


def mixed(context: Context, shape: tuple[int, ...], salt: int = 0) -> Array:
    """An x of this shape whose rows have means other than 0 and scales other than 1, no two of them alike."""
    fold = context.norm.fold(shape, context.implementation.channel_axis)
    rng = np.random.default_rng([context.seed, salt, fold.rows, fold.width])
    rows = rng.standard_normal((fold.rows, fold.width)) + np.resize(_MEANS, (fold.rows, 1))
    return fold.unfold(context.x_format.round(rows * np.resize(_SCALES, (fold.rows, 1))))


def case_from(
    context: Context, x: Array, *, norm: Norm | None = None, affine: bool = True, layout: str = "contiguous", **changes: Any
) -> Case:
    """The case of an x, with random weights and biases, or ones and zeros where ``affine`` is False.

    Parameters
    ----------
    norm : another setting of the context's norm
    changes : fields of `Inputs` that are to be otherwise, such as ``weight=None``
    """
    norm = norm or context.norm
    fold = norm.fold(x.shape, context.implementation.channel_axis)
    rows = fold.fold(x)
    size, fmt, takes = norm.parameter_size(fold), context.parameter_format, context.implementation.takes
    weight = weights(size, fmt, context.seed, norm.weight_offset) if affine else np.full(size, 1.0 - norm.weight_offset)
    bias = biases(size, fmt, context.seed) if affine else np.zeros(size)
    dims = getattr(norm, "normalized_shape", None) or (-1,)
    inputs = Inputs(
        x=x,
        weight=weight.reshape(dims if fold.repeat else -1) if takes("weight") else None,
        bias=bias.reshape(dims) if takes("bias") else None,
        dtype=context.dtype,
        weight_dtype=context.implementation.weight_dtype,
        device=context.device,
        layout=layout,
        training=context.training,
    )
    given = (
        inputs
        if "running_mean" in changes
        else with_statistics(inputs, norm, fold, rows, taken=context.implementation.takes("running_mean"))
    )
    inputs = replace(given, **changes)
    return make_case(norm, numerics(context.implementation.contract), fold, rows, inputs)


def unsound_base(context: Context) -> str:
    """Why shapes and memory are not to be judged: a plain input breaks the bound already; else ``""``."""
    case = case_from(context, mixed(context, context.shape(4, 64 if context.can_take(64) else context.widths[-1])))
    if case.judge(context.run(case), pass_class(context)).worst_ratio <= 1:
        return ""
    return f"wrong on a plain input already, as accuracy says [{describe(case)}]"


def need_sound_base(context: Context) -> None:
    """Raise SkipCaseError with that reason."""
    reason = unsound_base(context)
    if reason:
        raise SkipCaseError(reason)


def some_shapes(context: Context) -> Iterator[tuple[int, ...]]:
    """Shapes of twelve rows with as many axes as the norm takes, an odd width among them."""
    for rank, width in ((None, 33), (3, 30), (4, 96)):
        if not context.can_take(width):
            continue
        try:
            yield context.shape(12, width, rank)
        except SkipCaseError:
            continue


def same_bits(one: Array, other: Array) -> Mask:
    """Which elements are equal bit for bit; zeros differ by their sign, NaNs do not differ."""
    return np.asarray((one == other) & (np.signbit(one) == np.signbit(other)) | (np.isnan(one) & np.isnan(other)))


def first(mask: Mask) -> tuple[int, int]:
    """Row and element of the first True."""
    row, element = np.argwhere(mask)[0]
    return int(row), int(element)


def finding(
    context: Context, check: str, case: Case, outcome: Outcome, text: str, witness: Witness | None = None, **where: Any
) -> Result:
    """A finding about a call, with what shows it."""
    return context.result(
        check,
        outcome,
        f"{text} [{describe(case)}]",
        severity=Severity.WARNING if outcome is Outcome.WARNED else Severity.ERROR,
        witness=witness,
        **{"shape": tuple(case.fold.shape), "layout": case.inputs.layout, **where},
    )


def held(
    context: Context, check: str, case: Case, output: Array, *, called: Called | None = None, note: str = "", **where: Any
) -> Result:
    """An output held against the bound E of ``accuracy``: failed beyond the widest class that passes.

    Parameters
    ----------
    called : what was called, and with what, if it was not the context's code with this case; rows lie as those of this case
    note : added to the message
    """
    name = pass_class(context)
    verdict = case.judge(output, name)
    where = {"shape": tuple(case.fold.shape), "layout": case.inputs.layout, **where}
    at = verdict.worst
    if at is None:
        return context.result(check, Outcome.PASSED, error=0.0, tolerance=0.0, **where)
    where |= verdict.figures
    if verdict.worst_ratio <= 1:
        return context.result(check, Outcome.PASSED, **where)
    text = f"{_place(at)}={float(output[at])!r}, but should be {float(case.exact[at])!r} within {where['tolerance']:.3g}"
    if called is None:
        found = witness(context, case, output, lambda smaller, out: beyond(smaller, out, name))
    else:
        found = shown(*called, output, at, float(case.exact[at]), where["tolerance"])
    where["terms"] = terms(case, output, at, name)
    return context.result(check, Outcome.FAILED, f"{text} [{describe(case)}]{note}", witness=found, **where)


def equal(
    context: Context,
    check: str,
    case: Case,
    output: Array,
    expected: Array,
    why: str,
    *,
    promised: bool = False,
    called: Called | None = None,
    **where: Any,
) -> Result:
    """Two outputs of one exact value held against each other bit for bit.

    Equal bits pass. Others are an error where they are promised or where either output is beyond the bound E, else a warning.

    Parameters
    ----------
    case : what ``output`` came from, rows (R, D)
    expected : the output that should be the same, rows (R, D)
    why : what was changed, after the word "as": ``"for the row alone"``
    called : as for `held`
    """
    where = {"shape": tuple(case.fold.shape), "layout": case.inputs.layout, **where}
    differs = ~same_bits(output, expected)
    if not differs.any():
        return context.result(check, Outcome.PASSED, error=0.0, tolerance=0.0, **where)
    name = pass_class(context)
    ratio = np.maximum(case.judge(output, name).ratio, case.judge(expected, name).ratio)
    with np.errstate(invalid="ignore"):
        gap = np.nan_to_num(np.abs(output - expected), nan=np.inf)
    row, element = np.unravel_index(np.where(differs, gap, -1.0).argmax(), gap.shape)
    at = (int(row), int(element))
    failed = promised or bool((differs & ((ratio > 1) | ~np.isfinite(gap))).any())
    count = int(differs.sum())
    text = f"{_place(at)}={float(output[at])!r}, but should be {float(expected[at])!r} as {why} [{describe(case)}]"
    return context.result(
        check,
        Outcome.FAILED if failed else Outcome.WARNED,
        f"{text}; {count} of {differs.size} elements differ{'' if failed else ', all within rounding'}",
        severity=Severity.ERROR if failed else Severity.WARNING,
        error=float(gap[at]),
        tolerance=0.0,
        witness=_differing(context, case, output, at, float(expected[at]), called) if failed else None,
        **where,
    )


def _differing(
    context: Context,
    case: Case,
    output: Array,
    at: tuple[int, int],
    expected: float,
    called: Called | None,
    bound: float = math.nan,
) -> Witness | None:
    """What shows that an element is not that of another output: the bound of ``accuracy``, if it is broken, else the call."""
    name = pass_class(context)
    if called is None and beyond(case, output, name) is not None:
        return witness(context, case, output, lambda smaller, out: beyond(smaller, out, name))
    return shown(*(called or (context.implementation, case)), output, at, expected, bound)


def near(
    context: Context,
    check: str,
    case: Case,
    output: Array,
    other: tuple[Case, Array],
    why: str,
    *,
    expected: Array | None = None,
    factor: Array | float = 1.0,
    called: Called | None = None,
    **where: Any,
) -> Result:
    """Two outputs of one exact value held against each other within the sum of their bounds: the triangle inequality.

    Parameters
    ----------
    case : what ``output`` came from, rows (R, D)
    other : case and output rows, (R, D), of the other call; both in the order of ``case``'s elements
    why : what was changed, after the word "as"
    expected : what ``output`` should be; the other output if not given
    factor : by which the other output is multiplied in it
    called : as for `held`
    """
    name = pass_class(context)
    expected = other[1] if expected is None else expected
    with np.errstate(all="ignore"):
        limit = case.reach(name) + case.rounding(output) + np.abs(factor) * (other[0].reach(name) + other[0].rounding(other[1]))
        limit = limit + 2.0**-50 * np.abs(expected)
        error = np.abs(output - expected)
        judged = case.errors.judged()[:, None] & np.isfinite(expected) & np.isfinite(limit)
        error = np.where(judged, np.nan_to_num(error, nan=np.inf), 0.0)
        ratio = np.where(error > 0, error / np.where(judged, limit, 1.0), 0.0)
    row, element = np.unravel_index(ratio.argmax(), ratio.shape)
    at = (int(row), int(element))
    where = {"shape": tuple(case.fold.shape), "error": float(error[at]), "tolerance": float(limit[at]), **where}
    if ratio[at] <= 1:
        return context.result(check, Outcome.PASSED, **where)
    text = f"{_place(at)}={float(output[at])!r}, but should be {float(expected[at])!r} within {float(limit[at]):.3g} as {why}"
    return context.result(
        check,
        Outcome.FAILED,
        f"{text} [{describe(case)}]",
        witness=_differing(context, case, output, at, float(expected[at]), called, float(limit[at])),
        **where,
    )


def _place(at: tuple[int, int]) -> str:
    return f"y[{at[0]}, {at[1]}]"


def layouts(context: Context, x: Array) -> Iterator[tuple[Case, Array]]:
    """The case and the output of x in each layout that its shape has and the implementation takes.

    Layouts that the framework has not, and those that the code refuses by raising, are left out.
    """
    for layout in (*LAYOUTS, *VIEWS):
        values = np.repeat(x[:1], len(x), axis=0) if layout == "expanded" else x
        case = case_from(context, values, layout=layout)
        try:
            yield case, context.run(case)
        except (ValueError, CallError):
            if layout == "contiguous":
                raise


@contextmanager
def threads(context: Context, count: int) -> Iterator[int]:
    """Run the implementation's framework with this many threads inside one operation, and put it back afterwards."""
    framework = frameworks()[context.implementation.framework]
    before = framework.threads()
    framework.pin_threads(count)
    try:
        yield framework.threads()
    finally:
        framework.pin_threads(before)


@functools.cache
def has_threads(framework: str) -> bool:
    """Whether the number of threads of a framework can be set."""
    adapter = frameworks()[framework]
    before = adapter.threads()
    adapter.pin_threads(before + 1)
    changed = adapter.threads() != before
    adapter.pin_threads(before)
    return changed
