"""The heavy loops of the float64 level compiled by numba (extra ``fast``): the same operations in the same order.

Without fast-math nothing is reordered and no multiply-add is fused, so that every bit agrees with `normcheck.reference.loops`.
Rows come as float64 or float32 and no loop leaves a float64 copy of them behind: what they are less their mean is formed anew
in each loop, from the row and two numbers. No loop over a row has a branch in it, so that all of them become vector code.
"""

# mypy: disable-error-code="no-untyped-def"
# (what numba compiles takes its types from the arguments)

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from normcheck.formats import Array, Format, Mask
from normcheck.reference.loops import FAR, TINY, Centred, Pull, Slope

_U = 2.0**-53
_ONE = np.ones((1, 1))
_NOTHING = np.full((1, 1), -0.0)  # y + -0.0 is y, the sign of a zero included
_SIGN = np.int64(-1) << 63


class Less(NamedTuple):
    """Rows less their mean: c = (x - first) - shift."""

    x: Array
    first: Array
    shift: Array


class Slanted(NamedTuple):
    """g = weight * dy - mean."""

    dy: Array
    weight: Array
    mean: Array


def kernel(function: Any) -> Any:
    """Compile a function when it is first called; it lets go of the interpreter while it runs."""
    from numba import njit

    return njit(nogil=True, cache=True, error_model="numpy")(function)


def part(function: Any) -> Any:
    """A part of kernels with loops of its own."""
    from numba import njit

    return njit(nogil=True, cache=True, error_model="numpy", inline="always")(function)


def formula(function: Any) -> Any:
    """A formula on numbers: it becomes part of the loop that it is used in before that is made vector code."""
    from numba import njit

    return njit(nogil=True, cache=True, error_model="numpy", forceinline=True)(function)


@part
def power_below(width):
    """The largest power of two below a width, or 1."""
    keep = 1
    while 2 * keep < width:
        keep *= 2
    return keep


@part
def _halve(s, keep):
    """Sum of the first ``keep`` elements, a power of two, halves added to halves."""
    while keep > 8:
        keep //= 2
        low, high = s[:keep], s[keep : 2 * keep]
        for j in range(keep):
            low[j] += high[j]
    while keep > 1:
        keep //= 2
        for j in range(keep):
            s[j] += s[keep + j]
    return s[0]


@part
def tree_of(x, first, s, keep):
    """Sum of x - first."""
    rest = len(x) - keep
    for j in range(rest):
        s[j] = (x[j] - first) + (x[keep + j] - first)
    for j in range(rest, keep):
        s[j] = x[j] - first
    return _halve(s, keep)


@part
def flat_or(x, other):
    """The first element where all are equal, or another number."""
    unlike = 0
    for j in range(len(x)):
        unlike += x[j] != x[0]
    return other if unlike else np.float64(x[0])


@part
def _squared(x, first, shift, s, keep):
    """Sum of squares of (x - first) - shift."""
    rest = len(x) - keep
    for j in range(rest):
        a, b = (x[j] - first) - shift, (x[keep + j] - first) - shift
        s[j] = a * a + b * b
    for j in range(rest, keep):
        a = (x[j] - first) - shift
        s[j] = a * a
    return _halve(s, keep)


@kernel
def _centred(x, far, mean, first, squares, reference, shift):
    rows, width = x.shape
    keep = power_below(width)
    s = np.empty(keep)
    for r in range(rows):
        row = x[r]
        m = tree_of(row, 0.0, s, keep) / width
        f, d = m, 0.0
        q = _squared(row, f, d, s, keep)
        ref = m * m + q / width
        if m * m > far * q / width:
            f = flat_or(row, m)
            d = tree_of(row, f, s, keep) / width
            q = _squared(row, f, d, s, keep)
            ref, m = q / width + d * d, f + d
        mean[r], first[r], squares[r], reference[r], shift[r] = m, f, q, ref, d


def centred(x: Array) -> Centred:
    """As `normcheck.reference.loops.centred`."""
    mean, first, total, reference, shift = np.empty((5, len(x)))
    _centred(x, FAR, mean, first, total, reference, shift)
    return Centred(mean, Less(x, first, shift), total, reference, shift)


@kernel
def _squares(x, out):
    keep = power_below(x.shape[1])
    s = np.empty(keep)
    for r in range(x.shape[0]):
        out[r] = _squared(x[r], 0.0, 0.0, s, keep)


