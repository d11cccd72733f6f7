"""Gradients that are certified and not rounded: they enclose the correctly rounded ones."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from normcheck import BatchNorm, GroupNorm, LayerNorm, Norm, RMSNorm
from normcheck.formats import FORMATS, Array
from normcheck.norms import PartialRMSNorm, ScaleNorm
from normcheck.reference import reference_grad
from normcheck.reference.slopes import certify_gradients
from normcheck.regimes import REGIMES

F32, F64 = FORMATS["float32"], FORMATS["float64"]
CASES: dict[str, tuple[Norm, tuple[int, ...]]] = {
    "layer": (LayerNorm(), (6, 33)),
    "annotated": (LayerNorm(eps=1e-3, eps_placement="outside", ddof=1), (6, 33)),
    "rms": (RMSNorm(weight_offset=1.0), (6, 33)),
    "partial": (PartialRMSNorm(fraction=0.25), (6, 33)),
    "scale": (ScaleNorm(), (6, 33)),
    "group": (GroupNorm(2), (3, 4, 11)),
    "batch": (BatchNorm(), (33, 6)),
}


def drawn(norm: Norm, shape: tuple[int, ...], regime: str) -> tuple[Array, Array, Array]:
    """x, dy and a weight."""
    fold, rng = norm.fold(shape), np.random.default_rng(3)
    rows = REGIMES[regime].rows(fold.rows, fold.width, F32, 0)
    weight = F32.round(rng.standard_normal(norm.parameter_size(fold)))
    return fold.unfold(rows), F32.round(rng.standard_normal(shape) + 0.5), weight


@pytest.mark.parametrize("level", ["float64", "double-double"])
@pytest.mark.parametrize("regime", ["standard", "large-mean", "outlier", "tiny", "huge", "constant"])
@pytest.mark.parametrize("name", CASES)
def test_the_correctly_rounded_gradient_is_enclosed(name: str, regime: str, level: str) -> None:
    """[hi + lo - err, hi + lo + err], widened by half an ulp of float64, holds the correctly rounded gradients."""
    norm, shape = CASES[name]
    x, dy, weight = drawn(norm, shape, regime)
    fold = norm.fold(shape)
    found = certify_gradients(
        fold.fold(x),
        fold.fold(dy),
        norm.standardization,
        fold,
        fold.affine(weight),
        weight_offset=norm.weight_offset,
        level=level,  # type: ignore[arg-type]
    )
    bias = np.zeros_like(weight) if norm.has_bias else None
    exact = reference_grad(norm, x, dy, weight, bias, dtype="float64")
    assert exact.dweight is not None
    pairs = [(found["x"], fold.fold(exact.dx)), (found["weight"], exact.dweight[None, :])]
    pairs += [] if exact.dbias is None else [(found["bias"], exact.dbias[None, :])]
    for triple, rounded in pairs:
        known = np.isfinite(triple.err)
        assert known.any()
        gap = np.abs((triple.hi - rounded) + triple.lo)
        assert (gap <= triple.err + 0.51 * F64.ulp(rounded))[known].all()


def test_double_double_knows_more() -> None:
    """Its errors are a millionth of those of float64 and less."""
    norm, shape = CASES["layer"]
    x, dy, weight = drawn(norm, shape, "standard")
    fold = norm.fold(shape)
    errors = [
        certify_gradients(x, dy, norm.standardization, fold, fold.affine(weight), level=level)["x"].err  # type: ignore[arg-type]
        for level in ("float64", "double-double")
    ]
    assert (errors[1] < 1e-6 * errors[0]).all()


def test_a_second_gradient_is_added() -> None:
    """What reaches x besides is part of dx, and of no parameter's gradient."""
    norm, shape = CASES["rms"]
    x, dy, weight = drawn(norm, shape, "standard")
    fold = norm.fold(shape)
    plain = certify_gradients(x, dy, norm.standardization, fold, fold.affine(weight), level="double-double")
    besides = np.full(shape, 0.75)
    more = certify_gradients(x, dy, norm.standardization, fold, fold.affine(weight), besides=besides, level="double-double")
    one, other = (
        [Fraction(float(hi)) + Fraction(float(lo)) for hi, lo in zip(found["x"].hi.flat, found["x"].lo.flat, strict=True)]
        for found in (more, plain)
    )
    slack = (more["x"].err + plain["x"].err).ravel()
    assert all(abs(a - b - Fraction(3, 4)) <= Fraction(float(e)) for a, b, e in zip(one, other, slack, strict=True))
    assert np.array_equal(more["weight"].hi, plain["weight"].hi)


def test_given_statistics() -> None:
    """With a mean and a variance given dx is g/S, with nothing of the mean of g."""
    norm, rows = BatchNorm(), np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 9.0]])
    fold = norm.fold((3, 2))
    found = certify_gradients(
        rows, np.ones((2, 3)), norm.standardization, fold, mean=np.array([1.0, 2.0]), variance=np.array([4.0, 1.0]) - 1e-5
    )
    assert np.allclose(found["x"].hi, [[0.5] * 3, [1.0] * 3], rtol=0, atol=1e-15)
