"""Policy of dtypes: which dtype comes back, where casts stand, how precise an offset weight is."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from normcheck.checks.base import Context, describe, guarded, register
from normcheck.checks.cases import Case, make_case
from normcheck.checks.gradient_cases import GradientCase, gradient_case, passes, pulled, slopes
from normcheck.checks.gradient_cases import held as gradient_held
from normcheck.checks.gradients import with_residual
from normcheck.checks.verdicts import held, needs_sound_ordinary_rows, some_rows, standard_case
from normcheck.checks.witness import beyond, pass_class, witness
from normcheck.formats import FORMATS
from normcheck.implementations import CallError, Gradients, call, differentiable, snippet
from normcheck.implementations.snippets import PLAIN, Script
from normcheck.implementations.ways import TEXTS, under_autocast
from normcheck.results import Outcome, Result, Witness

_WEIGHTS = ("float32", "float16", "bfloat16")
_OFFSET_WEIGHTS = (15.8125, 0.05, 0.003, -0.998, 3.0e-4, 7.40625, -0.05, 0.7)


def _needs_weight(context: Context) -> str:
    return "" if context.implementation.takes("weight") else "no weight can be given"


def _needs_autograd(context: Context) -> str:
    given = callable(context.implementation.grad)
    return "the backward pass is a function" if given else differentiable(context.implementation)


def _needs_autocast(context: Context) -> str:
    return "" if context.implementation.framework == "torch" else "no autocast outside torch"


def _needs_narrow_x(context: Context) -> str:
    if context.compute.p <= context.x_format.p:
        return "one rounding and two cannot be told apart where x has the compute dtype"
    return _needs_weight(context)


def _needs_offset(context: Context) -> str:
    return _needs_weight(context) if context.norm.weight_offset else "the weight has no offset"


@register("mixed-dtypes", applies=_needs_weight)
def mixed_dtypes(context: Context) -> Iterator[Result]:
    """Weights of another dtype give the promised output dtype, and right values.

    Statement
    ---------
    For every pair of dtypes of x and weight that the code accepts, y has the dtype that ``contract.output`` says: that of x, of
    both promoted, or the one named. The weights enter as the numbers they are. A pair that is refused is no fault. Where the
    framework differentiates, the gradients of float32 parameters beside a 16-bit x are float32, and right to that precision.

    Why it matters
    --------------
    float32 weights under 16-bit activations are the usual mixed precision. Code that multiplies in the wrong dtype returns
    float32 there, and the residual stream doubles in size, or the next matrix product raises. A gradient that has gone through 16
    bits on its way to a float32 weight makes the wider weight useless, and nothing else shows it.

    Holds for
    ---------
    Every norm with a weight; weights and running statistics in float32, float16 and bfloat16.

    Tolerance
    ---------
    None for the dtype. Values: the bound of ``accuracy`` with those weights, one rounding to the output dtype (or the inner cast
    that the contract says). Weights in the dtype of x, where others are declared, and float16 with bfloat16 under an inner cast
    are held to the dtype alone; the latter may come back in either or in float32. An inner cast may be to the dtype of x or of
    the weight; with one gradients are left out, and so are those that are wrong with 16-bit parameters as well. Others have the
    bounds of ``input-gradient`` and ``parameter-gradients``.

    Known exceptions
    ----------------
    Hugging Face's Llama and T5 norms promote by design: ``output="promote"``.

    References
    ----------
    Kind K14 of the catalogue of faults: huggingface/transformers#30236, NVIDIA/TransformerEngine#371.
    """
    own = context.implementation.weight_dtype or context.dtype
    # parameters narrower than x are a mistake of the caller's, unless the code says that it takes them
    wide = [d for d in _WEIGHTS if FORMATS[d].p >= context.x_format.p or d in context.implementation.dtypes]
    for dtype in (d for d in dict.fromkeys((*wide, context.dtype)) if d != own):
        yield from guarded(context, "mixed-dtypes", _mixed, dtype, regime="standard")
    if context.x_format.p < 24 and own == context.dtype and not _needs_autograd(context):
        run = functools.cache(functools.partial(_backward, context))
        for name in ("x", "weight", "bias"):
            yield from guarded(context, "mixed-dtypes", _learned, run, name, regime="standard")


@register("autocast", applies=_needs_autocast)
def autocast(context: Context) -> Iterator[Result]:
    """Automatic mixed precision takes no precision from a norm.

    Statement
    ---------
    Under ``torch.autocast`` to bfloat16 the output is at least as wide as without it, and right to the precision of its dtype.

    Why it matters
    --------------
    Norms are on autocast's list of what needs float32. One that is composed of operations off that list silently computes its
    statistics, or returns its result, in bfloat16.

    Holds for
    ---------
    torch code.

    Tolerance
    ---------
    The bound of ``accuracy`` at the dtype that comes back.

    Known exceptions
    ----------------
    An output in float32 for 16-bit input is autocast's policy for norms, and passes.

    References
    ----------
    torch.amp, "ops that autocast to float32". Kind K14: pytorch/pytorch#167308, NVIDIA/TransformerEngine#371.
    """
    yield from guarded(context, "autocast", _autocast, regime="standard")


@register("cast-order", applies=_needs_narrow_x)
def cast_order(context: Context) -> Iterator[Result]:
    """The result is rounded where the contract says: once, or before the weight.

    Statement
    ---------
    Either y = RN(w*n + b), or y = RN(w*RN(n) + b) with the inner rounding to the dtype of x. The two differ in a quarter of
    bfloat16 outputs, so that a few hundred elements tell which one a code follows; it must be the claimed one.

    Why it matters
    --------------
    Checkpoints are trained with one of them. Loading a Llama-like model into a Gemma-like norm moves a quarter of all
    activations by one unit in every layer.

    Holds for
    ---------
    16-bit input with weights, arithmetic in float32.

    Tolerance
    ---------
    The sets of ``accuracy`` for both orders, which are single values on all but 0.4 % of elements. Where neither order fits,
    ``accuracy`` says what is wrong, and this check is skipped.

    Known exceptions
    ----------------
    None known.

    References
    ----------
    Kind K13 of the catalogue of faults: huggingface/transformers#29402, linkedin/Liger-Kernel#89.
    """
    yield from guarded(context, "cast-order", _ordered, regime="standard")


@register("offset-weight-precision", applies=_needs_offset)
def offset_weight_precision(context: Context) -> Iterator[Result]:
    """1 + w is formed in the compute dtype.

    Statement
    ---------
    With weights such as 15.8125, 0.05 and 0.003 the scale is 1 + w with an error of the compute dtype, not of the weight's.

    Why it matters
    --------------
    In bfloat16 1 + 0.003 is 1: a weight that is stored as a small deviation from 1, to be precise, loses all of it.

    Holds for
    ---------
    Norms with ``weight_offset``.

    Tolerance
    ---------
    The bound of ``accuracy``, which has u of the compute dtype for the addition.

    Known exceptions
    ----------------
    None known.

    References
    ----------
    Kind K13 of the catalogue of faults: vllm-project/vllm#29810.
    """
    yield from guarded(context, "offset-weight-precision", _offset, regime="standard")


def _mixed(context: Context, dtype: str) -> Result | None:
    case = standard_case(context, context.implementation.contract, dtype)
    try:
        output = call(context.implementation, case.inputs)
    except CallError:
        return None
    own = dtype == context.dtype
    if {dtype, context.dtype} == {"float16", "bfloat16"}:
        # which of the two 16-bit formats wins is nobody's promise, and what the inner cast rounds to neither
        allowed = {dtype, context.dtype, "float32"}
        if output.dtype not in allowed:
            text = f"dtype={output.dtype}, but should be one of {', '.join(sorted(allowed))} [{describe(case)}]"
            shown = _of_dtype(context, case, sorted(allowed))
            return context.result("mixed-dtypes", Outcome.FAILED, text, shape=output.y.shape, regime="standard", witness=shown)
        own = case.inner_cast or output.dtype != case.out_format.name
    elif output.dtype != case.out_format.name:
        text = f"dtype={output.dtype}, but should be {case.out_format.name} [{describe(case)}]"
        form = tuple(case.fold.shape), case.out_format.name
        shown = Witness(snippet(context.implementation, case.inputs, form=form), "standard")
        return context.result("mixed-dtypes", Outcome.FAILED, text, shape=output.y.shape, regime="standard", witness=shown)
    if own:
        return context.result("mixed-dtypes", Outcome.PASSED, shape=output.y.shape, regime="standard")
    result = held(context, "mixed-dtypes", case, case.fold.fold(output.y), regime="standard")
    if result.outcome is Outcome.FAILED and case.inner_cast:
        # the inner cast may be to the weight's dtype, as in T5; in float32 it then is none
        once = standard_case(context, replace(context.implementation.contract, cast="once"), dtype)
        return held(context, "mixed-dtypes", once, once.fold.fold(output.y), regime="standard")
    return result


_Ran = tuple[GradientCase, Gradients]


def _backward(context: Context) -> tuple[_Ran, _Ran] | None:
    """The backward pass with float32 parameters, and with those of x's dtype; None where the first has no sound output."""
    ran = []
    for weight_dtype in ("float32", None):
        beside = replace(context, implementation=replace(context.implementation, weight_dtype=weight_dtype))
        case = with_residual(beside, beside.case("standard", some_rows(context)))
        try:
            output = call(beside.implementation, case.inputs)
        except CallError:
            return None
        if case.inner_cast or output.dtype != case.out_format.name:
            return None
        if case.judge(case.fold.fold(output.y), pass_class(context)).worst_ratio > 1:
            return None
        second = slopes(beside, case, 1) if context.implementation.residual else None
        gradient = gradient_case(beside, case, slopes(beside, case), second)
        ran.append((gradient, pulled(beside, gradient)))
    return ran[0], ran[1]


