"""The regimes: exact, finite, reproducible rows that have the property that they are named for."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import normcheck
from normcheck.formats import FORMATS
from normcheck.regimes import REGIMES, WIDTHS, biases, weights

FP32, FP16, BF16 = FORMATS["float32"], FORMATS["float16"], FORMATS["bfloat16"]
ALL_FORMATS = pytest.mark.parametrize("fmt", FORMATS.values(), ids=list(FORMATS))
ALL_REGIMES = pytest.mark.parametrize("regime", REGIMES.values(), ids=list(REGIMES))
REAL_FORMATS = pytest.mark.parametrize("fmt", [f for f in FORMATS.values() if f.p > 4], ids=lambda f: f.name)


@ALL_FORMATS
@ALL_REGIMES
def test_rows_are_exact_and_finite_at_every_size(regime, fmt):
    """Every value is one of the format's, whatever R and D, none and one included."""
    for width in (1, 2, 3, 64, 257):
        for rows in (0, 1, 13):
            made = regime.rows(rows, width, fmt, 0)
            assert made.shape == (rows, width)
            assert made.dtype == np.float64
            assert fmt.representable(made).all()


@ALL_REGIMES
def test_rows_exist_at_the_largest_width(regime):
    """D = 2**17 is made without complaint."""
    made = regime.rows(2, 2**17, FP32, 0)
    assert made.shape == (2, 2**17)
    assert FP32.representable(made).all()


@ALL_REGIMES
def test_same_arguments_same_rows(regime):
    """Rows are a function of name, shape, format and seed: another seed gives others."""
    first = regime.rows(20, 65, FP32, 3)
    np.testing.assert_array_equal(first, regime.rows(20, 65, FP32, 3))
    assert (first != regime.rows(20, 65, FP32, 4)).any()


@pytest.mark.parametrize("hashing", ["1", "2"])
def test_rows_do_not_depend_on_the_process(hashing):
    """Another process with another hash seed makes the same bits."""
    code = "import sys\nfrom normcheck.formats import FORMATS\nfrom normcheck.regimes import REGIMES\n" + (
        "sys.stdout.buffer.write(b''.join(r.rows(3, 17, FORMATS['bfloat16'], 5).tobytes() for r in REGIMES.values()))"
    )
    env = {**os.environ, "PYTHONHASHSEED": hashing, "PYTHONPATH": str(Path(normcheck.__file__).parents[1])}
    made = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    assert b"".join(r.rows(3, 17, BF16, 5).tobytes() for r in REGIMES.values()) == made.stdout


def test_regimes_draw_independently():
    """Two regimes never share their random numbers, nor do two widths or two formats."""
    standard = REGIMES["standard"].rows(1, 64, FP32, 0)
    assert (standard != FP32.round(REGIMES["standard"].rows(1, 64, FORMATS["float64"], 0))).any()
    assert (standard[:, :63] != REGIMES["standard"].rows(1, 63, FP32, 0)).any()
    assert (weights(64, FP32, 0) != biases(64, FP32, 0)).all()


@pytest.mark.parametrize(
    ("rows", "width", "seed", "message"),
    [
        (-1, 4, 0, r"rows=-1, but should be >= 0"),
        (4, 0, 0, r"width=0, but should be >= 1"),
        (4, 4, -2, r"seed=-2, but should be >= 0"),
    ],
)
def test_impossible_sizes_are_refused(rows, width, seed, message):
    """The message names the value and what it should be."""
    with pytest.raises(ValueError, match=message):
        REGIMES["standard"].rows(rows, width, FP32, seed)


@pytest.mark.parametrize("make", [weights, biases])
def test_impossible_parameter_sizes_are_refused(make):
    """So do those of weights and biases."""
    with pytest.raises(ValueError, match=r"size=-3, but should be >= 0"):
        make(-3, FP32, 0)
    with pytest.raises(ValueError, match=r"seed=-1, but should be >= 0"):
        make(3, FP32, -1)


