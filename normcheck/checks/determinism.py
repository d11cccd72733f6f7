"""Determinism: the bits of a result do not depend on the run, the batch around it, the threads, or where the input lies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from normcheck.checks.base import Context, SkipCaseError, guarded, register
from normcheck.checks.cases import Case
from normcheck.checks.comparing import (
    case_from,
    equal,
    has_threads,
    layouts,
    mixed,
    need_sound_base,
    same_bits,
    some_shapes,
    threads,
)
from normcheck.checks.witness import pass_class, place_of, shown, writable
from normcheck.formats import Array
from normcheck.implementations.snippets import PLAIN, Script
from normcheck.results import Outcome, Result, Witness

RUNS = 20
_BATCHES = (1, 2, 7, 255, 256, 257)
_SAMPLES = {"quick": 24, "standard": 48, "deep": 96}
_COUNTS = {"quick": (2,), "standard": (2, 3, 4), "deep": (2, 3, 4, 8, 16)}


def _needs_free_batch(context: Context) -> str:
    if context.norm.name == "BatchNorm" and context.own_statistics:
        return "statistics are the batch's: its rows depend on one another"
    return ""


def _needs_threads(context: Context) -> str:
    name = context.implementation.framework
    return "" if has_threads(name) else f"{name} runs in one thread"


@register("run-to-run")
def run_to_run(context: Context) -> Iterator[Result]:
    """The same call gives the same bits, again and again.

    Statement
    ---------
    Twenty calls with the same values, each in memory of its own, return equal bits; with several threads, too.

    Why it matters
    --------------
    A race, an atomic sum or a read of uninitialised memory makes training runs unrepeatable and bugs unfindable.

    Holds for
    ---------
    Every norm and implementation.

    Tolerance
    ---------
    None: equal bits. Differing bits are an error where the contract promises ``deterministic``, as it does unless told otherwise;
    else a warning within the bound E of ``accuracy``, an error beyond.

    Known exceptions
    ----------------
    No exception is known.

    References
    ----------
    Kind K27 of the catalogue of faults: batch dependence, nondeterminism, races.
    """
    for width, rows in ((257, 16),) if context.profile == "quick" else ((257, 16), (1024, 64)):
        if not context.can_take(width):
            continue
        shape = context.shape(rows, width)
        for count in (1, 4) if has_threads(context.implementation.framework) else (1,):
            yield from guarded(context, "run-to-run", _repeated, shape, count, shape=shape)


def _repeated(context: Context, shape: tuple[int, ...], count: int) -> Result:
    case = case_from(context, mixed(context, shape))
    promised = context.implementation.contract.deterministic
    with threads(context, count):
        first = again = context.run(case)
        for _ in range(RUNS - 1):
            again = context.run(case)
            if not same_bits(again, first).all():
                break
        why = "in an earlier run" + (f" with {count} threads" if count > 1 else "")
        result = equal(context, "run-to-run", case, again, first, why, promised=promised)
        return replace(result, witness=_again(context, case, again, first, count)) if result.outcome.bad else result


def _again(context: Context, case: Case, again: Array, first: Array, count: int) -> Witness | None:
    """Twenty calls, and one element of what each of them returns."""
    if not writable(case.inputs):
        return None
    row, element = (int(i) for i in np.argwhere(~same_bits(again, first))[0])
    script = Script(context.implementation).add("found = set()")
    if count > 1 and context.implementation.framework == "torch":
        script.add(f"torch.set_num_threads({count})")
    place = ", ".join(map(str, place_of(case, (row, element))))
    got = script.framework.snippet_value(f"(({{to}}[0] if isinstance({{to}}, tuple) else {{to}})[{place}])")
    way = (f"for _ in range({RUNS}):", "    {to} = {function}({passed})", f"    found.add(float({got}).hex())")
    script.arrays(case.inputs).call(case.inputs, way).add("print(found)", "assert len(found) == 1")
    return Witness(script.text, "twenty calls")


@register("batch-invariance", applies=_needs_free_batch, sweeps=True)
def batch_invariance(context: Context) -> Iterator[Result]:
    """A sample gives the same bits alone and in any batch, at any place in it.

    Statement
    ---------
    The output for one sample is the same, bit for bit, in batches of 1, 2, 7, 255, 256 and 257 samples and at every position.

    Why it matters
    --------------
    Where it fails, the answer to a request depends on what other requests arrive with it: greedy decoding flips tokens, and
    training and inference of the same policy disagree.

    Holds for
    ---------
    Every norm but BatchNorm in training, whose statistics are the batch's.

    Tolerance
    ---------
    None: equal bits. Differing bits within the bound E of ``accuracy`` are a warning: sound kernels choose their summation order
    by the size of the batch. They are an error beyond E, or where the contract promises ``batch_invariant``.

    Known exceptions
    ----------------
    No exception is known.

    References
    ----------
    vllm-project/vllm 48391 and 48271, sgl-project/sglang 28787, tensorflow/addons 2745 (kind K27 of the catalogue of faults).
    """
    for width in (257,) if context.profile == "quick" else (33, 1024):
        if context.can_take(width):
            shape = context.shape(8, width)
            yield from guarded(context, "batch-invariance", _in_batches, shape, shape=shape)


def _in_batches(context: Context, shape: tuple[int, ...]) -> Result | None:
    if len(shape) < 2 or (context.norm.fold(shape, context.implementation.channel_axis).order[0] != 0 and context.own_statistics):
        return None
    count = _SAMPLES[context.profile]
    samples = mixed(context, (count, *shape[1:]))
    given: dict[str, Any] = _statistics(context, samples)
    alone = np.concatenate([_unfolded(context, case_from(context, samples[i : i + 1], **given)) for i in range(count)])
    result = None
    for batch, shift in itertools.product(_BATCHES, (0, 5)):
        taken = (np.arange(batch) + shift) % count
        case = case_from(context, samples[taken], **given)
        expected = case.fold.fold(alone[taken])
        result = equal(
            context,
            "batch-invariance",
            case,
            context.run(case),
            expected,
            f"for the sample alone: it stands in a batch of {batch}",
            promised=context.implementation.contract.batch_invariant,
        )
        if result.outcome is not Outcome.PASSED:
            return result
    return result


def _statistics(context: Context, x: Array) -> dict[str, Any]:
    """One and the same given statistics for every batch."""
    inputs = case_from(context, x).inputs
    return {"running_mean": inputs.running_mean, "running_var": inputs.running_var}


def _unfolded(context: Context, case: Case) -> Array:
    """One call's output in its own shape."""
    return case.fold.unfold(context.run(case))


