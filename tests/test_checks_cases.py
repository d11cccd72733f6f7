"""Cases: what is known about rows is found out once, whatever shape they come in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from normcheck import BatchNorm, Implementation
from normcheck.checks import Context
from normcheck.checks.cases import forget


def context() -> Context:
    """BatchNorm of numpy arrays in float32."""
    return Context(Implementation(lambda *arguments: arguments[0], BatchNorm(), framework="numpy"), "float32")


def test_shapes_that_fold_to_the_same_rows_share_values_and_bounds() -> None:
    """128 samples of 8 channels, and 8 samples of 8 channels with 16 pixels, are the same rows."""
    flat, square = (context().case("large-mean", shape) for shape in ((128, 8), (8, 8, 4, 4)))
    assert square.certified is flat.certified
    assert square.bound("tree") is flat.bound("tree")
    for case in (flat, square):
        assert case.inputs.x.shape == case.fold.shape
        assert np.array_equal(case.fold.fold(case.inputs.x), flat.rows)


def test_other_dtypes_layouts_and_seeds_are_other_cases() -> None:
    """A layout changes the call and not the values; a dtype and a seed change the rows."""
    usual = context().case("standard", (8, 8, 4, 4))
    last = context().case("standard", (8, 8, 4, 4), layout="channels_last")
    assert (usual.inputs.layout, last.inputs.layout) == ("contiguous", "channels_last")
    assert last.certified is usual.certified
    for other in (replace(context(), seed=1), replace(context(), dtype="bfloat16")):
        assert not np.array_equal(other.case("standard", (8, 8, 4, 4)).rows, usual.rows)


def test_cases_are_let_go_of() -> None:
    """After forget() values are certified anew, to the same bits."""
    before = context().case("standard", (128, 8))
    forget()
    after = context().case("standard", (128, 8))
    assert after.certified is not before.certified
    assert np.array_equal(after.certified.hi, before.certified.hi)
