"""Bounds of the backward pass: no admissible rounding exceeds them, and what is not admissible does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from normcheck.bounds import RowErrors, error_class
from normcheck.cells import judge
from normcheck.formats import FORMATS, Array, Format
from normcheck.gradient_bounds import GradientErrors, per_parameter
from normcheck.norms import BatchNorm, GroupNorm, LayerNorm, Norm, PartialRMSNorm, RMSNorm, ScaleNorm, Standardization
from normcheck.reference import certify
from normcheck.reference.slopes import Exact, certify_gradients
from normcheck.regimes import REGIMES

F32, F64, BF16 = FORMATS["float32"], FORMATS["float64"], FORMATS["bfloat16"]
NORMS: dict[str, Norm] = {
    "inside": LayerNorm(eps=1e-5),
    "outside": LayerNorm(eps=1e-3, eps_placement="outside", ddof=1),
    "max": LayerNorm(eps=1e-3, eps_placement="max"),
    "max_inside": LayerNorm(eps=1e-3, eps_placement="max_inside"),
    "rms": RMSNorm(eps=1e-6),
    "partial": PartialRMSNorm(fraction=0.25),
    "scale": ScaleNorm(eps=1e-5),
}
FOLDED: dict[str, tuple[Norm, tuple[int, ...]]] = {
    "layer": (LayerNorm(), (6, 8)),
    "scale": (ScaleNorm(), (6, 8)),
    "group": (GroupNorm(2), (3, 4, 5)),
    "batch": (BatchNorm(), (6, 4, 3)),
}
GRADED = [name for name, regime in REGIMES.items() if regime.graded]


def errors_of(norm: Norm, rows: Array, dy: Array, storage: Format = F32, saved: Format | None = None) -> GradientErrors:
    """The error quantities of an unweighted backward pass in float32 arithmetic."""
    fold = norm.fold(rows.shape)
    forward = RowErrors(rows, certify(rows, norm.standardization), norm.standardization, F32)
    return GradientErrors(forward, dy, fold, storage, saved)


def exact_of(norm: Norm, rows: Array, dy: Array) -> dict[str, Exact]:
    """The certified gradients."""
    return certify_gradients(rows, dy, norm.standardization, norm.fold(rows.shape))


def rooted(std: Standardization, square: Array) -> tuple[Array, Array, Array]:
    """S, T and whether S moves."""
    sigma, kind = np.sqrt(square), square.dtype.type
    if std.placement == "inside":
        scale = np.sqrt(square + kind(std.eps))
        return scale, scale, np.ones_like(scale)
    if std.placement == "outside":
        return sigma + kind(std.eps), sigma, np.ones_like(sigma)
    least = std.eps if std.placement == "max" else np.sqrt(std.eps)
    scale = np.maximum(sigma, kind(least))
    return scale, scale, (sigma >= least).astype(sigma.dtype)


def computed(std: Standardization, x: Array, dy: Array, dtype: type = np.float32) -> Array:
    """dx in an arithmetic, in two passes."""
    wide, g = x.astype(dtype), dy.astype(dtype)
    width, count = wide.shape[1], std.count(wide.shape[1])
    with np.errstate(all="ignore"):
        c = wide - wide.mean(1, keepdims=True) if std.center else wide
        square = (c[:, :count] ** 2).sum(1, keepdims=True) / dtype(std.divisor(width))
        scale, root, moves = rooted(std, square)
        n = c / scale
        free = g - g.mean(1, keepdims=True) if std.center else g
        along = np.where(root > 0, (free * c).sum(1, keepdims=True) / (dtype(std.divisor(width)) * root), 0) * moves
        n[:, count:] = 0
        return np.asarray((free - n * along) / scale, np.float64)


def drawn(norm: Norm, regime: str, width: int = 96, seed: int = 0) -> tuple[Array, Array]:
    """Rows of a regime and gradients with a mean."""
    rows = REGIMES[regime].rows(8, width, F32, seed)
    return rows, F32.round(np.random.default_rng(seed).standard_normal(rows.shape) + 0.5)


@pytest.mark.parametrize("name", FOLDED)
def test_sums_per_parameter_are_the_transpose_of_the_affine_step(name: str) -> None:
    """<affine(p), rows> = <p, per_parameter(rows)> for whole numbers, where sums are exact."""
    norm, shape = FOLDED[name]
    fold, rng = norm.fold(shape), np.random.default_rng(1)
    rows = rng.integers(-9, 9, (fold.rows, fold.width)).astype(np.float64)
    p = rng.integers(-9, 9, norm.parameter_size(fold)).astype(np.float64)
    spread = fold.affine(p)[np.arange(fold.rows) % fold.period]
    assert (spread * rows).sum() == p @ per_parameter(fold, rows)


@pytest.mark.parametrize("name", FOLDED)
def test_terms_count_the_elements_that_meet_a_parameter(name: str) -> None:
    """M is the sum of ones."""
    norm, shape = FOLDED[name]
    fold = norm.fold(shape)
    rows = np.ones((fold.rows, fold.width)) + np.arange(fold.width)
    errors = GradientErrors(RowErrors(rows, certify(rows, norm.standardization), norm.standardization, F32), rows, fold, F32)
    assert set(per_parameter(fold, np.ones_like(rows))) == {errors.terms}


@pytest.mark.parametrize("regime", GRADED)
@pytest.mark.parametrize("name", NORMS)
def test_two_pass_backward_in_float32_is_within_the_tree_bound(name: str, regime: str) -> None:
    """A plain backward pass in float32 with numpy's sums is no more than the bound from the exact gradient."""
    norm = NORMS[name]
    rows, dy = drawn(norm, regime)
    errors, exact = errors_of(norm, rows, dy), exact_of(norm, rows, dy)["x"]
    std = norm.standardization
    bound = errors.dx(error_class("tree", std.count(96), std.center), exact.hi) + exact.err
    verdict = judge(computed(std, rows, dy), exact, bound, F32, errors.judged())
    assert verdict.worst_ratio <= 1


