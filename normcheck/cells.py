"""Rounding cells: how far exact values lie from the cells of an output, and whether that is within a bound.

An output y of a format stands for every number that rounds to it. A kernel whose error before the last rounding is at most E
conforms where the exact value is within E of that cell, which is RN(y_exact - E) <= y <= RN(y_exact + E) and needs no further
tolerance for the rounding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from normcheck.formats import Array, Format, Mask, no_fraction
from normcheck.reference import Certified


class Exact(Protocol):
    """Exact values up to a known error: hi + lo."""

    @property
    def hi(self) -> Array:
        """The value rounded to float64."""

    @property
    def lo(self) -> Array:
        """The rest."""


@dataclass(frozen=True, eq=False)
class Judgement:
    """An output held against bounds.

    Attributes
    ----------
    ratio : distance of the exact value from the rounding cell of the output, over the bound, (R, D); at most 1 conforms, and 0
        where nothing was judged
    judged : the elements that were judged, (R, D)
    sizes : gives error and tolerance at an index
    """

    ratio: Array
    judged: Mask
    sizes: Callable[[Any], tuple[Array, Array]]

    @functools.cached_property
    def error(self) -> Array:
        """|output - exact value|, (R, D)."""
        return self.sizes(...)[0]

    @functools.cached_property
    def tolerance(self) -> Array:
        """The bound plus half an ulp of the output, (R, D)."""
        return self.sizes(...)[1]

    @functools.cached_property
    def worst(self) -> tuple[int, int] | None:
        """Row and element of the largest ratio, or None if nothing was judged."""
        if not self.judged.any():
            return None
        flat = self.ratio.argmax() if self.worst_ratio > 0 else self.judged.argmax()
        row, element = np.unravel_index(flat, self.ratio.shape)
        return int(row), int(element)

    @functools.cached_property
    def worst_ratio(self) -> float:
        """The largest ratio among judged elements; 0 if nothing was judged."""
        return float(self.ratio.max(initial=0.0))

    @property
    def figures(self) -> dict[str, float]:
        """``error`` and ``tolerance`` of the worst element, or nothing if nothing was judged."""
        if self.worst is None:
            return {}
        error, tolerance = self.sizes(self.worst)
        return {"error": float(error), "tolerance": float(tolerance)}


def distance(output: Array, certified: Exact, fmt: Format) -> Array:
    """Distance of the exact values from the outputs' rounding cells in ``fmt``, >= 0, (R, D); 0 where they round to them.

    The cell of an output reaches half way to its neighbours: on the side of zero of a power of two only half as far. Infinite
    outputs have the cell beyond the largest finite value.
    """
    with np.errstate(all="ignore"):
        error = output - certified.hi
        error -= certified.lo
        half = 0.5 * fmt.ulp(output)
        powers = no_fraction(output)
        if powers.any():
            some, off = output[powers], error[powers]
            toward_zero = (np.sign(off) * np.sign(some) > 0) & (np.abs(some) > fmt.min_normal)
            half[powers] *= np.where(toward_zero, 0.5, 1.0)
        gap = np.abs(error, out=error)
        gap -= half
        np.maximum(gap, 0.0, out=gap)
        if np.isnan(gap.max(initial=0.0)):
            gap = np.where(np.isfinite(output), gap, _beyond(output, certified, fmt))
        return gap


def _beyond(output: Array, certified: Exact, fmt: Format) -> Array:
    """Distance from the cell of an infinity; infinite for NaN."""
    edge = fmt.max + 0.5 * float(fmt.ulp(fmt.max))
    return np.where(np.isnan(output), np.inf, np.maximum(edge - np.sign(output) * certified.hi, 0.0))


def judge(output: Array, certified: Exact, bound: Array, fmt: Format, judged: Mask, gap: Array | None = None) -> Judgement:
    """Hold outputs against the exact values: conforming iff RN(y - E) <= output <= RN(y + E), that is distance/E <= 1.

    Parameters
    ----------
    output : values of the format ``fmt``, (R, D)
    certified : unrounded reference; its err is already part of ``bound``
    bound : E, (R, D)
    fmt : the output's format
    judged : rows that the bound covers, (R,); elements whose bound or value is not finite or that can overflow are left out
    gap : `distance` of the outputs, where it is known already
    """
    with np.errstate(all="ignore"):
        gap = distance(output, certified, fmt) if gap is None else gap
        reach = np.abs(certified.hi)
        reach += bound
        covered = reach <= fmt.max
        if not judged.all():
            covered &= judged[:, None]
        ratio = gap / bound
        if not (covered.all() and bound.all()):
            ratio = np.where(covered & (gap > 0), ratio, 0.0)

    def sizes(at: Any) -> tuple[Array, Array]:
        with np.errstate(all="ignore"):
            error = _infinite_for_nan(np.abs((output[at] - certified.hi[at]) - certified.lo[at]))
            return error, bound[at] + 0.5 * np.fmax(fmt.ulp(output[at]), 0.0)

    return Judgement(ratio, covered, sizes)


def _infinite_for_nan(error: Array) -> Array:
    return np.where(np.isnan(error), np.inf, error)


def judge_before_weight(
    output: Array, certified: Certified, bound: Array, weight: Array, bias: Array | None, inner: Format, fmt: Format, judged: Mask
) -> Judgement:
    """Hold outputs of the cast ``before_weight`` against RN(w*RN(n - E)) .. RN(w*RN(n + E)), ends swapped for w < 0.

    Parameters
    ----------
    output : values of the format ``fmt``, (R, D)
    certified, bound : of the standardized value n, without weight and bias
    weight, bias : broadcast to the rows; a bias may be added before or after the last rounding
    inner : format to which n is rounded
    fmt : the output's format
    judged : rows that the bound covers, (R,)
    """
    with np.errstate(all="ignore"):
        ends = [weight * inner.round(certified.hi + sign * bound) for sign in (-1.0, 1.0)]
        candidates = [fmt.round(end) for end in ends]
        if bias is not None:
            candidates = [fmt.round(y + bias) for y in (*ends, *candidates)]
        low, high = np.minimum.reduce(candidates), np.maximum.reduce(candidates)
        exact = weight * certified.hi + (0.0 if bias is None else bias)
        error = _infinite_for_nan(np.abs(output - exact))
        slack = 0.5 * (fmt.ulp(output) + np.abs(weight) * inner.ulp(certified.hi))
        reach = np.abs(weight) * bound
        estimate = np.where(reach > 0, (error - slack) / reach, np.inf)
        inside = (low <= output) & (output <= high)
        ratio = np.where(inside, np.clip(estimate, 0.0, 1.0), np.maximum(np.nan_to_num(estimate, nan=np.inf), 1.0 + 2.0**-20))
        covered = judged[:, None] & np.isfinite(reach) & np.isfinite(exact) & (np.abs(high) <= fmt.max) & (np.abs(low) <= fmt.max)
    return Judgement(np.where(covered, ratio, 0.0), covered, lambda at: (error[at], (reach + slack)[at]))


def vacuous(certified: Exact, bound: Array, judged: Mask) -> bool:
    """Whether the bound says nothing: E > |y|/10 at every judged element."""
    with np.errstate(all="ignore"):
        telling = judged & (bound <= np.abs(certified.hi) / 10)
    return not bool(telling.any())
