"""The certified value of a norm on an array: `reference`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from normcheck.contract import Contract
from normcheck.formats import FORMATS, Array, Format, format_of
from normcheck.norms import Fold, Norm
from normcheck.reference.affine import add_rounded, affine_rounded
from normcheck.reference.ladder import FORWARD
from normcheck.reference.problem import Problem
from normcheck.reference.rows import FoldedRows
from normcheck.reference.rungs import BLOCK, new_counts, round_rows


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

    Any finite input is exact, whatever its size. A NaN in a row makes it NaN, and so does an Inf where a mean is subtracted; else
    an Inf gives NaN for itself and 0 for the others, before weight and bias. Given statistics, weights and biases follow IEEE
    arithmetic element by element; zero spread without eps is 0/0. A zero or constant row with eps > 0 gives exactly the bias
    (centred) or the formula's value. What exceeds the format's largest value becomes inf, or NaN where the format has none,
    whatever ``contract.overflow`` promises of an implementation. The sign of a zero is the same everywhere, and says nothing of
    the side from which a value underflows.

    Parameters
    ----------
    norm : what is computed
    x : array of float64, float32, float16, bfloat16, float8_e4m3fn or float8_e5m2, of numpy or torch; no element may be masked
    weight, bias : as many elements as the norm has parameters, in any of these dtypes; None for 1 and 0
    residual : array like x, added before the norm; ``contract.residual_rounding`` says how the sum is rounded
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
    call = prepare(norm, x, weight, bias, residual, running_mean, running_var, training, contract, channel_axis)
    fmt = format_of(dtype) if dtype is not None else call.contract.output_format(call.x, call.weight)
    out = np.empty(call.fold.shape, fmt.dtype)
    rows = FoldedRows(out, call.fold)
    if call.contract.cast == "once":
        round_rows(call.problem, FORWARD, rows, fmt, new_counts())
    else:
        for chosen, block in call.problem.blocks(BLOCK):
            n = np.empty(block.x.shape)
            round_rows(block.bare(), FORWARD, n, call.x, new_counts())
            with np.errstate(over="ignore", invalid="ignore"):
                rows[chosen] = affine_rounded(n, block, fmt).astype(fmt.dtype)
    return out


@dataclass(frozen=True, eq=False)
class Call:
    """The checked arguments of `reference` or `reference_grad`.

    Attributes
    ----------
    problem : the rows and parameters, folded
    fold : how
    contract : the promised arithmetic
    x, weight : formats of the input and, if there is one, of the weight
    """

    problem: Problem
    fold: Fold
    contract: Contract
    x: Format
    weight: Format | None


def prepare(
    norm: Norm,
    x: npt.ArrayLike,
    weight: npt.ArrayLike | None,
    bias: npt.ArrayLike | None,
    residual: npt.ArrayLike | None,
    running_mean: npt.ArrayLike | None,
    running_var: npt.ArrayLike | None,
    training: bool,
    contract: Contract | None,
    channel_axis: int,
) -> Call:
    """Check and fold the arguments of `reference`.

    Raises
    ------
    ValueError : as described there
    """
    if not isinstance(norm, Norm):
        raise ValueError(f"norm={norm!r}, but should be a norm such as LayerNorm(eps=1e-5)")
    contract = Contract() if contract is None else contract
    if not isinstance(contract, Contract):
        raise ValueError(f"contract={contract!r}, but should be a Contract such as Contract(cast='before_weight')")
    values = as_values("x", x)
    fmt_x = format_of(values.dtype)
    if bias is not None and not norm.has_bias:
        raise ValueError(f"bias is given, but should be None: {norm.name} has none")
    weight_values = None if weight is None else as_values("weight", weight)
    bias_values = None if bias is None else as_values("bias", bias)
    fold = norm.fold(values.shape, channel_axis)
    if residual is not None:
        values = _add_residual(values, as_values("residual", residual), contract)
    mean, variance = _given_statistics(norm, fold, running_mean, running_var, training)
    p = Problem(
        FoldedRows(values, fold),
        replace(norm.standardization, eps=contract.round_eps(norm.eps)),
        _parameter(norm, "weight", weight_values, fold),
        _parameter(norm, "bias", bias_values, fold),
        norm.weight_offset,
        mean,
        variance,
    )
    return Call(p, fold, contract, fmt_x, None if weight_values is None else format_of(weight_values.dtype))


def as_values(name: str, array: npt.ArrayLike) -> npt.NDArray[Any]:
    """The argument as an array of one of the formats; a tensor of torch of such a format counts as one.

    Raises
    ------
    ValueError : for integers, complex numbers and anything else, and for masked elements
    """
    refuse_mask(name, array)
    try:
        values = np.asarray(_of_torch(array))
    except (TypeError, RuntimeError) as error:  # what other libraries say of arrays that numpy cannot hold
        text = f"{name} is {type(array).__name__}, but should be a numpy array; 16 and 8 bit in a dtype of ml_dtypes ({error})"
        raise ValueError(text) from None
    try:
        format_of(values.dtype)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return values


def refuse_mask(name: str, array: Any) -> None:
    """Refuse an array some of whose elements are masked: a norm takes all elements of a row.

    Raises
    ------
    ValueError : naming the argument
    """
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        count = int(np.ma.getmaskarray(array).sum())
        raise ValueError(f"{name} has {count} masked elements, but should have none: a norm takes all that {name}.data has")


def _of_torch(array: Any) -> Any:
    """The values of a tensor, wherever it is and recorded or not, in the numpy dtype of its format; or the argument."""
    tensor: Any = getattr(sys.modules.get("torch"), "Tensor", ())  # only what is loaded can have made it
    if not isinstance(array, tensor):
        return array
    fmt, kept = FORMATS.get(str(array.dtype).removeprefix("torch.")), array.detach().cpu()
    return kept.numpy() if fmt is None or fmt.dtype.isbuiltin == 1 else kept.float().numpy().astype(fmt.dtype)


def _add_residual(x: npt.NDArray[Any], residual: npt.NDArray[Any], contract: Contract) -> npt.NDArray[Any]:
    if contract.residual_rounding is None:
        raise ValueError("residual is given, but contract.residual_rounding=None should then be 'storage' or 'compute'")
    if residual.shape != x.shape:
        raise ValueError(f"residual has shape {residual.shape}, but should have that of x, {x.shape}")
    fmt_x = format_of(x.dtype)
    fmt = fmt_x if contract.residual_rounding == "storage" else contract.compute_format(fmt_x)
    return add_rounded(x.astype(np.float64), residual.astype(np.float64), fmt).astype(fmt.dtype)


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
