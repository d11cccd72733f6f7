"""Accuracy: every output element lies within the bound that rounding-error analysis gives for that very input."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from normcheck.bounds import ClassName
from normcheck.cells import Judgement, vacuous
from normcheck.checks.base import Context, SkipCaseError, describe, guarded, register, ulp_error
from normcheck.checks.cases import Case
from normcheck.checks.terms import terms
from normcheck.checks.witness import beyond, witness
from normcheck.formats import Array
from normcheck.regimes import REGIMES
from normcheck.results import Outcome, Result, Severity, Witness

ID = "accuracy"
_ELEMENTS = 2**17
_RANKS = {"BatchNorm": (2, 4), "InstanceNorm": (3, 4), "GroupNorm": (3, 4)}


@register(ID)
def accuracy(context: Context) -> Iterator[Result]:
    """Every output lies within the a-priori error bound of its own input.

    Statement
    ---------
    For each element, RN(y - E) <= y_hat <= RN(y + E), where y is the certified unrounded value, RN rounds to the output format
    and E is the largest error that a conforming kernel can make on that input. With the cast ``before_weight`` the set is
    RN(w*RN(n - E)) .. RN(w*RN(n + E)).

    Why it matters
    --------------
    A flat tolerance either misses a one-pass variance at mean/std = 100 or condemns sound code at 1e5. E carries the condition
    number, so the same test is sharp on well-conditioned rows and patient on ill-conditioned ones.

    Holds for
    ---------
    Every norm, in every format, on rows whose sum of squares neither overflows nor underflows the compute format.

    Tolerance
    ---------
    E is derived in ``normcheck.bounds`` for three classes of kernels, which give the grades. A+: a bare binary tree
    (H = ceil(log2 D), 6u), asked only of kernels that do not merge partial variances. A: up to 32 serial additions per lane below
    a tree (H = 32 + ceil(log2 D), 9u, 8u without a mean), merges allowed. B: one sequential sum (H = D). F: beyond. A and better
    pass; B passes with a warning unless the contract says ``sequential``. A declared height takes the place of the tree's.
    Where E > abs(y)/10 at every element the case is skipped as vacuous.

    Known exceptions
    ----------------
    Subnormal regimes do not enter the grade: flushing to zero is a warning unless the contract promises subnormals. The
    decomposition of the error into a common mode, a gain and noise is a diagnostic (float32 and float64) and sets no outcome.

    References
    ----------
    Higham, Accuracy and Stability of Numerical Algorithms, chapters 3 and 4; Chan, Golub and LeVeque 1983; the derivation in
    ``normcheck.bounds``.
    """
    shown: dict[str, Witness | None] = {}
    for regime, width, rank, layout in _plan(context):
        try:
            shape = context.shape(_row_count(context, width), width, rank)
        except SkipCaseError:
            continue
        where = {"regime": regime, "shape": shape, "layout": layout}
        yield from guarded(context, ID, _judge, regime, shape, layout, shown, **where)


def _plan(context: Context) -> Iterator[tuple[str, int, int | None, str]]:
    ranks = _RANKS.get(context.norm.name, (None,))
    for index, width in enumerate(context.widths):
        usual = ranks if context.profile != "quick" else (ranks[index % len(ranks)],)
        places: list[tuple[int | None, str]] = []
        for layout in context.implementation.layouts:
            places += [(rank, layout) for rank in usual] if layout == "contiguous" else [(4, layout)] * (width >= 4)
        for (rank, layout), regime in itertools.product(places, REGIMES):
            yield regime, width, rank, layout


def _row_count(context: Context, width: int) -> int:
    most = {"quick": 8, "standard": 12, "deep": 24}[context.profile]
    return max(2, min(most, _ELEMENTS // width))


def _judge(context: Context, regime: str, shape: tuple[int, ...], layout: str, shown: dict[str, Witness | None]) -> Result | None:
    case = context.case(regime, shape, layout=layout)
    where: dict[str, Any] = {"regime": regime, "shape": shape, "layout": layout}
    rows = case.errors.judged()
    if not rows.any():
        return None
    output = context.run(case)
    verdicts = case.verdicts(output)
    measures: dict[str, float] = {f"ratio_{name}": verdict.worst_ratio for name, verdict in verdicts.items()}
    if measures["ratio_tree"] <= 1 and vacuous(case.certified, case.bound("tree"), verdicts["tree"].judged):
        text = "vacuous: on this input sound code may miss every value by more than a tenth of it"
        return context.result(ID, Outcome.SKIPPED, text, **where)
    measures |= _figures(case, output, verdicts["tree"])
    result = replace(_result(context, case, output, verdicts, measures, where), bits=_digest(output))
    if result.outcome is Outcome.FAILED or (result.outcome is Outcome.WARNED and regime not in shown):
        # the smallest input of a regime stands for all of them, and shrinking costs many calls
        if shown.get(regime) is None:
            name = _class(context)
            shown[regime] = witness(context, case, output, lambda smaller, out: beyond(smaller, out, name))
        result = replace(result, witness=shown[regime])
    return result


def _digest(output: Array) -> str:
    """Of the output's values to the last bit, signs of zeros included; all NaN count as one."""
    return hashlib.blake2b(np.where(np.isnan(output), np.nan, output).tobytes(), digest_size=8).hexdigest()


