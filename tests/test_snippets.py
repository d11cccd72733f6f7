"""Every failure is shown by a script that fails on its own: sampled over the zoo."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import pytest

from normcheck.checks import Context, checks, run_check
from normcheck.faults import Fault, faults
from normcheck.results import Outcome, Result

torch = pytest.importorskip("torch")

# rates and ratios of noise are of many elements at once: no single one shows them
AGGREGATES = {"quantized-noise"}
SAMPLED = {
    "affine",
    "autocast",
    "block-wiring",
    "double-backward",
    "empty-batch",
    "finite-in-finite-out",
    "gradient-accumulation",
    "gradient-flow",
    "gradient-identities",
    "input-gradient",
    "inputs-unchanged",
    "invalid-sizes",
    "memory-layout",
    "mixed-dtypes",
    "mode-independence",
    "moments",
    "nonfinite-rows",
    "one-value-per-channel",
    "other-forms",
    "output-aliasing",
    "output-form",
    "output-overflow",
    "parameter-gradients",
    "poisoned-scratch",
    "quantized-rounding",
    "quantized-scale",
    "residual-aliasing",
    "residual-sum",
    "run-to-run",
    "running-cumulative",
    "running-steps",
    "running-update",
    "saved-statistics",
    "state-round-trip",
    "tracking-switch",
    "vmap",
    "worker-split",
}


def _found_by() -> dict[str, list[Fault]]:
    """The faults that each check is expected to find in quick."""
    found: dict[str, list[Fault]] = {}
    for fault in faults():
        for check in fault.expected if fault.profile == "quick" else ():
            found.setdefault(check, []).append(fault)
    return found


FOUND_BY = _found_by()
CASES = [
    pytest.param(check, marks=() if check in SAMPLED else pytest.mark.slow)
    for check in sorted(FOUND_BY)
    if check not in AGGREGATES
]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Scripts may set the number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def bad(check: str) -> list[Result]:
    """The failing results of the first of some faults that has some."""
    for fault in FOUND_BY[check][:4]:
        for dtype in fault.dtypes:
            found = run_check(checks()[check], Context(fault.implementation, dtype, "cpu", "quick"))
            failing = [result for result in found if result.outcome.bad]
            if failing:
                return failing
    return []


@pytest.mark.parametrize("check", CASES)
def test_failures_are_shown_by_scripts_that_fail(check: str) -> None:
    """Pasted into Python, the script ends in an AssertionError, or in what the code raised."""
    failing = bad(check)
    if not failing:
        pytest.skip("only warned of")
    shown = [result for result in failing if result.witness is not None]
    assert shown, failing[0].message
    for result in shown[:3]:
        assert result.witness is not None
        scope: dict[str, Any] = {"__name__": "pasted"}
        raised = Exception if result.outcome is Outcome.BROKEN or " raised " in result.message else AssertionError
        with pytest.raises(raised), contextlib.redirect_stdout(io.StringIO()):
            exec(compile(result.witness.snippet, "<pasted>", "exec"), scope)  # noqa: S102 - our own text
        assert "normcheck" not in result.witness.snippet.replace("normcheck.faults", "").replace("normcheck.norms", "")


def test_the_sample_is_of_checks_that_faults_fail() -> None:
    """No name in the sample is left over."""
    assert set(FOUND_BY) >= SAMPLED
