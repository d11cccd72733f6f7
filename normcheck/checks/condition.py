"""Condition: how the error grows as the mean of a row grows beside its spread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from normcheck.bounds import ClassName
from normcheck.checks.base import Context, guarded, register
from normcheck.checks.cases import Case
from normcheck.checks.verdicts import held
from normcheck.checks.witness import beyond, pass_class, witness
from normcheck.formats import Array
from normcheck.results import Outcome, Result

ID = "condition-sweep"
_WIDTHS = {"quick": (64,), "standard": (33, 1024), "deep": (33, 1024, 16384)}
_STEPS = 24


def _needs_spread(context: Context) -> str:
    return "" if context.own_statistics else "statistics are given: the rows' own mean and spread do not enter"


@register(ID, applies=_needs_spread)
def condition_sweep(context: Context) -> Iterator[Result]:
    """The error stays below its bound at every ratio of mean to spread.

    Statement
    ---------
    Rows m + z with one and the same z of unit variance and m from 1 to 2**(p-3), where an ulp of the input format is a quarter of
    the spread: at every m the largest error of the row is within the bound of that row.

    Why it matters
    --------------
    mean/std is the condition number of the variance. A two-pass variance loses digits in proportion to it, a one-pass variance
    in proportion to its square, and all of them at mean/std = 1/sqrt(u): the slope of the curve says which of them the code has.

    Holds for
    ---------
    Every norm with its own statistics. Where no mean is subtracted, the bound does not grow.

    Tolerance
    ---------
    E of ``accuracy`` for that very row, which grows in proportion to |mean|/std where a mean is subtracted, as derived in
    ``normcheck.bounds``. The curve that is kept is the largest error of each row, and beside it E and half an ulp of the output
    at the same element.

    Known exceptions
    ----------------
    Rows whose bound exceeds the output itself say nothing; they are drawn and cannot fail.

    References
    ----------
    Chan, Golub and LeVeque 1983, section 3; Higham, Accuracy and Stability of Numerical Algorithms, problem 1.10.
    """
    for width in _WIDTHS[context.profile]:
        if context.can_take(width):
            shape = context.shape(_STEPS, width)
            yield from guarded(context, ID, _sweep, shape, regime="large-mean", shape=shape)


def _sweep(context: Context, shape: tuple[int, ...]) -> Result | None:
    fold = context.norm.fold(shape, context.implementation.channel_axis)
    rng = np.random.default_rng([context.seed, fold.width])
    means = np.geomspace(1.0, 2.0 ** (context.x_format.p - 3), fold.rows)
    rows = context.x_format.round(means[:, None] + rng.standard_normal(fold.width))
    case = context.case_of(rows, shape, affine=False)
    if not case.errors.judged().any():
        return None
    output = context.run(case)
    result = held(context, ID, case, output, regime="large-mean", series=_curves(case, output, pass_class(context)))
    if result.outcome is Outcome.PASSED:
        return result
    shown = witness(context, case, output, lambda smaller, out: beyond(smaller, out, pass_class(context)))
    return replace(result, witness=shown)


def _curves(case: Case, output: Array, name: ClassName) -> dict[str, tuple[tuple[float, float], ...]]:
    """Largest error of each row over its mean/std, and the bound at the same element."""
    with np.errstate(all="ignore"):
        error = np.abs((output - case.certified.hi) - case.certified.lo)
        bound = case.reach(name) + case.rounding(output)
        condition = np.abs(case.rows.mean(axis=1)) / case.rows.std(axis=1)
    kept = case.errors.judged() & np.isfinite(condition)
    at = np.nan_to_num(error, nan=np.inf).argmax(axis=1)
    pick = np.arange(len(at)), at
    return {key: _pairs(condition[kept], values[pick][kept]) for key, values in (("measured", error), ("bound", bound))}


def _pairs(x: Array, y: Array) -> tuple[tuple[float, float], ...]:
    return tuple((float(a), float(b)) for a, b in zip(x, y, strict=True))
