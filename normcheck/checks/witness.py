"""Witnesses: the smallest part of a failing row that still fails, written down so that it can be pasted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from normcheck.bounds import ClassName
from normcheck.checks.cases import Case, make_case
from normcheck.formats import Array
from normcheck.implementations import CallError, Implementation, Inputs, snippet
from normcheck.implementations.base import ARRAYS
from normcheck.implementations.snippets import PLAIN
from normcheck.results import Witness

if TYPE_CHECKING:
    from normcheck.checks.base import Context

Position = tuple[int, int]
Failing = Callable[[Case, Array], Position | None]
"""Judges a case and an output: row and element of the worst failure, or None."""

_WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 1024, 4096)
_SHORT = 64
_WRITABLE = 6000


def witness(context: Context, case: Case, output: Array, failing: Failing) -> Witness | None:
    """Shrink the worst failing row of a case to the smallest window around its worst element that still fails.

    First the other rows are left out, then elements. Where only a long row fails, a seeded row of its mean and spread is tried,
    so that the snippet stays short. None where nothing that can be written down in some kilobytes fails.

    Parameters
    ----------
    case, output : the failing case and what came, rows (R, D)
    failing : the judgement; it must hold of the case itself
    """
    at = failing(case, output)
    if at is None:
        return None
    parts = _short if case.fold.width > _SHORT else _windows
    for smaller, expression in parts(context, case, at) if context.shrinks else ():
        found = _try(context, smaller, failing)
        if found is not None:
            return _written(context, smaller, *found, expression)
    if writable(case.inputs):
        return _written(context, case, output, at)
    lonely = _among_zeros(case, at[0])
    found = _try(context, lonely, failing) if writable(lonely.inputs) else None
    return None if found is None else _written(context, lonely, *found)


def _among_zeros(case: Case, row: int) -> Case:
    """The case with zeros in all other rows, which are written down in one word."""
    rows = np.zeros_like(case.rows)
    rows[row] = case.rows[row]
    return make_case(case.norm, case.contract, case.fold, rows, case.inputs)


def writable(inputs: Inputs) -> bool:
    """Whether the arrays of a call can be written down in some kilobytes."""
    arrays = (getattr(inputs, name) for name in ARRAYS)
    return bool(sum(np.count_nonzero(array) for array in arrays if array is not None) <= _WRITABLE)


def _windows(context: Context, case: Case, at: Position, least: int = 1, most: int = _WRITABLE) -> Iterator[tuple[Case, str]]:
    """Parts of the failing row, shortest first."""
    for width in (*(w for w in _WIDTHS if w < case.fold.width), case.fold.width):
        for start in _starts(at[1], width, case.fold.width) if least <= width <= most else ():
            smaller = _part(context, case, at[0], start, width)
            if smaller is not None:
                yield smaller, ""


def _short(context: Context, case: Case, at: Position) -> Iterator[tuple[Case, str]]:
    """Short parts of the failing row, then seeded rows of any length."""
    yield from _windows(context, case, at, most=_SHORT)
    for width in (*(w for w in _WIDTHS if _SHORT < w < case.fold.width), case.fold.width):
        seeded = _seeded(context, case, at[0], width)
        if seeded is not None:
            yield seeded
    yield from _windows(context, case, at, least=_SHORT + 1)


def _seeded(context: Context, case: Case, row: int, width: int) -> tuple[Case, str] | None:
    """A row of seeded normal numbers with about the mean and spread of the failing one, few bits each, with weights of 1."""
    part = _part(context, case, row, 0, width)
    if part is None:
        return None
    values = case.rows[row]
    with np.errstate(all="ignore"):
        spread = values.std()
    scale = 2.0 ** np.round(np.log2(spread)) / 16 if 0 < spread < np.inf else 1.0
    mean = scale * np.round(values.mean() / scale)
    shape = part.fold.shape
    made = np.round(np.random.default_rng(0).standard_normal(shape) * 16) * scale + mean
    if not part.x_format.representable(made).all():
        return None
    expression = f"np.round(np.random.default_rng(0).standard_normal({shape}) * 16) * {float(scale)!r} + {float(mean)!r}"
    weight, bias = part.inputs.weight, part.inputs.bias
    inputs = replace(
        part.inputs,
        weight=None if weight is None else np.full_like(weight, 1.0 - case.norm.weight_offset),
        bias=None if bias is None else np.zeros_like(bias),
    )
    return make_case(case.norm, case.contract, part.fold, part.fold.fold(made), inputs), expression


def pass_class(context: Context) -> ClassName:
    """The widest error class that still passes: a declared height leaves no room for a sequential sum."""
    return "tree" if isinstance(context.implementation.contract.accumulation, int) else "sequential"


def beyond(case: Case, output: Array, name: ClassName) -> Position | None:
    """The worst element if it breaks the bound of a class, or None."""
    verdict = case.judge(output, name)
    return verdict.worst if verdict.worst_ratio > 1 else None


def _starts(element: int, width: int, total: int) -> list[int]:
    """Windows of this width around an element, at the end of the row, and at its start."""
    middle = min(max(element - width // 2, 0), total - width)
    near = [middle, max(0, element - width + 1), min(element, total - width)]
    return list(dict.fromkeys(near))


def _part(context: Context, case: Case, row: int, start: int, width: int) -> Case | None:
    """The case of one row's window, with the parameters that belong to it; None where no input has that shape."""
    norm, fold, inputs = case.norm, case.fold, case.inputs
    count = getattr(norm, "num_groups", 1)
    try:
        shape = norm.shape_of(count, width, len(fold.shape), context.implementation.channel_axis)
        new = norm.fold(shape, context.implementation.channel_axis)
    except ValueError:
        return None
    if context.implementation.refuses(shape):
        return None
    rows = np.tile(case.rows[row, start : start + width], (count, 1))
    size = norm.parameter_size(new)

    def part(parameter: Array | None) -> Array | None:
        if parameter is None:
            return None
        own = fold.affine(parameter)[row % fold.period]
        taken = own if own.size == 1 else own[start : start + width]
        return np.resize(taken, size) if own.size == 1 or not norm.per_channel else np.full(size, taken[0])

    def statistic(values: Array | None) -> Array | None:
        return None if values is None else np.full(new.period, values[row % fold.period])

    changed = replace(
        inputs,
        weight=part(inputs.weight),
        bias=part(inputs.bias),
        running_mean=statistic(inputs.running_mean),
        running_var=statistic(inputs.running_var),
    )
    return make_case(norm, case.contract, new, rows, changed)


