"""Level 0 of the ladder: float64 in two passes, with a rigorous bound on the error."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from normcheck.formats import Array, Format, Mask
from normcheck.reference import loops
from normcheck.reference.arithmetic import U, height
from normcheck.reference.denominator import denominator, denominator_error
from normcheck.reference.loops import TINY, Loops
from normcheck.reference.problem import Problem

RANGE = 2.0**300
_Parts = tuple[Any, Array, Array, Array, Array | None, Array | None]


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
        m, scale, parts = _parts(p, loops)
        return Values(*_with_none(loops.values(*parts)), m.mean, np.sqrt(m.spread), scale)


def rounded0(p: Problem, where: Loops, fmt: Format) -> tuple[Array, Mask]:
    """What the bound of `level0` leaves no choice about: y rounded, and which elements of it are settled."""
    _, _, parts = _parts(p, where)
    value, settled = where.rounded(*parts, fmt)
    inside = in_range(p, where)
    return value, settled if inside.all() else settled & inside[:, None]


def standardized(p: Problem, where: Loops) -> tuple[Any, Array, Array, Array]:
    """c, and per row 1/S and the gain and shift of the error of c/S: what makes n, see `loops.values`."""
    c, reciprocal, gain, shift, _, _ = _parts(p.bare(), where)[2]
    return c, reciprocal, gain, shift


def _parts(p: Problem, where: Loops) -> tuple[Moments, Array, _Parts]:
    """Moments, S, and what the last loop over the elements takes."""
    m = moments(p, where)
    scale, relative = denominators(p, m)
    reciprocal = 1.0 / scale
    weight = p.weight + p.offset if p.weight is not None and p.offset else p.weight
    shift = 1.02 * m.mean_error * reciprocal + TINY
    return m, scale, (m.c, reciprocal, 1.02 * (relative + 6 * U), shift, weight, p.bias)


def _with_none(values: tuple[Array, Array]) -> tuple[Array, None, Array]:
    return values[0], None, values[1]


def denominators(p: Problem, m: Moments) -> tuple[Array, Array]:
    """S of each row and a bound on its relative error, inf where that is too large to be of use."""
    eps, placement = p.standardization.eps, p.standardization.placement
    scale = denominator(m.spread, eps, placement)
    relative = denominator_error(m.spread, m.spread_error, eps, placement, U, U) / scale
    return scale, np.where(relative <= 1 / 128, relative, np.inf)


def in_range(p: Problem, where: Loops = loops) -> Mask:
    """Rows whose non-zero elements and given statistics, and an eps, whose squares stay clear of over- and underflow."""
    eps = p.standardization.eps
    if eps != 0 and not RANGE**-2 <= eps <= RANGE**2:
        return np.zeros(len(p.x), bool)
    inside = np.ones(len(p.x), bool) if p.moderate else where.within(p.x, RANGE)
    if p.mean is not None and p.variance is not None:
        inside &= loops.within(p.mean[:, None], RANGE) & loops.within(p.variance[:, None], RANGE**2)
    return inside


def moments(p: Problem, where: Loops = loops) -> Moments:
    """Statistics of the rows and their errors, see `level0`."""
    zero = np.zeros(len(p.x))
    if p.mean is not None and p.variance is not None:
        return Moments(p.mean, where.less(p.x, p.mean), p.variance, zero, zero)
    if not p.standardization.center:
        spread = where.squares(p.x[:, : p.count]) / p.divisor
        return Moments(zero, p.x, spread, zero, 1.01 * (height(p.count) + 2) * U * spread)
    width, h, found = float(p.width), height(p.width), where.centred(p.x)
    error = 1.01 * (h + 3) * U * np.sqrt(found.reference)
    moved = (h + 8) * U * (found.squares / width + found.shift * found.shift) + error * error
    return Moments(found.mean, found.c, found.squares / p.divisor, error, 1.01 * (width / p.divisor) * moved)
