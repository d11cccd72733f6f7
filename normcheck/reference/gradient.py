"""The gradient with respect to the input, on the levels of the ladder.

With n = c/S, g = (offset + w) dy, gbar the mean of g where the norm subtracts a mean and 0 elsewhere, and dS/d(s2) = 1/(2T),

    dx_j = (g_j - gbar)/S - n_j Q/(N' S T),    Q = sum_i (g_i - gbar) c_i,

the last term only for elements of the statistic, and only where S moves with s2: not for given statistics, nor where max(., eps)
takes eps (at equality it takes s2). T is S, or sigma for eps placed ``outside``, where the term vanishes with sigma. N' is the
divisor of s2. A gradient that reaches x besides (a residual's second output) is added.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from normcheck.formats import Array, Format, Mask
from normcheck.reference import arithmetic as dd
from normcheck.reference import loops, loops_dd
from normcheck.reference.arithmetic import DD, U2, U, height, tree_sum
from normcheck.reference.denominator import bend
from normcheck.reference.double_double import (
    ROOT,
    Denominator,
    LoopsDD,
    ScaledMoments,
    row,
    statistics,
)
from normcheck.reference.exact import ExactRow, exact_row, parameter
from normcheck.reference.exceptional import ordinary
from normcheck.reference.float64 import RANGE, Moments, denominators, in_range, moments
from normcheck.reference.loops import TINY, Loops, Pull, Slope
from normcheck.reference.loops_dd import LOST, exponent_of, power_product, unscale
from normcheck.reference.problem import Problem, finite_or_zero, row_blocks, taken
from normcheck.reference.rows import Index
from normcheck.reference.rungs import Rungs
from normcheck.reference.settling import Triple

_RANGE = RANGE**0.5
_FLOOR = 2.0**-530
_VANISHING = 2.0**-800


@dataclass(frozen=True, eq=False)
class Backward:
    """A problem, the gradient dy of its output, and the gradient that reaches x besides, if there is one; all (R, D).

    ``moderate`` tells that dy is known to be of a format narrower than float64.
    """

    problem: Problem
    dy: Any
    besides: Any = None
    moderate: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """(R, D)."""
        return self.problem.shape

    def rows(self, chosen: Index | slice, narrow: bool = False) -> Backward:
        """The same for some of the rows, see `Problem.rows`."""
        besides = None if self.besides is None else taken(self.besides, chosen, False)
        moderate = self.moderate or self.dy.dtype.itemsize < 8
        return Backward(self.problem.rows(chosen, narrow), taken(self.dy, chosen, narrow), besides, moderate)

    def blocks(self, elements: int, narrow: bool = False) -> Iterator[tuple[slice, Backward]]:
        """The same in blocks of rows that hold about so many elements."""
        for chosen in row_blocks(*self.shape, elements):
            yield chosen, self.rows(chosen, narrow)

    def finite(self) -> Backward:
        """The same with 0 for whatever is not finite."""
        besides = None if self.besides is None else finite_or_zero(self.besides)
        weight = None if self.problem.weight is None else finite_or_zero(self.problem.weight)
        return Backward(replace(self.problem.finite(), weight=weight), finite_or_zero(self.dy), besides)


def gradient0(b: Backward) -> Triple:
    """dx in float64 with a bound on its error.

    Notes
    -----
    Symbols as in `level0`; ||.|| is the Euclidean norm of a row, M = ||g||/sqrt(D), which no mean of |g| exceeds. g costs two
    roundings; gbar is off by e_g = (h+3)u M. In Q the roundings of g, gbar and c (2u|c| and e, the error of the mean), of the
    products and of the sum give |Q^ - Q| <= (2h+11)u ||g|| ||c|| + sqrt(D) ||g|| e by Cauchy and Schwarz. k = Q/(N' S T) adds the
    relative errors of S and T and 4 roundings. The first term is off by rel S + 6u of itself and r(h+6)u M, the second by rel S +
    4u of itself, |n| times the error of k, and e r|k|; their difference and the sum with the other gradient are rounded once
    each.
    """
    with np.errstate(all="ignore"):
        dx, err = loops.slope_values(*_parts(b, loops))
        return Triple(dx, None, err)


def _rounded0(b: Backward, where: Loops, fmt: Format) -> tuple[Array, Mask]:
    value, settled = where.slopes(*_parts(b, where), fmt)
    return value, settled & gradient_in_range(b)[:, None]


def _parts(b: Backward, where: Loops) -> tuple[Array, Array, Slope, int, Array | None]:
    """What the last loop over the elements takes."""
    p = b.problem
    m = moments(p, where)
    scale, relative = denominators(p, m)
    weight = p.weight + p.offset if p.weight is not None and p.offset else p.weight
    found = where.pull(b.dy, weight, m.c, p.standardization.center and not p.given)
    return found.g, m.c, _slope(p, m, found, scale, relative, where), p.count, b.besides


def _slope(p: Problem, m: Moments, found: Pull, scale: Array, relative: Array, where: Loops) -> Slope:
    r, zero = 1.0 / scale, np.zeros_like(scale)
    first = 1.02 * (relative + 6 * U)
    if p.given:
        return Slope(r, zero, first, zero, zero, zero + TINY)
    eps, placement, h = p.standardization.eps, p.standardization.placement, height(p.width)
    size, size_c = np.sqrt(found.squares), np.sqrt(m.spread * p.divisor if p.count == p.width else where.squares(m.c))
    moves, relative_t = bend(m.spread, m.spread_error, relative, eps, placement, U)
    per_q = 1.0 / (p.divisor * scale * (np.sqrt(m.spread) if placement == "outside" else scale))
    k = np.where(moves, found.q * per_q, 0.0)
    q_error = (2 * h + 11) * U * size * size_c + np.sqrt(p.width) * size * m.mean_error
    k_error = 1.02 * q_error * per_q + np.abs(k) * (1.02 * (relative + relative_t) + 5 * U)
    k_error = np.where(moves | np.isinf(relative_t), k_error, 0.0) + TINY
    off = (h + 6) * U * size / np.sqrt(p.width) if p.standardization.center else zero
    return Slope(r, k, first, 1.02 * (relative + 4 * U), k_error, 1.02 * r * (m.mean_error * np.abs(k) + off) + TINY)


def gradient_in_range(b: Backward) -> Mask:
    """Rows on which `gradient0` meets neither over- nor underflow."""
    inside = in_range(b.problem)
    if not b.moderate:
        inside &= loops.within(b.dy, _RANGE)
    weight = b.problem.weight
    return inside if weight is None else inside & loops.within(weight, _RANGE)


def gradient1(b: Backward, where: LoopsDD = loops_dd) -> Triple:
    """dx in double-double on scaled rows with a bound on its error.

    Notes
    -----
    As `gradient0`, with the bounds of `arithmetic` in units of u2 for single roundings, rows scaled as in `level1`, g by the
    exponent of its largest element, and c by that of S, so that n is of order 1. g: 7; gbar (3h+11) M; g - gbar: 3 more; Q:
    products 7, sum 3h, c 3, in all (6h+40) ||g|| ||c|| + sqrt(D) ||g|| e; k: 40 and the relative errors; first term 33 and
    (3h+18) M; second 33. What scaling and products lose to underflow is at most 2**-1070 of these units, 2**-530 in ||c||.
    """
    p = b.problem
    with np.errstate(all="ignore"):
        m, d = statistics(p, where)
        g, exponent = _scaled_gradient(b)
        if p.given:
            dx = dd.multiply(g, row(d.inverse))
            err = np.abs(dx[0]) * (1.02 * (d.relative + 33 * U2))[:, None]
        else:
            dx, err = _through_statistics_dd(p, m, d, g)
        err = err + np.where((g[0] != 0).any(axis=1), 4 * LOST, 0.0)[:, None]
        hi, lo, err = unscale(dx, err, exponent - d.exponent)
        if b.besides is not None:
            hi, lo = dd.add_double((hi, lo), b.besides)
            err = err + 2.1 * U2 * np.abs(hi)
        return Triple(hi, lo, np.where(np.isfinite(hi) & np.isfinite(lo), 1.01 * err, np.inf))


def _through_statistics_dd(p: Problem, m: ScaledMoments, d: Denominator, g: DD) -> tuple[DD, Array]:
    placement, h, width, zero = p.standardization.placement, height(p.width), float(p.width), np.zeros(len(p.x))
    by = m.exponent - d.exponent
    c = power_product(m.c[0], by[:, None]), power_product(m.c[1], by[:, None])
    mean_error = np.ldexp(m.mean_error, by) + LOST
    size, size_c = np.sqrt(tree_sum(g[0] * g[0])), np.sqrt(tree_sum(c[0] * c[0])) + _FLOOR
    if p.standardization.center:
        mean = dd.divide_double(dd.tree_sum_dd(g), zero + width)
        g = dd.add(g, row((-mean[0], -mean[1])))
    # s2 may vanish in units of S, and sigma with it
    spread_error = np.where((m.spread[0] > 0) & (d.spread[0] < _VANISHING), np.inf, d.spread_error)
    moves, relative_t = bend(d.spread[0], spread_error, d.relative, d.eps, placement, ROOT)
    turn = dd.square_root(d.spread) if placement == "outside" else d.scale
    q = dd.tree_sum_dd(dd.multiply(g, c))
    quotient = dd.divide_double(dd.divide(dd.multiply(q, d.inverse), turn), zero + p.divisor)
    k = np.where(moves, quotient[0], 0.0), np.where(moves, quotient[1], 0.0)
    q_error = (6 * h + 40) * U2 * size * size_c + np.sqrt(width) * size * mean_error + width * LOST
    k_error = 1.02 * q_error * d.inverse[0] / (turn[0] * p.divisor)
    k_error = k_error + np.abs(k[0]) * (1.02 * (d.relative + relative_t) + 41 * U2)
    k_error = np.where(moves | np.isinf(relative_t), k_error, 0.0)
    spare = (3 * h + 18) * U2 * size / np.sqrt(width) if p.standardization.center else 0.0
    shift = 1.02 * d.inverse[0] * (mean_error * np.abs(k[0]) + spare)
    first, n = dd.multiply(g, row(d.inverse)), dd.multiply(c, row(d.inverse))
    for part in n:
        part[:, p.count :] = 0.0
    second = dd.multiply(n, row(k))
    dx = dd.add(first, (-second[0], -second[1]))
    err = (np.abs(first[0]) + np.abs(second[0])) * (1.02 * (d.relative + 33 * U2))[:, None]
    return dx, err + np.abs(n[0]) * k_error[:, None] + shift[:, None] + 3.1 * U2 * np.abs(dx[0])


def _scaled_gradient(b: Backward) -> tuple[DD, Array]:
    """g in units of 2**exponent, in which its largest element is about 1, and that exponent."""
    exponent = exponent_of(np.abs(b.dy).max(axis=1))
    dy = power_product(b.dy, -exponent[:, None])
    g: DD = (dy, np.zeros_like(dy))
    if b.problem.weight is not None:
        weight = dd.two_sum(b.problem.weight, np.full_like(b.problem.weight, b.problem.offset))
        by = exponent_of(np.abs(weight[0]).max(axis=1))
        g = dd.multiply(g, (power_product(weight[0], -by[:, None]), power_product(weight[1], -by[:, None])))
        own = exponent_of(np.abs(g[0]).max(axis=1))
        g = power_product(g[0], -own[:, None]), power_product(g[1], -own[:, None])
        exponent = exponent + by + own
    return g, exponent


def gradient_exceptional(b: Backward) -> tuple[Mask, Array]:
    """Which elements IEEE arithmetic decides, and dx for these.

    With own statistics every element of x, dy and weight enters every element of dx: where one of them is not finite, or S is 0,
    infinite or NaN, the row is NaN. With given statistics each element is by itself g/S.
    """
    p = b.problem
    with np.errstate(all="ignore"):
        regular, scale = ordinary(p)
        g = b.dy if p.weight is None else b.dy * (p.weight + p.offset)
        finite = np.isfinite(b.dy) if p.weight is None else np.isfinite(b.dy) & np.isfinite(p.weight)
        if p.given:
            mask, dx = ~(regular[:, None] & finite), g / np.where(regular, 1.0, scale)[:, None]
        else:
            whole = regular & finite.all(axis=1) & np.isfinite(p.x).all(axis=1)
            mask, dx = np.repeat(~whole[:, None], p.width, axis=1), np.full(p.x.shape, np.nan)
        if b.besides is not None:
            mask, dx = mask | ~np.isfinite(b.besides), np.where(mask, dx, 0.0) + b.besides
        return mask, dx


def exact_gradients(b: Backward, index: tuple[Index, Index], fmt: Format) -> tuple[Array, int]:
    """Rounded dx of the elements (rows, columns), decided in rationals, and how many were ties."""
    out, ties, current, slopes, b = np.empty(len(index[0])), 0, -1, None, b.finite()
    for position, (r, j) in enumerate(zip(*index, strict=True)):
        if r != current or slopes is None:
            current, slopes = r, exact_slopes(b, r)
        besides = Fraction(0) if b.besides is None else Fraction(float(b.besides[r, j]))
        out[position], tie = slopes.element(j, besides, fmt)
        ties += tie
    return out, ties


class ExactSlopes:
    """A row's gradient as numbers a + b sqrt(t)."""

    def __init__(self, x: ExactRow, g: list[Fraction]) -> None:
        s, width = x.standardization, len(g)
        self.row = x
        mean = sum(g, Fraction(0)) / width if s.center and not x.given else Fraction(0)
        self._g = [v - mean for v in g]
        self._count = s.count(width)
        q = sum((v * x.c(i) for i, v in enumerate(self._g)), Fraction(0)) if any(x.bend) else Fraction(0)
        a, b = x.bend
        self._k = q * a / s.divisor(width), q * b / s.divisor(width)

    def element(self, j: int, besides: Fraction, fmt: Format) -> tuple[float, bool]:
        """dx_j + besides rounded, and whether it was a tie."""
        parts = [self._g[j] * part for part in self.row.inverse]
        if j < self._count:
            parts = [part - self.row.c(j) * k for part, k in zip(parts, self._k, strict=True)]
        return self.row.rounded(parts[0] + besides, parts[1], fmt)


def exact_slopes(b: Backward, r: int) -> ExactSlopes:
    """Row r in rationals."""
    p = b.problem
    offset = Fraction(p.offset) if p.weight is not None else Fraction(0)
    g = [(offset + Fraction(parameter(p.weight, r, i, 1.0))) * Fraction(v) for i, v in enumerate(b.dy[r].tolist())]
    return ExactSlopes(exact_row(p, r), g)


GRADIENT: Rungs[Backward] = Rungs(_rounded0, gradient1, gradient_exceptional, exact_gradients)
