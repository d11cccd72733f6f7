"""Where the heavy loops run makes no difference: numpy, numba and torch give the same bits."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from normcheck import norms as n
from normcheck.formats import FORMATS, Array, Format
from normcheck.reference import certification, loops, loops_dd, places, reference, reference_grad
from normcheck.reference.double_double import level1
from normcheck.reference.problem import problem
from normcheck.reference.settling import Triple

NARROW = [fmt for fmt in FORMATS.values() if fmt.p < 53]
WIDTHS = (1, 2, 3, 16, 17, 33, 100, 1000)


def rows(width: int) -> Array:
    """Rows of all kinds: standard, large mean, constant, huge, tiny, an outlier, zeros, not finite."""
    x = np.random.default_rng(width).normal(size=(12, width))
    x[1] += 1e6
    x[2], x[3], x[4], x[5] = x[2, 0], 0.0, x[4] * 1e150, x[5] * 1e-150
    x[6, 0] = 1e12
    x[7, -1], x[8, 0] = np.inf, np.nan
    x[9] += 1e12
    return x


def affine(width: int) -> list[tuple[Array | None, Array | None]]:
    """Weights and biases in every shape that they come in."""
    rng = np.random.default_rng(width + 1)
    wide, tall = rng.normal(size=(1, width)), rng.normal(size=(12, 1))
    return [(None, None), (wide, tall), (tall, None), (None, wide), (rng.normal(size=(12, width)), wide)]


def same(first: Any, second: Any) -> None:
    """Equal bits, but that any NaN equals any other."""
    for a, b in zip(first, second, strict=True):
        assert np.array_equal(a, b, equal_nan=True)
        assert np.array_equal(np.signbit(a) | np.isnan(a), np.signbit(b) | np.isnan(b))


def formed(found: Any) -> Any:
    """Rows that the compiled loops form anew each time, in the place of what they form them from."""
    kind = type(found).__name__
    if kind == "Less":
        return (found.x - found.first[:, None]) - found.shift[:, None]
    if kind == "Slanted":
        return found.dy * found.weight - found.mean[:, None]
    return [formed(part) if isinstance(part, tuple) else part for part in found]


@pytest.fixture(scope="module")
def compiled() -> Any:
    """The compiled loops."""
    pytest.importorskip("numba", reason="numba is missing: pip install normcheck[fast]")
    return importlib.import_module("normcheck.reference.compiled")


@pytest.fixture(scope="module")
def compiled_dd() -> Any:
    """The compiled loops of the double-double level."""
    pytest.importorskip("numba", reason="numba is missing: pip install normcheck[fast]")
    return importlib.import_module("normcheck.reference.compiled_dd")


@pytest.mark.parametrize("width", WIDTHS)
@np.errstate(all="ignore")
def test_compiled_statistics_have_the_same_bits(compiled: Any, width: int) -> None:
    """Means, centred rows and sums of squares, the second pass and constant rows included."""
    x = rows(width)
    same(loops.centred(x), formed(compiled.centred(x)))
    same([loops.squares(x)], [compiled.squares(x)])
    same([loops.within(x, 1e100)], [compiled.within(x, 1e100)])
    same([loops.less(x, x[:, 0])], [formed(compiled.less(x, x[:, 0]))])


@pytest.mark.parametrize("width", WIDTHS)
@np.errstate(all="ignore")
def test_compiled_loops_take_float32_rows_as_they_are(compiled: Any, width: int) -> None:
    """Statistics, rounded values and gradients of float32 rows are those of the same numbers in float64."""
    fmt, x = FORMATS["float32"], rows(width).astype(np.float32)
    dy, wide, per_row = x[::-1].copy(), x.astype(float), np.full(12, 1e-9)
    weight, bias = affine(width)[-1]
    here, there = compiled.centred(x), loops.centred(wide)
    same(there, formed(here))
    same([loops.squares(wide)], [compiled.squares(x)])
    given = per_row, per_row, per_row, weight, bias, fmt
    same(loops.rounded(there.c, *given), compiled.rounded(here.c, *given))
    pulled, expected = compiled.pull(dy, weight, here.c, True), loops.pull(dy.astype(float), weight, there.c, True)
    same(expected, formed(pulled))
    more = loops.Slope(*(per_row,) * 6), width, wide, fmt
    same(loops.slopes(expected.g, there.c, *more), compiled.slopes(pulled.g, here.c, *more))


@pytest.mark.parametrize("fmt", NARROW, ids=lambda f: f.name)
@np.errstate(all="ignore")
def test_compiled_rounding_has_the_same_bits(compiled: Any, fmt: Format) -> None:
    """Values and verdicts of the rounding test, near overflow and among subnormals too."""
    for width in (1, 17, 100):
        x = rows(width) * np.array([fmt.max, fmt.min_normal, 1.0] * 4)[:, None]
        per_row = [np.abs(x[:, 0]), np.full(12, 1e-9), np.full(12, 1e-12)]
        for weight, bias in affine(width):
            same(loops.rounded(x, *per_row, weight, bias, fmt), compiled.rounded(x, *per_row, weight, bias, fmt))


@pytest.mark.parametrize("fmt", NARROW, ids=lambda f: f.name)
@np.errstate(all="ignore")
def test_compiled_gradients_have_the_same_bits(compiled: Any, fmt: Format) -> None:
    """What pulls at the statistics, and the rounded dx with its verdicts."""
    for width in (1, 17, 100):
        x, dy = rows(width), rows(width)[::-1].copy()
        for center in (True, False):
            for weight, besides in affine(width):
                pulled = loops.pull(dy, weight, x, center)
                here = compiled.pull(dy, weight, x, center)
                same(pulled, formed(here))
                slope = loops.Slope(*(np.abs(x[:, 0]) * factor for factor in (1.0, 0.3, 1e-9, 1e-9, 1e-12, 1e-12)))
                more = None if besides is None else np.ascontiguousarray(np.broadcast_to(besides, x.shape))
                count = max(1, width // 2)
                expected = loops.slopes(pulled.g, x, slope, count, more, fmt)
                same(expected, compiled.slopes(here.g, x, slope, count, more, fmt))


@pytest.mark.parametrize("width", WIDTHS)
@np.errstate(all="ignore")
def test_compiled_double_double_has_the_same_bits(compiled_dd: Any, width: int) -> None:
    """hi, lo and err of the whole level, weights that underflow included."""
    x = np.where(np.isfinite(rows(width)), rows(width), 0.0) * np.array([1.0, 1e150, 1e-150, 1e-300] * 3)[:, None]
    same(loops_dd.scaled(x), compiled_dd.scaled(x))
    same([loops_dd.rough_mean(x)], [compiled_dd.rough_mean(x)])
    for weight, bias in affine(width):
        w = None if weight is None else weight * np.where(weight > 1, 1e-300, 1.0)
        for norm in (n.LayerNorm(), n.RMSNorm(eps_placement="outside")):
            p = problem(x, norm.standardization, w, bias, 0.5, None, None)
            first = level1(p, loops_dd)
            same(first, level1(p, compiled_dd))
            for fmt in (FORMATS["float64"], FORMATS["float16"]):
                values = Triple(first.hi, first.lo, first.err)
                same(loops_dd.settle_dd(values, fmt), compiled_dd.settle_dd(values, fmt))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_numba_changes_nothing(compiled: Any, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """reference and reference_grad with and without it."""
    fmt = FORMATS[dtype]
    x, dy = (fmt.round(np.random.default_rng(seed).normal(size=(30, 65))).astype(fmt.dtype) for seed in (0, 1))
    weight, results = x[0].copy(), []
    for asked in "01":
        monkeypatch.setenv("NORMCHECK_NUMBA", asked)
        assert (places.fastest(1).float64 is compiled) == (asked == "1")
        parts = (reference(n.LayerNorm(), x, weight, weight), *reference_grad(n.LayerNorm(), x, dy, weight, weight)[:3])
        results.append([part.tobytes() for part in parts])
    assert results[0] == results[1]


def test_numba_is_asked_only_where_it_pays(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small work stays in numpy, so that nothing waits for a compiler; large work is compiled."""
    monkeypatch.delenv("NORMCHECK_NUMBA", raising=False)
    assert places.fastest(1000).float64 is loops
    assert places.fastest(1 << 22).float64 is compiled


