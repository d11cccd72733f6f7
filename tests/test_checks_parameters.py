"""Checks of parameters: each fails on a norm that is broken in its way, and passes sound ones."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from textbook import FAULTS, LN, RMS, SOUND, findings, layer_norm, rms_norm, run

from normcheck import RMSNorm
from normcheck.checks import Context, checks, run_check
from normcheck.implementations import frameworks
from normcheck.results import Outcome

CHECKS = ("parameter-range", "parameter-layouts")
ZOO = (
    ("clipped-bias", "parameter-range", r"y\[.*\]=.*, but should be .* with large biases"),
    ("clipped-weight", "parameter-range", r"y\[.*\]=.*, but should be .* with large weights"),
    ("weights-without-a-positive-one", "parameter-range", r"y\[.*\]=.*, but should be .* with negative weights"),
    ("weight-of-unit-stride-assumed", "parameter-layouts", r"y\[.*\]=.*, but should be .*parameters: strided"),
    ("parameters-from-an-aligned-address", "parameter-layouts", r"y\[.*\]=.*, but should be .*parameters: unaligned"),
    ("statistics-of-unit-stride-assumed", "parameter-layouts", r"y\[.*\]=.*, but should be .*parameters: strided"),
)


@pytest.mark.parametrize(("name", "check", "message"), ZOO)
def test_fault_of_the_zoo_is_found_in_every_dtype(name: str, check: str, message: str) -> None:
    """The check finds the fault in each of its dtypes, and its message says which parameters show it."""
    fault = FAULTS[name]
    if frameworks()[fault.implementation.framework].available() is not None:
        pytest.skip("the framework is not installed")
    for dtype in fault.dtypes:
        wrong = findings(run_check(checks()[check], Context(fault.implementation, dtype, profile="quick")))
        assert wrong, dtype
        assert re.search(message, wrong[0].message), wrong[0].message


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_textbook_norms_pass(check: str, dtype: str) -> None:
    """Sound code in numpy passes in each dtype, also with weights that are read backwards."""
    for function, norm in ((layer_norm, LN), (rms_norm, RMS)):
        results = run(check, function, norm, dtype)
        assert findings(results) == []
        assert any(result.outcome is Outcome.PASSED for result in results)


def test_weights_around_zero_pass_with_an_offset() -> None:
    """The ranges are those of offset + w."""

    def gemma(x: Any, weight: Any) -> Any:
        """1 + w, in float32."""
        return rms_norm(x, None if weight is None else np.float32(1) + weight.astype(np.float32))

    assert findings(run("parameter-range", gemma, RMSNorm(eps=1e-6, weight_offset=1.0))) == []


def test_a_norm_without_parameters_is_skipped() -> None:
    """There is nothing to vary."""
    for check in CHECKS:
        (result,) = run(check, lambda x: rms_norm(x, None), RMS, arguments=("x",), name="bare")
        assert result.outcome is Outcome.SKIPPED
        assert "takes n" in result.message


def test_layouts_that_are_refused_are_left_out() -> None:
    """Code that raises for a strided weight is honest."""

    def contiguous_only(x: Any, weight: Any) -> Any:
        """Refuses strides."""
        if weight is not None and not weight.flags.c_contiguous:
            raise ValueError("weight must be contiguous")
        return rms_norm(x, weight)

    results = run("parameter-layouts", contiguous_only, RMS)
    assert findings(results) == []
    assert {result.regime for result in results} == {"unaligned"}


def test_the_witness_lays_the_weight_out_as_the_call_did() -> None:
    """What is written down makes the weight every second element of a larger array."""

    def unit_stride(x: Any, weight: Any) -> Any:
        """Reads on from the first weight."""
        near = np.lib.stride_tricks.as_strided(weight, strides=(weight.itemsize,)) if weight.strides[0] > 0 else weight
        return rms_norm(x, near)

    (wrong,) = findings(run("parameter-layouts", unit_stride, RMS))
    assert wrong.regime == "strided"
    assert wrong.witness is not None
    assert re.search(r"weight = .*\[\.\.\., ::2\]", wrong.witness.snippet)


@pytest.mark.parametrize("name", ["batch-norm-with-statistics", "two-pass"])
def test_sound_norms_pass(name: str) -> None:
    """Given statistics may lie anywhere, too."""
    if frameworks()[SOUND[name].framework].available() is not None:
        pytest.skip("the framework is not installed")
    for check in CHECKS:
        assert findings(run_check(checks()[check], Context(SOUND[name], "bfloat16", profile="quick"))) == []
