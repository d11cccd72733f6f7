"""The ladder: float64, then double-double, then exact rationals, each for what the one before could not settle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from normcheck.formats import Array, Format
from normcheck.norms import Standardization
from normcheck.reference.arithmetic import tree_sum
from normcheck.reference.double_double import LoopsDD, level1
from normcheck.reference.exact import exact_elements
from normcheck.reference.exceptional import exceptional
from normcheck.reference.float64 import in_range, level0, rounded0
from normcheck.reference.loops_dd import exponent_of, power_product
from normcheck.reference.problem import Problem, problem
from normcheck.reference.rungs import BLOCK, Rungs, new_counts, round_rows
from normcheck.reference.settling import Triple

Level = Literal["float64", "double-double"]


@dataclass(frozen=True, eq=False)
class Certified:
    """Values of a norm on rows with a proved error: ``|hi + lo - y| <= err`` elementwise. Not rounded to any format.

    y is ``(offset + w) * n + b``, or n itself where weight and bias are None. Where IEEE arithmetic decides (see
    `normcheck.reference.exceptional`), hi is that value and err is 0. Where nothing could be proved, err is inf.

    Attributes
    ----------
    hi, lo, err : (R, D)
    mean, sigma, scale : (R,) to about 1e-12: the mean (0 if the norm subtracts none), sqrt(s2) and the denominator S; clipped
        to the largest float64; arbitrary on rows that IEEE arithmetic decides
    abs_mean, max_abs : (R,) mean of |x| over the elements of the statistic, and the largest |x| of the row
    """

    hi: Array
    lo: Array
    err: Array
    mean: Array
    sigma: Array
    scale: Array
    abs_mean: Array
    max_abs: Array


def certify(
    rows: npt.ArrayLike,
    standardization: Standardization,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    weight_offset: float = 0.0,
    mean: Array | None = None,
    variance: Array | None = None,
    level: Level = "float64",
) -> Certified:
    """Standardize rows with a proved bound on the error of every element.

    Parameters
    ----------
    rows : (R, D)
    standardization : what happens to one row, see `Norm.standardization`
    weight, bias : (period, D) or (period, 1); row r uses row ``r % period``
    weight_offset : added to the weight
    mean, variance : (R,) given statistics instead of the rows' own
    level : ``"float64"`` (errors of some 1e-15; rows with elements beyond 2**+-300 use double-double all the same) or
        ``"double-double"`` (some 2**-99 relative)

    Raises
    ------
    ValueError : for shapes that do not fit and for an unknown level
    """
    if level not in ("float64", "double-double"):
        raise ValueError(f"level={level!r}, but should be 'float64' or 'double-double'")
    return certify_problem(problem(rows, standardization, weight, bias, weight_offset, mean, variance), level)


def certify_problem(p: Problem, level: Level) -> Certified:
    """What `certify` does, on a problem."""
    shape = p.x.shape
    out = Certified(*(np.empty(shape) for _ in range(3)), *(np.empty(shape[0]) for _ in range(5)))
    if p.width:
        for chosen, block in p.blocks(BLOCK):
            _certify_block(block, level, out, chosen)
    return out


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
    stats: dict[str, int] | None = None,
) -> Array:
    """Standardize rows and round the exact values once, to nearest with ties to even.

    Parameters are those of `certify`, and

    fmt : the format to round to stats : if given, receives the counts ``elements``, ``level1`` and ``level2`` (elements that
    float64 and double-double could not
        settle) and ``ties`` among the latter

    Returns
    -------
    (R, D) float64 array of values of the format
    """
    p = problem(rows, standardization, weight, bias, weight_offset, mean, variance)
    counts = new_counts()
    out = round_problem(p, fmt, counts)
    if stats is not None:
        stats.update(counts)
    return out


def round_problem(p: Problem, fmt: Format, counts: dict[str, int]) -> Array:
    """What `correctly_rounded` does, on a problem; ``counts`` are raised."""
    out = np.empty(p.shape)
    round_rows(p, FORWARD, out, fmt, counts)
    return out


def _certify_block(p: Problem, level: Level, out: Certified, chosen: slice) -> None:
    mask, ieee = exceptional(p)
    finite = p.finite()
    values = level0(finite) if level == "float64" else level1(finite)
    lo = np.zeros_like(values.hi) if values.lo is None else values.lo
    parts = [values.hi, lo, values.err, values.mean, values.sigma, values.scale]
    outside = np.flatnonzero(~in_range(finite)) if level == "float64" else np.empty(0, int)
    if outside.size:
        for part, better in zip(parts, level1(finite.rows(outside)), strict=True):
            part[outside] = better
    parts[0] = np.where(mask, ieee, parts[0])
    parts[1] = np.where(mask, 0.0, parts[1])
    parts[2] = np.where(mask, 0.0, np.where(np.isnan(parts[2]), np.inf, parts[2]))
    for target, part in zip((out.hi, out.lo, out.err, out.mean, out.sigma, out.scale), parts, strict=True):
        target[chosen] = part
    out.abs_mean[chosen], out.max_abs[chosen] = _sizes(p)


def _sizes(p: Problem) -> tuple[Array, Array]:
    a = np.abs(p.x)
    largest = a.max(axis=1)
    exponent = np.where(np.isfinite(largest), exponent_of(largest), 0)
    mean = tree_sum(power_product(a[:, : p.count], -exponent[:, None])) / p.count
    return np.ldexp(mean, exponent), largest


def _double_double(p: Problem, where: LoopsDD) -> Triple:
    values = level1(p, where)
    return Triple(values.hi, values.lo, values.err)


FORWARD: Rungs[Problem] = Rungs(rounded0, _double_double, exceptional, exact_elements)
