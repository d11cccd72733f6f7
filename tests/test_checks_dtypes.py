"""Checks of dtype policy and inner precision: each fails on a norm that is broken in its way, and passes sound ones."""

from __future__ import annotations

import re

import pytest

from normcheck.checks import Context, checks, run_check
from normcheck.faults import faults, sound
from normcheck.implementations import Implementation, implementations
from normcheck.norms import RMSNorm
from normcheck.results import Outcome, Result

pytest.importorskip("torch")

FAULTS = {fault.name: fault for fault in faults()}
SOUND = {norm.name: norm for norm in sound()}
BITES = (
    ("promotion-by-float32-weights", "mixed-dtypes", "dtype=float32, but should be .*weight: float32"),
    ("output-in-the-dtype-of-the-weight", "mixed-dtypes", "dtype=float32, but should be .*weight: float32"),
    ("weights-rounded-to-the-dtype-of-x", "mixed-dtypes", r"y\[.* but should be .*weight: float32"),
    ("output-in-the-dtype-of-autocast", "autocast", "dtype=bfloat16 under autocast, but should be float32 or wider"),
    ("mean-square-by-a-matrix-product", "autocast", r"y\[.* but should be .*autocast to bfloat16"),
    ("cast-of-the-other-model", "cast-order", "cast='before_weight', but should be 'once'"),
    ("late-cast", "cast-order", "cast='once', but should be 'before_weight'"),
    ("offset-weight-in-float16", "offset-weight-precision", r"y\[.* but should be"),
    ("eps-rounded-to-the-input", "epsilon-precision", "nan, but should be .*eps=1e-08"),
    ("default-eps-of-the-dtype", "default-epsilon", "eps=None acts as .* but should be 1.19e-07 as in float32"),
    ("statistics-kept-in-the-dtype-of-x", "saved-statistics", "mean is kept in .* but should be in float32"),
    ("reciprocal-deviation-kept-in-bfloat16", "saved-statistics", r"rstd\[\d\]=.* but should be"),
    ("variance-kept-for-its-reciprocal-root", "saved-statistics", r"rstd\[\d\]=.* but should be"),
    ("count-in-the-dtype-of-x", "narrow-range", r"y\[.* but should be .*2049"),
    ("squares-beyond-the-range-of-x", "narrow-range", r"y\[.* but should be"),
)
FAMILIES = ("dtypes", "precision")


@pytest.mark.parametrize(("name", "check", "message"), BITES)
def test_fault_is_found_in_every_dtype(name: str, check: str, message: str) -> None:
    """The check finds the fault in each of its dtypes, and its message says what is wrong."""
    for dtype in FAULTS[name].dtypes:
        found = run_check(checks()[check], Context(FAULTS[name].implementation, dtype, profile="quick"))
        wrong = [result for result in found if result.outcome.finding]
        assert wrong, dtype
        assert any(re.search(message, result.message) for result in wrong), wrong[0].message


def _results(context: Context) -> list[Result]:
    return [r for check in checks().values() if check.family in FAMILIES for r in run_check(check, context)]


@pytest.mark.parametrize("name", ["two-pass", "llama", "t5", "gemma", "layer-norm-that-keeps-its-statistics", "query-key-norm"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sound_norms_pass(name: str, dtype: str) -> None:
    """Both cast orders, offset weights, promotion as declared and kept statistics pass."""
    results = _results(Context(SOUND[name], dtype, profile="quick"))
    assert [(r.check, r.message) for r in results if r.outcome.finding] == []
    assert {r.check for r in results if r.outcome is Outcome.PASSED} >= {"cast-order", "epsilon-precision", "narrow-range"}


def test_torch_keeps_16_bit_statistics() -> None:
    """torch's native_layer_norm keeps mean and rstd in bfloat16 for bfloat16 input."""
    native = {i.name: i for i in implementations("torch")}["torch.native_layer_norm"]
    (result,) = run_check(checks()["saved-statistics"], Context(native, "bfloat16", profile="quick"))
    assert result.outcome is Outcome.FAILED
    assert "mean is kept in bfloat16, but should be in float32" in result.message


def test_a_default_eps_that_16_bit_cannot_show_is_no_difference() -> None:
    """An eps of 1e-12 for None is far below what y tells of it in bfloat16; in float32 it shows."""
    torch = pytest.importorskip("torch")

    def rms(x, weight, eps):
        return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-12 if eps is None else eps)

    known = Implementation(rms, RMSNorm(), dtypes=("bfloat16",), arguments=("x", "weight", "eps"))
    (result,) = run_check(checks()["default-epsilon"], Context(known, "bfloat16", profile="quick"))
    assert result.outcome is Outcome.PASSED
    assert result.measures["eps"] != result.measures["eps_float32"]


def test_default_eps_of_torch_is_that_of_float32() -> None:
    """torch's rms_norm takes the machine epsilon of float32 for None in 16 bit, and passes."""
    rms = {i.name: i for i in implementations("torch")}["torch.nn.functional.rms_norm"]
    (result,) = run_check(checks()["default-epsilon"], Context(rms, "bfloat16", profile="quick"))
    assert result.outcome is Outcome.PASSED
    assert result.measures["eps_float32"] == pytest.approx(2.0**-23, rel=1e-3)
