"""Evaluation and the state of modules: given statistics, fresh and stored state, switches, recomputation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np

from normcheck.checks.base import Context, check_form, guarded, register
from normcheck.checks.batches import (
    NAMES,
    WIDTH,
    batch,
    call_text,
    evaluation_case,
    looked_at,
    needs_both_modes,
    needs_evaluation,
    needs_training,
    outcome,
    some_shape,
)
from normcheck.checks.witness import beyond, witness
from normcheck.formats import Array
from normcheck.implementations import CallError, Session, call, observe
from normcheck.implementations.snippets import Script
from normcheck.implementations.ways import TEXTS, checkpointed
from normcheck.results import Outcome, Result, Severity

# 0 and tiny variances show eps and underflow, large ones the range of 16 bits
_VARIANCES = (1.0, 1e-8, 1e-5, 0.0, 7e4, 1e6, 1e-12, 1e12)


def _needs_module(context: Context) -> str:
    if context.implementation.module is None:
        return "a function has no state: give module="
    return needs_both_modes(context)


def _needs_plain_module(context: Context) -> str:
    if context.norm.has_running:
        return "training and evaluation differ by design"
    return "" if context.implementation.module is not None else "a function has no mode: give module="


def _needs_recomputation(context: Context) -> str:
    implementation = context.implementation
    if implementation.framework != "torch" or implementation.grad != "autograd":
        return "no autograd of torch"
    return needs_training(context) or ("made in the profiles standard and deep" if context.profile == "quick" else "")


@register("evaluation-statistics", applies=needs_evaluation)
def evaluation_statistics(context: Context) -> Iterator[Result]:
    """Evaluation is right for running variances from 0 to 1e12.

    Statement
    ---------
    With given statistics y = w*(x - running_mean)/sqrt(running_var + eps) + b, a line per channel: frozen, folded into scale
    and shift, and evaluated are one and the same. The channels of one call have the variances 1, 1e-8, 1e-5, 0, 7e4, 1e6, 1e-12
    and 1e12, as far as their format holds them, and x near the mean in units of the deviation.

    Why it matters
    --------------
    A variance that passes through 16 bits is infinite from 65520 on and zero below 3e-8, which switches a channel off or blows it
    up. A frozen norm without eps differs where the variance is near eps.

    Holds for
    ---------
    BatchNorm and tracked InstanceNorm in evaluation.

    Tolerance
    ---------
    The bound of ``accuracy`` for given statistics.

    Known exceptions
    ----------------
    None known.

    References
    ----------
    Kinds K06, K15 and K33: pytorch/vision#2169, apple/coreai-torch#54.
    """
    yield from guarded(context, "evaluation-statistics", _evaluated, regime="standard")


@register("fresh-evaluation", applies=_needs_module)
def fresh_evaluation(context: Context) -> Iterator[Result]:
    """A new module in evaluation is nearly the identity.

    Statement
    ---------
    Before any training step the running mean is 0 and the running variance 1, so that y = w*x/sqrt(1 + eps) + b.

    Why it matters
    --------------
    A variance that starts at 0 multiplies by 316 until enough steps have been made, and one that starts at eps by more.

    Holds for
    ---------
    Modules with running statistics.

    Tolerance
    ---------
    The bound of ``accuracy`` for given statistics 0 and 1.

    Known exceptions
    ----------------
    None known.

    References
    ----------
    Kind K10 of the catalogue of faults; torch.nn.BatchNorm1d: "running_mean and running_var are initialized to 0 and 1".
    """
    yield from guarded(context, "fresh-evaluation", _fresh, regime="standard")


@register("state-round-trip", applies=_needs_module)
def state_round_trip(context: Context) -> Iterator[Result]:
    """A module's state, stored and loaded, gives the same module.

    Statement
    ---------
    After two training steps the state dictionary, loaded into a new module, gives equal bits in evaluation, and equal statistics
    after one more training step of both.

    Why it matters
    --------------
    A buffer that is no part of the state is lost with the first checkpoint, and nothing says so.

    Holds for
    ---------
    Modules with running statistics, ``state_dict`` and ``load_state_dict``.

    Tolerance
    ---------
    None: bits.

    Known exceptions
    ----------------
    None known.

    References
    ----------
    Kind K10 of the catalogue of faults.
    """
    yield from guarded(context, "state-round-trip", _restored, regime="standard")


@register("tracking-switch", applies=_needs_module)
def tracking_switch(context: Context) -> Iterator[Result]:
    """Tracking that is switched off leaves the running statistics alone.

    Statement
    ---------
    After ``module.track_running_stats = False`` a training step normalizes with the batch's own statistics, and keeps every bit
    of the running ones.

    Why it matters
    --------------
    Whoever freezes statistics that way, for a second network in one model or a pass over other data, believes them untouched.

    Holds for
    ---------
    Modules with running statistics that have the flag.

    Tolerance
    ---------
    None for the statistics; the output has the bits that it has with tracking on.

    Known exceptions
    ----------------
    None known.

    References
    ----------
    Kind K10 of the catalogue of faults: pytorch/pytorch#20967, #37823.
    """
    yield from guarded(context, "tracking-switch", _switched, regime="standard")


@register("mode-independence", applies=_needs_plain_module)
def mode_independence(context: Context) -> Iterator[Result]:
    """A norm without running statistics is the same in training and in evaluation.

    Statement
    ---------
    Equal inputs give equal bits in both modes, and in evaluation after training steps on other data.

    Why it matters
    --------------
    LayerNorm, RMSNorm, GroupNorm and untracked InstanceNorm remember nothing. One that does evaluates another function than was
    trained.

    Holds for
    ---------
    Modules of norms without running statistics.

    Tolerance
    ---------
    None: bits.

    Known exceptions
    ----------------
    Tracked InstanceNorm evaluates with running statistics by design: declare it so.

    References
    ----------
    Kind K33 of the catalogue of faults: pytorch/pytorch#58843, #4348.
    """
    yield from guarded(context, "mode-independence", _mode_free, regime="standard")


@register("recomputed-update", applies=_needs_recomputation)
def recomputed_update(context: Context) -> Iterator[Result]:
    """Activation checkpointing updates the running statistics once.

    Statement
    ---------
    One training step whose forward pass is computed again for the backward pass moves the running statistics by one update.

    Why it matters
    --------------
    Values and gradients stay right, and the effective momentum becomes 1 - (1-m)**2: evaluation drifts from what was trained.

    Holds for
    ---------
    torch code with autograd that writes its statistics.

    Tolerance
    ---------
    None: the bits of a plain step.

    Known exceptions
    ----------------
    Code that updates in its forward pass cannot know that it is made again: a warning. Code that raises is skipped.

    References
    ----------
    Kind K10 of the catalogue of faults: pytorch/pytorch#96136, facebookresearch/fairscale#1035.
    """
    yield from guarded(context, "recomputed-update", _recomputed, regime="standard")


def _evaluated(context: Context) -> Result | None:
    norm, axis, fmt = context.norm, context.implementation.channel_axis, context.parameter_format
    values = [v for v in _VARIANCES if v <= fmt.max / 4]
    rows = len(values) * (1 if norm.name == "BatchNorm" else 2)
    shapes = (norm.shape_of(rows, WIDTH, rank, axis) for rank in (None, 2, 3, 4) if not (rank == 2 and norm.name != "BatchNorm"))
    shape = next((s for s in shapes if context.implementation.ranks is None or len(s) in context.implementation.ranks), None)
    if shape is None:
        return None
    inputs = batch(context, shape, training=False).inputs
    fold = norm.fold(shape, axis)
    variance = fmt.round(np.resize(values, fold.period))
    deviation = np.clip(np.sqrt(variance + norm.eps), 2.0**-12, context.x_format.max / 64)
    mean = fmt.round(np.resize([0.0, 3.0, -100.0], fold.period) * np.minimum(deviation, 64.0))
    noise = np.random.default_rng(context.seed).standard_normal((fold.rows, fold.width))
    x = context.x_format.round(np.resize(mean, fold.rows)[:, None] + noise * np.resize(deviation, fold.rows)[:, None])
    case = evaluation_case(context, replace(inputs, x=fold.unfold(x), running_mean=mean, running_var=variance))
    output = call(context.implementation, case.inputs)
    check_form(output, case, context.implementation)
    result = outcome(context, "evaluation-statistics", case, output.y)
    if result.outcome is Outcome.FAILED:
        shown = witness(context, case, case.fold.fold(output.y), lambda smaller, out: beyond(smaller, out, "sequential"))
        result = replace(result, witness=shown)
    return result


def _fresh(context: Context) -> Result:
    if context.implementation.captured is not None:
        return context.result("fresh-evaluation", Outcome.SKIPPED, "a layer of a model is no new module")
    given = batch(context, some_shape(context), training=False)
    channels = len(cast(Array, given.inputs.running_mean))
    initial: dict[str, Any] = {"running_mean": np.zeros(channels), "running_var": np.ones(channels)}
    case = evaluation_case(context, replace(given.inputs, **initial))
    inputs = replace(case.inputs, running_mean=None, running_var=None)
    output = call(context.implementation, inputs)
    check_form(output, case, context.implementation)
    script = Script(context.implementation).arrays(inputs).call(inputs)
    return outcome(context, "fresh-evaluation", case, output.y, script)


def _restored(context: Context) -> Result:
    shape = some_shape(context)
    where: dict[str, Any] = {"regime": "standard", "shape": shape}
    one, two = Session(context.implementation), Session(context.implementation)
    without: dict[str, Any] = {"running_mean": None, "running_var": None}
    inputs = [replace(batch(context, shape, number=n).inputs, **without) for n in range(3)]
    for given in inputs[:2]:
        one.step(given)
    if not hasattr(one.module, "state_dict"):
        return context.result("state-round-trip", Outcome.SKIPPED, "the module has no state_dict", **where)
    # parameters are put into the new module by a first evaluation
    two.step(replace(inputs[0], training=False))
    two.module.load_state_dict(one.module.state_dict())
    for number, given in enumerate((replace(inputs[2], training=False), inputs[2])):
        outputs = [session.step(given) for session in (one, two)]
        for name in ("y", *NAMES):
            first, second = (getattr(output, name) for output in outputs)
            if first is not None and not np.array_equal(first, second, equal_nan=True):
                when = "after another training step" if number else "in evaluation"
                at = tuple(int(i) for i in np.argwhere(first != second)[0])
                text = (
                    f"{name}{list(at)}={float(second[at])!r} {when} from the loaded state, but should be {float(first[at])!r} "
                    f"[x: {given.dtype}{list(shape)}]"
                )
                script = _reloaded(one, two, number)
                found = looked_at(script, script.of(name), at, float(second[at]), float(first[at]))
                return context.result("state-round-trip", Outcome.FAILED, text, witness=found, **where)
    return context.result("state-round-trip", Outcome.PASSED, **where)


def _reloaded(one: Session, two: Session, further: int) -> Script:
    """Two training steps of one module, whose state another one loads, and what that did then."""
    script = one.steps(2).add("state = module.state_dict()").anew()
    two.steps(1, script).add("module.load_state_dict(state)")
    return two.steps(2 + further, script, start=1)


def _switched(context: Context) -> Result:
    shape = some_shape(context)
    where: dict[str, Any] = {"regime": "standard", "shape": shape}
    given = batch(context, shape)
    session = Session(context.implementation, given.inputs.running_mean, given.inputs.running_var)
    plain = session.step(given.inputs)
    if not hasattr(session.module, "track_running_stats"):
        return context.result("tracking-switch", Outcome.SKIPPED, "the module has no flag track_running_stats", **where)
    session.module.track_running_stats = False
    session.note("module.track_running_stats = False")
    before = (session.running_mean, session.running_var)
    output = session.step(given.inputs)
    for name, old, new in zip(NAMES, before, (session.running_mean, session.running_var), strict=True):
        if not np.array_equal(cast(Array, old), cast(Array, new), equal_nan=True):
            at = int((cast(Array, old) != new).argmax())
            text = (
                f"{name}[{at}]={float(cast(Array, new)[at])!r} with track_running_stats=False, but should still be "
                f"{float(cast(Array, old)[at])!r} [{call_text(given, None)}]"
            )
            found = looked_at(session.script, f"module.{name}", (at,), float(cast(Array, new)[at]), float(cast(Array, old)[at]))
            return context.result("tracking-switch", Outcome.FAILED, text, witness=found, **where)
    if not np.array_equal(plain.y, output.y, equal_nan=True):
        text = f"y differs with track_running_stats=False, but should be normalized by the batch [{call_text(given, None)}]"
        place = tuple(int(i) for i in np.argwhere(plain.y != output.y)[0])
        found = looked_at(session.script, "y", place, float(output.y[place]), float(plain.y[place]))
        return context.result("tracking-switch", Outcome.FAILED, text, witness=found, **where)
    return context.result("tracking-switch", Outcome.PASSED, **where)


def _mode_free(context: Context) -> Result:
    shape = context.shape(4, next((w for w in context.widths if w >= 16), context.widths[-1]))
    where: dict[str, Any] = {"regime": "standard", "shape": shape}
    inputs = context.case("standard", shape).inputs
    session = Session(context.implementation)
    trained = session.step(inputs)
    session.step(replace(inputs, x=context.x_format.round(-3 * inputs.x)))
    evaluated = session.step(replace(inputs, training=False))
    if np.array_equal(trained.y, evaluated.y, equal_nan=True):
        return context.result("mode-independence", Outcome.PASSED, **where)
    at = tuple(int(i) for i in np.argwhere(trained.y != evaluated.y)[0])
    text = (
        f"y{list(at)}={float(evaluated.y[at])!r} in evaluation, but should be {float(trained.y[at])!r} as in training "
        f"[x: {inputs.dtype}{list(shape)}]"
    )
    found = looked_at(session.script, "y", at, float(evaluated.y[at]), float(trained.y[at]))
    return context.result("mode-independence", Outcome.FAILED, text, witness=found, **where)


def _recomputed(context: Context) -> Result:
    given = batch(context, some_shape(context))
    where: dict[str, Any] = {"regime": "standard", "shape": given.inputs.x.shape}
    if "running_mean" in observe(context.implementation, given.inputs).returned:
        return context.result("recomputed-update", Outcome.SKIPPED, "new statistics are returned, not written", **where)
    start = (given.inputs.running_mean, given.inputs.running_var)
    session, again = (Session(context.implementation, *start) for _ in range(2))
    session.step(given.inputs)
    try:
        again.step(given.inputs, checkpointed, TEXTS["checkpointed"])
    except CallError as error:
        return context.result("recomputed-update", Outcome.SKIPPED, f"refused: {error}", **where)
    if _same(session, again):
        return context.result("recomputed-update", Outcome.PASSED, **where)
    session_mean = session.running_mean
    session.step(given.inputs)
    twice = _same(session, again)
    at = int((cast(Array, again.running_mean) != session_mean).argmax())
    text = (
        f"running_mean[{at}]={float(cast(Array, again.running_mean)[at])!r} after a checkpointed step, but should be "
        f"{float(cast(Array, session_mean)[at])!r} as after a plain one [{call_text(given, None)}]"
    )
    script, got = again.script, float(cast(Array, again.running_mean)[at])
    where["witness"] = looked_at(script, script.of("running_mean"), (at,), got, float(cast(Array, session_mean)[at]))
    outcome, severity = (Outcome.WARNED, Severity.WARNING) if twice else (Outcome.FAILED, Severity.ERROR)
    return context.result("recomputed-update", outcome, f"{text}{'; it was updated twice' * twice}", severity=severity, **where)


def _same(one: Session, other: Session) -> bool:
    pairs = ((one.running_mean, other.running_mean), (one.running_var, other.running_var))
    return all(np.array_equal(cast(Array, a), cast(Array, b), equal_nan=True) for a, b in pairs)
