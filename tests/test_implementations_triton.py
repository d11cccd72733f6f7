"""Kernels in Triton's interpreter: Liger's and torchnorm's. Run with TRITON_INTERPRET=1, or on a GPU."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from halves import assert_halves, inputs_for

from normcheck.implementations import Implementation, Inputs, backward, call, frameworks, implementations, left_out, snippet
from normcheck.implementations.liger import builtins as of_liger
from normcheck.implementations.torchnorm import builtins as of_torchnorm
from normcheck.implementations.triton import INTERPRETED

ADAPTER = frameworks()["triton"]
RUNS = INTERPRETED and ADAPTER.available() is None
ROWS = {one.name: one for one in implementations("triton")} if RUNS else {}
CASES = [(one, dtype) for one in ROWS.values() for dtype in one.dtypes]


@pytest.mark.parametrize(("implementation", "dtype"), CASES, ids=lambda value: getattr(value, "name", value))
def test_the_exact_answer_is_given_where_there_is_one(implementation: Implementation, dtype: str) -> None:
    """Signs with eps = 3 give halves exactly, through weight, bias, offset, groups and a residual of zeros."""
    assert_halves(implementation, dtype)


@pytest.mark.skipif(not RUNS, reason="no interpreter")
def test_bfloat16_is_left_to_gpus() -> None:
    """The interpreter truncates to bfloat16, so nothing is concluded in it."""
    assert {dtype for _, dtype in CASES} == {"float32", "float16"}


@pytest.mark.skipif(not RUNS, reason="no interpreter")
def test_every_kernel_is_there_or_its_library_is_said_to_be_missing() -> None:
    """A library of the family is either represented or named as left out."""
    said = " ".join([*ROWS, *left_out("triton")])
    assert all(name in said for name in ("liger", "torchnorm"))


@pytest.mark.parametrize("name", [name for name in ROWS if "dd" in name])
def test_the_residual_is_added_and_comes_back(name: str) -> None:
    """x + residual is normalized and returned; what the sum loses in bfloat16 is another test's business."""
    x, residual = np.array([[1.0, -3.0]]), np.array([[2.0, 6.0]])
    output = call(ROWS[name], Inputs(x, weight=np.ones(2), residual=residual))
    assert np.array_equal(output.new_residual, [[3.0, 3.0]])
    assert np.array_equal(output.y, call(ROWS[name], Inputs(x + residual, weight=np.ones(2))).y)


@pytest.mark.parametrize("name", [name for name in ROWS if name.endswith(("LayerNormFunction", "fused_layer_norm"))])
def test_gradients_arrive(name: str) -> None:
    """A slope of ones is orthogonal to nothing but the mean: dbias counts the rows."""
    inputs = inputs_for(ROWS[name], "float32")
    assert np.array_equal(backward(ROWS[name], inputs, np.ones_like(inputs.x)).values["bias"], np.full(16, 8.0))


@pytest.mark.parametrize("name", [name for name in ROWS if name.endswith(("[gemma]", "fused_rms_norm"))])
def test_snippets_mend_the_interpreter_themselves(name: str, tmp_path) -> None:
    """A pasted call switches the interpreter on, and runs without normcheck."""
    inputs = inputs_for(ROWS[name], "float32")
    at = (0,) * inputs.x.ndim
    text = snippet(ROWS[name], inputs, index=at, expected=float(call(ROWS[name], inputs).y[at]), tolerance=0.0)
    assert "normcheck" not in text
    file = tmp_path / "pasted.py"
    file.write_text(text)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False, env={})
    assert done.returncode == 0, done.stderr + text


def test_rows_exist_wherever_their_library_is_missing() -> None:
    """They are left out by name, not unknown."""
    assert len(list(of_liger())) == 8
    assert len(list(of_torchnorm())) == 3
