"""The heavy loops of the float64 level in numpy; `normcheck.reference.compiled` and `.device` hold the same, bit for bit.

A level of the ladder is a few such loops over elements, and between them formulas on one number per row that are written once.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from normcheck.formats import Array, Format, Mask
from normcheck.reference.arithmetic import U, constant_rows, tree_sum
from normcheck.reference.settling import Triple, settle

TINY = 2.0**-1070
FAR = 4.0


class Centred(NamedTuple):
    """Rows less their mean.

    Attributes
    ----------
    mean, squares, reference, shift : (R,): the mean; the sum of c**2; the mean square that bounds the error of the mean; and
        the mean that was subtracted in a second pass, or 0
    c : (R, D), in whatever form the place's other loops take it
    """

    mean: Array
    c: Any
    squares: Array
    reference: Array
    shift: Array


class Pull(NamedTuple):
    """g = weight * dy less its mean, (R, D) in the place's own form, and per row the sums of (weight * dy)**2 and of g * c."""

    g: Any
    squares: Array
    q: Array


class Slope(NamedTuple):
    """What a row's gradient is made with, see `slope_values`; (R,) each."""

    r: Array
    k: Array
    first: Array
    second: Array
    k_error: Array
    shift: Array


class Loops(Protocol):
    """What a place of execution has to offer."""

    def centred(self, x: Array) -> Centred:
        """Rows less their mean, which is subtracted in two passes where its square is more than `FAR` times the variance."""

    def squares(self, x: Array) -> Array:
        """Sums of squares of rows."""

    def rounded(
        self, c: Array, reciprocal: Array, gain: Array, shift: Array, weight: Array | None, bias: Array | None, fmt: Format
    ) -> tuple[Array, Mask]:
        """(c * reciprocal) * weight + bias rounded, and where its error, as in `values`, leaves no choice."""

    def less(self, x: Array, mean: Array) -> Array:
        """Rows less a given mean."""

    def within(self, x: Array, limit: float) -> Mask:
        """Rows whose elements are all 0 or of a modulus between 1/limit and limit."""

    def pull(self, dy: Array, weight: Array | None, c: Array, center: bool) -> Pull:
        """What the gradient of the output pulls at the statistics with; the mean is only taken off where ``center`` says so."""

    def slopes(self, g: Array, c: Array, slope: Slope, count: int, besides: Array | None, fmt: Format) -> tuple[Array, Mask]:
        """dx rounded, and where its error, as in `slope_values`, leaves no choice."""


def centred(x: Array) -> Centred:
    """See `Loops`."""
    width = float(x.shape[1])
    mean = tree_sum(x) / width
    c = x - mean[:, None]
    total = tree_sum(c * c)
    reference, shift = mean * mean + total / width, np.zeros_like(mean)
    far = np.flatnonzero(mean * mean > FAR * total / width)
    if far.size:
        first, shift[far], c[far] = _again(x[far], mean[far])
        total[far] = tree_sum(c[far] * c[far])
        reference[far] = total[far] / width + shift[far] * shift[far]
        mean[far] = first + shift[far]
    return Centred(mean, c, total, reference, shift)


def _again(x: Array, mean: Array) -> tuple[Array, Array, Array]:
    """A first mean (the element itself where all are equal: all that follows is then exact), the mean of what is left, and c."""
    first = np.where(constant_rows(x), x[:, 0], mean)
    c = x - first[:, None]
    shift = tree_sum(c) / float(x.shape[1])
    return first, shift, c - shift[:, None]


def squares(x: Array) -> Array:
    """See `Loops`."""
    return tree_sum(x * x)


def values(
    c: Array, reciprocal: Array, gain: Array, shift: Array, weight: Array | None, bias: Array | None
) -> tuple[Array, Array]:
    """y = (c * reciprocal) * weight + bias and its error: |n| gain + shift, times |weight|, and one rounding for the bias."""
    y = c * reciprocal[:, None]
    err = np.abs(y)
    err *= gain[:, None]
    err += shift[:, None]
    if weight is not None:
        y *= weight
        err *= np.abs(weight)
        err += TINY
    if bias is not None:
        y += bias
        err += 1.01 * U * np.abs(y)
    return y, err


def rounded(
    c: Array, reciprocal: Array, gain: Array, shift: Array, weight: Array | None, bias: Array | None, fmt: Format
) -> tuple[Array, Mask]:
    """See `Loops`."""
    y, err = values(c, reciprocal, gain, shift, weight, bias)
    return settle(Triple(y, None, err), fmt)


def less(x: Array, mean: Array) -> Array:
    """See `Loops`."""
    return x - mean[:, None]


def within(x: Array, limit: float) -> Mask:
    """See `Loops`."""
    a = np.abs(x)
    inside: Mask = ((a <= limit) & ((a >= 1 / limit) | (a == 0.0))).all(axis=1)
    return inside


def pull(dy: Array, weight: Array | None, c: Array, center: bool) -> Pull:
    """See `Loops`."""
    g = dy if weight is None else dy * weight
    total = tree_sum(g * g)
    if center:
        g = g - (tree_sum(g) / float(g.shape[1]))[:, None]
    return Pull(g, total, tree_sum(g * c))


def slope_values(g: Array, c: Array, slope: Slope, count: int, besides: Array | None) -> tuple[Array, Array]:
    """dx = g r - (c r) k + besides and its error; the second term only for the first ``count`` elements.

    The error is |g r| first + |c r k| second + |c r| k_error + shift, and one rounding for each of the two sums.
    """
    r, k, first, second, k_error, shift = (part[:, None] for part in slope)
    ahead, n = g * r, c * r
    n[:, count:] = 0.0
    back = n * k
    dx = ahead - back
    err = np.abs(ahead) * first + np.abs(back) * second + np.abs(n) * k_error + shift + 1.01 * U * np.abs(dx)
    if besides is not None:
        dx = dx + besides
        err = err + 1.01 * U * np.abs(dx)
    return dx, err


def slopes(g: Array, c: Array, slope: Slope, count: int, besides: Array | None, fmt: Format) -> tuple[Array, Mask]:
    """See `Loops`."""
    dx, err = slope_values(g, c, slope, count, besides)
    return settle(Triple(dx, None, err), fmt)
