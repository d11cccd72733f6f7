"""The call layer: exact values in and out, what user code may do wrong, what a declaration may hold, and what is discovered."""

import functools
import importlib
import importlib.metadata
import importlib.util
import operator
import os
import pickle
import shutil
import sys
import types
import warnings
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from normcheck.contract import Contract
from normcheck.formats import FORMATS
from normcheck.implementations import (
    LAYOUTS,
    VIEWS,
    CallError,
    Implementation,
    Inputs,
    MissingPackageError,
    Named,
    RegistrationError,
    TargetError,
    call,
    encode,
    frameworks,
    implementations,
    left_out,
    load,
    missing,
    observe,
    registry,
    require,
    triton,
)
from normcheck.norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, PartialRMSNorm, RMSNorm

X = np.array([[1.0, 2.0, 4.0, 8.0], [-1.0, 0.5, 0.25, 3.0]])


LAYER_NORM = LayerNorm()


def numpy_implementation(function=None, norm=LAYER_NORM, **options):
    return Implementation(function, norm, framework="numpy", **{"name": "mine", **options})


def finite_values(fmt):
    """Every finite value of a format of 16 bits or less, and edge values of the wider ones."""
    if fmt.dtype.itemsize > 2:
        edges = [0.0, fmt.min_subnormal, fmt.min_normal, 1.0, 1.0 + 2 * fmt.u, fmt.max]
        return np.array([*edges, *(-edge for edge in edges)])
    bits = np.arange(2 ** (8 * fmt.dtype.itemsize), dtype=f"uint{8 * fmt.dtype.itemsize}")
    with np.errstate(invalid="ignore"):
        values = bits.view(fmt.dtype).astype(np.float64)
    return values[np.isfinite(values)]


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", FORMATS)
def test_every_value_goes_to_the_framework_and_back_unchanged(framework, dtype):
    """All finite values of the 8- and 16-bit formats and the edges of the others survive the way there and back, signs too."""
    pytest.importorskip(framework)
    adapter = frameworks()[framework]
    values = finite_values(FORMATS[dtype])
    back, name = adapter.to_values(adapter.to_native(values, dtype))
    assert name == dtype
    assert np.array_equal(back.view(np.uint64), values.view(np.uint64))


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "float8_e5m2"])
def test_infinities_and_nan_pass(framework, dtype):
    """Where a format has them, infinities and NaN arrive as what they are."""
    pytest.importorskip(framework)
    adapter = frameworks()[framework]
    values = np.array([np.inf, -np.inf, np.nan])
    assert np.array_equal(adapter.to_values(adapter.to_native(values, dtype))[0], values, equal_nan=True)


def test_a_value_between_two_of_the_format_is_refused_and_named():
    """Nothing is rounded on the way to the code under judgement."""
    with pytest.raises(ValueError, match=r"value 1\.001, but should be a value of bfloat16"):
        encode(np.array([1.0, 1.001]), "bfloat16")


def test_nan_beside_an_inexact_value_does_not_hide_it():
    """A NaN is a value of the format; the inexact element next to it is still found."""
    with pytest.raises(ValueError, match=r"value 0\.1, but should be a value of float32"):
        encode(np.array([np.nan, 0.1]), "float32")


