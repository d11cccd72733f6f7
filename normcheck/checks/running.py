"""Running statistics: what a training step makes of them, and what evaluation takes from them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np

from normcheck.checks.base import Context, SkipCaseError, guarded, raised, register
from normcheck.checks.batches import (
    NAMES,
    WIDTH,
    Batch,
    batch,
    call_text,
    evaluation_case,
    judged,
    looked_at,
    needs_both_modes,
    needs_training,
    outcome,
    shape_of,
    some_shape,
)
from normcheck.checks.witness import pointed
from normcheck.formats import Array
from normcheck.implementations import CallError, Implementation, Session, call
from normcheck.implementations.snippets import Script
from normcheck.results import Outcome, Result, Witness

_LATE = 1000


@register("running-update", applies=needs_training)
def running_update(context: Context) -> Iterator[Result]:
    """A training step moves the running statistics as the contract says.

    Statement
    ---------
    With the batch's mean m and variance v (divisor n - ddof, ``contract.running_ddof``) one step makes
    running_mean = (1-a)*running_mean + a*m and running_var = (1-a)*running_var + a*v, with a the momentum (``torch``) or one
    minus it (``keras``). The same rule holds for every rank of the input. A channel with several rows has their averages.

    Why it matters
    --------------
    Losses and gradients of training never see these numbers; they decide in evaluation, weeks later. A momentum copied from the
    other convention keeps 1 % of history where 99 % were meant.

    Holds for
    ---------
    BatchNorm and tracked InstanceNorm whose new statistics are returned or written; momenta 0, 1/4 and 1 beside the norm's own
    where it can be chosen.

    Tolerance
    ---------
    RN(s - E) <= s_hat <= RN(s + E) with s the exact new statistic, RN rounding to the buffer's format. The mean of the batch
    has error (H+1)*u*mean|x| + 3*u*max|x| (the merge of partial sums), its variance e**2 + u*(H+5)*v + 2*sqrt(2)*e*sqrt(v) with e
    that error of the mean; H = max(n, 32 + ceil(log2 n)). Both are weighted with a. Shares and products cost 4*u*(|old|+|batch|),
    which also covers a share formed as 1 - m in the compute format. ``contract.stats`` adds its own u of the batch's statistic.

    Known exceptions
    ----------------
    TensorFlow's fused kernels store the unbiased variance and the others the biased one: ``running_ddof`` tells which is claimed.

    References
    ----------
    Ioffe and Szegedy 2015, algorithm 2. Kinds K09 and K10: tensorflow/tensorflow#55545, pytorch/vision#8250.
    """
    shown = {shape for rank in (None, 2, 4) if (shape := shape_of(context, WIDTH, rank)) is not None}
    for shape, momentum in itertools.product(sorted(shown, key=len), (None, 0.25, 0.0, 1.0)):
        yield from guarded(context, "running-update", _updated, shape, momentum, regime="standard", shape=shape)


@register("running-steps", applies=needs_both_modes)
def running_steps(context: Context) -> Iterator[Result]:
    """Each training step updates once, evaluation never.

    Statement
    ---------
    Through training, evaluation, evaluation, training, evaluation on changing batches the statistics move by one exact update
    in each training step and keep every bit in evaluation. Evaluation normalizes with the statistics as they are then.

    Why it matters
    --------------
    A second update, an update in evaluation or none at all leaves every single output right and only the state wrong.

    Holds for
    ---------
    BatchNorm and tracked InstanceNorm whose mode can be switched.

    Tolerance
    ---------
    As in ``running-update``, each step from the statistics that the last one left; none in evaluation. Outputs in evaluation as
    in ``accuracy``, with those statistics.

    Known exceptions
    ----------------
    None known.

    References
    ----------
    Kind K10 of the catalogue of faults: pytorch/pytorch#96136, #20967.
    """
    yield from guarded(context, "running-steps", _stepped, regime="standard")


@register("training-ignores-statistics", applies=needs_training)
def training_ignores_statistics(context: Context) -> Iterator[Result]:
    """In training the output does not depend on the running statistics.

    Statement
    ---------
    Equal x gives equal bits of y, whatever the running mean and variance were.

    Why it matters
    --------------
    A norm that mixes them into training computes something else than it differentiates, and trains to something else on each
    restart.

    Holds for
    ---------
    BatchNorm and tracked InstanceNorm in training.

    Tolerance
    ---------
    None: bits.

    Known exceptions
    ----------------
    Batch renormalization depends on them by design: it is another norm.

    References
    ----------
    Ioffe and Szegedy 2015, algorithm 1. Kind K33 of the catalogue of faults.
    """
    yield from guarded(context, "training-ignores-statistics", _ignoring, regime="standard")


@register("running-cumulative", applies=needs_training)
def running_cumulative(context: Context) -> Iterator[Result]:
    """Momentum None averages over all training steps.

    Statement
    ---------
    After t steps the running mean is the plain average of the t batch means, and the running variance that of their variances:
    the t-th step has the share 1/t, however large its batch is, and the initial values do not count. A module that counts in
    ``num_batches_tracked`` goes on from 1000 there.

    Why it matters
    --------------
    An average that starts with the initial 0 and 1, or counts one step too many, is off by 1/t for ever. A count of 8 bits is
    right for 255 steps.

    Holds for
    ---------
    Modules whose momentum can be None. A function keeps no count of steps.

    Tolerance
    ---------
    As in ``running-update``, with the share 1/t, each step from what the last one left.

    Known exceptions
    ----------------
    None known.

    References
    ----------
    torch.nn.BatchNorm1d, ``momentum``; pytorch/pytorch#3122.
    """
    yield from guarded(context, "running-cumulative", _cumulative, regime="standard")


@register("one-value-statistics", applies=needs_training)
def one_value_per_channel(context: Context) -> Iterator[Result]:
    """One value per channel is refused in training, or leaves finite statistics.

    Statement
    ---------
    The unbiased variance of one value is 0/0. Training on it raises, or stores no NaN and no infinity and returns finite values.
    Two values per channel, from one sample with two positions, are an ordinary batch, and evaluation takes one value.

    Why it matters
    --------------
    The output, zero, looks harmless; a NaN in the running variance stays for ever and shows in evaluation.

    Holds for
    ---------
    BatchNorm and tracked InstanceNorm.

    Tolerance
    ---------
    None: finite or not; two values as in ``running-update``.

    Known exceptions
    ----------------
    None known.

    References
    ----------
    Kind K11 of the catalogue of faults: pytorch/pytorch#1381, FluxML/Flux.jl#2716.
    """
    for width in (1, 2):
        shape = shape_of(context, width, None) or shape_of(context, width, 4)
        if shape is not None:
            yield from guarded(context, "one-value-statistics", _degenerate, shape, regime="standard", shape=shape)


def _at_momentum(context: Context, momentum: float | None) -> tuple[Implementation, dict[str, Any]]:
    """The implementation with another momentum, and what to change in the inputs; raises SkipCaseError where it is fixed."""
    implementation = context.implementation
    if momentum is None:
        return implementation, {}
    if implementation.call is not None and "momentum" in implementation.passes:
        return implementation, {"momentum": momentum}
    other = implementation.with_norm(replace(cast(Any, context.norm), momentum=momentum))
    if other is None:
        raise SkipCaseError("momentum is fixed")
    return other, {}


def _updated(context: Context, shape: tuple[int, ...], momentum: float | None) -> Result | None:
    chosen, changes = _at_momentum(context, momentum)
    given = batch(context, shape)
    given = replace(given, inputs=replace(given.inputs, **changes))
    output = call(chosen, given.inputs)
    used = momentum if momentum is not None else getattr(context.norm, "momentum", None)
    return judged(context, "running-update", given, (output.running_mean, output.running_var), used, chosen)


def _stepped(context: Context) -> Result | None:
    shape = some_shape(context)
    first = batch(context, shape).inputs
    session = Session(context.implementation, first.running_mean, first.running_var)
    momentum = getattr(context.norm, "momentum", None)
    trained, result = 0, None
    for number, training in enumerate((True, False, False, True, False)):
        given = batch(context, shape, number=number, training=training)
        before = (session.running_mean, session.running_var)
        given = replace(given, inputs=replace(given.inputs, running_mean=before[0], running_var=before[1]))
        case = None if training else evaluation_case(context, given.inputs)
        output = session.step(given.inputs)
        if training and (output.running_mean is None or output.running_var is None):
            return context.result("running-steps", Outcome.SKIPPED, "running statistics are neither returned nor written")
        trained += training
        after = (session.running_mean, session.running_var)
        if training:
            result = judged(context, "running-steps", given, after, momentum, step=trained, script=session.script)
            result = replace(result, message=f"step {number + 1}: {result.message}" * bool(result.message))
        else:
            kept = _kept(context, given, session.script, before, after, number)
            result = kept or outcome(context, "running-steps", case, output.y, session.script)
        if result.outcome is not Outcome.PASSED:
            return result
    return _counted(context, session, trained) or result


def _kept(context: Context, given: Batch, script: Script, before: Any, after: Any, number: int) -> Result | None:
    """A failure where evaluation has changed the statistics."""
    for name, old, new in zip(NAMES, before, after, strict=True):
        if new is not None and not np.array_equal(old, new, equal_nan=True):
            at = int((old != new).argmax())
            text = (
                f"step {number + 1}: {name}[{at}]={float(new[at])!r} after evaluation, but should still be {float(old[at])!r} "
                f"[x: {given.inputs.dtype}{list(given.inputs.x.shape)}, training=False]"
            )
            found = looked_at(script, script.of(name), (at,), float(new[at]), float(old[at]))
            where: dict[str, Any] = {"regime": "standard", "shape": given.inputs.x.shape, "witness": found}
            return context.result("running-steps", Outcome.FAILED, text, **where)
    return None


def _counted(context: Context, session: Session, trained: int) -> Result | None:
    """A failure where a module counts its training steps wrongly."""
    count = getattr(session.module, "num_batches_tracked", None)
    if count is None or int(count) == trained:
        return None
    text = f"num_batches_tracked={int(count)}, but should be {trained} after as many training steps"
    script = session.script.figure("module.num_batches_tracked", trained, claim=f"got == {trained}")
    return context.result("running-steps", Outcome.FAILED, text, regime="standard", witness=Witness(script.text, "steps"))


def _ignoring(context: Context) -> Result:
    given = batch(context, some_shape(context))
    plain = call(context.implementation, given.inputs)
    fmt, channels = context.parameter_format, len(cast(Array, given.inputs.running_mean))
    moved: dict[str, Any] = {"running_mean": fmt.round(np.full(channels, 1e3)), "running_var": fmt.round(np.full(channels, 1e-3))}
    inputs = replace(given.inputs, **moved)
    other = call(context.implementation, inputs)
    where: dict[str, Any] = {"regime": "standard", "shape": given.inputs.x.shape}
    differs = ~((plain.y == other.y) | (np.isnan(plain.y) & np.isnan(other.y)))
    if not differs.any():
        return context.result("training-ignores-statistics", Outcome.PASSED, **where)
    at = tuple(int(i) for i in np.argwhere(differs)[0])
    text = (
        f"y{list(at)}={float(other.y[at])!r} with running_mean=1000, but should be {float(plain.y[at])!r} as with other running "
        f"statistics [{call_text(given, getattr(context.norm, 'momentum', None))}]"
    )
    found = pointed(context.implementation, inputs, "y", at, float(other.y[at]), float(plain.y[at]))
    return context.result("training-ignores-statistics", Outcome.FAILED, text, witness=found, **where)


def _cumulative(context: Context) -> Result | None:
    if context.implementation.module is None:
        return context.result("running-cumulative", Outcome.SKIPPED, "a function keeps no count of steps")
    chosen = context.implementation.with_norm(replace(cast(Any, context.norm), momentum=None))
    if chosen is None:
        return context.result("running-cumulative", Outcome.SKIPPED, "momentum is fixed")
    first = batch(context, some_shape(context)).inputs
    session, result = Session(chosen, first.running_mean, first.running_var), None
    for number, step in enumerate((1, 2, 3, _LATE + 1)):
        if step > _LATE and not _counting_on(session):
            return result
        given = batch(context, some_shape(context, WIDTH << number % 2), number=number)
        before: dict[str, Any] = {"running_mean": session.running_mean, "running_var": session.running_var}
        given = replace(given, inputs=replace(given.inputs, **before))
        session.step(given.inputs)
        after = (session.running_mean, session.running_var)
        result = judged(context, "running-cumulative", given, after, None, chosen, step=step, script=session.script)
        if result.outcome is not Outcome.PASSED:
            return replace(result, message=f"step {step}: {result.message}")
    return result


def _counting_on(session: Session) -> bool:
    """Let a module that counts its steps go on from a later one, if it counts in a number or a tensor of torch."""
    count: Any = getattr(session.module, "num_batches_tracked", None)
    if hasattr(count, "fill_"):
        count.fill_(_LATE)
        session.note(f"module.num_batches_tracked.fill_({_LATE})")
    elif isinstance(count, int):
        session.module.num_batches_tracked = _LATE
        session.note(f"module.num_batches_tracked = {_LATE}")
    else:
        return False
    return True


def _degenerate(context: Context, shape: tuple[int, ...]) -> Result:
    given = batch(context, shape)
    width = given.rows.shape[1]
    where: dict[str, Any] = {"regime": "standard", "shape": shape}
    try:
        output = call(context.implementation, given.inputs)
    except CallError as error:
        if width == 1:
            return context.result("one-value-statistics", Outcome.PASSED, **where)
        text = f"two values per channel are refused: {error}"
        return context.result("one-value-statistics", Outcome.FAILED, text, witness=raised(error), **where)
    for name in ("y", *NAMES):
        found = getattr(output, name)
        if found is not None and not np.isfinite(found).all():
            at = tuple(int(i) for i in np.argwhere(~np.isfinite(found))[0])
            text = f"{name}={float(found[at])!r}, but should be finite or refused [{call_text(given, None)}]"
            shown = pointed(context.implementation, given.inputs, name, at, float(found[at]), 0.0, claim="np.isfinite(got)")
            return context.result("one-value-statistics", Outcome.FAILED, text, witness=shown, **where)
    if width == 1 or output.running_mean is None:
        return context.result("one-value-statistics", Outcome.PASSED, **where)
    momentum = getattr(context.norm, "momentum", None)
    return judged(context, "one-value-statistics", given, (output.running_mean, output.running_var), momentum)
