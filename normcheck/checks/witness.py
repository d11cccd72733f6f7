"""Witnesses: the smallest part of a failing row that still fails, written down so that it can be pasted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from normcheck.bounds import ClassName
from normcheck.checks.cases import Case, make_case
from normcheck.formats import Array
from normcheck.implementations import CallError, snippet
from normcheck.results import Witness

if TYPE_CHECKING:
    from normcheck.checks.base import Context

Position = tuple[int, int]
Failing = Callable[[Case, Array], Position | None]
"""Judges a case and an output: row and element of the worst failure, or None."""

_WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 1024, 4096)


def witness(context: Context, case: Case, output: Array, failing: Failing) -> Witness | None:
    """Shrink the worst failing row of a case to the smallest window around its worst element that still fails.

    First the other rows are left out, then elements. The case itself is the witness where nothing smaller fails.

    Parameters
    ----------
    case, output : the failing case and what came, rows (R, D)
    failing : the judgement; it must hold of the case itself
    """
    at = failing(case, output)
    if at is None:
        return None
    smallest, got, where = case, output, at
    for width in (*(w for w in _WIDTHS if w < case.fold.width), case.fold.width):
        for start in _starts(at[1], width, case.fold.width):
            smaller = _part(context, case, at[0], start, width)
            found = None if smaller is None else _try(context, smaller, failing)
            if smaller is not None and found is not None:
                return _written(context, smaller, *found)
    return _written(context, smallest, got, where)


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


def _written(context: Context, case: Case, output: Array, at: Position) -> Witness:
    position = np.zeros(case.rows.shape, bool)
    position[at] = True
    index = tuple(int(i) for i in np.argwhere(case.fold.unfold(position))[0])
    expected = float(case.exact[at])
    return Witness(
        snippet=snippet(context.implementation, case.inputs, index=index, expected=expected),
        inputs=_literal(case.rows[at[0]]),
        index=at[1],
        got=float(output[at]).hex(),
        expected=expected.hex(),
    )


def _literal(row: Array) -> str:
    """The row as hex literals; of a long one only how it begins."""
    shown = [float(value).hex() for value in row[:16]]
    return f"[{', '.join(shown)}{', ...' if len(row) > 16 else ''}] ({len(row)} elements)"
