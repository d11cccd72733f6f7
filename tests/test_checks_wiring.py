"""Checks of residuals and of blocks: each fails on a norm that is wired wrongly, and passes sound ones."""

from __future__ import annotations

import re

import pytest

from normcheck.checks import Context, checks, run_check
from normcheck.faults import faults, sound
from normcheck.implementations import Block
from normcheck.results import Outcome

pytest.importorskip("torch")

FAULTS = {fault.name: fault for fault in faults()}
SOUND = {norm.name: norm for norm in sound()}
BITES = (
    ("sum-kept-in-float32", "residual-sum", "residual_rounding='compute', but should be 'storage'"),
    ("sum-rounded-to-storage", "residual-sum", "residual_rounding='storage', but should be 'compute'"),
    ("old-residual-returned", "residual-sum", r"new_residual\[.* but should be"),
    ("normalized-residual-returned", "residual-sum", r"new_residual\[.* but should be"),
    ("residual-added-after-the-norm", "residual-sum", r"y\[.* but should be .* residual"),
    ("residual-out-of-scratch-memory", "residual-absent", "nan, but should be .* as with a residual of zeros"),
    ("absent-residual-counts-as-x", "residual-absent", "but should be .* as with a residual of zeros"),
    ("sum-written-into-the-residual", "residual-aliasing", r"residual\[.* after the call, but should still be"),
    ("product-in-place-of-what-float-returned", "residual-aliasing", r"x\[.* after the call, but should still be"),
    ("norm-before-the-branch-point", "block-wiring", r"but should be x \+ f\(z\)"),
    ("sublayer-before-the-norm", "block-wiring", r"z\[.* but should be .* what f is given"),
    ("post-norm-under-the-name-of-pre-norm", "block-wiring", r"z\[.* but should be .* what f is given"),
    ("skip-forgotten", "block-wiring", r"y\[.* but should be .* post, f="),
    ("skip-around-the-norm", "block-wiring", r"y\[.* but should be .* post, f="),
    ("alpha-on-the-sublayer", "block-wiring", r"y\[.* but should be .* deep, f=.*alpha="),
    ("alpha-on-both-branches", "block-wiring", r"y\[.* but should be .* deep, f=.*alpha="),
    ("deep-norm-without-its-norm", "block-wiring", r"y\[.* but should be .* deep, f="),
    ("gradient-of-the-residual-forgotten", "input-gradient", r"dx\[.* but should be"),
)
SOUND_NAMES = (
    "fused-add-and-norm",
    "fused-add-and-norm-in-float32",
    "pre-norm-block",
    "post-norm-block",
    "deep-norm-block",
)


@pytest.mark.parametrize(("name", "check", "message"), BITES)
def test_fault_is_found_in_every_dtype(name: str, check: str, message: str) -> None:
    """The check fails on the fault in each of its dtypes, and its message says what is wrong."""
    for dtype in FAULTS[name].dtypes:
        found = run_check(checks()[check], Context(FAULTS[name].implementation, dtype, profile="quick"))
        failed = [result for result in found if result.outcome.bad]
        assert failed, dtype
        assert any(re.search(message, result.message) for result in failed), failed[0].message


@pytest.mark.parametrize("name", SOUND_NAMES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_sound_wiring_passes(name: str, dtype: str) -> None:
    """Both roundings of the sum and all three wirings pass."""
    context = Context(SOUND[name], dtype, profile="quick")
    results = [r for check in checks().values() if check.family == "wiring" for r in run_check(check, context)]
    assert [(r.check, r.message) for r in results if r.outcome.finding] == []
    assert Outcome.PASSED in {r.outcome for r in results}


def test_unknown_wiring_is_refused() -> None:
    """A wiring that is not known is named with the known ones."""
    with pytest.raises(ValueError, match="wiring='sandwich', but should be one of pre, post, deep"):
        Block(print, "sandwich")  # type: ignore[arg-type]
