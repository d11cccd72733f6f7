"""Gradients: of input, weight and bias, each held against its certified value within its own bound."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from normcheck.checks.base import Context, SkipCaseError, guarded, raised, register
from normcheck.checks.cases import Case, make_case
from normcheck.checks.gradient_cases import GradientCase, gradient_case, held, passes, pulled, slopes
from normcheck.checks.gradient_witness import gradient_witness
from normcheck.implementations import CallError, Gradients, call, differentiable
from normcheck.regimes import REGIMES
from normcheck.results import Outcome, Result

_REQUIRES = ("output-form", "accuracy", "gradient-flow")
_WIDTHS = {
    "quick": (3, 64, 257),
    "standard": (2, 7, 33, 64, 257, 769, 1024, 4097),
    "deep": (1, 2, 3, 7, 16, 33, 64, 127, 257, 769, 1000, 1024, 2049, 4097, 16385, 65537),
}
_QUICK_REGIMES = ("standard", "large-mean", "sparse-deviation", "outlier", "tiny")
_ROWS = 8
_COUNTS = {
    "quick": (33, 257, 8193),
    "standard": (33, 255, 1025, 8193, 16383),
    "deep": (1, 31, 33, 127, 129, 255, 257, 511, 513, 1023, 1025, 4097, 8191, 8193, 16383, 65537),
}
_NARROW = 8

Ran = tuple[GradientCase, Gradients, str]
Run = Callable[[], Ran]


def _needs_gradients(context: Context) -> str:
    return differentiable(context.implementation)


def _needs_parameters(context: Context) -> str:
    implementation = context.implementation
    if not (implementation.takes("weight") or implementation.takes("bias")):
        return f"{implementation.name} takes neither weight nor bias"
    return differentiable(implementation)


def _needs_weight(context: Context) -> str:
    return differentiable(context.implementation) or ("" if context.implementation.takes("weight") else "there is no weight")


@register("input-gradient", applies=_needs_gradients, requires=_REQUIRES)
def input_gradient(context: Context) -> Iterator[Result]:
    """The gradient with respect to x lies within the bound of its own input.

    Statement
    ---------
    With g = (offset + w)*dy and n = c/S, dx = (g - mean(g) - n*q)/S, where q = mean(g*n) for eps inside the root (see
    ``normcheck.gradient_bounds`` for the other norms) and mean(g) is there only if a mean is subtracted. For each element
    RN(dx - E) <= dx_hat <= RN(dx + E). The rows of dy are normal with a mean, of one sign, along n, and single elements; weights
    are of mixed sign and away from 1.

    Why it matters
    --------------
    A wrong backward pass trains, a little worse. A factor that multiplies the weight twice is right where all weights are 1, a
    mean that is subtracted twice where dy has none, and any error at all where the loss is y.sum(), whose gradient is 0 through
    every norm that subtracts a mean.

    Holds for
    ---------
    Every implementation that is differentiated by its framework or has a backward function.

    Tolerance
    ---------
    E is derived in ``normcheck.gradient_bounds`` from the same quantities as that of ``accuracy``, with the same two classes of
    sums. Within the sequential class it is a warning unless the contract says so. So it is where x reaches the compute format by
    several casts: autograd rounds a gradient for each to storage before it adds them, and each is as large as r*|g|, however
    small their sum.

    Known exceptions
    ----------------
    Statistics that the forward pass saves in 16 bits break the bound, up to a thousandfold where the mean is large, unless
    ``saved_stats`` says so. Rows on which a maximum with eps may take either side are left out.

    References
    ----------
    NVIDIA/Megatron-LM 6859, tenstorrent/tt-metal 53204 and 34760 (kind K22 of the catalogue of faults); derivation in
    ``normcheck.gradient_bounds``.
    """
    yield from _judged(context, "input-gradient", ("x", "residual"))


@register("parameter-gradients", applies=_needs_parameters, requires=_REQUIRES)
def parameter_gradients(context: Context) -> Iterator[Result]:
    """The gradients of weight and bias lie within the bound of the sums that they are.

    Statement
    ---------
    dweight = sum(dy*n) and dbias = sum(dy) over all elements that meet the parameter, within E_dw and E_db; they have shape and
    dtype of the parameter.

    Why it matters
    --------------
    The gradient of a weight sees errors of n that the output hides behind small weights, and its accumulator is another one than
    that of the row: often the parameter's own 16-bit buffer.

    Holds for
    ---------
    Every implementation with parameters that is differentiated or has a backward function.

    Tolerance
    ---------
    Sums of M terms in any order: M*u*sum|dy*n| and M*u*sum|dy| in the compute format, beside the error of each n; see
    ``normcheck.gradient_bounds``.

    Known exceptions
    ----------------
    None known.

    References
    ----------
    karpathy/llm.c 428, linkedin/Liger-Kernel 950 (kind K23 of the catalogue of faults).
    """
    yield from _judged(context, "parameter-gradients", ("weight", "bias"))


def _plan(context: Context, names: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    widths = [width for width in _WIDTHS[context.profile] if context.can_take(width)] or list(context.widths)
    graded = [name for name, regime in REGIMES.items() if regime.graded]
    if names == ("weight", "bias"):
        # their sums run over rows: the width matters little
        widths, graded = widths[1::2] or widths, [name for name in graded if name in _QUICK_REGIMES]
    yield from itertools.product(widths, _QUICK_REGIMES if context.profile == "quick" else graded)


def _judged(context: Context, check: str, names: tuple[str, ...]) -> Iterator[Result]:
    shown: set[str] = set()
    for width, regime in _plan(context, names):
        try:
            shape = context.shape(_ROWS, width)
        except SkipCaseError:
            continue
        run = functools.cache(functools.partial(_backward, context, regime, shape))
        for name in names:
            yield from guarded(context, check, _judge, check, run, name, shown, regime=regime, shape=shape)


def _judge(context: Context, check: str, run: Run, name: str, shown: set[str]) -> Result | None:
    gradient, found, regime = run()
    if name not in gradient.differentiated or not gradient.errors.judged().any():
        return None
    output = gradient.rows_of(found, name)
    result = held(context, check, gradient, name, output, regime=regime)
    if result.outcome.finding and f"{name} {regime}" not in shown:
        # one witness a regime is enough, and finding one costs calls
        shown.add(f"{name} {regime}")
        result = replace(result, witness=gradient_witness(context, gradient, name, output) or result.witness)
    return result


def _backward(context: Context, regime: str, shape: tuple[int, ...]) -> Ran:
    case = with_residual(context, context.case(regime, shape))
    second = case.out_format.round(np.roll(slopes(context, case, 1), 1, axis=0)) if context.implementation.residual else None
    gradient = gradient_case(context, case, slopes(context, case), second)
    return gradient, pulled(context, gradient), regime


def with_residual(context: Context, case: Case) -> Case:
    """The same case, for code that adds a residual: two halves whose sum is exact."""
    if not context.implementation.residual:
        return case
    half = case.x_format.round(case.inputs.x / 2)
    return replace(case, inputs=replace(case.inputs, x=half, residual=case.inputs.x - half))


@register("many-row-gradients", applies=_needs_parameters, requires=_REQUIRES, sweeps=True)
def many_row_gradients(context: Context) -> Iterator[Result]:
    """Gradients of weight and bias are right over thousands of rows.

    Statement
    ---------
    dweight and dbias as in ``parameter-gradients``, for dy = 1, for dy = sign(n), so that every term of dweight has one sign, and
    for random dy of one sign; over more than 8192 rows, and row counts on both sides of the block sizes of kernels.

    Why it matters
    --------------
    A 16-bit accumulator stands still: in bfloat16 the sum of 8192 ones is 256. A kernel that drops the last, partial block of
    rows is right for every multiple of the block size. Both pass a test with 16 rows.

    Holds for
    ---------
    Every implementation with parameters that is differentiated or has a backward function.

    Tolerance
    ---------
    As in ``parameter-gradients``. Real kernels add thousands of rows one after the other, and pass; ``ratio_rows`` among the
    measures holds the sums against a tree over the rows, the better grade.

    Known exceptions
    ----------------
    torch 2.13.0 on CPU adds up LayerNorm's gradients in the input's dtype, with one buffer per thread: 512 in two threads.

    References
    ----------
    karpathy/llm.c 428, linkedin/Liger-Kernel 950, NVIDIA/Megatron-LM 1446 (kind K23 of the catalogue of faults).
    """
    shown: set[str] = set()
    for count, kind in itertools.product(_COUNTS[context.profile], ("ones", "sign", "one-signed")):
        shape = _many(context, count)
        if shape is None or (context.profile == "quick" and kind == "one-signed"):
            continue
        run = functools.cache(functools.partial(_many_backward, context, shape, kind))
        for name in ("weight", "bias"):
            yield from guarded(context, "many-row-gradients", _judge_many, run, name, shown, regime=kind, shape=shape)


def _many(context: Context, count: int) -> tuple[int, ...] | None:
    """A shape in which about so many rows or samples meet each parameter."""
    groups = getattr(context.norm, "num_groups", 1)
    channels = 2 * groups
    if not context.norm.per_channel:
        width = next((w for w in (_NARROW, 7, 64) if context.can_take(w)), context.widths[0])
        try:
            return context.shape(count, width)
        except SkipCaseError:
            return None
    axis = context.implementation.channel_axis
    for spatial in ((), (2,), (1, 1), (2, 2), (2, 1, 1)):
        shape = (count, *spatial, channels) if axis == -1 else (count, channels, *spatial)
        if context.implementation.refuses(shape) is None and context.norm.fold(shape, axis).width > 1:
            return shape
    return None


def _many_backward(context: Context, shape: tuple[int, ...], kind: str) -> Ran:
    case = context.case("standard", shape)
    dy = np.ones(case.rows.shape)
    if kind == "sign":
        dy = np.where(case.errors.normalized < 0, -1.0, 1.0)
    elif kind == "one-signed":
        dy = case.out_format.round(np.random.default_rng([context.seed, *shape]).uniform(0.25, 1.0, dy.shape))
    gradient = gradient_case(context, case, dy)
    return gradient, pulled(context, gradient), kind


def _judge_many(context: Context, run: Run, name: str, shown: set[str]) -> Result | None:
    gradient, found, kind = run()
    if name not in gradient.differentiated:
        return None
    output = gradient.rows_of(found, name)
    result = held(context, "many-row-gradients", gradient, name, output, f"dy: {kind}", regime=kind)
    if result.outcome.bad and name not in shown:
        shown.add(name)
        result = replace(result, witness=gradient_witness(context, gradient, name, output) or result.witness)
    rows = gradient.judge(name, output, "rows").worst_ratio
    return replace(result, measures={**result.measures, "ratio_rows": rows})


@register("zero-weight-gradients", applies=_needs_weight, requires=_REQUIRES)
def zero_weight_gradients(context: Context) -> Iterator[Result]:
    """Gradients are right where a weight is zero or tiny.

    Statement
    ---------
    With weights 0, 1e-6, -1 and 1 (for a weight offset: such that offset + w is 0 or tiny) and a bias of the size of the output,
    dx, dweight and dbias are finite and within their bounds.

    Why it matters
    --------------
    To save memory some backward passes rebuild the standardized value as (y - bias)/weight. One exact zero among the weights
    makes it NaN, and a tiny one leaves nothing of it but the rounding error of y.

    Holds for
    ---------
    Every implementation with a weight that is differentiated or has a backward function.

    Tolerance
    ---------
    As in ``input-gradient`` and ``parameter-gradients``.

    Known exceptions
    ----------------
    None known.

    References
    ----------
    ServiceNow/Fast-LLM 220, NVIDIA/apex 1715 (kind K25 of the catalogue of faults).
    """
    for width, turn in itertools.product((w for w in (8, 64) if context.can_take(w)), range(2)):
        shape = context.shape(_ROWS, width)
        run = functools.cache(functools.partial(_zeroed, context, shape, turn))
        for name in ("x", "weight", "bias"):
            yield from guarded(context, "zero-weight-gradients", _judge_zero, run, name, regime="standard", shape=shape)


def _zeroed(context: Context, shape: tuple[int, ...], turn: int) -> tuple[Ran, Ran]:
    """The backward pass with zero and tiny weights, and with ordinary ones."""
    plain, fmt = context.case("standard", shape), context.parameter_format
    assert plain.inputs.weight is not None
    values = np.roll([0.0, max(1e-6, fmt.min_normal), -1.0, 1.0], -turn) - context.norm.weight_offset
    weight = fmt.round(np.resize(values, plain.inputs.weight.shape))
    usual = fmt.round(np.resize([1.5, -0.75], weight.shape) - context.norm.weight_offset)
    both = (
        make_case(plain.norm, plain.contract, plain.fold, plain.rows, replace(plain.inputs, weight=w)) for w in (weight, usual)
    )
    small, large = (gradient_case(context, one, slopes(context, one, 2)) for one in both)
    return (small, pulled(context, small), "standard"), (large, pulled(context, large), "standard")


def _judge_zero(context: Context, run: Callable[[], tuple[Ran, Ran]], name: str) -> Result | None:
    (gradient, found, regime), (usual, base, _) = run()
    if name not in gradient.differentiated:
        return None
    output = gradient.rows_of(found, name)
    if passes(context, gradient, name, output) or not passes(context, usual, name, usual.rows_of(base, name)):
        return context.result("zero-weight-gradients", Outcome.PASSED, shape=tuple(gradient.case.fold.shape), regime=regime)
    result = held(context, "zero-weight-gradients", gradient, name, output, "weights are 0, 1e-6, -1 and 1", regime=regime)
    return replace(result, witness=gradient_witness(context, gradient, name, output) or result.witness)


@register("affine-gradients", applies=_needs_parameters, requires=_REQUIRES)
def affine_gradients(context: Context) -> Iterator[Result]:
    """Gradients are right whichever of weight and bias is absent.

    Statement
    ---------
    With weight=None, bias=None or both, dx and the gradient of what is given exist and are within their bounds, with few axes and
    with more.

    Why it matters
    --------------
    Models leave out biases, and norms without parameters feed adaptive ones. A backward pass that asks for the shape or the
    device of a weight that is not there raises after the forward pass went well.

    Holds for
    ---------
    Every implementation whose weight or bias may be None and that is differentiated or has a backward function.

    Tolerance
    ---------
    As in ``input-gradient`` and ``parameter-gradients``.

    Known exceptions
    ----------------
    Combinations that the forward pass refuses are left out, and gradients that are wrong with weight and bias as well.

    References
    ----------
    Kind K29 of the catalogue of faults, for the backward pass; ml-explore/mlx 3220.
    """
    width = next((w for w in (16, 33, 64) if context.can_take(w)), context.widths[-1])
    given = [name for name in ("weight", "bias") if context.implementation.takes(name)]
    absences = itertools.chain.from_iterable(itertools.combinations(given, n) for n in range(1, len(given) + 1))
    for absent, shape in itertools.product(absences, _of_ranks(context, width)):
        run = functools.cache(functools.partial(_partly, context, shape, absent))
        for name in ("x", *given):
            yield from guarded(context, "affine-gradients", _judge_partly, run, absent, name, regime="standard", shape=shape)


def _of_ranks(context: Context, width: int) -> Iterator[tuple[int, ...]]:
    yield context.shape(_ROWS, width)
    with contextlib.suppress(SkipCaseError):
        yield context.shape(_ROWS, width, 4 if context.norm.per_channel else 3)


def _partly(context: Context, shape: tuple[int, ...], absent: tuple[str, ...]) -> Ran:
    case = with_residual(context, context.case("standard", shape))
    gone: dict[str, Any] = dict.fromkeys(absent)
    case = replace(case, inputs=replace(case.inputs, **gone))
    try:
        call(context.implementation, case.inputs)
    except CallError as error:
        raise SkipCaseError(str(error)) from None
    second = slopes(context, case, 1) if context.implementation.residual else None
    gradient = gradient_case(context, case, slopes(context, case), second)
    return gradient, pulled(context, gradient), "standard"


def _judge_partly(context: Context, run: Run, absent: tuple[str, ...], name: str) -> Result | None:
    if name in absent:
        return None
    note = ", ".join(f"{name}=None" for name in absent)
    try:
        gradient, found, regime = run()
        output = gradient.rows_of(found, name)
    except CallError as error:
        text = f"backward raised {error}, but should give gradients [{note}]"
        return context.result("affine-gradients", Outcome.FAILED, text, regime="standard", witness=raised(error))
    if not passes(context, gradient, name, output):
        whole, base, _ = _partly(context, gradient.case.fold.shape, ())
        if passes(context, whole, name, whole.rows_of(base, name)):
            return held(context, "affine-gradients", gradient, name, output, note, regime=regime)
    return context.result("affine-gradients", Outcome.PASSED, regime=regime, shape=tuple(gradient.case.fold.shape))