def test_without_numba_numpy_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where numba is not installed, nothing asks for it."""
    monkeypatch.setattr(places.importlib.util, "find_spec", lambda name: None)
    assert places.fastest(1 << 30).float64 is loops


def test_compiled_ladder_certifies(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled ladder agrees with python-flint, too."""
    pytest.importorskip("flint", reason="python-flint is missing: pip install normcheck[exact]")
    monkeypatch.setenv("NORMCHECK_NUMBA", "1")
    found = certification.certification(3000, seed=2)
    assert found.passed, found.examples


DEVICE = [
    (n.LayerNorm(), (40, 100), (100,)),
    (n.RMSNorm(weight_offset=1.0), (40, 17), (17,)),
    (n.PartialRMSNorm(fraction=0.3), (40, 33), (33,)),
    (n.BatchNorm(), (8, 6, 7), (6,)),
    (n.GroupNorm(2), (8, 6, 7), (6,)),
]


def devices() -> list[str]:
    """The cpu, and CUDA where there is one; nothing where torch is missing."""
    torch = pytest.importorskip("torch", reason="torch is missing: pip install normcheck[torch]")
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
@pytest.mark.parametrize(("norm", "shape", "size"), DEVICE, ids=lambda v: getattr(v, "name", None))
def test_tensors_give_the_same_bits(norm: n.Norm, shape: tuple[int, ...], size: tuple[int, ...], fmt: Format) -> None:
    """A tensor's reference, computed where it lives, is the array's, specials included."""
    found = devices()
    from normcheck.reference.device import reference_on_device, to_numpy, to_tensor

    rng = np.random.default_rng(0)
    x = fmt.round(rng.normal(size=shape) + rng.choice([0.0, 3.0, 100.0], (shape[0],) + (1,) * (len(shape) - 1))).astype(fmt.dtype)
    x.flat[3], x.flat[-3] = np.nan, fmt.round(np.inf)
    weight = fmt.round(rng.normal(size=size)).astype(fmt.dtype)
    bias = weight if norm.has_bias else None
    expected = reference(norm, x, weight, bias)
    for device in found:
        tensors = [None if part is None else to_tensor(part).to(device) for part in (x, weight, bias)]
        got = reference_on_device(norm, *tensors)
        assert (got.device.type, got.shape) == (device, expected.shape)
        assert np.array_equal(to_numpy(got).astype(float), expected.astype(float), equal_nan=True)


