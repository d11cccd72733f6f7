"""Parameters: weights and biases of any sign and size, and wherever they lie in memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from normcheck.checks.base import Context, guarded, register
from normcheck.checks.cases import Case, make_case
from normcheck.checks.comparing import case_from, held, mixed, need_sound_base
from normcheck.formats import Array
from normcheck.implementations import CallError
from normcheck.results import Result

_PARAMETERS = ("weight", "bias", "running_mean", "running_var")
# signs of offset + w, and the least and largest modulus of it and of the bias
_RANGES = {
    "negative weights": (-1.0, (0.3, 2.5), (0.1, 1.0)),
    "positive weights": (1.0, (0.3, 2.5), (0.1, 1.0)),
    "large weights": (0.0, (3.0, 60.0), (0.1, 1.0)),
    "small weights": (0.0, (1e-3, 3e-2), (1e-3, 1e-2)),
    "large biases": (0.0, (0.3, 2.5), (2.5, 60.0)),
    "weights of one": (1.0, (1.0, 1.0), (0.1, 1.0)),
    "weights of zero": (1.0, (0.0, 0.0), (0.1, 1.0)),
    "biases of zero": (0.0, (0.3, 2.5), (0.0, 0.0)),
}
_LAYOUTS = ("strided", "unaligned", "reversed")


def _needs_parameters(context: Context) -> str:
    takes = context.implementation.takes
    return "" if takes("weight") or takes("bias") else f"{context.implementation.name} takes neither weight nor bias"


def _needs_vectors(context: Context) -> str:
    given = any(context.implementation.takes(name) for name in _PARAMETERS)
    return "" if given else f"{context.implementation.name} takes no parameters"


def _shapes(context: Context) -> Iterator[tuple[int, ...]]:
    for width in (48, 33):
        if context.can_take(width):
            yield context.shape(12, width)
            return
    yield context.shape(12, context.widths[-1])


@register("parameter-range", applies=_needs_parameters)
def parameter_range(context: Context) -> Iterator[Result]:
    """Weights and biases of any sign and size are used as they are.

    Statement
    ---------
    With weights that are all negative, all positive, between 3 and 60, or between 0.001 and 0.03, and with biases between 2.5 and
    60, of either sign, y = (offset + w)*n + b. So it is where offset + w is 1 everywhere, or 0, beside biases that are not 0, and
    where all biases are 0 beside weights that are not 1.

    Why it matters
    --------------
    Weights start as ones and biases as zeros, and trained ones are seldom far from there. A scale that is clipped to keep int8 in
    range, taken by its modulus, or stored in a format of a few bits is right until a model has learned another. Where weights are
    found to be all ones, or zeros, a shortcut may leave out the bias as well.

    Holds for
    ---------
    Every norm with a weight or a bias.

    Tolerance
    ---------
    The bound E of ``accuracy``, which carries w and b.

    Known exceptions
    ----------------
    All is skipped where a plain input is wrong already.

    References
    ----------
    Kinds K13 and K19 of the catalogue of faults; linkedin/Liger-Kernel 74.
    """
    need_sound_base(context)
    for shape, regime in itertools.product(_shapes(context), _RANGES):
        if not context.implementation.takes("bias" if "biases" in regime else "weight"):
            continue
        yield from guarded(context, "parameter-range", _ranged, shape, regime, regime=regime, shape=shape)


def _ranged(context: Context, shape: tuple[int, ...], regime: str) -> Result:
    sign, sizes, shifts = _RANGES[regime]
    case = case_from(context, mixed(context, shape))
    rng = np.random.default_rng([context.seed, *shape])
    changes: dict[str, Any] = {}
    if case.inputs.weight is not None:
        size = case.inputs.weight.shape
        signs = rng.choice([-1.0, 1.0], size) if sign == 0 else np.full(size, sign)
        changes["weight"] = signs * rng.uniform(*sizes, size) - context.norm.weight_offset
    if case.inputs.bias is not None:
        size = case.inputs.bias.shape
        changes["bias"] = rng.choice([-1.0, 1.0], size) * rng.uniform(*shifts, size)
    rounded: dict[str, Any] = {name: context.parameter_format.round(value) for name, value in changes.items()}
    other = _changed(case, **rounded)
    return held(context, "parameter-range", other, context.run(other), note=f" with {regime}", regime=regime)


def _changed(case: Case, **changes: Any) -> Case:
    return make_case(case.norm, case.contract, case.fold, case.rows, replace(case.inputs, **changes))


@register("parameter-layouts", applies=_needs_vectors)
def parameter_layouts(context: Context) -> Iterator[Result]:
    """Weights, biases and statistics count by their values, not by how they lie in memory.

    Statement
    ---------
    Parameters and given statistics that are every second element of a larger array, begin one element away from the start of
    memory, or run backwards give the result of contiguous ones. What lies between their elements is NaN.

    Why it matters
    --------------
    A weight may be a column of a packed matrix, or a slice of a flat buffer that an optimizer or a sharded loader keeps. Kernels
    that look at the strides of x alone read its neighbours; vector loads ask for a start that they do not check.

    Holds for
    ---------
    Every norm with parameters. Layouts that the framework has not, or that the implementation refuses by raising, are left out.

    Tolerance
    ---------
    The bound E of ``accuracy``, which depends on the values alone.

    Known exceptions
    ----------------
    All is skipped where a plain input is wrong already.

    References
    ----------
    ModelTC/LightLLM 1467, NVIDIA/TransformerEngine 1017 (kind K18 of the catalogue of faults).
    """
    need_sound_base(context)
    for shape, layout in itertools.product(_shapes(context), _LAYOUTS):
        yield from guarded(context, "parameter-layouts", _laid, shape, layout, regime=layout, shape=shape)


def _laid(context: Context, shape: tuple[int, ...], layout: str) -> Result | None:
    case = case_from(context, mixed(context, shape))
    case = replace(case, inputs=replace(case.inputs, parameter_layout=layout))
    try:
        output: Array = context.run(case)
    except (ValueError, CallError):
        return None
    return held(context, "parameter-layouts", case, output, regime=layout)
