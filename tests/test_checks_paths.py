"""The operators that a call dispatches are written down, and a path that was to be forced and was not is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from normcheck.audit import audit
from normcheck.implementations import Implementation, implementations
from normcheck.norms import RMSNorm
from normcheck.reporters.markdown import render
from normcheck.results import Outcome, Result

ROWS = {one.name: one for one in implementations("torch")}
ID = "dispatched-operators"


def judged(implementation: Implementation) -> Result:
    """The one result of the check."""
    found = audit([implementation], profile="quick", checks=[ID], dtypes=["float32"])
    (result,) = (result for result in found.results if result.check == ID)
    return result


@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("torch.nn.functional.layer_norm", "aten.native_layer_norm"),
        ("torch.nn.functional.rms_norm", "aten.pow, aten.mean, aten.add_, aten.rsqrt, aten.mul"),
        ("torch.native_group_norm", "aten.native_group_norm"),
        ("torch.batch_norm_with_update", "aten._batch_norm_with_update"),
        ("torch.batch_norm_without_update", "aten._native_batch_norm_legit_no_training"),
        ("torch.mkldnn_batch_norm[eval]", "aten.to_mkldnn, aten.empty, aten.native_batch_norm, aten._to_dense"),
    ],
)
def test_what_ran_is_written_down(name: str, operators: str) -> None:
    """The message of a passed result names the operators in order, forced or not."""
    result = judged(ROWS[name])
    assert (result.outcome, result.message) == (Outcome.PASSED, f"ran {operators}")


def test_a_path_that_is_not_taken_is_a_warning() -> None:
    """A row that names another operator than the one that runs does not speak of what it says."""
    result = judged(replace(ROWS["torch.nn.functional.layer_norm"], path="aten._fused_layer_norm"))
    assert result.outcome is Outcome.WARNED
    assert "ran aten.native_layer_norm, but should run aten._fused_layer_norm [x: float32[8, 64]" in result.message


def test_other_frameworks_tell_of_no_operators() -> None:
    """numpy has no dispatcher: skipped with the reason."""
    norm = Implementation(lambda x, weight: x, RMSNorm(), framework="numpy", name="identity")
    assert judged(norm).message == "numpy tells of no operators"


def test_a_path_of_a_device_that_is_not_here_says_so() -> None:
    """cuDNN's path is planned on every machine, and without CUDA skipped with what torch finds."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("CUDA is here")
    result = judged(ROWS["torch.batch_norm_of_cudnn[train]"])
    assert result.outcome is Outcome.SKIPPED
    assert result.message.startswith("device='cuda', but torch ")


def test_the_report_says_what_ran() -> None:
    """Implementations that run the same operators share a line."""
    rows = [ROWS[name] for name in ("torch.nn.functional.layer_norm", "torch.nn.LayerNorm", "torch.nn.functional.rms_norm")]
    page = render(audit(rows, profile="quick", checks=[ID], dtypes=["float32"]))
    assert "## Which operators ran" in page
    assert "| `aten.native_layer_norm` | cpu | `torch.nn.LayerNorm`, `torch.nn.functional.layer_norm` |" in page
