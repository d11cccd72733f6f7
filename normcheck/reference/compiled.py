"""The heavy loops of the float64 level compiled by numba (extra ``fast``): the same operations in the same order.

Without fast-math nothing is reordered and no multiply-add is fused, so that every bit agrees with `normcheck.reference.loops`.
"""

# mypy: disable-error-code="no-untyped-def"
# (what numba compiles takes its types from the arguments)

from __future__ import annotations

from typing import Any

import numpy as np

from normcheck.formats import Array, Format, Mask
from normcheck.reference.loops import FAR, TINY, Centred, Pull, Slope

NONE = np.empty((0, 0))
_U = 2.0**-53


def kernel(function: Any) -> Any:
    """Compile a function when it is first called; it lets go of the interpreter while it runs."""
    from numba import njit

    return njit(nogil=True, cache=True, error_model="numpy")(function)


def inlined(function: Any) -> Any:
    """A part of kernels."""
    from numba import njit

    return njit(nogil=True, cache=True, error_model="numpy", inline="always")(function)


@inlined
def _halve(s, keep):
    """Sum of the first ``keep`` elements, a power of two, halves added to halves."""
    while keep > 1:
        keep //= 2
        low, high = s[:keep], s[keep : 2 * keep]
        for j in range(keep):
            low[j] += high[j]
    return s[0]


@inlined
def power_below(width):
    """The largest power of two below a width, or 1."""
    keep = 1
    while 2 * keep < width:
        keep *= 2
    return keep


@inlined
def _sum(x, s, keep):
    rest = len(x) - keep
    head, tail = x[:keep], x[keep:]
    for j in range(rest):
        s[j] = head[j] + tail[j]
    for j in range(rest, keep):
        s[j] = head[j]
    return _halve(s, keep)


@inlined
def _dot(x, y, s, keep):
    rest = len(x) - keep
    for j in range(rest):
        s[j] = x[j] * y[j] + x[keep + j] * y[keep + j]
    for j in range(rest, keep):
        s[j] = x[j] * y[j]
    return _halve(s, keep)


@kernel
def _centred(x, far, mean, c, squares, reference, shift):
    rows, width = x.shape
    keep = power_below(width)
    s = np.empty(keep)
    for r in range(rows):
        row, centred = x[r], c[r]
        m = _sum(row, s, keep) / width
        for j in range(width):
            centred[j] = row[j] - m
        q, d = _dot(centred, centred, s, keep), 0.0
        ref = m * m + q / width
        if m * m > far * q / width:
            flat = True
            for j in range(width):
                flat &= row[j] == row[0]
            first = row[0] if flat else m
            for j in range(width):
                centred[j] = row[j] - first
            d = _sum(centred, s, keep) / width
            for j in range(width):
                centred[j] = centred[j] - d
            q = _dot(centred, centred, s, keep)
            ref, m = q / width + d * d, first + d
        mean[r], squares[r], reference[r], shift[r] = m, q, ref, d


def centred(x: Array) -> Centred:
    """As `normcheck.reference.loops.centred`."""
    c, rows = np.empty(x.shape), [np.empty(len(x)) for _ in range(4)]
    _centred(x, FAR, rows[0], c, rows[1], rows[2], rows[3])
    return Centred(rows[0], c, rows[1], rows[2], rows[3])


@kernel
def _squares(x, out):
    keep = power_below(x.shape[1])
    s = np.empty(keep)
    for r in range(x.shape[0]):
        out[r] = _dot(x[r], x[r], s, keep)


def squares(x: Array) -> Array:
    """As `normcheck.reference.loops.squares`."""
    out = np.empty(len(x))
    _squares(x, out)
    return out


@inlined
def _nearest(y, drop, min_normal, anchor, largest):
    """y rounded to a narrow format, inf beyond its largest value."""
    a = abs(y)
    small = (a + anchor) - anchor
    bits = np.float64(a).view(np.int64)
    bits = ((bits + (np.int64(1) << (drop - 1)) - 1 + ((bits >> drop) & 1)) >> drop) << drop
    v = small if a < min_normal else np.int64(bits).view(np.float64)
    v = np.inf if v > largest else v
    return np.copysign(v, y)


@inlined
def _test32(y, err, out, settled):
    for j in range(len(y)):
        wide = err[j] + 1.01 * _U * abs(y[j])
        out[j] = np.float32(y[j])
        settled[j] = np.float32(y[j] - wide) == np.float32(y[j] + wide)


@inlined
def _test(y, err, out, settled, drop, min_normal, anchor, largest):
    for j in range(len(y)):
        wide = err[j] + 1.01 * _U * abs(y[j])
        out[j] = _nearest(y[j], drop, min_normal, anchor, largest)
        lower = _nearest(y[j] - wide, drop, min_normal, anchor, largest)
        upper = _nearest(y[j] + wide, drop, min_normal, anchor, largest)
        settled[j] = (lower == upper) & (wide < np.inf)


