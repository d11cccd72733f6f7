"""Level 1 of the ladder: double-double arithmetic on rows scaled by powers of two, for any finite float64 input."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from normcheck.formats import Array, Format, Mask
from normcheck.norms import EpsPlacement
from normcheck.reference import arithmetic as dd
from normcheck.reference import loops_dd
from normcheck.reference.arithmetic import DD, U2, height
from normcheck.reference.denominator import denominator_error
from normcheck.reference.float64 import Values
from normcheck.reference.loops_dd import LOST, CentredDD, Weight, exponent_of, power_product, scaled
from normcheck.reference.problem import Problem
from normcheck.reference.settling import Triple

ROOT = 3.2 * U2
ADD = 3.1 * U2


class LoopsDD(Protocol):
    """What a place of execution has to offer to this level, see `normcheck.reference.loops_dd`."""

    def scaled(self, x: Array) -> tuple[Array, Array, Array]:
        """Rows in units of powers of two."""

    def rough_mean(self, x: Array) -> Array:
        """A first mean in float64."""

    def centred_dd(self, x: Array, first: Array) -> CentredDD:
        """Rows less their mean."""

    def elements_dd(
        self, c: DD, inverse: DD, gain: Array, shift: Array, weight: Weight | None, exponent: Array, bias: Array | None
    ) -> tuple[Array, Array, Array]:
        """Values and errors."""

    def settle_dd(self, values: Triple, fmt: Format) -> tuple[Array, Mask]:
        """The rounding test, see `settle`."""


class ScaledMoments(NamedTuple):
    """Level 1's statistics: mean in units of 2**exponent, c in those of 2**exponent, s2 in those of 4**spread_exponent."""

    mean: Array
    c: DD
    exponent: Array
    spread: DD
    spread_exponent: Array
    mean_error: Array
    spread_error: Array


class Denominator(NamedTuple):
    """S, at least 1/2, and 1/S, s2 and eps in units of 2**exponent or 4**exponent, with the errors of S (relative) and s2."""

    scale: DD
    inverse: DD
    relative: Array
    exponent: Array
    spread: DD
    spread_error: Array
    eps: Array


def level1(p: Problem, where: LoopsDD = loops_dd) -> Values:
    """Standardize in double-double and bound the error of every element: about 2**-99 of it for D = 2**17.

    Every row is scaled by 2**-k, k the exponent of its largest element, and eps with it; S is scaled by 2**-K, K the exponent of
    the larger of s and eps; weights by that of the largest in the row. The powers of two are multiplied back at the end. What a
    scaling loses to underflow, at most 2**-1074 per element, is added to the bound as 2**-1070, or as nothing where it was exact.

    Notes
    -----
    u2 = 2**-106; the errors of single operations are in `arithmetic`; h is the height of the tree; 1.02 covers second-order
    terms.

    *Mean.* A first mean m1 comes from float64; x - m1 is a double-double exactly (two_sum); d, the mean of what is left, has the
    error e <= (3h+3)u2 mean|x - m1| <= (3h+4)u2 sqrt(v + d**2); c = x - m1 - d adds 3u2 relative. So nothing depends on the size
    of the mean.
    *Statistic.* Squares 2*3u2 + 7u2, sum 3h u2, division 3u2: |s2^ - s2| <= (3h+16)u2 s2 + N/N' e**2.
    *Denominator.* `denominator_error` with 3.1u2 per addition and 3.2u2 per root.
    *Element.* Reciprocal 15u2, product 7u2, c 3u2, product with offset + w (exact by two_sum) 7u2: rel + 33u2; addition of b 2u2
    of y.
    """
    with np.errstate(all="ignore"):
        m, d = statistics(p, where)
        weight, by = _scaled_weight(p)
        gain, shift = 1.02 * (d.relative + 33 * U2), 1.02 * m.mean_error * d.inverse[0]
        hi, lo, err = where.elements_dd(m.c, d.inverse, gain, shift, weight, m.exponent - d.exponent + by, p.bias)
        largest = np.finfo(np.float64).max
        sigma = np.minimum(np.ldexp(np.sqrt(m.spread[0]), m.spread_exponent), largest)
        scale = np.minimum(np.ldexp(d.scale[0], d.exponent), largest)
        return Values(hi, lo, err, np.ldexp(m.mean, m.exponent), sigma, scale)


def statistics(p: Problem, where: LoopsDD = loops_dd) -> tuple[ScaledMoments, Denominator]:
    """ScaledMoments and denominators of the rows, see `level1`."""
    m = _moments(p, where)
    return m, _denominator(m, p.standardization.eps, p.standardization.placement)


def row(a: DD) -> DD:
    """One number per row, to be met by all elements."""
    return a[0][:, None], a[1][:, None]


