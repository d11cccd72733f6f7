"""The zoo: every fault is told as its report tells it and is caught; every sound norm passes."""

import math
import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from normcheck.checks import Context, checks, run_check
from normcheck.contract import Contract
from normcheck.faults import Fault, catalogue, faults, sound, sound_warnings, sums
from normcheck.formats import format_of
from normcheck.implementations import Inputs, call, frameworks
from normcheck.norms import LayerNorm
from normcheck.results import Outcome


def _ways(sound_norm):
    """What the code is beside a function that is called."""
    return [getattr(sound_norm, name) is None for name in ("module", "block", "quantized", "workers")]


FAULTS = {fault.name: fault for fault in faults()}
SOUND = {implementation.name: implementation for implementation in sound()}
APART = {  # one sound norm for each norm, arithmetic, framework and way to be called
    (s.norm.name, s.contract, s.framework, s.training, s.residual, callable(s.grad), *_ways(s)): s.name for s in SOUND.values()
}
CHECKS = tuple(checks())
IN_EVERY_DTYPE = [(name, dtype) for name, fault in FAULTS.items() for dtype in fault.dtypes]


def _needs(framework):
    missing = frameworks()[framework].available()
    if missing is not None:
        pytest.skip(f"{framework} is not installed: {missing}")


def _finding(fault, dtype, check):
    """The first result of the check that shows the fault, or None."""
    context = Context(fault.implementation, dtype, profile=fault.profile)
    shown = (Outcome.FAILED, Outcome.WARNED)
    return next((result for result in checks()[check].run(context) if result.outcome in shown), None)


def test_the_zoo_is_rich():
    """There are more than a hundred faults, and at least three of each kind that is there."""
    kinds = Counter(fault.kind for fault in FAULTS.values())
    assert len(FAULTS) > 100
    assert len(kinds) >= 21
    assert min(kinds.values()) >= 3
    assert len(SOUND) >= 25


@pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))
def test_a_fault_says_what_it_is(fault):
    """Kind, provenance, one-line statement and expected checks are given, and the checks exist."""
    assert re.fullmatch(r"K[0-3]\d", fault.kind)
    assert fault.provenance
    assert all(re.fullmatch(r"(after )?[\w.-]+/[\w.-]+#\d+|[\w-]+: \w+", source) for source in fault.provenance)
    assert 20 < len(fault.statement) < 140
    assert "\n" not in fault.statement
    assert fault.expected
    assert set(fault.expected) <= set(checks())
    assert set(fault.dtypes) <= set(catalogue.ALL)


def test_every_check_is_proved_on_a_fault():
    """Each check is expected by some fault, but for those of what a norm has only in a model or by name: its calls, its path."""
    expected = {check for fault in faults() for check in fault.expected}
    assert set(checks()) - expected <= {"captured-activations", "activation-regime", "dispatched-operators"}


def test_faults_come_sorted_and_load_no_framework():
    """The zoo can be listed, by kind and name, without importing torch."""
    code = "import sys\nfrom normcheck.faults import faults, sound\nfaults(), sound()\nprint('torch' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    assert printed.strip() == "False"
    assert [(f.kind, f.name) for f in faults()] == sorted((f.kind, f.name) for f in faults())
    assert [s.name for s in sound()] == sorted(SOUND)


def test_a_name_is_given_once():
    """A second fault or sound norm of the same name is refused where it is defined."""

    def two_pass(x, weight, bias, eps):
        """A name that is taken."""

    with pytest.raises(ValueError, match=r"test_faults: 'two-pass' names another fault or sound norm already"):
        catalogue.fault("K01", "a/b#1", norm=LayerNorm())(two_pass)
    with pytest.raises(ValueError, match=r"'two-pass' names another"):
        catalogue.sound_norm(LayerNorm())(two_pass)


def _called(name, x, dtype="float32", **settings):
    """What a fault returns, with another eps where one is given; inputs are rounded to the dtype."""
    fault = FAULTS[name]
    _needs(fault.implementation.framework)
    eps = settings.pop("eps", fault.implementation.norm.eps)
    norm = type(fault.implementation.norm)(**{**vars(fault.implementation.norm), "eps": eps})
    implementation = fault.implementation.with_norm(norm)
    training = settings.pop("training", True)
    exact = {key: format_of(dtype).round(value) for key, value in {"x": x, **settings}.items()}
    return call(implementation, Inputs(**exact, dtype=dtype, training=training)).y


