"""Sums and products of format values, rounded once: what a contract's inner roundings leave to do."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from normcheck.formats import Array, Format, Mask
from normcheck.reference import arithmetic as dd
from normcheck.reference.arithmetic import U2
from normcheck.reference.exact import parameter, round_fraction
from normcheck.reference.problem import Problem
from normcheck.reference.settling import Triple, settle

_LARGE = 2.0**480
_SMALL = 2.0**-400


def add_rounded(a: Array, b: Array, fmt: Format) -> Array:
    """a + b rounded to the format once."""
    with np.errstate(all="ignore"):
        hi, lo = dd.two_sum(a, b)
        return fmt.round_sum(hi, np.where(np.isfinite(hi), lo, 0.0))


def affine_rounded(n: Array, p: Problem, fmt: Format) -> Array:
    """(offset + w) * n + b rounded to the format once, for values n and the parameters of a problem.

    Double-double settles what it can: the product costs 7u**2 and the sum 2u**2; what over- or underflows, and what lies too near
    a midpoint, is decided by rationals.
    """
    if p.weight is None and p.bias is None:
        return fmt.round(n)
    with np.errstate(all="ignore"):
        zero = np.zeros_like(n)
        weight = (zero + 1.0, zero) if p.weight is None else dd.two_sum(zero + p.weight, zero + p.offset)
        product = dd.multiply((n, zero), weight)
        bias = zero if p.bias is None else zero + p.bias
        hi, lo = dd.add_double(product, bias)
        safe = np.logical_and.reduce([_moderate(n), _moderate(weight[0]), _moderate(bias)])
        value, settled = settle(Triple(hi, lo, 7.1 * U2 * np.abs(product[0]) + 2.1 * U2 * np.abs(hi)), fmt)
        ieee = n * weight[0] + bias
        # offset + w may overflow where w does not
        finite = np.isfinite(n) & np.isfinite(zero if p.weight is None else zero + p.weight) & np.isfinite(bias)
        value = np.where(finite, value, fmt.round(ieee))
    for r, i in zip(*np.nonzero(finite & ~(settled & safe)), strict=True):
        value[r, i] = _exactly(float(n[r, i]), p, r, i, fmt)
    return value


def _moderate(a: Array) -> Mask:
    moderate: Mask = (a == 0) | ((np.abs(a) < _LARGE) & (np.abs(a) > _SMALL))
    return moderate


def _exactly(n: float, p: Problem, r: int, i: int, fmt: Format) -> float:
    offset = Fraction(p.offset) if p.weight is not None else Fraction(0)
    weight = offset + Fraction(parameter(p.weight, r, i, 1.0))
    return round_fraction(weight * Fraction(n) + Fraction(parameter(p.bias, r, i, 0.0)), fmt)
