"""Checks of determinism: each fails on a norm that is broken in its way, and passes sound ones."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from textbook import FAULTS, LN, RMS, SOUND, findings, layer_norm, rms_norm, run

from normcheck import BatchNorm, Contract
from normcheck.checks import Context, checks, run_check
from normcheck.implementations import frameworks
from normcheck.results import Outcome, Severity

CHECKS = ("run-to-run", "batch-invariance", "thread-invariance", "layout-invariance")
SKIPS = "statistics are the batch's|numpy runs in one thread"
ZOO = (
    ("atomic-additions", "run-to-run", r"y\[.*\]=.*, but should be .* as in an earlier run"),
    ("lanes-by-the-number-of-rows", "batch-invariance", "for the sample alone: it stands in a batch of 256.*all within rounding"),
    ("other-variance-for-a-single-sample", "batch-invariance", r"as for the sample alone: it stands in a batch of 2 "),
    ("sums-split-over-the-threads", "thread-invariance", "as with one thread: 2 were used.*all within rounding"),
)


def one_ulp_off_for_many_rows(x: Any, weight: Any) -> Any:
    """Batches of 256 rows and more come out one ulp larger."""
    y = rms_norm(x, weight)
    return np.nextafter(y, np.float32(np.inf)) if len(x) >= 256 else y


def test_batch_dependence_within_rounding_warns_unless_promised() -> None:
    """Other bits in a larger batch are a warning, and an error where the contract promises otherwise."""
    (warned,) = findings(run("batch-invariance", one_ulp_off_for_many_rows, RMS))
    assert (warned.outcome, warned.severity) == (Outcome.WARNED, Severity.WARNING)
    assert re.search("as for the sample alone: it stands in a batch of 256 .*all within rounding", warned.message)
    promise = Contract(batch_invariant=True)
    (failed,) = findings(run("batch-invariance", one_ulp_off_for_many_rows, RMS, contract=promise))
    assert (failed.outcome, failed.severity) == (Outcome.FAILED, Severity.ERROR)


def test_a_batch_norm_in_training_depends_on_its_batch() -> None:
    """Its statistics are the batch's: the check is skipped and says so."""
    results = run("batch-invariance", lambda *values: values[0], BatchNorm(), training=True, name="batch_norm")
    assert [(result.outcome, result.message) for result in results] == [
        (Outcome.SKIPPED, "statistics are the batch's: its rows depend on one another")
    ]


def test_alternating_bits_fail_because_determinism_is_promised() -> None:
    """One ulp from run to run is an error by default, and a warning where the contract promises nothing."""
    runs = iter(range(10**6))

    def every_second_run(x: Any, weight: Any) -> Any:
        """One ulp more in every second run."""
        return np.nextafter(rms_norm(x, weight), np.float32(next(runs) % 2 * 1e3))

    failed = findings(run("run-to-run", every_second_run, RMS))
    assert {result.outcome for result in failed} == {Outcome.FAILED}
    assert re.search(r"as in an earlier run \[x: float32", failed[0].message)
    loose = findings(run("run-to-run", every_second_run, RMS, contract=Contract(deterministic=False)))
    assert {result.outcome for result in loose} == {Outcome.WARNED}


def test_sums_in_the_order_of_memory_warn() -> None:
    """numpy adds strided rows in another order than contiguous ones: other bits, within rounding."""
    wrong = findings(run("layout-invariance", layer_norm, LN))
    assert {result.outcome for result in wrong} == {Outcome.WARNED}
    assert "transposed" in {result.layout for result in wrong}
    assert re.search("as for a contiguous copy .*all within rounding", wrong[0].message)


def test_the_number_of_threads_is_put_back() -> None:
    """A check that sets threads leaves them as they were."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        run_check(checks()["thread-invariance"], Context(SOUND["two-pass"], "float32", profile="quick"))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("name", "check", "message"), ZOO)
def test_fault_of_the_zoo_is_found_in_every_dtype(name: str, check: str, message: str) -> None:
    """The check finds the fault in each of its dtypes, and its message says what is wrong."""
    fault = FAULTS[name]
    missing = frameworks()[fault.implementation.framework].available()
    if missing is not None:
        pytest.skip(missing)
    for dtype in fault.dtypes:
        wrong = findings(run_check(checks()[check], Context(fault.implementation, dtype, profile=fault.profile)))
        assert wrong, dtype
        assert re.search(message, wrong[0].message), wrong[0].message


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", ["two-pass", "llama", "group-norm-in-two-passes", "batch-norm-in-two-passes", "sequential-sums"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sound_norms_pass(check: str, name: str, dtype: str) -> None:
    """Sound norms of several kinds are not flagged, and the check has something to say of them."""
    implementation = SOUND[name]
    missing = frameworks()[implementation.framework].available()
    if missing is not None:
        pytest.skip(missing)
    results = run_check(checks()[check], Context(implementation, dtype, profile="quick"))
    assert [(result.outcome, result.message) for result in findings(results)] == []
    skipped = [result.message for result in results if result.outcome is Outcome.SKIPPED]
    assert skipped == [] or all(re.search(SKIPS, message) for message in skipped)
