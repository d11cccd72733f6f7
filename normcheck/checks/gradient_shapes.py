"""Gradients for unusual inputs: of any shape, anywhere in memory, with dy of any size, and where some inputs need none."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from normcheck.checks.base import Context, SkipCaseError, guarded, register
from normcheck.checks.cases import Case
from normcheck.checks.comparing import case_from, has_threads, mixed, threads
from normcheck.checks.geometry import BLOCKS, HIDDEN, arrangements, shapes
from normcheck.checks.gradient_cases import NAMES, GradientCase, gradient_case, held, passes, pulled, slopes
from normcheck.checks.gradient_witness import gradient_witness
from normcheck.checks.gradients import with_residual
from normcheck.formats import Array
from normcheck.implementations import CallError, Gradients, differentiable, frameworks
from normcheck.implementations.snippets import PLAIN
from normcheck.results import Outcome, Result

_REQUIRES = ("output-form", "accuracy", "gradient-flow", "input-gradient", "parameter-gradients")
_ROWS = 6
_THREADS = 3
_IN_THREADS = (f"torch.set_num_threads({_THREADS})", *PLAIN)
_LAYOUTS = ("contiguous", "transposed", "channels_last", "strided", "sliced", "expanded", "unaligned")
_WIDTHS = {"quick": (768, 4609), "standard": (*HIDDEN, 4097, 8193), "deep": (*HIDDEN, 4097, 8193, 32768, 131072)}
# losses are scaled by 2**16, and gradients of long sequences fall to 1e-8
_POWERS = (-40, -14, 10, 24)
_POWERS_OF_FLOAT16 = (-14, -8, 8)

Ran = tuple[GradientCase, Gradients]
Run = Callable[[], Ran]


def _needs_gradients(context: Context) -> str:
    return differentiable(context.implementation)


def _needs_several(context: Context) -> str:
    implementation = context.implementation
    if callable(implementation.grad):
        return "the backward pass is a function, which gives all gradients"
    if not any(implementation.takes(name) for name in ("weight", "bias", "residual")):
        return f"{implementation.name} takes nothing but x"
    return differentiable(implementation)


@register("gradient-shapes", applies=_needs_gradients, requires=_REQUIRES, sweeps=True)
def gradient_shapes(context: Context) -> Iterator[Result]:
    """Gradients are right however many rows there are, however wide they are, and however x is cut into axes.

    Statement
    ---------
    dx, dweight and dbias are within their bounds for an x of each rank, with short and long axes at every place; for the widths
    that models have; for hundreds and thousands of rows that are wide as well; in three threads, whose number does not divide
    that of the rows; and with another eps, number of groups or normalized_shape, where those can be varied.

    Why it matters
    --------------
    Backward kernels are chosen by shape: one for narrow rows, one that splits a row over several blocks, one whose weight
    gradient is summed in two stages. Only the one that is chosen is tested.

    Holds for
    ---------
    Every implementation that is differentiated by its framework or has a backward function.

    Tolerance
    ---------
    The bounds of ``input-gradient`` and ``parameter-gradients``.

    Known exceptions
    ----------------
    None known. Skipped where ordinary shapes are wrong already.

    References
    ----------
    tenstorrent/tt-metal 34760, NVIDIA/apex 1715 (kinds K22 and K23 of the catalogue of faults).
    """
    sizes = [(_ROWS, width) for width in _WIDTHS[context.profile]]
    wide = shapes(context, (*sizes, *BLOCKS[context.profile]))
    shown: set[str] = set()
    ordinary = tuple(arrangements(context))[:: 2 if context.profile == "quick" else 1]
    for shape in dict.fromkeys((*ordinary, *wide)):
        run = functools.cache(functools.partial(_shaped, context, shape))
        yield from _judged(context, "gradient-shapes", run, shown, shape=shape)
    for other, shape in _others(context):
        run = functools.cache(functools.partial(_set_otherwise, other, shape))
        yield from _judged(other, "gradient-shapes", run, shown, shape=shape, regime=str(other.norm))
    framework = context.implementation.framework
    if has_threads(framework):
        way = _IN_THREADS if framework == "torch" else ()
        for shape in shapes(context, [(_ROWS * _THREADS + 1, 64)]):
            run = functools.cache(functools.partial(_threaded, context, shape))
            yield from _judged(context, "gradient-shapes", run, shown, shape=shape, regime=f"{_THREADS} threads", way=way)


@register("gradient-linearity", applies=_needs_gradients, requires=_REQUIRES)
def gradient_linearity(context: Context) -> Iterator[Result]:
    """Gradients are proportional to dy, however large or small it is.

    Statement
    ---------
    For dy times 2**-40, 2**-14, 2**10 and 2**24 (2**-14, 2**-8 and 2**8 in float16), and for rows of dy of all these sizes in one
    call, dx, dweight and dbias are within their bounds, which are proportional to dy. A dy of zeros has gradients of zeros, which
    are there.

    Why it matters
    --------------
    Losses are scaled by 2**16 and averaged over a million tokens. Gradients that are clipped inside a kernel, flushed where they
    are small, or pass through 16 bits are right for a dy of size 1. Masked tokens have a dy of exact zeros, and what a kernel
    skips for them is what its memory held.

    Holds for
    ---------
    Every implementation that is differentiated by its framework or has a backward function.

    Tolerance
    ---------
    The bounds of ``input-gradient`` and ``parameter-gradients``: multiplying by a power of two is exact.

    Known exceptions
    ----------------
    None known.

    References
    ----------
    Micikevicius et al. 2018, on loss scaling; kind K22 of the catalogue of faults.
    """
    shape = _usual(context)
    shown: set[str] = set()
    sizes = (*_powers(context), -math.inf)
    for powers in (*((power,) for power in sizes), (0, *sizes)):
        run = functools.cache(functools.partial(_scaled, context, shape, powers))
        regime = "dy * 2**any" if len(powers) > 1 else "dy = 0" if powers == (-math.inf,) else f"dy * 2**{powers[0]}"
        yield from _judged(context, "gradient-linearity", run, shown, shape=shape, regime=regime)


@register("gradient-layouts", applies=_needs_gradients, requires=_REQUIRES)
def gradient_layouts(context: Context) -> Iterator[Result]:
    """Gradients do not depend on how dy and x lie in memory.

    Statement
    ---------
    A dy that is transposed, channels-last (or contiguous where x is channels-last), every second element of a larger array, a
    slice out of its middle, one element away from the start of memory, or expanded with stride 0 over the first axis gives the
    gradients of one that lies as x does. What lies between its elements is NaN. So does an x that is transposed or channels-last
    beside a contiguous dy, and both of them channels-last.

    Why it matters
    --------------
    Gradients seldom come contiguous: the gradient of a mean is expanded, that of a matrix product transposed. A backward kernel
    that assumes the strides of x reads other elements, and trains on plausible nonsense; so does one that reads the x that it has
    saved as if it were contiguous, where the forward kernel looks at strides.

    Holds for
    ---------
    Every implementation that is differentiated by its framework or has a backward function.

    Tolerance
    ---------
    The bounds of ``input-gradient`` and ``parameter-gradients``, which depend on the values alone.

    Known exceptions
    ----------------
    Layouts that the framework does not have, or that the forward pass refuses, are left out, and gradients that are wrong
    whatever the layout.

    References
    ----------
    Kind K18 of the catalogue of faults, for the backward pass; pytorch/pytorch 82493.
    """
    width = 64 if context.can_take(64) else context.widths[-1]
    rank = {"BatchNorm": 4, "InstanceNorm": 4, "GroupNorm": 4}.get(context.norm.name)
    try:
        shape = context.shape(8, width, rank)
    except SkipCaseError:
        shape = context.shape(8, width)
    plain = context.layout
    pairs = [(plain, layout) for layout in _LAYOUTS if layout != plain]
    if plain == "contiguous":
        pairs += [("transposed", plain), ("channels_last", plain), ("channels_last", "channels_last")]
    for of_x, of_dy in pairs:
        run = functools.cache(functools.partial(_laid, context, shape, of_x, of_dy))
        for name in NAMES:
            yield from guarded(context, "gradient-layouts", _judge_laid, run, name, shape=shape, layout=of_dy)


def _laid(context: Context, shape: tuple[int, ...], of_x: str, of_dy: str) -> Ran:
    case = with_residual(context, context.case("standard", shape, layout=of_x))
    dy = slopes(context, case)
    if of_dy == "expanded":
        whole = case.fold.unfold(dy)
        dy = case.fold.fold(np.broadcast_to(whole[:1], whole.shape))
    second = slopes(context, case, 1) if context.implementation.residual else None
    gradient = gradient_case(context, case, dy, second, of_dy)
    framework, dtype = frameworks()[context.implementation.framework], case.out_format.name
    try:
        framework.to_native(case.fold.unfold(gradient.dy), dtype, context.device, of_dy)
        if of_x != context.layout:
            context.run(case)
    except (CallError, ValueError) as error:
        raise SkipCaseError(str(error)) from None
    return gradient, pulled(context, gradient)


def _judge_laid(context: Context, run: Run, name: str) -> Result | None:
    gradient, found = run()
    if name not in gradient.differentiated:
        return None
    output = gradient.rows_of(found, name)
    inputs = gradient.case.inputs
    where: dict[str, Any] = {
        "regime": "standard",
        "layout": gradient.layout if inputs.layout == context.layout else inputs.layout,
    }
    if not passes(context, gradient, name, output):
        case = replace(gradient.case, inputs=replace(inputs, layout=context.layout))
        plain = replace(gradient, case=case, layout=context.layout)
        if passes(context, plain, name, plain.rows_of(pulled(context, plain), name)):
            return held(context, "gradient-layouts", gradient, name, output, **where)
    return context.result("gradient-layouts", Outcome.PASSED, shape=tuple(gradient.case.fold.shape), **where)


@register("gradient-subsets", applies=_needs_several, requires=_REQUIRES)
def gradient_subsets(context: Context) -> Iterator[Result]:
    """The gradient of one input is the same whether or not the others need one.

    Statement
    ---------
    Where only some of x, weight, bias and residual need a gradient, each one alone and all but each, what comes is within its
    bound. So it is where the returned residual alone is used, and y is not.

    Why it matters
    --------------
    The first layer's x needs no gradient, and a frozen model's weights need none. A backward pass that saves, or computes, only
    what it believes to be asked for takes another path there.

    Holds for
    ---------
    Implementations with more than one input that the framework differentiates.

    Tolerance
    ---------
    The bounds of ``input-gradient`` and ``parameter-gradients``.

    Known exceptions
    ----------------
    None known.

    References
    ----------
    unslothai/unsloth 4533 (kind K24 of the catalogue of faults).
    """
    shape = _usual(context)
    given = [name for name in NAMES if name == "x" or _has(context, name)]
    shown: set[str] = set()
    subsets = itertools.chain.from_iterable(itertools.combinations(given, count) for count in {1, len(given) - 1})
    for of in (of for of in subsets if of):
        run = functools.cache(functools.partial(_partial, context, shape, of))
        yield from _judged(context, "gradient-subsets", run, shown, shape=shape, regime=f"of {' and '.join(of)}", of=of)

    if context.implementation.residual:
        run, ends = functools.cache(functools.partial(_unused, context, shape)), ("x", "residual")
        yield from _judged(context, "gradient-subsets", run, shown, shape=shape, regime="of the residual alone", of=ends)


def _has(context: Context, name: str) -> bool:
    return context.implementation.takes(name) if name != "residual" else context.implementation.residual


def _usual(context: Context) -> tuple[int, ...]:
    width = next((width for width in (96, 64, 33) if context.can_take(width)), context.widths[-1])
    return context.shape(8, width)


def _judged(
    context: Context,
    check: str,
    run: Run,
    shown: set[str],
    *,
    of: tuple[str, ...] = tuple(NAMES),
    regime: str = "",
    way: Sequence[str] = PLAIN,
    **where: Any,
) -> Iterator[Result]:
    """The verdict on each gradient of a backward pass; ``way`` is how a snippet makes the call, empty where it cannot."""
    for name in of:
        yield from guarded(context, check, _judge, check, run, name, shown, regime, way, **where)


def _judge(context: Context, check: str, run: Run, name: str, shown: set[str], regime: str, way: Sequence[str]) -> Result | None:
    gradient, found = run()
    if name not in gradient.differentiated:
        return None
    output = gradient.rows_of(found, name)
    if passes(context, gradient, name, output):
        return context.result(check, Outcome.PASSED, shape=tuple(gradient.case.fold.shape), regime=regime)
    result = held(context, check, gradient, name, output, regime, way, regime=regime)
    if not way:
        return replace(result, witness=None)
    if name not in shown and "of " not in regime and way is PLAIN:
        shown.add(name)
        result = replace(result, witness=gradient_witness(context, gradient, name, output))
    return result


def _case(context: Context, shape: tuple[int, ...]) -> Case:
    return with_residual(context, case_from(context, mixed(context, shape)))


def _gradient(context: Context, case: Case, dy: Array, of: tuple[str, ...] = tuple(NAMES)) -> GradientCase:
    # the returned residual has no history where neither of its summands has
    summed = context.implementation.residual and not {"x", "residual"}.isdisjoint(of)
    second = slopes(context, case, 1) if summed else None
    return gradient_case(context, case, dy, second)


def _shaped(context: Context, shape: tuple[int, ...]) -> Ran:
    case = _case(context, shape)
    gradient = _gradient(context, case, slopes(context, case))
    return gradient, pulled(context, gradient)


def _set_otherwise(context: Context, shape: tuple[int, ...]) -> Ran:
    """As `_shaped`; a setting that the forward pass refuses is left out, for ``normalized-shape`` to tell."""
    try:
        context.run(_case(context, shape))
    except CallError as error:
        raise SkipCaseError(f"{context.norm} is refused: {error}") from None
    return _shaped(context, shape)


def _others(context: Context) -> Iterator[tuple[Context, tuple[int, ...]]]:
    """The context with another setting of its norm, and a shape for it."""
    norm: Any = context.norm
    axis, changes = context.implementation.channel_axis, [{"eps": norm.eps * 1000}]
    changes += [{"num_groups": 3}] if hasattr(norm, "num_groups") else []
    changes += [{"normalized_shape": (4, 6)}] if hasattr(norm, "normalized_shape") else []
    for change in changes:
        other = context.implementation.with_norm(replace(norm, **change))
        if other is None:
            continue
        try:
            shape = other.norm.shape_of(12, 24, None, axis)
        except ValueError:
            continue
        if other.refuses(shape) is None:
            yield replace(context, implementation=other), shape


def _threaded(context: Context, shape: tuple[int, ...]) -> Ran:
    with threads(context, _THREADS):
        return _shaped(context, shape)


def _powers(context: Context) -> tuple[int, ...]:
    return _POWERS_OF_FLOAT16 if context.dtype == "float16" else _POWERS


def _scaled(context: Context, shape: tuple[int, ...], powers: tuple[float, ...]) -> Ran:
    case = with_residual(context, context.case("standard", shape))
    scale = np.resize(2.0 ** np.array(powers, float), (case.fold.rows, 1))
    gradient = _gradient(context, case, case.out_format.round(slopes(context, case) * scale))
    return gradient, pulled(context, gradient)


def _partial(context: Context, shape: tuple[int, ...], of: tuple[str, ...]) -> Ran:
    case = with_residual(context, context.case("standard", shape))
    gradient = _gradient(context, case, slopes(context, case), of)
    return gradient, pulled(context, gradient, of=of)


def _unused(context: Context, shape: tuple[int, ...]) -> Ran:
    case = with_residual(context, context.case("standard", shape))
    gradient = gradient_case(context, case, np.zeros(case.rows.shape), slopes(context, case, 1))
    gradient = replace(gradient, unused=True)
    return gradient, pulled(context, gradient, of=("x", "residual"))
