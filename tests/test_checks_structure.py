"""Checks of structure: each fails on a norm that is broken in its way, and passes sound ones."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from textbook import FAULTS, LN, RMS, SOUND, findings, layer_norm, rms_norm, run

from normcheck.checks import Context, checks, run_check
from normcheck.implementations import frameworks
from normcheck.results import Outcome

CHECKS = ("permutation", "row-independence", "equivalent-norms", "affine", "optional-affine")
SKIPS = "is no special case of another norm here"
ZOO = (
    ("weight-by-place-in-the-group", "affine", "as the weight times the output for weight 1, plus bias"),
    ("weight-by-place-in-the-group", "permutation", "as before channels were reordered"),
    ("channels-normalized-in-pairs", "row-independence", "as beside other rows"),
    ("channels-normalized-in-pairs", "permutation", "as before channels were reordered"),
    ("first-half-of-the-batch", "permutation", "as before samples were reordered"),
    ("odd-row-spills-into-the-next", "row-independence", r"y\[\d+, 0\]=.* as beside other rows"),
    ("always-two-groups", "equivalent-norms", r"GroupNorm\(num_groups=\d+, eps=1e-05\) as (LayerNorm|InstanceNorm)"),
    ("no-weight-without-a-bias", "optional-affine", "but should be .* with no (weight|bias)"),
    ("absent-weight-counts-as-zero", "optional-affine", "=-?0.0, but should be .* with no weight"),
    ("weight-read-for-an-absent-bias", "optional-affine", "but should be .* with no bias"),
)


def weights_backwards(x: Any, weight: Any) -> Any:
    """Weights are applied from the end."""
    return rms_norm(x, weight[::-1])


def test_weights_at_the_wrong_place() -> None:
    """Elements and their weights no longer go together; rows do not mind."""
    wrong = findings(run("permutation", weights_backwards, RMS))
    assert {result.regime for result in wrong} == {"elements"}
    assert re.search("as before elements were reordered", wrong[0].message)


def test_weights_that_are_squared_added_or_shared() -> None:
    """Each part of the check has its own message."""
    squared = findings(run("affine", lambda x, weight: rms_norm(x, weight * weight), RMS, name="squared"))
    assert {result.regime for result in squared} == {"linear", "doubled"}
    assert re.search("as twice that for half the weight", {r.regime: r for r in squared}["doubled"].message)
    added = findings(run("affine", lambda x, weight: rms_norm(x, weight + np.float32(1e-3)), RMS, name="added"))
    assert "no weight" in {result.regime for result in added}
    assert re.search("as its bias, since its weight is 0", {r.regime: r for r in added}["no weight"].message)
    smeared = findings(run("affine", lambda x, weight: rms_norm(x, (weight + weight.mean()) / 2), RMS, name="smeared"))
    assert "own element" in {result.regime for result in smeared}
    assert re.search("as before another's weight and bias changed", {r.regime: r for r in smeared}["own element"].message)


def test_a_refused_absence_is_skipped() -> None:
    """Code that raises without a weight is honest."""

    def needs_weight(x: Any, weight: Any) -> Any:
        """Multiplies by what may be None."""
        return rms_norm(x, None) * weight

    narrow, wide = run("optional-affine", needs_weight, RMS)
    for result in (narrow, wide):
        assert result.outcome is Outcome.SKIPPED
        assert re.match("no weight is refused: TypeError", result.message)


def test_a_row_that_takes_its_neighbours_mean() -> None:
    """Statistics smoothed over rows fail beyond the bound."""

    def smoothed(x: Any, weight: Any, bias: Any) -> Any:
        """A thousandth of the next row's mean is subtracted, too."""
        h = x.astype(np.float32)
        return layer_norm((h - 1e-3 * np.roll(h, 1, 0) * (np.arange(x.shape[-1]) % 2)).astype(x.dtype), weight, bias)

    failed = findings(run("row-independence", smoothed, LN))
    assert {result.outcome for result in failed} == {Outcome.FAILED}
    assert re.search(r"y\[.*\]=.*, but should be .* as beside other rows", failed[0].message)


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
@pytest.mark.parametrize(
    "name", ["two-pass", "llama", "gemma", "group-norm-in-two-passes", "batch-norm-in-two-passes", "halving-tree"]
)
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
