"""Gradients with a proved error, not rounded to any format: what an implementation's gradients are held against."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from normcheck.formats import Array
from normcheck.norms import Fold, Standardization
from normcheck.reference import arithmetic as dd
from normcheck.reference.arithmetic import U2, height
from normcheck.reference.gradient import GRADIENT, Backward
from normcheck.reference.ladder import Level, certify_problem
from normcheck.reference.problem import Problem, problem
from normcheck.reference.rungs import BLOCK, Triple

_LEAST = 2.0**-900


class Exact(NamedTuple):
    """|hi + lo - exact| <= err elementwise; err is inf where nothing could be proved."""

    hi: Array
    lo: Array
    err: Array


def certify_gradients(
    rows: Array,
    dy: Array,
    standardization: Standardization,
    fold: Fold,
    weight: Array | None = None,
    *,
    weight_offset: float = 0.0,
    besides: Array | None = None,
    mean: Array | None = None,
    variance: Array | None = None,
    level: Level = "float64",
) -> dict[str, Exact]:
    """The gradients of sum(dy*y) on finite rows with a proved bound on the error of every element.

    Parameters
    ----------
    rows, dy : (R, D), finite
    standardization, weight, weight_offset, mean, variance, level : as for `certify`
    fold : how parameters lie along the rows
    besides : (R, D) gradient that reaches x on another way, such as that of a returned residual

    Returns
    -------
    ``"x"``, (R, D); ``"weight"`` and ``"bias"``, (1, parameters), the sums over rows of dy*n and dy
    """
    bare = problem(rows, standardization, None, None, 0.0, mean, variance)
    whole = problem(rows, standardization, weight, None, weight_offset, mean, variance)
    n = certify_problem(bare, level)
    one, zero = np.ones_like(dy), np.zeros_like(dy)
    return {
        "x": _input(whole, dy, besides, level),
        "weight": _parameter(fold, dy, Exact(n.hi, n.lo, n.err)),
        "bias": _parameter(fold, dy, Exact(one, zero, zero)),
    }


def _input(p: Problem, dy: Array, besides: Array | None, level: Level) -> Exact:
    out = Exact(*(np.empty(p.shape) for _ in range(3)))
    for chosen, work in Backward(p, dy, besides).blocks(BLOCK):
        values = GRADIENT.float64(work) if level == "float64" else GRADIENT.double_double(work)
        parts = [values.hi, _low(values), values.err]
        outside = np.flatnonzero(~GRADIENT.in_range(work)) if level == "float64" else np.empty(0, int)
        if outside.size:
            better = GRADIENT.double_double(work.rows(outside))
            for part, value in zip(parts, (better.hi, _low(better), better.err), strict=True):
                part[outside] = value
        decided, ieee = GRADIENT.exceptional(work)
        parts = [np.where(decided, ieee, parts[0]), np.where(decided, 0.0, parts[1]), np.where(decided, 0.0, parts[2])]
        for target, part in zip(out, parts, strict=True):
            target[chosen] = part
    return out


def _low(values: Triple) -> Array:
    return np.zeros_like(values.hi) if values.lo is None else values.lo


def _parameter(fold: Fold, dy: Array, factor: Exact) -> Exact:
    """Sums of products over all elements that meet a parameter: products cost 7 u**2, sums 3 u**2 for each level of their tree."""
    hi, lo = dd.multiply((factor.hi, factor.lo), (dy, np.zeros_like(dy)))
    moduli = np.abs(dy) * factor.err + 7.1 * U2 * np.abs(hi) + _LEAST * (hi != 0)
    hi, lo, moduli, size = (_by_parameter(fold, part) for part in (hi, lo, moduli, np.abs(hi)))
    total = dd.tree_sum_dd((hi, lo))
    err = 1.01 * (moduli.sum(axis=1) + 3.1 * U2 * height(size.shape[1]) * size.sum(axis=1))
    return Exact(total[0][None, :], total[1][None, :], err[None, :])


def _by_parameter(fold: Fold, rows: Array) -> Array:
    """Elements (R, D) as (parameters, M): all that meet one parameter in a row."""
    split = rows.reshape(-1, fold.period, fold.width // (fold.repeat or fold.width), fold.repeat or fold.width)
    return split.transpose(1, 2, 0, 3).reshape(split.shape[1] * split.shape[2], -1)
