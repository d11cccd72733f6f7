"""Determinism: the bits of a result do not depend on the run, the batch around it, the threads, or where the input lies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, reject
from hypothesis import strategies as st

from normcheck import ledger
from normcheck.checks import Context
from normcheck.checks.comparing import case_from, equal, held, threads
from normcheck.implementations import LAYOUTS, VIEWS, CallError
from normcheck.recipes import Trial
from normcheck.results import Outcome
from normcheck.strategies import holds, trials, tried

LEDGER = ledger.entries()


@pytest.mark.check("run-to-run")
@given(trial=trials(), runs=st.integers(1, 4))
def test_run_to_run(context: Context, trial: Trial, runs: int) -> None:
    """The same call gives the same bits, again and again."""
    case, first = tried(context, trial)
    promised = context.implementation.contract.deterministic
    again = [context.run(case) for _ in range(runs)]
    holds(*(equal(context, "run-to-run", case, one, first, "in an earlier run", promised=promised) for one in again))


@pytest.mark.check("batch-invariance")
@given(trial=trials(), place=st.integers(0, 7))
def test_batch_invariance(context: Context, trial: Trial, place: int) -> None:
    """A sample gives the same bits alone and in any batch, or both are within the bound."""
    case, output = tried(context, replace(trial, rows=8 * trial.rows))
    inputs = case.inputs
    assume(len(inputs.x) > 1 and (case.fold.order[0] == 0 or not context.own_statistics))
    at = slice(place % len(inputs.x), place % len(inputs.x) + 1)
    given_ = {name: getattr(inputs, name) for name in ("weight", "bias", "running_mean", "running_var")}
    alone = case_from(context, inputs.x[at], layout=inputs.layout, **given_)
    expected = alone.fold.fold(case.fold.unfold(output)[at])
    promised = context.implementation.contract.batch_invariant
    try:
        holds(equal(context, "batch-invariance", alone, context.run(alone), expected, "in the batch", promised=promised))
    except CallError:
        reject()


@pytest.mark.check("thread-invariance")
@given(trial=trials(), count=st.integers(2, 4))
def test_thread_invariance(context: Context, trial: Trial, count: int) -> None:
    """The number of threads changes no bit, or all results are within the bound."""
    case, single = tried(context, trial)
    with threads(context, count) as used:
        output = context.run(case)
    holds(equal(context, "thread-invariance", case, output, single, f"with one thread: {used} were used"))


@pytest.mark.check("layout-invariance")
@given(trial=trials(), layout=st.sampled_from([*LAYOUTS, *(name for name in VIEWS if name != "expanded")]))
def test_layout_invariance(context: Context, trial: Trial, layout: str) -> None:
    """Where and how the input lies in memory changes no bit, or both results are within the bound."""
    case, plain = tried(context, trial)
    moved = replace(case, inputs=replace(case.inputs, layout=layout))
    try:
        output = context.run(moved)
    except (ValueError, CallError):  # the shape has no such layout, or the code refuses it
        reject()
    # a layout that is known to be wrong differs as well, by the same cause
    (right,) = ledger.apply([held(context, "memory-layout", moved, output)], LEDGER)
    assume(right.outcome is not Outcome.XFAILED)
    holds(equal(context, "layout-invariance", moved, output, plain, f"for a {case.inputs.layout} copy"))
