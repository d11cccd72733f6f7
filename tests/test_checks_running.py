"""Checks of running statistics and of evaluation: each fails on a norm that is broken in its way, and passes sound ones."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from normcheck.checks import Context, checks, run_check
from normcheck.faults import faults, sound
from normcheck.implementations import Implementation, frameworks, implementations
from normcheck.norms import BatchNorm
from normcheck.results import Outcome

torch = pytest.importorskip("torch")

FAULTS = {fault.name: fault for fault in faults()}
SOUND = {norm.name: norm for norm in sound()}
BITES = (
    ("momentum-of-the-other-convention", "running-update", "what the momentum convention of keras gives"),
    ("momentum-of-torch-under-keras", "running-update", "what the momentum convention of torch gives"),
    ("momentum-of-one", "running-update", "what the batch alone gives"),
    ("never-updated", "running-update", "what no update gives"),
    ("updated-twice", "running-update", "what two updates gives"),
    ("deviation-for-variance", "running-update", r"running_var\[\d\]=.* but should be .* within"),
    ("estimator-that-depends-on-the-rank", "running-update", "what the variance with ddof=0 gives"),
    ("updated-in-evaluation", "running-steps", "after evaluation, but should still be"),
    ("evaluation-by-the-batch", "running-steps", r"y\[.*training=False, running_var="),
    ("steps-that-are-counted-in-evaluation", "running-steps", "num_batches_tracked=5, but should be 2"),
    ("training-by-the-running-statistics", "training-ignores-statistics", "with running_mean=1000, but should be"),
    ("cumulative-average-that-counts-the-initial-value", "running-cumulative", "step 1: running_mean"),
    ("one-value-stores-nan", "one-value-statistics", "running_var=nan, but should be finite or refused"),
    ("frozen-without-eps", "evaluation-statistics", "running_var=0]"),
    ("folded-with-a-clipped-variance", "evaluation-statistics", r"but should be .* running_var="),
    ("variance-that-starts-at-zero", "fresh-evaluation", "but should be"),
    ("variance-that-is-not-stored", "state-round-trip", "in evaluation from the loaded state, but should be"),
    ("switch-that-is-not-looked-at", "tracking-switch", "with track_running_stats=False, but should still be"),
    ("instance-norm-that-evaluates-the-last-instance", "mode-independence", "in evaluation, but should be"),
    ("layer-norm-that-is-bypassed-in-evaluation", "mode-independence", "in evaluation, but should be"),
)
FAMILIES = ("running", "evaluation")


@pytest.mark.parametrize(("name", "check", "message"), BITES)
def test_fault_is_found_in_every_dtype(name: str, check: str, message: str) -> None:
    """The check fails on the fault in each of its dtypes, and its message says what is wrong."""
    for dtype in FAULTS[name].dtypes:
        failed = [
            r for r in run_check(checks()[check], Context(FAULTS[name].implementation, dtype, profile="quick")) if r.outcome.bad
        ]
        assert failed, dtype
        assert any(re.search(message, result.message) for result in failed), failed[0].message


@pytest.mark.parametrize("name", ["batch-norm-with-statistics", "batch-norm-of-keras", "batch-norm-with-state"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_sound_norms_pass(name: str, dtype: str) -> None:
    """Both conventions, as function and as module, pass; only recomputation is warned of, where a module writes its state."""
    context = Context(SOUND[name], dtype, profile="quick")
    results = [r for check in checks().values() if check.family in FAMILIES for r in run_check(check, context)]
    bad = [(r.check, r.message) for r in results if r.outcome not in (Outcome.PASSED, Outcome.SKIPPED)]
    assert {check for check, _ in bad} <= {"recomputed-update"}, bad
    assert "running-update" in {r.check for r in results if r.outcome is Outcome.PASSED}


def _in_place(ddof: int = 1, training: bool = True, evaluation: bool = False, weight: bool = False):
    """A BatchNorm of numpy that returns y alone and writes its statistics, in the modes that are said."""

    def batch_norm(x, w, b, mean, var, train, momentum):
        rows = np.moveaxis(x, 1, -1).reshape(-1, x.shape[1]).astype(np.float64)
        m, v = (rows.mean(0), rows.var(0)) if train else (mean.astype(np.float64), var.astype(np.float64))
        y = (rows - m) / np.sqrt(v + 1e-5) * w + b
        if training if train else evaluation:
            mean[...] = (1 - momentum) * mean + momentum * rows.mean(0)
            var[...] = (1 - momentum) * var + momentum * rows.var(0, ddof=ddof)
        if weight:
            w[...] = 0
        return np.moveaxis(y.reshape(*x.shape[:1], *x.shape[2:], -1), -1, 1).astype(x.dtype)

    return Context(Implementation(batch_norm, BatchNorm(), name="mine", framework="numpy", grad=None), "float32", profile="quick")


IN_PLACE = (
    ({"ddof": 0}, "running-update", "what the variance with ddof=0 gives"),
    ({"training": False}, "running-update", "what no update gives"),
    ({"evaluation": True}, "running-steps", "after evaluation, but should still be"),
    ({"weight": True}, "inputs-unchanged", r"weight\[0\]=.* after the call, but should be"),
)


@pytest.mark.parametrize(("wrong", "check", "message"), IN_PLACE)
def test_statistics_that_are_written_in_place_are_judged(wrong: dict[str, Any], check: str, message: str) -> None:
    """A function that returns y alone is judged by what it left in the arrays that it was given, undeclared as it is."""
    results = run_check(checks()[check], _in_place(**wrong))
    assert any(re.search(message, result.message) for result in results if result.outcome is Outcome.FAILED), results
    assert {result.outcome for result in run_check(checks()[check], _in_place())} == {Outcome.PASSED}


def test_statistics_of_immutable_arrays_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where arrays are immutable, a function that returns y alone has no new statistics: they are not judged."""
    monkeypatch.setattr(frameworks()["numpy"], "immutable", True, raising=False)
    results = run_check(checks()["running-update"], _in_place(training=False))
    assert {r.message for r in results} == {"running statistics are neither returned nor written"}
    assert {name for name, adapter in frameworks().items() if getattr(adapter, "immutable", False)} == {"jax", "keras", "numpy"}


