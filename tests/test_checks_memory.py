"""Checks of memory: each fails on a norm that is broken in its way, and passes sound ones."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from textbook import FAULTS, RMS, SOUND, findings, rms_norm, run

from normcheck.checks import Context, checks, run_check
from normcheck.implementations import frameworks
from normcheck.results import Outcome, Severity

CHECKS = ("memory-layout", "inputs-unchanged", "output-aliasing", "poisoned-scratch")
SKIPS = "never"
ZOO = (
    ("storage-offset-ignored", "memory-layout", r"y\[.*\]=.*, but should be .* within .*(sliced|unaligned)"),
    ("unit-stride-assumed", "memory-layout", r"y\[.*\]=.*, but should be .*transposed"),
    ("rows-by-the-innermost-distance", "memory-layout", r"y\[.*\]=.*, but should be .*channels_last"),
    ("float-that-is-no-copy", "inputs-unchanged", r"x\[0, 0\]=.* after the call, but should be .* as before"),
    ("weight-scaled-in-place", "inputs-unchanged", r"weight\[0\]=.* after the call, but should be .* as before"),
    ("float-that-is-no-copy", "output-aliasing", "y lies in the memory of x, but should have its own"),
    ("one-buffer-for-all-results", "output-aliasing", "elements of y changed with a second call, but should be"),
    ("partial-sums-never-cleared", "poisoned-scratch", "as where freed memory holds zeros: it held others"),
)


def strides_ignored(x: Any, weight: Any) -> Any:
    """Memory is read from the first element on, as if it were contiguous."""
    start = np.lib.array_utils.byte_bounds(x)[0]
    at = x.__array_interface__["data"][0]
    inside = start == at and x.strides[-1] > 0
    read = np.lib.stride_tricks.as_strided(x, strides=(*x.strides[:-1], x.itemsize)) if inside else x
    return rms_norm(read, weight)


def test_strided_memory_read_as_contiguous() -> None:
    """The message names the layout; the contiguous input passes."""
    results = run("memory-layout", strides_ignored, RMS)
    wrong = {result.layout for result in findings(results)}
    assert "contiguous" not in wrong
    assert {"strided", "transposed"} <= wrong
    assert all("but should be" in result.message and result.layout in result.message for result in findings(results))
    assert any(result.witness is not None and "[..., ::2]" in result.witness.snippet for result in findings(results))


def test_layouts_that_are_refused_are_left_out() -> None:
    """Code that raises for what is not contiguous is honest, and is not flagged."""

    def contiguous_only(x: Any, weight: Any) -> Any:
        """Refuses strides."""
        if not x.flags.c_contiguous:
            raise ValueError("x must be contiguous")
        return rms_norm(x, weight)

    results = run("memory-layout", contiguous_only, RMS)
    assert findings(results) == []
    assert {result.layout for result in results} <= {"contiguous", "unaligned", "expanded", "channels_last", "transposed"}


def test_memory_is_not_judged_where_a_plain_input_is_wrong() -> None:
    """A wrong formula is the matter of accuracy: the check says so and is skipped."""
    (result,) = run("memory-layout", lambda x, weight: x, RMS, name="identity")
    assert result.outcome is Outcome.SKIPPED
    assert re.match("wrong on a plain input already, as accuracy says", result.message)


def test_what_is_declared_may_be_written() -> None:
    """In-place code that says so passes."""

    def in_place(x: Any, weight: Any) -> Any:
        """Writes into x."""
        x[...] = rms_norm(x, weight)
        return x

    assert findings(run("inputs-unchanged", in_place, RMS, mutates=("x",))) == []
    assert findings(run("output-aliasing", in_place, RMS, mutates=("x",))) == []
    undeclared = findings(run("inputs-unchanged", in_place, RMS, dtype="bfloat16"))
    assert re.match(r"x\[0, 0\]=.* after the call, but should be", undeclared[0].message)
    shared = findings(run("output-aliasing", in_place, RMS))
    assert shared[0].severity is Severity.WARNING
    assert re.match("y lies in the memory of x, but should have its own", shared[0].message)


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