STEPS = np.array([[40000.0, 40001.0, 40002.0, 40003.0]])
GIVEN = {"running_mean": [0.0], "training": False}
RETOLD = [
    ("onnxruntime 28463: NaN", "single-pass-variance", STEPS, {}, [[np.nan] * 4]),
    ("onnxruntime 28463: clamped", "single-pass-variance-clamped", STEPS, {}, [[-474.34, -158.11, 158.11, 474.34]]),
    ("OLMo 281", "rms-plus-eps", [[1e-3, -1e-3, 2e-3, -2e-3]], {"eps": 1e-5}, [[0.6285, -0.6285, 1.257, -1.257]]),
    ("llama.cpp 2373", "eps-1e6-for-1e5", [[1e-5**0.5, -(1e-5**0.5)]], {}, [[301.5 * 1e-5**0.5, -301.5 * 1e-5**0.5]]),
    ("vision 2169", "frozen-batch-norm-without-eps", [[1.0]], {**GIVEN, "running_var": [1e-5]}, [[316.2]]),
    ("llm-foundry 371", "divided-by-the-reciprocal", [[1.0, 2.0, 3.0, 4.0]], {}, [[2.74, 5.48, 8.22, 10.95]]),
    ("keras 21234", "variance-for-mean-square", [np.arange(10.0)], {"eps": 1e-3}, [np.arange(10.0) * 3.1332 / 9]),
    ("pytorch 108072", "folded-with-fma", [[14.0, 14.0]], {"eps": 1e-6}, [[1.22e-4, 1.22e-4]]),
    ("pytorch 5410", "folded-batch-norm", [[1e7], [1e7]], {"running_mean": [0.0], "running_var": [1.0]}, [[-55.97], [-55.97]]),
    ("vllm 29810", "offset-weight-in-bfloat16", [[1.0, 1.0]], {"weight": [15.8125, 0.0]}, [[16.75, 1.0]]),
    ("coreai-torch 54", "running-variance-in-float16", [[100.0]], {**GIVEN, "running_var": [70000.0]}, [[0.0]]),
    ("triton 9838", "padding-counted-in-the-variance", [[1.0, 2.0, 3.0]], {}, [[-0.7071, 0.0, 0.7071]]),
    ("TIM-VX 589", "whole-number-eps", [[0.0, 0.0]], {}, [[np.nan, np.nan]]),
    ("coremltools 2821", "rescue-that-scales-eps", [[0.0, 0.0]], {}, [[np.nan, np.nan]]),
    ("onnx 5466", "one-weight-per-group", [[[1.0, -1.0]] * 4], {"weight": [1.0, 2.0, 3.0, 4.0]}, [[[1, -1]] * 2 + [[3, -3]] * 2]),
]
RETOLD_IN_FLOAT16 = [
    ("pytorch 41527", "eps-lost-to-float16", [[0.0] * 4], [[np.nan] * 4]),
    ("pytorch 32137", "eps-of-a-maximum-in-float16", [[0.0] * 4], [[np.nan] * 4]),
    ("onnxruntime 28442", "mean-square-in-float16", np.full((1, 2048), 260.0), np.zeros((1, 2048))),
    ("brainchop-cli 56", "squares-in-float16", [[300.0, -300.0]], [[0.0, 0.0]]),
    ("executorch 16727", "count-in-float16", [[1.0] * 2049 + [-1.0] * 2048], [[1.0] * 2049 + [-1.0] * 2048]),
]


@pytest.mark.parametrize(("name", "x", "settings", "expected"), [row[1:] for row in RETOLD], ids=[row[0] for row in RETOLD])
def test_faults_give_the_reported_values(name, x, settings, expected):
    """The report's input gives the wrong values that the report tells of, to the digits that it prints."""
    np.testing.assert_allclose(_called(name, x, **settings), expected, rtol=2e-3)


@pytest.mark.parametrize(
    ("name", "x", "expected"), [row[1:] for row in RETOLD_IN_FLOAT16], ids=[row[0] for row in RETOLD_IN_FLOAT16]
)
def test_faults_give_the_reported_values_in_float16(name, x, expected):
    """So do the reports about float16."""
    np.testing.assert_allclose(_called(name, x, "float16"), expected, atol=1e-3)


def test_channels_last_groups_are_strips_of_space():
    """The report's sixteen numbers are centred on 3.5 and 11.5, where 6.5 and 8.5 are the groups' means."""
    y = _called("channels-last-groups-without-a-transpose", np.arange(16.0).reshape(1, 2, 2, 4))
    np.testing.assert_allclose(y.ravel()[[0, 8]], -3.5 / math.sqrt(5.25), rtol=1e-4)


@pytest.mark.parametrize("fault", [f for f in FAULTS.values() if f.profile == "quick"], ids=lambda fault: fault.name)
def test_a_fault_is_caught(fault):
    """The first of its expected checks finds it in the last of its dtypes, and says what was got and what should be."""
    _needs(fault.implementation.framework)
    found = _finding(fault, fault.dtypes[-1], fault.expected[0])
    assert found is not None
    assert re.search(r", but .*should", found.message)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), IN_EVERY_DTYPE)
