"""The ladder: certified bounds hold, rounding is right on every kind of row, and the slow twin agrees everywhere."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from normcheck.formats import FORMATS, Array
from normcheck.norms import PLACEMENTS, LayerNorm, PartialRMSNorm, RMSNorm, Standardization
from normcheck.reference import certify, correctly_rounded, ladder, rungs, scalar
from normcheck.reference.exact import ExactRow
from normcheck.reference.settling import Triple, settle

F64 = FORMATS["float64"]
KINDS = [(True, "mean", 1.0, 0), (True, "mean", 1.0, 1), (False, "mean", 1.0, 0), (False, "sum", 1.0, 0), (False, "mean", 0.3, 0)]
STANDARDIZATIONS = [
    Standardization(center, reduce, fraction, eps, placement, ddof)
    for (center, reduce, fraction, ddof), placement, eps in product(KINDS, PLACEMENTS, (1e-5, 0.0))
]


def hard_rows(width: int, seed: int = 0) -> Array:
    """Finite rows of every kind that has ever been hard: sizes from 1e-320 to 1e300, mixed, integer, constant and almost so."""
    rng = np.random.default_rng([seed, width])
    z = rng.normal(size=(12, width))
    z[1] += 1e12
    z[2] = rng.integers(-4, 5, width)
    z[3], z[4] = z[3, 0], 0.0
    z[5, rng.integers(width)] = 1e30
    z[6] *= 1e-320
    z[7] *= 1e300
    z[8] = np.exp(100 * z[8])
    z[9] *= np.where(rng.random(width) < 0.5, 1e-200, 1e200)
    z[10] = 1.0
    z[10, -1] = np.nextafter(1.0, 2.0)
    z[11] = np.where(rng.random(width) < 0.5, 1e308, -1e308)
    return z


def special_rows(width: int) -> Array:
    """Rows with an Inf or NaN first, last, alone or among others."""
    x = np.random.default_rng(width).normal(size=(5, width))
    x[0, 0], x[1, -1], x[2, 0], x[3, -1] = np.inf, -np.inf, np.nan, np.nan
    x[4] = np.inf
    return x


def parameters(width: int, seed: int = 0) -> tuple[Array, Array]:
    """Weights and biases of very unlike sizes, some 0."""
    rng = np.random.default_rng([seed, width, 1])
    weight = rng.normal(size=(1, width)) * rng.choice([1.0, 0.0, 1e-3, 1e5, 1e-300, 1e300], width)
    return weight, rng.normal(size=(1, width)) * rng.choice([1.0, 0.0, 1e-10, 1e20], width)


def same(got: Array, expected: Array) -> None:
    """Equal values, NaN at the same places."""
    assert np.array_equal(got, expected, equal_nan=True), np.argwhere((got != expected) & ~(np.isnan(got) & np.isnan(expected)))


def label(s: Standardization) -> str:
    """Short test id."""
    return f"{'centred' if s.center else s.reduce}-{s.fraction}-{s.placement}-{s.eps}-{s.ddof}"


@pytest.mark.parametrize("s", STANDARDIZATIONS, ids=label)
def test_agrees_with_the_slow_twin(s: Standardization) -> None:
    """Hard and special rows, with and without affine part, round as bisection over the format's values finds them."""
    width = 3
    weight, bias = parameters(width)
    for fmt in (FORMATS[name] for name in ("float64", "float16", "float8_e4m3fn")):
        rows = fmt.round(np.clip(np.concatenate([hard_rows(width), special_rows(width)]), -fmt.max, fmt.max))
        for affine in ({}, {"weight": weight, "bias": bias, "weight_offset": 1.0}):
            same(correctly_rounded(rows, s, fmt=fmt, **affine), scalar.correctly_rounded(rows, s, fmt=fmt, **affine))


