"""Checks of special values: each fails on a norm that is broken in its way, and passes sound ones."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from textbook import FAULTS, LN, RMS, SOUND, findings, rms_norm, run

from normcheck import Contract, RMSNorm
from normcheck.checks import Context, checks, run_check
from normcheck.implementations import frameworks
from normcheck.results import Outcome, Severity

CHECKS = ("nonfinite-rows", "finite-in-finite-out", "signed-zeros", "flush-to-zero", "output-overflow")
SKIPS = "subtracts a mean|statistics are subtracted"
ZOO = (
    ("nan-left-out-of-the-statistics", "nonfinite-rows", r"y\[6, 1\]=.* in a row with nan at 0, but should be NaN"),
    ("nan-replaced-by-zero", "nonfinite-rows", r"y\[6, 0\]=.* in a row with nan at 0, but should be NaN"),
    ("infinity-clamped", "nonfinite-rows", r"y\[6, 0\]=.* in a row with inf at 0, but should be NaN"),
    ("flag-added-up-over-the-batch", "nonfinite-rows", "y.*=nan, but should be .* as beside a finite row: row 6 holds nan"),
    ("nan-of-one-pixel-spreads", "nonfinite-rows", "y.*=nan, but should be .* as beside a finite row: row 6 holds nan"),
)


def negative_variance(x: Any, weight: Any, bias: Any) -> Any:
    """One pass in float32 without a clamp."""
    h = x.astype(np.float32)
    variance = (h * h).mean(-1, keepdims=True) - h.mean(-1, keepdims=True) ** 2
    n = (h - h.mean(-1, keepdims=True)) / np.sqrt(variance + np.float32(1e-5))
    return (n * weight.astype(np.float32) + bias.astype(np.float32)).astype(x.dtype)


def test_a_negative_variance_gives_nan() -> None:
    """The row is finite, the result is not: the message shows both."""
    wrong = findings(run("finite-in-finite-out", negative_variance, LN))
    assert re.match(r"y\[\d+, \d\]=nan for the finite row \[4\d\d\d\d,.*\], but should be finite", wrong[0].message)


def flushing(x: Any, weight: Any) -> Any:
    """Subnormal inputs count as zero."""
    tiny = np.finfo(np.float16).tiny
    return rms_norm(np.where(np.abs(x) < tiny, np.zeros_like(x), x), weight)


def test_flushed_inputs_warn_unless_subnormals_are_promised() -> None:
    """Zeros in the place of normalized subnormals have a name of their own, and are an error only by contract."""
    (warned,) = findings(run("flush-to-zero", flushing, RMS, "float16"))
    assert (warned.outcome, warned.severity, warned.regime) == (Outcome.WARNED, Severity.WARNING, "subnormal input")
    assert re.search(r"y\[.*\]=-?0.0 for x=.*, but should be .*: a subnormal input is flushed to zero", warned.message)
    (failed,) = findings(run("flush-to-zero", flushing, RMS, "float16", contract=Contract(subnormals=True)))
    assert (failed.outcome, failed.severity) == (Outcome.FAILED, Severity.ERROR)


@pytest.mark.parametrize("regime", ["weight", "result"])
def test_flushed_results_warn(regime: str) -> None:
    """Results below the smallest normal value that come out as zero are told from rounding."""

    def flushed(x: Any, weight: Any) -> Any:
        """Subnormal results count as zero."""
        y = rms_norm(x, weight)
        return np.where(np.abs(y) < np.finfo(np.float16).tiny, np.zeros_like(y), y)

    wrong = {result.regime: result.message for result in findings(run("flush-to-zero", flushed, RMS, "float16"))}
    assert re.search(f"a subnormal {regime} is flushed to zero", wrong[f"subnormal {regime}"])


def test_a_lost_sign_of_zero_warns_and_a_padding_that_leaks_fails() -> None:
    """-0.0 that becomes 0.0 is a warning; a zero that does not stay one is an error."""
    (warned,) = findings(run("signed-zeros", lambda x, weight: rms_norm(x, weight) + np.float32(0), RMS, name="adds_zero"))
    assert (warned.outcome, warned.severity) == (Outcome.WARNED, Severity.WARNING)
    assert re.search("=0.0 for x=-?0.0, but should be -0.0", warned.message)
    leaks = run("signed-zeros", lambda x, weight: rms_norm(x + np.float32(1e-6), weight), RMS, name="adds_a_little")
    assert findings(leaks)[0].outcome is Outcome.FAILED
    assert re.search("for x=-?0.0, but should be -?0.0", findings(leaks)[0].message)


def without_eps(x: Any, weight: Any) -> Any:
    """A sound RMSNorm in float32 that has no eps: a row of zeros is 0/0."""
    h = x.astype(np.float32)
    with np.errstate(invalid="ignore"):
        return (h / np.sqrt((h * h).mean(-1, keepdims=True)) * weight.astype(np.float32)).astype(x.dtype)


@pytest.mark.parametrize("norm", [RMSNorm(eps=0.0), RMSNorm(eps_placement="none")], ids=["zero", "none"])
def test_a_row_of_zeros_without_eps_says_nothing_of_signs(norm: RMSNorm) -> None:
    """Without eps NaN is right in a row of zeros; zeros beside other elements are judged; without such, the check is skipped."""
    (sound,) = run("signed-zeros", without_eps, norm)
    assert (sound.outcome, sound.message) == (Outcome.PASSED, "")
    leaks = run("signed-zeros", lambda x, weight: without_eps(x + np.float32(1e-6), weight), norm, name="adds_a_little")
    assert findings(leaks)[0].outcome is Outcome.FAILED
    (narrow,) = run("signed-zeros", without_eps, norm, widths=(1,))
    assert (narrow.outcome, narrow.message) == (Outcome.SKIPPED, "every row with a zero is 0/0 without eps")


@pytest.mark.parametrize(("overflow", "due"), [("inf", "inf"), ("saturate", "65504.0"), ("nan", "nan")])
def test_overflow_of_the_output_is_judged_by_the_contract(overflow: Any, due: str) -> None:
    """Infinities, the largest value or NaN: each passes where it is promised and fails where another is."""

    def saturating(x: Any, weight: Any) -> Any:
        """Cut to the largest finite value."""
        h = x.astype(np.float32)
        n = h / np.sqrt((h * h).mean(-1, keepdims=True) + np.float32(1e-6)) * weight.astype(np.float32)
        return np.clip(n, -65504, 65504).astype(x.dtype)

    results = run("output-overflow", saturating, RMS, "float16", contract=Contract(overflow=overflow))
    if overflow == "saturate":
        assert [result.outcome for result in results] == [Outcome.PASSED]
    else:
        assert re.search(f"=-?65504.0 where the exact value is .*, but should be -?{due}", findings(results)[0].message)


def test_an_infinity_without_a_mean_may_leave_zeros() -> None:
    """[1, inf, 2] gives [0, NaN, 0] by the plain formula of RMSNorm, which is allowed; a 1 at the infinity is not."""
    assert findings(run("nonfinite-rows", rms_norm, RMS)) == []

    def one_at_infinity(x: Any, weight: Any) -> Any:
        """The limit of x/|x|."""
        y = rms_norm(x, weight)
        return np.where(np.isinf(x), np.sign(x), y)

    wrong = findings(run("nonfinite-rows", one_at_infinity, RMS))
    assert re.search("in a row with inf at 0, but should be NaN", wrong[0].message)


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
