"""The compiled way from arrays to certified arrays: whatever the rows, threads and blocks, numpy's bits."""

from __future__ import annotations

import importlib
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from normcheck import norms as n
from normcheck.contract import Contract
from normcheck.formats import FORMATS, Array, Format
from normcheck.reference import loops, reference, reference_grad, rungs, sums
from normcheck.reference.arithmetic import U
from normcheck.reference.float64 import standardized
from normcheck.reference.ladder import round_problem
from normcheck.reference.problem import problem

pytest.importorskip("numba", reason="numba is missing: pip install normcheck[fast]")
WAYS = [("1", "1", 1 << 16), ("1", "2", 1 << 16), ("1", "2", 40), ("1", "1", 1)]
NORMS = [n.LayerNorm(), n.RMSNorm(weight_offset=1.0, eps_placement="outside"), n.PartialRMSNorm(fraction=0.5)]


def hard_rows(width: int, fmt: Format, seed: int = 0) -> np.ndarray:
    """Standard rows, a mean far above the spread, the format's ends, an outlier, constants and zeros."""
    z = np.random.default_rng([width, seed]).normal(size=(11, width))
    z[1] += 1e3
    z[2] += min(1e12, fmt.max / 4)
    z[3] *= 1e300 if fmt.max > 1e300 else fmt.max / 8
    z[4] *= max(1e-320, 3 * fmt.min_subnormal)
    z[5] *= 1e-12
    z[6, 0] = fmt.max / 16
    z[7], z[8], z[9] = z[7, 0], 0.0, 2.0 ** np.round(z[9])
    return fmt.round(np.clip(z, -fmt.max, fmt.max)).astype(fmt.dtype)


def every_way(monkeypatch: pytest.MonkeyPatch, call: Any) -> None:
    """The bits of ``call()`` are numpy's however it is compiled, shared among threads and cut into blocks."""
    found = []
    for numba, threads, block in [("0", "1", 1 << 16), *WAYS]:
        monkeypatch.setenv("NORMCHECK_NUMBA", numba)
        monkeypatch.setenv("NORMCHECK_THREADS", threads)
        for module in (rungs, sums):
            monkeypatch.setattr(module, "BLOCK", block)
        found.append([None if part is None else part.tobytes() for part in call()])
    assert all(other == found[0] for other in found)