@pytest.mark.parametrize(
    ("layout", "shape", "strides"),
    [
        ("contiguous", (2, 3, 4, 5), (60, 20, 5, 1)),
        ("channels_last", (2, 3, 4, 5), (60, 1, 15, 3)),
        ("channels_last", (2, 3, 2, 2, 2), (24, 1, 12, 6, 3)),
        ("channels_last", (2, 3, 4), (12, 1, 3)),
        ("transposed", (2, 3), (1, 2)),
    ],
)
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_layouts_change_the_strides_and_nothing_else(framework, layout, shape, strides):
    """The implementation sees the same array, laid out in memory as asked."""
    pytest.importorskip(framework)
    adapter = frameworks()[framework]
    values = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    native = adapter.to_native(values, "bfloat16", layout=layout)
    got = native.stride() if framework == "torch" else tuple(s // native.itemsize for s in native.strides)
    assert got == strides
    assert np.array_equal(adapter.to_values(native)[0], encode(values, "bfloat16").astype(np.float64))


def test_layouts_are_refused_where_there_are_none():
    """An unknown layout, and channels-last without a spatial axis, are named."""
    with pytest.raises(ValueError, match="layout='nchw', but should be one of contiguous, channels_last, transposed, strided"):
        encode(X, "float32", "nchw")
    with pytest.raises(ValueError, match=r"layout='channels_last' with shape=\(2, 4\), but should have 3 dimensions or more"):
        encode(X, "float32", "channels_last")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_code_may_write_into_its_inputs(layout):
    """What is passed is a copy: an implementation that works in place cannot change the inputs of the next check."""
    values = np.arange(24.0).reshape(2, 3, 4)

    def in_place(x, weight, bias):
        x *= 0
        return x

    output = call(numpy_implementation(in_place, dtypes=("float64",)), Inputs(values, dtype="float64", layout=layout))
    assert np.array_equal(output.y, np.zeros((2, 3, 4)))
    assert np.array_equal(values, np.arange(24.0).reshape(2, 3, 4))


def test_the_output_is_a_copy():
    """Code that keeps one output buffer and writes into it again does not change an earlier output."""
    buffer = np.zeros((2, 4))

    def reuse(x, weight, bias):
        buffer[:] = x
        return buffer

    implementation = numpy_implementation(reuse)
    first = call(implementation, Inputs(X))
    call(implementation, Inputs(-X))
    assert np.array_equal(first.y, X)


def received(norm, inputs, **options):
    """What the callable is passed, with arrays as lists."""
    seen = []

    def spy(*args):
        seen.extend(a.tolist() if isinstance(a, np.ndarray) else a for a in args)
        return tuple([args[0]] * (1 + bool(options.get("residual"))))

    call(numpy_implementation(spy, norm, **options), inputs)
    return seen


W, B = np.array([1.0, 2.0, 3.0, 4.0]), np.array([5.0, 6.0, 7.0, 8.0])


@pytest.mark.parametrize(
    ("norm", "options", "inputs", "expected"),
    [
        (LayerNorm(), {}, {"weight": W, "bias": B}, [X, W, B]),
        (LayerNorm(), {}, {}, [X, None, None]),
        (RMSNorm(), {}, {"weight": W}, [X, W]),
        (LayerNorm(), {"affine": False}, {}, [X]),
        (RMSNorm(), {"residual": True}, {"weight": W, "residual": X}, [X, W, X]),
        (GroupNorm(2), {}, {"weight": W}, [X, W, None]),
        (InstanceNorm(), {}, {}, [X, None, None]),
        (BatchNorm(), {}, {"running_mean": W, "running_var": B}, [X, None, None, W, B, True, 0.1]),
        (BatchNorm(momentum=None), {}, {"training": False}, [X, None, None, None, None, False, None]),
        (BatchNorm(), {}, {"momentum": 0.25}, [X, None, None, None, None, True, 0.25]),
        (InstanceNorm(track_running_stats=True), {}, {"training": False}, [X, None, None, None, None, False, 0.1]),
        (RMSNorm(eps=0.5), {"arguments": ("weight", "x", "eps")}, {"weight": W}, [W, X, 0.5]),
        (LayerNorm(), {"arguments": ("x", "normalized_shape")}, {}, [X, (4,)]),
        (GroupNorm(2), {"arguments": ("x", "num_groups", "num_features", -1, True)}, {}, [X, 2, 4, -1, True]),
        (PartialRMSNorm(fraction=0.5), {"arguments": ("x", "fraction")}, {}, [X, 0.5]),
    ],
)
def test_arguments_come_in_the_order_that_the_norm_has(norm, options, inputs, expected):
    """The default order is the one documented; ``arguments`` names another, with settings and constants."""
    expected = [a.tolist() if isinstance(a, np.ndarray) else a for a in expected]
    assert received(norm, Inputs(X, **inputs), **options) == expected


@pytest.mark.parametrize(("form", "taken"), [("call", False), ("make", False), ("module", True)])
def test_parameters_are_arguments_or_attributes_of_a_module(form, taken):
    """With ``arguments`` a callable takes what they name; a module is given the rest as attributes."""
    implementation = Implementation(norm=LayerNorm(), framework="numpy", arguments=("x", "weight"), **{form: abs})
    assert implementation.takes("weight")
    assert implementation.takes("bias") == taken


def test_parameters_have_their_own_dtype():
    """weight_dtype is that of parameters and running statistics; x and the residual keep theirs."""
    dtypes = []

    def spy(x, weight, bias, running_mean, running_var, training, momentum, residual):
        dtypes.extend(a.dtype.name for a in (x, weight, bias, running_mean, running_var, residual))
        return x, residual

    inputs = Inputs(X, W, B, X, W, B, dtype="bfloat16", weight_dtype="float32")
    call(numpy_implementation(spy, BatchNorm(), residual=True), inputs)
    assert dtypes == ["bfloat16", "float32", "float32", "float32", "float32", "bfloat16"]


@pytest.mark.parametrize(
    ("name", "norm", "options"),
    [
        ("weight", LayerNorm(), {"affine": False}),
        ("bias", RMSNorm(), {}),
        ("residual", LayerNorm(), {}),
        ("running_mean", LayerNorm(), {}),
    ],
)
@pytest.mark.parametrize("form", ["call", "make", "module"])
def test_what_the_code_does_not_take_is_refused(name, norm, options, form):
    """An array that the code does not take is an error of the caller, not dropped."""
    implementation = Implementation(norm=norm, name="mine", framework="numpy", **{form: abs}, **options)
    with pytest.raises(ValueError, match=f"{name} given, but mine does not take it"):
        call(implementation, Inputs(X, **{name: W}))


def test_running_statistics_may_be_returned_written_or_left():
    """A BatchNorm returns the triple, or y alone; then what was passed is read back where it changed, and after training."""

    def writes(x, weight, bias, running_mean, running_var, training, momentum):
        running_mean += 1
        return x

    def triple(x, weight, bias, running_mean, running_var, training, momentum):
        return x, running_mean * 2, None

    inputs = Inputs(X, running_mean=W, running_var=B)
    for given in ({}, {"mutates": ("running_mean",)}):
        output = call(numpy_implementation(writes, BatchNorm(), **given), inputs)
        assert (output.running_mean.tolist(), output.running_var.tolist()) == ([2.0, 3.0, 4.0, 5.0], B.tolist())
    output = call(numpy_implementation(writes, BatchNorm()), replace(inputs, training=False))
    assert (output.running_mean.tolist(), output.running_var) == ([2.0, 3.0, 4.0, 5.0], None)
    output = call(numpy_implementation(triple, BatchNorm()), inputs)
    assert (output.running_mean.tolist(), output.running_var) == ([2.0, 4.0, 6.0, 8.0], None)


def test_the_new_residual_is_returned():
    """With residual=True the second result is the new residual."""
    output = call(numpy_implementation(lambda x, w, r: (x, x + r), RMSNorm(), residual=True), Inputs(X, residual=X))
    assert np.array_equal(output.new_residual, 2 * X)


def test_shape_and_dtype_are_kept_as_returned():
    """A wrong shape or dtype is no error of the call: checks judge it."""
    output = call(numpy_implementation(lambda x, w, b: x[:1].astype(np.int32)), Inputs(X))
    assert (output.y.shape, output.dtype) == ((1, 4), "int32")
    output = call(numpy_implementation(lambda x, w, b: x.sum()), Inputs(X))
    assert (output.y.shape, output.dtype) == ((), "float32")
    output = call(numpy_implementation(lambda x, w, b: x + 1j), Inputs(X))
    assert (output.y.tolist(), output.dtype) == (X.tolist(), "complex64")


class TwoLinesError(Exception):
    """Its text has two lines."""

    def __str__(self):
        return "first\n  second"


class MuteError(Exception):
    """Its text cannot be made."""

    def __str__(self):
        raise RuntimeError


def raising(error):
    def function(x, weight, bias):
        raise error

    return function


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (raising(ValueError("bad width")), r"^ValueError: bad width \(test_implementations\.py, line \d+\)$"),
        (raising(TwoLinesError()), r"^TwoLinesError: first second \(test_implementations\.py, line \d+\)$"),
        (raising(SystemExit(3)), r"^SystemExit: 3 \(test_implementations\.py, line \d+\)$"),
        (raising(AssertionError()), r"^AssertionError \(test_implementations\.py, line \d+\)$"),
        (raising(MuteError()), r"^MuteError: its text cannot be made \(test_implementations\.py, line \d+\)$"),
        (raising(ValueError("x" * 1000)), r"^ValueError: x{285}\.\.\. \(test_implementations\.py, line \d+\)$"),
        (lambda x: x, r"^TypeError: .*takes 1 positional argument but 3 were given$"),
        (lambda x, w, b: None, r"^TypeError: returned NoneType, but should return a numpy\.ndarray$"),
        (lambda x, w, b: [1.0], r"^TypeError: returned list, but should return a numpy\.ndarray$"),
        (lambda x, w, b: (x, x), r"^TypeError: returned a tuple of 2, but should return y$"),
        (lambda x, w, b: (x,) * 4, r"^TypeError: returned a tuple of 4, but should return y$"),
        (lambda x, w, b: np.array(["a"]), r"^ValueError: could not convert string to float"),
    ],
)
def test_whatever_the_code_does_wrong_is_a_call_error(function, message):
    """Exceptions of user code, SystemExit included, and results that are no arrays become one line."""
    with pytest.raises(CallError, match=message):
        call(numpy_implementation(function), Inputs(X))


