"""Checks of shapes: each fails on a norm that is broken in its way, and passes sound ones."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from textbook import FAULTS, LN, RMS, SOUND, findings, layer_norm, rms_norm, run

from normcheck import BatchNorm
from normcheck.checks import Context, checks, run_check
from normcheck.implementations import frameworks
from normcheck.results import Outcome

CHECKS = ("ranks", "widths", "row-counts", "normalized-shape", "empty-batch", "one-value-per-channel")
SKIPS = "has no channels|has no normalized_shape|normalized_shape is fixed|an empty batch has no statistics"
ZOO = (
    ("work-divided-by-the-rows", "empty-batch", "raised ZeroDivisionError: .*, but should return an empty array"),
    ("empty-batch-loses-its-shape", "empty-batch", r"shape=\(0,\), but should be \(0, 8\)"),
    ("single-value-refused-in-evaluation", "one-value-per-channel", "one value per channel raised .*, but should be normalized"),
    ("single-pixel-is-passed-through", "one-value-per-channel", r"y\[.*\]=.*, but should be .*\[2, 4, 1\]"),
    ("stale-values-beyond-the-row", "widths", r"y\[.*\]=.*, but should be .*\[3, 1\]"),
    ("group-padded-to-a-block", "widths", r"y\[.*\]=.*, but should be"),
    ("last-vector-counted-twice", "widths", r"y\[.*\]=.*, but should be .*\[3, 5\]"),
    ("odd-row-spills-into-the-next", "widths", r"y\[[12], 0\]=.*, but should be"),
    ("block-of-rows-that-is-not-full", "row-counts", r"y\[8, .\]=0.0, but should be .*\[9, 5\]"),
    ("rows-beyond-65535", "row-counts", r"y\[6553\d, .\]=.*, but should be .*\[65537, 5\]"),
    ("row-number-in-16-bits", "row-counts", r"y\[65536, .\]=.*, but should be .*\[65537, 5\]"),
    ("width-in-16-bits", "widths", r"but should be .*\[3, 6553\d\]"),
)


def first_axis_only(x: Any, weight: Any, bias: Any) -> Any:
    """Code for matrices: axis 1 in the place of the last one."""
    return layer_norm(x, weight, bias) if x.ndim <= 2 else layer_norm(x.swapaxes(1, -1), None, None).swapaxes(1, -1)


def test_axis_one_for_the_last_one() -> None:
    """Rank 2 passes, the higher ones do not."""
    results = run("ranks", first_axis_only, LN)
    assert {len(result.shape) for result in results if result.outcome is Outcome.PASSED} >= {1, 2}
    assert {len(result.shape) for result in findings(results)} == {3, 4, 5}
    assert all(re.match(r"y\[.*, but should be", result.message) for result in findings(results))


def test_the_last_dimension_for_all_normalized_ones() -> None:
    """Statistics of the last axis alone fail for every normalized_shape of several dimensions."""

    def last_axis(x: Any, normalized_shape: tuple[int, ...], weight: Any, bias: Any) -> Any:
        """Ignores all dimensions but the last."""
        return layer_norm(x, weight, bias)

    def all_axes(x: Any, normalized_shape: tuple[int, ...], weight: Any, bias: Any) -> Any:
        """Sound: flattened, normalized, unflattened."""
        flat = x.reshape(*x.shape[: x.ndim - len(normalized_shape)], -1)
        n = layer_norm(flat, None, None, 1e-5).reshape(x.shape).astype(np.float32)
        return (n * weight.astype(np.float32) + bias.astype(np.float32)).astype(x.dtype)

    arguments = ("x", "normalized_shape", "weight", "bias")
    wrong = findings(run("normalized-shape", last_axis, LN, arguments=arguments))
    assert {result.regime for result in wrong} >= {"(3, 5)", "(2, 3, 4)"}
    assert re.search(r"\[x: float32\[4, 3, 5\], weight: float32, bias\]", wrong[0].message)
    assert findings(run("normalized-shape", all_axes, LN, arguments=arguments)) == []


def test_a_refused_width_is_skipped() -> None:
    """A kernel that raises for odd widths is honest."""

    def even_only(x: Any, weight: Any) -> Any:
        """Refuses odd widths."""
        if x.shape[-1] % 2:
            raise ValueError("width must be even")
        return rms_norm(x, weight)

    results = run("widths", even_only, RMS)
    assert findings(results) == []
    assert any("is refused: ValueError: width must be even" in result.message for result in results)


def test_one_value_that_stores_nan() -> None:
    """The output is right, but n/(n - 1) has made the running variance NaN for ever."""

    def bessel(x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: float) -> Any:
        """Unbiased running variance without a guard."""
        h = np.moveaxis(x, 1, 0).reshape(x.shape[1], -1).astype(np.float32)
        c = h - h.mean(1, keepdims=True)
        variance = (c * c).mean(1, keepdims=True)
        n = c / np.sqrt(variance + np.float32(1e-5)) * weight[:, None] + bias[:, None]
        count = np.float32(h.shape[1])
        unbiased = variance[:, 0] * count / (count - 1)
        y = np.moveaxis(n.reshape(x.shape[1], x.shape[0], *x.shape[2:]), 0, 1).astype(x.dtype)
        return y, h.mean(1), (1 - momentum) * running_var + momentum * unbiased

    wrong = findings(run("one-value-per-channel", bessel, BatchNorm(), training=True))
    assert re.match("running_var=nan after 1 values per channel, but should stay finite", wrong[0].message)


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
