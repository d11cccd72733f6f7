"""The slow twin of the ladder: one element at a time, in rationals, by comparing squares.

It shares no step with the fast path. A value is found by bisection over the format's own values, each comparison
"is w c/S + b less than m" being decided as "is w c - (m - b) S less than 0" by squaring the one root in S.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from normcheck.formats import Array, Format
from normcheck.norms import Standardization


def correctly_rounded(
    rows: npt.ArrayLike,
    standardization: Standardization,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    weight_offset: float = 0.0,
    mean: Array | None = None,
    variance: Array | None = None,
    fmt: Format,
) -> Array:
    """What `normcheck.reference.correctly_rounded` returns, at some milliseconds per element."""
    x = np.asarray(rows, np.float64)
    out = np.empty(x.shape)
    for r, row in enumerate(x.tolist()):
        given = None if mean is None or variance is None else (float(mean[r]), float(variance[r]))
        center, spread = statistic(row, standardization, given)
        for i, value in enumerate(row):
            w = None if weight is None else (weight_offset, _parameter(weight, r, i))
            b = 0.0 if bias is None else _parameter(bias, r, i)
            out[r, i] = element(value, center, spread, standardization, w, b, fmt)
    return out


Exact = Fraction | float


def statistic(row: list[float], s: Standardization, given: tuple[float, float] | None) -> tuple[Exact, Exact]:
    """Mean and s2 of a row: rationals, or floats where they are not finite."""
    if given is not None:
        center, spread = (Fraction(v) if math.isfinite(v) else v for v in given)
        return center, spread
    chosen = row[: s.count(len(row))]
    if any(math.isnan(v) for v in chosen) or (s.center and any(math.isinf(v) for v in chosen)):
        return Fraction(0), math.nan
    if any(math.isinf(v) for v in chosen):
        return Fraction(0), math.inf
    exact = [Fraction(v) for v in chosen]
    center = sum(exact) / len(exact) if s.center else Fraction(0)
    return center, sum((v - center) ** 2 for v in exact) / s.divisor(len(row))


def element(
    x: float, center: Exact, spread: Exact, s: Standardization, weight: tuple[float, float] | None, bias: float, fmt: Format
) -> float:
    """One element of the norm, rounded."""
    offset, w = weight or (0.0, 1.0)
    if isinstance(center, float) or isinstance(spread, float) or not math.isfinite(x) or not _positive(spread, s):
        return _overflow(_ieee(x, center, spread, s) * (offset + w) + bias, fmt)
    c = Fraction(x) - center
    if not (math.isfinite(w) and math.isfinite(bias)):
        return _overflow(((c > 0) - (c < 0)) * w + bias, fmt)
    root, rest = _radicand(spread, s), _rest(s)
    numerator = (Fraction(offset) + Fraction(w)) * c

    def sign(m: Fraction) -> int:
        k = m - Fraction(bias)
        return _compare(numerator - k * rest, k, root)

    return nearest(sign, fmt)


def nearest(sign: Callable[[Fraction], int], fmt: Format) -> float:
    """The format's value nearest to a real y that is known by the sign of y - m for every rational m; ties to even."""
    last = index_of_largest(fmt) + 1
    below, above = -last, last
    if sign(value_at(above, fmt)) >= 0:
        return _overflow(math.inf, fmt)
    if sign(value_at(below, fmt)) < 0:
        return _overflow(-math.inf, fmt)
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if sign(value_at(middle, fmt)) >= 0 else (below, middle)
    side = sign((value_at(below, fmt) + value_at(above, fmt)) / 2)
    index = above if side > 0 or (side == 0 and above % 2 == 0) else below
    return _overflow(math.copysign(math.inf, index), fmt) if abs(index) == last else float(value_at(index, fmt))


def value_at(index: int, fmt: Format) -> Fraction:
    """The format's values in order: 0 at 0, the smallest subnormal at 1; even significands at even indices."""
    binade, rest = divmod(abs(index), 2 ** (fmt.p - 1))
    significand, exponent = (rest, 0) if binade == 0 else (2 ** (fmt.p - 1) + rest, binade - 1)
    magnitude: Fraction = Fraction(significand) * Fraction(2) ** (exponent + fmt.emin - fmt.p + 1)
    return magnitude if index >= 0 else -magnitude


def index_of_largest(fmt: Format) -> int:
    """The index of the largest finite value."""
    binade: int = 2 ** (fmt.p - 1)
    steps = int(Fraction(fmt.max) / Fraction(2) ** (fmt.emax - fmt.p + 1)) - binade
    return (fmt.emax - fmt.emin + 1) * binade + steps


def _compare(p: Fraction, k: Fraction, root: Fraction) -> int:
    """Sign of p - k * sqrt(root)."""
    q = k if root else Fraction(0)
    sign_p, sign_q = (p > 0) - (p < 0), (q > 0) - (q < 0)
    if sign_p != sign_q or sign_p == 0:
        return sign_p - sign_q
    difference = p * p - k * k * root
    return sign_p * ((difference > 0) - (difference < 0))


def _radicand(spread: Fraction, s: Standardization) -> Fraction:
    eps = Fraction(s.eps)
    if s.placement == "max":
        return spread if spread < 0 else max(spread, eps * eps)
    return {"inside": spread + eps, "max_inside": max(spread, eps)}.get(s.placement, spread)


def _rest(s: Standardization) -> Fraction:
    return Fraction(s.eps) if s.placement == "outside" else Fraction(0)


def _positive(spread: Fraction, s: Standardization) -> bool:
    """Whether S is."""
    radicand = _radicand(spread, s)
    return radicand > 0 or (radicand == 0 and _rest(s) > 0)


def _ieee(x: float, center: Exact, spread: Exact, s: Standardization) -> float:
    """c/S by the rules of IEEE arithmetic where S is 0, infinite or NaN, or c is; else only its sign is right."""
    if isinstance(center, float) or not math.isfinite(x):
        c = x - (center if isinstance(center, float) else 0.0)
    else:
        c = float((x > center) - (x < center))
    if isinstance(spread, float):
        return c / spread if spread > 0 else math.nan
    if _positive(spread, s):
        return c
    zero = _radicand(spread, s) == 0
    return c * math.inf if zero and c != 0 else math.nan


def _overflow(value: float, fmt: Format) -> float:
    return float(fmt.round(value)) if math.isfinite(value) or fmt.has_inf else math.nan


def _parameter(values: Array, r: int, i: int) -> float:
    row = values[r % len(values)]
    return float(row[i if len(row) > 1 else 0])
