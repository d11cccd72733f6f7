"""Bounds: no admissible rounding exceeds them, and the pass test is the set that it is said to be."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from normcheck.bounds import CLASS_NAMES, ErrorClass, RowErrors, classes_of, error_class
from normcheck.cells import distance, judge, judge_before_weight, vacuous
from normcheck.contract import Contract
from normcheck.formats import FORMATS, Array, Format
from normcheck.norms import PLACEMENTS, Standardization
from normcheck.reference import Certified, certify
from normcheck.regimes import REGIMES

F32, BF16, F16 = FORMATS["float32"], FORMATS["bfloat16"], FORMATS["float16"]
FORWARD = [name for name in REGIMES if name != "subnormal"]


def standardization(placement: str = "inside", *, center: bool = True, ddof: int = 0, eps: float = 1e-5) -> Standardization:
    """A standardization of the whole row by the mean of squares."""
    return Standardization(center, "mean", 1.0, eps, placement, ddof)  # type: ignore[arg-type]


def errors_of(rows: Array, std: Standardization, **options: object) -> RowErrors:
    """The error quantities of rows in float32 arithmetic."""
    return RowErrors(rows, certify(rows, std), std, F32, **options)  # type: ignore[arg-type]


def admissible(rows: Array, std: Standardization, allowed: ErrorClass, rng: np.random.Generator) -> Array:
    """Standardized rows as a two-pass kernel can at worst compute them: every rounding at the edge of what it may be.

    The mean is off by up to (H+1)*u*A and the variance by (H+4)*u, both at once, in the direction that the generator draws.
    """
    u, width = F32.u, rows.shape[1]

    def edge(size: Array | float) -> Array:
        return 1.0 + np.asarray(size) * rng.choice([-1.0, 1.0], (len(rows), 1))

    mean = rows.mean(axis=1, keepdims=True) * std.center
    mean = mean + (rows - mean).mean(axis=1, keepdims=True) * std.center
    off = (edge(1.0) - 1.0) * (allowed.height + 1) * u * np.abs(rows).mean(axis=1, keepdims=True) * std.center
    centred = rows - (mean + off)
    square = (centred**2).sum(axis=1, keepdims=True) / std.divisor(width) * edge((allowed.height + (4 if std.center else 2)) * u)
    root = np.sqrt(square) * edge(u)
    eps = std.eps
    denominators = {
        "inside": np.sqrt((square + eps) * edge(u)) * edge(u),
        "outside": (root + eps) * edge(u),
        "max": np.maximum(root, eps),
        "max_inside": np.sqrt(np.maximum(square, eps)) * edge(u),
        "none": root,
    }
    return centred * edge(u) / denominators[std.placement] * edge(u) * edge(u)


@pytest.mark.parametrize(
    ("placement", "center", "ddof"),
    [*itertools.product(PLACEMENTS, (True, False), (0,)), ("inside", True, 1), ("outside", True, 1)],
)
@pytest.mark.parametrize("name", ["strict", "tree", "sequential"])
def test_no_admissible_rounding_exceeds_the_bound(placement: str, center: bool, ddof: int, name: str) -> None:
    """Perturbing mean, variance and every operation to the edge of its allowance stays within E, on every regime."""
    std = standardization(placement, center=center, ddof=ddof)
    allowed = error_class(name, 257, center)  # type: ignore[arg-type]
    rng = np.random.default_rng(7)
    worst = 0.0
    for regime in FORWARD:
        rows = REGIMES[regime].rows(12, 257, F32, 0)
        if placement == "none":
            rows = rows[np.ptp(rows, axis=1) > 0]
        errors = errors_of(rows, std)
        bound, judged = errors.bound(allowed), errors.judged()
        for _ in range(8):
            with np.errstate(all="ignore"):
                error = np.abs(admissible(rows, std, allowed, rng) - errors.certified.hi)
                # float64 itself rounds, by far less than the float32 arithmetic that is simulated
                own = 2.0**-50 * (np.abs(rows) + np.abs(errors.certified.mean)[:, None]) / errors.certified.scale[:, None]
                ratio = np.where(judged[:, None], np.maximum(error - own, 0) / bound, 0.0)
            worst = max(worst, float(np.nanmax(ratio, initial=0.0)))
    assert 0.02 < worst <= 1.0


def test_the_bound_carries_the_condition_number() -> None:
    """Multiplying mean/std by 10 multiplies the common mode by 10, and leaves the bound of a norm without mean as it is."""
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((1, 1024))
    near, far = F32.round(noise + 1e2), F32.round(noise + 1e3)
    allowed = error_class("tree", 1024, True)
    taus = [float(errors_of(rows, standardization()).tau(allowed)[0]) for rows in (near, far)]
    assert taus[1] / taus[0] == pytest.approx(10, rel=0.05)  # the standard deviation moves a little with rounding
    plain = [errors_of(rows, standardization(center=False)) for rows in (near, far)]
    relative = [float((e.bound(error_class("tree", 1024, False)) / np.abs(e.certified.hi)).max()) for e in plain]
    assert relative[1] / relative[0] == pytest.approx(1, rel=0.05)


def test_classes_contain_one_another() -> None:
    """Whatever the strict class allows the tree class allows, and so on, for every width."""
    for width in (1, 2, 3, 33, 1024, 65537):
        rows = REGIMES["large-mean"].rows(3, width, F32, 1)
        errors = errors_of(rows, standardization())
        strict, tree, sequential = (errors.bound(classes_of(Contract(), width, True)[name]) for name in CLASS_NAMES)
        assert (strict <= tree).all()
        assert (tree <= sequential).all()


def test_a_declared_height_takes_the_place_of_the_tree() -> None:
    """An integer accumulation is the height of the tree class and leaves the others as they are."""
    classes = classes_of(Contract(accumulation=5), 1024, True)
    assert classes["tree"].height == 5
    assert classes["strict"] == classes_of(Contract(), 1024, True)["strict"]
    assert classes["sequential"].height == 1024


def test_heights_are_those_of_the_derivation() -> None:
    """Strict ceil(log2 D) with 6u (5u), tree 32 more with 9u (8u), sequential D but never less than the tree."""
    assert error_class("strict", 1000, True) == ErrorClass(10, 6, False)
    assert error_class("tree", 1000, True) == ErrorClass(42, 9, True)
    assert error_class("tree", 1000, False) == ErrorClass(42, 8, True)
    assert error_class("sequential", 1000, True) == ErrorClass(1000, 9, True)
    assert error_class("sequential", 16, True) == ErrorClass(36, 9, True)


def _exact(value: Array) -> Certified:
    zero, per_row = np.zeros_like(value), np.ones(len(value))
    return Certified(value, zero, zero, per_row, per_row, per_row, per_row, per_row)


@pytest.mark.parametrize("fmt", [F16, BF16, F32], ids=lambda f: f.name)
def test_ratio_at_most_one_is_the_set_between_two_roundings(fmt: Format) -> None:
    """distance/E <= 1 holds exactly for RN(y - E) <= output <= RN(y + E), around powers of two too."""
    rng = np.random.default_rng(3)
    y = np.concatenate([rng.standard_normal(4000), 2.0 ** rng.integers(-3, 4, 4000) * (1 + rng.uniform(-2, 2, 4000) * fmt.u)])
    y = y[:, None] * rng.choice([-1.0, 1.0], (8000, 1))
    bound = np.abs(y) * fmt.u * rng.uniform(0.0, 3.0, y.shape)
    output = fmt.round(y * (1 + rng.integers(-4, 5, y.shape) * fmt.u))
    verdict = judge(output, _exact(y), bound, fmt, np.ones(len(y), bool))
    inside = (fmt.round(y - bound) <= output) & (output <= fmt.round(y + bound))
    assert np.array_equal(verdict.ratio <= 1, inside)
    assert 0.1 < inside.mean() < 0.9


def test_what_is_not_finite_is_never_near() -> None:
    """NaN is infinitely far; infinity is as far as the value is from the edge of the format."""
    y = np.array([[1.0, 1.0, 65519.0, 65521.0]])
    output = np.array([[np.nan, np.inf, np.inf, np.inf]])
    assert distance(output, _exact(y), F16).tolist() == [[np.inf, 65519.0, 1.0, 0.0]]


def test_elements_that_may_overflow_are_not_judged() -> None:
    """Where the value plus its bound exceeds the largest finite number the contract's overflow rule decides, not the bound."""
    y = np.array([[65000.0, 65503.9]])
    verdict = judge(np.array([[65024.0, np.inf]]), _exact(y), np.full((1, 2), 1.0), F16, np.ones(1, bool))
    assert verdict.judged.tolist() == [[True, False]]


