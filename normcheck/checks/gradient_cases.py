"""Backward cases: the inputs of one backward pass, its certified gradients and their bounds."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from normcheck.cells import Judgement, judge, vacuous
from normcheck.checks.base import Context, FormError, describe
from normcheck.checks.cases import Case
from normcheck.checks.terms import gradient_terms
from normcheck.checks.witness import claimed, missed, place_of, writable
from normcheck.formats import Array, Format, format_of
from normcheck.gradient_bounds import GradientErrors
from normcheck.implementations import CallError, Gradients, Implementation, backward
from normcheck.implementations.gradient_snippets import gradient_snippet
from normcheck.implementations.snippets import PLAIN
from normcheck.reference.slopes import Exact, certify_gradients
from normcheck.results import Outcome, Result, Severity, Witness

Allowed = Literal["rows", "tree", "sequential", "branches"]
NAMES = {"x": "dx", "residual": "dresidual", "weight": "dweight", "bias": "dbias"}


@dataclass(frozen=True, eq=False)
class GradientCase:
    """One backward pass and what is known about its result.

    Attributes
    ----------
    case : the forward pass
    dy : gradient of the output, (R, D)
    dresidual : gradient of the returned residual, (R, D), or None
    errors : the quantities from which bounds follow
    layout : of dy in memory
    implementation : whose it is
    unused : whether the backward pass starts from the returned residual alone
    """

    case: Case
    dy: Array
    dresidual: Array | None
    errors: GradientErrors
    layout: str
    implementation: Implementation
    unused: bool = False

    @functools.cached_property
    def exact(self) -> Mapping[str, Exact]:
        """Certified gradients by the name of what is differentiated: x and residual as rows (R, D), parameters as (1, size)."""
        case = self.case
        weight = None if case.inputs.weight is None else case.fold.affine(case.inputs.weight)
        found = certify_gradients(
            case.rows,
            self.dy,
            case.errors.standardization,
            case.fold,
            weight,
            weight_offset=case.norm.weight_offset if weight is not None else 0.0,
            besides=self.dresidual,
            mean=case.given[0],
            variance=case.given[1],
            level="double-double" if case.errors.compute.p == 53 else "float64",
        )
        return {name: found["x" if name == "residual" else name] for name in self.differentiated}

    @property
    def differentiated(self) -> tuple[str, ...]:
        """The inputs that are given and have a gradient."""
        return tuple(name for name in NAMES if getattr(self.case.inputs, name) is not None)

    def format_of(self, name: str) -> Format:
        """Format that the gradient of an input must have: the input's own."""
        inputs = self.case.inputs
        return format_of(inputs.dtype if name in ("x", "residual") else inputs.weight_dtype or inputs.dtype)

    def bound(self, name: str, allowed: Allowed) -> Array:
        """E in the shape of ``exact``.

        ``tree`` and ``sequential`` are the classes of sums along a row; ``branches`` adds to the latter what several gradients
        of x lose to storage; ``rows`` asks for a tree over the rows, too.
        """
        exact = self.exact[name]
        forward = self.case.classes["sequential" if allowed in ("sequential", "branches") else "tree"]
        if name in ("x", "residual"):
            error = self.errors.dx(forward, exact.hi)
            error += exact.err
            return error + self.errors.branches() if allowed == "branches" else error
        height = self.errors.height("tree" if allowed == "rows" else "sequential")
        error = self.errors.dweight(forward, height) if name == "weight" else self.errors.dbias(height)
        return np.asarray(error[None, :] + exact.err)

    def judge(self, name: str, output: Array, allowed: Allowed) -> Judgement:
        """Hold a gradient, as `rows_of` gives it, against the bound of a class."""
        rows = self.errors.judged() if name in ("x", "residual") else np.ones(1, bool)
        return judge(output, self.exact[name], self.bound(name, allowed), self.format_of(name), rows)

    def rows_of(self, found: Gradients, name: str) -> Array:
        """The gradient of an input as ``exact`` has it.

        Raises
        ------
        FormError : if it is missing, or of another shape or dtype than its input
        """
        array, shape, dtype = found.values[name], getattr(self.case.inputs, name).shape, self.format_of(name).name
        text = ""
        if array is None:
            text = f"{NAMES[name]}=None, but should be an array of shape {shape}"
        elif array.shape != shape:
            text = f"shape of {NAMES[name]}={array.shape}, but should be {shape}"
        elif found.dtypes[name] != dtype:
            text = f"dtype of {NAMES[name]}={found.dtypes[name]}, but should be {dtype}"
        if array is None or text:
            error = FormError(f"{text} [{self.describe()}]")
            error.snippet = pulled_text(self, name, (), 0.0, form=(shape, dtype))
            raise error
        return self.case.fold.fold(array) if name in ("x", "residual") else array.reshape(1, -1)

    def describe(self) -> str:
        """The call in brackets of the message grammar."""
        return describe(self.case) + (f", dy: {self.layout}" if self.layout != self.case.inputs.layout else "")