def _moments(p: Problem, where: LoopsDD) -> ScaledMoments:
    if p.mean is not None and p.variance is not None:
        return _given_moments(p, p.mean, p.variance)
    x, exponent, lost = where.scaled(p.x)
    if p.standardization.center:
        return _centred_moments(p, x, exponent, lost, where)
    return _uncentred_moments(p, x, exponent, lost)


def _given_moments(p: Problem, mean: Array, variance: Array) -> ScaledMoments:
    x, exponent, lost = scaled(np.concatenate([p.x, mean[:, None]], axis=1))
    c = dd.two_sum(x[:, :-1], -x[:, -1:])
    half = _half(exponent_of(variance))
    spread = np.ldexp(variance, -2 * half)
    zero = np.zeros_like(mean)
    return ScaledMoments(x[:, -1], c, exponent, (spread, zero), half, 2 * lost, zero)


def _centred_moments(p: Problem, x: Array, exponent: Array, lost: Array, where: LoopsDD) -> ScaledMoments:
    width, h = float(p.width), height(p.width)
    first = where.rough_mean(x)
    c, squares, shift = where.centred_dd(x, first)
    biased = squares[0] / width
    error = 1.02 * (3 * h + 4) * U2 * np.sqrt(biased + shift[0] * shift[0]) + lost
    spread = dd.divide_double(squares, np.full_like(first, p.divisor))
    spread_error = 1.02 * ((3 * h + 16) * U2 * spread[0] + width / p.divisor * (error * error + lost * np.sqrt(biased)))
    return ScaledMoments(first + shift[0], c, exponent, spread, exponent, error, spread_error)


def _uncentred_moments(p: Problem, x: Array, exponent: Array, lost: Array) -> ScaledMoments:
    statistic, own, own_lost = x, exponent, lost
    if p.count < p.width:
        statistic, own, own_lost = scaled(p.x[:, : p.count])
    squares = dd.tree_sum_dd(dd.two_product(statistic, statistic))
    zero = np.zeros_like(squares[0])
    spread = dd.divide_double(squares, np.full_like(zero, p.divisor))
    spread_error = 1.02 * (3 * height(p.count) + 4) * U2 * spread[0] + 2 * own_lost
    return ScaledMoments(zero, (x, np.zeros_like(x)), exponent, spread, own, lost, spread_error)


def _denominator(m: ScaledMoments, eps: float, placement: EpsPlacement) -> Denominator:
    squared = placement in ("inside", "max_inside")
    own = m.spread_exponent + _half(exponent_of(m.spread[0]))
    of_eps = _half(exponent_of(np.asarray(eps))) if squared else exponent_of(np.asarray(eps))
    exponent = np.where(m.spread[0] > 0, own, of_eps)
    if eps > 0 and placement != "none":
        exponent = np.maximum(exponent, of_eps)
    by = 2 * (m.spread_exponent - exponent)
    spread, error = (np.ldexp(m.spread[0], by), np.ldexp(m.spread[1], by)), np.ldexp(m.spread_error, by)
    scaled = np.ldexp(eps, -2 * exponent if squared else -exponent)
    scale = _combine(spread, scaled, placement)
    relative = denominator_error(spread[0], error, scaled, placement, ADD, ROOT) / scale[0]
    inverse = dd.divide((np.ones_like(scale[0]), np.zeros_like(scale[0])), scale)
    return Denominator(scale, inverse, np.where(relative <= 1 / 128, relative, np.inf), exponent, spread, error, scaled)


def _half(exponent: Array) -> Array:
    return -(-exponent // 2)


def _combine(spread: DD, eps: Array, placement: EpsPlacement) -> DD:
    if placement == "inside":
        return dd.square_root(dd.add_double(spread, eps))
    if placement == "max_inside":
        return dd.square_root(_maximum(spread, eps))
    sigma = dd.square_root(spread)
    if placement == "outside":
        return dd.add_double(sigma, eps)
    return _maximum(sigma, eps) if placement == "max" else sigma


def _maximum(a: DD, b: Array) -> DD:
    larger = (a[0] > b) | ((a[0] == b) & (a[1] > 0))
    return np.where(larger, a[0], b), np.where(larger, a[1], 0.0)


def _scaled_weight(p: Problem) -> tuple[Weight | None, Array]:
    """offset + w in units of 2**exponent, and that exponent. The scaled |n| it meets is at most 4."""
    if p.weight is None:
        return None, np.zeros(1, np.intc)
    weight = dd.two_sum(p.weight, np.full_like(p.weight, p.offset))
    by = exponent_of(np.abs(weight[0]).max(axis=1, initial=0.0))
    hi, lo = (power_product(part, -by[:, None]) for part in weight)
    exact = (power_product(hi, by[:, None]) == weight[0]) & (power_product(lo, by[:, None]) == weight[1])
    return Weight(hi, lo, np.where(exact, 0.0, LOST)), by
