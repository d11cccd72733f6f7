"""Invariance: what a change of scale or of origin does to the output, beside rounding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from normcheck.checks.base import Context, describe, guarded, register
from normcheck.checks.cases import Case
from normcheck.checks.witness import beyond, pass_class, witness
from normcheck.formats import Array
from normcheck.implementations import Implementation
from normcheck.regimes import REGIMES
from normcheck.results import Outcome, Result, Severity

_FACTORS = (-1.0, 4.0, 2.0**-4, 2.0**12, 2.0**-12)
_POWERS = (1, -1, 5, -5, 12, -12, 30, -30)


def _needs_own_statistics(context: Context) -> str:
    return "" if context.own_statistics else "statistics are given: the output is affine in x"


def _needs_mean(context: Context) -> str:
    if not context.norm.center:
        return f"{context.norm.name} subtracts no mean"
    return _needs_own_statistics(context)


def _needs_eps(context: Context) -> str:
    if "eps" not in context.implementation.variable:
        return "eps is fixed: give make= so that it can be varied"
    return _needs_own_statistics(context)


@register("scale-invariance", applies=_needs_own_statistics)
def scale_invariance(context: Context) -> Iterator[Result]:
    """Scaling a row changes the output only through eps.

    Statement
    ---------
    For a != 0, y(a*x; eps) = sign(a)*y(x; eps/a**2) with eps inside the root, sign(a)*y(x; eps/|a|) outside and for max. Hence
    y(a*x) - sign(a)*y(x) at one and the same eps is known exactly; the implementation must show that difference and no other.

    Why it matters
    --------------
    Networks rely on it: the scale of the weights before a norm is free. An eps in the wrong place, squares that leave the range
    of a narrow accumulator and clipped statistics all break it while a test on standard-normal rows stays green.

    Holds for
    ---------
    Every norm with its own statistics; a = -1 and powers of two, so that a*x is exact.

    Tolerance
    ---------
    |[y_hat(a*x) - s*y_hat(x)] - [y(a*x) - s*y(x)]| <= E(a*x) + E(x) + half an ulp of each output, with E the bound of
    ``accuracy``: the triangle inequality, both sides being rounded once from values within E of exact ones. The bias is left out.

    Known exceptions
    ----------------
    Rows outside the range in which ``accuracy`` judges are left out.

    References
    ----------
    The identity follows from c(a*x) = a*c(x), s2(a*x) = a**2*s2(x).
    """
    for width in _some_widths(context):
        shape = context.shape(8, width)
        yield from guarded(context, "scale-invariance", _scaled, shape, regime="standard", shape=shape)


@register("power-of-two-scaling", applies=_needs_eps)
def power_of_two_scaling(context: Context) -> Iterator[Result]:
    """Scaling a row by 2^k and eps by 4^k (2^k outside the root) changes no bit.

    Statement
    ---------
    y_hat(2**k * x; 4**k * eps) equals y_hat(x; eps) bit for bit, as long as nothing overflows or underflows. With eps outside the
    root or in a maximum with the standard deviation, eps is scaled by 2**k.

    Why it matters
    --------------
    It needs no tolerance at all. Sums, products, quotients and roots commute with powers of two exactly, so a wrong placement of
    eps, an eps rounded to 16 bits or a constant hidden in the code shows at once.

    Holds for
    ---------
    Straight-line code of +, -, *, /, sqrt, fma and reciprocal roots whose error repeats with 4**k. Needs ``make=``, to vary eps.

    Tolerance
    ---------
    None: equal bits pass. Differing bits within E + E' + half an ulp each, as in ``scale-invariance``, are a warning; beyond, an
    error.

    Known exceptions
    ----------------
    A rescue from overflow that first divides by max(1, max|x|) is sound and differs in bits: a warning.

    References
    ----------
    Exactness of scaling by the base: IEEE 754-2019, section 5; Higham, Accuracy and Stability of Numerical Algorithms, section
    2.1.
    """
    for width in _some_widths(context):
        shape = context.shape(8, width)
        yield from guarded(context, "power-of-two-scaling", _power_scaled, shape, regime="standard", shape=shape)


@register("shift-invariance", applies=_needs_mean)
def shift_invariance(context: Context) -> Iterator[Result]:
    """Adding one number to all elements of a row does not change the output.

    Statement
    ---------
    y(x + t*1) = y(x) for every norm that subtracts its mean. x and t lie on one grid, so that x + t is exact.

    Why it matters
    --------------
    The classic failure of a one-pass variance E[x**2] - E[x]**2 is a loss of this invariance, with an error that grows with the
    square of mean/std, or a NaN from a negative variance.

    Holds for
    ---------
    LayerNorm, BatchNorm in training, InstanceNorm, GroupNorm.

    Tolerance
    ---------
    |y_hat(x+t) - y_hat(x)| <= E(x+t) + E(x) + half an ulp of each output: the exact difference is zero, both outputs are rounded
    once from values within E of it. E(x+t) carries |t|/std.

    Known exceptions
    ----------------
    Rows whose bound E exceeds the spread of the output say nothing and are not used.

    References
    ----------
    Chan, Golub and LeVeque 1983, on the condition number of the sample variance.
    """
    for width in _some_widths(context):
        if width < 2:
            continue
        shape = context.shape(8, width)
        yield from guarded(context, "shift-invariance", _shifted, shape, regime="large-mean", shape=shape)


@dataclass(frozen=True)
class Difference:
    """How two outputs differ beside what the exact ones differ by, at the worst element.

    Attributes
    ----------
    ratio : of error to tolerance
    message : in the house grammar
    case, output : the moved call and its output rows, or the plain ones where those are further off
    """

    ratio: float
    error: float
    tolerance: float
    message: str
    case: Case
    output: Array

    def result(self, context: Context, check: str, regime: str, outcome: Outcome | None = None) -> Result:
        """A result: failed where the ratio exceeds 1, else the outcome given."""
        failed = self.ratio > 1
        outcome = Outcome.FAILED if failed else outcome or Outcome.PASSED
        shown = None
        if failed:
            name = pass_class(context)
            shown = witness(context, self.case, self.output, lambda case, output: beyond(case, output, name))
        return context.result(
            check,
            outcome,
            "" if outcome is Outcome.PASSED else self.message,
            severity=Severity.ERROR if failed or outcome is Outcome.PASSED else Severity.WARNING,
            regime=regime,
            shape=tuple(self.case.fold.shape),
            error=self.error,
            tolerance=self.tolerance,
            measures={"ratio": self.ratio},
            witness=shown,
        )


def _scaled(context: Context, shape: tuple[int, ...]) -> Result | None:
    rows = _scalable(context, shape)
    base = context.case_of(rows, shape)
    plain = context.run(base)
    found = []
    for factor in (f for f in _FACTORS if context.x_format.representable(rows * f).all()):
        case = context.case_of(rows * factor, shape)
        found.append(compare(context, (base, plain), (case, context.run(case)), f"{factor!r}*x", sign=float(np.sign(factor))))
    return _worst(found).result(context, "scale-invariance", "standard") if found else None


def _shifted(context: Context, shape: tuple[int, ...]) -> Result | None:
    fold = context.norm.fold(shape, context.implementation.channel_axis)
    p = context.x_format.p
    rng = np.random.default_rng([context.seed, fold.rows, fold.width])
    grid = 2.0 ** min(p - 4, 10)
    rows = np.rint(rng.uniform(-grid, grid, (fold.rows, fold.width)))
    rows[:, 0], rows[:, -1] = grid, -grid
    base = context.case_of(rows, shape)
    plain = context.run(base)
    found = []
    # sums of width terms stay exact representable numbers of the storage format, at half of the compute format's digits
    for exponent in (min(p, context.compute.p // 2 + 10) - 1 - k for k in (0, 2, 4, 8)):
        shift = 2.0**exponent - grid - 1
        if shift > grid and context.x_format.representable(rows + shift).all():
            case = context.case_of(rows + shift, shape)
            found.append(compare(context, (base, plain), (case, context.run(case)), f"x + {shift!r}"))
    return _worst(found).result(context, "shift-invariance", "large-mean") if found else None


def _power_scaled(context: Context, shape: tuple[int, ...]) -> Result | None:
    rows = _scalable(context, shape)
    base = context.case_of(rows, shape)
    plain = context.run(base)
    tried, found = 0, []
    for power in (k for k in _POWERS if context.x_format.representable(rows * 2.0**k).all()):
        scaled = rescaled(context, power)
        case = None if scaled is None else context.case_of(rows * 2.0**power, shape, norm=scaled.norm)
        if scaled is None or case is None or not (case.errors.judged() & base.errors.judged()).all():
            continue
        tried += 1
        moved = context.run(case, scaled)
        if not np.array_equal(moved, plain):
            call = f"2**{power}*x; eps={scaled.norm.eps!r}"
            found.append(compare(context, (base, plain), (case, moved), call))
    if found:
        return _worst(found).result(context, "power-of-two-scaling", "standard", Outcome.WARNED)
    if not tried:
        return None
    return context.result("power-of-two-scaling", Outcome.PASSED, regime="standard", shape=shape, error=0.0, tolerance=0.0)


def _some_widths(context: Context) -> tuple[int, ...]:
    fit = [w for w in context.widths if w <= 4097]
    return tuple(fit[:: max(1, len(fit) // 4)]) if context.profile == "quick" else tuple(fit)


def _scalable(context: Context, shape: tuple[int, ...]) -> Array:
    """Standard rows on a coarse grid: powers of two times them are exact; some are so small that eps counts."""
    fold = context.norm.fold(shape, context.implementation.channel_axis)
    made = REGIMES["standard"].rows(fold.rows, fold.width, context.x_format, context.seed, context.compute)
    bits = min(context.x_format.p - 1, 6)
    made = np.clip(np.rint(made * 2.0**bits), -(2.0 ** (bits + 1)), 2.0 ** (bits + 1)) / 2.0**bits
    made[:, 0] = np.where(made[:, 0] == 0, 1.0, made[:, 0])
    return made * np.resize([1.0, 2.0**-4, 1.0, 2.0**-8], (fold.rows, 1)) if context.x_format.emin < -14 else made


def rescaled(context: Context, power: int) -> Implementation | None:
    """The implementation at the eps that belongs to 2**power * x, or None where eps leaves the compute format's normal range."""
    norm = context.norm
    exponent = 2 * power if norm.eps_placement in ("inside", "max_inside", "none") else power
    eps = norm.eps * 2.0**exponent
    if norm.eps and not context.compute.min_normal * 2**context.compute.p <= eps < np.sqrt(context.compute.max):
        return None
    return context.implementation.with_norm(replace(cast(Any, norm), eps=eps))


