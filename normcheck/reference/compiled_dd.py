"""The heavy loops of the double-double level compiled by numba, bit for bit those of `normcheck.reference.loops_dd`."""

# mypy: disable-error-code="no-untyped-def"
# (what numba compiles takes its types from the arguments)

from __future__ import annotations

import numpy as np

from normcheck.formats import Array, Format, Mask
from normcheck.reference.arithmetic import DD, U2
from normcheck.reference.compiled import flat_or, formula, kernel, part, power_below, row_of, tree_of
from normcheck.reference.loops_dd import LOST, SMALL, CentredDD, Weight, exponent_of, powers
from normcheck.reference.settling import Triple, settle

_SPLITTER = 2.0**27 + 1.0
_NONE = np.empty((0, 0))


@formula
def _two_sum(a, b):
    s = a + b
    z = s - a
    return s, (a - (s - z)) + (b - z)


@formula
def _fast_two_sum(a, b):
    s = a + b
    return s, b - (s - a)


@formula
def _two_product(a, b):
    p = a * b
    t = _SPLITTER * a
    a_hi = t - (t - a)
    a_lo = a - a_hi
    t = _SPLITTER * b
    b_hi = t - (t - b)
    b_lo = b - b_hi
    return p, ((a_hi * b_hi - p) + a_hi * b_lo + a_lo * b_hi) + a_lo * b_lo


@formula
def _add(a_hi, a_lo, b_hi, b_lo):
    s, s_lo = _two_sum(a_hi, b_hi)
    t, t_lo = _two_sum(a_lo, b_lo)
    v, v_lo = _fast_two_sum(s, s_lo + t)
    return _fast_two_sum(v, t_lo + v_lo)


@formula
def _multiply(a_hi, a_lo, b_hi, b_lo):
    p, p_lo = _two_product(a_hi, b_hi)
    return _fast_two_sum(p, p_lo + (a_hi * b_lo + a_lo * b_hi))


@part
def _tree(hi, lo, width):
    """Sum of the first ``width`` double-doubles, in place."""
    keep = power_below(width)
    while width > 1:
        high, low, more_high, more_low = hi[:keep], lo[:keep], hi[keep:width], lo[keep:width]
        for j in range(width - keep):
            high[j], low[j] = _add(high[j], low[j], more_high[j], more_low[j])
        width = keep
        keep = keep // 2 if keep > 1 else 1
    return hi[0], lo[0]


@formula
def _divide_double(a_hi, a_lo, b):
    q = a_hi / b
    p, p_lo = _two_product(q, b)
    return _fast_two_sum(q, (((a_hi - p) - p_lo) + a_lo) / b)


@kernel
def _largest(x, out):
    for r in range(x.shape[0]):
        # bits of magnitudes are ordered as these are, and their maximum is vector code
        most = np.int64(0)
        for j in range(x.shape[1]):
            most = max(most, np.float64(abs(x[r, j])).view(np.int64))
        out[r] = np.int64(most).view(np.float64)


@kernel
def _scaled(x, down, up, out, lost):
    for r in range(x.shape[0]):
        changed = 0
        for j in range(x.shape[1]):
            smaller = x[r, j] * down[0, r] * down[1, r]
            out[r, j] = smaller
            changed += smaller * up[0, r] * up[1, r] != x[r, j]
        lost[r] = LOST if changed else 0.0


def scaled(x: Array) -> tuple[Array, Array, Array]:
    """As `normcheck.reference.loops_dd.scaled`."""
    largest, out, lost = np.empty(len(x)), np.empty(x.shape), np.empty(len(x))
    _largest(x, largest)
    exponent = exponent_of(largest)
    _scaled(x, powers(-exponent), powers(exponent), out, lost)
    return out, exponent, lost


@kernel
def _rough_mean(x, out):
    width = x.shape[1]
    keep = power_below(width)
    s = np.empty(keep)
    for r in range(len(x)):
        out[r] = flat_or(x[r], tree_of(x[r], 0.0, s, keep) / width)


def rough_mean(x: Array) -> Array:
    """As `normcheck.reference.loops_dd.rough_mean`."""
    out = np.empty(len(x))
    _rough_mean(x, out)
    return out


@kernel
def _centred(x, first, c_hi, c_lo, squares_hi, squares_lo, shift_hi, shift_lo):
    rows, width = x.shape
    hi, lo = np.empty(width), np.empty(width)
    for r in range(rows):
        high, low = c_hi[r], c_lo[r]
        for j in range(width):
            high[j], low[j] = _two_sum(x[r, j], -first[r])
            hi[j], lo[j] = high[j], low[j]
        total, rest = _tree(hi, lo, width)
        d, d_lo = _divide_double(total, rest, float(width))
        for j in range(width):
            high[j], low[j] = _add(high[j], low[j], -d, -d_lo)
            hi[j], lo[j] = _multiply(high[j], low[j], high[j], low[j])
        squares_hi[r], squares_lo[r] = _tree(hi, lo, width)
        shift_hi[r], shift_lo[r] = d, d_lo