@inlined
def _meet(y, err, weight, bias, r):
    """Weight and bias in place."""
    if weight.size:
        w = weight[r if weight.shape[0] > 1 else 0]
        if len(w) > 1:
            for j in range(len(y)):
                y[j] = y[j] * w[j]
                err[j] = err[j] * abs(w[j]) + TINY
        else:
            for j in range(len(y)):
                y[j] = y[j] * w[0]
                err[j] = err[j] * abs(w[0]) + TINY
    if bias.size:
        b = bias[r if bias.shape[0] > 1 else 0]
        if len(b) > 1:
            for j in range(len(y)):
                y[j] = y[j] + b[j]
                err[j] = err[j] + 1.01 * _U * abs(y[j])
        else:
            for j in range(len(y)):
                y[j] = y[j] + b[0]
                err[j] = err[j] + 1.01 * _U * abs(y[j])


@kernel
def _rounded(c, reciprocal, gain, shift, weight, bias, p, drop, min_normal, anchor, largest, out, settled):
    rows, width = c.shape
    y, err = np.empty(width), np.empty(width)
    for r in range(rows):
        for j in range(width):
            y[j] = c[r, j] * reciprocal[r]
            err[j] = abs(y[j]) * gain[r] + shift[r]
        _meet(y, err, weight, bias, r)
        if p == 24:
            _test32(y, err, out[r], settled[r])
        else:
            _test(y, err, out[r], settled[r], drop, min_normal, anchor, largest)


def rounded(
    c: Array, reciprocal: Array, gain: Array, shift: Array, weight: Array | None, bias: Array | None, fmt: Format
) -> tuple[Array, Mask]:
    """As `normcheck.reference.loops.rounded`."""
    out, settled = np.empty(c.shape), np.empty(c.shape, bool)
    affine = (NONE if part is None else np.ascontiguousarray(part) for part in (weight, bias))
    _rounded(c, reciprocal, gain, shift, *affine, fmt.p, *_constants(fmt), out, settled)
    return _without_inf(out, fmt), settled


def less(x: Array, mean: Array) -> Array:
    """As `normcheck.reference.loops.less`."""
    return x - mean[:, None]


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
def _pull(dy, weight, c, center, g, squares, q):
    rows, width = dy.shape
    keep = power_below(width)
    s = np.empty(keep)
    for r in range(rows):
        row = g[r]
        for j in range(width):
            row[j] = dy[r, j]
        if weight.size:
            w = weight[r if weight.shape[0] > 1 else 0]
            wide = len(w) > 1
            for j in range(width):
                row[j] = row[j] * w[j if wide else 0]
        squares[r] = _dot(row, row, s, keep)
        if center:
            mean = _sum(row, s, keep) / width
            for j in range(width):
                row[j] = row[j] - mean
        q[r] = _dot(row, c[r], s, keep)


def pull(dy: Array, weight: Array | None, c: Array, center: bool) -> Pull:
    """As `normcheck.reference.loops.pull`."""
    g, total, q = np.empty(dy.shape), np.empty(len(dy)), np.empty(len(dy))
    _pull(dy, NONE if weight is None else np.ascontiguousarray(weight), c, center, g, total, q)
    return Pull(g, total, q)


@kernel
def _slopes(g, c, slope, count, besides, p, drop, min_normal, anchor, largest, out, settled):
    rows, width = g.shape
    y, err = np.empty(width), np.empty(width)
    for i in range(rows):
        r, k, first = slope[0, i], slope[1, i], slope[2, i]
        second, k_error, shift = slope[3, i], slope[4, i], slope[5, i]
        for j in range(width):
            n = c[i, j] * r if j < count else 0.0
            ahead, back = g[i, j] * r, n * k
            y[j] = ahead - back
            err[j] = abs(ahead) * first + abs(back) * second + abs(n) * k_error + shift + 1.01 * _U * abs(y[j])
        if besides.size:
            for j in range(width):
                y[j] = y[j] + besides[i, j]
                err[j] = err[j] + 1.01 * _U * abs(y[j])
        if p == 24:
            _test32(y, err, out[i], settled[i])
        else:
            _test(y, err, out[i], settled[i], drop, min_normal, anchor, largest)


def slopes(g: Array, c: Array, slope: Slope, count: int, besides: Array | None, fmt: Format) -> tuple[Array, Mask]:
    """As `normcheck.reference.loops.slopes`."""
    out, settled = np.empty(g.shape), np.empty(g.shape, bool)
    more = NONE if besides is None else besides
    _slopes(g, c, np.stack(slope), count, more, fmt.p, *_constants(fmt), out, settled)
    return _without_inf(out, fmt), settled


def _constants(fmt: Format) -> tuple[int, float, float, float]:
    return 53 - fmt.p, fmt.min_normal, 1.5 * 2.0**52 * fmt.min_subnormal, fmt.max


def _without_inf(out: Array, fmt: Format) -> Array:
    return out if fmt.has_inf else np.where(np.isinf(out), np.nan, out)
