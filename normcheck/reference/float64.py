"""Level 0 of the ladder: float64 in two passes, with a rigorous bound on the error."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from normcheck.formats import Array, Mask
from normcheck.reference.arithmetic import U, height, tree_sum
from normcheck.reference.denominator import denominator, denominator_error
from normcheck.reference.problem import Problem

TINY = 2.0**-1070
RANGE = 2.0**300
_FAR = 4.0


class Values(NamedTuple):
    """What a level computed: |hi + lo - y| <= err elementwise, and the statistics of the rows."""

    hi: Array
    lo: Array | None
    err: Array
    mean: Array
    sigma: Array
    scale: Array


class Moments(NamedTuple):
    """Mean, c = x - mean and s2 of each row, with bounds on the absolute error of mean and s2."""

    mean: Array
    c: Array
    spread: Array
    mean_error: Array
    spread_error: Array


def level0(p: Problem) -> Values:
    """Standardize in float64 by two passes and bound the error of every element.

    Notes
    -----
    u = 2**-53, h = ceil(log2 N) is the height of the summation tree over the N elements of the statistic; hats mark computed
    values. All factors 1 + O(h u) are covered by the factors 1.01 and 1.02 (h < 64). `in_range` keeps squares from over- and
    underflow.

    *Mean.* |m^ - m| <= (h+1)u A with A = mean|x| <= sqrt(m**2 + v), v the biased variance. Where m^**2 > 4 v^ the mean of c^ is
    subtracted once more, d^ = mean(c^): the roundings of c^ cost u(|c| + |d|), those of d^ (h+1)u mean|c^|, and the error of the
    mean becomes e = (h+3)u sqrt(v + d**2), whatever the mean of the row.
    *Statistic.* c^ differs from x - m^ - d^ by a relative 2u and an absolute u|d|; so the root mean square of c^ is off by at
    most 2.02u rms(c^) + 1.01u|d|, its square by (5u)(v + d**2); squaring, summing and dividing add (h+2)u; the error e of the
    mean adds e**2 to the mean square. In all |s2^ - s2| <= N/N' ((h+8)u (v + d**2) + e**2), with N' the divisor; without a mean
    (h+2)u s2.
    *Denominator.* `denominator_error` with u for additions and for the root gives dS; rel = dS/S^. Rows with rel > 1/128 get no
    bound.
    *Element.* n^ = c^ * RN(1/S^), then times RN(offset + w): at most 6 roundings (2 in c^, reciprocal, two products, offset + w)
    and the error of the mean: |w n - w n^| <= |w|(|n^|(1.02 rel + 6.12u) + 1.02 e/S^); the addition of b rounds once more.
    Products may underflow: 2**-1070(1 + |w|) more.
    """
    with np.errstate(all="ignore"):
        m = moments(p)
        scale, relative = denominators(p, m)
        gain = 1.02 * (relative + 6 * U)
        reciprocal = 1.0 / scale
        y = m.c * reciprocal[:, None]
        err = np.abs(y) * gain[:, None] + (1.02 * m.mean_error * reciprocal + TINY)[:, None]
        y, err = _affine(p, y, err)
        return Values(y, None, err, m.mean, np.sqrt(m.spread), scale)


def denominators(p: Problem, m: Moments) -> tuple[Array, Array]:
    """S of each row and a bound on its relative error, inf where that is too large to be of use."""
    eps, placement = p.standardization.eps, p.standardization.placement
    scale = denominator(m.spread, eps, placement)
    relative = denominator_error(m.spread, m.spread_error, eps, placement, U, U) / scale
    return scale, np.where(relative <= 1 / 128, relative, np.inf)


def in_range(p: Problem) -> Mask:
    """Rows whose non-zero elements and given statistics, and an eps, whose squares stay clear of over- and underflow."""
    eps = p.standardization.eps
    if eps != 0 and not RANGE**-2 <= eps <= RANGE**2:
        return np.zeros(len(p.x), bool)
    inside = np.asarray(within(p.x, RANGE).all(axis=1))
    if p.mean is not None and p.variance is not None:
        inside &= within(p.mean, RANGE) & within(p.variance, RANGE**2)
    return inside


def within(x: Array, limit: float) -> Mask:
    """Which elements are 0 or of a modulus between 1/limit and limit."""
    a = np.abs(x)
    inside: Mask = (a <= limit) & ((a >= 1 / limit) | (a == 0.0))
    return inside


def moments(p: Problem) -> Moments:
    """Statistics of the rows and their errors, see `level0`."""
    zero = np.zeros(len(p.x))
    if p.mean is not None and p.variance is not None:
        return Moments(p.mean, p.x - p.mean[:, None], p.variance, zero, zero)
    if not p.standardization.center:
        statistic = p.x[:, : p.count]
        spread = tree_sum(statistic * statistic) / p.divisor
        return Moments(zero, p.x, spread, zero, 1.01 * (height(p.count) + 2) * U * spread)
    return _centred_moments(p)


def _centred_moments(p: Problem) -> Moments:
    width, h = float(p.width), height(p.width)
    mean = tree_sum(p.x) / width
    c = p.x - mean[:, None]
    squares = tree_sum(c * c)
    reference = mean * mean + squares / width
    shift = np.zeros_like(mean)
    far = np.flatnonzero(mean * mean > _FAR * squares / width)
    if far.size:
        first, shift[far], c[far] = recentre(p.x[far], mean[far])
        squares[far] = tree_sum(c[far] * c[far])
        reference[far] = squares[far] / width + shift[far] * shift[far]
        mean[far] = first + shift[far]
    error = 1.01 * (h + 3) * U * np.sqrt(reference)
    moved = (h + 8) * U * (squares / width + shift * shift) + error * error
    return Moments(mean, c, squares / p.divisor, error, 1.01 * (width / p.divisor) * moved)


def recentre(x: Array, mean: Array) -> tuple[Array, Array, Array]:
    """A first mean (the element itself where all are equal: all that follows is then exact), the mean of what is left, and c."""
    first = np.where((x == x[:, :1]).all(axis=1), x[:, 0], mean)
    c = x - first[:, None]
    shift = tree_sum(c) / float(x.shape[1])
    return first, shift, c - shift[:, None]


def _affine(p: Problem, y: Array, err: Array) -> tuple[Array, Array]:
    if p.weight is not None:
        weight = p.weight + p.offset if p.offset else p.weight
        y = y * weight
        err = err * np.abs(weight) + TINY
    if p.bias is not None:
        y = y + p.bias
        err = err + 1.01 * U * np.abs(y)
    return y, err
