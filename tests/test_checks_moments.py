"""Checks of moments and range: each fails on a norm that is broken in its way, and passes sound ones."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from textbook import FAULTS, LN, RMS, SOUND, findings, layer_norm, rms_norm, run

from normcheck import L2Norm
from normcheck.checks import Context, checks, run_check
from normcheck.implementations import frameworks
from normcheck.results import Outcome

CHECKS = ("moments", "range-bounds", "idempotence")
SKIPS = "elements outside the statistic"
ZOO = (
    ("unbiased-variance", "moments", "mean square of row .*, but should be"),
    ("divided-by-the-variance", "moments", "mean square of row .*, but should be"),
)


def mean_left_in(x: Any, weight: Any, bias: Any) -> Any:
    """Divided by the standard deviation, but not centred."""
    h = x.astype(np.float32)
    return (h / np.sqrt(h.var(-1, keepdims=True) + np.float32(1e-5)) * weight + bias).astype(x.dtype)


def test_a_mean_that_is_left() -> None:
    """The mean of the output is the message."""
    wrong = findings(run("moments", mean_left_in, LN))
    assert re.match(r"mean of row \d=.*, but should be 0.0 within", wrong[0].message)


def test_unit_length_and_unit_root_mean_square_are_told_apart() -> None:
    """Code of an L2Norm that divides by the root mean square has a sum of squares of D, not of 1."""
    wrong = findings(run("moments", rms_norm, L2Norm(eps=1e-3)))
    assert re.match(r"sum of squares of row \d=.*, but should be (0.99|1.0)", wrong[0].message)


def test_an_outlier_that_is_clipped() -> None:
    """A single outlier reaches sqrt(D): a clipped one does not."""

    def clipped(x: Any, weight: Any) -> Any:
        """Results beyond 5 are cut."""
        return np.clip(rms_norm(x, None), -5, 5) * weight

    wrong = [result for result in findings(run("range-bounds", clipped, RMS)) if result.regime == "one-hot"]
    assert re.match(r"the outlier of row \d=5.0, but should be (7.99|8.0|16.0)", wrong[0].message)


def test_values_beyond_the_largest_possible() -> None:
    """Padding that is counted makes results larger than sqrt(D - 1)."""

    def too_large(x: Any, weight: Any, bias: Any) -> Any:
        """A gain of 1.01."""
        return layer_norm(x, weight * np.float32(1.01), bias)

    wrong = findings(run("range-bounds", too_large, LN))
    assert any(re.match(r"largest \|y\| of row \d=.*, but should be", result.message) for result in wrong)


def test_a_gain_shows_in_the_second_pass() -> None:
    """What is normalized twice differs by the gain."""

    def gain(x: Any, weight: Any) -> Any:
        """Three ten-thousandths too large."""
        return rms_norm(x, weight * np.float32(1.0003))

    wrong = findings(run("idempotence", gain, RMS))
    assert re.match(r"y\(y\(x\)\)\[.*\]=.*, but should be .* within", wrong[0].message)
    assert findings(run("idempotence", rms_norm, RMS)) == []


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