def test_standard_has_mean_0_and_std_1():
    """Within what 2e5 normal draws allow."""
    made = REGIMES["standard"].rows(4, 50001, FP32, 0)
    assert np.abs(made.mean()) < 5 / np.sqrt(made.size)
    assert np.abs(made.var() - 1) < 5 * np.sqrt(2 / made.size)


def _ratio(rows):
    return np.abs(rows.mean(axis=1)) / rows.std(axis=1)


def test_large_mean_covers_1e1_to_1e6_in_float32():
    """Six rows have the six ratios, to what their sampled std allows."""
    found = np.sort(_ratio(REGIMES["large-mean"].rows(6, 40001, FP32, 0)))
    np.testing.assert_allclose(found, 10.0 ** np.arange(1, 7), rtol=5 / np.sqrt(2 * 40001) + 0.01)


@REAL_FORMATS
def test_large_mean_keeps_its_deviations(fmt):
    """No row is rounded to a constant: its std stays above half an ulp of its mean."""
    made = REGIMES["large-mean"].rows(12, 1001, fmt, 0)
    assert (made.std(axis=1) > 0.5 * fmt.ulp(made.mean(axis=1))).all()
    assert _ratio(made).min() > 5
    assert _ratio(made).max() > min(5e5, 2.0 ** (fmt.p - 2))


@ALL_FORMATS
def test_sparse_deviation_is_a_constant_but_for_some_steps(fmt):
    """2, 4, 16 or 48 elements are one equal step off; in the 16- and 8-bit formats the step is one ulp."""
    made = REGIMES["sparse-deviation"].rows(8, 513, fmt, 0)
    counts = []
    for row in made:
        base = np.median(row)
        off = row[row != base]
        counts.append(off.size)
        assert np.ptp(np.abs(off - base)) == 0
        if fmt.p <= 11:
            assert np.abs(off - base)[0] == fmt.ulp(base)
    assert counts == [4, 16, 2, 48] * 2
    assert len({abs(np.median(row)) for row in made}) > 4 or fmt.p < 5


@pytest.mark.parametrize("width", [1, 2, 3])
def test_sparse_deviation_of_narrow_rows(width):
    """At least half the elements stay on the constant."""
    made = REGIMES["sparse-deviation"].rows(9, width, BF16, 0)
    assert all(len(set(row)) == min(width, 2) for row in made)


@ALL_FORMATS
def test_outliers_stand_at_the_last_the_first_and_random_positions(fmt):
    """Row 0 has one in its last element, row 1 anywhere, row 2 in its first, row 3 several with the last among them."""
    made = np.abs(REGIMES["outlier"].rows(24, 1001, fmt, 0))
    large = made >= 0.9 * min(1e3, fmt.max) * (1 - fmt.u)
    assert all(row.tolist() == [1000] for row in map(np.flatnonzero, large[0::4]))
    assert all(row.size == 1 for row in map(np.flatnonzero, large[1::4]))
    assert all(row.tolist() == [0] for row in map(np.flatnonzero, large[2::4]))
    assert all(2 <= row.size <= 3 and row[-1] == 1000 for row in map(np.flatnonzero, large[3::4]))
    assert len({int(row.argmax()) for row in made[1::4]}) > 3


def test_outliers_reach_as_far_as_float32_can_square():
    """The largest is near 1e18, and the sum of squares stays finite; in float16 it is near 65504."""
    made = np.abs(REGIMES["outlier"].rows(12, 1001, FP32, 0))
    assert made.max() > 1e18
    assert np.isfinite(FP32.round((made**2).sum(axis=1))).all()
    assert REGIMES["outlier"].rows(12, 1001, FP16, 0).max() > 58000