def test_the_worst_element_is_named() -> None:
    """The position of the largest ratio is given, and None where nothing was judged."""
    y = np.ones((2, 3))
    output = np.ones((2, 3))
    output[1, 2] = 1.5
    verdict = judge(output, _exact(y), np.full((2, 3), 1e-3), F32, np.ones(2, bool))
    assert verdict.worst == (1, 2)
    assert verdict.worst_ratio > 400
    none = judge(output, _exact(y), np.full((2, 3), 1e-3), F32, np.zeros(2, bool))
    assert none.worst is None
    assert none.worst_ratio == 0


def test_the_figures_are_those_of_the_worst_element() -> None:
    """Error and tolerance of the worst element, as the whole arrays have them; none where nothing was judged."""
    rng = np.random.default_rng(2)
    y = rng.standard_normal((3, 50))
    output, bound = F32.round(y * (1 + 4 * F32.u)), np.abs(y) * F32.u
    verdict = judge(output, _exact(y), bound, F32, np.array([True, True, False]))
    at = verdict.worst
    assert at is not None
    assert verdict.figures == {"error": verdict.error[at], "tolerance": verdict.tolerance[at]}
    assert np.array_equal(verdict.error, np.abs(output - y))
    assert np.array_equal(verdict.tolerance, bound + 0.5 * F32.ulp(output))
    assert judge(output, _exact(y), bound, F32, np.zeros(3, bool)).figures == {}


