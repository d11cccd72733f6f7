"""The JAX family: arrays exactly, float64 only where it is asked for, gradients, and every row computes what it claims."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from halves import assert_halves, assert_values_pass, inputs_for, signs

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
from normcheck.norms import LayerNorm, RMSNorm
from normcheck.reference import reference_grad

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

ADAPTER = frameworks()["jax"]
ROWS = implementations("jax")
CASES = [(one, dtype) for one in ROWS for dtype in one.dtypes]
X = np.array([[1.0, 2.0, 4.0, 8.0], [-1.0, 0.5, 0.25, 3.0]])
EPS = 3.0


@pytest.mark.parametrize(("implementation", "dtype"), CASES, ids=lambda value: getattr(value, "name", value))
def test_the_exact_answer_is_given_where_there_is_one(implementation: Implementation, dtype: str) -> None:
    """Weight, bias, groups, statistics and eps arrive where they belong: signs with eps = 3 give halves exactly."""
    assert_halves(implementation, dtype)


def test_all_four_libraries_are_there_or_said_to_be_missing() -> None:
    """A library of the family is either represented or named as left out."""
    from normcheck.implementations import left_out

    names = " ".join([*(one.name for one in ROWS), *left_out("jax")])
    assert all(name in names for name in ("jax.nn.standardize", "flax", "haiku", "equinox"))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_values_arrive_and_return_exactly(dtype: str) -> None:
    """Subnormal, extreme and infinite values pass through an array unchanged, and share no memory with the original."""
    assert_values_pass(ADAPTER, dtype)


def test_what_is_no_array_is_refused() -> None:
    """A list and a layout with strides have no meaning here."""
    with pytest.raises(TypeError, match=r"returned list, but should return a jax\.Array"):
        ADAPTER.to_values([1.0])
    with pytest.raises(LayoutError, match="layout='transposed', but jax has no strides"):
        ADAPTER.to_native(X, "float32", layout="transposed")


@pytest.mark.parametrize(("dtype", "result"), [("float64", "float64"), ("float32", "float32"), ("bfloat16", "float32")])
def test_float64_is_on_only_for_calls_that_take_it(dtype: str, result: str) -> None:
    """A numpy scalar in the code makes no float64 of the result unless x is float64: users have it switched off."""
    seen = []

    def scaled(x, weight, bias):
        seen.append(jax.config.jax_enable_x64)
        return x * np.float64(2.0)

    one = Implementation(scaled, LayerNorm(), framework="jax", dtypes=(dtype,))
    assert call(one, Inputs(X, dtype=dtype)).dtype == result
    assert seen == [dtype == "float64"]
    assert not jax.config.jax_enable_x64


def plain(x, weight, bias):
    """LayerNorm in jax.numpy."""
    c = x - x.mean(-1, keepdims=True)
    return c / jnp.sqrt((c * c).mean(-1, keepdims=True) + 1e-5) * weight + bias


PLAIN = Implementation(plain, LayerNorm(), framework="jax", dtypes=("float64",), name="plain")
WIDE = Inputs(X, weight=np.array([1.0, 2.0, 0.5, -1.0]), bias=np.ones(4), dtype="float64")
DY = np.array([[1.0, -1.0, 0.5, 2.0], [0.25, 1.0, -2.0, 1.0]])


def test_gradients_are_those_of_the_reference() -> None:
    """dx, dweight and dbias by jax.vjp agree with the certified ones, and two passes give twice as much."""
    found = backward(PLAIN, WIDE, DY)
    exact = reference_grad(LayerNorm(), X, DY, WIDE.weight, WIDE.bias, dtype="float64")
    for name, value in (("x", exact.dx), ("weight", exact.dweight), ("bias", exact.dbias)):
        assert found.dtypes[name] == "float64"
        np.testing.assert_array_max_ulp(found.values[name], np.asarray(value), maxulp=64)
    twice = backward(PLAIN, WIDE, DY, passes=2)
    assert all(np.array_equal(twice.values[name], 2 * found.values[name]) for name in found.values)


def test_second_derivatives_are_linear_in_the_direction() -> None:
    """The gradient of <dx, v> with respect to dy is the same map applied to v: <J v, dy> = <dx, v>."""
    along = {"x": np.flip(DY, 0).copy()}
    second = backward_twice(PLAIN, WIDE, DY, along)
    first = backward(PLAIN, WIDE, DY)
    assert set(second.values) == {"x", "weight", "bias", "y"}
    got, expected = float((second.values["y"] * DY).sum()), float((first.values["x"] * along["x"]).sum())
    assert abs(got - expected) <= 64 * FORMATS["float64"].u * np.abs(first.values["x"] * along["x"]).sum()


def test_code_that_cannot_be_differentiated_is_told() -> None:
    """A result that jax does not trace is the code's error, with its text."""
    leaves = Implementation(lambda x, weight, bias: np.asarray(x), LayerNorm(), framework="jax", name="leaves")
    with pytest.raises(CallError, match="TracerArrayConversionError"):
        backward(leaves, Inputs(X), np.ones_like(X))


PASTED = ("flax.nnx.LayerNorm", "flax.linen.BatchNorm[train]", "haiku.BatchNorm[train]", "equinox.nn.GroupNorm")


@pytest.mark.parametrize("name", [one.name for one in ROWS if one.name in PASTED])
def test_snippets_need_nothing_but_the_library(name: str, tmp_path) -> None:
    """A pasted call and a pasted backward pass run by themselves, without normcheck, and assert what they are told."""
    one = next(one for one in ROWS if one.name == name)
    inputs = inputs_for(one, "float32" if "float32" in one.dtypes else one.dtypes[0])
    output = call(one, inputs)
    at = (0,) * inputs.x.ndim
    source = snippet(one, inputs, index=at, expected=float(output.y[at]), tolerance=0.0)
    dy = np.ones_like(inputs.x)
    gradient = backward(one, inputs, dy, dtype=output.dtype).values["weight"]
    other = gradient_snippet(one, inputs, dy, "weight", (0,), float(gradient[0]), dtype=output.dtype, tolerance=0.0)
    for number, text in enumerate((source, other)):
        assert "normcheck" not in text
        file = tmp_path / f"pasted{number}.py"
        file.write_text(text)
        done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False, env={**os.environ})
        assert done.returncode == 0, done.stderr + text


def test_the_compiled_form_is_a_variant() -> None:
    """What is compiled as a whole gives the same halves."""
    one = next(one for one in ROWS if one.name == "jax.nn.standardize[stable]").with_norm(LayerNorm(eps=EPS))
    assert one is not None
    output = call(one, Inputs(signs(2, 16)), around=lambda function, passed: one.variants["jit"](*passed))
    assert np.array_equal(output.y, signs(2, 16) / 2)


def test_a_row_of_rms_norm_takes_its_weight() -> None:
    """RMSNorm rows of every library have a weight and no bias."""
    found = [one for one in ROWS if isinstance(one.norm, RMSNorm)]
    assert len(found) >= 1
    assert all(one.takes("weight") and not one.takes("bias") for one in found)


def test_what_was_compiled_is_let_go() -> None:
    """A function that was compiled is compiled anew once the adapter has forgotten it, so that a long audit does not fill up."""
    compiled = jax.jit(lambda x: x + 1)
    compiled(jnp.ones(3))
    assert compiled._cache_size() == 1
    ADAPTER.forget()  # type: ignore[attr-defined]
    assert compiled._cache_size() == 0