def squares(x: Array) -> Array:
    """As `normcheck.reference.loops.squares`."""
    out = np.empty(len(x))
    _squares(x, out)
    return out


def less(x: Array, mean: Array) -> Less:
    """As `normcheck.reference.loops.less`."""
    return Less(x, mean, np.zeros(len(x)))


def as_less(c: Any) -> Less:
    """c as the loops take it: rows that nothing was subtracted from come as they are."""
    return c if isinstance(c, Less) else less(c, np.zeros(len(c)))


@formula
def _nearest(y, drop, min_normal, anchor, largest):
    """y rounded to a narrow format, inf beyond its largest value."""
    a = abs(y)
    small = (a + anchor) - anchor
    bits = np.float64(a).view(np.int64)
    bits = ((bits + (np.int64(1) << (drop - 1)) - 1 + ((bits >> drop) & 1)) >> drop) << drop
    v = small if a < min_normal else np.int64(bits).view(np.float64)
    v = np.inf if v > largest else v
    sign = np.float64(y).view(np.int64) & _SIGN
    return np.int64(np.float64(v).view(np.int64) | sign).view(np.float64)


@formula
def _test32(y, wide, out, settled, j):
    out[j] = np.float32(y)
    settled[j] = np.float32(y - wide) == np.float32(y + wide)


@formula
def _test(y, wide, drop, min_normal, anchor, largest, out, settled, j):
    out[j] = np.float32(_nearest(y, drop, min_normal, anchor, largest))
    lower = _nearest(y - wide, drop, min_normal, anchor, largest)
    upper = _nearest(y + wide, drop, min_normal, anchor, largest)
    settled[j] = (lower == upper) & (wide < np.inf)


@part
def row_of(parameter, r, buffer):
    """What row r meets of a parameter of any shape."""
    row = parameter[r if parameter.shape[0] > 1 else 0]
    if len(row) < len(buffer):
        buffer[:] = row[0]
        row = buffer
    return row


@formula
def _value(x, first, shift, reciprocal, gain, spare, w, tiny, b, unit):
    """An element of y and how wide the interval is that it may lie in."""
    n = ((x - first) - shift) * reciprocal
    y = n * w + b
    err = (abs(n) * gain + spare) * abs(w) + tiny
    return y, (err + unit * abs(y)) + 1.01 * _U * abs(y)


@kernel
def _rounded(x, first, shift, reciprocal, gain, spare, weight, tiny, bias, unit, p, drop, normal, anchor, largest, out, settled):
    rows, width = x.shape
    weights, biases = np.empty(width), np.empty(width)
    for r in range(rows):
        row, values, known = x[r], out[r], settled[r]
        w, b = row_of(weight, r, weights), row_of(bias, r, biases)
        f, d, i, g, e = first[r], shift[r], reciprocal[r], gain[r], spare[r]
        if p == 24:
            for j in range(width):
                y, wide = _value(row[j], f, d, i, g, e, w[j], tiny, b[j], unit)
                _test32(y, wide, values, known, j)
        else:
            for j in range(width):
                y, wide = _value(row[j], f, d, i, g, e, w[j], tiny, b[j], unit)
                _test(y, wide, drop, normal, anchor, largest, values, known, j)


def rounded(
    c: Any, reciprocal: Array, gain: Array, shift: Array, weight: Array | None, bias: Array | None, fmt: Format
) -> tuple[npt.NDArray[np.float32], Mask]:
    """As `normcheck.reference.loops.rounded`; float32 holds what narrower formats hold."""
    c = as_less(c)
    out, settled = np.empty(c.x.shape, np.float32), np.empty(c.x.shape, bool)
    w = (_ONE, 0.0) if weight is None else (np.ascontiguousarray(weight), TINY)
    b = (_NOTHING, 0.0) if bias is None else (np.ascontiguousarray(bias), 1.01 * _U)
    _rounded(*c, reciprocal, gain, shift, *w, *b, fmt.p, *_constants(fmt), out, settled)
    return _without_inf(out, fmt), settled


@kernel
def _within(x, least, most, out):
    for r in range(x.shape[0]):
        outside = 0
        for j in range(x.shape[1]):
            a = abs(x[r, j])
            outside += 0 if (a <= most) & ((a >= least) | (a == 0.0)) else 1
        out[r] = outside == 0


def within(x: Array, limit: float) -> Mask:
    """As `normcheck.reference.loops.within`."""
    out = np.empty(len(x), bool)
    _within(x, 1 / limit, limit, out)
    return out


