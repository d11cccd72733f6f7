"""Autograd: the graph is whole, gradients add up, calls do not disturb each other, and the second derivative is right."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from normcheck.checks.base import Context, FormError, describe, guarded, raised, register
from normcheck.checks.gradient_cases import NAMES, GradientCase, gradient_case, pointed, pulled, slopes
from normcheck.checks.gradient_witness import second_shown
from normcheck.checks.gradients import with_residual
from normcheck.checks.second_order import second_order
from normcheck.formats import Array
from normcheck.implementations import CallError, LayoutError
from normcheck.implementations.gradients import Gradients, backward_twice, differentiable
from normcheck.implementations.snippets import PLAIN
from normcheck.results import Outcome, Result, Severity

_REQUIRES = ("output-form", "accuracy", "gradient-flow")


def _needs_gradients(context: Context) -> str:
    return differentiable(context.implementation)


def _needs_autograd(context: Context) -> str:
    if callable(context.implementation.grad):
        return "the backward pass is a function"
    return differentiable(context.implementation)


def _needs_second_order(context: Context) -> str:
    if context.dtype != "float32":
        return f"{context.dtype}: second derivatives are composed of operations that round to storage"
    if context.implementation.residual:
        return "with a residual the second derivative is that of the sum"
    return _needs_autograd(context)


@register("gradient-flow", applies=_needs_gradients)
def gradient_flow(context: Context) -> Iterator[Result]:
    """Every input gets a gradient, with the shape and the dtype of the input.

    Statement
    ---------
    After a backward pass x (as the result of an earlier operation), weight, bias and residual hold gradients that are not all
    zero, and of their own shape and dtype; whether x is contiguous in memory or not.

    Why it matters
    --------------
    A fast path that leaves the graph gives the right output, and everything before the norm stops learning without a sound.

    Holds for
    ---------
    Every implementation that is differentiated by its framework or has a backward function.

    Tolerance
    ---------
    None: exact.

    Known exceptions
    ----------------
    A layout that the implementation refuses in its forward pass, or that its framework has not, is left out.

    References
    ----------
    huggingface/candle 2168 and 3752, unslothai/unsloth 4533 (kind K24 of the catalogue of faults).
    """
    width = next((w for w in (64, 33, 8) if context.can_take(w)), context.widths[-1])
    shape = context.shape(6, width)
    layouts = [context.layout, *(["transposed"] if context.layout == "contiguous" else [])]
    for layout in layouts:
        yield from guarded(context, "gradient-flow", _flow, shape, layout, shape=shape, layout=layout)


def _flow(context: Context, shape: tuple[int, ...], layout: str) -> Result | None:
    case = with_residual(context, context.case("standard", shape, layout=layout))
    try:
        context.run(case)
    except (CallError, LayoutError):
        return None
    where: dict[str, Any] = {"shape": shape, "layout": layout, "regime": "standard"}
    second = slopes(context, case, 1) if context.implementation.residual else None
    gradient = gradient_case(context, case, slopes(context, case), second)
    try:
        found = pulled(context, gradient)
    except CallError as error:
        text = f"backward raised {error}, but should give gradients [{gradient.describe()}]"
        return context.result("gradient-flow", Outcome.FAILED, text, witness=raised(error), **where)
    for name in gradient.differentiated:
        values = gradient.rows_of(found, name)
        if not values.any() and gradient.exact[name].hi.any():
            text = f"{NAMES[name]} is all zero, but should not be [{gradient.describe()}]"
            at, exact = _largest(gradient.exact[name].hi), gradient.exact[name].hi
            where["witness"] = pointed(gradient, name, at, 0.0, float(exact[at]), claim="got != 0")
            return context.result("gradient-flow", Outcome.FAILED, text, **where)
    return context.result("gradient-flow", Outcome.PASSED, **where)


def _largest(values: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(np.abs(values).argmax(), values.shape))


@register("gradient-accumulation", applies=_needs_gradients, requires=_REQUIRES)
def gradient_accumulation(context: Context) -> Iterator[Result]:
    """A second backward pass adds the same gradient again, and leaves dy as it was.

    Statement
    ---------
    Two backward passes after one forward pass give exactly twice the gradient of one: a sum of two equal numbers is exact. dy
    holds after the pass what it held before. A second forward pass, of another input, before the backward pass of the first
    leaves the gradients of the first as they are.

    Why it matters
    --------------
    Gradients are accumulated over micro-batches and losses. A kernel that writes dx into the memory of dy or of saved values is
    right once; one that overwrites where it should add loses all batches but the last. Statistics that are kept in a buffer of
    the module, and not of the call, are those of the last call: layers that share it, or a layer that is called twice, learn
    nonsense.

    Holds for
    ---------
    Every implementation that is differentiated by its framework; of a backward function only that dy is left alone.

    Tolerance
    ---------
    None for deterministic code. Where the two gradients differ yet each is within its bound it is a warning.

    Known exceptions
    ----------------
    None known.

    References
    ----------
    linkedin/Liger-Kernel 376 (kind K21) and kind K23 of the catalogue of faults: ignored accumulation.
    """
    width = next((w for w in (64, 33, 8) if context.can_take(w)), context.widths[-1])
    shape = context.shape(6, width)
    yield from guarded(context, "gradient-accumulation", _kept, shape, shape=shape)
    if not callable(context.implementation.grad):
        case = with_residual(context, context.case("standard", shape))
        for name in NAMES:
            if getattr(case.inputs, name) is not None:
                yield from guarded(context, "gradient-accumulation", _twice, shape, name, shape=shape)
                if not context.implementation.mutates:
                    yield from guarded(context, "gradient-accumulation", _between, shape, name, shape=shape)


def _plain(context: Context, shape: tuple[int, ...]) -> GradientCase:
    case = with_residual(context, context.case("standard", shape))
    second = slopes(context, case, 1) if context.implementation.residual else None
    return gradient_case(context, case, slopes(context, case), second)


def _kept(context: Context, shape: tuple[int, ...]) -> Result:
    gradient = _plain(context, shape)
    after = gradient.case.fold.fold(pulled(context, gradient).slopes[0])
    wrong = np.argwhere(after != gradient.dy)
    where: dict[str, Any] = {"shape": shape, "regime": "standard"}
    if not len(wrong):
        return context.result("gradient-accumulation", Outcome.PASSED, **where)
    at = tuple(wrong[0])
    text = (
        f"dy[{at[0]}, {at[1]}]={float(after[at])!r} after the backward pass, but should be {float(gradient.dy[at])!r} as before "
        f"[{gradient.describe()}]"
    )
    where["witness"] = pointed(gradient, "y", at, float(after[at]), float(gradient.dy[at]))
    return context.result("gradient-accumulation", Outcome.FAILED, text, **where)


def _twice(context: Context, shape: tuple[int, ...], name: str) -> Result:
    gradient = _plain(context, shape)
    once, twice = (gradient.rows_of(pulled(context, gradient, passes), name) for passes in (1, 2))
    due = f"twice that of one [{gradient.describe()}]"
    return _equal(context, gradient, name, (once, twice - once), (2 * once, twice), ("two backward passes", due), passes=2)


_SECOND_CALL = (*PLAIN, "kept, x = x, x * x", "{function}({passed})", "x = kept")


def _between(context: Context, shape: tuple[int, ...], name: str) -> Result:
    gradient = _plain(context, shape)
    alone, later = (gradient.rows_of(pulled(context, gradient, again=again), name) for again in (False, True))
    due = f"as without it [{gradient.describe()}]"
    return _equal(
        context, gradient, name, (alone, later), (alone, later), ("a second forward pass, of x * x", due), way=_SECOND_CALL
    )


def _equal(
    context: Context,
    gradient: GradientCase,
    name: str,
    judged: tuple[Array, ...],
    pair: tuple[Array, Array],
    told: tuple[str, str],
    **how: Any,
) -> Result:
    """Two gradients that must have the same bits; a warning where each of those judged is within its bound."""
    (expected, got), (after, due) = pair, told
    where: dict[str, Any] = {"shape": tuple(gradient.case.fold.shape), "regime": "standard"}
    wrong = np.argwhere((got != expected) & ~(np.isnan(got) & np.isnan(expected)))
    if not len(wrong):
        return context.result("gradient-accumulation", Outcome.PASSED, **where)
    at = tuple(wrong[np.abs(got - expected)[tuple(wrong.T)].argmax()])
    within = all(gradient.judge(name, values, "branches").worst_ratio <= 1 for values in judged)
    return context.result(
        "gradient-accumulation",
        Outcome.WARNED if within else Outcome.FAILED,
        f"{NAMES[name]}[{at[0]}, {at[1]}]={float(got[at])!r} after {after}, but should be {float(expected[at])!r}, {due}",
        severity=Severity.WARNING if within else Severity.ERROR,
        error=float(np.abs(got[at] - expected[at])),
        witness=pointed(gradient, name, at, float(got[at]), float(expected[at]), **how),
        **where,
    )


@register("double-backward", applies=_needs_second_order, requires=_REQUIRES)
def double_backward(context: Context) -> Iterator[Result]:
    """The derivative of the gradient is right, for every combination of weight and bias.

    Statement
    ---------
    <t, dx>, <s, dweight> and <s', dbias>, for random directions, have the gradients that follow from the closed form of the
    second derivative: with respect to x H[t] and J'(s*dy), to the weight sum(dy * J t), to dy w * J t, s*n and s'.

    Why it matters
    --------------
    Gradient penalties, meta-learning and Hessian-vector products differentiate twice. A backward pass that takes its saved
    statistics for constants, or forgets the bias where there is no weight, is right once and wrong twice.

    Holds for
    ---------
    Implementations in float32 that the framework differentiates; those that refuse a second derivative by raising are skipped,
    and so are absent parameters that the forward pass does not take.

    Tolerance
    ---------
    K*u times the same formula with every term taken by its modulus and c replaced by |x| + mean|x|, which covers every way to
    group the terms. K = 4*(H+1) + 64: no path leads through more than four sums over a row (mean, variance and one for each
    derivative) and sixty-four other operations. Rows are well-conditioned, so that first-order terms are all there is.

    Known exceptions
    ----------------
    16-bit formats are skipped: frameworks compose the second derivative of operations that each round to storage.

    References
    ----------
    pytorch/pytorch 79705, 175754 and 41595, ml-explore/mlx 3220 (kind K24 of the catalogue of faults).
    """
    width = next((w for w in (16, 33, 64) if context.can_take(w)), context.widths[-1])
    shape = context.shape(6, width)
    has = [name for name in ("weight", "bias") if context.implementation.takes(name)]
    results: list[Result] = []
    refused: list[Result] = []
    combinations = itertools.chain.from_iterable(itertools.combinations(has, n) for n in range(len(has) + 1))
    for absent in (names for names in combinations if _taken(context, shape, names)):
        for name in ("x", *(name for name in has if name not in absent)):
            for result in guarded(context, "double-backward", _double, shape, absent, name, shape=shape):
                (refused if result.outcome is Outcome.SKIPPED else results).append(result)
    if results and all(result.measures.get("absent") for result in results):
        yield replace(
            results[0], outcome=Outcome.SKIPPED, message="second derivatives are refused: the first are not differentiable"
        )
        return
    yield from results
    # who refuses all second derivatives may; who has some and raises for others has forgotten these
    if results:
        yield from (replace(result, outcome=Outcome.FAILED) for result in refused)
    elif refused:
        yield replace(refused[0], message=f"second derivatives are refused: {refused[0].message}")


def _taken(context: Context, shape: tuple[int, ...], absent: tuple[str, ...]) -> bool:
    """Whether the forward pass bears the absence of these parameters: code need not take None."""
    case = context.case("standard", shape)
    gone: dict[str, Any] = dict.fromkeys(absent)
    try:
        context.run(replace(case, inputs=replace(case.inputs, **gone)))
    except (CallError, FormError):
        return not absent
    return True


def _double(context: Context, shape: tuple[int, ...], absent: tuple[str, ...], name: str) -> Result:
    case = context.case("standard", shape)
    gone: dict[str, Any] = dict.fromkeys(absent)
    case = replace(case, inputs=replace(case.inputs, **gone))
    gradient = gradient_case(context, case, slopes(context, case))
    size = getattr(case.inputs, name).shape
    along = {name: context.x_format.round(np.random.default_rng([context.seed, *size]).standard_normal(size))}
    where: dict[str, Any] = {"shape": shape, "regime": "standard"}
    dy, dtype = case.fold.unfold(gradient.dy), case.out_format.name
    try:
        found = backward_twice(context.implementation, case.inputs, dy, along, dtype=dtype)
    except CallError as error:
        without = "".join(f", {name}=None" for name in absent)
        text = f"derivative of {NAMES[name]}={error}, but should be an array [{describe(case)}{without}]"
        return context.result("double-backward", Outcome.SKIPPED, text, **where)
    result = _second_verdict(context, gradient, found, along, where)
    absent_all = all(array is None for array in found.values.values())
    return replace(result, measures={"absent": 1.0}) if absent_all else result


def _second_verdict(
    context: Context, gradient: GradientCase, found: Gradients, along: dict[str, Array], where: dict[str, Any]
) -> Result:
    worst: tuple[float, float, float, str] = (0.0, 0.0, 0.0, "")
    first, shown = next(iter(along)), None
    for name, (exact, bound) in second_order(gradient, along).items():
        array = found.values[name]
        got = np.zeros(exact.shape) if array is None else _as(gradient, name, array, exact)
        with np.errstate(all="ignore"):
            error = np.abs(got - exact)
            ratio = np.where(error > 0, error / bound, 0.0)
        at = np.unravel_index(np.nan_to_num(ratio, nan=np.inf).argmax(), ratio.shape)
        if not ratio[at] <= worst[0]:
            place = ", ".join(str(int(i)) for i in at)
            expected = f"{float(exact[at])!r} within {float(bound[at]):.3g}"
            text = f"d({NAMES[first]})/d({'dy' if name == 'y' else name})[{place}]={float(got[at])!r}, but should be {expected}"
            worst = (float(ratio[at]), float(error[at]), float(bound[at]), text)
            shown = (name, tuple(int(i) for i in at), float(got[at]), float(exact[at]), float(bound[at]))
    ratio_, error_, bound_, text = worst
    failed = not ratio_ <= 1
    inputs = gradient.case.inputs
    given = {"weight": inputs.weight, "bias": inputs.bias}
    absent = [f"{name}=None" for name, array in given.items() if array is None and context.implementation.takes(name)]
    call = ", ".join([describe(gradient.case), *absent])
    return context.result(
        "double-backward",
        Outcome.FAILED if failed else Outcome.PASSED,
        f"{text} [{call}]" if failed else "",
        witness=second_shown(gradient, along, *shown) if failed and shown is not None else None,
        error=error_,
        tolerance=bound_,
        **where,
    )


def _as(gradient: GradientCase, name: str, array: Array, exact: Array) -> Array:
    whole = gradient.case.fold.shape if name in ("x", "y") else getattr(gradient.case.inputs, name).shape
    if array.shape != whole:
        raise FormError(f"shape of the second gradient of {name}={array.shape}, but should be {whole} [{gradient.describe()}]")
    return gradient.case.fold.fold(array) if name in ("x", "y") else array.reshape(exact.shape)