@pytest.mark.parametrize(
    ("norm", "options", "message"),
    [
        (BatchNorm(), {}, r"returned a tuple of 2, but should return y or \(y, running_mean, running_var\)"),
        (LayerNorm(), {"residual": True}, r"returned ndarray, but should return \(y, new_residual\)"),
    ],
)
def test_the_results_that_the_norm_has_are_named(norm, options, message):
    """The message says which results were expected."""
    result = (X, X) if norm.has_running else X
    with pytest.raises(CallError, match=message):
        call(numpy_implementation(lambda *_: result, norm, **options), Inputs(X))


def test_a_lone_surrogate_is_escaped():
    """What an exception says can be written into any file, and so can its traceback."""
    with pytest.raises(CallError, match=r"^ValueError: bad \\ud800 ") as caught:
        call(numpy_implementation(raising(ValueError("bad \ud800"))), Inputs(X))
    assert "bad \\ud800" in caught.value.traceback


def test_keyboard_interrupt_passes_through():
    """Ctrl-C ends the audit, not only the call."""
    with pytest.raises(KeyboardInterrupt):
        call(numpy_implementation(raising(KeyboardInterrupt())), Inputs(X))


def test_the_traceback_shows_the_users_code_and_none_of_ours():
    """Frames of normcheck are left out, also in the chain of causes; the user's own are there."""

    def inner():
        raise KeyError("cause")

    def failing(x, weight, bias):
        try:
            inner()
        except KeyError as error:
            raise ValueError("effect") from error

    with pytest.raises(CallError) as caught:
        call(numpy_implementation(failing), Inputs(X))
    text = caught.value.traceback
    assert "in failing" in text
    assert "in inner" in text
    assert text.endswith("ValueError: effect\n")
    assert "calls.py" not in text
    assert caught.value.__cause__ is None


