"""Keras on the backend of this process: arrays exactly, gradients, and every layer computes what it claims."""

from __future__ import annotations

import dataclasses
import importlib.util

import numpy as np
import pytest

from normcheck.formats import FORMATS
from normcheck.implementations import (
    Implementation,
    Inputs,
    LayoutError,
    backward,
    backward_twice,
    call,
    frameworks,
    implementations,
    snippet,
)
from normcheck.implementations.keras import backend
from normcheck.norms import LayerNorm
from normcheck.reference import reference_grad

ADAPTER = frameworks()["keras"]
if ADAPTER.available() is not None:
    pytest.skip(f"keras is not installed; {ADAPTER.available()}", allow_module_level=True)

ROWS = implementations("keras")
CASES = [(one, dtype) for one in ROWS for dtype in one.dtypes]
X = np.array([[1.0, 2.0, 4.0, 8.0], [-1.0, 0.5, 0.25, 3.0]])
DY = np.array([[1.0, -1.0, 0.5, 2.0], [0.25, 1.0, -2.0, 1.0]])
GIVEN = Inputs(X, weight=np.array([1.0, 2.0, 0.5, -1.0]), bias=np.ones(4))

pytestmark = pytest.mark.filterwarnings("ignore")  # backends warn of their own code when they are imported


def row(name: str) -> Implementation:
    """A layer on this backend."""
    return next(one for one in ROWS if one.name == f"keras.layers.{name}[{backend()}]")


@pytest.mark.parametrize(("implementation", "dtype"), CASES, ids=lambda value: getattr(value, "name", value))
def test_the_exact_answer_is_given_where_there_is_one(implementation: Implementation, dtype: str) -> None:
    """Weight, bias, groups, statistics and eps arrive where they belong: signs with eps = 3 give halves exactly."""
    norm, axis = implementation.norm, implementation.channel_axis
    varied = implementation.with_norm(dataclasses.replace(norm, eps=3.0))
    fold = norm.fold(norm.shape_of(8, 16, None, axis), axis)
    rows = np.stack([np.random.default_rng(seed).permutation(np.resize([1.0, -1.0], 16)) for seed in range(8)])
    parameters = np.arange(norm.parameter_size(fold)) % 5 - 2.0
    given = {name: parameters for name in ("weight", "bias") if implementation.takes(name)}
    if norm.has_running:
        given |= {"running_mean": np.zeros(fold.period), "running_var": np.ones(fold.period)}
    training = implementation.training is not False
    details = {"dtype": dtype, "weight_dtype": implementation.weight_dtype, "training": training}
    output = call(varied or implementation, Inputs(fold.unfold(rows), **given, **details))
    exact = rows / (2.0 if varied is not None else 4.0)
    for name, spread in ((name, fold.affine(value)) for name, value in given.items() if name in ("weight", "bias")):
        placed = spread[np.arange(fold.rows) % fold.period]
        exact = exact * placed if name == "weight" else exact + placed
    assert np.array_equal(output.y, fold.unfold(exact))
    # outside tensorflow Keras promotes float64 and float32 to float32
    assert output.dtype == dtype or (backend(), dtype) == ("numpy", "float64")


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_values_arrive_and_return_exactly(dtype: str) -> None:
    """Subnormal, extreme and infinite values pass through a tensor unchanged."""
    fmt = FORMATS[dtype]
    values = np.array([0.0, fmt.min_subnormal, fmt.min_normal, 1.0 + 2 * fmt.u, fmt.max, np.inf, -1.0])
    found, name = ADAPTER.to_values(ADAPTER.to_native(values, dtype))
    assert np.array_equal(found, values)
    assert name == dtype


def test_what_is_no_tensor_is_refused() -> None:
    """A list is no tensor of any backend, and strides are not Keras' matter."""
    with pytest.raises(TypeError, match=f"returned list, but should return a tensor of the backend {backend()}"):
        ADAPTER.to_values([1.0])
    with pytest.raises(LayoutError, match="layout='transposed', but should be 'contiguous' for Keras"):
        ADAPTER.to_native(X, "float32", layout="transposed")


def test_momentum_is_the_share_that_stays() -> None:
    """With momentum 3/4 the mean 4 meets the batch's 0 at 3, the variance 4 meets the biased 1 at 13/4."""
    one = next(one for one in ROWS if one.name == f"keras.layers.BatchNormalization[{backend()}, train]")
    varied = one.with_norm(dataclasses.replace(one.norm, momentum=0.75))
    assert varied is not None
    x = np.multiply.outer([-1.0, 1.0], np.ones(3))
    running = dict.fromkeys(("running_mean", "running_var"), np.full(3, 4.0))
    output = call(varied, Inputs(x, weight=np.ones(3), bias=np.zeros(3), **running))
    assert (output.running_mean.tolist(), output.running_var.tolist()) == ([3.0] * 3, [3.25] * 3)


@pytest.mark.skipif(backend() == "numpy", reason="numpy does not differentiate")
def test_gradients_are_those_of_the_reference() -> None:
    """dx, dweight and dbias agree with the certified ones, two passes give twice as much, and <J v, dy> = <dx, v>."""
    one = row("LayerNormalization")
    found = backward(one, GIVEN, DY)
    exact = reference_grad(LayerNorm(eps=1e-3), X, DY, GIVEN.weight, GIVEN.bias, dtype="float64")
    u = FORMATS["float32"].u
    for name, value in (("x", exact.dx), ("weight", exact.dweight), ("bias", exact.dbias)):
        assert found.dtypes[name] == "float32"
        assert np.abs(found.values[name] - value).max() <= 256 * u * np.abs(DY).sum()
    twice = backward(one, GIVEN, DY, passes=2)
    assert all(np.array_equal(twice.values[name], 2 * found.values[name]) for name in found.values)
    along = {"x": np.flip(DY, 0).copy()}
    second = backward_twice(one, GIVEN, DY, along)
    assert set(second.values) == {"x", "weight", "bias", "y"}
    got, expected = float((second.values["y"] * DY).sum()), float((found.values["x"] * along["x"]).sum())
    assert abs(got - expected) <= 256 * u * np.abs(DY).sum()


def test_snippets_import_keras_alone() -> None:
    """A pasted call holds the layer's own lines, nothing of this package, and runs."""
    one = row("LayerNormalization")
    source = snippet(one, GIVEN, index=(0, 0), expected=float(call(one, GIVEN).y[0, 0]), tolerance=0.0)
    assert "normcheck" not in source
    assert "keras.layers.LayerNormalization(epsilon=eps" in source
    if backend() != "jax":
        exec(source, {})  # noqa: S102 - our own text


def test_devices_are_those_of_the_backend() -> None:
    """The CPU is there on every backend, and to audit on it nothing need be named."""
    assert ADAPTER.devices()[0] == "cpu"
    assert set(ADAPTER.devices()) <= {"cpu", "cuda"}


def test_a_missing_backend_is_told(monkeypatch) -> None:
    """Without its backend Keras cannot be called, and the line that installs both is given."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("tensorflow", "jax", "torch") else found(name))
    line = {"tensorflow": "pip install 'normcheck[keras]'", "numpy": "pip install keras jax"}
    assert ADAPTER.available() == line.get(backend(), f"pip install keras {backend()}")