@register("thread-invariance", applies=_needs_threads)
def thread_invariance(context: Context) -> Iterator[Result]:
    """The number of threads changes no bit.

    Statement
    ---------
    The output with 2, 3, 4 and more threads inside one operation equals that with one thread bit for bit, for many short rows and
    for few long ones, whose number no such count divides.

    Why it matters
    --------------
    A result that depends on the number of cores cannot be reproduced on another machine, nor under another load limit.

    Holds for
    ---------
    Frameworks whose number of threads can be set.

    Tolerance
    ---------
    None: equal bits. Differing bits within the bound E of ``accuracy`` are a warning, since a sum split over threads is sound;
    beyond E they are an error.

    Known exceptions
    ----------------
    None. The number of threads is put back afterwards.

    References
    ----------
    Kind K27 of the catalogue of faults.
    """
    shapes = ((7, 48), (7, 8193)) if context.profile == "quick" else ((7, 48), (7, 8193), (513, 129), (2, 65537))
    for rows, width in shapes:
        try:
            shape = context.shape(rows, width)
        except SkipCaseError:
            continue
        yield from guarded(context, "thread-invariance", _threaded, shape, shape=shape)


def _threaded(context: Context, shape: tuple[int, ...]) -> Result | None:
    case = case_from(context, mixed(context, shape))
    with threads(context, 1):
        single = context.run(case)
    result = None
    for wanted in _COUNTS[context.profile]:
        with threads(context, wanted) as count:
            output = context.run(case)
        result = equal(context, "thread-invariance", case, output, single, f"with one thread: {count} were used")
        if result.outcome is Outcome.FAILED and context.implementation.framework == "torch":
            row, element = (int(i) for i in np.argwhere(~same_bits(output, single))[0])
            way = (f"torch.set_num_threads({count})", *PLAIN)
            found = shown(context.implementation, case, output, (row, element), float(single[row, element]), way=way)
            return replace(result, witness=found)
        if result.outcome is not Outcome.PASSED:
            return result
    return result


@register("layout-invariance")
def layout_invariance(context: Context) -> Iterator[Result]:
    """Where and how the input lies in memory changes no bit.

    Statement
    ---------
    The output for an input that is transposed, channels-last, strided, a slice of a larger array, expanded or one element away
    from the start of memory equals that for a contiguous copy bit for bit.

    Why it matters
    --------------
    The same model on the same data gives other bits after an innocent ``.contiguous()``.

    Holds for
    ---------
    Every implementation, in the layouts that it does not refuse.

    Tolerance
    ---------
    None: equal bits. Differing bits within the bound E of ``accuracy`` are a warning: another memory format may be another
    kernel.

    Known exceptions
    ----------------
    What is beyond E is the matter of ``memory-layout``, with the same inputs, and left out here.

    References
    ----------
    Kinds K18 and K27 of the catalogue of faults.
    """
    need_sound_base(context)
    for shape in some_shapes(context):
        for layout, case, output, copy in _in_layouts(context, shape):
            yield from guarded(context, "layout-invariance", _laid, case, output, copy, shape=shape, layout=layout)


def _in_layouts(context: Context, shape: tuple[int, ...]) -> Iterator[tuple[str, Case, Array, Array]]:
    plain: Array | None = None
    for case, output in layouts(context, mixed(context, shape)):
        layout = case.inputs.layout
        if plain is None:
            plain = output
        elif case.judge(output, pass_class(context)).worst_ratio > 1:
            continue
        elif layout == "expanded":
            yield layout, case, output, context.run(case_from(context, case.inputs.x))
        else:
            yield layout, case, output, plain


def _laid(context: Context, case: Case, output: Array, copy: Array) -> Result:
    return equal(context, "layout-invariance", case, output, copy, "for a contiguous copy")