def test_without_an_error_the_first_judged_element_is_the_worst() -> None:
    """An exact output has a ratio of 0 everywhere, also where the bound is 0."""
    y = F32.round(np.random.default_rng(2).standard_normal((3, 5)))
    verdict = judge(y, _exact(y), np.zeros(y.shape), F32, np.array([False, True, True]))
    assert verdict.worst == (1, 0)
    assert verdict.ratio.tolist() == np.zeros(y.shape).tolist()


def test_bounds_of_several_classes_are_those_of_each() -> None:
    """Made at once they have the same bits."""
    rows, weight = REGIMES["large-mean"].rows(4, 64, F32, 0), np.full((1, 64), -1.5)
    std = standardization()
    errors = RowErrors(rows, certify(rows, std, weight), std, F32, weight=weight, offset=1.0)
    classes = list(classes_of(Contract(), 64, True).values())
    for one, allowed in zip(errors.bounds(*classes), classes, strict=True):
        assert np.array_equal(one, errors.bound(allowed))


def test_an_offset_may_be_added_to_the_product() -> None:
    """Where the weight is near -1, n + weight*n in float32 is within the bound of a weight with an offset, and of no other."""
    rows = REGIMES["standard"].rows(4, 64, F32, 0)
    weight = F32.round(np.random.default_rng(3).uniform(-1.001, -0.999, (1, 64)))
    std = standardization(center=False)
    allowed = classes_of(Contract(), 64, False)["tree"]
    n = F32.round(certify(rows, std).hi).astype(np.float32)
    y = n + weight.astype(np.float32) * n
    exact = certify(rows, std, 1.0 + weight)
    within = {
        offset: np.abs(y - exact.hi) <= RowErrors(rows, exact, std, F32, weight=1.0 + weight, offset=offset).bound(allowed)
        for offset in (0.0, 1.0)
    }
    assert within[1.0].all()
    assert not within[0.0].all()


