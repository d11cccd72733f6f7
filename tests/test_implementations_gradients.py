"""Backward calls: exact values in and out, by autograd and by a function, and what goes wrong in them as CallError."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from normcheck import Implementation, LayerNorm, RMSNorm
from normcheck.faults import sound
from normcheck.implementations import CallError, Inputs, implementations
from normcheck.implementations.gradient_snippets import gradient_snippet
from normcheck.implementations.gradients import backward, backward_twice, differentiable

X = np.array([[1.0, -2.0, 0.5, 3.0], [0.25, 4.0, -1.0, 2.0]])
DY = np.array([[1.0, 0.5, -1.0, 2.0], [0.0, 1.0, 3.0, -0.5]])
W, B = np.array([1.5, -0.5, 2.0, 1.0]), np.array([0.5, 0.0, -1.0, 2.0])


def numpy_norm(grad: Any) -> Implementation:
    """A norm in numpy with this backward pass."""
    return Implementation(lambda x, weight: x, RMSNorm(), name="mine", framework="numpy", grad=grad)


def torch_norm(call: Any) -> Implementation:
    """A norm in torch, differentiated by autograd."""
    pytest.importorskip("torch")
    return Implementation(call, RMSNorm(), name="mine")


def found(name: str) -> Implementation:
    """One of torch's own."""
    pytest.importorskip("torch")
    return next(one for one in implementations("torch") if one.name == name)


@pytest.mark.parametrize("name", ["torch.nn.functional.layer_norm", "torch.nn.LayerNorm"])
def test_autograd_of_functions_and_modules(name: str) -> None:
    """The gradients of a function and of a module's parameters are those that torch gives, and keep shape and dtype."""
    torch = pytest.importorskip("torch")
    got = backward(found(name), Inputs(X, W, B), DY)
    leaves = [torch.tensor(a, dtype=torch.float32, requires_grad=True) for a in (X, W, B)]
    torch.nn.functional.layer_norm(leaves[0], (4,), *leaves[1:]).backward(torch.tensor(DY, dtype=torch.float32))
    for leaf, value in zip(leaves, got.values.values(), strict=True):
        assert np.array_equal(leaf.grad.double().numpy(), value)
    assert got.dtypes == {"x": "float32", "weight": "float32", "bias": "float32"}
    assert np.array_equal(got.slopes[0], DY)


def test_parameters_lie_as_the_inputs_say() -> None:
    """Weight and bias are every second element of a larger array, and x is contiguous."""
    seen = {}

    def call(x: Any, weight: Any) -> Any:
        """Remember the strides."""
        seen.update(x=x.stride(), weight=weight.stride())
        return x * weight

    backward(torch_norm(call), Inputs(X, W, parameter_layout="strided"), DY)
    assert seen == {"x": (4, 1), "weight": (2,)}


def test_passes_accumulate() -> None:
    """Two backward passes after one forward pass leave twice the gradient."""
    norm = found("torch.nn.functional.layer_norm")
    once, twice = (backward(norm, Inputs(X, W, B), DY, passes=passes).values for passes in (1, 2))
    assert all(np.array_equal(2 * once[name], twice[name]) for name in once)


def test_only_what_is_asked_for_needs_a_gradient() -> None:
    """The others are constants to the code, and the gradients that come are those that always come."""
    torch = pytest.importorskip("torch")
    needed = []

    def call(x: Any, weight: Any) -> Any:
        """Remember who needs a gradient."""
        needed.append((x.requires_grad, weight.requires_grad))
        return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)

    whole = backward(torch_norm(call), Inputs(X, W), DY).values
    for name in ("x", "weight"):
        part = backward(torch_norm(call), Inputs(X, W), DY, of=(name,)).values
        assert list(part) == [name]
        assert np.array_equal(part[name], whole[name])
    assert needed == [(True, True), (True, False), (False, True)]


@pytest.mark.parametrize("layout", ["transposed", "strided", "sliced", "unaligned"])
def test_layout_of_dy_does_not_change_its_values(layout: str) -> None:
    """dy is laid in memory as asked for, with the same values."""
    norm = torch_norm(lambda x, weight: x * weight)
    got = backward(norm, Inputs(X, W), DY, layout=layout)
    assert np.array_equal(got.values["x"], DY * W)
    assert np.array_equal(got.values["weight"], (DY * X).sum(0))


def test_expanded_dy_has_stride_zero() -> None:
    """The layout ``expanded`` hands over one sample that stands for all."""
    torch = pytest.importorskip("torch")
    strides = []

    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            strides.append(dy.stride())
            return dy

    backward(torch_norm(lambda x, weight: Norm.apply(x)), Inputs(X), np.ones((2, 4)), layout="expanded")
    assert strides == [(0, 1)]


def test_input_is_no_leaf_and_parameters_are() -> None:
    """x comes out of an earlier operation, so that it may be written into; weights are leaves."""
    seen = []

    def norm(x: Any, weight: Any) -> Any:
        seen.append((x.is_leaf, weight.is_leaf))
        x.mul_(2)
        return x * weight

    got = backward(torch_norm(norm), Inputs(X, W), DY)
    assert seen == [(False, True)]
    assert np.array_equal(got.values["x"], 2 * DY * W)


def test_missing_gradient_is_none() -> None:
    """An input that the graph does not reach has None."""
    got = backward(torch_norm(lambda x, weight: x * weight.detach()), Inputs(X, W), DY)
    assert got.values["weight"] is None
    assert "weight" not in got.dtypes


