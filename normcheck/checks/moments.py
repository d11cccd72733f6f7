"""Moments and range: mean and mean square of a standardized row, the largest value it can have, and what a second pass does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from normcheck.checks.base import Context, guarded, register
from normcheck.checks.cases import Case
from normcheck.checks.comparing import case_from, finding
from normcheck.checks.witness import claimed, missed, pass_class, shown, writable
from normcheck.formats import Array
from normcheck.implementations.snippets import Script
from normcheck.regimes import REGIMES
from normcheck.results import Outcome, Result, Witness

_WIDTHS = {
    "quick": (3, 64, 257),
    "standard": (2, 3, 7, 64, 257, 1024, 4097),
    "deep": (2, 3, 7, 33, 64, 257, 1000, 1024, 4097, 65537),
}
_REQUIRES = ("output-form", "accuracy")
_REGIMES = ("standard", "large-mean", "outlier", "tiny")


def _needs_own_statistics(context: Context) -> str:
    return "" if context.own_statistics else "statistics are given: moments are those of the given statistics"


@dataclass(frozen=True, eq=False)
class _Trial:
    """A call without weight and bias, and by how much its elements may be wrong.

    Attributes
    ----------
    case, output : the call and its rows (R, D)
    slack : E and half an ulp of the output, (R, D); infinite where nothing is judged
    """

    case: Case
    output: Array
    slack: Array

    @property
    def counted(self) -> int:
        """How many leading elements enter the statistic."""
        return self.case.errors.standardization.count(self.case.fold.width)

    @property
    def divisor(self) -> int:
        """What the sum of squares is divided by."""
        return self.case.errors.standardization.divisor(self.case.fold.width)

    @property
    def share(self) -> Array:
        """sigma/S, (R,): 1 where eps does not count."""
        return np.asarray(self.case.certified.sigma / self.case.certified.scale)


def _trial(context: Context, rows: Array, shape: tuple[int, ...]) -> _Trial:
    fold = context.norm.fold(shape, context.implementation.channel_axis)
    case = case_from(context, fold.unfold(rows), affine=False)
    output = context.run(case)
    with np.errstate(all="ignore"):
        slack = np.where(case.errors.judged()[:, None], case.reach(pass_class(context)) + case.rounding(output), np.inf)
    return _Trial(case, output, np.nan_to_num(slack, nan=np.inf))


def _of_regime(context: Context, regime: str, shape: tuple[int, ...]) -> _Trial:
    fold = context.norm.fold(shape, context.implementation.channel_axis)
    rows = REGIMES[regime].rows(fold.rows, fold.width, context.x_format, context.seed, context.compute)
    return _trial(context, rows, shape)


@dataclass(frozen=True)
class _Figure:
    """A figure of each row: its name, and how a snippet makes it of ``row``, the values of one."""

    name: str
    expression: str


def _told(
    context: Context, check: str, trial: _Trial, figure: _Figure, got: Array, due: Array, limit: Array, regime: str
) -> Result:
    """A figure of each row, (R,), held against what is due."""
    with np.errstate(all="ignore"):
        error = np.where(np.isfinite(limit), np.nan_to_num(np.abs(got - due), nan=np.inf), 0.0)
        ratio = np.where(error > 0, error / limit, 0.0)
    row = int(ratio.argmax())
    figures: dict[str, Any] = {"regime": regime, "error": float(error[row]), "tolerance": float(limit[row])}
    if ratio[row] <= 1:
        return context.result(check, Outcome.PASSED, shape=tuple(trial.case.fold.shape), **figures)
    text = f"{figure.name} of row {row}={float(got[row])!r}, but should be {float(due[row])!r} within {float(limit[row]):.3g}"
    found = _shown(context, trial.case, figure, row, float(got[row]), float(due[row]), float(limit[row]))
    return finding(context, check, trial.case, Outcome.FAILED, text, found, **figures)


def _shown(context: Context, case: Case, figure: _Figure, row: int, got: float, due: float, limit: float) -> Witness | None:
    """The call, and the figure of one row of its output."""
    if not writable(case.inputs):
        return None
    fold, tolerance = case.fold, missed(got, due, limit)
    script = Script(context.implementation).arrays(case.inputs).call(case.inputs)
    script.add(f"row = np.array(y.tolist(), np.float64).transpose({fold.order}).reshape({fold.rows}, {fold.width})[{row}]")
    script.figure(figure.expression.format(row=row), due, tolerance, claimed(got, due, limit))
    return Witness(script.text, figure.name, None, got.hex(), due.hex())


@register("moments", applies=_needs_own_statistics, requires=_REQUIRES)
def moments(context: Context) -> Iterator[Result]:
    """A standardized row has mean 0 and the mean square that its variance and eps give.

    Statement
    ---------
    With n = c/S and no affine part, mean(n) = 0 for norms that subtract a mean, and sum(n**2)/divisor = (sigma/S)**2, which is
    v/(v + eps) for eps inside the root. The sum runs over the elements that enter the statistic; the divisor is D, D - 1, or 1
    for L2Norm and ScaleNorm.

    Why it matters
    --------------
    It is what the norm is for: unit variance, unit root mean square, unit length. An eps in the wrong place, Bessel's correction,
    or a variance that has cancelled away shows in one number per row.

    Holds for
    ---------
    Every norm with its own statistics.

    Tolerance
    ---------
    With delta = E + half an ulp for each element, mean(n_hat) is within mean(delta), and the mean square within
    sum(2*|n_hat|*delta + delta**2)/divisor, both by the triangle inequality.

    Known exceptions
    ----------------
    Rows outside the range in which ``accuracy`` judges are left out.

    References
    ----------
    Ba, Kiros and Hinton 2016; Zhang and Sennrich 2019; mosaicml/llm-foundry 371 (kinds K05, K08 and K09 of the catalogue
    of faults).
    """
    for width in _WIDTHS[context.profile]:
        if not context.can_take(width):
            continue
        shape = context.shape(8, width)
        for regime in _REGIMES:
            yield from guarded(context, "moments", _first_two, regime, shape, regime=regime, shape=shape)


def _first_two(context: Context, regime: str, shape: tuple[int, ...]) -> Result:
    trial = _of_regime(context, regime, shape)
    if context.norm.center:
        got = trial.output.mean(axis=1)
        figure = _Figure("mean", "row.mean()")
        mean = _told(context, "moments", trial, figure, got, np.zeros(len(got)), trial.slack.mean(axis=1), regime)
        if mean.outcome is not Outcome.PASSED:
            return mean
    n, slack = trial.output[:, : trial.counted], trial.slack[:, : trial.counted]
    with np.errstate(all="ignore"):
        got = (n * n).sum(axis=1) / trial.divisor
        limit = ((2 * np.abs(n) + slack) * slack).sum(axis=1) / trial.divisor + 2.0**-45
    name = "mean square" if trial.divisor > 1 else "sum of squares"
    figure = _Figure(name, f"(row[:{trial.counted}] ** 2).sum() / {trial.divisor}")
    return _told(context, "moments", trial, figure, got, trial.share**2, limit, regime)


@register("range-bounds", applies=_needs_own_statistics, requires=_REQUIRES)
def range_bounds(context: Context) -> Iterator[Result]:
    """No element exceeds the largest value that its row can have, and a single outlier reaches it.

    Statement
    ---------
    |n_i| <= sqrt((D - 1)/D * divisor) * sigma/S for a norm with a mean, that is sqrt(D - 1) for LayerNorm, and
    sqrt(divisor) * sigma/S without one, that is sqrt(D) for RMSNorm and 1 for L2Norm. A row that is zero but for one element
    attains it there.

    Why it matters
    --------------
    The bound says which widths fit a narrow format afterwards: 448 of float8_e4m3fn is safe up to D = 200705. Squares that
    overflow and padding that is counted break it.

    Holds for
    ---------
    Every norm with its own statistics; with PartialRMSNorm the elements that enter the statistic.

    Tolerance
    ---------
    E and half an ulp of the element. Attained means from both sides.

    Known exceptions
    ----------------
    No exception is known.

    References
    ----------
    c_i = -sum of the others; by Cauchy and Schwarz c_i**2 <= (D - 1)/D * sum c**2.
    """
    for width in _WIDTHS[context.profile]:
        if not context.can_take(width):
            continue
        shape = context.shape(8, width)
        for regime in ("heavy-tail", "outlier"):
            if regime in REGIMES:
                yield from guarded(context, "range-bounds", _within, regime, shape, regime=regime, shape=shape)
        yield from guarded(context, "range-bounds", _attained, shape, regime="one-hot", shape=shape)


def _top(trial: _Trial) -> Array:
    """The largest value that a row can have, (R,)."""
    width = trial.case.fold.width
    free = (width - 1) / width if trial.case.errors.standardization.center else 1.0
    return np.asarray(math.sqrt(free * trial.divisor) * trial.share)


def _within(context: Context, regime: str, shape: tuple[int, ...]) -> Result:
    trial = _of_regime(context, regime, shape)
    n, slack = np.abs(trial.output[:, : trial.counted]), trial.slack[:, : trial.counted]
    with np.errstate(all="ignore"):
        at = np.nan_to_num(n - slack, nan=np.inf).argmax(axis=1)[:, None]
        largest, limit = np.take_along_axis(n, at, 1)[:, 0], np.take_along_axis(slack, at, 1)[:, 0]
    due = np.fmin(_top(trial), largest)
    figure = _Figure("largest |y|", f"np.abs(row[:{trial.counted}]).max()")
    return _told(context, "range-bounds", trial, figure, largest, due, limit + 2.0**-45 * due, regime)


def _attained(context: Context, shape: tuple[int, ...]) -> Result:
    fold = context.norm.fold(shape, context.implementation.channel_axis)
    counted = context.norm.standardization.count(fold.width)
    places = np.arange(fold.rows) * 7 % counted
    rows = np.zeros((fold.rows, fold.width))
    rows[np.arange(fold.rows), places] = np.resize([1.0, -2.0, 16.0, 0.5, -96.0], fold.rows)
    trial = _trial(context, rows, shape)
    got = np.abs(np.take_along_axis(trial.output, places[:, None], 1)[:, 0])
    limit = np.take_along_axis(trial.slack, places[:, None], 1)[:, 0]
    figure = _Figure("the outlier", f"abs(row[{{row}} * 7 % {counted}])")
    return _told(context, "range-bounds", trial, figure, got, _top(trial), limit + 2.0**-45 * got, "one-hot")


@register("idempotence", applies=_needs_own_statistics, requires=_REQUIRES)
def idempotence(context: Context) -> Iterator[Result]:
    """Normalizing twice is normalizing once, but for eps.

    Statement
    ---------
    The second pass sees a row of spread t = sigma/S, so that norm(norm(x)) = n/S(t): n/sqrt(t**2 + eps) for eps inside the root,
    n/(t + eps) outside, n/max(t, eps) for max.

    Why it matters
    --------------
    Stacked norms, and a norm before a block that begins with one, rely on it. Bessel's correction without its inverse, a gain
    that is applied twice and a wrong eps do not survive the second pass.

    Holds for
    ---------
    Every norm with its own statistics, on rows whose spread is far above eps.

    Tolerance
    ---------
    The first pass may be wrong by delta = E + half an ulp. Along the segment from n to its output the spread is at least
    t - rms(delta), and |n_i| at most N = (|n_i| + |delta_i| + mean|delta|)/S(that), so that by the mean value theorem, with the
    Jacobian r*(I - 11'/D - n n'/divisor), the second pass moves by at most (|delta_i| + mean|delta| + N*q*rms(delta))/S, with q
    the quotient of the mean square to the squared spread. E and half an ulp of the second pass are added.

    Known exceptions
    ----------------
    PartialRMSNorm is left out: elements outside the statistic have no bound.

    References
    ----------
    The Jacobian of c/S: derivation in ``normcheck.bounds`` and above.
    """
    if context.norm.fraction != 1.0:
        yield context.result("idempotence", Outcome.SKIPPED, "elements outside the statistic have no bound")
        return
    for width in _WIDTHS[context.profile]:
        if context.can_take(width):
            shape = context.shape(8, width)
            yield from guarded(context, "idempotence", _twice, shape, regime="standard", shape=shape)


def _twice(context: Context, shape: tuple[int, ...]) -> Result | None:
    once = _of_regime(context, "standard", shape)
    if once.case.out_format.name != context.dtype or not np.isfinite(once.output).all():
        return None
    twice = _trial(context, once.output, shape)
    spread, exact = once.share, once.case.exact
    with np.errstate(all="ignore"):
        due = exact / _denominator(context, spread)[:, None]
        limit = twice.slack + _moved(context, once, spread)
        error = np.where(np.isfinite(limit), np.nan_to_num(np.abs(twice.output - due), nan=np.inf), 0.0)
        ratio = np.where(error > 0, error / limit, 0.0)
    row, element = np.unravel_index(ratio.argmax(), ratio.shape)
    at = (int(row), int(element))
    figures: dict[str, Any] = {"regime": "standard", "error": float(error[at]), "tolerance": float(limit[at])}
    if ratio[at] <= 1:
        return context.result("idempotence", Outcome.PASSED, shape=shape, **figures)
    text = (
        f"y(y(x))[{at[0]}, {at[1]}]={float(twice.output[at])!r}, but should be {float(due[at])!r} within {float(limit[at]):.3g}"
    )
    found = shown(context.implementation, twice.case, twice.output, at, float(due[at]), float(limit[at]))
    return finding(context, "idempotence", once.case, Outcome.FAILED, text, found, **figures)


def _denominator(context: Context, spread: Array) -> Array:
    std = context.norm.standardization
    eps = context.implementation.contract.round_eps(std.eps)
    forms = {
        "inside": np.sqrt(spread**2 + eps),
        "outside": spread + eps,
        "max": np.maximum(spread, eps),
        "max_inside": np.sqrt(np.maximum(spread**2, eps)),
        "none": spread,
    }
    return np.asarray(forms[std.placement])


def _moved(context: Context, once: _Trial, spread: Array) -> Array:
    """How far an error of the first pass moves the second, (R, D)."""
    delta = once.slack
    divisor = max(once.divisor, 1)
    rms = np.sqrt((delta**2).sum(axis=1) / divisor)
    least = _denominator(context, np.maximum(spread - rms, 0.0))[:, None]
    mean = delta.mean(axis=1)[:, None]
    height = (np.abs(once.case.exact) + delta + mean) / least
    return np.asarray((delta + mean + height * rms[:, None]) / least)