def test_a_call_error_survives_pickling():
    """It can be sent from a worker process, with its traceback."""
    error = pickle.loads(pickle.dumps(CallError("ValueError: x", "Traceback ...")))  # noqa: S301 - made in this line
    assert (str(error), error.traceback) == ("ValueError: x", "Traceback ...")


def test_warnings_of_user_code_break_nothing():
    """Warnings, which the settings of this very test run turn into errors, and numpy's floating-point errors are dropped."""

    def noisy(x, weight, bias):
        warnings.warn("deprecated", DeprecationWarning, stacklevel=1)
        return x / np.zeros_like(x)

    with np.errstate(all="raise"):
        output = call(numpy_implementation(noisy), Inputs(X))
    assert np.isinf(output.y).all()


def test_make_gets_the_norm_and_the_shape():
    """``make`` is asked for a call for the norm, shape, dtype and device at hand."""
    seen = []

    def make(norm, *, shape, dtype, device):
        seen.append((norm, shape, dtype, device))
        return lambda x, weight: x

    varied = numpy_implementation(norm=RMSNorm(), make=make).with_norm(RMSNorm(eps=0.5))
    call(varied, Inputs(X, dtype="float16"))
    assert seen == [(RMSNorm(eps=0.5), (2, 4), "float16", "cpu")]


