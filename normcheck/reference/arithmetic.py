"""Sums by a fixed tree, error-free transformations and double-double arithmetic on float64 arrays.

A double-double is a pair (hi, lo) with hi = RN(hi + lo). Algorithms and relative error bounds, in units of u**2 = 2**-106, are
those of Joldes, Muller and Popescu (ACM TOMS 44(2), 2017), the square root that of Lefevre, Louvet, Muller, Picot and Rideau (ACM
TOMS 49(1), 2023). Products are split after Dekker and Veltkamp, so that no fused multiply-add is needed; they are exact where
nothing underflows and no factor exceeds 2**996.
"""

from __future__ import annotations

import numpy as np

from normcheck.formats import Array, Mask

U = 2.0**-53
U2 = U * U
DD = tuple[Array, Array]

_SPLITTER = 2.0**27 + 1.0
_NARROW = 16


def height(width: int) -> int:
    """Height of the summation tree over so many elements: ceil(log2 width)."""
    return max(width - 1, 0).bit_length()


def tree_sum(x: Array) -> Array:
    """Sum along the last axis of (R, D) by a tree of least height that depends on nothing but D.

    The elements beyond the largest power of two below D are added to the first ones; then halves are added to halves.
    """
    total = _fold_once(x)
    width = total.shape[1]
    while width > _NARROW:
        width //= 2
        total[:, :width] += total[:, width : 2 * width]
    columns: Array = np.ascontiguousarray(total[:, :width].T)
    while width > 1:
        width //= 2
        columns[:width] += columns[width : 2 * width]
    total_sum: Array = columns[0]
    return total_sum


def _fold_once(x: Array) -> Array:
    width = x.shape[1]
    keep = 1 << (height(width) - 1) if width > 1 else 1
    if width == 2 * keep:
        return x[:, :keep] + x[:, keep:]
    total = x[:, :keep].copy()
    total[:, : width - keep] += x[:, keep:]
    return total


def tree_sum_dd(x: DD) -> DD:
    """Sum of double-doubles along the last axis by the tree of `tree_sum`; at most 3u**2 + 13u**3 per addition."""
    hi, lo = x
    width = hi.shape[1]
    while width > 1:
        keep = 1 << (height(width) - 1)
        rest = width - keep
        head = add((hi[:, :rest], lo[:, :rest]), (hi[:, keep:width], lo[:, keep:width]))
        hi, lo = (np.concatenate([new, old[:, rest:keep]], axis=1) for new, old in zip(head, (hi, lo), strict=True))
        width = keep
    return hi[:, 0], lo[:, 0]


def constant_rows(x: Array) -> Mask:
    """Rows of equal elements; few of the others are looked at beyond their first elements."""
    flat: Mask = (x[:, :4] == x[:, :1]).all(axis=1)
    rows = np.flatnonzero(flat)
    if rows.size:
        flat[rows] = (x[rows] == x[rows, :1]).all(axis=1)
    return flat


def two_sum(a: Array, b: Array) -> DD:
    """The rounded sum of two doubles and its error, exactly (Knuth)."""
    s = a + b
    z = s - a
    return s, (a - (s - z)) + (b - z)


def fast_two_sum(a: Array, b: Array) -> DD:
    """The rounded sum and its error where |a| >= |b| (Dekker)."""
    s = a + b
    return s, b - (s - a)


def two_product(a: Array, b: Array) -> DD:
    """The rounded product of two doubles and its error, exactly."""
    p = a * b
    a_hi, a_lo = _split(a)
    b_hi, b_lo = _split(b)
    return p, ((a_hi * b_hi - p) + a_hi * b_lo + a_lo * b_hi) + a_lo * b_lo


def _split(a: Array) -> DD:
    t = _SPLITTER * a
    hi = t - (t - a)
    return hi, a - hi


def add(a: DD, b: DD) -> DD:
    """Sum of two double-doubles: AccurateDWPlusDW, error at most 3u**2 + 13u**3."""
    s, s_lo = two_sum(a[0], b[0])
    t, t_lo = two_sum(a[1], b[1])
    v, v_lo = fast_two_sum(s, s_lo + t)
    return fast_two_sum(v, t_lo + v_lo)


def add_double(a: DD, b: Array) -> DD:
    """Sum of a double-double and a double: DWPlusFP, error at most 2u**2."""
    s, s_lo = two_sum(a[0], b)
    return fast_two_sum(s, a[1] + s_lo)


def multiply(a: DD, b: DD) -> DD:
    """Product of two double-doubles: DWTimesDW1, error at most 7u**2."""
    p, p_lo = two_product(a[0], b[0])
    return fast_two_sum(p, p_lo + (a[0] * b[1] + a[1] * b[0]))


def divide(a: DD, b: DD) -> DD:
    """Quotient of two double-doubles: DWDivDW2, error at most 15u**2 + 56u**3."""
    q = a[0] / b[0]
    p, p_lo = _multiply_double(b, q)
    return fast_two_sum(q, ((a[0] - p) + (a[1] - p_lo)) / b[0])


def _multiply_double(a: DD, b: Array) -> DD:
    p, p_lo = two_product(a[0], b)
    t, t_lo = fast_two_sum(p, a[1] * b)
    return fast_two_sum(t, t_lo + p_lo)


def divide_double(a: DD, b: Array) -> DD:
    """Quotient of a double-double by a double: DWDivFP3, error at most 3u**2."""
    q = a[0] / b
    p, p_lo = two_product(q, b)
    return fast_two_sum(q, (((a[0] - p) - p_lo) + a[1]) / b)


def square_root(a: DD) -> DD:
    """Square root of a non-negative double-double: SQRTDWtoDW, error at most 25/8 u**2; 0 gives 0."""
    s = np.sqrt(a[0])
    p, p_lo = two_product(s, s)
    rest = ((a[0] - p) - p_lo) + a[1]
    return fast_two_sum(s, np.divide(rest, 2.0 * s, out=np.zeros_like(s), where=s > 0))
