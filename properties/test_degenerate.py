"""Degenerate rows: all equal, or so large that their squares overflow."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from normcheck.checks import Context
from normcheck.checks.degenerate import constant_verdict, overflow_verdict
from normcheck.recipes import Row, Trial
from normcheck.strategies import holds, rows_of, tried, values, widths


@pytest.mark.check("zero-and-constant-rows")
@given(width=widths(), constant=values(), weight=st.none() | st.integers(0, 2**16))
@example(width=64, constant=0.0, weight=None)
@example(width=1000, constant=1e7, weight=None)  # x*r - mean*r leaves a residue
@example(width=257, constant=0.1, weight=0)  # a variance in one pass is negative: NaN
def test_zero_and_constant_rows(context: Context, width: int, constant: float, weight: int | None) -> None:
    """Rows without spread give the bias, or w*c/S(c) where no mean is subtracted, and never NaN."""
    case, output = tried(context, Trial(width, (Row((constant,)),), weight=weight))
    holds(constant_verdict(context, case, output))


@pytest.mark.check("overflow")
@given(width=widths(most=300), share=st.floats(0, 1), seed=st.integers(0, 2**16))
@example(width=4, share=1.0, seed=0)  # inf - inf
@example(width=256, share=0.05, seed=0)
def test_overflow(context: Context, width: int, share: float, seed: int) -> None:
    """Finite rows whose squares overflow give no NaN and no infinity."""
    trial = Trial(width, (Row("standard", seed),))
    edge = 0.5 * (math.log2(context.compute.max) - math.log2(width))
    top = math.log2(context.x_format.max) - math.log2(width) - 1.0
    assume(edge < top)
    rows = rows_of(context, trial)
    rows = np.where(np.abs(rows) < 0.5, 0.5, rows) / np.abs(rows).max(axis=1, keepdims=True, initial=1.0)
    case, output = tried(context, trial, context.x_format.round(rows * 2.0 ** (edge + share * (top - edge))))
    holds(overflow_verdict(context, case, output, ""))
