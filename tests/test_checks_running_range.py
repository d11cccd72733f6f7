"""running-range fails on statistics that are right for usual batches only, and passes sound ones."""

from __future__ import annotations

import re

import pytest
from textbook import FAULTS, SOUND, findings

from normcheck.checks import Context, checks, run_check
from normcheck.results import Outcome

pytest.importorskip("torch")

BITES = (
    ("channels-beyond-the-first-warp", r"running_(mean|var)\[(3[2-9]|[4-9]\d|1\d\d)\]=.*, but should be"),
    ("large-variances-clipped", r"running_var\[\d\]=.*, but should be \d{9,}"),
    ("small-variances-clipped", r"running_var\[\d+\]=.*e-\d+, but should be .*e-\d+ within"),
    ("large-means-clipped", r"running_mean\[\d\]=.*, but should be -?\d{5,}"),
    ("values-beyond-the-first-block", r"running_var\[\d\]=.*, but should be"),
    ("batch-of-one-not-counted", r"running_var\[\d\]=.*\[x: \w+\[1, .*; it is what no update gives"),
    ("correction-by-the-batch-size", r"running_var\[\d\]=.*\[x: \w+\[33, 2, 3, 2\]"),
)


@pytest.mark.parametrize(("name", "message"), BITES)
def test_fault_is_found_in_every_dtype(name: str, message: str) -> None:
    """The check fails on the fault in each of its dtypes; an ordinary update of it is right."""
    for dtype in FAULTS[name].dtypes:
        context = Context(FAULTS[name].implementation, dtype, profile="quick")
        wrong = findings(run_check(checks()["running-range"], context))
        assert wrong, dtype
        assert any(re.search(message, result.message) for result in wrong), wrong[0].message
        assert findings(run_check(checks()["running-update"], context)) == []


@pytest.mark.parametrize("name", ["batch-norm-with-statistics", "batch-norm-of-keras", "batch-norm-with-state"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_sound_norms_pass(name: str, dtype: str) -> None:
    """Both conventions pass with variances and means as large and small as their formats hold."""
    results = run_check(checks()["running-range"], Context(SOUND[name], dtype, profile="quick"))
    assert findings(results) == []
    assert {result.regime for result in results if result.outcome is Outcome.PASSED} >= {"usual", "large mean"}
    assert max(result.shape[0] for result in results) > 2000
    assert {result.shape[1] > 128 for result in results} == {True, False}


def test_code_without_running_statistics_is_skipped() -> None:
    """A LayerNorm has none."""
    (result,) = run_check(checks()["running-range"], Context(SOUND["two-pass"], "float32", profile="quick"))
    assert result.outcome is Outcome.SKIPPED
    assert "keeps no running statistics" in result.message