def _learned(context: Context, run: Callable[[], tuple[_Ran, _Ran] | None], name: str) -> Result | None:
    ran = run()
    if ran is None or name not in ran[0][0].differentiated:
        return None
    (gradient, found), (usual, base) = ran
    output = gradient.rows_of(found, name)
    if passes(context, gradient, name, output) or not passes(context, usual, name, usual.rows_of(base, name)):
        return context.result("mixed-dtypes", Outcome.PASSED, shape=tuple(gradient.case.fold.shape), regime="standard")
    return gradient_held(context, "mixed-dtypes", gradient, name, output, "with float32 parameters", regime="standard")


def _autocast(context: Context) -> Result | None:
    needs_sound_ordinary_rows(context)
    contract = context.implementation.contract
    plain = standard_case(context, contract)
    try:
        output = call(context.implementation, plain.inputs, under_autocast)
    except CallError as error:
        return context.result("autocast", Outcome.SKIPPED, f"refused under autocast: {error}", regime="standard")
    known = FORMATS.get(output.dtype)
    if known is None or known.p < plain.out_format.p:
        text = f"dtype={output.dtype} under autocast, but should be {plain.out_format.name} or wider [{describe(plain)}]"
        wider = [name for name, fmt in FORMATS.items() if fmt.p >= plain.out_format.p]
        shown = _of_dtype(context, plain, wider, TEXTS["autocast"])
        return context.result("autocast", Outcome.FAILED, text, shape=output.y.shape, regime="standard", witness=shown)
    case = standard_case(context, replace(contract, output=output.dtype))
    how, way = ", autocast to bfloat16", TEXTS["autocast"]
    return held(context, "autocast", case, case.fold.fold(output.y), how, way=way, regime="standard")


