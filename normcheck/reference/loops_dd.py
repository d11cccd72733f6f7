"""The heavy loops of the double-double level in numpy; `normcheck.reference.compiled_dd` holds the same, bit for bit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from normcheck.formats import Array, Format, Mask
from normcheck.reference import arithmetic as dd
from normcheck.reference.arithmetic import DD, U2
from normcheck.reference.settling import Triple, settle

LOST = 2.0**-1070
SMALL = 2.0**-900


class CentredDD(NamedTuple):
    """Rows less their mean, (R, D), the sums of squares, and the mean of what a first mean had left, (R,)."""

    c: DD
    squares: DD
    shift: DD


class Weight(NamedTuple):
    """Weights in units that make the largest of a row about 1, and what each lost to underflow; (R, D), (1, D) or (R, 1)."""

    hi: Array
    lo: Array
    lost: Array


def scaled(x: Array) -> tuple[Array, Array, Array]:
    """Rows in units of 2**exponent in which the largest element is about 1; the exponents; bounds on what underflow took."""
    exponent = exponent_of(np.abs(x).max(axis=1, initial=0.0))
    smaller = power_product(x, -exponent[:, None])
    lossless = (power_product(smaller, exponent[:, None]) == x).all(axis=1)
    return smaller, exponent, np.where(lossless, 0.0, LOST)


def exponent_of(largest: Array) -> Array:
    """Exponent e of a magnitude in [2**(e-1), 2**e); 0 for 0."""
    return np.frexp(largest)[1]


def power_product(x: Array, exponent: Array) -> Array:
    """x * 2**exponent by two multiplications, much faster than ldexp; for exponents up to 2046."""
    half = exponent // 2
    return (x * np.ldexp(1.0, half)) * np.ldexp(1.0, exponent - half)


def rough_mean(x: Array) -> Array:
    """The mean in float64, and the element itself where all of a row are equal."""
    return np.where(dd.constant_rows(x), x[:, 0], dd.tree_sum(x) / float(x.shape[1]))


def centred_dd(x: Array, first: Array) -> CentredDD:
    """Rows less a first mean, exactly, less the mean of what is left."""
    width = np.full_like(first, x.shape[1])
    left = dd.two_sum(x, -first[:, None])
    shift = dd.divide_double(dd.tree_sum_dd(left), width)
    c = dd.add(left, (-shift[0][:, None], -shift[1][:, None]))
    return CentredDD(c, dd.tree_sum_dd(dd.multiply(c, c)), shift)


def elements_dd(
    c: DD, inverse: DD, gain: Array, shift: Array, weight: Weight | None, exponent: Array, bias: Array | None
) -> tuple[Array, Array, Array]:
    """hi, lo and error of (c * inverse) * weight * 2**exponent + bias; the error of c * inverse is |c * inverse| gain + shift."""
    n = dd.multiply(c, (inverse[0][:, None], inverse[1][:, None]))
    err = np.abs(n[0]) * gain[:, None] + shift[:, None] + underflow(n[0], c[0] != 0)
    if weight is not None:
        product = dd.multiply(n, (weight.hi, weight.lo))
        # an error that the weight makes vanish may be scaled up again
        less = err * np.abs(weight.hi)
        less = less + underflow(less, (err != 0) & (weight.hi != 0))
        err = less + underflow(product[0], (weight.hi != 0) & (n[0] != 0)) + weight.lost
        n = product
    hi, lo, err = unscale(n, err, exponent)
    if bias is not None:
        hi, lo = dd.add_double((hi, lo), np.broadcast_to(bias, hi.shape))
        err = err + 2.1 * U2 * np.abs(hi)
    return hi, lo, np.where(np.isfinite(hi) & np.isfinite(lo), 1.01 * err, np.inf)


def settle_dd(values: Triple, fmt: Format) -> tuple[Array, Mask]:
    """The rounding test."""
    return settle(values, fmt)


def underflow(product: Array, nonzero: Mask) -> Array:
    """What a product of factors that are not 0 may have lost to underflow."""
    return np.where(nonzero & (np.abs(product) < SMALL), LOST, 0.0)


def unscale(n: DD, err: Array, exponent: Array) -> tuple[Array, Array, Array]:
    """Rows and their errors times 2**exponent, with what underflow took."""
    up, down = powers(exponent)[:, :, None], powers(-exponent)[:, :, None]
    hi, lo = (part * up[0] * up[1] for part in n)
    exact = (hi * down[0] * down[1] == n[0]) & (lo * down[0] * down[1] == n[1])
    return hi, lo, err * up[0] * up[1] + np.where(exact, 0.0, 2 * LOST)


def powers(exponent: Array) -> Array:
    """Two factors, (2, R), whose product is 2**exponent: one alone may be beyond the range."""
    half = exponent // 2
    factors = np.empty((2, len(exponent)))
    np.ldexp(1.0, half, out=factors[0])
    np.ldexp(1.0, exponent - half, out=factors[1])
    return factors
