"""The adapter of tinygrad, and its norms: each is called the way its library means it."""

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
from normcheck.norms import LayerNorm
from normcheck.reference import reference_grad

ADAPTER = frameworks()["tinygrad"]
if ADAPTER.available() is not None:
    pytest.skip(ADAPTER.available(), allow_module_level=True)

ROWS = {one.name: one for one in implementations("tinygrad")}
CASES = [(one, dtype) for one in ROWS.values() for dtype in one.dtypes]
X = np.array([[1.0, 2.0, 4.0, 8.0], [-1.0, 0.5, 0.25, 3.0]])
DY = np.array([[1.0, -1.0, 0.5, 2.0], [0.25, 1.0, -2.0, 1.0]])
GIVEN = Inputs(X, weight=np.array([1.0, 2.0, 0.5, -1.0]), bias=np.ones(4))


@pytest.mark.parametrize(("implementation", "dtype"), CASES, ids=lambda value: getattr(value, "name", value))
def test_the_exact_answer_is_given_where_there_is_one(implementation: Implementation, dtype: str) -> None:
    """Signs with eps = 3 give halves exactly, through weight, bias, groups and statistics."""
    assert_halves(implementation, dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_values_arrive_and_return_exactly(dtype: str) -> None:
    """Subnormal, extreme and infinite values pass through a tensor unchanged; no other tensor has its memory."""
    assert_values_pass(ADAPTER, dtype)


def test_what_is_no_tensor_is_refused() -> None:
    """A list and a layout with strides have no meaning here."""
    with pytest.raises(TypeError, match=r"returned list, but should return a tinygrad\.Tensor"):
        ADAPTER.to_values([1.0])
    with pytest.raises(LayoutError, match="layout='transposed', but tinygrad has no strides"):
        ADAPTER.to_native(X, "float32", layout="transposed")


def test_the_threads_of_a_kernel_are_set() -> None:
    """The number that is pinned is the one that kernels are compiled for."""
    before = ADAPTER.threads()
    try:
        ADAPTER.pin_threads(3)
        assert ADAPTER.threads() == 3
    finally:
        ADAPTER.pin_threads(before)


def test_running_statistics_are_updated_in_training_alone() -> None:
    """The unbiased variance is merged with the share of the batch, as in torch."""
    x = np.array([[1.0], [3.0]])
    given = {"running_mean": np.zeros(1), "running_var": np.ones(1), "momentum": 0.5}
    trained = call(ROWS["tinygrad.nn.BatchNorm[train]"], Inputs(x, **given))
    assert (trained.running_mean, trained.running_var) == (1.0, 1.5)
    kept = call(ROWS["tinygrad.nn.BatchNorm[eval]"], Inputs(x, **given, training=False))
    assert (kept.running_mean, kept.running_var) == (0.0, 1.0)


def test_gradients_are_those_of_the_reference() -> None:
    """dx, dweight and dbias agree with the certified ones, and two passes give twice as much."""
    row = ROWS["tinygrad.nn.LayerNorm"]
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
    row = ROWS["tinygrad.nn.LayerNorm"]
    second, first = backward_twice(row, GIVEN, DY, along), backward(row, GIVEN, DY)
    assert set(second.values) == {"x", "weight", "bias", "y"}
    got, expected = float((second.values["y"] * DY).sum()), float((first.values["x"] * along["x"]).sum())
    assert abs(got - expected) <= 64 * FORMATS["float32"].u * np.abs(first.values["x"] * along["x"]).sum()


def test_a_module_is_called_in_its_mode() -> None:
    """Training is the process's switch in tinygrad: a module of one's own is called with it on or off."""
    from tinygrad.nn import BatchNorm as Layer

    from normcheck.norms import BatchNorm

    def made(norm, *, shape, dtype, device):
        return Layer(shape[1], norm.eps, momentum=norm.momentum)

    one = Implementation(module=made, norm=BatchNorm(), framework="tinygrad")
    given = {"running_mean": np.zeros(1), "running_var": np.ones(1), "weight": np.ones(1), "bias": np.zeros(1)}
    x = np.array([[1.0], [3.0]])
    assert call(one, Inputs(x, **given)).running_mean != 0.0
    assert call(one, Inputs(x, **given, training=False)).running_mean == 0.0


@pytest.mark.parametrize("name", ["tinygrad.nn.GroupNorm", "tinygrad.nn.BatchNorm[train]"])
def test_snippets_need_nothing_but_tinygrad_and_numpy(name: str, tmp_path) -> None:
    """A pasted call and a pasted backward pass run by themselves, without normcheck, and assert what they are told."""
    one, inputs = ROWS[name], inputs_for(ROWS[name], "float32")
    output, dy, at = call(one, inputs), np.ones_like(inputs.x), (0,) * inputs.x.ndim
    gradient = float(backward(one, inputs, dy).values["bias"][1])
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
