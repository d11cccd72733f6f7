"""Arrays of any supported framework as the cases that checks judge."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from normcheck.checks.cases import Case, make_case
from normcheck.contract import Contract
from normcheck.formats import Array, format_of
from normcheck.implementations import Inputs, frameworks
from normcheck.norms import Norm
from normcheck.reference.affine import add_rounded
from normcheck.reference.forward import refuse_mask


@dataclass(frozen=True, eq=False)
class Read:
    """An array's float64 values and the name of its dtype."""

    values: Array
    dtype: str


def read(name: str, native: Any) -> Read:
    """An array of a framework that is loaded.

    Raises
    ------
    TypeError : for anything else, naming it
    ValueError : for a dtype that is no floating-point format, and for masked elements
    """
    refuse_mask(name, native)
    # only what is loaded can have made the array
    for adapter in (one for one in frameworks().values() if one.name in sys.modules):
        try:
            values, dtype = adapter.to_values(native)
        except TypeError:
            continue
        try:
            return Read(values, format_of(dtype).name)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    known = ", ".join(frameworks())
    raise TypeError(f"{name} is a {type(native).__name__}, but should be an array of one of these: {known}")


def read_if(name: str, native: Any) -> Read | None:
    """As `read`; None for None."""
    return None if native is None else read(name, native)


def case_of(
    norm: Norm,
    x: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    residual: Any = None,
    running_mean: Any = None,
    running_var: Any = None,
    training: bool = True,
    contract: Contract | None = None,
    channel_axis: int = 1,
) -> Case:
    """The case of these inputs; arguments as for `normcheck.reference`.

    Raises
    ------
    TypeError, ValueError : for arguments that do not fit, naming the value and what was expected
    """
    contract = contract or Contract()
    given = read("x", x)
    parameters = {"weight": read_if("weight", weight), "bias": read_if("bias", bias)}
    running = {"running_mean": read_if("running_mean", running_mean), "running_var": read_if("running_var", running_var)}
    fold = norm.fold(given.values.shape, channel_axis)
    for name, parameter in parameters.items():
        if parameter is not None:
            _refuse(name == "bias" and not norm.has_bias, f"bias is given, but should be None: {norm.name} has none")
            norm.check_parameter(name, parameter.values, fold)
    for name, statistic in running.items():
        _refuse(statistic is not None and not norm.has_running, f"{name} is given, but {norm.name} keeps no running statistics")
        needed = norm.has_running and not training
        _refuse(needed and statistic is None, f"{name}=None, but should be given where training=False")
        if statistic is not None:
            size = statistic.values.size
            _refuse(size != fold.period, f"{name} has {size} elements, but should have {fold.period}")
    first = next((one for one in parameters.values() if one is not None), None)
    arrays: dict[str, Any] = {name: None if one is None else one.values for name, one in {**parameters, **running}.items()}
    inputs = Inputs(
        x=given.values,
        **arrays,
        dtype=given.dtype,
        weight_dtype=None if first is None else first.dtype,
        training=training,
    )
    return make_case(norm, contract, fold, fold.fold(_summed(given, residual, contract)), inputs)


def _summed(x: Read, residual: Any, contract: Contract) -> Array:
    """What the norm sees: x, or the residual sum, rounded as the contract says."""
    if residual is None:
        return x.values
    other, fmt = read("residual", residual), format_of(x.dtype)
    _refuse(
        contract.residual_rounding is None,
        "residual is given, but contract.residual_rounding=None should then be 'storage' or 'compute'",
    )
    shape = other.values.shape
    _refuse(shape != x.values.shape, f"residual has shape {shape}, but should have that of x, {x.values.shape}")
    return add_rounded(x.values, other.values, fmt if contract.residual_rounding == "storage" else contract.compute_format(fmt))


def _refuse(wrong: bool, message: str) -> None:
    if wrong:
        raise ValueError(message)
