"""The certified value of a norm on an array: `reference`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from normcheck.contract import Contract
from normcheck.formats import Array, Format, format_of
from normcheck.norms import Fold, Norm, Standardization
from normcheck.reference.affine import add_rounded, affine_rounded
from normcheck.reference.ladder import correctly_rounded
from normcheck.reference.problem import problem


def reference(
    norm: Norm,
    x: npt.ArrayLike,
    weight: npt.ArrayLike | None = None,
    bias: npt.ArrayLike | None = None,
    *,
    residual: npt.ArrayLike | None = None,
    running_mean: npt.ArrayLike | None = None,
    running_var: npt.ArrayLike | None = None,
    training: bool = True,
    contract: Contract | None = None,
    dtype: Any = None,
    channel_axis: int = 1,
) -> npt.NDArray[Any]:
    """The value of a norm, correctly rounded: computed exactly from the given numbers and rounded once, to nearest, ties to even.

    The contract adds the roundings that it prescribes and no others: eps to ``eps_dtype``; the residual sum to x's dtype
    (``"storage"``) or to the compute dtype (``"compute"``); and for ``cast="before_weight"`` the standardized value to x's dtype,
    after which ``(offset + w) * n + b`` is exact until its one rounding.

    Any finite input is exact, whatever its size. An Inf or a NaN in a row, zero spread without eps, and weights that are not
    finite follow the rules in `normcheck.reference.exceptional`; a zero or constant row with eps > 0 gives exactly the bias
    (centred) or the formula's value. What exceeds the format's largest value becomes inf, or NaN where the format has none.

    Parameters
    ----------
    norm : what is computed
    x : array of float64, float32, float16, bfloat16, float8_e4m3fn or float8_e5m2
    weight, bias : as many elements as the norm has parameters, in any of these dtypes; None for 1 and 0
    residual : array like x, added before the norm
    running_mean, running_var : one per channel, used by a norm that keeps running statistics where ``training`` is False
    training : whether such a norm uses the input's own statistics
    contract : the promised arithmetic; `Contract()` by default
    dtype : format of the result; by default what ``contract.output`` says, that is x's
    channel_axis : 1 or -1, for norms over channels

    Returns
    -------
    array of x's shape and of the format's numpy dtype (from ml_dtypes where numpy has none)

    Raises
    ------
    ValueError : for arguments that do not fit the norm, naming the value and what was expected
    """
    contract = contract or Contract()
    values = as_values("x", x)
    fmt_x = format_of(values.dtype)
    if bias is not None and not norm.has_bias:
        raise ValueError(f"bias is given, but should be None: {norm.name} has none")
    weight_values, bias_values = _optional("weight", weight), _optional("bias", bias)
    fmt = format_of(dtype) if dtype is not None else _output_format(contract, fmt_x, weight_values)
    fold = norm.fold(values.shape, channel_axis)
    if residual is not None:
        values = _add_residual(values, as_values("residual", residual), contract)
    mean, variance = _given_statistics(norm, fold, running_mean, running_var, training)
    standardization = replace(norm.standardization, eps=contract.round_eps(norm.eps))
    parameters = (_parameter(norm, "weight", weight_values, fold), _parameter(norm, "bias", bias_values, fold))
    rows = fold.fold(values)
    y = _rounded(rows, standardization, parameters, norm.weight_offset, (mean, variance), contract, fmt_x, fmt)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(fold.unfold(y)).astype(fmt.dtype)


def as_values(name: str, array: npt.ArrayLike) -> npt.NDArray[Any]:
    """The argument as an array of one of the formats.

    Raises
    ------
    ValueError : for integers, complex numbers and anything else
    """
    values = np.asarray(array)
    try:
        format_of(values.dtype)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return values


def _optional(name: str, array: npt.ArrayLike | None) -> npt.NDArray[Any] | None:
    return None if array is None else as_values(name, array)


def _output_format(contract: Contract, fmt_x: Format, weight: npt.NDArray[Any] | None) -> Format:
    return contract.output_format(fmt_x, None if weight is None else format_of(weight.dtype))


def _add_residual(x: npt.NDArray[Any], residual: npt.NDArray[Any], contract: Contract) -> Array:
    if contract.residual_rounding is None:
        raise ValueError("residual is given, but contract.residual_rounding=None should then be 'storage' or 'compute'")
    if residual.shape != x.shape:
        raise ValueError(f"residual has shape {residual.shape}, but should have that of x, {x.shape}")
    fmt_x = format_of(x.dtype)
    fmt = fmt_x if contract.residual_rounding == "storage" else contract.compute_format(fmt_x)
    return add_rounded(x.astype(np.float64), residual.astype(np.float64), fmt)


def _given_statistics(
    norm: Norm, fold: Fold, running_mean: npt.ArrayLike | None, running_var: npt.ArrayLike | None, training: bool
) -> tuple[Array | None, Array | None]:
    given = {"running_mean": running_mean, "running_var": running_var}
    if not norm.has_running:
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"{name} is given, but should be None: {norm.name} keeps no running statistics")
    if training or not norm.has_running:
        return None, None
    return _statistic("running_mean", running_mean, fold), _statistic("running_var", running_var, fold)


def _statistic(name: str, given: npt.ArrayLike | None, fold: Fold) -> Array:
    if given is None:
        raise ValueError(f"{name}=None, but should be given where training=False")
    values = as_values(name, given)
    if values.size != fold.period:
        raise ValueError(f"{name} has {values.size} elements, but should have {fold.period}")
    return fold.statistics(values.astype(np.float64))


def _parameter(norm: Norm, name: str, values: npt.NDArray[Any] | None, fold: Fold) -> Array | None:
    if values is None:
        return None
    norm.check_parameter(name, values, fold)
    return fold.affine(values.astype(np.float64))


def _rounded(
    rows: npt.NDArray[Any],
    standardization: Standardization,
    parameters: tuple[Array | None, Array | None],
    offset: float,
    statistics: tuple[Array | None, Array | None],
    contract: Contract,
    fmt_x: Format,
    fmt: Format,
) -> Array:
    mean, variance = statistics
    if contract.cast == "once":
        return correctly_rounded(rows, standardization, *parameters, weight_offset=offset, mean=mean, variance=variance, fmt=fmt)
    n = correctly_rounded(rows, standardization, mean=mean, variance=variance, fmt=fmt_x)
    return affine_rounded(n, problem(rows, standardization, *parameters, offset, mean, variance), fmt)
