"""Accuracy: the figures beside the verdict say what the error is made of."""

from __future__ import annotations

import numpy as np
import pytest

from normcheck import BatchNorm, GroupNorm, Implementation, LayerNorm, Norm
from normcheck.checks import Context
from normcheck.checks.accuracy import _decomposition


@pytest.mark.parametrize("norm", [LayerNorm(), GroupNorm(2), BatchNorm()], ids=lambda norm: norm.name)
def test_the_error_is_split_into_common_mode_gain_and_noise(norm: Norm) -> None:
    """An error of weight * (2u + 3u*n) has a common mode of 2, a gain of 3 and no noise; weights may belong to channels."""
    context = Context(Implementation(lambda *arguments: arguments[0], norm, framework="numpy"), "float32", profile="quick")
    case = context.case("standard", context.shape(4, 64))
    weight, _ = case.affine
    assert weight is not None
    u = case.errors.compute.u
    parts = _decomposition(case, case.certified.hi + weight * (2 * u + 3 * u * case.errors.normalized))
    assert parts == pytest.approx({"common_mode": 2.0, "gain": 3.0, "noise": 0.0}, abs=2.0**-20)


def test_elements_with_a_weight_near_zero_do_not_count() -> None:
    """Where the weight is 0 the error of the output says nothing of n."""
    context = Context(Implementation(lambda *arguments: arguments[0], LayerNorm(), framework="numpy"), "float32")
    case = context.case("standard", context.shape(4, 64))
    weight, _ = case.affine
    assert weight is not None
    assert (np.abs(weight) < 0.1).any()
    output = case.certified.hi + np.where(np.abs(weight) < 0.1, 1.0, 0.0)
    assert _decomposition(case, output)["noise"] == 0
