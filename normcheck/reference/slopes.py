"""Gradients with a proved error, not rounded to any format: what an implementation's gradients are held against."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from normcheck.formats import Array
from normcheck.norms import Fold, Standardization
from normcheck.reference import arithmetic as dd
from normcheck.reference.arithmetic import U2, height
from normcheck.reference.gradient import Backward, gradient0, gradient1, gradient_exceptional, gradient_in_range
from normcheck.reference.ladder import Level, certify_problem
from normcheck.reference.problem import Problem, problem

_LEAST = 2.0**-900
_BLOCK = 1 << 16


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
    for chosen, work in Backward(p, dy, besides).blocks(_BLOCK):
        parts = list(_values(work, level))
        if level == "float64":
            outside = np.flatnonzero(~gradient_in_range(work))
            if outside.size:
                for part, better in zip(parts, _values(work.rows(outside), "double-double"), strict=True):
                    part[outside] = better
        decided, ieee = gradient_exceptional(work)
        none = np.zeros_like(ieee)
        for target, part, special in zip(out, parts, (ieee, none, none), strict=True):
            target[chosen] = np.where(decided, special, part)
    return out


def _values(work: Backward, level: Level) -> Exact:
    hi, lo, err = gradient0(work) if level == "float64" else gradient1(work)
    return Exact(hi, np.zeros_like(hi) if lo is None else lo, err)


def _parameter(fold: Fold, dy: Array, factor: Exact) -> Exact:
    """Sums of products over all elements that meet a parameter; products cost 7 u**2, each level of a sum's tree 3 u**2."""
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