def test_the_inner_cast_is_a_set_too() -> None:
    """For the cast before the weight exactly the outputs w*RN(m), m between n - E and n + E, have a ratio of at most 1."""
    rng = np.random.default_rng(5)
    n = rng.uniform(0.5, 2.0, (1, 2000))
    weight = BF16.round(rng.uniform(-2.0, 2.0, n.shape))
    bound = n * BF16.u * rng.uniform(0.0, 1.0, n.shape)
    inner = BF16.round(n * (1 + rng.integers(-2, 3, n.shape) * BF16.u))
    output = BF16.round(weight * inner)
    verdict = judge_before_weight(output, _exact(n), bound, weight, None, BF16, BF16, np.ones(1, bool))
    reachable = np.zeros(n.shape, bool)
    for step in np.linspace(-1, 1, 401):
        reachable |= output == BF16.round(weight * BF16.round(n + step * bound))
    assert (verdict.ratio[reachable] <= 1).all()
    assert (verdict.ratio[~reachable] > 1).mean() > 0.95
    assert 0.1 < reachable.mean() < 0.95


def test_rows_beyond_the_compute_range_are_not_judged() -> None:
    """Sums of squares above the largest finite value, and variances so small that they underflow, are left to other checks."""
    unit = np.resize([1.0, -1.0], 64)
    rows = np.stack([unit, unit * 3e18, unit * 1e17, np.zeros(64)])
    assert errors_of(rows, standardization()).judged().tolist() == [True, False, True, True]
    tiny = np.stack([unit * 1e-12, unit * 1e-17])
    assert errors_of(tiny, standardization(eps=0.0)).judged().tolist() == [True, False]


def test_a_bound_above_a_tenth_of_every_value_is_vacuous() -> None:
    """It takes one element with a telling bound for a case to say something."""
    y = np.array([[1.0, 10.0]])
    judged = np.ones((1, 2), bool)
    assert vacuous(_exact(y), np.array([[0.2, 1.1]]), judged)
    assert not vacuous(_exact(y), np.array([[0.2, 0.9]]), judged)
    assert vacuous(_exact(y), np.array([[0.0, 0.0]]), ~judged)


def test_weights_and_biases_enter_once_each() -> None:
    """The bound scales with |weight| and gains u of the result and of the bias."""
    rows = REGIMES["standard"].rows(4, 64, F32, 0)
    std, allowed = standardization(), error_class("tree", 64, True)
    plain = errors_of(rows, std).bound(allowed)
    weight = np.full(rows.shape, -4.0)
    certified = certify(rows, std, np.full((1, 64), -4.0), np.full((1, 64), 3.0))
    both = RowErrors(rows, certified, std, F32, weight=weight, bias=np.full(rows.shape, 3.0))
    n = errors_of(rows, std).certified.hi
    u = F32.u
    expected = 4 * plain + u * 4 * np.abs(n) + u * (np.abs(3 - 4 * n) + 3)
    assert np.abs(both.bound(allowed) / expected - 1).max() < 64 * u


def test_given_statistics_have_no_common_mode() -> None:
    """In evaluation the bound is a few u of what is applied, whatever the width."""
    rows = REGIMES["large-mean"].rows(4, 4097, F32, 0)
    std, allowed = standardization(), error_class("sequential", 4097, True)
    certified = certify(rows, std, mean=rows.mean(axis=1), variance=np.ones(4))
    errors = RowErrors(rows, certified, std, F32, given=True)
    assert (errors.tau(allowed) == 0).all()
    applied = F32.u * (2 * np.abs(rows) + 3 * np.abs(rows.mean(axis=1, keepdims=True)))
    limit = applied + 9 * F32.u * np.abs(certified.hi)
    assert (errors.bound(allowed) <= limit * (1 + 4 * F32.u * (4097 + 9)) + math.ldexp(1.0, -140)).all()