def test_a_module_is_given_its_state_and_its_mode():
    """A stateful module gets parameters and statistics as attributes; what it has written of them is read back."""

    class Module:
        weight = running_mean = None

        def __call__(self, x):
            self.running_mean = self.running_mean
            self.running_mean += self.training
            return x * self.weight

    implementation = numpy_implementation(norm=BatchNorm(), module=lambda norm, **_: Module())
    inputs = Inputs(X, weight=W, running_mean=W, training=True)
    output = call(implementation, inputs)
    assert np.array_equal(output.y, X * W)
    assert output.running_mean.tolist() == [2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize(
    ("implementation", "norm", "varies"),
    [
        (numpy_implementation(lambda x: x), LayerNorm(), True),
        (numpy_implementation(lambda x: x), LayerNorm(eps=1.0), False),
        (numpy_implementation(lambda x, e: x, arguments=("x", "eps")), LayerNorm(eps=1.0), True),
        (numpy_implementation(lambda x, e: x, arguments=("x", "eps")), LayerNorm(eps=1.0, ddof=1), False),
        (numpy_implementation(lambda x, e: x, arguments=("x", "eps")), RMSNorm(), False),
        (numpy_implementation(norm=GroupNorm(2), make=lambda norm, **_: None), GroupNorm(4, eps=1.0), True),
        (numpy_implementation(make=lambda norm, **_: None), LayerNorm(eps_placement="outside"), False),
    ],
)
def test_with_norm_varies_what_the_code_is_told(implementation, norm, varies):
    """A setting can be varied if the code is given it; the function that is claimed stays the same."""
    varied = implementation.with_norm(norm)
    assert (varied is not None) == varies
    assert varied is None or varied.norm == norm


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "none of them given, but should be exactly one of call, make and module"),
        ({"call": abs, "make": abs}, "call and make given, but should be exactly one of call, make and module"),
        ({"call": 3}, "call=3, but should be callable"),
        ({"call": abs, "norm": None}, r"norm=None, but should be a norm such as LayerNorm\(eps=1e-5\)"),
        ({"call": abs, "norm": LayerNorm}, "norm=<class .*LayerNorm'>, but should be a norm such as"),
        ({"call": abs, "contract": "float32"}, "contract='float32', but should be a Contract"),
        ({"call": abs, "framework": "pytorch"}, r"framework='pytorch', but should be one of .*did you mean 'torch'"),
        ({"call": abs, "dtypes": ("float23",)}, r"dtypes='float23', but should be one of float64, .*did you mean 'float32'"),
        ({"call": abs, "dtypes": "float32"}, "dtypes='float32', but should be a tuple of names"),
        ({"call": abs, "dtypes": (np.float32,)}, "dtypes=.*float32.*, but should be a tuple of names"),
        ({"call": abs, "dtypes": 32}, "dtypes=32, but should be a tuple of names"),
        ({"call": abs, "dtypes": ()}, r"dtypes=\(\), but should name at least one"),
        ({"call": abs, "devices": ()}, r"devices=\(\), but should name at least one"),
        ({"call": abs, "layouts": ("channel_last",)}, "layouts='channel_last', but .*did you mean 'channels_last'"),
        ({"call": abs, "mutates": ("runing_mean",)}, "mutates='runing_mean', but .*did you mean 'running_mean'"),
        ({"call": abs, "weight_dtype": "fp32"}, "weight_dtype='fp32', but should be one of float64, float32"),
        ({"call": abs, "channel_axis": 2}, r"channel_axis=2, but should be 1 \(channels-first\) or -1 \(channels-last\)"),
        ({"call": abs, "grad": "yes"}, "grad='yes', but should be 'autograd', None or a function"),
        ({"call": abs, "training": "train"}, "training='train', but should be None, True or False"),
        ({"call": abs, "training": False}, "training=False, but LayerNorm as given keeps no running statistics"),
        ({"call": abs, "arguments": "x"}, r"arguments='x', but should be a tuple of names such as \('x', 'weight', 'eps'\)"),
        ({"call": abs, "arguments": ("x", "wieght")}, "argument='wieght', but should be one of .*did you mean 'weight'"),
        ({"call": abs, "arguments": ("x", "num_groups")}, "argument='num_groups', but should be one of x, weight"),
        ({"call": abs, "arguments": ("weight",)}, r"arguments=\('weight',\), but should name x, and each name once"),
        ({"call": abs, "arguments": ("x", "x")}, r"arguments=\('x', 'x'\), but should name x, and each name once"),
        ({"call": abs, "arguments": ("x",), "residual": True}, r"residual=True with arguments=\('x',\), but should agree"),
    ],
)
def test_a_declaration_that_cannot_be_judged_is_refused(options, message):
    """The message names the value and what was expected, and the nearest name where one is near."""
    with pytest.raises(ValueError, match=message):
        Implementation(**{"norm": LayerNorm(), **options})


def test_lists_of_names_become_tuples_and_the_name_is_the_callables():
    """What is given as a list is kept as a tuple; without a name the callable's own is shown."""
    implementation = Implementation(operator.neg, LayerNorm(), framework="numpy", dtypes=["float64"], arguments=["x"])
    assert (implementation.dtypes, implementation.arguments, implementation.name) == (("float64",), ("x",), "neg")
    assert Implementation(functools.partial(abs), LayerNorm()).name == "partial"
    assert Implementation(Named("a.b:c.d"), LayerNorm()).name == "a.b.c.d"


