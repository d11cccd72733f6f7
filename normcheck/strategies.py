"""Hypothesis strategies for the inputs of norms: rows, shapes, layouts, weights, dtypes, norms, and whole trials.

They mix the regimes, rows with a structure, values next to rounding boundaries and values next to the limits of the formats, and
shrink to few, short rows of zeros and ones. Importing this module imports Hypothesis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from hypothesis import reject, target
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from normcheck import regimes
from normcheck.checks import Context, SkipCaseError
from normcheck.checks.cases import Case
from normcheck.formats import FORMATS, Array, Format, format_of
from normcheck.implementations import LAYOUTS, VIEWS, CallError
from normcheck.norms import NORMS, PLACEMENTS, Norm
from normcheck.recipes import Row, Trial
from normcheck.results import Result
from normcheck.variation import BLOCKS

_SEEDS = 2**16 - 1
_GRADED = sorted(name for name, regime in regimes.REGIMES.items() if regime.graded)

T = TypeVar("T")


def dtypes(names: Iterable[str] = ("float32", "bfloat16", "float16")) -> SearchStrategy[str]:
    """Names of dtypes, the first as the simplest.

    Raises
    ------
    ValueError : for a name that is no format's
    """
    return st.sampled_from([format_of(name).name for name in names])


def values(dtype: Any = "float32") -> SearchStrategy[float]:
    """Finite values of a format: whole and round ones, any, neighbours of powers of two, halves of ulps, and the limits.

    Raises
    ------
    ValueError : for a dtype that is no format's
    """
    fmt = format_of(dtype)

    def exact(value: float) -> float:
        return float(np.clip(fmt.round(np.clip(value, -fmt.max, fmt.max)), -fmt.max, fmt.max))

    exponents = st.integers(max(fmt.emin, -24), min(fmt.emax, 24))
    powers = exponents.map(lambda k: math.ldexp(1.0, k))
    beside = st.builds(lambda power, step: float(step(power)), powers, st.sampled_from([fmt.next_up, fmt.next_down]))
    sizes = st.one_of(
        st.sampled_from([0.0, 1.0, 2.0, 10.0, 100.0, 1e3, 1e4]),
        st.integers(0, 2 ** min(fmt.p, 24)).map(float),
        st.floats(1e-3, 1e5),
        powers,
        beside,
        # one bit more than fits beside 1: whatever adds 1 meets a tie
        exponents.map(lambda k: math.ldexp(1 + 2 * fmt.u, k)),
        st.sampled_from([fmt.max, fmt.min_normal, fmt.min_subnormal, 1 - fmt.u, math.sqrt(FORMATS["float32"].max) / 64]),
    ).map(exact)
    return st.builds(lambda size, negative: -size if negative else size, sizes, st.booleans())


def widths(least: int = 1, most: int = 2049) -> SearchStrategy[int]:
    """Widths of rows: small ones, any up to 300, and the neighbours of multiples of the sizes in which kernels work.

    Raises
    ------
    ValueError : for bounds between which there is none
    """
    if not 1 <= least <= most:
        raise ValueError(f"widths from {least} to {most}, but should be from 1 or more to no less")
    blocks, times, beside = st.sampled_from(BLOCKS), st.integers(1, 4), st.integers(-2, 2)
    near = st.builds(lambda block, count, off: block * count + off, blocks, times, beside)
    return st.one_of(
        st.integers(least, min(most, least + 8)),
        st.integers(least, min(most, max(least, 300))),
        near.map(lambda width: min(max(width, least), most)),
    )


def recipes(dtype: Any = "float32") -> SearchStrategy[Row]:
    """Rows written down as `normcheck.recipes.Row`: repeated values or a regime, scaled, shifted, with elements replaced."""
    value = values(dtype)
    repeated = st.lists(value, min_size=1, max_size=4).map(tuple)
    edits = st.lists(st.tuples(st.one_of(st.sampled_from([0, -1]), st.integers(0, _SEEDS)), value), max_size=3).map(tuple)
    plain = st.builds(Row, base=repeated, exponent=_mostly(0, st.integers(-8, 8)), shift=_mostly(0.0, value), edits=edits)
    drawn = st.builds(
        Row,
        base=st.sampled_from(_GRADED),
        seed=st.integers(0, _SEEDS),
        exponent=_mostly(0, st.integers(-8, 8)),
        shift=_mostly(0.0, value),
        edits=_mostly((), edits),
    )
    return plain | drawn


def trials(most: int = 2049, rows: int = 2, dtype: Any = "float32") -> SearchStrategy[Trial]:
    """Calls written down as `normcheck.recipes.Trial`, for whatever norm they are tried on.

    Parameters
    ----------
    most : the greatest width
    rows : the greatest number of rows that differ
    dtype : whose values are preferred; a trial can be tried in any dtype
    """
    return st.builds(
        Trial,
        width=widths(most=most),
        rows=st.lists(recipes(dtype), min_size=1, max_size=rows).map(tuple),
        rank=_mostly(None, st.integers(2, 5)),
        weight=st.none() | st.integers(0, _SEEDS),
        bias=_mostly(None, st.integers(0, _SEEDS)),
    )


def rows(
    dtype: Any = "float32", width: int | SearchStrategy[int] | None = None, count: int = 4, compute: Any = "float32"
) -> SearchStrategy[npt.NDArray[Any]]:
    """Arrays (R, D) of the format's numpy dtype, R from 1 to ``count``.

    Parameters
    ----------
    dtype : of the values
    width : D, or a strategy for it; None for `widths`
    count : the greatest R
    compute : dtype of the arithmetic under judgement, in which the sum of squares of a row is kept finite

    Raises
    ------
    ValueError : for a dtype that is no format's
    """
    fmt, inner = format_of(dtype), format_of(compute)
    wide = widths() if width is None else st.just(width) if isinstance(width, int) else width
    made = st.lists(recipes(fmt), min_size=1, max_size=count)
    return st.builds(lambda some, across: _typed([row.values(across, fmt, inner) for row in some], fmt), made, wide)


def weights(size: int, dtype: Any = "float32", offset: float = 0.0) -> SearchStrategy[npt.NDArray[Any]]:
    """Arrays (size,) for a weight: ones (zeros for an offset of 1), or mixed signs and sizes as `normcheck.regimes.weights`."""
    fmt = format_of(dtype)
    usual = _typed(np.full(size, 1.0 - offset), fmt)
    drawn = st.integers(0, _SEEDS).map(lambda seed: _typed(regimes.weights(size, fmt, seed, offset), fmt))
    return st.builds(usual.copy) | drawn


def biases(size: int, dtype: Any = "float32") -> SearchStrategy[npt.NDArray[Any]]:
    """Arrays (size,) for a bias: zeros, or values between -1 and 1."""
    fmt = format_of(dtype)
    drawn = st.integers(0, _SEEDS).map(lambda seed: _typed(regimes.biases(size, fmt, seed), fmt))
    return st.builds(lambda: _typed(np.zeros(size), fmt)) | drawn


def norms(kinds: Iterable[str] | None = None) -> SearchStrategy[Norm]:
    """Norms with settings of every kind.

    Parameters
    ----------
    kinds : names of norms; None for all

    Raises
    ------
    KeyError : for a name that no norm has
    """
    return st.one_of([_settings(NORMS[name]) for name in (kinds or NORMS)])


def shapes(norm: Norm, most: int = 300, rows: int = 8, channel_axis: int = 1) -> SearchStrategy[tuple[int, ...]]:
    """Shapes of x that a norm can take.

    Parameters
    ----------
    most : the greatest width of rows
    rows : about the greatest number of rows
    channel_axis : where the channels are: 1 or -1
    """
    groups = getattr(norm, "num_groups", 1)
    fixed = getattr(norm, "normalized_shape", None)
    wide = st.just(math.prod(fixed)) if fixed else widths(1 + norm.ddof, most)
    count = st.integers(1, max(1, rows // groups)).map(lambda times: times * groups)
    made = st.builds(_shape(norm, channel_axis), count, wide, st.none() | st.integers(2, 5))
    return made.filter(lambda shape: shape is not None)


def layouts(shape: tuple[int, ...], views: bool = True) -> SearchStrategy[str]:
    """Names of layouts that an array of this shape has; ``views`` adds those with gaps, without ``expanded``."""
    dense = [name for name in LAYOUTS if name != "channels_last" or len(shape) >= 3]
    return st.sampled_from(dense + [name for name in VIEWS if name != "expanded"] * (views and bool(shape)))


def inputs(norm: Norm, dtype: Any = "float32", most: int = 300) -> SearchStrategy[dict[str, Any]]:
    """What a norm is called with: ``x`` in some shape, ``weight``, and ``bias`` where the norm has one, as numpy arrays."""
    fmt = format_of(dtype)

    def of(shape: tuple[int, ...]) -> SearchStrategy[dict[str, Any]]:
        fold = norm.fold(shape)
        size = norm.parameter_size(fold)

        def x(some: list[Row]) -> npt.NDArray[Any]:
            made = [row.values(fold.width, fmt) for row in some]
            return _typed(fold.unfold(np.asarray([made[r % len(made)] for r in range(fold.rows)])), fmt)

        given = {"x": st.lists(recipes(fmt), min_size=1, max_size=4).map(x), "weight": weights(size, fmt, norm.weight_offset)}
        return st.fixed_dictionaries(given | ({"bias": biases(size, fmt)} if norm.has_bias else {}))

    return shapes(norm, most).flatmap(of)


def tried(context: Context, trial: Trial, rows: Array | None = None) -> tuple[Case, Array]:
    """The case of a trial and its output rows (R, D). An example that the code does not take or refuses is given up.

    Parameters
    ----------
    rows : (R, D), in the place of the trial's own

    Raises
    ------
    FormError : if the output's shape or dtype is not as promised
    """
    try:
        case = trial.case(context, rows)
        return case, context.run(case)
    except (SkipCaseError, CallError):
        reject()
        raise


def rows_of(context: Context, trial: Trial) -> Array:
    """The rows (R, D) of a trial in a context. An example that the code does not take is given up."""
    try:
        return trial.values(context, trial.shape(context))
    except SkipCaseError:
        reject()
        raise


def holds(*results: Result) -> None:
    """Let the search climb along error / tolerance, and fail where a result does, with its message and its snippet.

    To be called once in a test; the largest ratio counts.
    """
    ratios = [result.ratio for result in results if result.ratio is not None]
    if ratios:
        target(min(max(ratios), 1e30), label="error / tolerance")
    for result in results:
        snippet = "" if result.witness is None else f"\n\n{result.witness.snippet}"
        assert not result.outcome.bad, f"{result.check}: {result.message}{snippet}"


def _mostly(usual: T, others: SearchStrategy[T]) -> SearchStrategy[T]:
    """The usual value two times out of three, and when shrunk."""
    return st.one_of(st.just(usual), st.just(usual), others)


def _typed(values_: npt.ArrayLike, fmt: Format) -> npt.NDArray[Any]:
    return np.asarray(np.asarray(values_, np.float64).astype(fmt.dtype))


def _settings(kind: type[Norm]) -> SearchStrategy[Norm]:
    given: dict[str, SearchStrategy[Any]] = {"eps": st.sampled_from([1e-5, 1e-6, 1e-3, 1e-12])}
    names = getattr(kind, "__dataclass_fields__", {})
    others: dict[str, SearchStrategy[Any]] = {
        "eps_placement": _mostly("inside", st.sampled_from([name for name in PLACEMENTS if name != "none"])),
        "ddof": _mostly(0, st.just(1)),
        "weight_offset": _mostly(0.0, st.just(1.0)),
        "num_groups": st.sampled_from([1, 2, 4]),
        "fraction": st.sampled_from([1.0, 0.5, 0.0625]),
    }
    return st.builds(kind, **given, **{name: strategy for name, strategy in others.items() if name in names})


def _shape(norm: Norm, channel_axis: int) -> Callable[[int, int, int | None], tuple[int, ...] | None]:
    def made(count: int, width: int, rank: int | None) -> tuple[int, ...] | None:
        try:
            shape = norm.shape_of(count, width, rank, channel_axis)
            norm.fold(shape, channel_axis)
        except ValueError:
            return None
        return shape

    return made
