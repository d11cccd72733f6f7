"""Level 2 of the ladder: the decision in exact rational arithmetic, which always ends."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cached_property

import numpy as np

from normcheck.formats import Array, Format
from normcheck.norms import Standardization
from normcheck.reference.problem import Problem, finite_or_zero
from normcheck.reference.rows import Index


def round_fraction(value: Fraction, fmt: Format) -> float:
    """Round a rational to nearest, ties to even, once; overflow as in `Format.round`."""
    numerator, denominator, sign = abs(value.numerator), value.denominator, -1 if value < 0 else 1
    exponent = numerator.bit_length() - denominator.bit_length()
    exponent -= numerator < denominator << exponent if exponent >= 0 else numerator << -exponent < denominator
    unit = max(exponent, fmt.emin) - (fmt.p - 1)
    units, rest = divmod(numerator << max(-unit, 0), denominator << max(unit, 0))
    twice = 2 * rest - (denominator << max(unit, 0))
    units += twice > 0 or (twice == 0 and units % 2 == 1)
    if units.bit_length() + unit > fmt.emax + 1 or math.ldexp(units, unit) > fmt.max:
        return sign * math.inf if fmt.has_inf else math.nan
    return sign * math.ldexp(units, unit)


def is_tie(value: Fraction, fmt: Format) -> bool:
    """Whether a rational lies in the middle between two neighbouring values of the format, overflow's edge included."""
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    for binade in (exponent - 1, exponent):
        if Fraction(2) ** binade <= magnitude < Fraction(2) ** (binade + 1):
            half = Fraction(2) ** (max(binade, fmt.emin) - fmt.p)
            return (magnitude / half).denominator == 1 and (magnitude / half).numerator % 2 == 1
    return False


class ExactRow:
    """A row's statistic as rationals, and 1/S and its derivative as numbers a + b sqrt(t) with rational a, b and t.

    Parameters
    ----------
    x : (D,) finite float64
    standardization : what happens to the row; S must not be 0
    mean, variance : given statistics, or None

    Notes
    -----
    Every element of a norm and of its gradient is some a + b sqrt(t). Where t is the square of a rational, b is taken into a.
    Otherwise the number is rational only if b = 0, and then rounded at once, ties included; or it is irrational, lies on no
    midpoint, and an enclosure of the root that is tight enough decides.
    """

    def __init__(
        self, x: Array, standardization: Standardization, mean: float | None = None, variance: float | None = None
    ) -> None:
        values, self._unit = integers(x)
        self.standardization = standardization
        self.given = mean is not None
        width, count = len(values), standardization.count(len(values))
        if mean is not None and variance is not None:
            center = Fraction(mean) / self._unit
            self._c, self._over = [v * center.denominator - center.numerator for v in values], center.denominator
            spread = Fraction(variance)
        else:
            total = sum(values) if standardization.center else 0
            self._over = width if standardization.center else 1
            self._c = [self._over * v - total for v in values]
            squares = sum(c * c for c in self._c[:count])
            spread = Fraction(squares, standardization.divisor(width)) * (self._unit / self._over) ** 2
        self.spread = spread
        self.rest, self.radicand = _denominator(spread, Fraction(standardization.eps), standardization.placement)
        self.root = _rational_root(self.radicand)
        self._enclosures: dict[int, tuple[Fraction, Fraction]] = {}

    def c(self, i: int) -> Fraction:
        """x_i less the mean, exactly."""
        return self._c[i] * self._unit / self._over

    @cached_property
    def inverse(self) -> tuple[Fraction, Fraction]:
        """1/S as (a, b)."""
        if self.root is not None:
            return 1 / (self.rest + self.root), Fraction(0)
        off = self.rest**2 - self.radicand
        return self.rest / off, -1 / off

    @cached_property
    def bend(self) -> tuple[Fraction, Fraction]:
        """1/(S**2 T) as (a, b), where dS/d(s2) = 1/(2T); 0 where S does not move with s2 or the row is constant."""
        eps, placement, zero = Fraction(self.standardization.eps), self.standardization.placement, Fraction(0)
        still = {"max": self.spread < eps**2, "max_inside": self.spread < eps}.get(placement, False)
        if self.given or still or self.spread == 0:
            return zero, zero
        if self.root is not None:
            scale = self.rest + self.root
            return 1 / (scale**2 * (self.root if placement == "outside" else scale)), zero
        if placement != "outside":
            return zero, 1 / self.radicand**2
        off = (eps**2 - self.spread) ** 2
        return -2 * eps / off, (eps**2 + self.spread) / (self.spread * off)

    def element(self, i: int, weight: Fraction, bias: Fraction, fmt: Format) -> tuple[float, bool]:
        """weight * c_i/S + bias rounded to the format, and whether it was a tie."""
        numerator = weight * self.c(i)
        a, b = self.inverse
        return self.rounded(numerator * a + bias, numerator * b, fmt)

    def rounded(self, a: Fraction, b: Fraction, fmt: Format) -> tuple[float, bool]:
        """The number a + b sqrt(t) rounded to the format, and whether it was a tie."""
        if b == 0:
            return round_fraction(a, fmt), is_tie(a, fmt)
        bits = 128
        while True:
            lower, upper = (round_fraction(a + b * root, fmt) for root in self.enclosure(bits))
            if lower == upper or lower is upper:  # one NaN for every overflow where the format has no inf
                return lower, False
            bits *= 2

    def enclosure(self, bits: int) -> tuple[Fraction, Fraction]:
        """Rationals around sqrt(t), at most 2**-bits of it apart."""
        if bits not in self._enclosures:
            self._enclosures[bits] = root_enclosure(self.radicand, bits)
        return self._enclosures[bits]