@pytest.mark.slow
@pytest.mark.parametrize("s", STANDARDIZATIONS, ids=label)
def test_agrees_with_the_slow_twin_at_length(s: Standardization) -> None:
    """The same at more widths and seeds, in float64, where over- and underflow are nearest."""
    for width, seed in product((2, 3, 4, 7), range(3)):
        rows = np.concatenate([hard_rows(width, seed), special_rows(width)])
        weight, bias = parameters(width, seed)
        for affine in ({}, {"weight": weight, "bias": bias}, {"weight": weight, "weight_offset": 1.0}):
            same(correctly_rounded(rows, s, fmt=F64, **affine), scalar.correctly_rounded(rows, s, fmt=F64, **affine))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_given_statistics_agree_with_the_slow_twin(placement: str, name: str) -> None:
    """Given means and variances of any size and sign, infinite, NaN and cancelling eps, act as the twin says."""
    fmt = FORMATS[name]
    s = Standardization(True, "mean", 1.0, 1e-5, placement, 0)
    mean = np.array([0.0, 1.5, -1e300, 1e-320, np.inf, np.nan, 1.0, 1.0, 2.0, 0.5, 1.0, 0.0])
    variance = np.array([1.0, 0.0, 1e300, 1e-320, 1.0, 1.0, np.inf, np.nan, -1e-5, -1.0, 1e308, -np.inf])
    rows = fmt.round(np.clip(hard_rows(3), -fmt.max, fmt.max))
    rows[:2, 0], rows[:2, 1] = (np.inf if fmt.has_inf else np.nan), np.nan
    given = {"mean": mean, "variance": variance}
    same(correctly_rounded(rows, s, fmt=fmt, **given), scalar.correctly_rounded(rows, s, fmt=fmt, **given))


def test_weights_that_are_not_finite_follow_ieee() -> None:
    """inf * 0 is NaN, inf times anything else has the sign of the product, as the twin has it."""
    rows = np.array([[1.0, 2.0, 3.0], [-1.0, 0.0, 1.0], [5.0, 5.0, 5.0]])
    weight, bias = np.array([[np.inf, -np.inf, np.nan]]), np.array([[0.0, 1.0, 2.0]])
    for fmt in FORMATS.values():
        for b in (bias, np.array([[np.inf]])):
            same(
                correctly_rounded(rows, LayerNorm().standardization, weight, b, fmt=fmt),
                scalar.correctly_rounded(rows, LayerNorm().standardization, weight, b, fmt=fmt),
            )


def enclosure(row: ExactRow, i: int, weight: float, bias: float) -> tuple[Fraction, Fraction]:
    """Rationals around weight * n_i + bias, 2**-256 relative to its terms apart."""
    roots = (row.root, row.root) if row.root is not None else row.enclosure(256)
    ends = sorted(Fraction(weight) * row.c(i) / (row.rest + root) + Fraction(bias) for root in roots)
    return ends[0], ends[1]


@pytest.mark.parametrize("level", ["float64", "double-double"])
@pytest.mark.parametrize("s", STANDARDIZATIONS, ids=label)
def test_certified_bounds_hold(s: Standardization, level: str) -> None:
    """Whatever the rows, the exact value lies within err of hi + lo, as rationals tell."""
    width = 6
    weight, bias = parameters(width)
    rows = hard_rows(width)
    rows = rows[np.ptp(rows / 2, axis=1) > 0]  # S is never 0
    got = certify(rows, s, weight, bias, level=level)
    assert np.isfinite(got.err).mean() > 0.7
    for r, i in np.ndindex(rows.shape):
        if np.isfinite(got.err[r, i]):
            lower, upper = enclosure(ExactRow(rows[r], s), i, weight[0, i], bias[0, i])
            value, err = Fraction(got.hi[r, i]) + Fraction(got.lo[r, i]), Fraction(got.err[r, i])
            assert value - err <= upper
            assert lower <= value + err


@pytest.mark.parametrize("width", [1, 3, 64, 1000, 131072])
def test_certified_errors_are_small(width: int) -> None:
    """On ordinary rows of any mean and size, float64 errs by less than 1e-13 and double-double by less than 2**-92 of |n| + 1."""
    z = np.random.default_rng(0).normal(size=(3, width))
    rows = np.concatenate([z, z + 1e3, z + 1e12, 1e300 * z, 1e-300 * z])
    for s in (LayerNorm().standardization, RMSNorm().standardization, LayerNorm(eps_placement="outside").standardization):
        for level, limit in (("float64", 1e-13), ("double-double", 2.0**-92)):
            got = certify(rows, s, level=level)
            assert (got.err <= limit * (np.abs(got.hi) + 1)).all()


