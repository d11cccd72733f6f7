"""Rows with everything that bears on their standardization: what each level of the ladder is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from normcheck.formats import Array
from normcheck.norms import Standardization
from normcheck.reference.rows import Index


@dataclass(frozen=True, eq=False)
class Problem:
    """Standardize rows and apply weight and bias.

    Attributes
    ----------
    x : (R, D) float64 standardization : what happens to one row weight, bias : (period, D) or (period, 1) or None; row r of ``x``
    uses row ``(first + r) % period`` until `block` or `rows` has
        picked them, then row r or, if there is one only, that one
    offset : added to the weight
    mean, variance : (R,) given statistics, or None for the row's own
    moderate : whether x is known to be of a format narrower than float64, so that no square of it can over- or underflow
    """

    x: Any
    standardization: Standardization
    weight: Array | None = None
    bias: Array | None = None
    offset: float = 0.0
    mean: Array | None = None
    variance: Array | None = None
    moderate: bool = False

    def rows(self, chosen: Index | slice, narrow: bool = False) -> Problem:
        """The problem of some of the rows; where ``narrow`` allows it, float32 holds what formats narrower than float64 do."""
        return self.at(taken(self.x, chosen, narrow), chosen)

    def at(self, x: Any, chosen: Index | slice) -> Problem:
        """The problem of some of the rows, which have been taken already: ``x`` holds their elements."""
        index = np.arange(*chosen.indices(len(self.x))) if isinstance(chosen, slice) else chosen
        return replace(
            self,
            x=x,
            moderate=self.moderate or self.x.dtype.itemsize < 8,
            weight=_pick(self.weight, index),
            bias=_pick(self.bias, index),
            mean=None if self.mean is None else self.mean[index],
            variance=None if self.variance is None else self.variance[index],
        )

    def blocks(self, elements: int, narrow: bool = False) -> Iterator[tuple[slice, Problem]]:
        """The problem in blocks of rows that hold about so many elements."""
        for chosen in row_blocks(*self.shape, elements):
            yield chosen, self.rows(chosen, narrow)

    def bare(self) -> Problem:
        """The same without weight and bias."""
        return replace(self, weight=None, bias=None)

    def finite(self) -> Problem:
        """The same with 0 for elements that are not finite."""
        return replace(self, x=finite_or_zero(self.x))

    @property
    def shape(self) -> tuple[int, int]:
        """(R, D)."""
        return self.x.shape[0], self.x.shape[1]

    @property
    def given(self) -> bool:
        """Whether the statistics are given."""
        return self.mean is not None

    @property
    def width(self) -> int:
        """How many elements a row has."""
        return int(self.x.shape[1])

    @property
    def count(self) -> int:
        """How many leading elements of a row enter its statistic."""
        return self.standardization.count(self.width)

    @property
    def divisor(self) -> float:
        """What the sum of squares is divided by."""
        return float(self.standardization.divisor(self.width))


def problem(
    rows: npt.ArrayLike,
    standardization: Standardization,
    weight: Array | None,
    bias: Array | None,
    weight_offset: float,
    mean: Array | None,
    variance: Array | None,
) -> Problem:
    """A problem from checked arguments.

    Raises
    ------
    ValueError : for rows that are not two-dimensional, parameters whose shape does not fit them, a mean without a variance, or a
        centred statistic of a part of the row
    """
    x = np.asarray(rows, np.float64)
    if x.ndim != 2:
        raise ValueError(f"rows has shape {x.shape}, but should be (R, D)")
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None and (parameter.ndim != 2 or parameter.shape[1] not in (1, x.shape[1])):
            raise ValueError(f"{name} has shape {parameter.shape}, but should be (period, 1) or (period, {x.shape[1]})")
    if (mean is None) != (variance is None):
        raise ValueError("mean and variance should be given both or neither")
    for name, given in (("mean", mean), ("variance", variance)):
        if given is not None and given.shape != x.shape[:1]:
            raise ValueError(f"{name} has shape {given.shape}, but should be {x.shape[:1]}")
    if standardization.center and standardization.fraction != 1.0:
        raise ValueError(f"fraction={standardization.fraction!r}, but should be 1 where the mean is subtracted")
    return Problem(x, standardization, weight, bias, weight_offset, mean, variance)


def row_blocks(rows: int, width: int, elements: int) -> Iterator[slice]:
    """Slices of rows of about so many elements."""
    step = max(1, elements // max(width, 1))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def taken(rows: Any, chosen: Index | slice, narrow: bool) -> npt.NDArray[Any]:
    """Some of the rows as float64, or as float32 where that is allowed and holds them."""
    some: npt.NDArray[Any] = rows[chosen]
    return np.asarray(some, np.float32 if narrow and some.dtype.itemsize < 8 else np.float64)


def finite_or_zero(a: Array) -> Array:
    """The array itself where all of it is finite, else a copy with 0 for what is not."""
    finite = np.isfinite(a)
    return a if finite.all() else np.where(finite, a, 0.0)


def _pick(parameter: Array | None, index: Index) -> Array | None:
    if parameter is None or len(parameter) == 1:
        return parameter
    return parameter[index % len(parameter)]
