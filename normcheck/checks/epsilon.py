"""Epsilon: where it stands, and how large it is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from normcheck.checks.base import Context, describe, guarded, register
from normcheck.checks.cases import Case
from normcheck.checks.witness import beyond, pass_class, witness
from normcheck.formats import Array
from normcheck.norms import PLACEMENTS, EpsPlacement
from normcheck.results import Outcome, Result

_WIDTHS = {"quick": (64,), "standard": (64, 1000), "deep": (64, 1000, 4096)}
_MANTISSAS = 40
# roundings of accuracy's widest class, one for the product with a weight of 1 and one for a folded application
_ROUNDINGS = 11


def _needs_small_rows(context: Context) -> str:
    if context.norm.eps_placement == "none" or context.norm.eps == 0:
        return "there is no eps to place"
    if not context.own_statistics:
        return "statistics are given: rows say nothing of eps"
    return ""


@register("epsilon-placement", applies=_needs_small_rows)
def epsilon_placement(context: Context) -> Iterator[Result]:
    """eps stands where the norm says, with the value that it says.

    Statement
    ---------
    On rows of +t and -t, |y| = t/S(sigma), which tells S for each sigma. Around sigma = sqrt(eps) and sigma = eps, at .1, 1 and
    10 times either, sqrt(sigma**2+eps), sigma+eps, max(sigma, eps), sqrt(max(sigma**2, eps)) and sigma are different curves,
    and only the claimed one may fit. Inverting the claimed curve gives an interval for the effective eps.

    Why it matters
    --------------
    The same number inside and outside the root differs 316-fold in effect at eps = 1e-5, and by a factor of up to 1/sqrt(eps) in
    the output of a quiet row, yet by 5e-6 on standard-normal rows, where tests look.

    Holds for
    ---------
    Every norm with its own statistics and eps > 0.

    Tolerance
    ---------
    Two opposite elements allow the S for which t/S lies in the rounding cell of half their difference, widened by
    u*((H+4)*phi/2 + 11), the bound of ``accuracy`` without the common mode, which cancels. phi is at most sigma/S below 1/2,
    else 1, whatever the placement. A placement fits if all probes allow its S at the claimed eps. The effective eps is the
    intersection of the intervals that the probes allow at the claimed placement: 5 digits in float32, in 16 bit what many
    mantissas leave.

    Known exceptions
    ----------------
    Where eps is so small that no probe in the format's normal range feels it, the check is skipped.

    References
    ----------
    Ba, Kiros and Hinton 2016 (inside); The Annotated Transformer (outside); Henry et al. 2020 (max).
    """
    for width in _WIDTHS[context.profile]:
        if context.can_take(width):
            shape = context.shape(6 * _MANTISSAS, width)
            yield from guarded(context, "epsilon-placement", _placed, shape, regime="tiny", shape=shape)


@dataclass(frozen=True, eq=False)
class _Probes:
    """Standard deviations of the probes and the intervals of S that the outputs allow, each (N,), ascending in sigma."""

    sigma: Array
    low: Array
    high: Array

    def fits(self, placement: EpsPlacement, eps: float) -> bool:
        """Whether every probe allows the S of this placement."""
        predicted = denominator(self.sigma, placement, eps)
        return bool(((self.low <= predicted) & (predicted <= self.high)).all())

    def effective(self, placement: EpsPlacement) -> tuple[float, float]:
        """Bounds of the eps that all probes allow at this placement; the lower above the upper where none does."""
        with np.errstate(all="ignore"):
            if placement == "inside":
                low, high = self.low**2 - self.sigma**2, self.high**2 - self.sigma**2
            elif placement == "outside":
                low, high = self.low - self.sigma, self.high - self.sigma
            else:
                power = 2 if placement == "max_inside" else 1
                hidden = self.low <= self.sigma
                low = np.where(hidden, 0.0, self.low**power)
                high = np.maximum(self.high, self.sigma * hidden) ** power
        return float(low.max()), float(high.min())


def denominator(sigma: Array, placement: EpsPlacement, eps: float) -> Array:
    """S of rows with this standard deviation (norm, for sums)."""
    if placement == "inside":
        return np.sqrt(sigma * sigma + eps)
    if placement == "outside":
        return sigma + eps
    if placement == "max":
        return np.maximum(sigma, eps)
    if placement == "max_inside":
        return np.sqrt(np.maximum(sigma * sigma, eps))
    return np.asarray(sigma, np.float64)


def _placed(context: Context, shape: tuple[int, ...]) -> Result | None:
    fold = context.norm.fold(shape, context.implementation.channel_axis)
    sigma = _sigmas(context, fold.rows)
    per_sigma = _per_sigma(context, fold.width)
    t = np.unique(context.x_format.round(sigma / per_sigma))
    t = t[(t >= _least(context)) & (t <= context.x_format.max / 4)]
    if not len(t):
        return None
    t = np.resize(t, fold.rows)
    signs = np.where(np.arange(fold.width) % 2, -1.0, 1.0)
    if fold.width % 2:
        return None
    case = context.case_of(t[:, None] * signs, shape, affine=False)
    output = context.run(case)
    probes = _probes(case, output, t, per_sigma)
    if probes is None:
        return None
    return _verdict(context, case, output, probes)


def _sigmas(context: Context, count: int) -> Array:
    """Spreads at .1, 1 and 10 times sqrt(eps) and eps, each with many mantissas."""
    eps = context.norm.eps
    centers = [c * scale for scale in (math.sqrt(eps), eps) for c in (0.1, 1.0, 10.0)]
    mantissas = np.exp(np.linspace(-0.6, 0.6, max(1, count // len(centers))))
    return np.concatenate([center * mantissas for center in centers])


def _least(context: Context) -> float:
    """Smallest probe: its square must not underflow the compute format, itself not the storage format."""
    floor = math.sqrt(math.ldexp(1.0, context.compute.emin + context.compute.p))
    return max(context.x_format.min_normal, floor)


def _per_sigma(context: Context, width: int) -> float:
    """sigma of a row of +-t, over t."""
    std = context.norm.standardization
    return math.sqrt(std.count(width) / std.divisor(width))


def _probes(case: Case, output: Array, t: Array, per_sigma: float) -> _Probes | None:
    """The intervals of S = t/|y|; in differences of opposite elements the common mode of the mean's rounding cancels."""
    fmt, u = case.out_format, case.errors.compute.u
    with np.errstate(all="ignore"):
        size = 0.5 * np.abs(output[:, 0::2] - output[:, 1::2])
        half = 0.25 * (fmt.ulp(output[:, 0::2]) + fmt.ulp(output[:, 1::2])) + 2 * case.errors.compute.min_subnormal
        share = t * per_sigma * size[:, 0] / t
        phi = np.where(share >= 0.5, 1.0, share)
        slack = u * (0.5 * (case.classes["sequential"].height + 4) * phi + _ROUNDINGS) + case.x_format.u * case.inner_cast
        low = (t[:, None] / (size + half)).max(axis=1) * (1 - slack)
        high = (t[:, None] / np.maximum(size - half, 0.0)).min(axis=1) * (1 + slack)
    known = np.isfinite(low) & ~np.isnan(high) & case.errors.judged()
    if not known.any():
        return None
    order = np.argsort(t[known])
    return _Probes((t[known] * per_sigma)[order], low[known][order], high[known][order])


