"""Shapes: every rank, width and number of rows, the empty batch, and one value per channel."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np

from normcheck.checks.base import Context, SkipCaseError, check_form, guarded, raised, register
from normcheck.checks.comparing import case_from, finding, held, mixed, need_sound_base, unsound_base
from normcheck.checks.geometry import BLOCKS, HIDDEN, arrangements, shapes
from normcheck.checks.witness import pointed
from normcheck.formats import Array
from normcheck.implementations import CallError, Implementation, call
from normcheck.results import Outcome, Result

_AROUND = tuple(2**k + step for k in range(4, 11) for step in (-1, 0, 1))
_WIDE = (2047, 2049, 3000, 4095, 4097, 8191, 8193, 65535, 65536, 65537)
_WIDTHS = {
    "quick": (1, 2, 3, 5, 8, 12, 13, 17, 31, 33, 65, 101, 127, 257, 513, 769, 1024, 1025, 1028, 4096, 10240),
    "standard": (*range(1, 14), *_AROUND, *HIDDEN, 769, 1009, 1028, *_WIDE),
    "deep": (*range(1, 140), *_AROUND, *HIDDEN, 769, 1009, 1028, *_WIDE, 131071, 131072, 131073, 1000003),
}
_COUNTS = {
    "quick": (1, 2, 3, 7, 9, 31, 33, 129, 257, 1025),
    "standard": (*range(1, 10), *_AROUND, 4097, 65537, 70001),
    "deep": (*range(1, 70), *_AROUND, 4097, 65535, 65536, 65537, 70001, 262145),
}
_DIMS = ((3, 5), (2, 3, 4), (7, 1), (1, 6))


def _needs_dims(context: Context) -> str:
    if context.norm.per_channel:
        return f"{context.norm.name} has no normalized_shape"
    if "normalized_shape" not in context.implementation.variable:
        return "normalized_shape is fixed: name it among the arguments, or give make=, so that it can be varied"
    return ""


def _needs_channels(context: Context) -> str:
    return "" if context.norm.per_channel else f"{context.norm.name} has no channels: see zero-and-constant-rows"


def _held(context: Context, check: str, shape: tuple[int, ...], implementation: Implementation | None = None) -> Result:
    """The verdict on rows of this shape; a refusal is a skip."""
    case = case_from(context, _telling(context, shape, implementation), norm=(implementation or context.implementation).norm)
    try:
        output = context.run(case, implementation)
    except CallError as error:
        return context.result(check, Outcome.SKIPPED, f"x of shape {shape} is refused: {error}", shape=shape)
    dims = getattr(implementation.norm, "normalized_shape", "") if implementation is not None else ""
    return held(context, check, case, output, regime=str(dims))


def _telling(context: Context, shape: tuple[int, ...], implementation: Implementation | None) -> Array:
    """Rows with a mean, half of whose variance is in the last element, or in the first one of every second row.

    Every third row has a large mean as far as the format leaves it a spread, which no variance from one pass survives.
    """
    norm = (implementation or context.implementation).norm
    fold = norm.fold(shape, context.implementation.channel_axis)
    rng = np.random.default_rng([context.seed, fold.rows, fold.width])
    rows = rng.standard_normal((fold.rows, fold.width)) + 1.5
    rows[2::3] += 1000.0 * (context.x_format.p >= 24)
    rows[::2, -1] += math.sqrt(fold.width)
    rows[1::2, 0] -= math.sqrt(fold.width)
    scale = np.resize([1.0, 0.25, 4.0, 0.5, 2.0], (fold.rows, 1))
    return fold.unfold(context.x_format.round(np.clip(rows * scale, -context.x_format.max, context.x_format.max)))


@register("ranks", sweeps=True)
def ranks(context: Context) -> Iterator[Result]:
    """The result does not depend on how the rows are arranged in axes.

    Statement
    ---------
    An x of rank 1, 2, 3, 4 or 5 is normalized row by row, as far as the norm has such a rank, with axes of 1, of more than 16, 64
    and 128 (in ``standard``: 1024) at every place, a high image as well as a wide one.

    Why it matters
    --------------
    Kernels are written for (batch, width) and called with (batch, heads, tokens, width): a stride or an axis that is counted from
    the front is wrong in the next model. Threads that are laid out over the axes reach as far as the axes that were tried.

    Holds for
    ---------
    Every norm, in the ranks that it and the implementation have.

    Tolerance
    ---------
    The bound E of ``accuracy``.

    Known exceptions
    ----------------
    A rank that the implementation refuses by raising is skipped. So is all where a plain input is wrong already.

    References
    ----------
    vllm-xpu-kernels 397, tensorflow/addons 2143 (kinds K18 and K19 of the catalogue of faults).
    """
    need_sound_base(context)
    for shape in arrangements(context):
        yield from guarded(context, "ranks", _held, "ranks", shape, shape=shape)


@register("widths", sweeps=True)
def widths(context: Context) -> Iterator[Result]:
    """Rows of every width come out right, to their last element.

    Statement
    ---------
    Widths of 1, 2, 3, odd, prime, powers of two and around them, and those of models give the right result in every element.

    Why it matters
    --------------
    Padding that is counted, a tail that is left out, a vector store that spills into the next row: none of it is seen at 64, 768
    or 4096.

    Holds for
    ---------
    Every norm, in the widths that it takes; beyond 65536 in ``standard`` and ``deep``.

    Tolerance
    ---------
    The bound E of ``accuracy``. The rows have a mean, and half of their variance lies in the first or the last element, so that a
    lost or doubled element moves every output by more than any rounding.

    Known exceptions
    ----------------
    A width that the implementation refuses by raising is skipped. So is all where a plain input is wrong already.

    References
    ----------
    triton-lang/triton 9838, ROCm/aiter 5044, tile-ai/tilelang-ascend 890, pytorch/executorch 16727 (kinds K02, K16 and K17 of the
    catalogue of faults).
    """
    need_sound_base(context)
    for width in _WIDTHS[context.profile]:
        if context.can_take(width):
            shape = context.shape(3, width)
            yield from guarded(context, "widths", _held, "widths", shape, shape=shape)


@register("row-counts", sweeps=True)
def row_counts(context: Context) -> Iterator[Result]:
    """Any number of rows comes out right, the last one too.

    Statement
    ---------
    One row, two, odd numbers and those around powers of two, and more rows than 65536 are all normalized; hundreds and thousands
    of rows also where they are wide.

    Why it matters
    --------------
    Grids end at 65535 blocks, row offsets wrap in 32 bits, and blocks of rows have a last one that is not full.

    Holds for
    ---------
    Every norm; beyond 65536 rows in ``standard`` and ``deep``.

    Tolerance
    ---------
    The bound E of ``accuracy``.

    Known exceptions
    ----------------
    A size that the implementation refuses by raising is skipped. So is all where a plain input is wrong already.

    References
    ----------
    pytorch/pytorch 181555, vllm-project/vllm 42862, PaddlePaddle/Paddle 79528, microsoft/onnxruntime 29264, TurboDiffusion 103
    (kinds K17 and K20 of the catalogue of faults).
    """
    need_sound_base(context)
    width = 5 if context.can_take(5) else context.widths[0]
    narrow = ((count, width) for count in _COUNTS[context.profile] if count * width <= 2**21)
    for shape in shapes(context, (*narrow, *BLOCKS[context.profile])):
        yield from guarded(context, "row-counts", _held, "row-counts", shape, shape=shape)


@register("normalized-shape", applies=_needs_dims, sweeps=True)
def normalized_shape(context: Context) -> Iterator[Result]:
    """Several trailing dimensions are normalized as one row, with a weight for each element.

    Statement
    ---------
    With normalized_shape (3, 5), (2, 3, 4), (7, 1) or (1, 6) a row is all elements of these dimensions in order, and weight and
    bias have their shape.

    Why it matters
    --------------
    Code that reduces over the last axis alone is right for every model with a single normalized dimension.

    Holds for
    ---------
    Norms over trailing dimensions whose normalized_shape can be varied.

    Tolerance
    ---------
    The bound E of ``accuracy``.

    Known exceptions
    ----------------
    A shape that the implementation refuses by raising is skipped.

    References
    ----------
    Kind K19 of the catalogue of faults: wrong axis.
    """
    for dims in _DIMS:
        implementation = context.implementation.with_norm(replace(cast(Any, context.norm), normalized_shape=dims))
        if implementation is None or context.norm.ddof >= math.prod(dims):
            continue
        for lead in ((4,), (2, 3)):
            shape = (*lead, *dims)
            if implementation.refuses(shape) is None:
                yield from guarded(
                    context, "normalized-shape", _held, "normalized-shape", shape, implementation, shape=shape, regime=str(dims)
                )


@register("empty-batch")
def empty_batch(context: Context) -> Iterator[Result]:
    """A batch without samples gives a result without samples.

    Statement
    ---------
    For an x whose first dimension is 0 the output is empty, of x's shape and of the promised dtype.

    Why it matters
    --------------
    Experts that get no token and workers that get no sample are ordinary. A division by the number of rows kills the process.

    Holds for
    ---------
    Every norm but BatchNorm in training, which has no statistics there.

    Tolerance
    ---------
    None. A wrong shape or dtype is an error; raising is a warning, since the caller at least learns of it.

    Known exceptions
    ----------------
    No exception is known.

    References
    ----------
    tensorflow/tensorflow 46366, pytorch/pytorch 74944 (kind K11 of the catalogue of faults).
    """
    if context.norm.name == "BatchNorm" and context.own_statistics:
        yield context.result("empty-batch", Outcome.SKIPPED, "an empty batch has no statistics")
        return
    width = 8 if context.can_take(8) else context.widths[-1]
    shape = context.shape(4, width)
    if len(shape) > 1:
        yield from guarded(context, "empty-batch", _empty, shape, shape=(0, *shape[1:]))


def _empty(context: Context, shape: tuple[int, ...]) -> Result:
    full = case_from(context, mixed(context, shape))
    empty = (0, *shape[1:])
    case = replace(full, fold=replace(full.fold, shape=empty), inputs=replace(full.inputs, x=np.zeros(empty)))
    try:
        output = call(context.implementation, case.inputs)
    except CallError as error:
        return finding(context, "empty-batch", case, Outcome.WARNED, f"raised {error}, but should return an empty array")
    check_form(output, case, context.implementation)
    return context.result("empty-batch", Outcome.PASSED, shape=empty)


@register("one-value-per-channel", applies=_needs_channels)
def one_value_per_channel(context: Context) -> Iterator[Result]:
    """A single value, or two, per channel give a defined result and defined statistics.

    Statement
    ---------
    With own statistics one value per channel (or group) is refused, or gives the bias and leaves running statistics without NaN.
    Given statistics make it an ordinary value, and two values in a batch of one are ordinary, too.

    Why it matters
    --------------
    Bessel's correction n/(n - 1) is 0/0 for one value. The output is right and running_var is NaN for ever.

    Holds for
    ---------
    BatchNorm, InstanceNorm, GroupNorm.

    Tolerance
    ---------
    The bound E of ``accuracy`` for the output; running statistics that are given are to stay finite.

    Known exceptions
    ----------------
    torch refuses one value per channel in training.

    References
    ----------
    pytorch/pytorch 1381, FluxML/Flux.jl 2716, tensorflow/tensorflow 34062 and 48845 (kind K11 of the catalogue of faults).
    """
    for width in (1, 2):
        for rank in (None, 4):
            try:
                shape = context.shape(8, width, rank)
            except SkipCaseError:
                continue
            yield from guarded(context, "one-value-per-channel", _few, shape, shape=shape)


def _few(context: Context, shape: tuple[int, ...]) -> Result:
    case = case_from(context, mixed(context, shape))
    try:
        output = call(context.implementation, case.inputs)
    except CallError as error:
        values = "one value" if case.fold.width == 1 else f"{case.fold.width} values"
        refused = case.fold.width == 1 and context.own_statistics
        text = f"{values} per channel raised {error}"
        if refused:
            return context.result("one-value-per-channel", Outcome.SKIPPED, text, shape=shape)
        return finding(context, "one-value-per-channel", case, Outcome.FAILED, f"{text}, but should be normalized", raised(error))
    for name in ("running_mean", "running_var"):
        statistic = getattr(output, name)
        if statistic is not None and not np.isfinite(statistic).all():
            at = tuple(int(i) for i in np.argwhere(~np.isfinite(statistic))[0])
            text = f"{name}={float(statistic[at])!r} after {case.fold.width} values per channel, but should stay finite"
            before = float(np.asarray(getattr(case.inputs, name))[at])
            found = pointed(context.implementation, case.inputs, name, at, float(statistic[at]), before, claim="np.isfinite(got)")
            return finding(context, "one-value-per-channel", case, Outcome.FAILED, text, found)
    check_form(output, case, context.implementation)
    reason = unsound_base(context)
    if reason:
        return context.result("one-value-per-channel", Outcome.SKIPPED, reason, shape=shape)
    return held(context, "one-value-per-channel", case, case.fold.fold(output.y))