def test_a_fault_is_caught_in_every_dtype(name, dtype):
    """The first of its expected checks finds it in each of its dtypes."""
    fault = FAULTS[name]
    _needs(fault.implementation.framework)
    assert _finding(fault, dtype, fault.expected[0]) is not None


@pytest.mark.slow
@pytest.mark.parametrize("fault", [f for f in FAULTS.values() if len(f.expected) > 1], ids=lambda fault: fault.name)
def test_a_fault_is_caught_by_all_its_checks(fault):
    """Each further expected check finds it in one of its dtypes at least."""
    _needs(fault.implementation.framework)
    for check in fault.expected[1:]:
        assert any(_finding(fault, dtype, check) is not None for dtype in fault.dtypes), check


def _findings(name, dtype, ids=CHECKS, profile="quick"):
    implementation = SOUND[name]
    _needs(implementation.framework)
    context = Context(implementation, dtype, profile=profile)
    results = [result for id_ in ids for result in run_check(checks()[id_], context)]
    return [result for result in results if result.outcome.finding]


@pytest.mark.parametrize("name", APART.values())
def test_a_sound_norm_passes(name):
    """Every check passes in the last dtype of a norm of each sort, but for warnings that the collection documents."""
    found = _findings(name, SOUND[name].dtypes[-1])
    assert [r.message for r in found if r.outcome is not Outcome.WARNED] == []
    assert {r.check for r in found} <= set(sound_warnings().get(name, ()))


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_norm_passes_in_every_dtype(name):
    """So does every other norm in every dtype; each documented warning is given in one, if need be by the standard profile."""
    found = [result for dtype in SOUND[name].dtypes for result in _findings(name, dtype)]
    assert [r.message for r in found if r.outcome is not Outcome.WARNED] == []
    documented, warned = set(sound_warnings().get(name, ())), {r.check for r in found}
    thorough = [_findings(name, dtype, documented - warned, "standard") for dtype in SOUND[name].dtypes]
    assert warned | {r.check for results in thorough for r in results} == documented


def test_sound_norms_cover_every_norm_and_contract():
    """All eight norms are there, in training and evaluation, with all three ways to accumulate and both casts."""
    assert {s.norm.name for s in SOUND.values()} == {
        *("LayerNorm", "RMSNorm", "BatchNorm", "InstanceNorm", "GroupNorm", "L2Norm", "ScaleNorm", "PartialRMSNorm")
    }
    assert {s.contract.accumulation for s in SOUND.values()} == {"tree", "sequential", "merge"}
    assert {s.contract.cast for s in SOUND.values()} == {"once", "before_weight"}
    assert {s.training for s in SOUND.values()} == {None, True, False}
    assert {s.framework for s in SOUND.values()} == {"torch", "numpy"}


ORDERS = {
    "sequential": sums.sequential,
    "backward": sums.backward,
    "halving": sums.halving,
    "adjacent": sums.adjacent,
    "lanes": lambda x: sums.lanes(x, 8),
    "short lanes": lambda x: sums.lanes(x, 3, most=2),
    "kahan": sums.kahan,
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=list(ORDERS))
@pytest.mark.parametrize("width", [1, 2, 3, 7, 8, 9, 63, 64, 65, 1000, 1025])
def test_every_order_adds_every_element_once(order, width):
    """Distinct whole numbers, whose sum is exact in any order, add up; the axis is kept."""
    x = np.stack([np.arange(1.0, width + 1), -(np.arange(width) ** 2.0 % 1021)])
    np.testing.assert_array_equal(order(x), x.sum(axis=-1, keepdims=True))


def test_orders_round_as_they_should():
    """In float16 a running sum of ones stalls at 2048, one from the other end stalls elsewhere, trees and lanes do not stall."""
    ones = np.ones((1, 4096), np.float16)
    assert sums.sequential(ones) == 2048
    assert sums.halving(ones) == sums.adjacent(ones) == sums.lanes(ones, 64) == sums.kahan(ones) == 4096
    rising = np.linspace(1, 2, 4001, dtype=np.float32)[None] * np.float32(1 / 3)
    assert sums.sequential(rising) != sums.backward(rising)
    exact = math.fsum(rising[0].astype(float))
    assert abs(sums.kahan(rising) - exact) <= abs(sums.sequential(rising) - exact)


def test_a_kahan_sum_of_squares_that_overflows_is_infinite():
    """Its compensation does not turn an infinite sum into NaN."""
    with np.errstate(all="ignore"):
        assert np.isinf(sums.kahan(np.full((1, 200), np.float32(3e38))))


def test_fault_dtypes_are_those_of_its_code():
    """A fault has no dtypes of its own."""
    implementation = SOUND["two-pass"]
    made = Fault("x", "K01", "s", ("a/b#1",), implementation, ("accuracy",))
    assert made.dtypes == implementation.dtypes == ("float32", "float16", "bfloat16")
    assert implementation.contract == Contract()
