"""Captured calls: a layer of a real model, with its own weights, on what really enters it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from normcheck.cells import vacuous
from normcheck.checks.accuracy import grade
from normcheck.checks.base import Context, SkipCaseError, register, ulp_error
from normcheck.checks.cases import Case, make_case, numerics
from normcheck.checks.verdicts import held
from normcheck.checks.witness import beyond, pass_class, witness
from normcheck.formats import Array
from normcheck.implementations.captured import Captured
from normcheck.results import Outcome, Result, Severity, Witness

CAPTURED, REGIME = "captured-activations", "activation-regime"


def _needs_captured(context: Context) -> str:
    return "" if context.implementation.captured is not None else "nothing was captured: normcheck audit --model"


@register(CAPTURED, applies=_needs_captured)
def captured_activations(context: Context) -> Iterator[Result]:
    """What a layer of a model returned lies within the bound of accuracy.

    Statement
    ---------
    In one forward pass of the model the layer was given x and returned y. With its weights and statistics as they are, y lies
    within the bound of ``accuracy`` for that very x.

    Why it matters
    --------------
    Random rows and random weights are no model. Here the kernel is the one that the model takes, in its shape, dtype and layout,
    and the rows are those that the layers before it make.

    Holds for
    ---------
    Layers that ``normcheck audit --model`` finds.

    Tolerance
    ---------
    E of ``normcheck.bounds``, as in ``accuracy``. Rows whose squares leave the range of the compute format are not judged.

    Known exceptions
    ----------------
    The first call of a layer is judged, and of large inputs as many samples as fit 4 million elements.

    References
    ----------
    The derivation in ``normcheck.bounds``.
    """
    captured = _captured(context)
    case = captured_case(context, captured)
    if captured.y.shape != captured.inputs.x.shape or captured.dtype != case.out_format.name:
        text = (
            f"y={captured.dtype}{list(captured.y.shape)}, but should be {case.out_format.name}{list(captured.inputs.x.shape)} "
            f"[x: {context.dtype}{list(captured.inputs.x.shape)}]"
        )
        yield context.result(CAPTURED, Outcome.FAILED, text, shape=captured.inputs.x.shape)
        return
    yield _judged(context, case, case.fold.fold(captured.y))


@register(REGIME, applies=_needs_captured)
def activation_regime(context: Context) -> Iterator[Result]:
    """What enters a layer of a model leaves room for rounding.

    Statement
    ---------
    For the rows x that entered the layer, with p bits in x's format and u = 2**-p: mean/std is below u**-(1/2); no element holds
    half of the sum of squares; eps is less than half of v + eps; the squares of x and twice y do not overflow x's format.

    Why it matters
    --------------
    Beyond these a right layer is one change away from a wrong one: a one-pass variance, statistics in 16 bit, another eps, or a
    fused kernel that squares in the input's dtype. The layer may be perfectly accurate here.

    Holds for
    ---------
    Layers that ``normcheck audit --model`` finds. mean/std is asked of norms that subtract the mean.

    Tolerance
    ---------
    None: each limit is where half of something is lost. At mean/std = u**-(1/2) half of the digits of x hold the mean, and a
    variance by E[x**2] - mean**2 in that format has none left. Beyond half of the squares one element decides the statistic,
    beyond half of v + eps the constant does. Squares overflow from the root of the largest finite value on.

    Known exceptions
    ----------------
    A finding is a warning: it tells of the activations, not of the code.

    References
    ----------
    Chan, Golub and LeVeque 1983 (one-pass variance); Sun et al. 2024, Massive Activations in Large Language Models (outliers).
    """
    captured = _captured(context)
    measures = regime_of(context, captured)
    dangers = _dangers(context, measures)
    shape = captured.inputs.x.shape
    text = "; ".join(dangers) + f" [x: {context.dtype}{list(shape)}]" if dangers else ""
    outcome = Outcome.WARNED if dangers else Outcome.PASSED
    yield context.result(REGIME, outcome, text, severity=Severity.WARNING, measures=measures, shape=shape)


def captured_case(context: Context, captured: Captured) -> Case:
    """The captured call as a case, with the layer's own weights."""
    fold = context.norm.fold(captured.inputs.x.shape, context.implementation.channel_axis)
    return make_case(context.norm, numerics(context.implementation.contract), fold, fold.fold(captured.inputs.x), captured.inputs)


