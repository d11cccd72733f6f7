"""Floating-point formats as mathematics: unit roundoff, ulp, limits and correct rounding.

Values of every format are carried as float64 arrays, which hold each of them exactly. Rounding here happens once. The casts of
torch and of ml_dtypes from float64 to 16 and 8 bits round through float32, that is twice (1 + 2**-8 + 2**-40 becomes 1.0 in
bfloat16), so they serve only to re-type values that are already representable.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_EXPONENT = np.uint64(0x7FF0000000000000)
_FRACTION = np.uint64(0x000FFFFFFFFFFFFF)


@dataclass(frozen=True)
class Format:
    """A binary floating-point format.

    Attributes
    ----------
    name : the dtype's name in an API, such as ``"bfloat16"``
    p : significand bits, the implicit one included; the unit roundoff is ``u = 2**-p``
    emin, emax : exponents of the smallest and of the largest normal binade
    max : the largest finite value
    has_inf : False for float8_e4m3fn, where overflow gives NaN
    dtype : the numpy dtype (from ml_dtypes where numpy has none)
    """

    name: str
    p: int
    emin: int
    emax: int
    max: float
    has_inf: bool
    dtype: np.dtype[Any]

    @functools.cached_property
    def u(self) -> float:
        """Unit roundoff 2**-p: the largest relative error of rounding to nearest in the normal range."""
        return math.ldexp(1.0, -self.p)

    @functools.cached_property
    def min_normal(self) -> float:
        """The smallest positive normal value, 2**emin."""
        return math.ldexp(1.0, self.emin)

    @functools.cached_property
    def min_subnormal(self) -> float:
        """The smallest positive value, 2**(emin - p + 1)."""
        return math.ldexp(1.0, self.emin - self.p + 1)

    def ulp(self, x: npt.ArrayLike) -> Array:
        """Spacing of the format's values in the binade of ``|x|``; the subnormal spacing below it, NaN where x is not finite."""
        a = np.asarray(x, np.float64)
        step = powers_of_two(a)
        step *= math.ldexp(1.0, 1 - self.p)
        np.maximum(step, self.min_subnormal, out=step)
        return step if step.max(initial=0.0) < np.inf else np.where(np.isfinite(a), step, np.nan)

    def round(self, x: npt.ArrayLike) -> Array:
        """Round float64 values to nearest, ties to even, once; overflow gives inf, or NaN where the format has no inf."""
        a = np.asarray(x, np.float64)
        if self.p == 53:
            return a.copy()
        with np.errstate(all="ignore"):
            if self.p == 24:
                return a.astype(np.float32).astype(np.float64)
            return self._overflow(self._round_finite(a), a)

    def round_sum(self, hi: npt.ArrayLike, lo: npt.ArrayLike) -> Array:
        """Round the exact sum hi + lo once, for ``|lo| <= ulp64(hi)/2``; elements where hi is not finite give ``round(hi)``.

        The sum is first rounded to odd in 53 bits, which no later rounding to fewer than 52 bits can tell from the exact sum
        (Boldo and Melquiond 2008, theorem 1).
        """
        h, low = np.broadcast_arrays(np.asarray(hi, np.float64), np.asarray(lo, np.float64))
        if self.p == 53:
            return np.where(np.isfinite(h) & np.isfinite(low), h + low, h)
        rounded = np.asarray(self.round(h))
        undecided = np.asarray((low != 0) & self._may_be_midpoint(h))
        if undecided.any():
            rounded[undecided] = self.round(to_odd(h[undecided], low[undecided]))
        return rounded

    def _may_be_midpoint(self, x: Array) -> Mask:
        """False only where x is not half way between two neighbours, so that half an ulp of float64 cannot move its rounding."""
        below = np.uint64(1 << (53 - self.p))
        return np.asarray(((_bits(x) & (below - np.uint64(1))) == below >> np.uint64(1)) | (np.abs(x) < self.min_normal))

    def representable(self, x: npt.ArrayLike) -> Mask:
        """Which finite elements are values of the format."""
        a = np.asarray(x, np.float64)
        return np.asarray(np.isfinite(a) & (self.round(a) == a))

    def next_up(self, x: npt.ArrayLike) -> Array:
        """The next larger value of the format above each finite value x of the format; inf above ``max``."""
        a = np.asarray(x, np.float64)
        step = self.ulp(a)
        step = np.where((a < 0) & no_fraction(a) & (np.abs(a) > self.min_normal), step / 2, step)
        with np.errstate(over="ignore"):
            above = a + step
        return np.where(above > self.max, np.inf, above)

    def next_down(self, x: npt.ArrayLike) -> Array:
        """The next smaller value of the format below each finite value x of the format; -inf below ``-max``."""
        return -self.next_up(-np.asarray(x, np.float64))

    def _round_finite(self, a: Array) -> Array:
        # adding and removing 1.5 * 2**52 units in the last place rounds to a whole number of units, ties to even
        anchor = powers_of_two(a)
        np.maximum(anchor, self.min_normal, out=anchor)
        anchor *= 1.5 * math.ldexp(1.0, 53 - self.p)
        rounded = np.asarray(a + anchor)
        rounded -= anchor
        return np.copysign(rounded, a, out=rounded)

    def _overflow(self, y: Array, a: Array) -> Array:
        within = np.abs(y) <= self.max
        if within.all():
            return y
        beyond = np.copysign(np.inf, a) if self.has_inf else np.nan
        return np.where(within, y, np.where(np.isnan(a), np.nan, beyond))


