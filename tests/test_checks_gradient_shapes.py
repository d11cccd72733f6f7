"""Checks of gradients for unusual inputs: each fails on a backward pass that is broken in its way, and passes sound ones."""

from __future__ import annotations

import re
from typing import Any

import pytest
from textbook import FAULTS, LN, SOUND, findings

from normcheck import Implementation
from normcheck.checks import Context, checks, run_check
from normcheck.checks.geometry import HIDDEN, arrangements
from normcheck.implementations import implementations
from normcheck.results import Outcome

torch: Any = pytest.importorskip("torch")

CHECKS = ("gradient-shapes", "gradient-linearity", "gradient-subsets")
ZOO = (
    ("parameter-gradients-of-the-first-sequence", "gradient-shapes", r"dweight\[\d+\]=.*, but should be .* \[x: \w+\[3, 4, 24\]"),
    ("mean-forgotten-with-four-axes", "gradient-shapes", r"dx\[.*\]=.*, but should be .* \[x: \w+\[\d+, \d+, \d+, 24\]"),
    ("half-a-block-more-than-one", "gradient-shapes", r"dx\[.*\]=.*\[6, 768\]"),
    ("parameters-beyond-the-shared-memory", "gradient-shapes", r"dweight\[4\d\d\d\]=0.0, but should be .*\[6, 4609\]"),
    ("second-stage-of-the-sum-left-out", "gradient-shapes", r"dweight\[\d+\]=.*\[2100, 64\]"),
    ("gradient-clipped-inside", "gradient-linearity", r"dx\[.*\]=.*, but should be .*; dy \* 2\*\*(8|10|24|any)"),
    ("small-gradients-flushed", "gradient-linearity", r"dx\[.*\]=-?0.0, but should be .*; dy \* 2\*\*-"),
    ("step-skipped-where-the-gradient-is-small", "gradient-linearity", r"dweight\[\d+\]=-?0.0, but should be .*; dy \* 2\*\*-"),
    ("weight-gradient-behind-a-frozen-input", "gradient-subsets", r"dweight\[\d+\]=.*, but should be .*; of weight"),
    ("frozen-weight-taken-for-none", "gradient-subsets", r"dx\[.*\]=.*, but should be .*; of x"),
    ("gradient-taken-for-contiguous", "gradient-layouts", r"dx\[.*\]=.*, but should be .*, dy: "),
    ("expanded-gradient-counted-once", "gradient-layouts", r"dweight\[\d+\]=.*, but should be .*, dy: expanded"),
)


@pytest.mark.parametrize(("name", "check", "message"), ZOO)
def test_fault_is_found_in_every_dtype(name: str, check: str, message: str) -> None:
    """The check finds the fault in each of its dtypes, and its message names the gradient and the input that shows it."""
    for dtype in FAULTS[name].dtypes:
        wrong = findings(run_check(checks()[check], Context(FAULTS[name].implementation, dtype, profile="quick")))
        assert wrong, dtype
        assert re.search(message, wrong[0].message), wrong[0].message


@pytest.mark.parametrize("name", ["numpy-with-a-backward-function", "fused-add-and-norm", "batch-norm-with-state"])
@pytest.mark.parametrize("check", CHECKS)
def test_sound_norms_pass(name: str, check: str) -> None:
    """A backward function, a residual and a module pass in every dtype; what has no subsets says why."""
    for dtype in SOUND[name].dtypes:
        results = run_check(checks()[check], Context(SOUND[name], dtype, profile="quick"))
        assert findings(results) == []
        skipped = [result.message for result in results if result.outcome is Outcome.SKIPPED]
        assert skipped in ([], ["the backward pass is a function, which gives all gradients"])


def test_code_that_takes_x_alone_has_no_subsets() -> None:
    """There is nothing whose gradient could be asked for without that of x."""
    bare = Implementation(lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]), LN, arguments=("x",))
    (result,) = run_check(checks()["gradient-subsets"], Context(bare, "float32", profile="quick"))
    assert result.outcome is Outcome.SKIPPED
    assert "takes nothing but x" in result.message


def test_a_normalized_shape_that_the_code_refuses_is_no_fault_of_its_gradients() -> None:
    """Such a setting is left out, as ``normalized-shape`` tells of it; the others are judged."""

    def of_one_axis(x: Any, normalized_shape: tuple[int, ...], weight: Any, bias: Any, eps: float) -> Any:
        if len(normalized_shape) > 1:
            raise ValueError("one axis alone")
        return torch.nn.functional.layer_norm(x, normalized_shape, weight, bias, eps)

    arguments = ("x", "normalized_shape", "weight", "bias", "eps")
    narrow = Implementation(of_one_axis, LN, arguments=arguments)
    results = run_check(checks()["gradient-shapes"], Context(narrow, "float32", profile="quick"))
    assert findings(results) == []
    settings = {result.regime for result in results}
    assert any("eps=0.01" in setting for setting in settings)
    assert not any("(4, 6)" in setting for setting in settings)


def test_a_wrong_gradient_for_a_frozen_input_carries_the_subset() -> None:
    """The result says which gradients were asked for."""
    fault = FAULTS["weight-gradient-behind-a-frozen-input"]
    results = run_check(checks()["gradient-subsets"], Context(fault.implementation, "float32", profile="quick"))
    assert {result.regime for result in findings(results)} == {"of weight", "of weight and bias"}


@pytest.mark.parametrize("name", ["torch.nn.LayerNorm", "torch.nn.BatchNorm2d[train]", "torch.nn.functional.group_norm"])
def test_arrangements_are_those_that_the_code_takes(name: str) -> None:
    """Short and long axes stand at every place, in ranks that the code has; more of them where there is time."""
    (own,) = (i for i in implementations("torch") if i.name == name)
    quick, standard = (tuple(arrangements(Context(own, "float32", profile=profile))) for profile in ("quick", "standard"))
    assert set(quick) < set(standard)
    assert all(own.refuses(shape) is None for shape in standard)
    images = [shape for shape in quick if len(shape) == 4]
    assert any(shape[2] > shape[3] for shape in images)
    assert any(shape[2] < shape[3] for shape in images)
    for axis in range(3 if name != "torch.nn.BatchNorm2d[train]" else 4):
        longest = max(shape[axis] for shape in quick if len(shape) > max(axis, 2))
        assert longest > 70, axis


def test_hidden_sizes_are_sorted_and_given_once() -> None:
    """The table of widths has no double."""
    assert list(HIDDEN) == sorted(set(HIDDEN))