def test_tensor_loops_have_the_same_bits() -> None:
    """The loops on tensors, bit for bit, before any rounding."""
    devices()
    import torch

    from normcheck.reference.device import TensorLoops

    for width in WIDTHS:
        x = rows(width)
        with np.errstate(all="ignore"):
            expected, squares = loops.centred(x), loops.squares(x)
        where = TensorLoops(torch.from_numpy(x))
        got = where.centred(torch.from_numpy(x))
        same(expected, got._replace(c=got.c.numpy()))
        same([squares], [where.squares(torch.from_numpy(x))])


def test_running_statistics_on_a_device() -> None:
    """Given statistics work on tensors as on arrays."""
    devices()
    from normcheck.reference.device import reference_on_device, to_numpy, to_tensor

    x, mean = np.random.default_rng(0).normal(size=(4, 3, 5)).astype(np.float32), np.arange(3.0, dtype=np.float32)
    given = {"running_mean": mean, "running_var": mean + 1}
    expected = reference(n.BatchNorm(), x, training=False, **given)
    tensors = {name: to_tensor(value) for name, value in given.items()}
    assert np.array_equal(to_numpy(reference_on_device(n.BatchNorm(), to_tensor(x), training=False, **tensors)), expected)


def test_apple_devices_are_refused() -> None:
    """A device without float64 is named in the error."""
    devices()
    from normcheck.reference.device import reference_on_device

    class Apple:
        device = type("device", (), {"type": "mps"})()

    with pytest.raises(ValueError, match=r"x is on device mps, which has no float64; move it to the cpu"):
        reference_on_device(n.LayerNorm(), Apple())


def test_importing_the_reference_loads_no_accelerator() -> None:
    """normcheck.reference alone loads neither numba nor torch nor flint."""
    code = "import sys, normcheck.reference; print([m for m in ('numba', 'torch', 'flint', 'mpmath') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