def test_certified_statistics() -> None:
    """Mean, sigma, denominator, mean and largest modulus are good to 1e-12 and never overflow, at any size of the row."""
    z = np.random.default_rng(1).normal(size=(1, 50)) + 3
    for factor in (1.0, 2.0**-1000, 2.0**1020):
        for level in ("float64", "double-double"):
            got = certify(z * factor, LayerNorm(eps=0.0).standardization, level=level)
            a = np.abs(z)
            expected = {"mean": z.mean(), "sigma": z.std(), "scale": z.std(), "abs_mean": a.mean(), "max_abs": a.max()}
            for name, value in expected.items():
                np.testing.assert_allclose(getattr(got, name) / factor, value, rtol=1e-12)
    top = np.array([[1.7e308, -1.7e308]])
    got = certify(top, LayerNorm(ddof=1).standardization)
    assert np.isfinite([got.mean, got.sigma, got.scale, got.abs_mean, got.max_abs]).all()


def test_certified_specials() -> None:
    """Where IEEE arithmetic decides, the triple holds its value with no error."""
    rows = np.array([[1.0, np.nan, 2.0], [np.inf, 1.0, -1.0], [0.0, 0.0, 0.0]])
    centred, uncentred = certify(rows, LayerNorm().standardization), certify(rows, RMSNorm(eps=0.0).standardization)
    assert np.isnan(centred.hi[:2]).all()
    assert (centred.hi[2] == 0).all()
    same(uncentred.hi, np.array([[np.nan] * 3, [np.nan, 0.0, 0.0], [np.nan] * 3]))
    assert (uncentred.err == 0).all()
    assert (centred.err[:2] == 0).all()


@pytest.mark.parametrize("name", FORMATS)
def test_constant_rows_give_exactly_the_bias(name: str) -> None:
    """A constant row, zero or not, is exactly the bias after centring, at every width, without climbing to rationals."""
    fmt = FORMATS[name]
    bias = fmt.round([[0.3]])
    for width in (1, 2, 7, 4097):
        rows = np.repeat(fmt.round([[0.0], [0.1], [-7.7], [300.0], [fmt.max], [fmt.min_subnormal]]), width, axis=1)
        counts: dict[str, int] = {}
        got = correctly_rounded(rows, LayerNorm().standardization, None, bias, fmt=fmt, stats=counts)
        assert (got == bias).all()
        assert counts["level2"] == 0


def test_a_zero_row_without_eps_is_nan() -> None:
    """0/0 is NaN for every placement that leaves S at 0."""
    for placement in PLACEMENTS:
        s = Standardization(True, "mean", 1.0, 0.0, placement, 0)
        assert np.isnan(correctly_rounded(np.zeros((1, 4)), s, fmt=F64)).all()


def test_partial_statistics_keep_bad_elements_to_themselves() -> None:
    """An Inf or NaN beyond the fraction of the statistic spoils only itself; within it, the row."""
    s = PartialRMSNorm(fraction=0.5, eps=0.0).standardization
    got = correctly_rounded([[3.0, 3.0, np.inf, np.nan], [np.nan, 3.0, 1.0, 1.0]], s, fmt=F64)
    same(got, np.array([[1.0, 1.0, np.inf, np.nan], [np.nan] * 4]))


def test_overflow_of_the_output() -> None:
    """Values beyond the largest round to inf, or to NaN where the format has none."""
    rows, weight = np.array([[1.0, -1.0]]), np.array([[1e308, 1e3]])
    for name, expected in (("float16", [np.inf, -1000.0]), ("float8_e4m3fn", [np.nan, np.nan]), ("float64", [1e308, -1e3])):
        got = correctly_rounded(rows, RMSNorm(eps=0.0).standardization, weight, fmt=FORMATS[name])
        same(got, np.array([expected]))


def test_float32_rows_near_the_overflow_limit() -> None:
    """Rows at float32's largest values, whose squares no float32 holds, normalize like any others."""
    top = FORMATS["float32"].max
    got = correctly_rounded([[top, -top, top, -top]], LayerNorm().standardization, fmt=FORMATS["float32"])
    same(got, np.array([[1.0, -1.0, 1.0, -1.0]]))


def test_ties_go_to_even_and_are_counted() -> None:
    """n = 1 exactly, so w + b can be put on midpoints: they go to even, and the exact level counts them."""
    fmt, counts = FORMATS["float32"], {}
    weight, bias = np.array([[1.0, 1.0]]), np.array([[fmt.u, 3 * fmt.u]])
    rows = np.array([[1.0, 1.0]])
    got = correctly_rounded(rows, RMSNorm(eps=0.0).standardization, weight, bias, fmt=fmt, stats=counts)
    same(got, np.array([[1.0, 1 + 4 * fmt.u]]))
    assert counts == {"elements": 2, "level1": 2, "level2": 2, "ties": 2}


