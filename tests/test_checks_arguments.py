"""Checks of arguments: each fails on a norm that accepts what it should refuse, and passes one that refuses it."""

from __future__ import annotations

import re

import pytest

from normcheck.checks import Context, checks, run_check
from normcheck.faults import faults, sound
from normcheck.implementations import implementations
from normcheck.results import Outcome

pytest.importorskip("torch")

FAULTS = {fault.name: fault for fault in faults()}
SOUND = {norm.name: norm for norm in sound()}
TORCH = {one.name: one for one in implementations("torch")}
CHECKS = ("invalid-epsilon", "invalid-sizes", "invalid-dtype")
BITES = (
    ("negative-eps-accepted", "invalid-epsilon", "eps=-1.0 .* accepted, but should be refused"),
    ("nan-eps-accepted", "invalid-epsilon", "^eps=nan .* accepted, but should be refused"),
    ("long-weights-accepted", "invalid-sizes", "a weight of 65 elements for 64 is accepted, but should be refused"),
    ("normalized-shape-ignored", "invalid-sizes", r"normalized_shape=\(65,\) for rows of 64 elements is accepted"),
    ("groups-that-leave-channels-out", "invalid-sizes", "num_groups=3 for 16 channels is accepted, but should be refused"),
    ("integers-cast-back", "invalid-dtype", "x of int32 is accepted, but should be refused; y is int32"),
)


@pytest.mark.parametrize(("name", "check", "message"), BITES)
def test_fault_is_found(name: str, check: str, message: str) -> None:
    """The check finds the fault, as a warning where the formula has a value, and says what was accepted."""
    found = run_check(checks()[check], Context(FAULTS[name].implementation, "float32", profile="quick"))
    wrong = [result for result in found if result.outcome.finding]
    assert wrong
    assert any(re.search(message, result.message) for result in wrong), wrong[0].message
    assert {result.outcome for result in wrong} <= {Outcome.WARNED if check == "invalid-epsilon" else Outcome.FAILED}


@pytest.mark.parametrize("check", CHECKS)
def test_norm_that_looks_at_its_arguments_passes(check: str) -> None:
    """What refuses everything passes."""
    found = run_check(checks()[check], Context(SOUND["layer-norm-that-refuses"], "float32", profile="quick"))
    assert {result.outcome for result in found} == {Outcome.PASSED}


def test_examples_are_not_asked() -> None:
    """Code that says that it validates nothing is skipped with that reason."""
    (result,) = run_check(checks()["invalid-epsilon"], Context(SOUND["two-pass"], "float32", profile="quick"))
    assert (result.outcome, result.message) == (Outcome.SKIPPED, "validates=False: the code looks at no argument")


@pytest.mark.parametrize("name", ["torch.nn.LayerNorm", "torch.nn.functional.group_norm", "torch.nn.functional.instance_norm"])
def test_torch_accepts_a_negative_eps(name: str) -> None:
    """torch's layer, group and instance norms accept eps=-1, by module and by function."""
    (result,) = run_check(checks()["invalid-epsilon"], Context(TORCH[name], "float32", profile="quick"))
    assert result.outcome is Outcome.WARNED
    assert "eps=-1.0" in result.message


def test_torch_batch_norm_refuses_a_negative_eps() -> None:
    """torch's batch norm refuses it, and accepts NaN."""
    (result,) = run_check(checks()["invalid-epsilon"], Context(TORCH["torch.nn.functional.batch_norm[train]"], "float32"))
    assert "eps=-1" not in result.message
    assert "eps=nan" in result.message
