"""A tolerance taken apart: which source of error allows how much."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from normcheck.bounds import ClassName
from normcheck.checks.cases import Case
from normcheck.formats import Array

Position = tuple[int, int]


def widest(case: Case) -> ClassName:
    """The widest class of kernels that passes: a declared height leaves no room for a sequential sum."""
    return "tree" if isinstance(case.contract.accumulation, int) else "sequential"


def terms(case: Case, output: Array, at: Position) -> dict[str, float]:
    """What makes up the tolerance of one element, in units of y, by name; those that are zero are left out.

    The sum of all is the bound E of the class that passes, in terms of `normcheck.bounds`, and the rounding to storage.
    """
    name, errors = widest(case), case.errors
    allowed, row = case.classes[name], at[0]
    weight, _ = case.affine
    scale = 1.0 if weight is None else abs(float(np.broadcast_to(weight, case.rows.shape)[at]))
    outside = scale if case.inner_cast else 1.0
    inside = scale * (1 + 4 * errors.compute.u * (allowed.height + 8))
    mean = float(errors.tau(allowed)[row])
    spread = abs(float(errors.normalized[at])) * float(errors.gain(allowed)[row])
    parts = {
        "mean": inside * mean,
        "variance, root and product": inside * spread,
        "subtraction of the mean": inside * (float(errors.standardized(allowed)[at]) - mean - spread),
        "reference": outside * float(errors.certified.err[at]),
    }
    parts["weight, bias and underflow"] = outside * float(case.bound(name)[at]) - sum(parts.values())
    parts[f"rounding to {case.out_format.name}"] = float(np.nan_to_num(case.rounding(output)[at]))
    # differences of rounded numbers may leave a trace of a term that is not there
    return {name: value for name, value in parts.items() if value > 2.0**-40 * sum(parts.values())}


def lines(parts: Mapping[str, float]) -> list[str]:
    """The terms as a table, largest first."""
    ordered = sorted(parts.items(), key=lambda pair: -pair[1])
    return [f"    {value:.3g}  {name}" for name, value in ordered]
