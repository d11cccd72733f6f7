"""Gradients of weight and bias: sums over rows, correctly rounded, by the ladder.

The gradient of a weight is the sum of dy times n, that of a bias the sum of dy, over the elements that meet the parameter.
Products and sums are formed in float64, then in double-double for the parameters that the rounding test leaves open, then in
rationals: each row contributes some a + b sqrt(t), roots of equal t are collected, and enclosures of the rest are narrowed until
they decide. Sums of unlike square roots that meet a midpoint are the one thing no enclosure decides: those are reported as not
certified.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import numpy as np

from normcheck.formats import Array, Format, Mask
from normcheck.norms import Fold
from normcheck.reference import arithmetic as dd
from normcheck.reference.arithmetic import DD, U2, U, height, tree_sum, tree_sum_dd
from normcheck.reference.exact import ExactRow, exact_row, integers, is_tie, root_enclosure, round_fraction
from normcheck.reference.exceptional import exceptional
from normcheck.reference.float64 import in_range, level0, standardized
from normcheck.reference.ladder import Certified, Level, certify_problem, round_problem
from normcheck.reference.loops_dd import LOST, underflow
from normcheck.reference.places import Place, fastest
from normcheck.reference.problem import Problem, taken
from normcheck.reference.rows import Index
from normcheck.reference.rungs import BLOCK, new_counts
from normcheck.reference.settling import Triple, settle
from normcheck.reference.threads import each

_MOST_BITS = 4096


class Root(NamedTuple):
    """The number a + b sqrt(t)."""

    a: Fraction
    b: Fraction
    t: Fraction


class Factor(Protocol):
    """What dy is multiplied by before it is summed."""

    def triple(self, p: Problem, level: Level) -> Triple:
        """Values and errors on a block of rows, the errors infinite where nothing is known."""

    def columns(self, p: Problem, dy: Array, where: Place) -> tuple[Array, Array, Array] | None:
        """Sums over a block of rows as hi, lo and err; None where the place offers no such loop, or not for this factor."""

    def exact(self, p: Problem, r: int) -> Callable[[int], Root]:
        """Element i of row r, exactly."""


class Normalized:
    """n, for the gradient of a weight."""

    def triple(self, p: Problem, level: Level) -> Triple:
        """n with its error."""
        if level == "double-double":
            return _triple(certify_problem(p, level))
        values = level0(p)
        hi, lo, err = values.hi, np.zeros_like(values.hi), values.err
        rows = np.flatnonzero(~(np.isfinite(err.sum(axis=1)) & in_range(p)))
        if rows.size:
            better = certify_problem(p.rows(rows), level)
            hi[rows], lo[rows], err[rows] = _triple(better)
        return Triple(hi, lo, err)

    def columns(self, p: Problem, dy: Array, where: Place) -> tuple[Array, Array, Array] | None:
        """Sums of dy times n, where float64 serves all rows."""
        if where.columns is None or not in_range(p, where.float64).all():
            return None
        return where.columns(dy, standardized(p, where.float64))

    def exact(self, p: Problem, r: int) -> Callable[[int], Root]:
        """c_i/S as a + b sqrt(t)."""
        row: ExactRow = exact_row(p, r)
        a, b = row.inverse
        return lambda i: Root(row.c(i) * a, row.c(i) * b, row.radicand)


def _triple(found: Certified) -> Triple:
    return Triple(found.hi, found.lo, found.err)


@dataclass(frozen=True)
class Rounded:
    """n rounded to a format, for a weight that meets the rounded value."""

    fmt: Format

    def triple(self, p: Problem, level: Level) -> Triple:
        """The rounded n, which has no error."""
        n = round_problem(p, self.fmt, new_counts())
        return Triple(n, np.zeros_like(n), np.zeros_like(n))

    def columns(self, p: Problem, dy: Array, where: Place) -> None:
        """None: a sum of rounded values."""

    def exact(self, p: Problem, r: int) -> Callable[[int], Root]:
        """The rounded n."""
        n = round_problem(p.rows(slice(r, r + 1)), self.fmt, new_counts())[0]
        return lambda i: Root(Fraction(float(n[i])), Fraction(0), Fraction(0))


class One:
    """1, for the gradient of a bias."""

    def triple(self, p: Problem, level: Level) -> Triple:
        """Ones without error."""
        one, zero = np.ones_like(p.x), np.zeros_like(p.x)
        return Triple(one, zero, zero)

    def columns(self, p: Problem, dy: Array, where: Place) -> tuple[Array, Array, Array] | None:
        """Sums of dy."""
        return None if where.columns is None else where.columns(dy, None)

    def exact(self, p: Problem, r: int) -> Callable[[int], Root]:
        """1."""
        return lambda i: Root(Fraction(1), Fraction(0), Fraction(0))


@dataclass(frozen=True, eq=False)
class Totals:
    """Sums per parameter, (period, K): hi + lo and a bound on its error, and the sum of what is not finite."""

    hi: Array
    lo: Array
    err: Array
    special: Array

    def __getitem__(self, chosen: slice) -> Totals:
        """Some of the parameter rows, as views."""
        return Totals(*(getattr(self, name)[chosen] for name in ("hi", "lo", "err", "special")))

    def add(self, other: Totals) -> None:
        """Add other sums in place, without error where two doubles hold the sum: by two-sums, whose rest is added to err."""
        hi, rest = dd.two_sum(self.hi, other.hi)
        lo, left = dd.two_sum(self.lo, other.lo)
        lo, more = dd.two_sum(lo, rest)
        self.hi[:], self.lo[:] = dd.two_sum(hi, lo)
        self.err[:] += 1.01 * (other.err + np.abs(left) + np.abs(more))
        self.special[:] += other.special


@dataclass(frozen=True, eq=False)
class _Work:
    problem: Problem
    dy: Any
    fold: Fold
    factor: Factor


def parameter_gradient(p: Problem, dy: Any, fold: Fold, factor: Factor, fmt: Format, counts: dict[str, int]) -> Array:
    """Sums of dy times a factor per parameter, rounded; (period, K) float64. What is or rounds to zero is +0.

    ``counts`` are raised by ``elements``, ``level1``, ``level2``, ``ties`` and ``uncertified``.
    """
    work = _Work(p, dy, fold, factor)
    if 0 in p.shape:
        return np.zeros((fold.period, _count(fold)))
    with np.errstate(all="ignore"):
        totals = _sum_all(work, "float64")
        value, settled = _round(totals, fmt)
        counts["elements"] += value.size
        if not settled.all():
            counts["level1"] += int((~settled).sum())
            columns = np.flatnonzero(~settled.all(axis=0))
            better, proved = _round(_sum_all(work, "double-double", columns), fmt)
            value[:, columns] = np.where(settled[:, columns], value[:, columns], better)
            settled[:, columns] |= proved
            left = np.argwhere(~settled)
            counts["level2"] += len(left)
            _resolve(work, fmt, value, left, counts)
        return value + 0.0  # the levels would not agree on the sign of a zero


def _round(totals: Totals, fmt: Format) -> tuple[Array, Mask]:
    value, settled = settle(Triple(totals.hi, totals.lo, totals.err), fmt)
    # an infinity beside a term of which nothing is known may still become a NaN
    special = np.isnan(totals.special) | ((totals.special != 0) & np.isfinite(totals.err))
    return np.where(special, fmt.round(totals.special), value), settled & (totals.special == 0) | special


def _sum_all(work: _Work, level: Level, columns: Index | None = None) -> Totals:
    """Sums of all parameters, or of those in some columns."""
    fold = work.fold
    count = _count(fold) if columns is None else len(columns)
    totals = Totals(*(np.zeros((fold.period, count)) for _ in range(4)))
    large = level == "float64" and fastest(fold.rows * fold.width).narrow
    blocks = aligned_blocks(fold.rows, fold.width, fold.period, 4 * BLOCK if large else BLOCK)
    for chosen, part in each(lambda chosen: (chosen, _sum_block(work, chosen, level, columns)), blocks):
        first = chosen.start % fold.period
        totals[slice(first, first + len(part.hi))].add(part)
    return totals


def _count(fold: Fold) -> int:
    """Parameters that a row meets."""
    return fold.width // fold.repeat if fold.repeat else 1


def aligned_blocks(rows: int, width: int, period: int, elements: int) -> Iterator[slice]:
    """Blocks of about so many elements: whole periods of rows, or parts of one."""
    step = max(1, elements // max(width, 1))
    if step >= period:
        step -= step % period
        yield from (slice(start, min(start + step, rows)) for start in range(0, rows, step))
        return
    for base in range(0, rows, period):
        yield from (slice(start, min(start + step, base + period)) for start in range(base, base + period, step))


def _sum_block(work: _Work, chosen: slice, level: Level, columns: Index | None) -> Totals:
    swift = _sum_columns(work, chosen) if level == "float64" and work.fold.period == work.fold.repeat == 1 else None
    if swift is not None:
        return swift
    with np.errstate(all="ignore"):
        dy, n = np.asarray(work.dy[chosen], np.float64), work.factor.triple(work.problem.rows(chosen), level)
        repeat = work.fold.repeat or work.fold.width
        if columns is not None and len(columns) * repeat < work.fold.width:
            met = (columns[:, None] * repeat + np.arange(repeat)).ravel()
            dy, n = dy[:, met], Triple(n.hi[:, met], _low(n)[:, met], n.err[:, met])
        product, err = _products(dy, n, level)
        special = np.zeros_like(dy)
        if not np.isfinite(product[0] + product[1]).all():
            product, err, special = _ieee(dy, n, product, err)
        q = min(work.fold.period, len(dy))
        layout = (len(dy) // q, q, repeat)
        size = 1.01 * _reduce_plain(np.abs(product[0]), layout)
        unit = 1.01 * U if level == "float64" else 3.1 * U2
        err = 1.01 * _reduce_plain(err, layout) + (height(layout[0]) + height(layout[2])) * unit * size
        return Totals(*_reduce(product, layout, level), err, _reduce_plain(special, layout))


def _sum_columns(work: _Work, chosen: slice) -> Totals | None:
    """Sums by a loop made for them, where there is one and all is finite."""
    where = fastest(work.problem.shape[0] * work.problem.shape[1])
    with np.errstate(all="ignore"):
        found = work.factor.columns(work.problem.rows(chosen, where.narrow), taken(work.dy, chosen, where.narrow), where)
    if found is None or not np.isfinite(found[0] + found[2]).all():
        return None
    hi, lo, err = (part[None, :] for part in found)
    return Totals(hi, lo, err, np.zeros_like(hi))


def _low(n: Triple) -> Array:
    return np.zeros_like(n.hi) if n.lo is None else n.lo


def _ieee(dy: Array, n: Triple, product: DD, err: Array) -> tuple[DD, Array, Array]:
    """Products and errors with those taken out that IEEE arithmetic decides, and these."""
    known = np.isfinite(product[0]) & np.isfinite(product[1])
    signed = (n.err == 0) | (np.abs(n.hi) > n.err)  # an infinite dy has the sign of n, and is NaN where n is 0
    decided = ~np.isfinite(product[0]) & (np.isnan(dy) | (np.isinf(dy) & signed) | ((n.err == 0) & ~np.isfinite(n.hi)))
    err = np.where(decided, 0.0, np.where(known, err, np.inf))
    hi, lo = (np.where(known, part, 0.0) for part in product)
    return (hi, lo), err, np.where(decided, dy * n.hi, 0.0)


def _products(dy: Array, n: Triple, level: Level) -> tuple[DD, Array]:
    lo = _low(n)
    if level == "float64":
        product = dy * n.hi
        return (product, np.zeros_like(dy)), np.abs(dy) * (n.err + np.abs(lo)) + 1.01 * U * np.abs(product) + LOST
    hi, low = dd.multiply((n.hi, lo), (dy, np.zeros_like(dy)))
    err = np.abs(dy) * n.err
    err = err + underflow(err, (dy != 0) & (n.err != 0)) + underflow(hi, (dy != 0) & (n.hi != 0))
    return (hi, low), err + 7.1 * U2 * np.abs(hi)


Layout = tuple[int, int, int]


def _reduce(product: DD, layout: Layout, level: Level) -> DD:
    if level == "float64":
        hi = _reduce_plain(product[0], layout)
        return hi, np.zeros_like(hi)
    m, q, repeat = layout
    inner = tree_sum_dd((product[0].reshape(-1, repeat), product[1].reshape(-1, repeat)))
    hi, lo = tree_sum_dd((inner[0].reshape(m, -1).T, inner[1].reshape(m, -1).T))
    return hi.reshape(q, -1), lo.reshape(q, -1)


def _reduce_plain(a: Array, layout: Layout) -> Array:
    m, q, repeat = layout
    return tree_sum(tree_sum(a.reshape(-1, repeat)).reshape(m, -1).T).reshape(q, -1)


def _resolve(work: _Work, fmt: Format, value: Array, left: Index, counts: dict[str, int]) -> None:
    """Replace the values of the parameters (row, column) in ``left`` by what rationals decide."""
    for k in np.unique(left[:, 0]):
        columns = left[left[:, 0] == k, 1].tolist()
        for column, (special, a, roots) in zip(columns, _collect(work, int(k), columns), strict=True):
            if special != 0:
                value[k, column] = fmt.round(np.float64(special))
                continue
            decided = _decide(a, [(b, t) for t, b in roots.items() if b != 0], fmt)
            if decided is None:
                counts["uncertified"] += 1
            else:
                value[k, column], tie = decided
                counts["ties"] += tie


Collected = list[tuple[float, Fraction, dict[Fraction, Fraction]]]


def _collect(work: _Work, k: int, columns: list[int]) -> Collected:
    """Per column what IEEE arithmetic decides, the rational part of its sum, and the factors of roots by their radicands."""
    if isinstance(work.factor, One):
        return _collect_dy(work, k, columns)
    p, dy, fold, factor = work.problem, work.dy, work.fold, work.factor
    repeat = fold.repeat or fold.width
    special, rational = [0.0] * len(columns), [Fraction(0)] * len(columns)
    roots = [defaultdict[Fraction, Fraction](Fraction) for _ in columns]
    for r in range(k, len(p.x), fold.period):
        chosen = slice(r, r + 1)
        element, slope = factor.exact(p, r), np.asarray(dy[chosen], np.float64)[0]
        mask, ieee = (part[0] for part in exceptional(p.rows(chosen)))
        for position, column in enumerate(columns):
            for i in range(column * repeat, (column + 1) * repeat):
                if mask[i] or not math.isfinite(slope[i]):
                    special[position] += float(slope[i]) * (float(ieee[i]) if mask[i] else _sign(element(i)))
                    continue
                root, factor_dy = element(i), Fraction(float(slope[i]))
                rational[position] += factor_dy * root.a
                roots[position][root.t] += factor_dy * root.b
    return list(zip(special, rational, roots, strict=True))


def _sign(root: Root) -> float:
    """-1, 0 or 1; a root beside a rational is narrowed until it decides."""
    if root.b == 0:
        return float((root.a > 0) - (root.a < 0))
    bits = 128
    while True:
        lower, upper = sorted(root.a + root.b * end for end in root_enclosure(root.t, bits))
        if lower > 0 or upper < 0:
            return 1.0 if lower > 0 else -1.0
        bits *= 2


def _collect_dy(work: _Work, k: int, columns: list[int]) -> Collected:
    repeat, period = work.fold.repeat or work.fold.width, work.fold.period
    met = (np.array(columns)[:, None] * repeat + np.arange(repeat)).ravel()
    step = period * max(1, BLOCK // work.fold.width)
    starts = range(k, work.fold.rows, step)
    parts = [work.dy[np.arange(start, min(start + step, work.fold.rows), period)][:, met] for start in starts]
    elements = np.concatenate(parts).astype(np.float64).reshape(-1, len(columns), repeat)
    sums = (integers(elements[:, position].ravel()) for position in range(len(columns)))
    return [(0.0, sum(whole) * unit, {}) for whole, unit in sums]


def _decide(a: Fraction, roots: list[tuple[Fraction, Fraction]], fmt: Format) -> tuple[float, bool] | None:
    """a + sum of b sqrt(t) rounded, and whether it was a tie; None where no enclosure of reasonable width decides."""
    if not roots:
        return round_fraction(a, fmt), is_tie(a, fmt)
    bits = 128
    while bits <= _MOST_BITS:
        pairs = [sorted(b * end for end in root_enclosure(t, bits)) for b, t in roots]
        lower, upper = (round_fraction(a + sum(ends, Fraction(0)), fmt) for ends in zip(*pairs, strict=True))
        if lower == upper or lower is upper:
            return lower, False
        bits *= 2
    return None
