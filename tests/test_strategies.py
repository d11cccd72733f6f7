"""Strategies: they make what norms and formats allow, and recipes can be written down, pasted and shrunk."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

import normcheck as nc
from normcheck import strategies
from normcheck.checks import Context
from normcheck.formats import FORMATS
from normcheck.implementations import encode
from normcheck.recipes import Row, Trial
from normcheck.results import Outcome, Result

FEW = settings(max_examples=40, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
NARROW = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


@FEW
@given(data=st.data(), dtype=strategies.dtypes(NARROW))
def test_values_are_exact_and_finite(data: st.DataObject, dtype: str) -> None:
    """Every value is one of the format's, and finite."""
    value = data.draw(strategies.values(dtype))
    assert FORMATS[dtype].representable(value).all()


@pytest.mark.parametrize("wanted", [lambda v, f: v == f.max, lambda v, f: v == f.min_subnormal, lambda v, f: v == 1 + 2 * f.u])
def test_values_reach_the_limits(wanted: object) -> None:
    """The limits of a format and the neighbours of 1 are among its values."""
    fmt = FORMATS["bfloat16"]
    assert find(strategies.values("bfloat16"), lambda value: wanted(value, fmt), settings=settings(FEW, max_examples=5000))


def test_values_shrink_to_whole_numbers() -> None:
    """The simplest value above a hundred is a plain one."""
    assert find(strategies.values("float32"), lambda value: value > 100).is_integer()


@FEW
@given(data=st.data(), dtype=strategies.dtypes(NARROW))
def test_rows_have_the_dtype_and_squares_that_fit(data: st.DataObject, dtype: str) -> None:
    """Rows come in the format's numpy dtype, and no sum of squares overflows float32."""
    rows = data.draw(strategies.rows(dtype, width=strategies.widths(most=300)))
    assert rows.dtype == FORMATS[dtype].dtype
    values = rows.astype(np.float64)
    assert (np.square(values).sum(axis=1) <= FORMATS["float32"].max).all()


@FEW
@given(data=st.data(), norm=strategies.norms())
def test_inputs_fit_their_norm(data: st.DataObject, norm: nc.Norm) -> None:
    """Whatever the norm, x folds, and weight and bias have as many elements as it asks for."""
    given_ = data.draw(strategies.inputs(norm, "bfloat16", most=70))
    fold = norm.fold(given_["x"].shape)
    for name in set(given_) - {"x"}:
        norm.check_parameter(name, given_[name], fold)
    assert ("bias" in given_) == norm.has_bias


@FEW
@given(data=st.data(), norm=strategies.norms())
def test_layouts_can_be_made(data: st.DataObject, norm: nc.Norm) -> None:
    """An array of a shape can be laid out in every layout that is drawn for it."""
    shape = data.draw(strategies.shapes(norm, most=40))
    layout = data.draw(strategies.layouts(shape))
    assert encode(np.zeros(shape), "float32", layout).shape == shape


@pytest.mark.parametrize("least", [0, 9])
def test_widths_refuse_impossible_bounds(least: int) -> None:
    """Bounds between which there is no width are refused."""
    with pytest.raises(ValueError, match=f"widths from {least} to 8, but should be"):
        strategies.widths(least, 8)


def test_dtypes_refuse_unknown_names() -> None:
    """A name that is no format's is refused."""
    with pytest.raises(ValueError, match="dtype='float12', but should be one of"):
        strategies.dtypes(["float12"])


@FEW
@given(trial=strategies.trials())
def test_trials_can_be_pasted_and_stored(trial: Trial) -> None:
    """What is printed of a trial makes it again, and so does its JSON."""
    assert eval(repr(trial), {"Trial": Trial, "Row": Row}) == trial  # noqa: S307 (our own text)
    assert Trial.from_dict(json.loads(json.dumps(trial.to_dict()))) == trial


@FEW
@given(trial=strategies.trials(most=40), dtype=strategies.dtypes(NARROW))
def test_trials_are_the_same_every_time(trial: Trial, dtype: str) -> None:
    """A trial gives the same case whenever it is made, with values that the dtype has."""
    context = Context(nc.Implementation(lambda x, w, b: x, nc.LayerNorm(), framework="numpy", dtypes=(dtype,)), dtype)
    one, other = trial.case(context), trial.case(context)
    assert np.array_equal(one.rows, other.rows)
    assert FORMATS[dtype].representable(one.rows).all()


def test_rows_replace_elements_after_scaling() -> None:
    """The background is scaled, then shifted; then elements are replaced, counted modulo the width."""
    row = Row((1.0, 2.0), exponent=2, shift=0.5, edits=((-1, 7.0), (6, 3.0)))
    assert row.values(5, FORMATS["float32"]).tolist() == [4.5, 3.0, 4.5, 8.5, 7.0]


def test_rows_stay_clear_of_overflow() -> None:
    """A row whose squares would overflow the arithmetic is scaled down by a power of two."""
    made = Row((3e38,)).values(7, FORMATS["bfloat16"])
    assert np.square(made).sum() <= FORMATS["float32"].max
    assert math.frexp(made[0])[0] == math.frexp(float(FORMATS["bfloat16"].round(3e38)))[0]


def test_rows_refuse_unknown_backgrounds() -> None:
    """A base that is neither a regime nor values is refused by name."""
    with pytest.raises(ValueError, match="base='wild', but should be values or one of standard"):
        Row("wild")


def test_failing_results_fail_with_their_message() -> None:
    """``holds`` fails with the message of the check."""
    bad = Result("accuracy", "mine", "LayerNorm", "float32", Outcome.FAILED, error=3.0, message="y=3, but should be 0")

    @FEW
    @given(st.just(bad))
    def searched(result: Result) -> None:
        strategies.holds(result)

    with pytest.raises(AssertionError, match="accuracy: y=3, but should be 0"):
        searched()
