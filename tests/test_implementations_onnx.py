"""ONNX's norms in its reference evaluator, in ONNX Runtime and in OpenVINO; what is not installed is skipped."""

import importlib.util
import pickle
import subprocess
import sys

import numpy as np
import pytest

import normcheck as nc
import normcheck.testing
from normcheck.implementations import CallError, Inputs, call, frameworks, implementations, snippet
from normcheck.implementations.onnx import Operator, model_of
from normcheck.norms import LayerNorm

pytest.importorskip("onnx")

RUNTIMES = [name for name in ("onnx", "onnxruntime", "openvino") if frameworks()[name].available() is None]
ROWS = {one.name: one for name in RUNTIMES for one in implementations(name)}
ROW = np.array([[1.0, -1.0, 1.0, -1.0]])


def inputs(implementation, dtype, **changes):
    """Signs, with ones as weight, zeros as bias and given statistics of mean 0 and variance 1."""
    x = np.resize([1.0, -1.0], (2, 8, 4) if implementation.norm.per_channel else (2, 8))
    width = 8
    ones, zeros = np.ones(width), np.zeros(width)
    arrays = {"weight": ones, "bias": zeros, "running_mean": zeros, "running_var": ones, "residual": np.zeros(x.shape)}
    given = {name: value for name, value in arrays.items() if implementation.takes(name)}
    mode = {"training": implementation.training is not False}
    return Inputs(x, **{**given, "dtype": dtype, "weight_dtype": implementation.weight_dtype, **mode, **changes})


@pytest.fixture
def runtime(request):
    """The module of a runtime, or a skip."""
    pytest.importorskip(request.param)
    return importlib.import_module(f"normcheck.implementations.{request.param}")


@pytest.fixture
def ort():
    """The module of ONNX Runtime, or a skip."""
    pytest.importorskip("onnxruntime")
    return importlib.import_module("normcheck.implementations.onnxruntime")


@pytest.mark.parametrize("name", ["onnx", "onnxruntime", "openvino"])
def test_a_missing_package_is_told_with_the_line_that_installs_it(name, monkeypatch):
    """An adapter is available where its package and onnx are."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    assert frameworks()[name].available().startswith("pip install ")


@pytest.mark.parametrize("name", ROWS)
def test_every_dtype_comes_back_as_it_went_in(name):
    """Each row takes the dtypes that it declares, and gives them back; what is above the mean stays above 0."""
    implementation = ROWS[name]
    for dtype in implementation.dtypes:
        output = call(implementation, inputs(implementation, dtype))
        assert output.dtype == dtype
        assert np.array_equal(np.sign(output.y), inputs(implementation, dtype).x)


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"], indirect=True)
def test_threads_that_are_pinned_reach_the_runtime(runtime):
    """The number of threads is that of the session, and another number makes another session."""
    before = runtime.ADAPTER.threads()
    made = runtime.session if hasattr(runtime, "session") else runtime.compiled
    try:
        runtime.ADAPTER.pin_threads(1)
        name = f"{runtime.ADAPTER.name}.LayerNormalization"
        call(ROWS[name], inputs(ROWS[name], "float32"))
        arrays = {"x": np.ones((2, 8), np.float32), "weight": np.ones(8, np.float32), "bias": np.ones(8, np.float32)}
        model = model_of("LayerNormalization", 17, arrays, {"y": "x"}, axis=-1, epsilon=1e-5)
        misses = made.cache_info().misses
        found = made(model, 1)
        assert made.cache_info().misses == misses
    finally:
        runtime.ADAPTER.pin_threads(before)
    if runtime.ADAPTER.name == "onnxruntime":
        assert found.get_session_options().intra_op_num_threads == 1
    else:
        assert found.get_property("INFERENCE_NUM_THREADS") == 1
        assert found.get_property("INFERENCE_PRECISION_HINT").get_type_name() == "f32"


def test_the_reference_evaluator_has_one_thread():
    """Nothing is pinned where there is nothing to pin."""
    adapter = frameworks()["onnx"]
    adapter.pin_threads(4)
    assert adapter.threads() == 1


def test_one_session_serves_every_size(ort):
    """Sizes are open: other shapes of the same rank make no other model."""
    implementation = ROWS["onnxruntime.LayerNormalization"]
    call(implementation, Inputs(np.ones((1, 4)), weight=np.ones(4), bias=np.zeros(4)))
    misses = ort.session.cache_info().misses
    call(implementation, Inputs(np.ones((3, 9)), weight=np.ones(9), bias=np.zeros(9)))
    assert ort.session.cache_info().misses == misses


@pytest.mark.parametrize("name", [name for name in ("onnx.LayerNormalization", "onnxruntime.LayerNormalization") if name in ROWS])
def test_eps_is_a_float32_attribute(name):
    """A float64 output agrees with eps rounded to float32, and not with the number that was given."""
    implementation, eps = ROWS[name], 0.1
    x = np.array([[1.0, 2.0, 4.0, 8.0]])
    y = call(implementation.with_norm(LayerNorm(eps=eps)), Inputs(x, dtype="float64")).y
    rounded = nc.reference(LayerNorm(eps=eps), x, contract=implementation.contract)
    given = nc.reference(LayerNorm(eps=eps), x)
    allowed = nc.testing.tolerance(LayerNorm(eps=eps), x, contract=implementation.contract)
    assert (np.abs(y - rounded) <= allowed).all()
    assert (np.abs(y - given) > allowed).all()


@pytest.mark.parametrize("name", [name for name in ROWS if "Normalization" in name and ROWS[name].affine])
def test_absent_parameters_are_ones_and_zeros(name):
    """What a node must have and the call does not give is filled in."""
    implementation = ROWS[name]
    full = inputs(implementation, "float32" if "float32" in implementation.dtypes else "float16")
    bare = Inputs(full.x, running_mean=full.running_mean, running_var=full.running_var, dtype=full.dtype)
    bare = Inputs(**{**vars(bare), "weight_dtype": full.weight_dtype, "training": full.training})
    assert np.array_equal(call(implementation, bare).y, call(implementation, full).y)


@pytest.mark.parametrize("name", [name for name in ROWS if name.endswith("BatchNormalization[train]")])
def test_statistics_that_are_not_given_are_not_returned(name):
    """A training step without running statistics returns y alone; with them the new ones too, by ONNX's rule."""
    implementation = ROWS[name]
    x = np.multiply.outer([-1.0, 1.0], np.ones(3))
    alone = call(implementation, Inputs(x))
    assert alone.running_mean is None
    moved = call(implementation, Inputs(x + 4, running_mean=np.zeros(3), running_var=np.full(3, 2.0), momentum=0.75))
    assert moved.running_mean.tolist() == [1.0] * 3
    assert moved.running_var.tolist() == [1.75] * 3