def test_heavy_tail_is_cauchy():
    """Half of the values lie within 1, and single ones dominate their row."""
    made = np.abs(REGIMES["heavy-tail"].rows(4, 50001, FP32, 0))
    assert np.abs((made < 1).mean() - 0.5) < 5 * 0.5 / np.sqrt(made.size)
    assert made.max() > 1e4


@ALL_FORMATS
def test_constant_rows_are_constant(fmt):
    """Several constants, one per row, small and as large as the arithmetic can square."""
    made = REGIMES["constant"].rows(18, 77, fmt, 0)
    assert (made == made[:, :1]).all()
    assert (made != 0).all()
    assert len(set(np.abs(made[:, 0]))) >= 5
    assert np.abs(made).max() >= min(fmt.max, np.sqrt(FP32.max / 77) / 2) * (1 - fmt.u)


@ALL_FORMATS
def test_near_constant_rows_vary_by_a_few_steps(fmt):
    """No more than five values in a row, the spread far below the mean; the finest step is the format's own."""
    made = REGIMES["near-constant"].rows(9, 500, fmt, 0)
    assert all(2 <= len(set(row)) <= 5 for row in made)
    finest = np.sort(np.unique(made[1]))
    assert np.diff(finest).min() <= fmt.ulp(made[1]).max()
    assert (np.ptp(made, axis=1) <= 4 * 2.0 ** -(fmt.p // 2) * np.abs(made).max(axis=1) * 1.5).all()


def test_tiny_rows_go_down_and_stay_normal():
    """In float32 and bfloat16 scales run from 1e-3 to 1e-32, in float64 to 1e-40, and nothing is subnormal."""
    for fmt, least in ((FP32, 2e-32), (BF16, 2e-32), (FORMATS["float64"], 1e-40)):
        scale = REGIMES["tiny"].rows(6, 2001, fmt, 0).std(axis=1)
        np.testing.assert_allclose(sorted(scale)[::5], [least, 1e-3], rtol=0.5)
        assert (np.abs(REGIMES["tiny"].rows(6, 2001, fmt, 0)) >= fmt.min_normal).all()


@ALL_FORMATS
def test_subnormal_rows_hold_subnormals(fmt):
    """Every row has some, and no row is zero; the regime does not enter the grade."""
    made = np.abs(REGIMES["subnormal"].rows(6, 501, fmt, 0))
    assert ((made < fmt.min_normal) & (made > 0)).any(axis=1).all()
    assert not REGIMES["subnormal"].graded


@pytest.mark.parametrize("width", [1, 7, 1000])
def test_huge_rows_fill_the_arithmetic(width):
    """Sums of squares are at 0.45 of float32's largest value where the format reaches so far, else elements at the format's."""
    for name in ("float32", "bfloat16"):
        share = (REGIMES["huge"].rows(8, width, FORMATS[name], 0) ** 2).sum(axis=1) / FP32.max
        np.testing.assert_allclose(share.max(), 0.45, rtol=3 * FORMATS[name].u)
        assert share.min() > 0.04
    assert np.abs(REGIMES["huge"].rows(8, width, FP16, 0)).max() == FP16.max
    double = REGIMES["huge"].rows(8, width, FORMATS["float64"], 0)
    np.testing.assert_allclose(np.linalg.norm(double, axis=1).max(), np.sqrt(0.45) * np.sqrt(FORMATS["float64"].max), rtol=1e-12)


def test_huge_rows_keep_within_a_narrower_arithmetic():
    """A float16 accumulator, where it is claimed, is filled and not overrun."""
    total = (REGIMES["huge"].rows(8, 100, FP16, 0, compute=FP16) ** 2).sum(axis=1)
    assert 0.4 * FP16.max < total.max() < FP16.max


@pytest.mark.parametrize("width", [2, 3, 257, 4096, 2**17])
@ALL_FORMATS
def test_exact_integers_sum_to_zero_exactly(fmt, width):
    """The sum is 0 and every partial sum of squares is a whole number that float32 holds."""
    made = REGIMES["exact-integer"].rows(2, width, fmt, 0)
    unit = np.array([1.0, max(2.0**-12, fmt.min_subnormal)])[:, None]
    assert (made.sum(axis=1) == 0).all()
    assert (made / unit == np.rint(made / unit)).all()
    assert (((made / unit) ** 2).sum(axis=1) <= 2.0**24).all()
    assert (made != 0).sum() == 2 * (width - width % 2)


def test_structured_rows_differ_in_kind():
    """The first nine rows are of nine kinds, among them a sorted, a positive and a few-valued one."""
    made = REGIMES["structured"].rows(9, 400, FP32, 0)
    assert sum(bool((np.diff(row) >= 0).all()) for row in made) == 1
    assert sum(len(set(row)) <= 7 for row in made) == 1
    assert sum(bool((row > 0).all()) for row in made) >= 1
    assert len({round(np.log10(np.abs(row).max())) for row in made}) >= 3


def test_widths_hold_the_awkward_ones():
    """Every profile has an odd width, a prime and one beside a power of two; 1 and widths beyond 65536 from standard on."""
    for widths in WIDTHS.values():
        assert any(n % 2 and n > 1 for n in widths)
        assert any(n in (3, 7, 127, 257, 769) for n in widths)
        assert any(n - 1 in (2**k for k in range(4, 17)) for n in widths)
        assert any(n <= 1024 for n in widths)
        assert tuple(sorted(set(widths))) == widths
    assert 1 in WIDTHS["standard"]
    assert max(WIDTHS["standard"]) > 65536
    assert set(WIDTHS["standard"]) <= set(WIDTHS["deep"])
    assert max(WIDTHS["deep"]) == 2**17


@ALL_FORMATS
def test_weights_hide_nothing(fmt):
    """Weights have both signs, some zeros, some tiny ones, and the others are away from 0 and from 1."""
    made = weights(2000, fmt, 0)
    assert fmt.representable(made).all()
    small = np.abs(made) < 0.01
    others = np.abs(made[~small])
    assert 0.3 < (made > 0).mean() < 0.7
    assert 0.03 < (made == 0).mean() < 0.13
    assert 0.06 < small.mean() < 0.2
    assert others.min() > 0.29
    assert np.abs(others - 1).min() > 0.15
    assert ((made != 0) & small).any() or fmt.p <= 4
    np.testing.assert_array_equal(made, weights(2000, fmt, 0))


def test_a_single_weight_is_neither_zero_nor_tiny():
    """The first weight always shows what is multiplied by it."""
    assert all(abs(weights(1, BF16, seed)[0]) > 0.29 for seed in range(50))


@REAL_FORMATS
def test_offset_weights_lie_around_zero(fmt):
    """With an offset of 1 they are small, so that rounding 1 + w to 16 bits loses a good part of most."""
    made = weights(500, fmt, 0, offset=1.0)
    assert np.abs(made).max() <= 0.5
    assert np.abs(made).min() >= 1e-3 * (1 - 2 * fmt.u)
    assert (BF16.round(1 + made) != 1 + made).mean() > 0.5


@ALL_FORMATS
def test_biases_have_both_signs_and_some_zeros(fmt):
    """Biases stay within 1 and are exact."""
    made = biases(2000, fmt, 0)
    assert fmt.representable(made).all()
    assert 0.3 < (made > 0).mean() < 0.7
    assert 0.03 < (made == 0).mean() < 0.2
    assert np.abs(made).max() <= 1
    assert biases(0, fmt, 0).shape == weights(0, fmt, 0).shape == (0,)


@pytest.mark.parametrize("make", [weights, biases])
def test_parameters_are_drawn_once_and_cannot_be_written(make):
    """The same array comes back for the same size, format and seed, so nobody may change it."""
    made = make(32, BF16, 5)
    assert make(32, BF16, 5) is made
    with pytest.raises(ValueError, match="read-only"):
        made[0] = 1.0