@pytest.mark.parametrize("name", NORMS)
def test_float64_backward_agrees_with_the_certified_one(name: str) -> None:
    """The certified gradient is that of the formula, to what float64 loses on rows of condition 1."""
    norm = NORMS[name]
    rows, dy = drawn(norm, "standard")
    exact = exact_of(norm, rows, dy)["x"]
    got = computed(norm.standardization, rows, dy, np.float64)
    bound = replace(errors_of(norm, rows, dy), forward=replace(errors_of(norm, rows, dy).forward, compute=F64)).dx(
        error_class("tree", 96, norm.center), exact.hi
    )
    assert (np.abs(got - exact.hi) <= bound + exact.err).all()


@pytest.mark.parametrize("name", NORMS)
def test_no_admissible_error_of_the_statistics_exceeds_the_bound(name: str) -> None:
    """A mean that is off by tau and an r that is off by rho, in any direction, leave dx within the bound."""
    norm, rng = NORMS[name], np.random.default_rng(7)
    std, allowed = norm.standardization, error_class("tree", NORMS[name].standardization.count(96), NORMS[name].center)
    for regime in ("standard", "large-mean", "outlier", "tiny"):
        rows, dy = drawn(norm, regime)
        errors, exact = errors_of(norm, rows, dy), exact_of(norm, rows, dy)["x"]
        forward, cert = errors.forward, errors.forward.certified
        sign = rng.choice([-1.0, 1.0], (2, len(rows), 1))
        with np.errstate(all="ignore"):
            rho = sign[0] * forward.gain(allowed)[:, None]
            n = forward.normalized * (1 + rho) + sign[1] * forward.tau(allowed)[:, None]
            free = dy - dy.mean(1, keepdims=True) if norm.center else dy
            scale, root, moves = rooted(std, cert.sigma[:, None] ** 2)
            along = np.where(root > 0, (dy * n).sum(1, keepdims=True) * scale / (std.divisor(96) * root), 0) * moves
            n[:, std.count(96) :] = 0
            dx = (1 + rho) / cert.scale[:, None] * (free - n * along)
            bound = errors.dx(allowed, exact.hi) + exact.err
        judged = errors.judged()[:, None] & np.isfinite(bound)
        assert judged.any()
        assert (np.abs(dx - exact.hi) <= bound)[judged].all()


@pytest.mark.parametrize("regime", ["standard", "large-mean", "outlier", "near-constant"])
def test_sum_of_a_row_is_within_its_own_bound_and_that_is_the_sharper_one(regime: str) -> None:
    """What is a multiple of dx or n drops out of sum(dx): the bound is met, and is less than the sum of all bounds."""
    norm = NORMS["inside"]
    rows, dy = drawn(norm, regime)
    errors, exact = errors_of(norm, rows, dy), exact_of(norm, rows, dy)["x"]
    allowed = error_class("tree", 96, True)
    got = computed(norm.standardization, rows, dy)
    bound, judged = errors.row_sum(allowed), errors.judged()
    rounding = 0.5 * F32.ulp(got).sum(axis=1)
    assert (np.abs(got.sum(axis=1)) <= bound + rounding)[judged].all()
    assert (bound < errors.dx(allowed, exact.hi).sum(axis=1))[judged].all()


def test_statistics_saved_in_16_bits_need_to_be_declared() -> None:
    """A mean and r rounded to bfloat16 break the bound, and keep the one of a contract that saves them so."""
    norm = NORMS["inside"]
    rows, dy = drawn(norm, "standard")
    rows = F32.round(rows + 10)
    exact, allowed = exact_of(norm, rows, dy)["x"], error_class("tree", 96, True)
    plain, declared = errors_of(norm, rows, dy), errors_of(norm, rows, dy, saved=BF16)
    cert = plain.forward.certified
    r, mean = BF16.round(1 / cert.scale)[:, None], BF16.round(cert.mean)[:, None]
    n = (rows - mean) * r
    dx = F32.round(r * (dy - dy.mean(1, keepdims=True) - n * (dy * n).mean(1, keepdims=True)))
    ratios = [judge(dx, exact, errors.dx(allowed, exact.hi), F32, errors.judged()).worst_ratio for errors in (plain, declared)]
    assert ratios[0] > 100
    assert ratios[1] <= 1