def compare(
    context: Context, plain: tuple[Case, Array], moved: tuple[Case, Array], call: str, *, sign: float = 1.0
) -> Difference:
    """The worst element of moved - sign*plain against its exact value."""
    (base, before), (case, after) = plain, moved
    name = pass_class(context)
    with np.errstate(all="ignore"):
        expected = case.exact - sign * base.exact
        error = np.abs((after - sign * before) - expected)
        tolerance = case.reach(name) + base.reach(name) + case.rounding(after) + base.rounding(before)
        fits = [np.abs(one.exact) + one.reach(name) <= one.out_format.max for one in (case, base)]
        judged = (case.errors.judged() & base.errors.judged())[:, None] & fits[0] & fits[1]
        error = np.where(judged, np.where(np.isnan(error), np.inf, error), 0.0)
        tolerance = np.nan_to_num(tolerance, nan=0.0, posinf=np.inf)
        ratio = np.where(error > 0, error / tolerance, 0.0)
    at = np.unravel_index(ratio.argmax(), ratio.shape)
    text = (
        f"y({call})[{at[0]}, {at[1]}]={float(after[at])!r}, but should be {float(sign * before[at] + expected[at])!r} "
        f"within {float(tolerance[at]):.3g}, since y(x)={float(before[at])!r} [{describe(case)}]"
    )
    further = moved if beyond(case, after, name) is not None else plain
    return Difference(float(ratio[at]), float(error[at]), float(tolerance[at]), text, *further)


def _worst(found: list[Difference]) -> Difference:
    return max(found, key=lambda difference: difference.ratio)
