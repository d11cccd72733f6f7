"""Training batches with running statistics: what they are, what they must make of the statistics, how that is judged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from normcheck.bounds import error_class
from normcheck.checks.base import Context, SkipCaseError, describe
from normcheck.checks.cases import Case, make_case, numerics
from normcheck.checks.terms import terms
from normcheck.checks.witness import claimed, missed, place_of
from normcheck.formats import Array, Format
from normcheck.implementations import Implementation, Inputs
from normcheck.implementations.snippets import Script
from normcheck.reference.running import batch_statistics, running
from normcheck.regimes import biases, weights
from normcheck.results import Outcome, Result, Witness

_CHANNELS = 7
WIDTH = 24


def needs_training(context: Context) -> str:
    """Why running statistics cannot be trained here, or ``""``."""
    if not context.norm.has_running:
        return f"{context.norm.name} as given keeps no running statistics"
    if not context.implementation.takes("running_mean"):
        return "the code is given no running statistics"
    return "" if context.training else "judged in training"


def needs_evaluation(context: Context) -> str:
    """Why the given statistics are not used here, or ``""``."""
    if not context.norm.has_running:
        return f"{context.norm.name} as given keeps no running statistics"
    if context.implementation.training is None:
        return needs_both_modes(context)
    return "judged in evaluation" if context.implementation.training else ""


def needs_both_modes(context: Context) -> str:
    """Why there is no switch from training to evaluation, or ``""``."""
    switch = context.implementation.module is not None or "training" in context.implementation.passes
    return needs_training(context) or ("" if switch else "the mode is fixed")


@dataclass(frozen=True, eq=False)
class Batch:
    """One training batch and what it must make of the statistics before it.

    Attributes
    ----------
    inputs : of the call; ``running_mean`` and ``running_var`` are those before the step
    rows : x folded to rows (R, D)
    fmt : of the running statistics
    """

    inputs: Inputs
    rows: Array
    fmt: Format

    def expected(self, context: Context, momentum: float | None, step: int = 1) -> dict[str, tuple[Array, Array]]:
        """The exact new statistics and their error bounds, by name."""
        contract = context.implementation.contract
        mean, var = self.inputs.running_mean, self.inputs.running_var
        assert mean is not None
        assert var is not None
        new = running(
            self.rows,
            mean,
            var,
            momentum=momentum,
            convention=contract.momentum_convention,
            ddof=contract.running_ddof,
            step=step,
        )
        share = 1 / step if momentum is None else momentum if contract.momentum_convention == "torch" else 1 - momentum
        return {name: (n, e) for name, n, e in zip(NAMES, new, self._errors(context, share), strict=True)}

    def _errors(self, context: Context, share: float) -> tuple[Array, Array]:
        u, count = context.compute.u, self.rows.shape[1]
        height = error_class("sequential", count, True).height
        size = np.abs(self.rows)
        e = u * ((height + 1) * size.mean(axis=1) + 3 * size.max(axis=1))
        means, variances = (np.array(part, float) for part in _floats(batch_statistics(self.rows, self._channels, 0)))
        wide = np.resize(variances, len(e))
        of_var = e * e + u * (height + 5) * wide + math.sqrt(8) * e * np.sqrt(wide)
        scale = count / max(count - 1, 1)
        kept = [np.abs(cast(Array, old)) for old in (self.inputs.running_mean, self.inputs.running_var)]
        stats = 0.0 if context.implementation.contract.stats is None else context.parameter_format.u
        batch = [np.abs(means), variances * scale]
        inner = [self._worst(e), self._worst(of_var) * scale]
        tiny = context.compute.min_subnormal
        mean, var = (
            share * (i + stats * b) * (1 + 4 * u) + 4 * u * (k + b) + tiny for i, b, k in zip(inner, batch, kept, strict=True)
        )
        return mean, var

    @property
    def _channels(self) -> int:
        return len(cast(Array, self.inputs.running_mean))

    def _worst(self, per_row: Array) -> Array:
        return np.asarray(per_row.reshape(-1, self._channels).max(axis=0))


NAMES = ("running_mean", "running_var")


def _floats(parts: tuple[list[Any], list[Any]]) -> tuple[list[float], list[float]]:
    return [float(v) for v in parts[0]], [float(v) for v in parts[1]]


def shape_of(context: Context, width: int, rank: int | None) -> tuple[int, ...] | None:
    """A shape with a few channels, also where the implementation is only known to take wider rows."""
    norm, axis = context.norm, context.implementation.channel_axis
    rows = _CHANNELS if norm.name == "BatchNorm" else 2 * _CHANNELS
    try:
        shape = norm.shape_of(rows, width, rank, axis)
    except ValueError:
        return None
    ranks = context.implementation.ranks
    return shape if ranks is None or len(shape) in ranks else None


def some_shape(context: Context, width: int = WIDTH) -> tuple[int, ...]:
    """The first shape that the implementation takes; raises SkipCaseError where there is none."""
    for rank in (None, 2, 3, 4):
        shape = shape_of(context, width, rank)
        if shape is not None:
            return shape
    raise SkipCaseError("no rank fits")


def batch(
    context: Context, shape: tuple[int, ...], *, number: int = 0, training: bool = True, size: float = 1.0, mean: float = 3.0
) -> Batch:
    """A batch of means far from 0 and deviations far from 1, with weight and bias, and statistics before it that differ.

    Parameters
    ----------
    size : of the deviations, and of the deviations that the statistics before it tell of
    mean : in units of the deviation
    """
    fold = context.norm.fold(shape, context.implementation.channel_axis)
    rng = np.random.default_rng([context.seed, number, *shape])
    scale = np.resize([2.0, 0.25, 8.0], (fold.rows, 1)) * size
    rows = context.x_format.round((mean + rng.standard_normal((fold.rows, fold.width))) * scale)
    count, fmt = context.norm.parameter_size(fold), context.parameter_format
    takes = context.implementation.takes
    inputs = Inputs(
        x=fold.unfold(rows),
        weight=weights(count, fmt, context.seed, context.norm.weight_offset) if takes("weight") else None,
        bias=biases(count, fmt, context.seed) if takes("bias") else None,
        running_mean=fmt.round(np.resize([-0.5, 1.25, 0.125], fold.period) * size * mean) if takes("running_mean") else None,
        running_var=fmt.round(np.resize([0.5, 2.0, 8.0], fold.period) * size * size) if takes("running_var") else None,
        dtype=context.dtype,
        weight_dtype=context.implementation.weight_dtype,
        device=context.device,
        training=training,
    )
    return Batch(inputs, rows, fmt)


def judged(
    context: Context,
    check: str,
    given: Batch,
    got: tuple[Array | None, Array | None],
    momentum: float | None,
    chosen: Implementation | None = None,
    step: int = 1,
    script: Script | None = None,
    places: Mapping[str, str] | None = None,
) -> Result:
    """The statistics after a step held against what the batch must make of them.

    Parameters
    ----------
    chosen : what was called, if it is not the context's code
    script : the calls that led here, if they are more than that of the batch
    places : where the script finds the statistics, by name
    """
    shape = given.inputs.x.shape
    worst, message, shown = 0.0, "", None
    script = script or Script(chosen or context.implementation).arrays(given.inputs).call(given.inputs)
    for (name, (exact, error)), new in zip(given.expected(context, momentum, step).items(), got, strict=True):
        if new is None:
            return context.result(check, Outcome.SKIPPED, "running statistics are neither returned nor written", shape=shape)
        if new.shape != exact.shape:
            text = f"{name} has shape {new.shape}, but should have {exact.shape} [{call_text(given, momentum)}]"
            return context.result(check, Outcome.FAILED, text, shape=shape)
        ratio = _ratio(given.fmt, new, exact, error)
        at = int(ratio.argmax())
        if ratio[at] > max(worst, 1.0):
            should = f"but should be {float(exact[at])!r} within {error[at]:.3g} [{call_text(given, momentum)}]"
            message = f"{name}[{at}]={float(new[at])!r}, {should}"
            message += _named(context, given, name, new, error, momentum)
            figures = (float(new[at]), float(exact[at]), float(error[at]))
            shown = (places or {}).get(name) or script.of(name), (at,), *figures
        worst = max(worst, float(ratio[at]))
    found = None if shown is None else looked_at(script, *shown)
    outcome = Outcome.FAILED if message else Outcome.PASSED
    values: dict[str, Any] = {"error": worst, "tolerance": 1.0, "unit": "bound"}
    return context.result(check, outcome, message, regime="standard", shape=shape, witness=found, **values)


def looked_at(script: Script, array: str, at: tuple[int, ...], got: float, expected: float, bound: float = math.nan) -> Witness:
    """The calls, and one element of what they left; a bound of NaN asks for the same bits."""
    script.element(array, at, expected, missed(got, expected, bound), claimed(got, expected, bound))
    return Witness(script.text, "standard", None, got.hex(), expected.hex())


def _ratio(fmt: Format, got: Array, exact: Array, error: Array) -> Array:
    """Distance from the exact statistic in units of its bound, 0 where the value rounds from within it."""
    with np.errstate(all="ignore"):
        inside = (fmt.round(exact - error) <= got) & (got <= fmt.round(exact + error))
        ratio = np.abs(got - exact) / error
        return np.where(inside, np.minimum(ratio, 1.0), np.where(np.isnan(ratio), np.inf, np.maximum(ratio, 1.0 + 2.0**-20)))


def call_text(given: Batch, momentum: float | None) -> str:
    """The call in brackets of the message grammar."""
    inputs = given.inputs
    return f"x: {inputs.dtype}{list(inputs.x.shape)}, training={inputs.training}, momentum={momentum}"


def _named(context: Context, given: Batch, name: str, got: Array, error: Array, momentum: float | None) -> str:
    """What kind of update would give these statistics, where one does."""
    contract = context.implementation.contract
    old = [cast(Array, given.inputs.running_mean), cast(Array, given.inputs.running_var)]
    which = NAMES.index(name)

    def made(m: float | None, ddof: int, start: list[Array], convention: Any = "") -> tuple[Array, Array]:
        rule = convention or contract.momentum_convention
        return running(given.rows, start[0], start[1], momentum=m, convention=rule, ddof=ddof)

    ddof = contract.running_ddof
    other = "keras" if contract.momentum_convention == "torch" else "torch"
    once = made(momentum, ddof, old)
    candidates = {
        "no update": (old[0], old[1]),
        f"the variance with ddof={1 - ddof}": made(momentum, 1 - ddof, old),
        f"the momentum convention of {other}": made(momentum, ddof, old, other),
        f"the momentum convention of {other} and ddof={1 - ddof}": made(momentum, 1 - ddof, old, other),
        "two updates": made(momentum, ddof, list(once)),
        "the batch alone": made(1.0, ddof, old, "torch"),
        "momentum 0.1": made(0.1, ddof, old, "torch"),
    }
    # the bound of one update, four times over, holds for every candidate
    near = [what for what, new in candidates.items() if (_ratio(given.fmt, got, new[which], 4 * error) <= 1).all()]
    return f"; it is what {near[0]} gives" if near else ""


def evaluation_case(context: Context, inputs: Inputs) -> Case:
    """The case of an evaluation with the statistics of the inputs."""
    fold = context.norm.fold(inputs.x.shape, context.implementation.channel_axis)
    case = make_case(context.norm, numerics(context.implementation.contract), fold, fold.fold(inputs.x), inputs)
    return replace(case, inputs=replace(case.inputs, training=False))


def outcome(context: Context, check: str, case: Case | None, y: Array, script: Script | None = None) -> Result:
    """An output held against the bound of accuracy; ``script`` has the calls that led to it, if they are more than this one."""
    assert case is not None
    rows: Array = case.fold.fold(y)
    verdict = case.judge(rows, "sequential")
    where: dict[str, Any] = {"regime": "standard", "shape": tuple(case.fold.shape)}
    if verdict.worst is None or verdict.worst_ratio <= 1:
        return context.result(check, Outcome.PASSED, **where)
    at = verdict.worst
    text = (
        f"y[{at[0]}, {at[1]}]={float(rows[at])!r}, but should be {float(case.exact[at])!r} within "
        f"{float(verdict.tolerance[at]):.3g} [{describe(case)}, running_var={_variance(case, at[0]):.3g}]"
    )
    values = {"error": float(verdict.error[at]), "tolerance": float(verdict.tolerance[at])}
    script = script or Script(context.implementation).arrays(case.inputs).call(case.inputs)
    found = looked_at(script, "y", place_of(case, at), float(rows[at]), float(case.exact[at]), values["tolerance"])
    parts = terms(case, rows, at, "sequential")
    return context.result(check, Outcome.FAILED, text, witness=found, terms=parts, **where, **values)


def _variance(case: Case, row: int) -> float:
    return float(cast(Array, case.inputs.running_var)[row % case.fold.period])