def test_a_shift_that_shares_no_rounding_with_the_scale_is_within_the_bound() -> None:
    """x*(w/S) + (b - (mu*w)/S) in float32: five roundings of |x*w/S| and |mu*w/S| that do not cancel where x is near mu."""
    rng = np.random.default_rng(0)
    count = 100_000
    x, mean = F32.round(1000 + rng.standard_normal((2, count, 1)))
    variance = F32.round(rng.uniform(0.5, 2.0, (count, 1)))
    weight, bias = F32.round(rng.uniform(1.0, 2.0, (count, 1))), F32.round(rng.standard_normal((count, 1)))
    std = standardization()
    certified = certify(x, std, weight, bias, mean=mean[:, 0], variance=variance[:, 0])
    errors = RowErrors(x, certified, std, F32, weight=weight, bias=bias, given=True)
    x32, m32, v32, w32, b32 = (part.astype(np.float32) for part in (x, mean, variance, weight, bias))
    root = np.sqrt(v32 + np.float32(1e-5))
    output = (x32 * (w32 / root) + (b32 - m32 * w32 / root)).astype(np.float64)
    verdict = judge(output, certified, errors.bound(error_class("strict", 1, True)), F32, errors.judged())
    assert verdict.judged.all()
    assert 0.5 < verdict.worst_ratio <= 1


@pytest.mark.parametrize("width", [8, 64])
def test_a_weight_before_the_division_stays_within_the_bound_below_the_normal_range(width: int) -> None:
    """(w*c)/S in float32 on subnormal rows: the underflow of w*c, which 1/S enlarges, is part of E."""
    rows = REGIMES["subnormal"].rows(12, width, F32, 3)
    weight = np.resize(F32.round([0.3, -1.7, 0.9]), (1, width))
    std = standardization()
    certified = certify(rows, std, weight)
    spread = np.broadcast_to(np.abs(weight), rows.shape)
    errors = RowErrors(rows, certified, std, F32, weight=spread)
    x, w = rows.astype(np.float32), weight.astype(np.float32)
    c = x - x.mean(-1, keepdims=True)
    scale = np.sqrt((c * c).mean(-1, keepdims=True) + np.float32(1e-5))
    output = ((w * c) / scale).astype(np.float64)
    verdict = judge(output, certified, errors.bound(error_class("tree", width, True)), F32, errors.judged())
    assert verdict.judged.any()
    assert verdict.worst_ratio <= 1


def test_flushing_widens_the_bound_to_the_smallest_normal_value() -> None:
    """With every subnormal flushed, inputs included, outputs conform to the flushing bound and to no other."""
    rows = REGIMES["subnormal"].rows(9, 33, F32, 0)
    std = standardization(center=False, eps=1e-6)
    certified = certify(rows, std)
    tiny = np.float32(F32.min_normal)
    x = np.where(np.abs(rows) < tiny, 0, rows).astype(np.float32)
    output = (x / np.sqrt(np.float32(1e-6))).astype(np.float64)
    allowed = error_class("tree", 33, False)
    strict = RowErrors(rows, certified, std, F32)
    lenient = RowErrors(rows, certified, std, F32, flushes=True)
    assert judge(output, certified, strict.bound(allowed), F32, strict.judged()).worst_ratio > 1
    assert judge(output, certified, lenient.bound(allowed), F32, lenient.judged()).worst_ratio <= 1


def test_a_cast_through_float32_is_allowed_for() -> None:
    """float64 arithmetic with 16-bit output may round through float32: half an ulp of float32 more."""
    rows = REGIMES["standard"].rows(2, 16, BF16, 0)
    std = standardization()
    certified = certify(rows, std)
    plain, through = (
        RowErrors(rows, certified, std, FORMATS["float64"], out_is_compute=False, through_float32=cast) for cast in (False, True)
    )
    allowed = error_class("tree", 16, True)
    assert np.array_equal(through.bound(allowed), plain.bound(allowed) + F32.u * np.abs(certified.hi))
