"""Witnesses of backward passes: the failing row alone where it fails alone, written down so that it can be pasted."""

from __future__ import annotations

import numpy as np

from normcheck.checks.base import Context, FormError
from normcheck.checks.cases import make_case
from normcheck.checks.gradient_cases import NAMES, GradientCase, gradient_case, pulled
from normcheck.checks.witness import missed
from normcheck.formats import Array
from normcheck.implementations import CallError
from normcheck.implementations.snippets import gradient_snippet
from normcheck.results import Witness

_WRITABLE = 4096


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
    if gradient.dy.size > _WRITABLE:
        return None
    return _written(context, gradient, name, output, at)


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


def _written(context: Context, gradient: GradientCase, name: str, output: Array, at: tuple[int, int]) -> Witness:
    case = gradient.case
    own = getattr(case.inputs, name)
    position = np.zeros(output.shape, bool)
    position[at] = True
    placed = case.fold.unfold(position) if name in ("x", "residual") else position.reshape(own.shape)
    expected = float(gradient.exact[name].hi[at])
    text = gradient_snippet(
        context.implementation,
        case.inputs,
        case.fold.unfold(gradient.dy),
        name,
        tuple(int(i) for i in np.argwhere(placed)[0]),
        expected,
        dtype=case.out_format.name,
        layout=gradient.layout,
        tolerance=missed(float(output[at]), expected, float(gradient.judge(name, output, "sequential").tolerance[at])),
    )
    row = gradient.case.rows[at[0] if name in ("x", "residual") else 0]
    shown = ", ".join(float(value).hex() for value in row[:8])
    literal = f"{NAMES[name]} of x=[{shown}{', ...' if len(row) > 8 else ''}] ({row.size} elements)"
    return Witness(text, literal, at[1], float(output[at]).hex(), expected.hex())
