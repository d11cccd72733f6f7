"""Regimes: the named families of rows on which norms are judged, with the weights and biases that go with them.

Each row is exact in the target format, finite, and a function of the regime's name, the shape, the format and the seed alone.
Rows of one regime differ: they cycle through ratios, sizes, constants or kinds, the most revealing first, so that a few rows
already show what many would.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from normcheck.formats import FORMATS, Array, Format

WIDTHS: dict[str, tuple[int, ...]] = {
    "quick": (3, 64, 257, 1000, 2049),
    "standard": (1, 2, 3, 7, 33, 64, 127, 257, 769, 1000, 1024, 4097, 65537),
    "deep": (
        *(1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 511, 768, 769, 1000, 1023),
        *(1024, 1025, 2047, 2048, 2049, 3000, 4095, 4096, 4097, 5003, 8191, 8193, 16385, 32769, 65535, 65536, 65537),
        *(131071, 131072),
    ),
}


@dataclass(frozen=True)
class Draw:
    """What the rows of a regime are made from.

    Attributes
    ----------
    rng : the generator
    rows, width : R and D
    fmt : storage format
    compute : format of the arithmetic under judgement, never narrower than ``fmt``
    """

    rng: np.random.Generator
    rows: int
    width: int
    fmt: Format
    compute: Format

    def normal(self) -> Array:
        """(R, D) standard normal."""
        return self.rng.standard_normal((self.rows, self.width))

    def signs(self, width: int = 1) -> Array:
        """(R, width) of -1 and 1."""
        return self.rng.choice([-1.0, 1.0], (self.rows, width))

    def cycle(self, values: npt.ArrayLike) -> Array:
        """(R, 1): the values over and over."""
        return np.resize(np.asarray(values, np.float64), (self.rows, 1)) if self.rows else np.empty((0, 1))

    @property
    def largest(self) -> float:
        """A size whose square, and a hundred of them, the arithmetic can hold."""
        return min(self.fmt.max, float(np.sqrt(self.compute.max)) / 16)


@dataclass(frozen=True)
class Regime:
    """A named family of rows.

    Attributes
    ----------
    name : hyphenated, such as ``"large-mean"``
    statement : what its rows are, in one line
    graded : whether it enters the grade
    bias : whether a bias may be added without hiding what the rows are there to show
    make : makes the (R, D) values, not yet rounded
    """

    name: str
    statement: str
    graded: bool
    bias: bool
    make: Callable[[Draw], Array]

    def rows(self, rows: int, width: int, fmt: Format, seed: int, compute: Format = FORMATS["float32"]) -> Array:
        """Rows of this regime.

        Parameters
        ----------
        rows, width : R >= 0 and D >= 1
        fmt : storage format; every value is exact in it
        seed : >= 0; same seed, same rows
        compute : format of the arithmetic under judgement, which limits how large values may grow; ``fmt`` if that is wider

        Returns
        -------
        (R, D) float64 array of finite values

        Raises
        ------
        ValueError : for a negative R or seed, or D < 1
        """
        _check("rows", rows)
        _check("width", width, 1)
        rng = _generator(self.name, fmt, seed, rows, width)
        made = self.make(Draw(rng, rows, width, fmt, fmt if fmt.p > compute.p else compute))
        return fmt.round(np.clip(made, -fmt.max, fmt.max))


REGIMES: dict[str, Regime] = {}


@functools.lru_cache(maxsize=64)
def weights(size: int, fmt: Format, seed: int, offset: float = 0.0) -> Array:
    """Weights of mixed sign and away from 1, one in sixteen exactly 0 and one in sixteen near 1e-3, exact in the format.

    Parameters
    ----------
    size : number of weights; the first is never 0 or tiny
    fmt, seed : as for `Regime.rows`
    offset : where it is not 0 (Gemma's 1 + w), the weights lie around 0, with |w| from 1e-3 to 0.5, so that it matters how
        offset + w is formed

    Returns
    -------
    (size,) float64 array that is kept for the next call, and so cannot be written

    Raises
    ------
    ValueError : for a negative size or seed
    """
    _check("size", size)
    rng = _generator("weights", fmt, seed, size)
    sign = rng.choice([-1.0, 1.0], size)
    if offset != 0.0:
        return _kept(fmt.round(sign * _log_uniform(rng, 1e-3, 0.5, size)))
    amount = np.where(rng.random(size) < 0.5, rng.uniform(0.3, 0.8, size), rng.uniform(1.25, 2.5, size))
    kind = rng.integers(0, 16, size)
    kind[:1] = 2
    return _kept(fmt.round(sign * np.select([kind == 0, kind == 1], [0.0, amount * 1e-3], amount)))


@functools.lru_cache(maxsize=64)
def biases(size: int, fmt: Format, seed: int) -> Array:
    """Biases between -1 and 1, one in sixteen exactly 0, exact in the format; kept as weights are.

    Raises
    ------
    ValueError : for a negative size or seed
    """
    _check("size", size)
    rng = _generator("biases", fmt, seed, size)
    return _kept(fmt.round(np.where(rng.integers(0, 16, size) == 0, 0.0, rng.uniform(-1.0, 1.0, size))))


def _kept(made: Array) -> Array:
    made.flags.writeable = False
    return made


def _check(name: str, value: int, least: int = 0) -> None:
    if value < least:
        raise ValueError(f"{name}={value}, but should be >= {least}")


def _generator(name: str, fmt: Format, seed: int, *sizes: int) -> np.random.Generator:
    _check("seed", seed)
    words = (zlib.crc32(name.encode()), zlib.crc32(fmt.name.encode()), seed, *sizes)
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))


def _log_uniform(rng: np.random.Generator, low: float, high: float, shape: int | tuple[int, ...]) -> Array:
    return np.exp(rng.uniform(np.log(low), np.log(high), shape))


def _regime(name: str, statement: str, graded: bool = True, bias: bool = True) -> Callable[[Callable[[Draw], Array]], None]:
    def add(make: Callable[[Draw], Array]) -> None:
        REGIMES[name] = Regime(name, statement, graded, bias, make)

    return add


@_regime("standard", "standard normal")
def _standard(draw: Draw) -> Array:
    return draw.normal()


@_regime("large-mean", "normal, mean/std from 1e1 to 1e6 or as far as one ulp of the mean is no more than the std")
def _large_mean(draw: Draw) -> Array:
    top = min(1e6, 2.0 ** (draw.fmt.p - 1))
    ratios = np.geomspace(min(10.0, top / 2), top, 6)[[2, 5, 3, 1, 4, 0]]
    scale = _log_uniform(draw.rng, 0.5, 2.0, (draw.rows, 1)) * draw.signs()
    return np.asarray(scale * (draw.cycle(ratios) + draw.normal()))


@_regime("sparse-deviation", "a random constant per row, but for 2, 4, 16 or 48 elements that are one step off it")
def _sparse_deviation(draw: Draw) -> Array:
    # with a step of less than half the bits of the arithmetic the condition number would leave nothing to judge
    bits = min(draw.fmt.p, draw.compute.p // 2 - 1)
    # odd, so that squares have all the bits that they can
    constant = (2 * draw.rng.integers(2 ** (bits - 2), 2 ** (bits - 1) - 1, (draw.rows, 1)) + 1) * draw.signs()
    many = np.minimum(draw.cycle([4, 16, 2, 48]), draw.width // 2)
    rank = np.argsort(np.argsort(draw.rng.random((draw.rows, draw.width)), axis=1), axis=1)
    made = constant + np.where(rank < many, draw.signs(draw.width), 0.0)
    return np.asarray(made * 2.0 ** draw.rng.integers(-3, 1, (draw.rows, 1)))


@_regime("outlier", "normal with one or three elements of 1e3, 1e5 or near the largest, at the last, first or random positions")
def _outlier(draw: Draw) -> Array:
    size = np.minimum(draw.cycle([1e3, np.inf, 1e5]), draw.largest) * draw.rng.uniform(0.9, 1.0, (draw.rows, 1)) * draw.signs()
    places = draw.rng.integers(0, draw.width, (draw.rows, 3))
    places[0::4] = draw.width - 1
    places[1::4] = places[1::4, :1]
    places[2::4] = 0
    places[3::4, 2] = draw.width - 1
    made = draw.normal()
    np.put_along_axis(made, places, np.broadcast_to(size, places.shape), axis=1)
    return made


@_regime("heavy-tail", "standard Cauchy")
def _heavy_tail(draw: Draw) -> Array:
    return np.clip(draw.rng.standard_cauchy((draw.rows, draw.width)), -draw.largest, draw.largest)


@_regime("constant", "one constant per row: near 0.1, whole, half-way and large ones, a random one, and near the largest")
def _constant(draw: Draw) -> Array:
    largest = min(draw.fmt.max, float(np.sqrt(draw.compute.max / draw.width)) / 2)
    near, some = draw.rng.uniform(0.1, 0.2), np.exp(draw.rng.uniform(-5.0, 5.0))
    values = np.minimum([1e5, near, 14.0, 1e7, 1234.5, some, 3333.3, 1.0 + 2 * draw.fmt.u, np.inf], largest)
    return np.repeat(draw.cycle(values) * draw.signs(), draw.width, axis=1)


@_regime("near-constant", "a random constant per row, all elements within two steps of it; the step is one ulp and larger ones")
def _near_constant(draw: Draw) -> Array:
    p = draw.fmt.p
    step = 2.0 ** -draw.cycle([p // 2, p - 1, 3 * p // 4])
    steps = draw.rng.integers(-2, 3, (draw.rows, draw.width))
    constant = 2.0 ** draw.rng.integers(-1, 7, (draw.rows, 1)) * draw.signs()
    return np.asarray(constant * (draw.rng.uniform(1.25, 1.75, (draw.rows, 1)) + step * steps))


@_regime("tiny", "normal times 1e-3 to 1e-40, as far as storage and arithmetic stay clear of their subnormals", bias=False)
def _tiny(draw: Draw) -> Array:
    least = max(1e-40, 64 * draw.fmt.min_subnormal, 2.0**20 * draw.compute.min_normal)
    scale = np.geomspace(max(1e-3, least), least, 6)[[1, 5, 0, 2, 4, 3]]
    normal = draw.normal()
    return np.asarray(draw.cycle(scale) * np.copysign(np.maximum(np.abs(normal), 2.0**-6), normal))


@_regime("subnormal", "normal, at the smallest subnormals, amid them and at the smallest normals", graded=False, bias=False)
def _subnormal(draw: Draw) -> Array:
    least, normal = draw.fmt.min_subnormal, draw.fmt.min_normal
    return np.asarray(draw.cycle([min(50 * least, normal / 4), normal / 4, normal]) * draw.normal())


@_regime("huge", "sums of squares at 0.45 and 0.05 of the arithmetic's largest value, or elements up to the format's largest")
def _huge(draw: Draw) -> Array:
    made = draw.rng.uniform(0.5, 1.0, (draw.rows, draw.width)) * draw.signs(draw.width)
    # every other row has a mean of the size of its elements
    made[1::2] += 2.0
    made /= np.max(np.abs(made), axis=1, keepdims=True)
    share = draw.cycle([0.45, 0.05, 0.05, 0.45])
    limit = np.sqrt(share * draw.compute.max) / np.sqrt(np.sum(made**2, axis=1, keepdims=True))
    return np.asarray(made * np.minimum(limit, np.sqrt(share / 0.45) * draw.fmt.max))


@_regime("exact-integer", "whole numbers with sum 0, whose squares add up exactly in any order, times 1 and 2**-12", bias=False)
def _exact_integer(draw: Draw) -> Array:
    most = max(1, min(15, 2**draw.fmt.p - 1, int(np.sqrt(2.0**draw.compute.p / draw.width))))
    half = draw.rng.integers(1, most + 1, (draw.rows, draw.width // 2)).astype(np.float64)
    middle = np.zeros((draw.rows, draw.width % 2))
    made = draw.rng.permuted(np.concatenate([half, -half, middle], axis=1), axis=1)
    return np.asarray(made * draw.cycle([1.0, max(2.0**-12, draw.fmt.min_subnormal)]))


@_regime("structured", "sorted, blocks, ramp, alternating, outliers, log-normal, multi-scale, quantized, steps; of many scales")
def _structured(draw: Draw) -> Array:
    made = np.empty((draw.rows, draw.width))
    for r in range(draw.rows):
        made[r] = _SHAPES[5 * r % len(_SHAPES)](draw.rng, draw.width)
    often = draw.rng.random((draw.rows, 1)) < 0.3
    return np.asarray(made * np.where(often, _log_uniform(draw.rng, 1e-4, 10.0, (draw.rows, 1)), 1.0))


def _power(rng: np.random.Generator, low: float, high: float) -> float:
    return float(10.0 ** rng.uniform(low, high))


def _sorted(rng: np.random.Generator, width: int) -> Array:
    return np.sort(rng.standard_normal(width)) * _power(rng, -2, 3)


def _blocks(rng: np.random.Generator, width: int) -> Array:
    level = np.repeat(rng.standard_normal(width // 16 + 1) * _power(rng, -2, 3), 16)[:width]
    return level + rng.standard_normal(width) * _power(rng, -4, 0)


def _ramp(rng: np.random.Generator, width: int) -> Array:
    return np.linspace(0.0, _power(rng, -2, 3), width) + 1e-3 * rng.standard_normal(width)


def _alternating(rng: np.random.Generator, width: int) -> Array:
    return _power(rng, -2, 3) * (-1.0) ** np.arange(width) + rng.standard_normal(width)


def _some_outliers(rng: np.random.Generator, width: int) -> Array:
    made = rng.standard_normal(width)
    made[rng.integers(0, width, 3)] *= _power(rng, 1, 5)
    return made


def _log_normal(rng: np.random.Generator, width: int) -> Array:
    return np.exp(rng.standard_normal(width) * rng.uniform(0.5, 4))


def _multi_scale(rng: np.random.Generator, width: int) -> Array:
    return rng.standard_normal(width) * 10.0 ** rng.uniform(-3, 3, width)


def _quantized(rng: np.random.Generator, width: int) -> Array:
    return np.asarray(_power(rng, -2, 3) * (1.0 + rng.integers(-3, 4, width) * 2.0 ** -float(rng.integers(3, 12))))


def _steps(rng: np.random.Generator, width: int) -> Array:
    level = np.where(np.arange(width) < width * rng.random(), _power(rng, -2, 3), 0.0)
    return np.asarray(level + rng.standard_normal(width) * _power(rng, -4, 0))


_SHAPES = (_sorted, _blocks, _ramp, _alternating, _some_outliers, _log_normal, _multi_scale, _quantized, _steps)