def test_rows_on_which_a_maximum_may_take_either_side_are_left_open() -> None:
    """A standard deviation of eps makes the bound infinite, twice or half of it does not."""
    norm = LayerNorm(eps=1.0, eps_placement="max")
    rows = np.array([[1.0, -1.0] * 8, [2.0, -2.0] * 8, [0.5, -0.5] * 8])
    dy = np.ones_like(rows) + np.arange(16)
    bound = errors_of(norm, rows, dy).dx(error_class("tree", 16, True), exact_of(norm, rows, dy)["x"].hi)
    assert np.isinf(bound[0]).all()
    assert np.isfinite(bound[1:]).all()


def test_rows_whose_cubed_factor_leaves_the_range_are_not_judged() -> None:
    """r**3 of rows near 2**50 underflows in float32, that of rows near 1 does not."""
    norm = NORMS["inside"]
    rows = np.array([[1.0, -2.0, 3.0, 0.5]]) * np.array([[1.0], [2.0**50]])
    assert errors_of(norm, rows, np.ones_like(rows)).judged().tolist() == [True, False]


def test_height_of_sums_over_rows() -> None:
    """A tree over 8192 rows has 32 + 13 additions on a path, one running sum as many as there are rows."""
    rows = np.tile([[1.0, -2.0, 3.0, 0.5]], (8192, 1))
    errors = errors_of(NORMS["inside"], rows, np.ones_like(rows))
    assert (errors.height("tree"), errors.height("sequential")) == (45, 8192)


def test_bias_bound_holds_for_the_worst_order_and_not_for_16_bits() -> None:
    """One running float32 sum of 8192 gradients keeps its bound, one in bfloat16 does not."""
    norm, rng = NORMS["inside"], np.random.default_rng(3)
    dy = BF16.round(rng.uniform(0.25, 1.0, (8192, 4)))
    rows = rng.standard_normal((8192, 4)).astype(np.float32).astype(np.float64)
    errors, exact = errors_of(norm, rows, dy), exact_of(norm, rows, dy)["bias"]
    bound = errors.dbias(errors.height("sequential"))[None, :] + exact.err
    running = np.add.accumulate(dy.astype(np.float32), axis=0)[-1:].astype(np.float64)
    narrow = np.zeros(4)
    for row in dy:
        narrow = BF16.round(narrow + row)
    assert (np.abs(running - exact.hi) <= bound).all()
    assert (np.abs(narrow - exact.hi[0]) > 100 * bound[0]).all()


@pytest.mark.parametrize("regime", ["standard", "large-mean", "outlier"])
def test_weight_bound_holds_for_float32_sums(regime: str) -> None:
    """n and its products formed in float32 and added row by row keep the bound."""
    norm = NORMS["inside"]
    rows, dy = drawn(norm, regime, seed=5)
    errors, exact = errors_of(norm, rows, dy), exact_of(norm, rows, dy)["weight"]
    wide = rows.astype(np.float32)
    with np.errstate(all="ignore"):
        c = wide - wide.mean(1, keepdims=True)
        n = c / np.sqrt((c * c).mean(1, keepdims=True) + np.float32(1e-5))
        got = np.add.accumulate(dy.astype(np.float32) * n, axis=0)[-1].astype(np.float64)
        bound = errors.dweight(error_class("tree", 96, True), errors.height("sequential"))
    judged = np.isfinite(bound)
    assert judged.any()
    assert (np.abs(got - exact.hi[0]) <= bound + exact.err[0])[judged].all()


def test_several_roundings_of_the_parts_of_a_gradient_are_within_branches() -> None:
    """r*g, r*mean(g) and r*n*q, each rounded to bfloat16 before they are added, break the bound by no more than ``branches``."""
    norm = NORMS["inside"]
    rows, dy = drawn(norm, "standard")
    errors = errors_of(norm, rows, dy, storage=BF16)
    exact, allowed = exact_of(norm, rows, dy)["x"], error_class("tree", 96, True)
    r = 1 / errors.forward.certified.scale[:, None]
    n = errors.forward.normalized
    parts = (r * dy, -r * dy.mean(1, keepdims=True), -r * n * (dy * n).mean(1, keepdims=True))
    dx = BF16.round(BF16.round(BF16.round(parts[0]) + BF16.round(parts[1])) + BF16.round(parts[2]))
    bound = errors.dx(allowed, exact.hi) + exact.err
    ratios = [judge(dx, exact, e, BF16, errors.judged()).worst_ratio for e in (bound, bound + errors.branches())]
    assert ratios[0] > 10
    assert ratios[1] <= 1
