"""Checks of other ways of making one call: each fails on a norm that is wrong in one way only, and passes sound ones."""

from __future__ import annotations

import re
from typing import Any

import pytest

from normcheck import Implementation, RMSNorm
from normcheck.checks import Context, checks, run_check
from normcheck.faults import faults, sound
from normcheck.implementations import implementations
from normcheck.implementations.processes import Processes
from normcheck.results import Outcome, Result

torch = pytest.importorskip("torch")

FAULTS = {fault.name: fault for fault in faults()}
SOUND = {norm.name: norm for norm in sound()}
TORCH = {one.name: one for one in implementations("torch")}
BITES = (
    ("decomposition-in-one-pass", "other-forms", r"y\[.* but should be .*, compiled\]"),
    ("decomposition-in-the-dtype-of-x", "other-forms", r"y\[.* but should be .*, compiled\]"),
    ("exported-with-the-default-eps", "other-forms", r"y\[.* but should be .*, exported\]"),
    ("exported-without-its-weight", "other-forms", r"y\[.* but should be .*, exported\]"),
    ("fast-path-of-inference", "inference-mode", r"y\[.* but should be .*, inference_mode\]"),
    ("batching-rule-that-mixes-samples", "vmap", r"y\[.* but should be .*, vmap\]"),
    ("average-of-the-workers-statistics", "worker-split", r"y\[.* but should be .*split at"),
    ("bessel-factor-of-the-own-count", "worker-split", r"worker \d: running_var\[\d\]=.* but should be"),
    ("statistics-of-the-own-shard", "worker-split", r"y\[.* but should be .*split at"),
    ("gradient-through-the-own-share-only", "worker-split", r"dx\[.* but should be .*split at"),
    ("weight-gradient-of-one-worker", "worker-split", r"dweight\[.* but should be .*split at"),
    ("weight-gradient-averaged-over-workers", "worker-split", r"dweight\[.* but should be .*split at"),
)


@pytest.mark.parametrize(("name", "check", "message"), BITES)
def test_fault_is_found_in_every_dtype(name: str, check: str, message: str) -> None:
    """The check fails on the fault in each of its dtypes, and its message says in which way of calling."""
    for dtype in FAULTS[name].dtypes:
        found = run_check(checks()[check], Context(FAULTS[name].implementation, dtype, profile="quick"))
        failed = [result for result in found if result.outcome.bad]
        assert failed, dtype
        assert any(re.search(message, result.message) for result in failed), failed[0].message


@pytest.mark.parametrize("name", ["synchronized-batch-norm", "layer-norm-over-tokens-of-several-workers", "two-pass", "gemma"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sound_norms_pass(name: str, dtype: str) -> None:
    """Pooled statistics, split tokens, and ordinary code under inference mode and vmap pass."""
    context = Context(SOUND[name], dtype, profile="quick")
    results = [r for check in checks().values() if check.family == "consistency" for r in run_check(check, context)]
    assert [(r.check, r.message) for r in results if r.outcome.finding] == []
    assert {r.check for r in results if r.outcome is Outcome.PASSED} >= {"inference-mode"}


def test_compilers_are_asked_in_the_deep_profile_only() -> None:
    """Compiled and exported calls are skipped with that reason elsewhere."""
    for check in ("compiled", "exported"):
        (result,) = run_check(checks()[check], Context(SOUND["two-pass"], "float32", profile="standard"))
        assert (result.outcome, result.message) == (Outcome.SKIPPED, "compiled in the profile deep only")


def test_exporter_that_changes_eps_is_found() -> None:
    """In the profile deep a branch that only torch.export takes is found, and a sound norm passes."""
    fault = FAULTS["branch-for-the-exporter"]
    assert fault.profile == "deep"
    broken = run_check(checks()["exported"], Context(fault.implementation, "float32", profile="deep"))
    passed = run_check(checks()["exported"], Context(SOUND["rms-by-reciprocal-root"], "float32", profile="deep"))
    assert re.search(r"y\[.* but should be .*, torch.export\]", broken[0].message)
    assert {result.outcome for result in passed} == {Outcome.PASSED}


def test_vmapped_group_norm_of_torch_rounds_inside() -> None:
    """torch's group_norm under vmap is decomposed into 16-bit operations, and is right without it."""
    context = Context(TORCH["torch.nn.functional.group_norm"], "bfloat16", profile="quick")
    (result,) = run_check(checks()["vmap"], context)
    assert result.outcome is Outcome.FAILED
    assert {r.outcome for r in run_check(checks()["inference-mode"], context)} == {Outcome.PASSED}


def test_process_groups_are_started_in_the_deep_profile_only() -> None:
    """Elsewhere workers that are processes are skipped with that reason."""
    one = SOUND["batch-norm-over-a-process-group"]
    (result,) = run_check(checks()["worker-split"], Context(one, "float32", profile="standard"))
    assert (result.outcome, result.message) == (Outcome.SKIPPED, "process groups are started in the profile deep only")


def test_processes_talk_to_each_other() -> None:
    """Two gloo processes with shards of 1 and 2 samples agree on the statistics of all 3."""
    shards, zeros, ones = [torch.tensor([[1.0]]), torch.tensor([[2.0], [6.0]])], torch.zeros(1), torch.ones(1)
    workers = Processes("normcheck.faults.workers:all_reduced")
    outputs, means, variances = workers(shards, None, None, zeros, ones, 1.0)
    assert [y.shape for y in outputs] == [(1, 1), (2, 1)]
    assert [[float(m) for m in means], [float(v) for v in variances]] == [[3.0, 3.0], [7.0, 7.0]]


def test_the_forward_pass_with_gradients_recorded_is_judged() -> None:
    """A norm that computes something else where x requires a gradient is wrong in every training step, and found."""

    def plain(x: Any, weight: Any) -> Any:
        h = x.float()
        return (h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-6) * weight.float()).to(x.dtype)

    def other_in_training(x: Any, weight: Any) -> Any:
        y = plain(x, weight)
        return y + (0.01 * y).detach() if x.requires_grad else y

    def results(call: Any) -> list[Result]:
        implementation = Implementation(call, RMSNorm(eps=1e-6), dtypes=("float32",))
        return run_check(checks()["inference-mode"], Context(implementation, "float32", profile="quick"))

    assert {r.outcome for r in results(plain)} == {Outcome.PASSED}
    failed = [r for r in results(other_in_training) if r.outcome is Outcome.FAILED]
    assert failed
    assert "gradients recorded" in failed[0].message