def root_enclosure(value: Fraction, bits: int) -> tuple[Fraction, Fraction]:
    """Rationals around the square root of a positive rational, 2**-bits of it apart or less."""
    shift = 2 * bits + 2 - (value.numerator.bit_length() - value.denominator.bit_length())
    shift += shift % 2
    scaled = (value.numerator << max(shift, 0)) // (value.denominator << max(-shift, 0))
    unit = Fraction(2) ** (-shift // 2)
    floor = math.isqrt(scaled)
    return floor * unit, (floor + 1) * unit


def exact_elements(p: Problem, index: tuple[Index, Index], fmt: Format) -> tuple[Array, int]:
    """Rounded values of the elements (rows, columns) of a problem with finite rows and S > 0, and how many were ties."""
    out, ties, row, current = np.empty(len(index[0])), 0, None, -1
    for k, (r, i) in enumerate(zip(*index, strict=True)):
        if r != current or row is None:
            current, row = r, exact_row(p, r)
        weight, bias = parameter(p.weight, r, i, 1.0), parameter(p.bias, r, i, 0.0)
        if not (math.isfinite(weight) and math.isfinite(bias)):
            c = row.c(i)
            out[k] = fmt.round(weight * ((c > 0) - (c < 0)) + bias)
            continue
        offset = Fraction(p.offset) if p.weight is not None else Fraction(0)
        out[k], tie = row.element(i, offset + Fraction(weight), Fraction(bias), fmt)
        ties += tie
    return out, ties


def exact_row(p: Problem, r: int) -> ExactRow:
    """Row r of a problem; elements that are not finite (none of the statistic is) count as 0."""
    x = finite_or_zero(np.asarray(p.x[slice(r, r + 1)], np.float64))[0]
    given = (None, None) if p.mean is None or p.variance is None else (float(p.mean[r]), float(p.variance[r]))
    return ExactRow(x, p.standardization, *given)


def parameter(values: Array | None, r: int, i: int, default: float) -> float:
    """The weight or bias that element i of row r meets."""
    if values is None:
        return default
    row = values[r % len(values)]
    return float(row[i if len(row) > 1 else 0])


def integers(x: Array) -> tuple[list[int], Fraction]:
    """Integers and the unit, a power of two, of which the elements of x are multiples."""
    mantissa, exponent = np.frexp(x)
    whole = np.ldexp(mantissa, 53).astype(np.int64).tolist()
    nonzero = exponent[x != 0]
    lowest = int(nonzero.min()) if nonzero.size else 0
    shifts = (exponent - lowest).tolist()
    return [w << max(s, 0) for w, s in zip(whole, shifts, strict=True)], Fraction(2) ** (lowest - 53)


def _denominator(spread: Fraction, eps: Fraction, placement: str) -> tuple[Fraction, Fraction]:
    """(rest, radicand) with S = rest + sqrt(radicand)."""
    zero = Fraction(0)
    if placement == "inside":
        return zero, spread + eps
    if placement == "max_inside":
        return zero, max(spread, eps)
    if placement == "max":
        return zero, max(spread, eps * eps)
    return (eps if placement == "outside" else zero), spread


def _rational_root(value: Fraction) -> Fraction | None:
    roots = math.isqrt(value.numerator), math.isqrt(value.denominator)
    if roots[0] ** 2 == value.numerator and roots[1] ** 2 == value.denominator:
        return Fraction(*roots)
    return None