def _verdict(context: Context, case: Case, output: Array, probes: _Probes) -> Result | None:
    claimed, eps = context.norm.eps_placement, case.errors.standardization.eps
    fitting = [p for p in PLACEMENTS if probes.fits(p, eps)]
    if set(fitting) == set(PLACEMENTS):
        return None
    low, high = probes.effective(claimed)
    measures = {"eps_low": low, "eps_high": high, "placements": float(len(fitting))}
    failed = claimed not in fitting
    return context.result(
        "epsilon-placement",
        Outcome.FAILED if failed else Outcome.PASSED,
        _message(case, probes, claimed, eps) if failed else "",
        regime="tiny",
        shape=tuple(case.fold.shape),
        measures=measures,
        witness=witness(context, case, output, lambda smaller, out: beyond(smaller, out, pass_class(context)))
        if failed
        else None,
        series=_series(probes, eps),
    )


def _message(case: Case, probes: _Probes, claimed: EpsPlacement, eps: float) -> str:
    """What was found instead: the claimed placement with another eps, or another placement."""
    should = f"but should be eps={eps:.6g} {claimed} [{describe(case)}]"
    for placement in (claimed, *(p for p in PLACEMENTS if p != claimed)):
        if placement == "none":
            found = "no eps" if probes.fits("none", 0.0) else ""
        else:
            low, high = probes.effective(placement)
            found = f"eps={(low + high) / 2:.6g} {placement}" if 0 < low <= high or low <= 0 < high else ""
        if found:
            return f"{found} (within {abs(high - low):.2g}), {should}" if placement != "none" else f"{found}, {should}"
    return f"eps fits no placement, {should}"


def _series(probes: _Probes, eps: float) -> dict[str, tuple[tuple[float, float], ...]]:
    """Gains sigma/S against sigma, measured and of every placement."""
    every = slice(None, None, max(1, len(probes.sigma) // 60))
    sigma = probes.sigma[every]
    with np.errstate(all="ignore"):
        middle = np.sqrt(probes.low[every] * np.minimum(probes.high[every], 1e300))
        curves = {"measured": sigma / middle} | {p: sigma / denominator(sigma, p, eps) for p in PLACEMENTS}
    return {name: tuple((float(a), float(b)) for a, b in zip(sigma, curve, strict=True)) for name, curve in curves.items()}
