"""The certified gradient of a norm on arrays: `reference_grad`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from normcheck.contract import Contract
from normcheck.formats import format_of
from normcheck.norms import Norm
from normcheck.reference.forward import Call, as_values, prepare
from normcheck.reference.gradient import GRADIENT, Backward
from normcheck.reference.rows import FoldedRows
from normcheck.reference.rungs import round_rows
from normcheck.reference.sums import Factor, Normalized, One, Rounded, parameter_gradient


class Gradients(NamedTuple):
    """Correctly rounded gradients.

    Attributes
    ----------
    dx : of x's shape
    dweight, dbias : of the parameters' shapes, None where the parameter is
    dresidual : of the residual, equal to dx; None without one
    uncertified : how many elements of dweight and dbias could not be decided (they are within 2**-90 of a midpoint)
    """

    dx: npt.NDArray[Any]
    dweight: npt.NDArray[Any] | None
    dbias: npt.NDArray[Any] | None
    dresidual: npt.NDArray[Any] | None
    uncertified: int


def reference_grad(
    norm: Norm,
    x: npt.ArrayLike,
    dy: npt.ArrayLike,
    weight: npt.ArrayLike | None = None,
    bias: npt.ArrayLike | None = None,
    *,
    residual: npt.ArrayLike | None = None,
    dresidual: npt.ArrayLike | None = None,
    running_mean: npt.ArrayLike | None = None,
    running_var: npt.ArrayLike | None = None,
    training: bool = True,
    contract: Contract | None = None,
    dtype: Any = None,
    channel_axis: int = 1,
    stats: dict[str, int] | None = None,
) -> Gradients:
    """The gradient of sum(dy * y) with respect to x, weight and bias, each element computed exactly and rounded once.

    Where a residual is added before the norm, x and the residual have the same gradient: that through the norm plus
    ``dresidual``, the gradient of the sum as a second output. Roundings that the contract prescribes inside the forward pass (the
    residual sum, the standardized value before the weight) shape the values that the gradient is taken at and count as the
    identity in it. With own statistics an Inf or NaN in x, dy or weight makes its row of dx NaN; in sums it acts by IEEE
    arithmetic, where an infinite dy meets the exact sign of what it is multiplied by. Sums that are or round to zero are +0.

    Parameters
    ----------
    norm, x, weight, bias, residual, running_mean, running_var, training, contract, channel_axis : as for `reference`
    dy : gradient of the output, of x's shape
    dresidual : gradient of the second output, of x's shape
    dtype : format of all results; by default dx has x's and each parameter's gradient its own
    stats : if given, receives the counts ``elements``, ``level1``, ``level2``, ``ties`` and ``uncertified``

    Raises
    ------
    ValueError : for arguments that do not fit, naming the value and what was expected
    """
    call = prepare(norm, x, weight, bias, residual, running_mean, running_var, training, contract, channel_axis)
    counts = dict.fromkeys(("elements", "level1", "level2", "ties", "uncertified"), 0)
    slope, besides = like("dy", dy, call), None if dresidual is None else like("dresidual", dresidual, call)
    if dresidual is not None and residual is None:
        raise ValueError("dresidual is given, but residual=None has no second output")
    fold, fmt = call.fold, call.x if dtype is None else format_of(dtype)
    work = Backward(call.problem, FoldedRows(slope, fold), None if besides is None else FoldedRows(besides, fold))
    dx = np.empty(fold.shape, fmt.dtype)
    round_rows(work, GRADIENT, FoldedRows(dx, fold), fmt, counts)
    dweight = _parameter(call, work.dy, weight, _factor(call), dtype, counts)
    dbias = _parameter(call, work.dy, bias, One(), dtype, counts)
    if stats is not None:
        stats.update(counts)
    return Gradients(dx, dweight, dbias, None if residual is None else dx, counts["uncertified"])


def like(name: str, array: npt.ArrayLike, call: Call) -> npt.NDArray[Any]:
    """The argument, if it has x's shape; else ValueError."""
    values = as_values(name, array)
    if values.shape != call.fold.shape:
        raise ValueError(f"{name} has shape {values.shape}, but should have that of x, {call.fold.shape}")
    return values


def _factor(call: Call) -> Factor:
    return Normalized() if call.contract.cast == "once" else Rounded(call.x)


def _parameter(
    call: Call, dy: FoldedRows, parameter: npt.ArrayLike | None, factor: Factor, dtype: Any, counts: dict[str, int]
) -> npt.NDArray[Any] | None:
    if parameter is None:
        return None
    values = as_values("parameter", parameter)
    fmt = format_of(values.dtype if dtype is None else dtype)
    total = parameter_gradient(call.problem.bare(), dy, call.fold, factor, fmt, counts)
    with np.errstate(over="ignore", invalid="ignore"):
        return total.reshape(values.shape).astype(fmt.dtype)
