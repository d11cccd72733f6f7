"""Checks of quantized outputs: each fails on a kernel that quantizes wrongly, and passes sound ones."""

from __future__ import annotations

import re

import pytest

from normcheck.checks import Context, checks, run_check
from normcheck.faults import faults, sound
from normcheck.implementations import Quantized
from normcheck.results import Outcome

pytest.importorskip("torch")

FAULTS = {fault.name: fault for fault in faults()}
SOUND = {norm.name: norm for norm in sound()}
BITES = (
    ("double-rounding-by-bfloat16", "quantized-rounding", "intermediate='bfloat16', but should be None"),
    ("double-rounding-by-float16", "quantized-rounding", "intermediate='float16', but should be None"),
    ("intermediate-rounding-left-out", "quantized-rounding", "intermediate=None, but should be 'bfloat16'"),
    ("truncation-to-int8", "quantized-rounding", r"q\[.* but should be .*int8"),
    ("truncation-to-int8", "quantized-noise", "SQNR=.* but should be .* dB"),
    ("scale-of-the-whole-tensor", "quantized-scale", r"scale\[\d+\]=.* but should be max\|y\|/127"),
    ("scale-before-the-weight", "quantized-scale", r"scale\[\d+\]=.* but should be max\|y\|/127"),
    ("scale-rounded-where-it-is-used", "quantized-rounding", r"q\[.* but should be .*int8"),
)
SOUND_NAMES = ("fused-norm-and-float8", "fused-norm-and-wide-float8", "norm-then-float8", "norm-and-int8-by-row")


@pytest.mark.parametrize(("name", "check", "message"), BITES)
def test_fault_is_found_in_every_dtype(name: str, check: str, message: str) -> None:
    """The check fails on the fault for every input dtype, and its message says what was found instead."""
    for dtype in FAULTS[name].dtypes:
        found = run_check(checks()[check], Context(FAULTS[name].implementation, dtype, profile="quick"))
        failed = [result for result in found if result.outcome.bad]
        assert failed, dtype
        assert any(re.search(message, result.message) for result in failed), failed[0].message


def _results(name: str, check: str) -> list[dict[str, float]]:
    return [dict(r.measures) for r in run_check(checks()[check], Context(SOUND[name], "float32", profile="quick"))]


@pytest.mark.parametrize("name", SOUND_NAMES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sound_kernels_pass(name: str, dtype: str) -> None:
    """Fused and unfused kernels pass, each under the rounding that it declares."""
    context = Context(SOUND[name], dtype, profile="quick")
    results = [r for check in checks().values() if check.family == "quantized" for r in run_check(check, context)]
    assert [(r.check, r.message) for r in results if r.outcome.finding] == []
    assert {r.check for r in results if r.outcome is Outcome.PASSED} >= {"quantized-rounding", "quantized-noise"}


def test_mismatches_follow_their_law() -> None:
    """By way of bfloat16 about 2**-(8-4)/2 of all float8 values differ from a single rounding; without it almost none."""
    (twice, *_), (once, *_) = (
        _results("norm-then-float8", "quantized-rounding"),
        _results("fused-norm-and-float8", "quantized-rounding"),
    )
    assert twice["law"] == 2.0**-5
    assert 0.5 * twice["law"] < twice["mismatch"] < 1.5 * twice["law"]
    assert once["mismatch"] < 0.01 * twice["law"]


def test_noise_beside_an_outlier_follows_its_law() -> None:
    """int8 loses about 20 dB to an outlier ten times as large, and its noise is within 0.3 dB of the uniform law; float8 none."""
    int8, fp8 = _results("norm-and-int8-by-row", "quantized-noise"), _results("fused-norm-and-float8", "quantized-noise")
    assert [row["sqnr"] for row in int8] == pytest.approx([row["law"] for row in int8], abs=0.3)
    assert int8[1]["sqnr"] - int8[2]["sqnr"] == pytest.approx(20.0, abs=0.5)
    assert fp8[0]["sqnr"] - fp8[2]["sqnr"] == pytest.approx(0.0, abs=0.5)


def test_unknown_formats_are_refused() -> None:
    """Dtypes that no kernel quantizes to, or by way of, are named."""
    with pytest.raises(ValueError, match="dtype='int4', but should be one of"):
        Quantized(print, dtype="int4")
    with pytest.raises(ValueError, match="intermediate='float64', but should be None"):
        Quantized(print, intermediate="float64")