def test_disconnected_output_is_a_call_error() -> None:
    """An output without history cannot be differentiated."""
    with pytest.raises(CallError, match="does not require grad"):
        backward(torch_norm(lambda x, weight: (x * weight).detach()), Inputs(X, W), DY)


def test_backward_function_gets_inputs_settings_and_gradients_by_name() -> None:
    """A function is given native arrays and the norm's settings, None for what is absent, and returns gradients by name."""
    seen: dict[str, Any] = {}

    def grad(inputs: dict[str, Any], grads: dict[str, Any]) -> dict[str, Any]:
        seen.update(inputs)
        return {"x": grads["y"] * np.float32(2), "weight": grads["y"].sum(0)}

    got = backward(numpy_norm(grad), Inputs(X, W), DY)
    assert (seen["eps"], seen["bias"], seen["x"].dtype) == (1e-6, None, np.float32)
    assert np.array_equal(got.values["x"], 2 * DY)
    assert np.array_equal(got.values["weight"], DY.sum(0))
    assert set(got.values) == {"x", "weight"}


def test_slopes_show_what_a_backward_function_wrote_into_them() -> None:
    """dy is read back after the call."""

    def grad(inputs: dict[str, Any], grads: dict[str, Any]) -> dict[str, Any]:
        grads["y"][:] = 0
        return {"x": inputs["x"]}

    assert not backward(numpy_norm(grad), Inputs(X), DY).slopes[0].any()


@pytest.mark.parametrize(
    ("grad", "message"),
    [
        (lambda inputs, grads: grads["y"], "backward returned ndarray, but should return a dict of gradients"),
        (lambda inputs, grads: {"x": "no array"}, "TypeError: returned str, but should return a numpy.ndarray"),
        (lambda inputs, grads: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
)
def test_faulty_backward_function_is_a_call_error(grad: Any, message: str) -> None:
    """What a backward function raises or returns amiss is told in one line."""
    with pytest.raises(CallError, match=message):
        backward(numpy_norm(grad), Inputs(X), DY)


@pytest.mark.parametrize(
    ("grad", "message"),
    [(None, "grad=None: gradients of mine are not judged"), ("autograd", "numpy does not differentiate: give grad")],
)
def test_code_without_gradients_is_refused(grad: Any, message: str) -> None:
    """An implementation that cannot be differentiated says why."""
    assert message in differentiable(numpy_norm(grad))
    with pytest.raises(ValueError, match=message):
        backward(numpy_norm(grad), Inputs(X), DY)


def test_interrupt_passes_through() -> None:
    """KeyboardInterrupt is no finding."""

    def grad(inputs: dict[str, Any], grads: dict[str, Any]) -> dict[str, Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backward(numpy_norm(grad), Inputs(X), DY)


def test_second_derivative_of_a_product() -> None:
    """For y = x*x*w the derivative of <dx, t> is 2*t*dy*w by x, sum(2*x*t*dy) by w, 2*x*w*t by dy."""
    t = np.ones((2, 4))
    got = backward_twice(torch_norm(lambda x, weight: x * x * weight), Inputs(X, W), DY, {"x": t}).values
    assert np.array_equal(got["x"], 2 * DY * W)
    assert np.array_equal(got["weight"], (2 * X * DY).sum(0))
    assert np.array_equal(got["y"], 2 * X * W)


def test_second_derivative_of_a_function_is_refused() -> None:
    """A backward function is not differentiated."""
    with pytest.raises(ValueError, match="but should be 'autograd' for a double backward pass"):
        backward_twice(numpy_norm(lambda inputs, grads: {}), Inputs(X), DY, {"x": X})


def _printed(text: str) -> tuple[float, float]:
    ran = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True)
    got, expected = ran.stdout.splitlines()
    return float.fromhex(got.split()[1]), float.fromhex(expected.split()[1])


@pytest.mark.parametrize("name", ["torch.nn.functional.layer_norm", "torch.nn.LayerNorm"])
@pytest.mark.parametrize("of", ["x", "weight"])
def test_snippet_runs_the_backward_pass_again(name: str, of: str) -> None:
    """Pasted into a new interpreter the snippet prints the element's gradient, bit for bit."""
    norm, inputs = found(name), Inputs(X, W, B)
    value = backward(norm, inputs, DY).values[of]
    assert value is not None
    index = (1, 2) if of == "x" else (2,)
    text = gradient_snippet(norm, inputs, DY, of, index, 0.5, dtype="float32", layout="transposed")
    assert "normcheck" not in text
    assert _printed(text) == (float(value[index]), 0.5)


def test_snippet_of_a_backward_function() -> None:
    """The snippet imports the function and hands it inputs and settings by name."""
    norm = next(one for one in sound() if one.name == "numpy-with-a-backward-function")
    value = backward(norm, Inputs(X, W, B), DY).values["x"]
    assert value is not None
    text = gradient_snippet(norm, Inputs(X, W, B), DY, "x", (0, 3), 0.5, dtype="float32")
    assert _printed(text) == (float(value[0, 3]), 0.5)


def test_norm_without_affine_has_a_gradient_of_x_only() -> None:
    """What is not given is not differentiated."""
    norm = Implementation(lambda x: x * 2, LayerNorm(), name="plain", arguments=("x",))
    pytest.importorskip("torch")
    assert set(backward(norm, Inputs(X), DY).values) == {"x"}
