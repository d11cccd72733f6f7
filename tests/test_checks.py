"""Checks: each is registered with its page, fails on its own broken norm with its own message, and passes sound ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from normcheck import BatchNorm, Contract, Implementation, LayerNorm, Norm, RMSNorm
from normcheck.checks import HEADINGS, Context, SkipCaseError, checks, register, run_check
from normcheck.checks.accuracy import _message as accuracy_message
from normcheck.implementations import frameworks
from normcheck.implementations.numpy import Numpy
from normcheck.results import Outcome, Result, Severity

Call = Callable[..., Any]
LN, RMS = LayerNorm(eps=1e-5), RMSNorm(eps=1e-6)


def layer_norm(x: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    """A sound two-pass LayerNorm in float32."""
    h = x.astype(np.float32)
    c = h - h.mean(-1, keepdims=True)
    n = c / np.sqrt((c * c).mean(-1, keepdims=True) + np.float32(eps))
    return (n * weight.astype(np.float32) + bias.astype(np.float32)).astype(x.dtype)


def rms_norm(x: Any, weight: Any) -> Any:
    """A sound RMSNorm in float32."""
    h = x.astype(np.float32)
    n = h / np.sqrt((h * h).mean(-1, keepdims=True) + np.float32(1e-6))
    return (n * weight.astype(np.float32)).astype(x.dtype)


def single_pass(x: Any, weight: Any, bias: Any) -> Any:
    """The variance as E[x**2] - E[x]**2."""
    h = x.astype(np.float32)
    mean = h.mean(-1, keepdims=True)
    variance = np.maximum((h * h).mean(-1, keepdims=True) - mean * mean, 0)
    return ((h - mean) / np.sqrt(variance + np.float32(1e-5)) * weight.astype(np.float32) + bias.astype(np.float32)).astype(
        x.dtype
    )


def clipped(x: Any, weight: Any) -> Any:
    """Inputs clipped to 64."""
    return rms_norm(np.clip(x, -64, 64).astype(x.dtype), weight)


def outside(x: Any, weight: Any) -> Any:
    """sqrt(mean square) + eps."""
    h = x.astype(np.float32)
    return (h / (np.sqrt((h * h).mean(-1, keepdims=True)) + np.float32(1e-6)) * weight.astype(np.float32)).astype(x.dtype)


def fixed_inside_factor(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """A constant of the code's own beside eps."""
    return layer_norm(x, weight, bias, eps + 1e-7)


def folded(x: Any, weight: Any, bias: Any) -> Any:
    """x*r - mean*r, each product exact, as with a fused multiply-add."""
    h = x.astype(np.float32)
    mean = h.mean(-1, keepdims=True)
    c = h - mean
    r = (1 / np.sqrt((c * c).mean(-1, keepdims=True) + np.float32(1e-5))).astype(np.float32)
    shift = (-mean * r).astype(np.float32)
    n = (h.astype(np.float64) * r + shift).astype(np.float32)
    return (n * weight.astype(np.float32) + bias.astype(np.float32)).astype(x.dtype)


def nan_on_constants(x: Any, weight: Any, bias: Any) -> Any:
    """No eps at all."""
    with np.errstate(all="ignore"):
        return layer_norm(x, weight, bias, 0.0)


def flat(x: Any, weight: Any, bias: Any) -> Any:
    """The first element of each row only."""
    return layer_norm(x, weight, bias)[..., :1]


def wide(x: Any, weight: Any, bias: Any) -> Any:
    """float64 whatever comes in."""
    return layer_norm(x, weight, bias).astype(np.float64)


def context(call: Call, norm: Norm, dtype: str = "float32", **options: Any) -> Context:
    """A quick look at a numpy function."""
    return Context(Implementation(call, norm, framework="numpy", dtypes=(dtype,), **options), dtype, profile="quick")


def outcomes(check: str, where: Context) -> list[Result]:
    """The results of one check, without the skipped ones."""
    return [r for r in run_check(checks()[check], where) if r.outcome is not Outcome.SKIPPED]


