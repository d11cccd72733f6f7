"""Accuracy: every output lies within the bound that its own input gives."""

from __future__ import annotations

import pytest
from hypothesis import example, given

from normcheck.checks import Context
from normcheck.checks.comparing import held
from normcheck.recipes import Row, Trial
from normcheck.strategies import holds, trials, tried


@pytest.mark.check("accuracy")
@given(trial=trials())
@example(trial=Trial(3, (Row("sparse-deviation", seed=31839),)))  # a variance in one pass
@example(trial=Trial(31, (Row((0.1,), edits=((0, 45536.0),)),)))  # a variance in one pass, shifted by the first element
@example(trial=Trial(1023, (Row(edits=((-1, -7.0),)),)))  # outputs clipped at 30; the last element dropped
@example(trial=Trial(257, (Row("standard", exponent=3, shift=3.3),)))  # statistics rounded to 16 bits
def test_accuracy(context: Context, trial: Trial) -> None:
    """Whatever the row, |y_hat - y| is at most E plus half an ulp."""
    case, output = tried(context, trial)
    holds(held(context, "accuracy", case, output))
