"""The adapter of MLX, and its norms: each is called the way its library means it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from halves import assert_halves, assert_values_pass, inputs_for

from normcheck.formats import FORMATS
from normcheck.implementations import (
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
from normcheck.norms import BatchNorm, LayerNorm
from normcheck.reference import reference_grad

pytest.importorskip("mlx.core")

ADAPTER = frameworks()["mlx"]
ROWS = {one.name: one for one in implementations("mlx")}
CASES = [(one, dtype) for one in ROWS.values() for dtype in one.dtypes]
X = np.array([[1.0, 2.0, 4.0, 8.0], [-1.0, 0.5, 0.25, 3.0]])
DY = np.array([[1.0, -1.0, 0.5, 2.0], [0.25, 1.0, -2.0, 1.0]])
GIVEN = Inputs(X, weight=np.array([1.0, 2.0, 0.5, -1.0]), bias=np.ones(4))
STATE = {"running_mean": np.zeros(1), "running_var": np.ones(1), "momentum": 0.5}


@pytest.mark.parametrize(("implementation", "dtype"), CASES, ids=lambda value: getattr(value, "name", value))
def test_the_exact_answer_is_given_where_there_is_one(implementation: Implementation, dtype: str) -> None:
    """Signs with eps = 3 give halves exactly, through weight, bias, groups and statistics."""
    assert_halves(implementation, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_values_arrive_and_return_exactly(dtype: str) -> None:
    """Subnormal, extreme and infinite values pass through an array unchanged."""
    assert_values_pass(ADAPTER, dtype)


def test_what_is_no_array_is_refused() -> None:
    """A list and a layout with strides have no meaning here."""
    with pytest.raises(TypeError, match=r"returned list, but should return an mlx\.core\.array"):
        ADAPTER.to_values([1.0])
    with pytest.raises(LayoutError, match="layout='transposed', but should be 'contiguous' for MLX"):
        ADAPTER.to_native(X, "float32", layout="transposed")


def test_running_statistics_are_updated_in_training_alone() -> None:
    """The unbiased variance is merged with the share of the batch, as in torch."""
    x = np.array([[1.0], [3.0]])
    trained = call(ROWS["mlx.nn.BatchNorm[train]"], Inputs(x, **STATE))
    assert (trained.running_mean, trained.running_var) == (1.0, 1.5)
    kept = call(ROWS["mlx.nn.BatchNorm[eval]"], Inputs(x, **STATE, training=False))
    assert (kept.running_mean, kept.running_var) == (0.0, 1.0)


def test_a_module_is_called_in_its_mode() -> None:
    """A layer of one's own is put into training or out of it, with the state that is given."""
    import mlx.nn

    def made(norm, *, shape, dtype, device):
        return mlx.nn.BatchNorm(shape[-1], norm.eps, norm.momentum)

    one = Implementation(module=made, norm=BatchNorm(momentum=0.5), framework="mlx", channel_axis=-1)
    given = {**STATE, "weight": np.ones(1), "bias": np.zeros(1)}
    x = np.array([[1.0], [3.0]])
    assert call(one, Inputs(x, **given)).running_mean == 1.0
    assert call(one, Inputs(x, **given, training=False)).running_mean == 0.0


def test_gradients_are_those_of_the_reference() -> None:
    """dx, dweight and dbias agree with the certified ones, and two passes give twice as much."""
    row = ROWS["mlx.core.fast.layer_norm"]
    found = backward(row, GIVEN, DY)
    exact = reference_grad(LayerNorm(), X, DY, GIVEN.weight, GIVEN.bias, dtype="float64")
    for name, value in (("x", exact.dx), ("weight", exact.dweight), ("bias", exact.dbias)):
        assert found.dtypes[name] == "float32"
        np.testing.assert_allclose(found.values[name], value, rtol=0, atol=64 * FORMATS["float32"].u)
    twice = backward(row, GIVEN, DY, passes=2)
    assert all(np.array_equal(twice.values[name], 2 * found.values[name]) for name in found.values)


def test_second_derivatives_are_linear_in_the_direction() -> None:
    """The gradient of <dx, v> with respect to dy is the same map applied to v: <J v, dy> = <dx, v>."""
    along = {"x": np.flip(DY, 0).copy()}
    row = ROWS["mlx.core.fast.layer_norm"]
    second, first = backward_twice(row, GIVEN, DY, along), backward(row, GIVEN, DY)
    assert set(second.values) == {"x", "weight", "bias", "y"}
    got, expected = float((second.values["y"] * DY).sum()), float((first.values["x"] * along["x"]).sum())
    assert abs(got - expected) <= 64 * FORMATS["float32"].u * np.abs(first.values["x"] * along["x"]).sum()


@pytest.mark.parametrize("name", ["mlx.core.fast.layer_norm", "mlx.nn.GroupNorm"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_snippets_need_nothing_but_mlx_and_numpy(name: str, dtype: str, tmp_path) -> None:
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