BROKEN = [
    ("output-form", flat, LN, "float32", {}, r"shape=\(4, 1\), but should be \(4, 64\)"),
    ("output-form", wide, LN, "float32", {}, "dtype=float64, but should be float32"),
    ("accuracy", single_pass, LN, "float32", {}, r"y\[\d+, \d+\]=.*, but should be .* within"),
    ("shift-invariance", single_pass, LN, "float32", {}, r"y\(x \+ .*\)\[\d+, \d+\]=.*, but should be .* since y\(x\)="),
    ("condition-sweep", single_pass, LN, "float32", {}, r"y\[\d+, \d+\]=.*, but should be .* within"),
    ("condition-sweep", clipped, RMS, "float32", {}, r"y\[\d+, \d+\]=.*, but should be .* within"),
    ("scale-invariance", clipped, RMS, "float32", {}, r"y\(4096.0\*x\)\[\d+, \d+\]=.*, but should be"),
    ("outlier-sensitivity", clipped, RMS, "float32", {}, "spread of the other elements=.*, but should be"),
    ("epsilon-placement", outside, RMS, "float32", {}, "eps=1e-06 outside .*, but should be eps=1e-06 inside"),
    ("epsilon-placement", outside, RMS, "bfloat16", {}, "eps=.* outside .*, but should be eps=1e-06 inside"),
    (
        "power-of-two-scaling",
        fixed_inside_factor,
        LN,
        "float32",
        {"arguments": ("x", "weight", "bias", "eps")},
        r"y\(2\*\*.*; eps=",
    ),
    ("zero-and-constant-rows", nan_on_constants, LN, "float32", {}, "y=nan on a row of .*, but should be 0.0"),
]


@pytest.mark.parametrize(("check", "call", "norm", "dtype", "options", "message"), BROKEN)
def test_a_broken_norm_fails_its_check(
    check: str, call: Call, norm: Norm, dtype: str, options: dict[str, Any], message: str
) -> None:
    """Each check fails on the norm that breaks its property, and the message says what came and what should have come."""
    failed = [r for r in outcomes(check, context(call, norm, dtype, **options)) if r.outcome is Outcome.FAILED]
    assert failed
    assert any(re.search(message, r.message) for r in failed), [r.message for r in failed]
    assert all(r.severity is Severity.ERROR for r in failed)


def test_the_condition_sweep_draws_error_and_bound() -> None:
    """Both curves stand over mean/std; a one-pass variance crosses its bound, a two-pass one stays below it."""
    curves = {call: outcomes("condition-sweep", context(call, LN))[0].series for call in (layer_norm, single_pass)}
    for call, crosses in ((layer_norm, False), (single_pass, True)):
        measured, bound = dict(curves[call]["measured"]), dict(curves[call]["bound"])
        assert measured.keys() == bound.keys()
        assert max(measured) > 1e6
        assert any(measured[x] > bound[x] for x in measured) is crosses


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("call", "norm", "options"), [(layer_norm, LN, {"arguments": ("x", "weight", "bias", "eps")}), (rms_norm, RMS, {})]
)
def test_a_sound_norm_fails_nothing(call: Call, norm: Norm, options: dict[str, Any], dtype: str) -> None:
    """Two-pass norms in float32 pass every check; only overflow and bits that depend on the memory layout are warned of."""
    where = context(call, norm, dtype, **options)
    found = [r for check in checks() for r in outcomes(check, where) if r.outcome.finding]
    assert {r.check for r in found} <= {"overflow", "layout-invariance"}
    assert all(r.outcome is Outcome.WARNED for r in found)


def test_every_check_has_its_page() -> None:
    """The docstring has a title of one line and the six headings, in their order, each with text below it."""
    for check in checks().values():
        places = [check.doc.index(f"\n{heading}\n{'-' * len(heading)}\n") for heading in HEADINGS]
        assert places == sorted(places), check.id
        sections = re.split(r"\n(?:" + "|".join(HEADINGS) + r")\n-+\n", check.doc)
        assert all(len(section.strip()) > 10 for section in sections), check.id
        assert check.title == check.doc.splitlines()[0].rstrip("."), check.id
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", check.id)