def _of_dtype(context: Context, case: Case, names: Sequence[str], way: Sequence[str] = PLAIN) -> Witness:
    """The call, whose result has none of these dtypes."""
    script = Script(context.implementation).arrays(case.inputs).call(case.inputs, way).dtype_among(names)
    return Witness(script.text, "standard")


def _ordered(context: Context) -> Result | None:
    contract = context.implementation.contract
    other = "once" if contract.cast == "before_weight" else "before_weight"
    claimed, instead = standard_case(context, contract), standard_case(context, replace(contract, cast=cast(Any, other)))
    output = context.run(claimed)
    fits = [case.judge(output, pass_class(context)).worst_ratio <= 1 for case in (claimed, instead)]
    where: dict[str, Any] = {"regime": "standard", "shape": tuple(claimed.fold.shape)}
    if fits[0]:
        return context.result("cast-order", Outcome.PASSED, measures={f"fits_{other}": float(fits[1])}, **where)
    if not fits[1]:
        return context.result("cast-order", Outcome.SKIPPED, "neither order fits: accuracy says why", **where)
    text = f"cast={other!r}, but should be {contract.cast!r} [{describe(claimed)}]"
    name = pass_class(context)
    shown = witness(context, claimed, output, lambda case, out: beyond(case, out, name))
    return context.result("cast-order", Outcome.FAILED, text, witness=shown, **where)


def _offset(context: Context) -> Result | None:
    shape = some_rows(context)
    fold = context.norm.fold(shape, context.implementation.channel_axis)
    rng = np.random.default_rng(context.seed)
    rows = context.x_format.round(rng.standard_normal((fold.rows, fold.width)))
    case = context.case_of(rows, shape)
    size = context.norm.parameter_size(fold)
    given = context.parameter_format.round(np.resize(_OFFSET_WEIGHTS, size) * np.resize([1.0, 1.0, 0.7], size))
    case = make_case(case.norm, case.contract, case.fold, case.rows, replace(case.inputs, weight=given))
    return held(context, "offset-weight-precision", case, context.run(case), regime="standard")