def gradient_case(
    context: Context, case: Case, dy: Array, dresidual: Array | None = None, layout: str | None = None
) -> GradientCase:
    """The backward pass of a case; rows that cannot be judged get no gradient, so that sums over rows still can be.

    Parameters
    ----------
    layout : of dy; None means that of x
    """
    contract = context.implementation.contract
    saved = None if contract.saved_stats is None else format_of(contract.saved_stats)
    compute = case.errors.compute
    weight, own = case.parameters[0], case.errors.weight
    # with an inner cast the errors are those of n, and a case may have lost its weight
    same = weight is own or (weight is not None and own is not None and np.array_equal(weight, own))
    forward = case.errors if same else replace(case.errors, weight=weight)
    errors = GradientErrors(
        forward,
        dy,
        case.fold,
        case.x_format,
        None if saved is None or saved.p >= compute.p else saved,
        case.inner_cast,
        dresidual is not None,
    )
    kept = np.where(errors.judged()[:, None], dy, 0.0)
    return GradientCase(case, kept, dresidual, replace(errors, dy=kept), layout or case.inputs.layout, context.implementation)


def slopes(context: Context, case: Case, seed: int = 0) -> Array:
    """Gradients dy (R, D) in the output's format: by row normal with a mean, of one sign, along n, and single elements."""
    fmt = case.out_format
    rng = np.random.default_rng([context.seed, seed, *case.rows.shape])
    normal = rng.standard_normal(case.rows.shape)
    with np.errstate(all="ignore"):
        n = np.nan_to_num(np.clip(case.errors.normalized, -100.0, 100.0))
    few, positive = rng.random(normal.shape), rng.uniform(0.25, 1.0, normal.shape)
    made = normal + 0.5
    made[1::4] = positive[1::4]
    made[2::4] = n[2::4] + 0.1 * normal[2::4]
    made[3::4] = np.where(few[3::4] < 4.0 / case.fold.width, 1.0, 0.0) * normal[3::4]
    return fmt.round(made)


def pulled(
    context: Context, gradient: GradientCase, passes: int = 1, of: Collection[str] = tuple(NAMES), **how: bool
) -> Gradients:
    """Call the implementation and pull dy back through it. Raises CallError as `normcheck.implementations.gradients.backward`."""
    case = gradient.case
    try:
        return backward(
            context.implementation,
            case.inputs,
            case.fold.unfold(gradient.dy),
            dresidual=None if gradient.dresidual is None else case.fold.unfold(gradient.dresidual),
            dtype=case.out_format.name,
            layout=gradient.layout,
            passes=passes,
            of=of,
            unused=gradient.unused,
            **how,
        )
    except CallError as error:
        error.snippet = pulled_text(gradient, "x", (0,) * case.inputs.x.ndim, 0.0)
        raise


def pulled_text(
    gradient: GradientCase,
    name: str,
    index: tuple[int, ...],
    expected: float,
    tolerance: float | None = None,
    **how: Any,
) -> str:
    """The backward pass written down, and one element of a gradient, see `gradient_snippet`; ``""`` if it takes too much room."""
    case = gradient.case
    if not writable(case.inputs):
        return ""
    return gradient_snippet(
        gradient.implementation,
        case.inputs,
        case.fold.unfold(gradient.dy),
        name,
        index,
        expected,
        dtype=case.out_format.name,
        layout=gradient.layout,
        tolerance=tolerance,
        dresidual=None if gradient.dresidual is None else case.fold.unfold(gradient.dresidual),
        unused=gradient.unused,
        **how,
    )