def test_a_page_without_its_headings_is_refused() -> None:
    """Registration fails at once, naming the check, the file and what is missing."""

    def nameless(where: Context) -> Iterator[Result]:
        """A check.

        Statement
        ---------
        Something.
        """
        yield from ()

    with pytest.raises(ValueError, match=r"check 'nameless' at .*test_checks.py:\d+ has no heading Why it matters"):
        register("nameless")(nameless)


def test_an_id_is_taken_once() -> None:
    """A second check of one id is refused, naming the first."""
    taken = next(iter(checks().values()))
    with pytest.raises(ValueError, match=f"check '{taken.id}' at .* is registered already, by normcheck.checks"):
        register(taken.id)(taken.run)


def test_the_prerequisite_comes_first() -> None:
    """output-form is the first check, and every other one requires it."""
    first, *others = checks().values()
    assert first.id == "output-form"
    assert all("output-form" in check.requires for check in others)


def test_what_a_check_builds_upon_is_run_before_it() -> None:
    """All that it requires comes first, in whatever module it is."""
    order = list(checks())
    assert all(order.index(root) < order.index(id_) for id_, check in checks().items() for root in check.requires)


def test_inputs_that_a_device_has_no_room_for_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Widths and shapes end where eight arrays in the arithmetic's format would not fit the memory that is free."""
    whole = context(lambda x, weight, bias: x, LN, dtype="float16").widths
    monkeypatch.setattr(Numpy, "free_memory", lambda self, device: 8 * 4 * 1024, raising=False)
    small = context(lambda x, weight, bias: x, LN, dtype="float16")
    assert small.widths == tuple(width for width in whole if width <= 1024) != whole
    assert small.shape(4, 256) == (4, 256)
    with pytest.raises(SkipCaseError, match=r"^32,800 bytes may be needed, but cpu has 32,768 free$"):
        small.shape(1, 1025)


def test_torch_tells_what_is_free_on_accelerators_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of the CPU is the engine's to limit."""
    torch = pytest.importorskip("torch")
    adapter = frameworks()["torch"]
    assert adapter.free_memory("xpu") is None or torch.xpu.is_available()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (123, 456))
    assert adapter.free_memory("cuda") == 123
    assert adapter.free_memory("cpu") is None


def test_sweeps_over_shapes_are_left_to_thorough_profiles_where_shapes_are_compiled() -> None:
    """In quick, code that is compiled for every shape is judged on few of them, and the skip says so; in standard on all."""
    static = context(lambda x, weight, bias: x, LN, static=True)
    sweeps = {check.id: check for check in checks().values() if check.sweeps}
    assert {"widths", "ranks", "row-counts", "gradient-shapes"} <= set(sweeps)
    for check in sweeps.values():
        (result,) = run_check(check, static)
        assert result.outcome is Outcome.SKIPPED
        assert result.message == "every shape is compiled anew: judged in the profiles standard and deep"
        assert not check.unaffordable(replace(static, profile="standard"))
        assert not check.unaffordable(context(lambda x, weight, bias: x, LN))


def test_folded_application_on_constant_rows_is_a_warning() -> None:
    """x*r - mean*r with a fused multiply-add leaves a residue within the bound: a warning with a witness, no error."""
    found = [r for r in outcomes("zero-and-constant-rows", context(folded, LN)) if r.outcome.finding]
    assert found
    assert {r.outcome for r in found} == {Outcome.WARNED}
    assert all("a residue that x*r - mean*r leaves" in r.message for r in found)
    assert all(r.witness is not None for r in found)


def test_zeros_beyond_the_range_of_squares_warn_and_nan_fails() -> None:
    """A two-pass kernel returns zeros in silence; NaN fails; a promise of the full range makes zeros an error."""

    def lost(x: Any, weight: Any, bias: Any) -> Any:
        y = layer_norm(x, weight, bias)
        return np.where(np.abs(x).max(-1, keepdims=True) > 1e19, np.float32(np.nan), y)

    silent = outcomes("overflow", context(layer_norm, LN))
    assert {r.outcome for r in silent} == {Outcome.WARNED}
    assert all("silent where squares overflow" in r.message for r in silent)
    assert Outcome.FAILED in {r.outcome for r in outcomes("overflow", context(lost, LN))}
    promised = outcomes("overflow", context(layer_norm, LN, contract=Contract(full_range=True)))
    assert {r.outcome for r in promised} == {Outcome.FAILED}


