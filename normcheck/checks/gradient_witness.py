"""Witnesses of backward passes: the failing row alone where it fails alone, written down so that it can be pasted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from normcheck.checks.base import Context, FormError
from normcheck.checks.cases import make_case
from normcheck.checks.gradient_cases import NAMES, GradientCase, gradient_case, pointed, pulled
from normcheck.checks.witness import claimed, missed, place_of
from normcheck.formats import Array
from normcheck.implementations import CallError
from normcheck.implementations.gradient_snippets import second_snippet
from normcheck.results import Witness


def gradient_witness(context: Context, gradient: GradientCase, name: str, output: Array) -> Witness | None:
    """The smallest part of a failing backward pass that still fails; None where it is too large to be written down.

    Parameters
    ----------
    gradient, output : the failing case and the gradient that came, as `GradientCase.rows_of` gives it
    name : of what it is the gradient of
    """
    verdict = gradient.judge(name, output, "sequential")
    at = verdict.worst
    if at is None:
        return None
    if name == "x":
        alone = _alone(context, gradient, at[0])
        found = None if alone is None else _fails(context, alone, name)
        if alone is not None and found is not None:
            gradient, output, at = alone, *found
    return _written(gradient, name, output, at)


def _alone(context: Context, gradient: GradientCase, row: int) -> GradientCase | None:
    """The backward pass of one row, repeated as often as the norm needs rows."""
    case = gradient.case
    if case.norm.per_channel or gradient.dresidual is not None:
        return None
    shape = case.norm.shape_of(1, case.fold.width, None, context.implementation.channel_axis)
    if context.implementation.refuses(shape):
        return None
    fold = case.norm.fold(shape, context.implementation.channel_axis)
    small = make_case(case.norm, case.contract, fold, case.rows[row : row + 1], case.inputs)
    return gradient_case(context, small, gradient.dy[row : row + 1], layout=gradient.layout)


def _fails(context: Context, gradient: GradientCase, name: str) -> tuple[Array, tuple[int, int]] | None:
    try:
        output = gradient.rows_of(pulled(context, gradient), name)
    except (CallError, FormError, ValueError):
        return None
    verdict = gradient.judge(name, output, "sequential")
    return None if verdict.worst is None or verdict.worst_ratio <= 1 else (output, verdict.worst)


def _written(gradient: GradientCase, name: str, output: Array, at: tuple[int, int]) -> Witness | None:
    verdict, exact = gradient.judge(name, output, "sequential"), float(gradient.exact[name].hi[at])
    found = pointed(gradient, name, at, float(output[at]), exact, float(verdict.tolerance[at]))
    row = gradient.case.rows[at[0] if name in ("x", "residual") else 0]
    shown = ", ".join(float(value).hex() for value in row[:8])
    literal = f"{NAMES[name]} of x=[{shown}{', ...' if len(row) > 8 else ''}] ({row.size} elements)"
    return None if found is None else replace(found, inputs=literal, index=at[1])


def second_shown(
    gradient: GradientCase, along: dict[str, Array], name: str, at: tuple[int, ...], got: float, exact: float, bound: float
) -> Witness | None:
    """One element of a second derivative, by row and place in the row."""
    case, whole = gradient.case, name in ("x", "y")
    index = place_of(case, (at[0], at[1])) if whole else np.unravel_index(at[-1], getattr(case.inputs, name).shape)
    text = second_snippet(
        gradient.implementation,
        case.inputs,
        case.fold.unfold(gradient.dy),
        along,
        name,
        tuple(int(i) for i in index),
        exact,
        dtype=case.out_format.name,
        tolerance=missed(got, exact, bound),
        claim=claimed(got, exact, bound),
    )
    return Witness(text, NAMES.get(name, "dy"), None, got.hex(), exact.hex())