def test_ordinary_rows_stay_on_the_first_level() -> None:
    """Of standard elements rounded to float32 1e-4 or fewer climb, and none reaches rationals; at mean/std = 1e6 the same."""
    z = np.random.default_rng(2).normal(size=(64, 4096))
    for rows in (z, z + 1e6):
        counts: dict[str, int] = {}
        correctly_rounded(rows, LayerNorm().standardization, fmt=FORMATS["float32"], stats=counts)
        assert counts["level1"] <= 1e-4 * counts["elements"]
        assert counts["level2"] == 0


@pytest.mark.parametrize("name", ["float64", "float32"])
def test_results_do_not_depend_on_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row by row, in odd blocks or all at once: the same bits; parameter rows stay with their rows."""
    rows = np.concatenate([hard_rows(9, seed) for seed in range(3)])
    weight = np.random.default_rng(3).normal(size=(4, 1))
    s = LayerNorm().standardization
    whole, certified = correctly_rounded(rows, s, weight, fmt=FORMATS[name]), certify(rows, s, weight)
    for block in (1, 30, 100):
        monkeypatch.setattr(ladder, "BLOCK", block)
        monkeypatch.setattr(rungs, "BLOCK", block)
        assert correctly_rounded(rows, s, weight, fmt=FORMATS[name]).tobytes() == whole.tobytes()
        again = certify(rows, s, weight)
        assert all(getattr(again, part).tobytes() == getattr(certified, part).tobytes() for part in ("hi", "lo", "err", "scale"))


@pytest.mark.parametrize("shape", [(0, 4), (0, 0), (3, 0)])
def test_empty_rows(shape: tuple[int, int]) -> None:
    """No rows or no elements give empty results."""
    assert correctly_rounded(np.empty(shape), RMSNorm().standardization, fmt=F64).shape == shape
    assert certify(np.empty(shape), RMSNorm().standardization).hi.shape == shape


REFUSED = [
    ((np.ones(3),), {}, r"rows has shape \(3,\), but should be \(R, D\)"),
    ((np.ones((2, 3)),), {"weight": np.ones(3)}, r"weight has shape \(3,\), but should be \(period, 1\) or \(period, 3\)"),
    ((np.ones((2, 3)),), {"bias": np.ones((1, 2))}, r"bias has shape \(1, 2\), but should be"),
    ((np.ones((2, 3)),), {"mean": np.ones(2)}, r"mean and variance should be given both or neither"),
    ((np.ones((2, 3)),), {"mean": np.ones(2), "variance": np.ones(3)}, r"variance has shape \(3,\), but should be \(2,\)"),
]


@pytest.mark.parametrize(("rows", "given", "message"), REFUSED)
def test_refuses_shapes_that_do_not_fit(rows: tuple[Array], given: dict[str, Array], message: str) -> None:
    """Shapes that do not fit are named together with those that would."""
    s = RMSNorm().standardization
    with pytest.raises(ValueError, match=message):
        certify(*rows, s, **given)
    with pytest.raises(ValueError, match=message):
        correctly_rounded(*rows, s, fmt=F64, **given)


def test_an_error_beyond_the_range_settles_nothing() -> None:
    """Where the ends of an interval overflow on either side, NaN twice is no agreement; on one side it is."""
    fmt = FORMATS["float8_e4m3fn"]
    for lo in (None, np.zeros(2)):
        value, settled = settle(Triple(np.array([0.0, 5000.0]), lo, np.array([1000.0, 1000.0])), fmt)
        assert settled.tolist() == [False, True]
        assert np.isnan(value[1])


def test_refuses_unknown_level_and_centred_fraction() -> None:
    """A level that is none, and a centred statistic of part of a row, are refused."""
    with pytest.raises(ValueError, match=r"level='quad', but should be 'float64' or 'double-double'"):
        certify(np.ones((1, 2)), RMSNorm().standardization, level="quad")
    with pytest.raises(ValueError, match=r"fraction=0.5, but should be 1 where the mean is subtracted"):
        certify(np.ones((1, 2)), Standardization(True, "mean", 0.5, 0.0, "none", 0))
