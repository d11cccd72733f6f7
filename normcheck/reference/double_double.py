"""Level 1 of the ladder: double-double arithmetic on rows scaled by powers of two, for any finite float64 input."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from normcheck.formats import Array, Mask
from normcheck.norms import EpsPlacement
from normcheck.reference import arithmetic as dd
from normcheck.reference.arithmetic import DD, U2, height, tree_sum
from normcheck.reference.denominator import denominator_error
from normcheck.reference.float64 import Values
from normcheck.reference.problem import Problem

LOST = 2.0**-1070
_SMALL = 2.0**-900
ROOT = 3.2 * U2
ADD = 3.1 * U2


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


def level1(p: Problem) -> Values:
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
        m, d = statistics(p)
        n = dd.multiply(m.c, row(d.inverse))
        err = np.abs(n[0]) * (1.02 * (d.relative + 33 * U2))[:, None] + (1.02 * m.mean_error * d.inverse[0])[:, None]
        hi, lo, err = _affine(p, n, err + underflow(n[0], m.c[0] != 0), m.exponent - d.exponent)
        largest = np.finfo(np.float64).max
        sigma = np.minimum(np.ldexp(np.sqrt(m.spread[0]), m.spread_exponent), largest)
        scale = np.minimum(np.ldexp(d.scale[0], d.exponent), largest)
        return Values(hi, lo, err, np.ldexp(m.mean, m.exponent), sigma, scale)


def statistics(p: Problem) -> tuple[ScaledMoments, Denominator]:
    """ScaledMoments and denominators of the rows, see `level1`."""
    m = _moments(p)
    return m, _denominator(m, p.standardization.eps, p.standardization.placement)


def row(a: DD) -> DD:
    """One number per row, to be met by all elements."""
    return a[0][:, None], a[1][:, None]


def exponent_of(largest: Array) -> Array:
    """Exponent e of a magnitude in [2**(e-1), 2**e); 0 for 0."""
    return np.frexp(largest)[1]


def scale_by(x: Array, exponent: Array) -> tuple[Array, Array]:
    """Rows times 2**exponent, and a bound per row on what underflow took."""
    scaled = power_product(x, exponent[:, None])
    lossless = (power_product(scaled, -exponent[:, None]) == x).all(axis=1)
    return scaled, np.where(lossless, 0.0, LOST)


def power_product(x: Array, exponent: Array) -> Array:
    """x * 2**exponent by two multiplications, much faster than ldexp; for exponents up to 2046."""
    half = exponent // 2
    return (x * np.ldexp(1.0, half)) * np.ldexp(1.0, exponent - half)


def _moments(p: Problem) -> ScaledMoments:
    largest = np.abs(p.x).max(axis=1, initial=0.0)
    if p.mean is not None and p.variance is not None:
        return _given_moments(p, p.mean, p.variance, np.maximum(largest, np.abs(p.mean)))
    exponent = exponent_of(largest)
    x, lost = scale_by(p.x, -exponent)
    if p.standardization.center:
        return _centred_moments(p, x, exponent, lost)
    return _uncentred_moments(p, x, exponent, lost)


def _given_moments(p: Problem, mean: Array, variance: Array, largest: Array) -> ScaledMoments:
    exponent = exponent_of(largest)
    x, lost = scale_by(np.concatenate([p.x, mean[:, None]], axis=1), -exponent)
    c = dd.two_sum(x[:, :-1], -x[:, -1:])
    half = _half(exponent_of(variance))
    spread = np.ldexp(variance, -2 * half)
    zero = np.zeros_like(mean)
    return ScaledMoments(x[:, -1], c, exponent, (spread, zero), half, 2 * lost, zero)


def _centred_moments(p: Problem, x: Array, exponent: Array, lost: Array) -> ScaledMoments:
    width, h = float(p.width), height(p.width)
    rough = tree_sum(x) / width
    first = np.where((p.x == p.x[:, :1]).all(axis=1), x[:, 0], rough)
    left = dd.two_sum(x, -first[:, None])
    shift = dd.divide_double(dd.tree_sum_dd(left), np.full_like(first, width))
    c = dd.add(left, (-shift[0][:, None], -shift[1][:, None]))
    squares = dd.tree_sum_dd(dd.multiply(c, c))
    biased = squares[0] / width
    error = 1.02 * (3 * h + 4) * U2 * np.sqrt(biased + shift[0] * shift[0]) + lost
    spread = dd.divide_double(squares, np.full_like(first, p.divisor))
    spread_error = 1.02 * ((3 * h + 16) * U2 * spread[0] + width / p.divisor * (error * error + lost * np.sqrt(biased)))
    return ScaledMoments(first + shift[0], c, exponent, spread, exponent, error, spread_error)


def _uncentred_moments(p: Problem, x: Array, exponent: Array, lost: Array) -> ScaledMoments:
    statistic, own, own_lost = x, exponent, lost
    if p.count < p.width:
        own = exponent_of(np.abs(p.x[:, : p.count]).max(axis=1))
        statistic, own_lost = scale_by(p.x[:, : p.count], -own)
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


def _affine(p: Problem, n: DD, err: Array, exponent: Array) -> tuple[Array, Array, Array]:
    """Unscale, after multiplying by the weight; then add the bias."""
    if p.weight is not None:
        weight = dd.two_sum(p.weight, np.full_like(p.weight, p.offset))
        by = exponent_of(np.abs(weight[0]).max(axis=1, initial=0.0))
        w = power_product(weight[0], -by[:, None]), power_product(weight[1], -by[:, None])
        product = dd.multiply(n, w)
        err = err * np.abs(w[0]) + underflow(product[0], (weight[0] != 0) & (n[0] != 0)) + _lost_weight(w, weight, by)
        n, exponent = product, exponent + by
    hi, lo, err = unscale(n, err, exponent[:, None])
    if p.bias is not None:
        hi, lo = dd.add_double((hi, lo), np.broadcast_to(p.bias, hi.shape))
        err = err + 2.1 * U2 * np.abs(hi)
    return hi, lo, np.where(np.isfinite(hi) & np.isfinite(lo), 1.01 * err, np.inf)


def underflow(product: Array, nonzero: Mask) -> Array:
    """What a product of factors that are not 0 may have lost to underflow."""
    return np.where(nonzero & (np.abs(product) < _SMALL), LOST, 0.0)


def _lost_weight(w: DD, weight: DD, by: Array) -> Array:
    # the scaled |n| is at most 4
    exact = [power_product(scaled, by[:, None]) == part for scaled, part in zip(w, weight, strict=True)]
    return np.where(exact[0] & exact[1], 0.0, LOST)


def unscale(n: DD, err: Array, exponent: Array) -> tuple[Array, Array, Array]:
    """Numbers and their errors times 2**exponent, with what underflow took."""
    hi, lo = power_product(n[0], exponent), power_product(n[1], exponent)
    exact = (power_product(hi, -exponent) == n[0]) & (power_product(lo, -exponent) == n[1])
    return hi, lo, power_product(err, exponent) + np.where(exact, 0.0, 2 * LOST)