def test_sequential_sums_are_grade_b() -> None:
    """A running float32 sum passes with a warning, and without one where the contract says sequential."""

    def sequential(x: Any, weight: Any) -> Any:
        h = x.astype(np.float32)
        total = np.cumsum(h * h, axis=-1, dtype=np.float32)[..., -1:]
        return (h / np.sqrt(total / np.float32(x.shape[-1]) + np.float32(1e-6)) * weight).astype(x.dtype)

    plain = outcomes("accuracy", context(sequential, RMS))
    assert {r.outcome for r in plain} == {Outcome.PASSED, Outcome.WARNED}
    assert max(r.measures.get("grade", 0) for r in plain) == 2
    assert all("sequential sum" in r.message for r in plain if r.outcome is Outcome.WARNED)
    declared = outcomes("accuracy", context(sequential, RMS, contract=Contract(accumulation="sequential")))
    assert {r.outcome for r in declared} == {Outcome.PASSED}
    short = outcomes("accuracy", context(sequential, RMS, contract=Contract(accumulation=4)))
    assert Outcome.FAILED in {r.outcome for r in short}


def test_flushing_subnormals_is_a_warning_unless_promised() -> None:
    """Zeros for subnormal values neither fail nor enter the grade; a contract that promises subnormals makes them an error."""

    def flushing(x: Any, weight: Any) -> Any:
        tiny = np.float32(2.0**-126)
        h = np.where(np.abs(x) < tiny, np.float32(0), x)
        y = rms_norm(h, weight)
        return np.where(np.abs(y) < tiny, np.float32(0), y)

    found = [r for r in outcomes("accuracy", context(flushing, RMS)) if r.regime == "subnormal"]
    assert {r.outcome for r in found} == {Outcome.WARNED}
    assert all("flushed to zero" in r.message and "grade" not in r.measures for r in found)
    promised = [
        r for r in outcomes("accuracy", context(flushing, RMS, contract=Contract(subnormals=True))) if r.regime == "subnormal"
    ]
    assert {r.outcome for r in promised} == {Outcome.FAILED}


def test_the_decomposition_tells_the_common_mode_from_the_gain() -> None:
    """An offset of all outputs is a common mode of its size in u, a wrong scale is a gain, and neither is noise."""

    def offset(x: Any, weight: Any, bias: Any) -> Any:
        return layer_norm(x, weight, bias) + weight * np.float32(2.0**-10)

    def scaled(x: Any, weight: Any, bias: Any) -> Any:
        return (layer_norm(x, weight, bias) - bias) * np.float32(1 + 2.0**-10) + bias

    def at_64(call: Call) -> Result:
        return next(r for r in outcomes("accuracy", context(call, LN)) if r.regime == "standard" and r.shape[-1] == 64)

    size = 2.0**14
    assert at_64(offset).measures["common_mode"] == pytest.approx(size, rel=0.01)
    assert at_64(offset).measures["gain"] < size / 100
    assert at_64(scaled).measures["gain"] == pytest.approx(size, rel=0.01)
    assert at_64(scaled).measures["common_mode"] < size / 100
    assert at_64(scaled).measures["noise"] < size / 100


def test_the_witness_is_small_and_runs() -> None:
    """A norm that drops the last element is shown on a row of few elements, and the snippet prints both values."""
    from normcheck.faults import faults

    pytest.importorskip("torch")
    dropped = next(f for f in faults() if f.name == "last-element-dropped").implementation
    found = [r for r in run_check(checks()["accuracy"], Context(dropped, "float32", profile="quick")) if r.witness is not None]
    assert found
    witness = found[0].witness
    assert witness is not None
    assert witness.snippet.startswith("import numpy as np")
    assert witness.got != witness.expected
    shortest = min(len(r.witness.inputs.split(",")) for r in found if r.witness is not None)
    assert shortest <= 4