@pytest.mark.parametrize(
    ("options", "shape", "reason"),
    [
        ({}, (2, 4), None),
        ({"ranks": (2,)}, (2, 4), None),
        ({"ranks": (2,)}, (2, 2, 4), "rank=3, but mine takes (2,)"),
        ({"widths": range(2, 2**62)}, (4, 1), "rows of 1 elements, but mine takes 2 or more"),
        ({"widths": range(2, 9)}, (4, 9), "rows of 9 elements, but mine takes 2 to 8"),
        ({"norm": LayerNorm(ddof=1)}, (4, 1), "ddof=1 with rows of 1 elements, but ddof should be less than the row width"),
    ],
)
def test_shapes_that_the_code_does_not_take_are_refused_with_a_reason(options, shape, reason):
    """Declared widths and ranks, and what the norm itself cannot fold, give the reason of a skip."""
    got = numpy_implementation(abs, **options).refuses(shape)
    assert got == reason


def test_a_missing_package_is_told_with_the_line_that_installs_it(monkeypatch):
    """Without torch, a call says how to get it; discovery of all leaves torch out, and of torch alone says so."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingPackageError, match=r"torch is not installed; pip install 'normcheck\[torch\]'"):
        call(Implementation(abs, LayerNorm()), Inputs(X))
    with pytest.raises(MissingPackageError, match=r"pip install 'normcheck\[torch\]'"):
        implementations("torch")
    assert "torch" not in {found.framework for found in implementations()}
    assert "torch is not installed; pip install 'normcheck[torch]'" in left_out()


@pytest.mark.parametrize("name", ["tinygrad", "triton"])
@pytest.mark.parametrize("installed", [False, True])
def test_what_is_installed_and_cannot_run_is_told_apart(monkeypatch, tmp_path, name, installed):
    """A missing package comes with the line that installs it; one that lacks a compiler or a GPU with what lets it run."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object() if installed else None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(triton, "INTERPRETED", False)
    monkeypatch.setattr(triton, "_DRIVERS", (str(tmp_path / "none"),))
    compiler, gpu = "apt-get install clang, the compiler that it calls", "set TRITON_INTERPRET=1, since there is no GPU"
    said = left_out(name)[0]
    if installed:
        assert said == f"{name} cannot be used here; {compiler if name == 'tinygrad' else gpu}"
    else:
        assert said.startswith(f"{name} is not installed; pip install 'normcheck[{name}]'")


def test_a_package_beside_the_framework_is_told_too(monkeypatch):
    """What requires a package that is not there is left out of discovery, and told with the line that installs it."""
    lacking = numpy_implementation(abs, name="lacking", requires="no-such-package")
    ready = numpy_implementation(abs, name="ready", requires="numpy")
    monkeypatch.setattr(registry, "_registered", lambda: {one.name: one for one in (lacking, ready)})
    line = "no-such-package is not installed; pip install no-such-package"
    assert [found.name for found in implementations("numpy")] == ["ready"]
    assert left_out("numpy") == (line,)
    assert (missing(lacking), missing(ready)) == (line, "")
    with pytest.raises(MissingPackageError, match=line):
        call(lacking, Inputs(X))


def test_a_missing_device_is_named():
    """A device that the framework does not find is an error of the caller."""
    with pytest.raises(ValueError, match=r"device='cuda:0', but numpy .* finds cpu"):
        require(numpy_implementation(abs), "cuda:0")


def test_an_unknown_framework_is_named():
    """Asking for the implementations of a framework that has no adapter names those that have."""
    with pytest.raises(ValueError, match=r"framework='caffe', but should be one of .*numpy.*torch"):
        implementations("caffe")


@pytest.fixture
def entry_point(monkeypatch):
    """Registers what is given as the entry points of the group, each under the package name ``theirs``."""
    registry._registered.cache_clear()
    module = types.ModuleType("their_norms")
    monkeypatch.setitem(sys.modules, "their_norms", module)

    def register(**objects):
        points = [importlib.metadata.EntryPoint(name, f"their_norms:{name}", registry.GROUP) for name in objects]
        for name, value in objects.items():
            setattr(module, name, value)
        monkeypatch.setattr(registry, "entry_points", lambda group: [p for p in points if p.group == group])

    yield register
    registry._registered.cache_clear()


def test_entry_points_yield_one_or_several_or_a_function(entry_point):
    """An implementation, a list, and functions that return either are all found."""
    one, *rest = (numpy_implementation(abs, name=f"theirs{i}") for i in range(4))
    entry_point(one=one, several=rest[:2], function=lambda: [rest[2]])
    names = [found.name for found in implementations("numpy")]
    assert names[-4:] == ["theirs0", "theirs1", "theirs2", "theirs3"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, r"entry point 'bad = their_norms:bad' yields 3, but should yield an Implementation or a list of them"),
        ([3], r"entry point 'bad = their_norms:bad' yields 3, but should yield an Implementation"),
        (lambda: {}["no"], r"entry point 'bad = their_norms:bad' cannot be loaded: KeyError: 'no'"),
        (lambda: sys.exit(3), r"entry point 'bad = their_norms:bad' cannot be loaded: SystemExit: 3"),
    ],
)
def test_a_malformed_entry_point_fails_and_names_its_place(entry_point, value, message):
    """What is no implementation, and a function that raises, fail when implementations are asked for."""
    entry_point(bad=value)
    with pytest.raises(RegistrationError, match=message):
        implementations()