@kernel
def _pull(dy, weight, center, x, first, shift, mean, squares, q):
    rows, width = dy.shape
    keep = power_below(width)
    rest = width - keep
    s, weights = np.empty(keep), np.empty(width)
    for r in range(rows):
        g, w, c, f, d, m = dy[r], row_of(weight, r, weights), x[r], first[r], shift[r], 0.0
        for j in range(rest):
            a, b = g[j] * w[j], g[keep + j] * w[keep + j]
            s[j] = a * a + b * b
        for j in range(rest, keep):
            a = g[j] * w[j]
            s[j] = a * a
        squares[r] = _halve(s, keep)
        if center:
            for j in range(rest):
                s[j] = g[j] * w[j] + g[keep + j] * w[keep + j]
            for j in range(rest, keep):
                s[j] = g[j] * w[j]
            m = _halve(s, keep) / width
        for j in range(rest):
            a, b = (c[j] - f) - d, (c[keep + j] - f) - d
            s[j] = (g[j] * w[j] - m) * a + (g[keep + j] * w[keep + j] - m) * b
        for j in range(rest, keep):
            s[j] = (g[j] * w[j] - m) * ((c[j] - f) - d)
        mean[r], q[r] = m, _halve(s, keep)


def pull(dy: Array, weight: Array | None, c: Any, center: bool) -> Pull:
    """As `normcheck.reference.loops.pull`."""
    w = _ONE if weight is None else np.ascontiguousarray(weight)
    mean, total, q = np.empty((3, len(dy)))
    _pull(dy, w, center, *as_less(c), mean, total, q)
    return Pull(Slanted(dy, w, mean), total, q)


@formula
def _slope(dy, w, mean, n, r, k, first, second, k_error, shift, besides, unit):
    """An element of dx and how wide the interval is that it may lie in."""
    ahead, back = (dy * w - mean) * r, n * k
    y = ahead - back
    err = abs(ahead) * first + abs(back) * second + abs(n) * k_error + shift + 1.01 * _U * abs(y)
    y = y + besides
    return y, (err + unit * abs(y)) + 1.01 * _U * abs(y)


@kernel
def _slopes(dy, weight, mean, x, less, again, slope, count, besides, unit, p, drop, normal, anchor, largest, out, settled):
    rows, width = dy.shape
    weights, more = np.empty(width), np.empty(width)
    for i in range(rows):
        g, c, values, known = dy[i], x[i], out[i], settled[i]
        w, b, m, f, d = row_of(weight, i, weights), row_of(besides, i, more), mean[i], less[i], again[i]
        r, k, first = slope[0, i], slope[1, i], slope[2, i]
        second, k_error, shift = slope[3, i], slope[4, i], slope[5, i]
        if p == 24:
            for j in range(width):
                n = ((c[j] - f) - d) * r if j < count else 0.0
                y, wide = _slope(g[j], w[j], m, n, r, k, first, second, k_error, shift, b[j], unit)
                _test32(y, wide, values, known, j)
        else:
            for j in range(width):
                n = ((c[j] - f) - d) * r if j < count else 0.0
                y, wide = _slope(g[j], w[j], m, n, r, k, first, second, k_error, shift, b[j], unit)
                _test(y, wide, drop, normal, anchor, largest, values, known, j)


def slopes(
    g: Slanted, c: Any, slope: Slope, count: int, besides: Array | None, fmt: Format
) -> tuple[npt.NDArray[np.float32], Mask]:
    """As `normcheck.reference.loops.slopes`; float32 holds what narrower formats hold."""
    out, settled = np.empty(g.dy.shape, np.float32), np.empty(g.dy.shape, bool)
    more = (_NOTHING, 0.0) if besides is None else (np.ascontiguousarray(besides, np.float64), 1.01 * _U)
    _slopes(*g, *as_less(c), np.stack(slope), count, *more, fmt.p, *_constants(fmt), out, settled)
    return _without_inf(out, fmt), settled


def _constants(fmt: Format) -> tuple[int, float, float, float]:
    return 53 - fmt.p, fmt.min_normal, 1.5 * 2.0**52 * fmt.min_subnormal, fmt.max


def _without_inf(out: npt.NDArray[np.float32], fmt: Format) -> npt.NDArray[np.float32]:
    return out if fmt.has_inf else np.where(np.isinf(out), np.float32(np.nan), out)
