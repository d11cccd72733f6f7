"""The adapter of PaddlePaddle, and its norms: each is called the way its library means it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from halves import assert_halves, assert_values_pass, inputs_for

from normcheck.audit import audit
from normcheck.formats import FORMATS
from normcheck.implementations import (
    CallError,
    Implementation,
    Inputs,
    LayoutError,
    backward,
    backward_twice,
    call,
    frameworks,
    gradient_snippet,
    implementations,
    snippet,
)
from normcheck.implementations.constructed import Constructed
from normcheck.norms import LayerNorm
from normcheck.reference import reference_grad

pytest.importorskip("paddle")

ADAPTER = frameworks()["paddle"]
ROWS = {one.name: one for one in implementations("paddle")}
CASES = [(one, dtype) for one in ROWS.values() if "eps" in one.variable for dtype in one.dtypes]
X = np.array([[1.0, 2.0, 4.0, 8.0], [-1.0, 0.5, 0.25, 3.0]])
DY = np.array([[1.0, -1.0, 0.5, 2.0], [0.25, 1.0, -2.0, 1.0]])
GIVEN = Inputs(X, weight=np.array([1.0, 2.0, 0.5, -1.0]), bias=np.ones(4))
STATE = {"running_mean": np.zeros(1), "running_var": np.ones(1), "momentum": 0.5}


@pytest.mark.parametrize(("implementation", "dtype"), CASES, ids=lambda value: getattr(value, "name", value))
def test_the_exact_answer_is_given_where_there_is_one(implementation: Implementation, dtype: str) -> None:
    """Signs with eps = 3 give halves exactly, through weight, bias, groups and statistics."""
    assert_halves(implementation, dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_values_arrive_and_return_exactly(dtype: str) -> None:
    """Subnormal, extreme and infinite values pass through a tensor unchanged."""
    assert_values_pass(ADAPTER, dtype)


def test_what_is_no_tensor_is_refused() -> None:
    """A list and a layout with strides have no meaning here."""
    with pytest.raises(TypeError, match=r"returned list, but should return a paddle\.Tensor"):
        ADAPTER.to_values([1.0])
    with pytest.raises(LayoutError, match="layout='transposed', but should be 'contiguous' for PaddlePaddle"):
        ADAPTER.to_native(X, "float32", layout="transposed")


def test_running_statistics_are_updated_in_training_alone() -> None:
    """The biased variance is merged with what is left of the old one."""
    x = np.array([[1.0], [3.0]])
    trained = call(ROWS["paddle.nn.functional.batch_norm[train]"], Inputs(x, **STATE))
    assert (trained.running_mean, trained.running_var) == (1.0, 1.0)
    kept = call(ROWS["paddle.nn.functional.batch_norm[eval]"], Inputs(x, **STATE, training=False))
    assert (kept.running_mean, kept.running_var) == (0.0, 1.0)


def test_a_module_is_called_in_its_mode() -> None:
    """A layer of one's own is put into training or out of it."""
    import paddle

    class Layer(paddle.nn.Layer):
        def forward(self, x):
            return x * 2 if self.training else x

    one = Implementation(module=lambda norm, *, shape, dtype, device: Layer(), norm=LayerNorm(), framework="paddle", affine=False)
    assert np.array_equal(call(one, Inputs(X)).y, 2 * X)
    assert np.array_equal(call(one, Inputs(X, training=False)).y, X)


def test_gradients_are_those_of_the_reference() -> None:
    """dx, dweight and dbias agree with the certified ones, and two passes give twice as much."""
    row = ROWS["paddle.nn.functional.layer_norm"]
    found = backward(row, GIVEN, DY)
    exact = reference_grad(LayerNorm(), X, DY, GIVEN.weight, GIVEN.bias, dtype="float64")
    for name, value in (("x", exact.dx), ("weight", exact.dweight), ("bias", exact.dbias)):
        assert found.dtypes[name] == "float32"
        np.testing.assert_allclose(found.values[name], value, rtol=0, atol=64 * FORMATS["float32"].u)
    twice = backward(row, GIVEN, DY, passes=2)
    assert all(np.array_equal(twice.values[name], 2 * found.values[name]) for name in found.values)


def test_second_derivatives_are_linear_in_the_direction() -> None:
    """The gradient of <dx, v> with respect to dy is the same map applied to v: <J v, dy> = <dx, v>."""
    row = ROWS["paddle.nn.functional.instance_norm"]
    given, dy = Inputs(X[None], weight=np.array([1.0, 2.0]), bias=np.ones(2), dtype="float64"), DY[None]
    along = {"x": np.flip(dy, 1).copy()}
    second, first = backward_twice(row, given, dy, along), backward(row, given, dy)
    assert set(second.values) == {"x", "weight", "bias", "y"}
    got, expected = float((second.values["y"] * dy).sum()), float((first.values["x"] * along["x"]).sum())
    assert abs(got - expected) <= 64 * FORMATS["float64"].u * np.abs(first.values["x"] * along["x"]).sum()


def test_an_operation_without_a_second_derivative_says_so() -> None:
    """layer_norm_grad has none, which is the code's error with its text."""
    with pytest.raises(CallError, match="layer_norm_grad doesn't have any grad op"):
        backward_twice(ROWS["paddle.nn.functional.layer_norm"], GIVEN, DY, {"x": X})


def test_a_layer_of_paddle_is_judged_by_its_class() -> None:
    """What its parameters are called is hidden by plain tensors: values and gradients are those of the weights that are given."""
    norm = LayerNorm(eps=1e-3)
    made = Constructed("paddle.nn:LayerNorm", ("normalized_shape", "epsilon"))
    layer = Implementation(module=made, norm=norm, framework="paddle")
    done = audit([layer], profile="quick", checks=["output-form", "accuracy", "input-gradient", "parameter-gradients"])
    assert {result.check for result in done.results if result.outcome.value == "passed"} >= {"accuracy", "parameter-gradients"}
    assert done.passed, done.failures


def test_the_distribution_is_named_as_pip_knows_it() -> None:
    """So that audits record its version, and the ledger knows it."""
    assert {one.requires for one in ROWS.values()} == {"paddlepaddle"}


def test_threads_are_set() -> None:
    """The number that is pinned is PaddlePaddle's own."""
    before = ADAPTER.threads()
    try:
        ADAPTER.pin_threads(3)
        assert ADAPTER.threads() == 3
    finally:
        ADAPTER.pin_threads(before)


@pytest.mark.parametrize("name", ["paddle.nn.functional.layer_norm", "paddle.nn.functional.group_norm"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_snippets_need_nothing_but_paddle_and_numpy(name: str, dtype: str, tmp_path) -> None:
    """A pasted call and a pasted backward pass run by themselves, without normcheck, and assert what they are told."""
    one, inputs = ROWS[name], inputs_for(ROWS[name], dtype)
    output, dy, at = call(one, inputs), np.ones_like(inputs.x), (0,) * inputs.x.ndim
    gradient = float(backward(one, inputs, dy, dtype=output.dtype).values["bias"][1])
    texts = (
        snippet(one, inputs, index=at, expected=float(output.y[at]), tolerance=0.0),
        gradient_snippet(one, inputs, dy, "bias", (1,), gradient, dtype=output.dtype, tolerance=0.0),
    )
    for number, text in enumerate(texts):
        assert "normcheck" not in text
        file = tmp_path / f"pasted{number}.py"
        file.write_text(text)
        done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr + text
