"""Outliers: how one large element compresses all others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from normcheck.checks.base import Context, describe, guarded, register
from normcheck.checks.cases import Case
from normcheck.checks.witness import beyond, pass_class, witness
from normcheck.formats import Array
from normcheck.results import Outcome, Result

_WIDTHS = {"quick": (64,), "standard": (33, 256), "deep": (33, 256, 4096)}
_STEPS = 24


def _needs_spread(context: Context) -> str:
    if not context.own_statistics:
        return "statistics are given: an outlier moves no other element"
    if context.norm.fraction != 1.0:
        return "the statistic is taken over a part of the row"
    return ""


@register("outlier-sensitivity", applies=_needs_spread)
def outlier_sensitivity(context: Context) -> Iterator[Result]:
    """One outlier compresses the other elements along a known curve.

    Statement
    ---------
    In a row with one element at M and the other D - 1 with mean m and variance s**2, the spread (standard deviation) of the
    others' outputs is s/S with s2 = (D-1)/D*s**2 + (D-1)/D**2*(M-m)**2 for a norm that subtracts its mean, and their root mean
    square is q/S with s2 = ((D-1)*q**2 + M**2)/D for one that does not, q**2 the mean square of the others (times D/(D-1) with
    ddof = 1, times D for sums). Measured over M from 1 to the format's limit, the curve must follow the closed form; it falls
    as sqrt(D)*s/M.

    Why it matters
    --------------
    Outlier channels are the rule in large language models. The curve says at which size half of the signal is gone, and clipped,
    trimmed or robust statistics, or a statistic over a part of the row, leave it.

    Holds for
    ---------
    Every norm with its own statistics: elements of a token, of a batch, of an image alike.

    Tolerance
    ---------
    The standard deviation and the root mean square are 1-Lipschitz in the root mean square norm: |spread(y_hat) - spread(y)| <=
    max(E + half an ulp) over the others, E the bound of ``accuracy``.

    Known exceptions
    ----------------
    Sizes whose square leaves the compute format's range are left out.

    References
    ----------
    Closed form: sums of squares of a row with one replaced element; half-shrink at M = s*sqrt(D*(3D+1)/(D-1)) with a mean, at
    M = sqrt(3D+1)*q without.
    """
    for width in _WIDTHS[context.profile]:
        if context.can_take(width):
            shape = context.shape(_STEPS, width)
            yield from guarded(context, "outlier-sensitivity", _curve, shape, regime="outlier", shape=shape)


def _curve(context: Context, shape: tuple[int, ...]) -> Result | None:
    fold = context.norm.fold(shape, context.implementation.channel_axis)
    largest = min(context.x_format.max, np.sqrt(context.compute.max) / 16)
    sizes = context.x_format.round(np.geomspace(1.0, largest / 2, fold.rows))
    rng = np.random.default_rng([context.seed, fold.width])
    rows = context.x_format.round(np.tile(rng.standard_normal(fold.width), (fold.rows, 1)))
    at = int(rng.integers(fold.width))
    rows[:, at] = sizes
    case = context.case_of(rows, shape, affine=False)
    output = context.run(case)
    others = np.arange(fold.width) != at
    expected, measured = _closed_form(case, sizes, others), _spread(context, output[:, others])
    with np.errstate(all="ignore"):
        tolerance = (case.reach(pass_class(context)) + case.rounding(output))[:, others].max(axis=1)
    error = np.abs(measured - expected)
    judged = case.errors.judged()
    if not judged.any():
        return None
    ratio = np.where(judged, np.where(np.isnan(error), np.inf, error / tolerance), 0.0)
    worst = int(ratio.argmax())
    failed = bool(ratio[worst] > 1)
    text = (
        f"spread of the other elements={measured[worst]:.6g} beside an outlier of {sizes[worst]:.6g}, but should be "
        f"{expected[worst]:.6g} within {tolerance[worst]:.3g} [{describe(case)}]"
    )
    return context.result(
        "outlier-sensitivity",
        Outcome.FAILED if failed else Outcome.PASSED,
        text if failed else "",
        regime="outlier",
        shape=shape,
        error=float(error[worst]),
        tolerance=float(tolerance[worst]),
        witness=witness(context, case, output, lambda smaller, out: beyond(smaller, out, pass_class(context)))
        if failed
        else None,
        series={
            "expected": _pairs(sizes[judged], expected[judged]),
            "measured": _pairs(sizes[judged], measured[judged]),
        },
    )


def _spread(context: Context, values: Array) -> Array:
    if context.norm.center:
        return np.asarray(values.std(axis=1))
    return np.asarray(np.sqrt((values**2).mean(axis=1)))


def _closed_form(case: Case, sizes: Array, others: Array) -> Array:
    """The others' spread after the norm, from their moments and the outlier's size alone, (R,)."""
    std, width = case.errors.standardization, case.fold.width
    rest = case.rows[0, others]
    if std.center:
        before = rest.std()
        square = (width - 1) / width * before**2 + (width - 1) / width**2 * (sizes - rest.mean()) ** 2
    else:
        before = np.sqrt((rest**2).mean())
        square = ((width - 1) * before**2 + sizes**2) / width
    square = square * width / std.divisor(width)
    root = np.sqrt(square)
    denominators = {
        "inside": np.sqrt(square + std.eps),
        "outside": root + std.eps,
        "max": np.maximum(root, std.eps),
        "max_inside": np.sqrt(np.maximum(square, std.eps)),
        "none": root,
    }
    return np.asarray(before / denominators[std.placement])


def _pairs(x: Array, y: Array) -> tuple[tuple[float, float], ...]:
    return tuple((float(a), float(b)) for a, b in zip(x, y, strict=True))
