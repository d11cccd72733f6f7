"""Consistency: the same call made in other ways, each judged against the certified value and not against the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from normcheck.checks.base import Context, SkipCaseError, guarded, register
from normcheck.checks.batches import Batch, batch, evaluation_case, judged, some_shape
from normcheck.checks.cases import Case, make_case, numerics, with_statistics
from normcheck.checks.gradient_cases import GradientCase, gradient_case, pulled, slopes
from normcheck.checks.gradient_cases import held as gradient_held
from normcheck.checks.verdicts import held
from normcheck.checks.witness import pass_class
from normcheck.checks.workers import CUTS, Workers, split_text
from normcheck.formats import Array
from normcheck.implementations import CallError, Implementation, call, snippet
from normcheck.implementations.calls import Around
from normcheck.implementations.gradients import Gradients, differentiable
from normcheck.implementations.processes import Processes
from normcheck.implementations.snippets import PLAIN, Script
from normcheck.implementations.ways import TEXTS, compiled, exported, recorded, under_inference_mode, vmapped
from normcheck.results import Outcome, Result, Witness

_REGIMES = {
    "quick": ("standard", "sparse-deviation"),
    "standard": ("standard", "large-mean", "sparse-deviation", "outlier", "tiny"),
}


def _needs_torch(context: Context) -> str:
    return "" if context.implementation.framework == "torch" else f"no such way of calling {context.implementation.framework}"


def _needs_deep(context: Context) -> str:
    return _needs_torch(context) or ("" if context.profile == "deep" else "compiled in the profile deep only")


def _needs_variants(context: Context) -> str:
    return "" if context.implementation.variants else "no other forms are given: give variants="


def _needs_workers(context: Context) -> str:
    if context.implementation.workers is None:
        return "no split over workers is given: give workers="
    if isinstance(context.implementation.workers, Processes) and context.profile != "deep":
        return "process groups are started in the profile deep only"
    return "" if context.own_statistics else "statistics are given: nothing is pooled"


@register("inference-mode", applies=_needs_torch)
def inference_mode(context: Context) -> Iterator[Result]:
    """Under ``torch.inference_mode``, and with gradients recorded, the result is as right as without.

    Statement
    ---------
    y lies within the bound of ``accuracy`` where no graph is recorded and inference mode is on, and where x requires a
    gradient, as in training.

    Why it matters
    --------------
    Libraries switch to other kernels where no gradient is needed: that is what production runs and tests do not.

    Holds for
    ---------
    torch code.

    Tolerance
    ---------
    The bound of ``accuracy``. Bits may differ from those of another mode.

    Known exceptions
    ----------------
    Rows on which the ordinary call is wrong already are left out.

    References
    ----------
    Kind K28 of the catalogue of faults.
    """
    yield from _each(context, "inference-mode", _Way(under_inference_mode, ", inference_mode", TEXTS["inference_mode"]))
    if not differentiable(context.implementation):
        place = context.implementation.passes.index("x")
        yield from _each(
            context, "inference-mode", _Way(recorded(place), ", gradients recorded", TEXTS["recorded"], refusal=True)
        )


@register("vmap", applies=_needs_torch)
def vmap(context: Context) -> Iterator[Result]:
    """Under ``torch.vmap`` each slice is normalized by itself.

    Statement
    ---------
    vmap over a stack of 4*x, x and x backwards gives for x what a call on x gives, within the bound of ``accuracy``.

    Why it matters
    --------------
    Per-sample gradients and ensembles rely on it. A batching rule that folds the new dimension into the wrong one mixes samples.

    Holds for
    ---------
    torch code that vmap can transform.

    Tolerance
    ---------
    The bound of ``accuracy``.

    Known exceptions
    ----------------
    Code that refuses, such as a BatchNorm that writes statistics in place, is skipped with what it raised.

    References
    ----------
    Kinds K24 and K28 of the catalogue of faults: pytorch/functorch#534.
    """
    yield from _each(context, "vmap", _Way(vmapped, ", vmap", TEXTS["vmap"], refusal=True))


@register("other-forms", applies=_needs_variants)
def other_forms(context: Context) -> Iterator[Result]:
    """Every other form of the code is as right as the first.

    Statement
    ---------
    For each of ``variants``, such as a compiled or an exported graph of the same norm, y lies within the bound of ``accuracy``.

    Why it matters
    --------------
    A compiler may take another reduction, drop an attribute or leave a rounding out; two forms that are compared with each other
    do not tell which is wrong, or that both are.

    Holds for
    ---------
    Implementations with ``variants=``.

    Tolerance
    ---------
    The bound of ``accuracy`` for each form by itself.

    Known exceptions
    ----------------
    None known.

    References
    ----------
    Kind K28 of the catalogue of faults: pytorch/pytorch#143182.
    """
    for name, variant in context.implementation.variants.items():
        yield from _each(context, "other-forms", _Way(_instead(variant), f", {name}", PLAIN, instead=variant))


@register("compiled", applies=_needs_deep)
def compiled_call(context: Context) -> Iterator[Result]:
    """Compiled by ``torch.compile`` the result is as right as without.

    Statement
    ---------
    y of the compiled call lies within the bound of ``accuracy``.

    Why it matters
    --------------
    Decompositions take other reductions than eager kernels: over ten million elements one lost three digits.

    Holds for
    ---------
    torch code; in the profile ``deep``.

    Tolerance
    ---------
    The bound of ``accuracy``.

    Known exceptions
    ----------------
    Code that the compiler refuses is skipped with what it raised.

    References
    ----------
    Kind K28 of the catalogue of faults: pytorch/pytorch#143182, #168126.
    """
    yield from _each(context, "compiled", _Way(compiled, ", torch.compile", TEXTS["compiled"], refusal=True))


@register("exported", applies=_needs_deep)
def exported_call(context: Context) -> Iterator[Result]:
    """Exported by ``torch.export`` the result is as right as without.

    Statement
    ---------
    y of the exported program lies within the bound of ``accuracy``.

    Why it matters
    --------------
    The graph that is exported is what runs in production; attributes such as eps and momentum are lost on the way.

    Holds for
    ---------
    torch code; in the profile ``deep``.

    Tolerance
    ---------
    The bound of ``accuracy``.

    Known exceptions
    ----------------
    Code that cannot be exported is skipped with what it raised.

    References
    ----------
    Kind K28 of the catalogue of faults: pytorch/pytorch#18525.
    """
    yield from _each(context, "exported", _Way(exported, ", torch.export", None, refusal=True))


@register("worker-split", applies=_needs_workers)
def workersplit_text(context: Context) -> Iterator[Result]:
    """A batch spread over workers gives what the whole batch gives.

    Statement
    ---------
    Cut unevenly along the first axis (13, 1, 6 and the rest of the samples), the shards' outputs are those of the unsplit batch.
    So are the running statistics on every worker, and the gradients: dx of each shard, and dweight and dbias summed over workers.

    Why it matters
    --------------
    The mean of means is the mean only for equal shards, and the mean of variances never is the variance. A worker that keeps the
    gradient of its own samples, or averages where it should add, trains with another step size.

    Holds for
    ---------
    Implementations with ``workers=``: BatchNorm synchronized over workers, and norms over elements whose tokens are split.

    Tolerance
    ---------
    The bounds of ``accuracy``, ``running-update``, ``input-gradient`` and ``parameter-gradients`` for the unsplit batch. In 16
    bit each worker rounds its part of a gradient to storage before the parts are added, so that gradients are judged in float32.

    Known exceptions
    ----------------
    None known.

    References
    ----------
    Kinds K23 and K26: pytorch/pytorch#22192, #36382, NVIDIA/Megatron-LM#1446.
    """
    workers = Workers(context.implementation)
    joined = workers.joined()
    given = _given(context)
    yield from guarded(context, "worker-split", _forward, joined, given, regime="standard")
    for worker, found in enumerate(workers.statistics(context)):
        yield from guarded(context, "worker-split", _statistics, given, worker, found, joined, regime="standard")
    if context.x_format.p >= 24 and not differentiable(joined):
        yield from _gradients(replace(context, implementation=joined), given)


@dataclass(frozen=True, eq=False)
class _Way:
    """Another way of making a call.

    Attributes
    ----------
    around : makes it
    how : names it in messages
    text : how a snippet writes it; None where it cannot
    refusal : whether code may refuse it
    instead : what it calls in the place of the implementation's own callable
    """

    around: Around
    how: str
    text: Sequence[str] | None
    refusal: bool = False
    instead: Callable[..., Any] | None = None

    def code(self, own: Implementation) -> Implementation:
        """What a snippet calls."""
        if self.instead is None:
            return own
        return replace(own, call=self.instead, arguments=own.passes, make=None, module=None, source="")


def _each(context: Context, check: str, way: _Way) -> Iterator[Result]:
    for regime in _REGIMES.get(context.profile, _REGIMES["standard"]):
        results = list(guarded(context, check, _made, check, regime, way, regime=regime))
        yield from results
        if any(result.outcome is not Outcome.PASSED for result in results):
            # one regime that fails or is refused says it all
            return


def _made(context: Context, check: str, regime: str, way: _Way) -> Result:
    width = next((w for w in context.widths if w >= 64), context.widths[-1])
    case, code = context.case(regime, context.shape(8, width)), way.code(context.implementation)
    if case.judge(context.run(case), pass_class(context)).worst_ratio > 1:
        raise SkipCaseError("the ordinary call is wrong already: accuracy tells of it")
    form = (tuple(case.fold.shape), case.out_format.name)
    try:
        output = call(context.implementation, case.inputs, way.around)
    except CallError as error:
        if not way.refusal:
            error.snippet = "" if way.text is None else snippet(code, case.inputs, form=form, way=way.text)
            raise
        return context.result(check, Outcome.SKIPPED, f"refused: {error}", regime=regime)
    if (output.y.shape, output.dtype) != form:
        text = f"{output.dtype}{list(output.y.shape)} comes back, but should be {form[1]}{list(form[0])}"
        found = None if way.text is None else Witness(snippet(code, case.inputs, form=form, way=way.text), regime)
        return context.result(check, Outcome.FAILED, f"{text} [x: {context.dtype}{way.how}]", regime=regime, witness=found)
    return held(context, check, case, case.fold.fold(output.y), way.how, called=(code, case), way=way.text, regime=regime)


def _instead(variant: Callable[..., Any]) -> Around:
    return lambda function, passed: variant(*passed)


def _given(context: Context) -> Batch:
    """A batch of 24 samples or more; its statistics before the step are away from 0 and 1."""
    if context.norm.has_running:
        return batch(context, some_shape(context, 24))
    shape = context.shape(24, next((w for w in context.widths if w >= 16), context.widths[-1]))
    case = context.case("standard", shape)
    return Batch(case.inputs, case.rows, context.parameter_format)


def _case(context: Context, given: Batch) -> Case:
    if context.norm.has_running:
        return replace(evaluation_case(context, given.inputs), inputs=given.inputs)
    fold = context.norm.fold(given.inputs.x.shape, context.implementation.channel_axis)
    inputs = with_statistics(given.inputs, context.norm, fold, given.rows, taken=context.implementation.takes("running_mean"))
    return make_case(context.norm, numerics(context.implementation.contract), fold, given.rows, inputs)


def _forward(context: Context, joined: Implementation, given: Batch) -> Result:
    case = _case(context, given)
    output = call(joined, case.inputs)
    way, how = split_text(context.implementation), f", split at {CUTS}"
    return held(context, "worker-split", case, case.fold.fold(output.y), how, called=(joined, case), way=way, regime="standard")


def _statistics(context: Context, given: Batch, worker: int, found: tuple[Array, Array], joined: Implementation) -> Result:
    way = split_text(context.implementation)
    script = Script(joined).arrays(given.inputs).call(given.inputs, way) if way is not None else None
    places = {"running_mean": f"parts[1][{worker}]", "running_var": f"parts[2][{worker}]"}
    momentum = getattr(context.norm, "momentum", None)
    result = judged(context, "worker-split", given, found, momentum, script=script, places=places)
    return replace(result, message=f"worker {worker}: {result.message}" if result.message else "")


def _gradients(context: Context, given: Batch) -> Iterator[Result]:
    """dx, dweight and dbias of the joined call."""
    case = _case(context, given)
    gradient = gradient_case(context, case, slopes(context, case))
    try:
        found = pulled(context, gradient)
    except CallError as error:
        yield context.result("worker-split", Outcome.BROKEN, f"call raised {error}", regime="standard")
        return
    for name in gradient.differentiated:
        note = f"split at {CUTS}"
        yield from guarded(context, "worker-split", _held, gradient, name, found, note, regime="standard")


def _held(context: Context, gradient: GradientCase, name: str, found: Gradients, note: str) -> Result:
    output, way = gradient.rows_of(found, name), split_text(context.implementation)
    result = gradient_held(context, "worker-split", gradient, name, output, note, way or PLAIN, regime="standard")
    return replace(result, witness=None) if way is None else result