def _class(context: Context) -> ClassName:
    return "sequential" if context.implementation.contract.accumulation == "sequential" else "tree"


def _result(
    context: Context,
    case: Case,
    output: Array,
    verdicts: dict[ClassName, Judgement],
    measures: dict[str, float],
    where: dict[str, Any],
) -> Result:
    declared = isinstance(context.implementation.contract.accumulation, int)
    verdict = verdicts.get(_class(context), verdicts["tree"])
    graded = REGIMES[str(where["regime"])].graded
    severity, outcome = Severity.ERROR, Outcome.FAILED
    if verdict.worst_ratio <= 1:
        outcome = Outcome.PASSED
    elif not graded and flushed(case, output, _class(context)):
        severity = Severity.ERROR if context.implementation.contract.subnormals else Severity.WARNING
        outcome = Outcome.FAILED if context.implementation.contract.subnormals else Outcome.WARNED
    elif verdicts["sequential"].worst_ratio <= 1 and not declared:
        severity, outcome = Severity.WARNING, Outcome.WARNED
    message = "" if outcome is Outcome.PASSED else _message(case, output, verdict, outcome, graded)
    if outcome is Outcome.FAILED and verdict.worst is not None:
        where = where | {"terms": terms(case, output, verdict.worst, _class(context))}
    if graded:
        measures["grade"] = float(grade(context, verdicts))
    return context.result(ID, outcome, message, severity=severity, measures=measures, **where, **verdict.figures)


def grade(context: Context, verdicts: dict[ClassName, Judgement]) -> int:
    """0 to 3 for A+, A, B, F. A+ is asked only of kernels that do not merge partial variances."""
    if verdicts["strict"].worst_ratio <= 1 and context.implementation.contract.accumulation != "merge":
        return 0
    if verdicts["tree"].worst_ratio <= 1:
        return 1
    return 2 if verdicts["sequential"].worst_ratio <= 1 else 3


def _message(case: Case, output: Array, verdict: Judgement, outcome: Outcome, graded: bool) -> str:
    at = verdict.worst
    if at is None:
        return "nothing was judged"
    got, exact = float(output[at]), float(case.exact[at])
    text = f"y[{at[0]}, {at[1]}]={got!r}, but should be {exact!r} within {float(verdict.tolerance[at]):.3g} [{describe(case)}]"
    if outcome is Outcome.WARNED and graded:
        lost = bool(case.reach("sequential")[at] >= abs(exact))
        text += "; within the bound of a sequential sum only" + ", which allows any value there: nothing of it is promised" * lost
    elif outcome is Outcome.WARNED:
        text += "; as if subnormal values were flushed to zero"
    return text


def flushed(case: Case, output: Array, name: ClassName) -> bool:
    """Whether the output conforms once every subnormal number, input, intermediate or output, may have been flushed to zero."""
    return case.flushing().judge(output, name).worst_ratio <= 1


def _figures(case: Case, output: Array, verdict: Judgement) -> dict[str, float]:
    if not verdict.judged.any():
        return {}
    judged = ... if verdict.judged.all() else verdict.judged
    figures = {"ulp": float(ulp_error(output, case.exact, case.out_format)[judged].max())}
    if not case.inner_cast:
        rounded = case.out_format.round_sum(case.certified.hi, case.certified.lo)
        figures["correctly_rounded"] = float((output == rounded)[judged].mean())
    return figures | _decomposition(case, output)


def _decomposition(case: Case, output: Array) -> dict[str, float]:
    """Least-squares split of the error of each row, over the weight, into a*1 + g*n + noise; the largest of each, in u."""
    weight, _ = case.parameters
    if case.x_format.p < 24 or case.inner_cast or not case.errors.standardization.center or case.fold.width < 8:
        return {}
    rows = case.errors.judged() & np.isfinite(output).all(axis=1)
    if not rows.any():
        return {}
    with np.errstate(all="ignore"):
        scale = np.ones((1, 1)) if weight is None else weight
        used = np.abs(scale) > 0.1
        one = np.where(used, 1.0, 0.0)
        error = output - case.certified.hi
        error -= case.certified.lo
        error /= np.where(used, scale, 1.0)
        error *= one
        n = case.errors.normalized * one
        one = np.broadcast_to(one, n.shape)
        if not rows.all():
            error, n, one = error[rows], n[rows], one[rows]
        s11, s1n, snn = one.sum(1), n.sum(1), (n * n).sum(1)
        e1, en = error.sum(1), (error * n).sum(1)
        det = s11 * snn - s1n * s1n
        safe = np.where(det > 0, det, 1.0)
        common = np.where(det > 0, (e1 * snn - en * s1n) / safe, 0.0)
        gain = np.where(det > 0, (en * s11 - e1 * s1n) / safe, 0.0)
        noise = np.subtract(error, common[:, None] * one, out=error)
        noise -= np.multiply(n, gain[:, None], out=n)
        np.abs(noise, out=noise)
    u = case.errors.compute.u
    parts = {"common_mode": np.abs(common), "gain": np.abs(gain), "noise": noise}
    return {name: float(np.nan_to_num(values).max()) / u for name, values in parts.items()}