def powers_of_two(x: Array) -> Array:
    """The largest power of two in each ``|x|``; 0 for zeros and subnormal numbers of float64, inf where x is not finite."""
    return np.asarray(_bits(x) & _EXPONENT).view(np.float64)


def no_fraction(x: Array) -> Mask:
    """Which elements are plus or minus a power of two, 0 or inf."""
    return np.asarray((_bits(x) & _FRACTION) == 0)


def _bits(x: Array) -> npt.NDArray[np.uint64]:
    return np.asarray(x, np.float64, order="C").view(np.uint64)


def to_odd(hi: Array, lo: Array) -> Array:
    """Round hi + lo to odd in float64: hi where it is exact or odd, else its odd neighbour on the side of lo."""
    bits = _bits(hi).view(np.int64)
    # in the order of magnitudes neighbours differ by one unit of the bits
    neighbour = (bits + np.where((lo > 0) == (hi > 0), 1, -1)).view(np.float64)
    toward = np.where(hi == 0, np.copysign(5e-324, lo), neighbour)
    return np.where(np.isfinite(hi) & (lo != 0) & ((bits & 1) == 0), toward, hi)


def _format(name: str, p: int, emin: int, emax: int, dtype: Any, largest: float | None = None) -> Format:
    value = math.ldexp(2.0 - math.ldexp(1.0, 1 - p), emax) if largest is None else largest
    return Format(name, p, emin, emax, value, largest is None, np.dtype(dtype))


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        _format("float64", 53, -1022, 1023, np.float64),
        _format("float32", 24, -126, 127, np.float32),
        _format("float16", 11, -14, 15, np.float16),
        _format("bfloat16", 8, -126, 127, ml_dtypes.bfloat16),
        _format("float8_e4m3fn", 4, -6, 8, ml_dtypes.float8_e4m3fn, largest=448.0),
        _format("float8_e5m2", 3, -14, 15, ml_dtypes.float8_e5m2),
    )
}


def format_of(dtype: Any) -> Format:
    """The format of a dtype given by name, as a numpy dtype or as a Format.

    Raises
    ------
    ValueError : for anything that is not one of the formats in ``FORMATS``
    """
    if isinstance(dtype, Format):
        return dtype
    name = dtype if isinstance(dtype, str) else _dtype_name(dtype)
    if name not in FORMATS:
        raise ValueError(f"dtype={dtype!r}, but should be one of {', '.join(FORMATS)}")
    return FORMATS[name]


def _dtype_name(dtype: Any) -> str:
    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        return str(dtype)