def regime_of(context: Context, captured: Captured) -> dict[str, float]:
    """How the finite rows lie: the largest mean/std, share of one element in the squares, max|x|/rms and eps/(v+eps) of any, and
    how many doublings of x its squares, and of y, are away from overflow.
    """
    fold = context.norm.fold(captured.inputs.x.shape, context.implementation.channel_axis)
    rows, limit = fold.fold(captured.inputs.x), context.x_format.max
    whole = np.isfinite(rows).all(axis=1)
    finite = rows[whole]
    with np.errstate(all="ignore"):
        largest = np.abs(finite).max(axis=1, initial=0.0)
        safe = np.where(largest > 0, largest, 1.0)[:, None]
        scaled = finite / safe
        squares = (scaled**2).sum(axis=1)
        mean, std = scaled.mean(axis=1), scaled.std(axis=1)
        certified = captured_case(context, captured).certified
        root = (certified.sigma / certified.scale)[whole]
        rms = np.sqrt(squares / max(fold.width, 1))
        top, high = float(largest.max(initial=0.0)), float(np.nanmax(np.abs(captured.y), initial=0.0))
        return {
            "mean_over_std": _worst(np.abs(mean) / std),
            "max_over_rms": _worst(np.where(squares > 0, 1 / rms, 0.0)),
            "share_of_one": _worst(np.where(squares > 0, 1 / squares, 0.0)),
            "eps_share": _worst(_eps_share(context, root)),
            "square_headroom": math.log2(math.sqrt(limit) / top) if top > 0 else math.inf,
            "output_headroom": math.log2(limit / high) if 0 < high < math.inf else math.inf if high == 0 else -math.inf,
            "rows": float(fold.rows),
            "calls": float(captured.calls),
        }


def _captured(context: Context) -> Captured:
    assert context.implementation.captured is not None
    return context.implementation.captured


def _judged(context: Context, case: Case, output: Array) -> Result:
    shape = tuple(case.fold.shape)
    if not case.errors.judged().any():
        return context.result(CAPTURED, Outcome.SKIPPED, "no row has squares in the compute format's range", shape=shape)
    verdicts = case.verdicts(output)
    if verdicts["tree"].worst_ratio <= 1 and vacuous(case.certified, case.bound("tree"), verdicts["tree"].judged):
        text = "vacuous: on this input sound code may miss every value by more than a tenth of it"
        return context.result(CAPTURED, Outcome.SKIPPED, text, shape=shape)
    ulps = ulp_error(output, case.exact, case.out_format)
    measures = {f"ratio_{name}": verdict.worst_ratio for name, verdict in verdicts.items()}
    measures |= {"grade": float(grade(context, verdicts)), "ulp": float(ulps[verdicts["tree"].judged].max(initial=0.0))}
    result = held(context, CAPTURED, case, output, ", captured", measures=measures, regime="captured")
    if result.outcome is Outcome.FAILED:
        return replace(result, witness=_shown(context, case, output))
    sequential = context.implementation.contract.accumulation == "sequential"
    if verdicts["tree"].worst_ratio > 1 and not sequential:
        text = f"within the bound of a sequential sum only [x: {context.dtype}{list(shape)}, captured]"
        return replace(result, outcome=Outcome.WARNED, severity=Severity.WARNING, message=text)
    return result


def _shown(context: Context, case: Case, output: Array) -> Witness | None:
    """A witness, where the layer can be called again on a part of what it was given."""
    try:
        return witness(context, case, output, lambda smaller, out: beyond(smaller, out, pass_class(context)))
    except (SkipCaseError, ValueError):
        return None


def _eps_share(context: Context, root: Array) -> Array:
    """eps/(v+eps) of each row from sigma/S: for eps beside the root eps/(sigma+eps); 1 where eps stands in for the spread."""
    placement = context.norm.eps_placement
    if placement == "inside":
        return np.asarray(1 - root**2)
    if placement == "outside":
        return 1 - root
    return np.where(root < 1, 1.0, 0.0) if placement.startswith("max") else np.zeros_like(root)


def _dangers(context: Context, measures: Mapping[str, float]) -> list[str]:
    bits = context.x_format.u**-0.5
    found = []
    if context.norm.center and measures["mean_over_std"] >= bits:
        found.append(f"mean/std={measures['mean_over_std']:.3g}, but should be < {bits:.3g}")
    if measures["share_of_one"] >= 0.5:
        share = f"{measures['share_of_one']:.0%}"
        found.append(f"max|x|/rms={measures['max_over_rms']:.3g}: one element holds {share} of the squares, but should < 50%")
    if measures["eps_share"] >= 0.5:
        found.append(f"eps/(v+eps)={measures['eps_share']:.3g}, but should be < 0.5")
    if measures["square_headroom"] <= 0:
        found.append(f"squares of x overflow {context.dtype}")
    if measures["output_headroom"] <= 1:
        found.append(f"y is within a factor of {2 ** max(measures['output_headroom'], 0):.3g} of overflow in {context.dtype}")
    return found


def _worst(values: Array) -> float:
    """The largest value; NaN, as of rows of zeros, counts for nothing."""
    return float(np.nan_to_num(values, nan=0.0, posinf=np.inf).max(initial=0.0))