def _try(context: Context, case: Case, failing: Failing) -> tuple[Array, Position] | None:
    try:
        output = context.run(case)
    except (CallError, ValueError):
        return None
    at = failing(case, output)
    return None if at is None else (output, at)


def _written(context: Context, case: Case, output: Array, at: Position, expression: str = "") -> Witness:
    expected = float(case.exact[at])
    bound = float(case.reach(pass_class(context))[at] + case.rounding(output)[at])
    return Witness(
        snippet=snippet(
            context.implementation,
            case.inputs,
            index=place_of(case, at),
            expected=expected,
            tolerance=missed(float(output[at]), expected, bound),
            expressions={"x": expression} if expression else None,
            claim="" if math.isfinite(expected) else f"got.hex() == {expected.hex()!r}",
        ),
        inputs=expression or _literal(case.rows[at[0]]),
        index=at[1],
        got=float(output[at]).hex(),
        expected=expected.hex(),
    )


def pointed(
    implementation: Implementation,
    inputs: Inputs,
    of: str,
    index: tuple[int, ...],
    got: float,
    expected: float,
    bound: float = math.nan,
    *,
    claim: str = "",
    way: Sequence[str] = PLAIN,
) -> Witness | None:
    """A call as it was made, and one element of what it left; None where it cannot be written down in some kilobytes.

    Parameters
    ----------
    of, index : y, another result, a running statistic, or an input as it is after the call, and a place in that array
    got, expected : what is there, and what should be
    bound : how far from it it may be; NaN where it should be the same, bit for bit
    claim, way : see `normcheck.implementations.snippets.Script`
    """
    if not writable(inputs):
        return None
    tolerance, claim = missed(got, expected, bound), claim or claimed(got, expected, bound)
    text = snippet(implementation, inputs, index=index, expected=expected, tolerance=tolerance, of=of, claim=claim, way=way)
    return Witness(text, of, None, float(got).hex(), float(expected).hex())


def claimed(got: float, expected: float, bound: float = math.nan) -> str:
    """What a snippet asserts of ``got`` where no distance can be: that it is the same, bit for bit; else ``""``."""
    exact = math.isnan(bound) or not math.isfinite(expected) or not math.isfinite(got)
    return f"got.hex() == {float(expected).hex()!r}" if exact else ""


def shown(
    implementation: Implementation, case: Case, output: Array, at: Position, expected: float, bound: float = math.nan, **how: Any
) -> Witness | None:
    """An element of an output, by row and place in the row; the rest as for `pointed`."""
    return pointed(implementation, case.inputs, "y", place_of(case, at), float(output[at]), expected, bound, **how)


def place_of(case: Case, at: Position) -> tuple[int, ...]:
    """Where an element of the rows is in y."""
    position = np.zeros(case.rows.shape, bool)
    position[at] = True
    return tuple(int(i) for i in np.argwhere(case.fold.unfold(position))[0])


def missed(got: float, expected: float, bound: float) -> float:
    """A tolerance that a failing element misses: the bound, or the largest that it misses where another property failed."""
    error = abs(got - expected)
    if math.isfinite(bound) and not error <= bound:
        return bound
    return math.nextafter(error, 0.0) if error > 0 else 0.0


def _literal(row: Array) -> str:
    """The row as hex literals; of a long one only how it begins."""
    shown = [float(value).hex() for value in row[:16]]
    return f"[{', '.join(shown)}{', ...' if len(row) > 16 else ''}] ({len(row)} elements)"
