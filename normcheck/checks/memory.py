"""Memory: results do not depend on where the input lies, and a call leaves alone what does not belong to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from normcheck.checks.base import Context, SkipCaseError, guarded, register
from normcheck.checks.cases import Case
from normcheck.checks.comparing import case_from, equal, finding, held, layouts, mixed, need_sound_base, same_bits, some_shapes
from normcheck.checks.geometry import shapes
from normcheck.checks.witness import claimed, pointed, writable
from normcheck.formats import Array
from normcheck.implementations import Inputs, LayoutError, frameworks, observe
from normcheck.implementations.snippets import Script
from normcheck.results import Outcome, Result, Witness

_FILLS = (float("nan"), 1.0, 0.0)
_COPIES = 8
# more rows than a block has, and more elements than a buffer for small inputs would
_MANY, _LARGE = (150, 40), (130, 257)
_TRIES = 10  # the allocator need not hand out the very blocks that were freed last


@register("memory-layout")
def memory_layout(context: Context) -> Iterator[Result]:
    """The values in an array count, not how they lie in memory.

    Statement
    ---------
    An input that is transposed, channels-last, every second element or row of a larger array, a slice out of its middle,
    expanded with stride 0, backwards, or one element away from the start of memory has the result of a contiguous copy, for few
    rows and for many. What lies between its elements is NaN.

    Why it matters
    --------------
    A kernel that assumes unit stride or ignores the storage offset reads its neighbours, and returns plausible numbers.

    Holds for
    ---------
    Every implementation. Layouts that it refuses by raising, and those that its framework has not, are left out.

    Tolerance
    ---------
    The bound E of ``accuracy``, which depends on the values alone.

    Known exceptions
    ----------------
    Differing bits within E are the matter of ``layout-invariance``.

    References
    ----------
    ModelTC/LightLLM 1467, microsoft/DirectML 588, torch-spyre 1781, NVIDIA/TransformerEngine 1017 (kind K18 of the catalogue of
    faults).
    """
    need_sound_base(context)
    for shape in (*some_shapes(context), *shapes(context, [_MANY])):
        for case, output in layouts(context, mixed(context, shape)):
            yield from guarded(context, "memory-layout", _held, case, output, shape=shape, layout=case.inputs.layout)


def _held(context: Context, case: Case, output: Array) -> Result:
    return held(context, "memory-layout", case, output)


@register("inputs-unchanged")
def inputs_unchanged(context: Context) -> Iterator[Result]:
    """A call changes nothing that it was given.

    Statement
    ---------
    After the call x, residual, weight, bias and, in evaluation, the running statistics hold the bits that they held before, for
    small inputs and for large ones. Only what the implementation declares in ``mutates`` may differ; running statistics only in
    training.

    Why it matters
    --------------
    ``x.float()`` is a copy in bfloat16 and x itself in float32: multiplying it in place destroys the residual stream, in one
    dtype only.

    Holds for
    ---------
    Every norm, in every dtype.

    Tolerance
    ---------
    None: equal bits.

    Known exceptions
    ----------------
    A module's own running statistics change in training.

    References
    ----------
    GeeeekExplorer/nano-vllm 170, sgl-project/sglang 28005, linkedin/Liger-Kernel 376 (kind K21 of the catalogue of faults).
    """
    for shape in (*some_shapes(context), *shapes(context, [_LARGE])):
        for layout in ("contiguous", "strided") if len(shape) == 2 else ("contiguous",):
            yield from guarded(context, "inputs-unchanged", _unchanged, shape, layout, shape=shape, layout=layout)


def _unchanged(context: Context, shape: tuple[int, ...], layout: str) -> Result:
    case = case_from(context, mixed(context, shape), layout=layout)
    inputs = case.inputs
    try:
        seen = observe(context.implementation, inputs)
    except LayoutError as error:
        raise SkipCaseError(str(error)) from None
    after = seen.after
    for name in after.keys() - _may_change(context, "running_mean" in seen.returned):
        before = np.asarray(getattr(inputs, name))
        changed = ~same_bits(after[name].reshape(before.shape), before)
        if changed.any():
            at = tuple(int(i) for i in np.argwhere(changed)[0])
            text = f"{name}{list(at)}={float(after[name][at])!r} after the call, but should be {float(before[at])!r} as before"
            found = pointed(context.implementation, inputs, name, at, float(after[name][at]), float(before[at]))
            return finding(context, "inputs-unchanged", case, Outcome.FAILED, text, found)
    return context.result("inputs-unchanged", Outcome.PASSED, shape=shape, layout=layout)


def _may_change(context: Context, returned: bool) -> set[str]:
    running = {"running_mean", "running_var"}
    allowed = set(context.implementation.mutates)
    # what returns no running statistics in training writes them, as torch's functions do
    if context.implementation.module is not None or not returned:
        allowed |= running
    return allowed if context.training else allowed - running


@register("output-aliasing")
def output_aliasing(context: Context) -> Iterator[Result]:
    """The output has memory of its own.

    Statement
    ---------
    y lies in the memory of no input, unless the implementation declares that it writes there, and a second call leaves the
    result of the first as it is, be it small or large.

    Why it matters
    --------------
    What is then done to y in place is done to x, or to the weights; and a buffer that every call uses again makes a list of
    outputs a list of copies of the last one.

    Holds for
    ---------
    Every norm and implementation.

    Tolerance
    ---------
    None. Shared memory is a warning as long as the values stay right; a first result that the second call has changed is an
    error.

    Known exceptions
    ----------------
    Inputs named in ``mutates``.

    References
    ----------
    GeeeekExplorer/nano-vllm 170, sgl-project/sglang 28005 (kind K21 of the catalogue of faults).
    """
    for shape in (*some_shapes(context), *shapes(context, [_LARGE])):
        yield from guarded(context, "output-aliasing", _apart, shape, shape=shape)


def _apart(context: Context, shape: tuple[int, ...]) -> Result:
    case = case_from(context, mixed(context, shape))
    first = observe(context.implementation, case.inputs)
    other = case_from(context, mixed(context, shape, salt=1)).inputs
    observe(context.implementation, other)
    now = first.reread()
    changed = int((~same_bits(now, first.output.y)).sum())
    if changed:
        found = _overwritten(context, case.inputs, other, first.output.y, now)
        text = f"{changed} of {case.rows.size} elements of y changed with a second call, but should be as the first left them"
        return finding(context, "output-aliasing", case, Outcome.FAILED, text, found)
    shared = sorted(set(first.shared) - set(context.implementation.mutates))
    if shared:
        text = f"y lies in the memory of {' and '.join(shared)}, but should have its own"
        return finding(context, "output-aliasing", case, Outcome.WARNED, text)
    return context.result("output-aliasing", Outcome.PASSED, shape=shape)


def _overwritten(context: Context, one: Inputs, other: Inputs, before: Array, now: Array) -> Witness:
    """Two calls, and an element of the first result that the second call has changed."""
    at = tuple(int(i) for i in np.argwhere(~same_bits(now, before))[0])
    due = float(before[at])
    script = Script(context.implementation).arrays(one).call(one).add("first = y").anew().arrays(other).call(other)
    script.element("first", at, due, claim=claimed(float(now[at]), due))
    return Witness(script.text, "two calls", None, float(now[at]).hex(), due.hex())


@register("poisoned-scratch")
def poisoned_scratch(context: Context) -> Iterator[Result]:
    """What fresh memory happens to hold has no influence.

    Statement
    ---------
    The output is the same, bit for bit, whether the blocks that the allocator hands out next hold NaN, ones or zeros.

    Why it matters
    --------------
    A buffer from ``empty`` that is added to instead of written to, or of which only a part is written, works as long as memory is
    fresh and zero, and fails in the second hour.

    Holds for
    ---------
    Every implementation whose scratch memory comes from an allocator that reuses freed blocks.

    Tolerance
    ---------
    None: equal bits. Uninitialised memory is no rounding, so that differing bits are an error.

    Known exceptions
    ----------------
    It cannot see scratch memory that comes from elsewhere: passing proves nothing there.

    References
    ----------
    Kinds K21 (uninitialised residual) and K27 of the catalogue of faults.
    """
    for shape in some_shapes(context):
        yield from guarded(context, "poisoned-scratch", _poisoned, shape, shape=shape)


def _poisoned(context: Context, shape: tuple[int, ...]) -> Result:
    case = case_from(context, mixed(context, shape))
    outputs = []
    for fill in _FILLS:
        _litter(context, case.inputs, case.fold.rows, fill)
        outputs.append(context.run(case))
    wrong = next((output for output in outputs if not same_bits(output, outputs[-1]).all()), outputs[0])
    why = "where freed memory holds zeros: it held others"
    result = equal(context, "poisoned-scratch", case, wrong, outputs[-1], why, promised=True)
    return result if result.outcome is Outcome.PASSED else replace(result, witness=_littered(context, case))


def _littered(context: Context, case: Case) -> Witness | None:
    """The call, over and over, after blocks of NaN have been freed and after blocks of zeros have."""
    if not writable(case.inputs):
        return None
    script = Script(context.implementation).arrays(case.inputs).add("def litter(fill):", "    blocks = []")
    for shape, dtype in _blocks(case.inputs, case.fold.rows):
        made = script.framework.snippet_array("block", dtype, case.inputs.device, "contiguous", len(shape))
        lines = (f"for _ in range({_COPIES}):", f"    block = np.full({shape}, fill)", f"    {made}", "    blocks.append(block)")
        script.add(*(f"    {line}" for line in lines))
    script.add("seen = set()", f"for fill in [np.nan, 0.0] * {_TRIES}:", "    litter(fill)")
    begin = len(script.lines)
    script.call(case.inputs).add("seen.add(str(y.tolist()))")
    script.lines[begin:] = [f"    {line}" for line in script.lines[begin:]]
    script.add('print(len(seen), "results of one call")', "assert len(seen) == 1")
    return Witness(script.text, "freed memory")


def _blocks(inputs: Inputs, rows: int) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Shapes and dtypes of the blocks that a norm would ask for."""
    return ((inputs.x.shape, inputs.dtype), (inputs.x.shape, "float32"), ((rows,), "float32"), (inputs.x.shape[1:], "float32"))


def _litter(context: Context, inputs: Inputs, rows: int, fill: float) -> None:
    """Allocate blocks of the sizes that a norm would ask for, fill them, and free them."""
    framework = frameworks()[context.implementation.framework]
    sizes = [size for size in _blocks(inputs, rows) for _ in range(_COPIES)]
    blocks = [framework.to_native(np.full(shape, fill), dtype, inputs.device) for shape, dtype in sizes]
    blocks.clear()
