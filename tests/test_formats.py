"""The formats: limits, spacing, and rounding that is right for every value, exhaustively in 8 and 16 bits."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from normcheck.formats import FORMATS, Format, format_of, to_odd

NARROW = [FORMATS[name] for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")]
LIMITS = {
    "float64": (53, 2.0**-1022, 2.0**-1074, np.finfo(np.float64).max),
    "float32": (24, 2.0**-126, 2.0**-149, float(np.finfo(np.float32).max)),
    "float16": (11, 2.0**-14, 2.0**-24, 65504.0),
    "bfloat16": (8, 2.0**-126, 2.0**-133, 0xFF * 2.0**120),
    "float8_e4m3fn": (4, 2.0**-6, 2.0**-9, 448.0),
    "float8_e5m2": (3, 2.0**-14, 2.0**-16, 57344.0),
}


def positive(fmt: Format) -> np.ndarray:
    """All finite values >= 0 of a narrow format in order, decoded from their bits."""
    bits = np.arange(2 ** (8 * fmt.dtype.itemsize - 1))
    with np.errstate(invalid="ignore"):
        values = bits.astype(f"uint{8 * fmt.dtype.itemsize}").view(fmt.dtype).astype(np.float64)
    return values[np.isfinite(values)]


@pytest.mark.parametrize("name", FORMATS)
def test_limits(name: str) -> None:
    """Precision, smallest and largest values are those of the format's standard."""
    fmt = FORMATS[name]
    assert (fmt.p, fmt.min_normal, fmt.min_subnormal, fmt.max) == LIMITS[name]
    assert fmt.u == 2.0**-fmt.p


@pytest.mark.parametrize("fmt", NARROW, ids=lambda f: f.name)
def test_every_value_is_a_fixed_point(fmt: Format) -> None:
    """Rounding leaves each value of the format alone, sign of zero included."""
    values = positive(fmt)
    for signed in (values, -values):
        assert fmt.round(signed).tobytes() == signed.tobytes()
        assert fmt.representable(signed).all()


@pytest.mark.parametrize("fmt", NARROW, ids=lambda f: f.name)
def test_rounding_around_every_midpoint(fmt: Format) -> None:
    """Below a midpoint rounds down, above it up, and the midpoint to the even neighbour; the values' last bits alternate."""
    values = positive(fmt)
    middle = (values[:-1] + values[1:]) / 2
    even = np.where(np.arange(len(middle)) % 2 == 0, values[:-1], values[1:])
    for sign in (1.0, -1.0):
        assert np.array_equal(fmt.round(sign * np.nextafter(middle, 0.0)), sign * values[:-1])
        assert np.array_equal(fmt.round(sign * middle), sign * even)
        assert np.array_equal(fmt.round(sign * np.nextafter(middle, np.inf)), sign * values[1:])


@pytest.mark.parametrize("fmt", NARROW, ids=lambda f: f.name)
def test_overflow_begins_half_a_spacing_above_the_largest(fmt: Format) -> None:
    """The largest value holds up to half a spacing (ties to even); beyond lies inf, or NaN where the format has none."""
    beyond = np.inf if fmt.has_inf else np.nan
    edge = fmt.max + fmt.ulp(fmt.max) / 2
    assert fmt.round(np.nextafter(edge, 0.0)) == fmt.max
    assert np.array_equal(fmt.round(np.nextafter(edge, np.inf)), beyond, equal_nan=True)
    assert np.array_equal(fmt.round(edge), beyond if fmt.has_inf else fmt.max)
    assert np.array_equal(fmt.round([np.inf, -np.inf, np.nan]), [beyond, -beyond, np.nan], equal_nan=True)


def test_float16_and_float32_agree_with_numpy() -> None:
    """numpy rounds float64 to float32 and float16 once, so random values of all sizes must round alike."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=20000) * np.exp2(rng.integers(-160, 140, 20000))
    for name, dtype in (("float32", np.float32), ("float16", np.float16)):
        with np.errstate(over="ignore"):
            expected = x.astype(dtype).astype(np.float64)
        assert np.array_equal(FORMATS[name].round(x), expected)


def test_bfloat16_rounds_once() -> None:
    """1 + 2**-8 + 2**-40 lies above a midpoint; a detour through float32 would lose that."""
    assert FORMATS["bfloat16"].round(1 + 2.0**-8 + 2.0**-40) == 1 + 2.0**-7


@pytest.mark.parametrize("name", FORMATS)
def test_round_sum_sees_the_second_part(name: str) -> None:
    """At a midpoint, a second part far below float64's resolution decides; without one the tie goes to even."""
    fmt = FORMATS[name]
    one_up = 1 + 2 * fmt.u
    hi, lo = (1.0, fmt.u) if fmt.p == 53 else (1 + fmt.u, 0.0)
    assert fmt.round_sum(hi, lo) == 1.0
    if fmt.p < 53:
        assert fmt.round_sum(hi, 2.0**-80) == one_up
        assert fmt.round_sum(-hi, -(2.0**-80)) == -one_up
        assert fmt.round_sum(hi, -(2.0**-80)) == 1.0
    assert np.array_equal(fmt.round_sum(np.inf, 0.0), np.inf if fmt.has_inf else np.nan, equal_nan=True)