def pointed(
    gradient: GradientCase,
    name: str,
    at: tuple[int, ...],
    got: float,
    expected: float,
    bound: float = math.nan,
    **how: Any,
) -> Witness | None:
    """An element of a gradient, by row and place in the row; as `normcheck.checks.witness.pointed` for a backward pass."""
    case = gradient.case
    if name in ("x", "residual", "y"):
        index = place_of(case, (int(at[0]), int(at[1])))
    else:
        index = tuple(int(i) for i in np.unravel_index(int(at[-1]), getattr(case.inputs, name).shape))
    how = {"claim": claimed(got, expected, bound), **how}
    text = pulled_text(gradient, name, index, expected, missed(got, expected, bound), **how)
    return Witness(text, NAMES.get(name, "dy"), None, float(got).hex(), float(expected).hex()) if text else None


def held(
    context: Context,
    check: str,
    gradient: GradientCase,
    name: str,
    output: Array,
    note: str = "",
    way: Sequence[str] = PLAIN,
    **where: Any,
) -> Result:
    """A gradient held against its bound.

    Within the contract's class it passes; within that of sequential sums, or with what several gradients of x lose to storage, it
    is a warning; beyond it fails. Skipped as vacuous where E > abs(gradient)/10 at every element.
    """
    where = {"shape": tuple(gradient.case.fold.shape), **where}
    classes = _classes(context)
    first = last = gradient.judge(name, output, classes[0])
    if not first.judged.any():
        return context.result(check, Outcome.SKIPPED, f"{NAMES[name]}: nothing can be judged", **where)
    if first.worst_ratio <= 1 and vacuous(gradient.exact[name], gradient.bound(name, classes[0]), first.judged):
        text = f"vacuous: sound code may miss every {NAMES[name]} by more than a tenth of it"
        return context.result(check, Outcome.SKIPPED, text, **where)
    outcome, reason = Outcome.PASSED, ""
    for allowed in classes[1:] if first.worst_ratio > 1 else ():
        last = gradient.judge(name, output, allowed)
        outcome, reason = Outcome.WARNED, _REASONS[allowed]
        if last.worst_ratio <= 1:
            break
    if last.worst_ratio > 1:
        outcome, first, reason = Outcome.FAILED, last, ""
        where = {"witness": _shown(gradient, name, output, last, way)} | where
        if last.worst is not None:
            where["terms"] = gradient_terms(gradient, name, output, last.worst, classes[-1])
    return _result(context, check, gradient, name, output, first, outcome, "; ".join(filter(None, (reason, note))), where)


def _shown(gradient: GradientCase, name: str, output: Array, verdict: Judgement, way: Sequence[str]) -> Witness | None:
    at = verdict.worst
    assert at is not None
    exact, limit = float(gradient.exact[name].hi[at]), verdict.figures["tolerance"]
    return pointed(gradient, name, at, float(output[at]), exact, limit, way=way)


def passes(context: Context, gradient: GradientCase, name: str, output: Array) -> bool:
    """Whether a gradient is within the widest bound that is no failure."""
    return any(gradient.judge(name, output, allowed).worst_ratio <= 1 for allowed in _classes(context))


_REASONS = {
    "sequential": "within the bound of a sequential sum only",
    "branches": "x has several gradients, each rounded to storage",
}


def _classes(context: Context) -> tuple[Allowed, ...]:
    """What is asked first, and what passes with a warning."""
    declared = context.implementation.contract.accumulation
    if isinstance(declared, int):
        return ("tree",)
    return ("sequential", "branches") if declared == "sequential" else ("tree", "sequential", "branches")


def _result(
    context: Context,
    check: str,
    gradient: GradientCase,
    name: str,
    output: Array,
    verdict: Judgement,
    outcome: Outcome,
    note: str,
    where: dict[str, Any],
) -> Result:
    text = "" if outcome is Outcome.PASSED else _message(gradient, name, output, verdict) + (f"; {note}" if note else "")
    return context.result(
        check,
        outcome,
        text,
        severity=Severity.WARNING if outcome is Outcome.WARNED else Severity.ERROR,
        measures={f"ratio_{NAMES[name]}": verdict.worst_ratio},
        **verdict.figures,
        **where,
    )


def _message(gradient: GradientCase, name: str, output: Array, verdict: Judgement) -> str:
    at = verdict.worst
    assert at is not None
    place = f"{at[0]}, {at[1]}" if name in ("x", "residual") else f"{at[1]}"
    exact = float(gradient.exact[name].hi[at])
    return (
        f"{NAMES[name]}[{place}]={float(output[at])!r}, but should be {exact!r} within {verdict.figures['tolerance']:.3g} "
        f"[{gradient.describe()}]"
    )
