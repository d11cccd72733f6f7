"""A tolerance taken apart: which source of error allows how much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from normcheck.bounds import ClassName
from normcheck.checks.cases import Case
from normcheck.formats import Array
from normcheck.gradient_bounds import GradientErrors

if TYPE_CHECKING:
    from normcheck.checks.gradient_cases import Allowed, GradientCase

Position = tuple[int, int]


def widest(case: Case) -> ClassName:
    """The widest class of kernels that passes: a declared height leaves no room for a sequential sum."""
    return "tree" if isinstance(case.contract.accumulation, int) else "sequential"


def terms(case: Case, output: Array, at: Position, name: ClassName | None = None) -> dict[str, float]:
    """What makes up the tolerance of one element, in units of y, by name; those that are zero are left out.

    The sum of all is the bound E of a class (None: the widest that passes), in terms of `normcheck.bounds`, and the rounding to
    storage.
    """
    name, errors = name or widest(case), case.errors
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
    return _present(parts)


def gradient_terms(gradient: GradientCase, name: str, output: Array, at: Position, allowed: Allowed) -> dict[str, float]:
    """The same for an element of a gradient; ``allowed`` is the class, as for `GradientCase.bound`."""
    errors, exact = gradient.errors, gradient.exact[name]
    total = float(gradient.bound(name, allowed)[at])
    if name in ("x", "residual"):
        parts = _of_x(gradient, at, allowed)
    else:
        forward = gradient.case.classes["sequential" if allowed in ("sequential", "branches") else "tree"]
        height = errors.height("tree" if allowed == "rows" else "sequential")

        def bound(errors: GradientErrors, height: int) -> float:
            return float((errors.dweight(forward, height) if name == "weight" else errors.dbias(height))[at[1]])

        parts = {"sum over the rows": bound(errors, height) - bound(errors, 0)}
        if name == "weight":
            parts["statistics that were kept"] = bound(errors, 0) - bound(replace(errors, saved=None), 0)
            parts["cast before the weight"] = bound(errors, 0) - bound(replace(errors, inner=False), 0)
    parts["reference"] = float(exact.err[at])
    rest = {"x": "underflow", "residual": "underflow", "weight": "standardized values", "bias": "underflow"}[name]
    parts[rest] = total - sum(parts.values())
    fmt = gradient.format_of(name)
    parts[f"rounding to {fmt.name}"] = 0.5 * float(np.nan_to_num(fmt.ulp(output[at])))
    return _present(parts)


def _of_x(gradient: GradientCase, at: Position, allowed: Allowed) -> dict[str, float]:
    errors, exact = gradient.errors, gradient.exact["x"].hi
    forward = gradient.case.classes["sequential" if allowed in ("sequential", "branches") else "tree"]
    plain = replace(errors, besides=False)
    silent = replace(plain, dy=np.zeros_like(errors.dy))

    def bound(errors: GradientErrors, value: Array) -> float:
        return float(errors.dx(forward, value)[at])

    none = np.zeros_like(exact)
    parts = {
        "division by S, and product": bound(silent, exact) - bound(silent, none),
        "mean, projection and difference": bound(plain, none) - bound(silent, none),
        "gradient that is added": bound(errors, exact) - bound(plain, exact),
    }
    if allowed == "branches":
        parts["several gradients of x, each rounded"] = float(errors.branches()[at])
    return parts


def _present(parts: Mapping[str, float]) -> dict[str, float]:
    # differences of rounded numbers may leave a trace of a term that is not there
    return {name: value for name, value in parts.items() if value > 2.0**-40 * sum(parts.values())}


def lines(parts: Mapping[str, float]) -> list[str]:
    """The terms as a table, largest first."""
    ordered = sorted(parts.items(), key=lambda pair: -pair[1])
    return [f"    {value:.3g}  {name}" for name, value in ordered]