@pytest.mark.parametrize("fmt", NARROW, ids=lambda f: f.name)
def test_round_sum_is_the_rounding_of_the_exact_sum(fmt: Format) -> None:
    """Random pairs next to midpoints, the smallest values included, round as their rational sums do."""
    rng = np.random.default_rng(1)
    values = positive(fmt)
    k = rng.integers(0, len(values) - 1, 300)
    middle = (values[k] + values[k + 1]) / 2
    lo = np.spacing(middle) * rng.choice([-0.5, -1e-9, 0.0, 1e-9, 0.5], 300)
    exact = [Fraction(m) + Fraction(e) for m, e in zip(middle, lo, strict=True)]
    expected = [
        values[i] if s < Fraction(m) or (s == Fraction(m) and i % 2 == 0) else values[i + 1]
        for i, s, m in zip(k, exact, middle, strict=True)
    ]
    assert np.array_equal(fmt.round_sum(middle, lo), expected)


@pytest.mark.parametrize("name", FORMATS)
def test_spacing_and_rounding_are_those_of_whole_units(name: str) -> None:
    """On every exponent of float64, ulp is 2**(e - p + 1) and rounding that of x/ulp to a whole number, as `math` has them."""
    fmt, rng = FORMATS[name], np.random.default_rng(4)
    exponents = np.arange(-1074, 1024)
    x = np.ldexp(rng.uniform(1.0, 2.0, exponents.size), exponents) * rng.choice([-1.0, 1.0], exponents.size)
    unit = [math.ldexp(1.0, max(math.frexp(v)[1] - 1, fmt.emin) - fmt.p + 1) for v in x]
    assert fmt.ulp(x).tolist() == unit
    rounded = [math.copysign(float(round(Fraction(v) / Fraction(u)) * Fraction(u)), v) for v, u in zip(x, unit, strict=True)]
    beyond = np.inf if fmt.has_inf else np.nan
    expected = [r if abs(r) <= fmt.max else math.copysign(beyond, r) for r in rounded]
    assert np.array_equal(fmt.round(x), expected, equal_nan=True)


def test_to_odd_keeps_exact_and_odd_values() -> None:
    """An even value moves to its odd neighbour on the side of the rest, an odd or exact one stays."""
    one, up = 1.0, np.nextafter(1.0, 2.0)
    hi = np.array([one, one, one, up, np.inf])
    lo = np.array([0.0, 1e-30, -1e-30, 1e-30, 1.0])
    assert np.array_equal(to_odd(hi, lo), [one, up, np.nextafter(1.0, 0.0), up, np.inf])


@pytest.mark.parametrize("fmt", NARROW, ids=lambda f: f.name)
def test_neighbours(fmt: Format) -> None:
    """next_up and next_down walk through every value, across zero and binade edges; above the largest is inf."""
    values = positive(fmt)
    line = np.concatenate([-values[:0:-1], values])
    assert np.array_equal(fmt.next_up(line), [*line[1:], np.inf])
    assert np.array_equal(fmt.next_down(line), [-np.inf, *line[:-1]])


@pytest.mark.parametrize("fmt", NARROW, ids=lambda f: f.name)
def test_ulp_is_the_spacing_upwards(fmt: Format) -> None:
    """ulp(x) is the distance from x to the next larger magnitude; at non-finite values it is NaN."""
    values = positive(fmt)
    assert np.array_equal(fmt.ulp(values[:-1]), np.diff(values))
    assert np.array_equal(fmt.ulp(-values[:-1]), np.diff(values))
    assert np.isnan(fmt.ulp([np.inf, np.nan])).all()


@pytest.mark.parametrize("name", FORMATS)
def test_shapes_are_kept(name: str) -> None:
    """Scalars stay scalars, any array keeps its shape and any memory order is accepted."""
    fmt = FORMATS[name]
    turned = np.arange(12.0).reshape(3, 4).T[::2]
    for x in (np.float64(1.0), np.empty(0), turned):
        assert fmt.round(x).shape == fmt.round_sum(x, 0.0 * x).shape == fmt.ulp(x).shape == fmt.next_up(x).shape == np.shape(x)
    assert np.array_equal(fmt.round(turned), turned)


def test_format_of_takes_names_dtypes_and_formats() -> None:
    """A format is found by name, numpy dtype, numpy scalar type, or given as it is."""
    for name, fmt in FORMATS.items():
        assert format_of(name) is format_of(fmt.dtype) is format_of(fmt) is fmt
    assert format_of(np.float32) is FORMATS["float32"]


@pytest.mark.parametrize("dtype", ["int32", "complex64", np.int64, np.dtype(bool), object()])
def test_format_of_refuses_others(dtype: object) -> None:
    """Anything else is refused with the names that would do."""
    with pytest.raises(ValueError, match=r"dtype=.*, but should be one of float64, float32"):
        format_of(dtype)


def test_fractions_of_the_largest_are_exact() -> None:
    """The stored limits are exact rationals of the format: max = (2 - 2**(1-p)) * 2**emax but for e4m3fn's missing top."""
    for fmt in FORMATS.values():
        top = (2 - Fraction(2) ** (1 - fmt.p)) * Fraction(2) ** fmt.emax
        assert Fraction(fmt.max) == (top if fmt.has_inf else Fraction(448))
        assert math.isfinite(fmt.max)
