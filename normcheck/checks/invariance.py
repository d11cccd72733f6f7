"""Invariance: what a change of scale or of origin does to the output, beside rounding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from normcheck.bounds import ClassName
from normcheck.checks.base import Context, describe, guarded, register
from normcheck.checks.cases import Case
from normcheck.formats import Array
from normcheck.implementations import Implementation
from normcheck.norms import Norm
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
    Networks rely on it: the scale of the weights before a norm is free. An eps in the wrong place, squares that leave the range of
    a narrow accumulator and clipped statistics all break it while a test on standard-normal rows stays green.

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
    Exactness of scaling by the base: IEEE 754-2019, section 5; Higham, Accuracy and Stability of Numerical Algorithms, section 2.1.
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


def _some_widths(context: Context) -> tuple[int, ...]:
    fit = [w for w in context.widths if w <= 4097]
    return tuple(fit[:: max(1, len(fit) // 4)]) if context.profile == "quick" else tuple(fit)


def _pass_class(context: Context) -> ClassName:
    return "sequential" if not isinstance(context.implementation.contract.accumulation, int) else "tree"


def _scaled(context: Context, shape: tuple[int, ...]) -> Result | None:
    fold = context.norm.fold(shape, context.implementation.channel_axis)
    rows = _scalable(context, fold.rows, fold.width)
    base = context.case_of(rows, shape)
    plain = context.run(base)
    worst: tuple[float, str, dict[str, float]] | None = None
    for factor in _FACTORS:
        if not context.x_format.representable(rows * factor).all():
            continue
        case = context.case_of(rows * factor, shape)
        found = _compare(context, base, plain, case, context.run(case), float(np.sign(factor)), f"{factor!r}*x")
        worst = found if worst is None or found[0] > worst[0] else worst
    return None if worst is None else _difference(context, "scale-invariance", "standard", base, worst)


def _scalable(context: Context, rows: int, width: int) -> Array:
    """Standard rows on a coarse grid, so that large and small powers of two times them are exact and eps counts in some."""
    made = REGIMES["standard"].rows(rows, width, context.x_format, context.seed, context.compute)
    bits = min(context.x_format.p - 1, 6)
    made = np.clip(np.rint(made * 2.0**bits), -(2.0 ** (bits + 1)), 2.0 ** (bits + 1)) / 2.0**bits
    made[:, 0] = np.where(made[:, 0] == 0, 1.0, made[:, 0])
    return made * np.resize([1.0, 2.0**-4, 1.0, 2.0**-8], (rows, 1)) if context.x_format.emin < -14 else made


def _compare(
    context: Context, base: Case, plain: Array, case: Case, moved: Array, sign: float, call: str
) -> tuple[float, str, dict[str, float]]:
    """Ratio of the difference of two outputs, beyond what the exact ones differ by, to its tolerance; message; error and tolerance."""
    name = _pass_class(context)
    fmt = base.out_format
    with np.errstate(all="ignore"):
        expected = case.exact - sign * base.exact
        error = np.abs((moved - sign * plain) - expected)
        tolerance = _reach(case, name) + _reach(base, name) + 0.5 * (fmt.ulp(moved) + fmt.ulp(plain))
        judged = (case.errors.judged() & base.errors.judged())[:, None] & np.isfinite(expected)
        error = np.where(judged & np.isnan(error), np.inf, error)
        tolerance = np.where(np.isnan(tolerance), 0.0, tolerance)
        ratio = np.where(judged, np.where(error > 0, error / tolerance, 0.0), 0.0)
    at = np.unravel_index(ratio.argmax(), ratio.shape)
    text = (
        f"y({call})[{at[0]}, {at[1]}]={float(moved[at])!r}, but should be {float(sign * plain[at] + expected[at])!r} "
        f"within {float(tolerance[at]):.3g}, since y(x)={float(plain[at])!r} [{describe(case)}]"
    )
    return float(ratio[at]), text, {"error": float(error[at]), "tolerance": float(tolerance[at])}


def _reach(case: Case, name: ClassName) -> Array:
    """E in units of the output; with an inner rounding, |w| times E and one ulp of the standardized value for the two roundings."""
    bound = case.bound(name)
    weight, _ = case.affine
    if not case.inner_cast or weight is None:
        return bound
    return np.abs(weight) * (bound + case.x_format.ulp(case.certified.hi))


def _difference(
    context: Context, id: str, regime: str, case: Case, worst: tuple[float, str, dict[str, float]]
) -> Result:
    ratio, text, values = worst
    failed = ratio > 1
    return context.result(
        id,
        Outcome.FAILED if failed else Outcome.PASSED,
        text if failed else "",
        regime=regime,
        shape=tuple(case.fold.shape),
        measures={"ratio": ratio},
        **values,
    )


def _shifted(context: Context, shape: tuple[int, ...]) -> Result | None:
    fold = context.norm.fold(shape, context.implementation.channel_axis)
    p = context.x_format.p
    rng = np.random.default_rng([context.seed, fold.rows, fold.width])
    grid = 2.0 ** min(p - 4, 10)
    rows = np.rint(rng.uniform(-grid, grid, (fold.rows, fold.width)))
    rows[:, 0], rows[:, -1] = grid, -grid
    base = context.case_of(rows, shape)
    plain = context.run(base)
    worst: tuple[float, str, dict[str, float]] | None = None
    for exponent in sorted({min(p, context.compute.p // 2 + 10) - 1 - k for k in (0, 2, 4, 8)}):
        shift = 2.0**exponent - grid - 1
        if shift <= grid or not context.x_format.representable(rows + shift).all():
            continue
        case = context.case_of(rows + shift, shape)
        found = _compare(context, base, plain, case, context.run(case), 1.0, f"x + {shift!r}")
        worst = found if worst is None or found[0] > worst[0] else worst
    return None if worst is None else _difference(context, "shift-invariance", "large-mean", base, worst)


def _power_scaled(context: Context, shape: tuple[int, ...]) -> Result | None:
    norm = context.norm
    fold = norm.fold(shape, context.implementation.channel_axis)
    rows = _scalable(context, fold.rows, fold.width)
    base = context.case_of(rows, shape)
    plain = context.run(base)
    tried, differing = 0, []
    for power in _POWERS:
        scaled = _rescaled(context, norm, power)
        if scaled is None or not context.x_format.representable(rows * 2.0**power).all():
            continue
        case = context.case_of(rows * 2.0**power, shape, norm=scaled.norm)
        if not (case.errors.judged().all() and base.errors.judged().all()):
            continue
        tried += 1
        moved = context.run(case, scaled)
        if not np.array_equal(moved, plain):
            differing.append(_compare(context, base, plain, case, moved, 1.0, f"2**{power}*x; eps={scaled.norm.eps!r}"))
    if not tried:
        return None
    if not differing:
        return context.result("power-of-two-scaling", Outcome.PASSED, regime="standard", shape=shape, error=0.0, tolerance=0.0)
    ratio, text, values = max(differing, key=lambda found: found[0])
    beyond = ratio > 1
    return context.result(
        "power-of-two-scaling",
        Outcome.FAILED if beyond else Outcome.WARNED,
        text if beyond else f"bits differ though powers of two scale exactly: {text}",
        severity=Severity.ERROR if beyond else Severity.WARNING,
        regime="standard",
        shape=shape,
        measures={"ratio": ratio},
        **values,
    )


def _rescaled(context: Context, norm: Norm, power: int) -> Implementation | None:
    """The implementation at the eps that belongs to 2**power * x, or None where eps leaves the compute format's normal range."""
    exponent = 2 * power if norm.eps_placement in ("inside", "max_inside", "none") else power
    eps = norm.eps * 2.0**exponent
    if norm.eps and not context.compute.min_normal * 2**context.compute.p <= eps < np.sqrt(context.compute.max):
        return None
    return context.implementation.with_norm(replace(norm, eps=eps))  # type: ignore[type-var]