def test_an_entry_point_to_nothing_fails_and_names_its_place(entry_point, monkeypatch):
    """An entry point whose object is missing names itself and the package's version."""
    dist = types.SimpleNamespace(name="theirs", version="1.2")
    point = importlib.metadata.EntryPoint("gone", "their_norms:gone", registry.GROUP)
    vars(point)["dist"] = dist
    entry_point()
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    with pytest.raises(RegistrationError, match=r"'gone = their_norms:gone' of theirs 1\.2 cannot be loaded: AttributeError"):
        implementations()


def test_a_name_that_is_taken_fails_and_names_both_places(entry_point):
    """Two registrations of one name are an error that says where both came from."""
    entry_point(mine=numpy_implementation(abs, name="textbook.layer_norm"))
    message = r"'mine = their_norms:mine': the name 'textbook.layer_norm' is taken by normcheck.implementations.numpy"
    with pytest.raises(RegistrationError, match=message):
        implementations()


def test_every_discovered_implementation_can_be_sent_to_another_process():
    """Built-in implementations pickle by name, without importing their framework, and equal what comes out."""
    found = implementations()
    assert found
    assert pickle.loads(pickle.dumps(found)) == found  # noqa: S301 - made in this line
    assert len({implementation.name for implementation in found}) == len(found)


class TestLoad:
    """Targets ``module:callable`` and ``file.py:callable``."""

    def test_a_file_is_run_and_its_function_found(self, tmp_path):
        """A function of a file, and a dotted one, are returned; the module's dataclasses work."""
        file = tmp_path / "mine.py"
        lines = [
            "from __future__ import annotations",
            "import dataclasses",
            "@dataclasses.dataclass",
            "class A:",
            "    n: int = 3",
            "    @staticmethod",
            "    def f(x): return x + A().n",
        ]
        file.write_text("\n".join(lines))
        assert load(f"{file}:A.f")(1) == 4
        assert Named(f"{file}:A.f")(1) == 4

    def test_a_module_of_the_current_directory_is_found(self, tmp_path, monkeypatch):
        """As ``python -m`` does, but searched last, so that it shadows nothing."""
        (tmp_path / "norm_of_a_test.py").write_text("def f(x): return -x")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
        monkeypatch.delitem(sys.modules, "norm_of_a_test", raising=False)
        assert load("norm_of_a_test:f")(2) == -2
        assert sys.path[-1] == str(tmp_path)

    @pytest.mark.parametrize(
        ("target", "message"),
        [
            ("torch.layer_norm", r"target='torch.layer_norm', but should be 'module:callable' or 'file.py:callable'"),
            ("math:", r"target='math:', but should be"),
            ("no_such_module:f", r"module 'no_such_module' cannot be imported: ModuleNotFoundError: No module named"),
            ("no/such/file.py:f", r"file 'no/such/file.py' not found"),
            ("math:no_such", r"target='math:no_such', but math has no attribute 'no_such'"),
            ("math:pi", r"target='math:pi' is a float, but should be callable"),
        ],
    )
    def test_what_is_missing_is_named(self, target, message):
        """A malformed target, a missing module, file or attribute, and what cannot be called."""
        with pytest.raises(TargetError, match=message):
            load(target)

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            ("import no_such_thing", r"cannot be imported: ModuleNotFoundError: No module named .* \(bad.py, line 1\)"),
            ("\n\nraise SystemExit('no\\ngpu')", r"cannot be imported: SystemExit: no gpu \(bad.py, line 3\)"),
            ("def f(:", r"cannot be imported: SyntaxError: .*\(bad.py, line 1\)"),
            ("import os\nos._exit(5)", r"cannot be imported: SystemExit: os._exit\(5\) \(bad.py, line 2\)"),
        ],
    )
    def test_the_users_own_error_is_one_line(self, tmp_path, source, message):
        """What the import raised, and in which line of the file."""
        file = tmp_path / "bad.py"
        file.write_text(source)
        with pytest.raises(TargetError, match=message) as caught:
            load(f"{file}:f")
        assert "\n" not in str(caught.value)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
    def test_a_child_of_the_import_may_end(self, tmp_path):
        """A process that user code forks while it is imported ends by os._exit with its own status, and all is as before."""
        file = tmp_path / "forks.py"
        lines = [
            "import os, warnings",
            "with warnings.catch_warnings():",
            "    warnings.simplefilter('ignore')  # that there are threads as well",
            "    child = os.fork()",
            "child or os._exit(7)",
            "ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])",
            "def f(): return ended",
        ]
        file.write_text("\n".join(lines))
        before = os._exit
        assert load(f"{file}:f")() == 7
        assert os._exit is before

    def test_keyboard_interrupt_passes_through(self, tmp_path):
        """Ctrl-C during the import of user code is not swallowed."""
        file = tmp_path / "slow.py"
        file.write_text("raise KeyboardInterrupt")
        with pytest.raises(KeyboardInterrupt):
            load(f"{file}:f")