def centred_dd(x: Array, first: Array) -> CentredDD:
    """As `normcheck.reference.loops_dd.centred_dd`."""
    c, rows = (np.empty(x.shape), np.empty(x.shape)), [np.empty(len(x)) for _ in range(4)]
    _centred(x, first, *c, *rows)
    return CentredDD(c, (rows[0], rows[1]), (rows[2], rows[3]))


@formula
def _underflow(product, nonzero):
    return LOST if nonzero & (abs(product) < SMALL) else 0.0


@formula
def _standardized(c, c_lo, i, i_lo, gain, shift):
    n, n_lo = _multiply(c, c_lo, i, i_lo)
    return n, n_lo, (abs(n) * gain + shift) + _underflow(n, c != 0)


@formula
def _weighted(hi, lo, err, w, w_lo, w_lost):
    p, p_lo = _multiply(hi, lo, w, w_lo)
    less = err * abs(w)
    less = less + _underflow(less, (err != 0) & (w != 0))
    return p, p_lo, (less + _underflow(p, (w != 0) & (hi != 0))) + w_lost


@formula
def _unscaled(hi, lo, err, up, again, down, back):
    h, low = hi * up * again, lo * up * again
    exact = (h * down * back == hi) & (low * down * back == lo)
    return h, low, err * up * again + (0.0 if exact else 2 * LOST)


@formula
def _plus(hi, lo, err, b):
    s, rest = _two_sum(hi, b)
    s, rest = _fast_two_sum(s, lo + rest)
    return s, rest, err + 2.1 * U2 * abs(s)


@formula
def _proved(hi, lo, err):
    return hi, lo, 1.01 * err if (abs(hi) < np.inf) & (abs(lo) < np.inf) else np.inf


@kernel
def _elements(c_hi, c_lo, i_hi, i_lo, gain, shift, w_hi, w_lo, w_lost, up, down, bias, out_hi, out_lo, out_err):
    rows, width = c_hi.shape
    buffers = np.empty((4, width))
    for r in range(rows):
        c, c_rest, hi, lo, err = c_hi[r], c_lo[r], out_hi[r], out_lo[r], out_err[r]
        i, i_rest, g, e = i_hi[r], i_lo[r], gain[r], shift[r]
        if w_hi.size:
            w, low, lost = row_of(w_hi, r, buffers[0]), row_of(w_lo, r, buffers[1]), row_of(w_lost, r, buffers[2])
            for j in range(width):
                h, rest, off = _standardized(c[j], c_rest[j], i, i_rest, g, e)
                hi[j], lo[j], err[j] = _weighted(h, rest, off, w[j], low[j], lost[j])
        else:
            for j in range(width):
                hi[j], lo[j], err[j] = _standardized(c[j], c_rest[j], i, i_rest, g, e)
        a, b, a_back, b_back = up[0, r], up[1, r], down[0, r], down[1, r]
        if bias.size:
            more = row_of(bias, r, buffers[3])
            for j in range(width):
                h, rest, off = _unscaled(hi[j], lo[j], err[j], a, b, a_back, b_back)
                hi[j], lo[j], err[j] = _proved(*_plus(h, rest, off, more[j]))
        else:
            for j in range(width):
                h, rest, off = _unscaled(hi[j], lo[j], err[j], a, b, a_back, b_back)
                hi[j], lo[j], err[j] = _proved(h, rest, off)


def elements_dd(
    c: DD, inverse: DD, gain: Array, shift: Array, weight: Weight | None, exponent: Array, bias: Array | None
) -> tuple[Array, Array, Array]:
    """As `normcheck.reference.loops_dd.elements_dd`."""
    out = np.empty(c[0].shape), np.empty(c[0].shape), np.empty(c[0].shape)
    parts = (_NONE, _NONE, _NONE) if weight is None else tuple(np.ascontiguousarray(part) for part in weight)
    added = _NONE if bias is None else np.ascontiguousarray(bias)
    _elements(*c, *inverse, gain, shift, *parts, powers(exponent), powers(-exponent), added, *out)
    return out


@formula
def _sum64(hi, lo):
    s, rest = _two_sum(hi, lo)
    return s + rest if np.isfinite(s) & np.isfinite(rest) else s


@kernel
def _settle64(hi, lo, err, value, settled):
    for j in range(len(hi)):
        wide = err[j] + 1.01 * U2 * abs(hi[j]) if err[j] != 0.0 else 0.0
        value[j] = hi[j] + lo[j] if np.isfinite(hi[j]) & np.isfinite(lo[j]) else hi[j]
        settled[j] = (_sum64(hi[j], lo[j] - wide) == _sum64(hi[j], lo[j] + wide)) & np.isfinite(wide)


def settle_dd(values: Triple, fmt: Format) -> tuple[Array, Mask]:
    """As `normcheck.reference.settling.settle`."""
    if fmt.p < 53 or values.lo is None:
        return settle(values, fmt)
    value, settled = np.empty(values.hi.shape), np.empty(values.hi.shape, bool)
    parts = (np.ascontiguousarray(part).ravel() for part in (values.hi, values.lo, values.err))
    _settle64(*parts, value.ravel(), settled.ravel())
    return value, settled
