"""Sums over rows compiled by numba: terms are formed where they are added, and additions leave no error but what is bounded."""

# mypy: disable-error-code="no-untyped-def"
# (what numba compiles takes its types from the arguments)

from __future__ import annotations

from typing import Any

import numpy as np

from normcheck.formats import Array
from normcheck.reference.compiled import as_less, formula, kernel
from normcheck.reference.loops import TINY

_U = 2.0**-53
_TILE = 512


@formula
def _gather(term, bound, hi, lo, err, j):
    """A term added to hi + lo without error, but for what err takes up: its own bound and what no two doubles hold."""
    s = hi[j] + term
    z = s - hi[j]
    rest = (hi[j] - (s - z)) + (term - z)
    low = lo[j] + rest
    z = low - lo[j]
    err[j] += bound + abs((lo[j] - (low - z)) + (rest - z))
    hi[j], lo[j] = s, low


@kernel
def _columns(dy, hi, lo, err):
    rows, width = dy.shape
    for start in range(0, width, _TILE):
        high, low, off = hi[start : start + _TILE], lo[start : start + _TILE], err[start : start + _TILE]
        for r in range(rows):
            g = dy[r, start : start + _TILE]
            for j in range(len(g)):
                _gather(np.float64(g[j]), 0.0, high, low, off, j)


@kernel
def _weighted_columns(dy, x, first, shift, reciprocal, gain, spare, hi, lo, err):
    rows, width = dy.shape
    for start in range(0, width, _TILE):
        high, low, off = hi[start : start + _TILE], lo[start : start + _TILE], err[start : start + _TILE]
        for r in range(rows):
            g, c = dy[r, start : start + _TILE], x[r, start : start + _TILE]
            f, d, i, by, e = first[r], shift[r], reciprocal[r], gain[r], spare[r]
            for j in range(len(g)):
                n = ((c[j] - f) - d) * i
                term = g[j] * n
                _gather(term, abs(g[j]) * (abs(n) * by + e) + (1.01 * _U * abs(term) + TINY), high, low, off, j)


def columns(dy: Array, factor: tuple[Any, Array, Array, Array] | None) -> tuple[Array, Array, Array]:
    """Sums over rows of dy, or of dy times c * reciprocal with an error as in `normcheck.reference.loops.values`.

    Parameters
    ----------
    dy : (R, D)
    factor : c, and reciprocal, gain and shift of each row; None for 1

    Returns
    -------
    hi, lo, err, (D,) each: ``|hi + lo - sum| <= err``; sums of dy alone that two doubles hold have err = 0. What is not finite
    spoils its column.

    Notes
    -----
    Every addition is exact by two two-sums: what the second leaves is the only error, and it is added to err, together with the
    error of the factor, u of the product and what it may lose to underflow. err itself is summed in R roundings: 1 % covers them.
    """
    hi, lo, err = np.zeros((3, dy.shape[1]))
    if factor is None:
        _columns(dy, hi, lo, err)
    else:
        c, *per_row = factor
        _weighted_columns(dy, *as_less(c), *per_row, hi, lo, err)
    return hi, lo, 1.01 * err