def test_a_call_that_raises_is_broken_and_the_rest_goes_on() -> None:
    """What the code raises for one width is the result of that case; the other widths are judged."""

    def picky(x: Any, weight: Any) -> Any:
        if x.shape[-1] == 257:
            raise ValueError("no width 257")
        return rms_norm(x, weight)

    found = outcomes("accuracy", context(picky, RMS))
    broken = [r for r in found if r.outcome is Outcome.BROKEN]
    assert {r.shape[-1] for r in broken} == {257}
    said = r"call raised ValueError: no width 257 \(test_checks.py, line \d+\); where that is meant, widths= \(--width\)"
    assert all(re.match(said, r.message) for r in broken)
    assert {r.outcome for r in found if r.shape[-1] != 257} == {Outcome.PASSED}


def test_a_fault_of_our_own_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception inside a check becomes a broken result that says so, and does not end the audit."""

    def fails(where: Context) -> Iterator[Result]:
        raise ZeroDivisionError("ours")
        yield

    check = checks()["accuracy"]
    broken = run_check(
        type(check)(check.id, check.title, check.doc, check.family, fails, lambda where: ""), context(rms_norm, RMS)
    )
    assert [r.outcome for r in broken] == [Outcome.BROKEN]
    assert "normcheck raised ZeroDivisionError: ours" in broken[0].message


def test_checks_that_do_not_apply_say_why() -> None:
    """A norm without mean, given statistics, a fixed eps, squares that fit: each skip carries its reason."""
    reasons = {
        ("shift-invariance", context(rms_norm, RMS)): "RMSNorm subtracts no mean",
        ("power-of-two-scaling", context(rms_norm, RMS)): "eps is fixed",
        ("overflow", context(rms_norm, RMS, "float16")): "squares of float16 values fit float32",
        ("epsilon-placement", context(rms_norm, RMSNorm(eps=0.0))): "there is no eps to place",
        ("zero-and-constant-rows", context(rms_norm, RMSNorm(eps=0.0))): "without eps",
        ("scale-invariance", context(layer_norm, BatchNorm(), training=False)): "statistics are given",
        ("outlier-sensitivity", context(layer_norm, BatchNorm(), training=False)): "statistics are given",
    }
    for (check, where), reason in reasons.items():
        (result,) = run_check(checks()[check], where)
        assert result.outcome is Outcome.SKIPPED
        assert reason in result.message


def test_code_that_lacks_a_dtype_is_told_how_to_say_so() -> None:
    """A call that raises on an ordinary input is broken, with the user's line, the options that leave it out, and a script."""

    def wide_only(x: Any, weight: Any) -> Any:
        if x.dtype != np.float32:
            raise TypeError("no kernel for this dtype")
        return rms_norm(x, weight)

    (found,) = outcomes("output-form", context(wide_only, RMS, "float16"))
    assert found.outcome is Outcome.BROKEN
    said = r"call raised TypeError: no kernel for this dtype \(test_checks.py, line \d+\); where float16 "
    assert re.match(said, found.message)
    assert "dtypes= (--dtype)" in found.message
    assert found.witness is not None


def test_a_bound_that_allows_any_value_is_called_so() -> None:
    """A warning beside a bound above the value itself does not sound like a promise."""
    told, rows = {}, np.resize([0.0, 1.0, 2.0, 4.0], (2, 64))
    for name, mean in (("standard", 0.0), ("large-mean", 2.0**21)):
        case = context(layer_norm, LN).case_of(rows + mean, (2, 64))
        output = case.out_format.round(case.exact)
        output[0, 0] += 8 * case.reach("sequential")[0, 0]
        told[name] = accuracy_message(case, output, case.judge(output, "tree"), Outcome.WARNED, True)
    assert told["standard"].endswith("within the bound of a sequential sum only")
    assert told["large-mean"].endswith("which allows any value there: nothing of it is promised")
