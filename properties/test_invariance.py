"""Invariance: what a change of scale or of origin does to the output, beside rounding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from normcheck.checks import Context
from normcheck.checks.invariance import compare, rescaled
from normcheck.formats import Array
from normcheck.recipes import Row, Trial, excess
from normcheck.results import Outcome
from normcheck.strategies import holds, rows_of, trials, tried


def multiplied(context: Context, rows: Array, factor: float) -> Array:
    """The rows times a power of two, if that is exact and their squares do not overflow: ``overflow`` speaks of those."""
    made = rows * factor
    assume(context.x_format.representable(made).all())
    assume(not any(excess(row, context.x_format, context.compute) for row in made))
    return made


@pytest.mark.check("scale-invariance")
@given(trial=trials(), power=st.integers(-12, 12), sign=st.sampled_from([1.0, -1.0]))
@example(trial=Trial(64, (Row("standard"),), weight=0), power=-8, sign=-1.0)  # eps in the wrong place
@example(trial=Trial(1000, (Row("large-mean", 53, exponent=-4),), weight=0), power=-11, sign=1.0)  # 16-bit statistics
def test_scale_invariance(context: Context, trial: Trial, power: int, sign: float) -> None:
    """y(a*x) - sign(a)*y(x) is what eps makes it, for a = 2**k and -2**k."""
    trial = replace(trial, bias=None)
    plain = tried(context, trial)
    factor = sign * 2.0**power
    moved = tried(context, trial, multiplied(context, plain[0].rows, factor))
    holds(compare(context, plain, moved, f"{factor!r}*x", sign=sign).result(context, "scale-invariance", ""))


@pytest.mark.check("power-of-two-scaling")
@given(trial=trials(), power=st.integers(-30, 30))
@example(trial=Trial(64, (Row("large-mean", 40, exponent=-8),), weight=0), power=-12)  # 16-bit statistics
def test_power_of_two_scaling(context: Context, trial: Trial, power: int) -> None:
    """y(2**k * x; 4**k * eps) has the bits of y(x; eps), or both lie within their bounds."""
    trial = replace(trial, bias=None)
    scaled = rescaled(context, power)
    assume(scaled is not None)
    plain = tried(context, trial)
    elsewhere = replace(context, implementation=scaled)
    moved = tried(elsewhere, trial, multiplied(context, plain[0].rows, 2.0**power))
    assume((plain[0].errors.judged() & moved[0].errors.judged()).all())
    if not np.array_equal(moved[1], plain[1]):
        call = f"2**{power}*x; eps={elsewhere.norm.eps!r}"
        holds(compare(elsewhere, plain, moved, call).result(elsewhere, "power-of-two-scaling", "", Outcome.WARNED))


@pytest.mark.check("shift-invariance")
@given(trial=trials(), share=st.floats(-1, 1))
@example(trial=Trial(64, (Row(base=(1.0, -1.0)),)), share=1.0)  # a variance in one pass
@example(trial=Trial(257, (Row("standard", exponent=3),), weight=0), share=0.7)  # 16-bit statistics
def test_shift_invariance(context: Context, trial: Trial, share: float) -> None:
    """y(x + t) = y(x) for whole numbers x and t so small that x + t is exact."""
    trial = replace(trial, bias=None)
    most = 2.0 ** (context.x_format.p - 2)
    rows = np.rint(np.clip(rows_of(context, trial), -most, most))
    shift = float(np.rint(share * most))
    plain, moved = tried(context, trial, rows), tried(context, trial, rows + shift)
    holds(compare(context, plain, moved, f"x + {shift!r}").result(context, "shift-invariance", ""))