def test_the_contract_is_the_default_one():
    """Without a contract the usual fused kernel is claimed."""
    assert Implementation(abs, LayerNorm()).contract == Contract()


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("layout", VIEWS)
def test_views_hold_the_values_in_a_larger_block(name, layout):
    """Every layout with gaps gives the values asked for, with other strides or another start than a contiguous array."""
    adapter = frameworks()[name]
    if adapter.available() is not None:
        pytest.skip(f"{name} is not installed")
    values = np.repeat(np.arange(12.0).reshape(1, 3, 4), 2, axis=0)
    if name == "torch" and layout == "reversed":
        with pytest.raises(ValueError, match="layout='reversed', but torch has no negative strides"):
            adapter.to_native(values, "bfloat16", layout=layout)
        return
    native = adapter.to_native(values, "bfloat16", layout=layout)
    assert np.array_equal(adapter.to_values(native)[0], values)
    scope = {"x": values, "np": np, name: importlib.import_module(name), "ml_dtypes": ml_dtypes}
    exec(adapter.snippet_array("x", "bfloat16", "cpu", layout, 3), scope)  # noqa: S102 - our own text
    pasted = scope["x"]
    assert np.array_equal(adapter.to_values(pasted)[0], values)
    steps = [2 * step for step in native.stride()] if name == "torch" else list(native.strides)
    assert steps == ([2 * step for step in pasted.stride()] if name == "torch" else list(pasted.strides))
    begins = native.storage_offset() if name == "torch" else native.base.size - native.size
    assert begins or steps != list(encode(values, "bfloat16").strides)


def test_samples_that_differ_cannot_be_expanded():
    """One sample in memory cannot stand for samples that differ."""
    with pytest.raises(ValueError, match="layout='expanded', but the samples along the first axis differ"):
        encode(X, "float32", "expanded")


def test_observe_sees_what_was_written_and_what_is_shared():
    """The arrays as the call left them, those in whose memory the output lies, and the output after later calls."""

    def in_place(x, weight, bias):
        x += 1
        return x

    seen = observe(numpy_implementation(in_place), Inputs(X, weight=np.ones(4)))
    assert np.array_equal(seen.after["x"], X + 1)
    assert np.array_equal(seen.after["weight"], np.ones(4))
    assert seen.shared == ("x",)
    buffer = np.zeros((2, 4))

    def reuse(x, weight, bias):
        buffer[:] = x
        return buffer

    first = observe(numpy_implementation(reuse), Inputs(X))
    assert first.shared == ()
    observe(numpy_implementation(reuse), Inputs(-X))
    assert np.array_equal(first.output.y, X)
    assert np.array_equal(first.reread(), -X)


def test_threads_are_pinned_and_read_back():
    """What `pin_threads` sets, `threads` reads."""
    for name in ("numpy", "torch"):
        adapter = frameworks()[name]
        if adapter.available() is not None:
            continue
        before = adapter.threads()
        adapter.pin_threads(2)
        assert adapter.threads() == (1 if name == "numpy" else 2)
        adapter.pin_threads(before)


def test_a_module_instance_is_no_function() -> None:
    """It has weights of its own, so that module= is the way; one without weights can be called as it is."""
    torch = pytest.importorskip("torch")
    layer = torch.nn.LayerNorm(8)
    said = r"call=LayerNorm\(\.\.\.\) is a module with weights of its own, .* module=lambda norm, \*, shape"
    with pytest.raises(ValueError, match=said):
        Implementation(layer, LayerNorm())
    assert Implementation(layer, LayerNorm(), arguments=("x",)).passes == ("x",)
