"""Identities of the gradient: what shift and scale of x, which do not move y, say of dx."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from normcheck.checks.base import Context, guarded, register
from normcheck.checks.gradient_cases import GradientCase, gradient_case, pulled, pulled_text, slopes
from normcheck.checks.witness import claimed, missed
from normcheck.formats import Array
from normcheck.implementations.gradients import differentiable
from normcheck.results import Outcome, Result, Severity, Witness

_REQUIRES = ("output-form", "accuracy", "gradient-flow")
_ROWS = 8


def _needs_mean(context: Context) -> str:
    if not context.own_statistics:
        return "statistics are given: rows of dx have no sum of their own"
    return differentiable(context.implementation) or ("" if context.norm.center else f"{context.norm.name} subtracts no mean")


@register("gradient-identities", applies=_needs_mean, requires=_REQUIRES)
def gradient_identities(context: Context) -> Iterator[Result]:
    """Rows of the input gradient sum to 0, and their product with x is what eps leaves.

    Statement
    ---------
    Where a mean is subtracted y(x + t) = y(x), so that sum(dx) = 0. Scaling changes y only through eps, so that <dx, x> is
    eps/(v+eps)*<g, n> with eps inside the root, eps/(sigma+eps)*<g, n> outside, 0 where a maximum does not take eps.

    Why it matters
    --------------
    These are the two directions in which a norm must not move its input; a drift along them makes the weights before the norm
    grow. The mean of g subtracted twice, or saved statistics of 16 bits, show here by name.

    Holds for
    ---------
    Norms that subtract their own mean.

    Tolerance
    ---------
    In sum(dx) all errors that are multiples of dx or of n drop out; what remains is derived in ``normcheck.gradient_bounds``, to
    which the roundings of dx to storage are added. <dx, x> is formed as <dx, x - mean>, and bounded by the sum of
    |x - mean|*(E + half an ulp).

    Known exceptions
    ----------------
    A gradient that autograd adds up from several casts of x has the roundings of each: a warning.

    References
    ----------
    Both follow from Euler's identity; tenstorrent/tt-metal 53204 (kind K22 of the catalogue of faults).
    """
    widths = [
        w for w in {"quick": (64,), "standard": (33, 1024), "deep": (33, 1024, 4097)}[context.profile] if context.can_take(w)
    ]
    for width, regime in itertools.product(widths, ("standard", "large-mean")):
        shape = context.shape(_ROWS, width)
        for what in ("sum(dx)", "<dx, x>"):
            where: dict[str, Any] = {"regime": regime, "shape": shape}
            yield from guarded(context, "gradient-identities", _identity, regime, shape, what, **where)


def _identity(context: Context, regime: str, shape: tuple[int, ...], what: str) -> Result | None:
    case = context.case(regime, shape)
    if context.implementation.residual:
        return None
    gradient = gradient_case(context, case, slopes(context, case))
    output = gradient.rows_of(pulled(context, gradient), "x")
    rounding = 0.5 * case.x_format.ulp(output)
    exact = gradient.exact["x"]
    if what == "sum(dx)":
        got, expected = output.sum(axis=1), np.zeros(len(output))
        tight = gradient.errors.row_sum(case.classes["sequential"]) + rounding.sum(axis=1)
        wide = tight + gradient.errors.branches().sum(axis=1)
    else:
        c = case.rows - case.certified.mean[:, None]
        got, expected = (output * c).sum(axis=1), (exact.hi * c).sum(axis=1)
        tight = (np.abs(c) * (gradient.bound("x", "sequential") + rounding)).sum(axis=1)
        wide = tight + (np.abs(c) * gradient.errors.branches()).sum(axis=1)
    return _identity_result(context, gradient, what, (got, expected, tight, wide), regime)


def _identity_result(
    context: Context, gradient: GradientCase, what: str, sums: tuple[Array, Array, Array, Array], regime: str
) -> Result | None:
    got, expected, tight, wide = sums
    with np.errstate(all="ignore"):
        error = np.where(gradient.errors.judged() & np.isfinite(tight), np.abs(got - expected), 0.0)
        ratio = np.where(error > 0, error / tight, 0.0)
    if not gradient.errors.judged().any():
        return None
    row = int(np.nan_to_num(ratio, nan=np.inf).argmax())
    outcome = Outcome.PASSED
    if not ratio[row] <= 1:
        outcome = Outcome.WARNED if error[row] <= wide[row] else Outcome.FAILED
    text = (
        f"{what} of row {row}={float(got[row])!r}, but should be {float(expected[row])!r} within {float(tight[row]):.3g} "
        f"[{gradient.describe()}]"
    )
    if outcome is Outcome.WARNED:
        text += "; x has several gradients, each rounded to storage"
    return context.result(
        "gradient-identities",
        outcome,
        "" if outcome is Outcome.PASSED else text,
        severity=Severity.WARNING if outcome is Outcome.WARNED else Severity.ERROR,
        witness=_shown(gradient, what, row, (got, expected, tight)) if outcome is Outcome.FAILED else None,
        error=float(error[row]),
        tolerance=float(tight[row]),
        regime=regime,
        shape=tuple(gradient.case.fold.shape),
    )


def _shown(gradient: GradientCase, what: str, row: int, sums: tuple[Array, Array, Array]) -> Witness | None:
    """The backward pass, and the sum over one row."""
    case, (got, expected, tight) = gradient.case, (float(values[row]) for values in sums)
    rows = f".transpose({case.fold.order}).reshape({case.fold.rows}, {case.fold.width})[{row}]"
    dx, x = (f"np.array({name}.tolist(), np.float64){rows}" for name in ("{gradient}", "x"))
    figure = f"{dx}.sum()" if what == "sum(dx)" else f"({dx} * ({x} - {float(case.certified.mean[row])!r})).sum()"
    how = {"claim": claimed(got, expected, tight), "figure": figure}
    text = pulled_text(gradient, "x", (), expected, missed(got, expected, tight), **how)
    return Witness(text, what, None, got.hex(), expected.hex()) if text else None