@pytest.mark.parametrize("name", [name for name in ROWS if "Skip" in name])
def test_the_sum_with_the_residual_comes_back(name):
    """The new residual is x + residual, and the norm is that of the sum; no residual is one of zeros."""
    implementation = ROWS[name]
    both = call(implementation, Inputs(ROW, residual=ROW * 2))
    assert np.array_equal(both.new_residual, ROW * 3)
    alone = call(implementation, Inputs(ROW * 3))
    assert np.array_equal(alone.y, both.y)
    assert np.array_equal(alone.new_residual, ROW * 3)
    assert np.signbit(call(implementation, Inputs(-0.0 * ROW**2)).new_residual).all()


@pytest.mark.parametrize("name", [f"{name}.LayerNormalization" for name in RUNTIMES])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_snippet_needs_the_library_and_numpy_alone(name, dtype):
    """The pasted source builds and runs the model; it prints what the call gave."""
    implementation = ROWS[name]
    given = Inputs(ROW * 3 + 1, weight=np.array([1.0, 2.0, 3.0, 4.0]), bias=np.ones(4), dtype=dtype)
    y = float(call(implementation, given).y[0, 2])
    source = snippet(implementation, given, index=(0, 2), expected=y, tolerance=0.0)
    assert "normcheck" not in source
    done = subprocess.run([sys.executable, "-I", "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert y.hex() in done.stdout


@pytest.mark.parametrize("name", [f"{name}.LayerNormalization" for name in RUNTIMES])
def test_layer_normalization_in_float32_conforms(name):
    """The accuracy of each runtime is within the bound, up to the warning of a sequential sum."""
    done = nc.audit([ROWS[name]], profile="quick", checks=["output-form", "accuracy"], dtypes=["float32"], isolation=False)
    assert done.passed
    assert any(one.check == "accuracy" and one.outcome is nc.Outcome.PASSED for one in done.results)


def test_an_operator_survives_pickling():
    """Worker processes get the function by name."""
    operator = Operator("normcheck.implementations.onnx:rms_normalization")
    again = pickle.loads(pickle.dumps(operator))  # noqa: S301 - what this very test has pickled
    assert again == operator
    assert again.__name__ == "normcheck.implementations.onnx.rms_normalization"


def test_what_the_runtime_raises_is_a_call_error(ort):
    """An operator without a kernel is refused by the runtime, in one line."""
    implementation = ROWS["onnxruntime.RMSNormalization"]
    with pytest.raises(CallError, match="NOT_IMPLEMENTED"):
        call(implementation, Inputs(ROW, weight=np.ones(4), dtype="bfloat16"))


def test_types_that_onnx_does_not_allow_are_refused():
    """The reference evaluator would compute with them; a runtime refuses them."""
    for name in ("onnx.GroupNormalization", "onnx.LayerNormalization"):
        given = inputs(ROWS[name], "float16", weight_dtype="float32")
        with pytest.raises(CallError, match="has inconsistent type"):
            call(ROWS[name], given)
