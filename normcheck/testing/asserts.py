"""Single results held against the certified value and the derived tolerance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from normcheck.cells import Judgement, vacuous
from normcheck.checks import Context, FormError
from normcheck.checks.accuracy import flushed
from normcheck.checks.base import check_form, describe
from normcheck.checks.cases import Case
from normcheck.checks.gradient_cases import NAMES, GradientCase, gradient_case
from normcheck.checks.terms import Position, gradient_terms, lines, terms, widest
from normcheck.contract import Contract
from normcheck.formats import Array
from normcheck.implementations import Implementation, Output
from normcheck.implementations.gradients import Gradients
from normcheck.norms import Norm
from normcheck.testing.arrays import case_of, read, read_if


def assert_norm(
    y: Any,
    x: Any,
    norm: Norm,
    weight: Any = None,
    bias: Any = None,
    *,
    residual: Any = None,
    running_mean: Any = None,
    running_var: Any = None,
    training: bool = True,
    contract: Contract | None = None,
    channel_axis: int = 1,
) -> None:
    """Assert that y is what a norm makes of x, as closely as sound code in the promised arithmetic comes for this very input.

    Takes the place of a comparison with a reference and of its tolerances. Every element is held against its own bound (see
    `tolerance`); one that the bound does not cover, because squares overflow, must not be NaN, and where the certified value is
    not finite it must be the same.

    Parameters
    ----------
    y, x : what came of the code, and what it was given: arrays of numpy, torch or another supported framework
    norm : what it claims to compute
    weight, bias, residual, running_mean, running_var : what else it was given
    training : whether a norm with running statistics used those of x
    contract : the arithmetic that it promises; `Contract()` by default: float32 inside, one rounding at the end
    channel_axis : 1 or -1, for norms over channels

    Raises
    ------
    AssertionError : if y has another shape, dtype or value; or if no element, or none within a tenth of its value, can be judged
    TypeError, ValueError : for arguments that do not fit, naming the value and what was expected
    """
    __tracebackhide__ = True
    case = case_of(
        norm,
        x,
        weight,
        bias,
        residual=residual,
        running_mean=running_mean,
        running_var=running_var,
        training=training,
        contract=contract,
        channel_axis=channel_axis,
    )
    message = _objection(case, read("y", y).values, read("y", y).dtype)
    if message:
        raise AssertionError(message)


def assert_norm_grad(
    dx: Any,
    x: Any,
    dy: Any,
    norm: Norm,
    weight: Any = None,
    bias: Any = None,
    *,
    dweight: Any = None,
    dbias: Any = None,
    running_mean: Any = None,
    running_var: Any = None,
    training: bool = True,
    contract: Contract | None = None,
    channel_axis: int = 1,
) -> None:
    """Assert that gradients of a norm are as close as a sound backward pass in the promised arithmetic comes.

    Parameters
    ----------
    dx, dweight, dbias : the gradients of sum(dy * y) that came; None for those that are not to be judged
    x, dy : input of the forward pass, and gradient of its output
    norm, weight, bias, running_mean, running_var, training, contract, channel_axis : as for `assert_norm`

    Raises
    ------
    AssertionError : if a gradient has another shape, dtype or value than it should
    TypeError, ValueError : for arguments that do not fit, naming the value and what was expected
    """
    __tracebackhide__ = True
    case = case_of(
        norm,
        x,
        weight,
        bias,
        running_mean=running_mean,
        running_var=running_var,
        training=training,
        contract=contract,
        channel_axis=channel_axis,
    )
    given = {"x": read_if("dx", dx), "weight": read_if("dweight", dweight), "bias": read_if("dbias", dbias)}
    found = {name: one for name, one in given.items() if one is not None}
    _refuse_missing(case, found)
    slope = read("dy", dy).values
    if slope.shape != case.fold.shape:
        raise ValueError(f"dy has shape {slope.shape}, but should have that of x, {case.fold.shape}")
    gradient = gradient_case(_stand_in(case, contract), case, case.fold.fold(slope))
    came = Gradients({name: one.values for name, one in found.items()}, {name: one.dtype for name, one in found.items()})
    for name in found:
        message = _gradient_objection(gradient, came, name)
        if message:
            raise AssertionError(message)


def tolerance(
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
) -> npt.NDArray[np.float64]:
    """How far each output element of sound code may lie from the exact value, on this very input.

    The bound E of ``normcheck explain accuracy`` and the rounding of a result at that distance to the output's format. The exact
    value is `normcheck.reference` with ``dtype="float64"``, to within its own rounding.

    Parameters
    ----------
    norm, x, weight, bias, residual, running_mean, running_var, training, contract, channel_axis : as for `assert_norm`

    Returns
    -------
    float64 array of x's shape; inf where nothing can be promised, because squares leave the range of the promised arithmetic

    Raises
    ------
    TypeError, ValueError : for arguments that do not fit, naming the value and what was expected
    """
    case = case_of(
        norm,
        x,
        weight,
        bias,
        residual=residual,
        running_mean=running_mean,
        running_var=running_var,
        training=training,
        contract=contract,
        channel_axis=channel_axis,
    )
    reach = case.reach(widest(case))
    with np.errstate(all="ignore"):
        largest = np.minimum(np.abs(case.exact) + reach, case.out_format.max)
        total = reach + case.rounding(largest)
        covered = case.errors.judged()[:, None] & np.isfinite(total) & (np.abs(case.exact) + reach <= case.out_format.max)
    return np.asarray(case.fold.unfold(np.where(covered, total, np.inf)))


def _objection(case: Case, values: Array, dtype: str) -> str:
    """What is wrong with an output; empty if nothing is."""
    try:
        check_form(Output(values, dtype), case)
    except FormError as error:
        return str(error)
    output = case.fold.fold(values)
    verdict = case.judge(output, widest(case))
    outside = _outside(case, output, verdict)
    if outside:
        return outside
    if verdict.worst is not None and verdict.worst_ratio > 1:
        lenient = not case.contract.subnormals and flushed(case, output, widest(case))
        return "" if lenient else _message(case, output, verdict)
    return _nothing_said(case, output, verdict)


def _outside(case: Case, output: Array, verdict: Judgement) -> str:
    """Elements that the bound does not cover: NaN for a number, or anything but the certified value that is not finite."""
    special = ~np.isfinite(case.exact)
    same = np.isnan(output) & np.isnan(case.exact) | (output == case.exact)
    wrong = ~verdict.judged & np.where(special, ~same, np.isnan(output))
    if not wrong.any():
        return ""
    row, element = (int(i) for i in np.argwhere(wrong)[0])
    got, expected = float(output[row, element]), float(case.exact[row, element])
    return f"y[{_place(case, (row, element))}]={got!r}, but should be {expected!r} [{describe(case)}]"


def _nothing_said(case: Case, output: Array, verdict: Judgement) -> str:
    """Why an output that breaks no bound still proves nothing; empty if it proves something."""
    finite = np.isfinite(case.exact)
    if verdict.judged.any() or not finite.any():
        name = widest(case)
        if not verdict.judged.any() or not vacuous(case.certified, case.bound(name), verdict.judged):
            return ""
        rounded = case.out_format.round(case.exact)
        if np.array_equal(output[verdict.judged], rounded[verdict.judged]):
            return ""
        return f"nothing can be told from this input: the tolerance is above |y|/10 at every element [{describe(case)}]"
    return f"nothing can be told from this input: its squares leave the range of {case.errors.compute.name} [{describe(case)}]"


def _message(case: Case, output: Array, verdict: Judgement) -> str:
    at = verdict.worst
    assert at is not None
    got, exact, limit = float(output[at]), float(case.exact[at]), float(verdict.tolerance[at])
    beyond = int((verdict.judged & (verdict.ratio > 1)).sum())
    return "\n".join(
        [
            f"y[{_place(case, at)}]={got!r}, but should be {exact!r} within {limit:.3g} [{describe(case)}]",
            f"{beyond} of {output.size} elements are beyond their tolerance; here the error is {verdict.error[at]:.3g}",
            f"row {at[0]}: {_row(case, at[0])}",
            f"tolerance: {limit:.3g}, the sum of",
            *lines(terms(case, output, at)),
        ]
    )


def _row(case: Case, row: int) -> str:
    mean, sigma = float(case.certified.mean[row]), float(case.certified.sigma[row])
    if case.errors.standardization.center:
        return f"mean {mean:.6g}, standard deviation {sigma:.6g}, {case.norm} divides by {float(case.certified.scale[row]):.6g}"
    return f"{case.norm} divides by {float(case.certified.scale[row]):.6g}"


def _place(case: Case, at: Position) -> str:
    """Where an element of the rows is in the array."""
    position = np.zeros(case.rows.shape, bool)
    position[at] = True
    return ", ".join(str(int(i)) for i in np.argwhere(case.fold.unfold(position))[0])


def _refuse_missing(case: Case, found: Mapping[str, Any]) -> None:
    if not found:
        raise ValueError("dx=None, but should be a gradient where neither dweight nor dbias is given")
    for name in found:
        if getattr(case.inputs, name) is None:
            raise ValueError(f"{NAMES[name]} is given, but {name}=None")


def _stand_in(case: Case, contract: Contract | None) -> Context:
    """The context of code that was called already: its norm and contract."""
    dtypes = (case.inputs.dtype,)
    made = Implementation(_stand_in, case.norm, contract or Contract(), name="the code", dtypes=dtypes, framework="numpy")
    return Context(made, case.inputs.dtype)


def _gradient_objection(gradient: GradientCase, came: Gradients, name: str) -> str:
    try:
        output = gradient.rows_of(came, name)
    except FormError as error:
        return str(error)
    verdict = gradient.judge(name, output, "branches")
    at = verdict.worst
    if at is None:
        return f"{NAMES[name]}: nothing can be told from this input [{gradient.describe()}]"
    if verdict.worst_ratio <= 1:
        return ""
    shaped = at[1] if name != "x" else _place(gradient.case, at)
    got, exact = float(output[at]), float(gradient.exact[name].hi[at])
    beyond = int((verdict.judged & (verdict.ratio > 1)).sum())
    return (
        f"{NAMES[name]}[{shaped}]={got!r}, but should be {exact!r} within {verdict.tolerance[at]:.3g} [{gradient.describe()}]\n"
        f"{beyond} of {output.size} elements are beyond their tolerance; here the error is {verdict.error[at]:.3g}\n"
        f"tolerance: {verdict.tolerance[at]:.3g}, the sum of\n"
        + "\n".join(lines(gradient_terms(gradient, name, output, at, "branches")))
    )
