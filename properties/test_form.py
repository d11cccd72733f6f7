"""Form: the output has the shape and the dtype that the norm and its contract say."""

from __future__ import annotations

import pytest
from hypothesis import given

from normcheck.checks import Context
from normcheck.recipes import Trial
from normcheck.strategies import trials, tried


@pytest.mark.check("output-form")
@given(trial=trials(most=300, rows=1))
def test_output_form(context: Context, trial: Trial) -> None:
    """Whatever the shape, the call gives that shape in the promised dtype."""
    case, output = tried(context, trial)  # raises FormError
    assert case.fold.unfold(output).shape == case.inputs.x.shape