def _torch(name: str) -> Context:
    return Context({i.name: i for i in implementations("torch")}[name], "float32", profile="quick")


@pytest.mark.parametrize("name", ["torch.nn.BatchNorm1d[train]", "torch.nn.functional.batch_norm[train]"])
def test_checkpointed_batch_norm_of_torch_updates_twice(name: str) -> None:
    """torch's BatchNorm under activation checkpointing is warned of: its forward pass writes its statistics."""
    (result,) = run_check(checks()["recomputed-update"], replace(_torch(name), profile="standard"))
    assert result.outcome is Outcome.WARNED
    assert "it was updated twice" in result.message


def test_recomputation_of_a_function() -> None:
    """One that returns its statistics cannot update twice; one that writes them, undeclared, does."""
    written = Implementation(torch_batch_norm, BatchNorm(), name="mine")
    outcomes = [
        run_check(checks()["recomputed-update"], Context(own, "float32", profile="standard"))[0]
        for own in (SOUND["batch-norm-with-statistics"], written)
    ]
    assert [result.outcome for result in outcomes] == [Outcome.SKIPPED, Outcome.WARNED]
    assert outcomes[0].message == "new statistics are returned, not written"


def torch_batch_norm(x, weight, bias, running_mean, running_var, training, momentum):
    """Torch's own, which writes its statistics."""
    return torch.nn.functional.batch_norm(x, running_mean, running_var, weight, bias, training, momentum)


def test_tracked_instance_norm_of_torch() -> None:
    """torch's InstanceNorm2d never counts its steps, does not update with momentum None, and updates with tracking off."""
    context = _torch("torch.nn.InstanceNorm2d[tracked, train]")
    found = {name: run_check(checks()[name], context) for name in ("running-steps", "running-cumulative", "tracking-switch")}
    assert "num_batches_tracked=0, but should be 2" in found["running-steps"][0].message
    assert "it is what no update gives" in found["running-cumulative"][0].message
    assert "with track_running_stats=False, but should still be" in found["tracking-switch"][0].message
    assert {r.outcome for results in found.values() for r in results} == {Outcome.FAILED}


def test_what_cannot_be_judged_is_skipped_with_its_reason() -> None:
    """A norm without running statistics, and a function without state, are skipped."""
    (layer,) = run_check(checks()["running-update"], _torch("torch.nn.LayerNorm"))
    (function,) = run_check(checks()["state-round-trip"], _torch("torch.nn.functional.batch_norm[train]"))
    assert [layer.outcome, function.outcome] == [Outcome.SKIPPED, Outcome.SKIPPED]
    assert layer.message == "LayerNorm as given keeps no running statistics"
    assert function.message == "a function has no state: give module="
