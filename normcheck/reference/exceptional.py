"""Rows on which the standardization has no finite denominator, and elements that are not finite: IEEE arithmetic decides.

- Own statistics with a mean: a row that holds an Inf or a NaN is NaN throughout.
- Own statistics without a mean: a NaN among the elements of the statistic makes the row NaN; an Inf makes S infinite, so finite
  elements become 0 and infinite ones NaN. Elements beyond the statistic's (PartialRMSNorm) touch only themselves.
- Given statistics: each element by itself, as c/S.
- S = 0 (no eps and a constant row, or given ones that cancel): 0/0 is NaN, c/0 an infinity. S**2 < 0: NaN.
- Weight and bias then act as IEEE arithmetic has it: 0 * inf is NaN.
"""

from __future__ import annotations

import numpy as np

from normcheck.formats import Array, Mask
from normcheck.reference.arithmetic import constant_rows
from normcheck.reference.denominator import denominator
from normcheck.reference.problem import Problem


def exceptional(p: Problem) -> tuple[Mask, Array]:
    """Which elements IEEE arithmetic decides, and y for these (for others anything), both (R, D)."""
    with np.errstate(all="ignore"):
        regular, scale = ordinary(p)
        mask = ~np.isfinite(p.x)
        mask[~regular] = True
        if not mask.any():
            return mask, p.x
        first = _classify(p)[1]
        y = (p.x - first[:, None]) / np.where(regular, 1.0, scale)[:, None]
        if p.weight is not None:
            y = y * (p.weight + p.offset)
        if p.bias is not None:
            y = y + p.bias
        return mask, y


def ordinary(p: Problem) -> tuple[Mask, Array]:
    """Rows with a finite positive S and a finite mean, and what stands for S on the others, (R,) each."""
    spread, first = _classify(p)
    scale = np.minimum(denominator(spread, p.standardization.eps, p.standardization.placement), _finite_or(spread))
    return np.isfinite(scale) & (scale > 0) & np.isfinite(first), scale


def _finite_or(spread: Array) -> Array:
    # spread + eps may overflow in float64 although S does not
    return np.where(np.isfinite(spread), np.finfo(np.float64).max, np.inf)


def _classify(p: Problem) -> tuple[Array, Array]:
    """A stand-in for s2 that is zero, positive, infinite, negative or NaN where s2 is, and what is subtracted from x."""
    if p.mean is not None and p.variance is not None:
        return np.where(p.variance == -np.inf, np.nan, p.variance), p.mean
    statistic = p.x[:, : p.count]
    if p.standardization.center:
        finite = np.isfinite(p.x).all(axis=1)
        flat = constant_rows(p.x)
        return np.where(finite, np.where(flat, 0.0, 1.0), np.nan), np.where(finite, p.x[:, 0], 0.0)
    return np.abs(statistic).max(axis=1), np.zeros(len(p.x))