@pytest.mark.parametrize("norm", NORMS, ids=lambda norm: norm.name)
@pytest.mark.parametrize("name", ["float64", "float32", "bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("width", [1, 2, 3, 17, 100])
def test_hard_rows_have_numpys_bits(norm: n.Norm, name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward, with and without weight and bias, NaN and Inf included, and gradients, of rows at both ends of every format."""
    fmt = FORMATS[name]
    x, dy = hard_rows(width, fmt), fmt.round(np.random.default_rng(width).normal(size=(11, width))).astype(fmt.dtype)
    weight, special = x[0].copy(), x.copy()
    special[5, -1], special[7, 0] = np.nan, np.nan if name == "float8_e4m3fn" else np.inf
    bias = weight if norm.has_bias else None

    def call() -> list[Any]:
        given = [reference(norm, special, weight, bias), reference(norm, special), reference(norm, x, dtype="float16")]
        before = reference(norm, x, weight, bias, contract=Contract(cast="before_weight"))
        gradients = [part for values in (x, special) for part in reference_grad(norm, values, dy, weight, bias)[:3]]
        return [*given, before, *gradients]

    every_way(monkeypatch, call)


@pytest.mark.parametrize("name", ["float64", "float32", "bfloat16"])
def test_long_rows_have_numpys_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """D = 131072 at any size of the row."""
    fmt = FORMATS[name]
    x = hard_rows(131072, fmt)
    every_way(monkeypatch, lambda: [reference(n.LayerNorm(), x, x[0], x[0])])


def test_norms_over_channels_have_numpys_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are gathered from all over the array, parameters of one number a row, and given statistics."""
    rng = np.random.default_rng(0)
    x, dy = (rng.normal(size=(6, 4, 10)).astype(np.float32) for _ in range(2))
    weight, given = x[0, :, 0].copy(), {"running_mean": np.zeros(4), "running_var": np.ones(4), "training": False}

    def call() -> list[Any]:
        norms = (n.BatchNorm(), n.GroupNorm(2), n.InstanceNorm())
        gradients = [part for norm in norms for part in reference_grad(norm, x, dy, weight, weight)[:3]]
        values = [reference(norm, x, weight, weight) for norm in norms]
        return [*gradients, *values, reference(n.BatchNorm(), x, weight, weight, **given)]

    every_way(monkeypatch, call)


def test_no_row_holds_up_the_others() -> None:
    """Rows that float64 settles are left alone: only the elements it leaves open are counted on the next level."""
    counts, x = rungs.new_counts(), np.array([[1.0, -1.0], [0.5, 2.0]])
    fmt, norm = FORMATS["float32"], n.RMSNorm(eps=0.0)
    tie = np.array([[0.0, fmt.u]])
    got = round_problem(problem(x, norm.standardization, None, tie, 0.0, None, None), fmt, counts)
    assert got[0].tolist() == [1.0, -1.0 + fmt.u]
    assert counts["elements"] == 4
    assert counts["level1"] <= 2


def columns(dy: np.ndarray, factor: Any) -> tuple[Array, Array, Array]:
    """The compiled sums over rows."""
    found: tuple[Array, Array, Array] = importlib.import_module("normcheck.reference.compiled_sums").columns(dy, factor)
    return found


@pytest.mark.parametrize("width", [1, 3, 700])
def test_sums_over_rows_that_two_doubles_hold_are_exact(width: int) -> None:
    """Sums of float32 numbers of any signs come without error, and say so."""
    dy = np.random.default_rng(width).normal(size=(200, width)).astype(np.float32)
    hi, lo, err = columns(dy, None)
    exact = [sum(map(Fraction, column.tolist())) for column in dy.T]
    assert [Fraction(h) + Fraction(low) for h, low in zip(hi, lo, strict=True)] == exact
    assert not err.any()


def test_sums_over_rows_know_their_error() -> None:
    """Sums that 106 bits do not hold lie within err, which is at most (R u)**2 of the sum of moduli, and 2 for second orders."""
    rng = np.random.default_rng(0)
    wild = rng.normal(size=(300, 5)) * 2.0 ** rng.integers(-200, 200, (300, 5))
    hi, lo, err = columns(wild, None)
    for column, h, low, e in zip(wild.T, hi, lo, err, strict=True):
        off = abs(sum(map(Fraction, column.tolist())) - Fraction(h) - Fraction(low))
        assert 0 < off <= Fraction(e) <= 2 * (300 * U) ** 2 * np.abs(column).sum()


def test_sums_of_products_allow_for_the_errors_of_their_factors() -> None:
    """Products with n as computed lie within err, though gain and shift are 0; both only add to it."""
    x = np.random.default_rng(0).normal(size=(300, 5))
    c, reciprocal, gain, shift = standardized(problem(x, n.LayerNorm().standardization, None, None, 0.0, None, None), loops)
    hi, lo, err = columns(x, (c, reciprocal, 0 * gain, 0 * shift))
    allowed = np.abs(x) * (np.abs(c * reciprocal[:, None]) * gain[:, None] + shift[:, None])
    assert (columns(x, (c, reciprocal, gain, shift))[2] >= err + allowed.sum(axis=0)).all()
    for column, factor, h, low, e in zip(x.T, (c * reciprocal[:, None]).T, hi, lo, err, strict=True):
        exact = sum(Fraction(a) * Fraction(b) for a, b in zip(column, factor, strict=True))
        assert 0 < abs(exact - Fraction(h) - Fraction(low)) <= Fraction(e)


def test_ties_of_exact_sums_are_settled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient of the bias that lies on a midpoint goes to even, without climbing, where its sum is exact."""
    monkeypatch.setenv("NORMCHECK_NUMBA", "1")
    u, counts = FORMATS["float32"].u, {}
    x = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    dy = np.array([[1.0, 1.0, 1.0], [u, 3 * u, 2 * u]], np.float32)
    got = reference_grad(n.LayerNorm(), x, dy, None, np.zeros(3, np.float32), stats=counts)
    assert got.dbias.tolist() == [1.0, 1 + 4 * u, 1 + 2 * u]
    assert counts["ties"] == 0
