"""The norms: how they fold, what they refuse, and what one row of them means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from normcheck import norms as n
from normcheck.contract import Contract, promote
from normcheck.formats import FORMATS

SHAPED = [
    (n.LayerNorm(), (2, 3, 4), 1, (6, 4)),
    (n.LayerNorm((3, 4)), (2, 3, 4), 1, (2, 12)),
    (n.RMSNorm(), (5,), 1, (1, 5)),
    (n.L2Norm(), (2, 5), 1, (2, 5)),
    (n.ScaleNorm(), (2, 5), 1, (2, 5)),
    (n.PartialRMSNorm(fraction=0.5), (2, 5), 1, (2, 5)),
    (n.BatchNorm(), (4, 3), 1, (3, 4)),
    (n.BatchNorm(), (4, 3, 2, 5), 1, (3, 40)),
    (n.BatchNorm(), (4, 2, 5, 3), -1, (3, 40)),
    (n.InstanceNorm(), (4, 3, 5), 1, (12, 5)),
    (n.InstanceNorm(), (4, 5, 2, 3), -1, (12, 10)),
    (n.GroupNorm(2), (3, 4, 5), 1, (6, 10)),
    (n.GroupNorm(2), (3, 5, 4), -1, (6, 10)),
    (n.GroupNorm(2), (3, 4), 1, (6, 2)),
]


@pytest.mark.parametrize(("norm", "shape", "axis", "expected"), SHAPED)
def test_fold_and_back(norm: n.Norm, shape: tuple[int, ...], axis: int, expected: tuple[int, int]) -> None:
    """Folding gives rows of the right size, and unfolding gives the array back, element for element."""
    fold = norm.fold(shape, axis)
    x = np.arange(np.prod(shape)).reshape(shape)
    rows = fold.fold(x)
    assert rows.shape == (fold.rows, fold.width) == expected
    assert np.array_equal(fold.unfold(rows), x)


@pytest.mark.parametrize(("norm", "shape", "axis", "expected"), SHAPED)
def test_parameters_lie_where_they_belong(norm: n.Norm, shape: tuple[int, ...], axis: int, expected: tuple[int, int]) -> None:
    """Each element of a row meets the weight of its channel, or of its place in the trailing dimensions, or the one scalar."""
    fold = norm.fold(shape, axis)
    size = norm.parameter_size(fold)
    if norm.per_channel:
        full = np.moveaxis(np.broadcast_to(np.arange(size), (*np.delete(shape, axis), size)), -1, axis)
    else:
        dims = shape[-1:] if norm.normalized_shape is None else norm.normalized_shape
        full = np.broadcast_to(np.arange(size).reshape(dims if size > 1 else (1,) * len(dims)), shape)
    per_row = fold.affine(np.arange(size))
    met = np.broadcast_to(per_row[np.arange(fold.rows) % len(per_row)], expected)
    assert np.array_equal(fold.unfold(met), full)


def test_channels_first_and_last_are_the_same_rows() -> None:
    """The same numbers in either layout fold to rows that hold the same elements."""
    x = np.random.default_rng(0).normal(size=(2, 4, 3, 5))
    last = np.moveaxis(x, 1, -1)
    for norm in (n.BatchNorm(), n.InstanceNorm(), n.GroupNorm(2)):
        assert np.array_equal(norm.fold(x.shape).fold(x), norm.fold(last.shape, -1).fold(last))


def test_running_statistics_follow_the_channels() -> None:
    """Row r of an InstanceNorm or BatchNorm meets the statistics of its channel."""
    given = np.array([1.0, 2.0, 3.0])
    assert np.array_equal(n.BatchNorm().fold((4, 3)).statistics(given), given)
    assert np.array_equal(n.InstanceNorm(track_running_stats=True).fold((2, 3, 7)).statistics(given), [1, 2, 3, 1, 2, 3])


@pytest.mark.parametrize(
    ("norm", "rows", "width", "rank", "axis"),
    [
        (n.LayerNorm(), 6, 4, None, 1),
        (n.LayerNorm((2, 2)), 6, 4, 4, 1),
        (n.RMSNorm(), 1, 4, 1, 1),
        (n.BatchNorm(), 3, 12, None, 1),
        (n.BatchNorm(), 3, 12, 4, -1),
        (n.InstanceNorm(), 6, 12, 4, 1),
        (n.GroupNorm(2), 6, 12, None, 1),
        (n.GroupNorm(3), 6, 12, 4, -1),
    ],
)
def test_shape_of_is_the_inverse_of_fold(norm: n.Norm, rows: int, width: int, rank: int | None, axis: int) -> None:
    """The shape for given rows and width folds to just these, at the asked rank."""
    shape = norm.shape_of(rows, width, rank, axis)
    fold = norm.fold(shape, axis)
    assert (fold.rows, fold.width) == (rows, width)
    assert rank is None or len(shape) == rank


@pytest.mark.parametrize(
    ("width", "fraction", "count"), [(16, 0.0625, 1), (10, 0.25, 3), (10, 0.3, 3), (3, 0.01, 1), (7, 1.0, 7), (100, 0.07, 7)]
)
def test_fraction_counts_upwards(width: int, fraction: float, count: int) -> None:
    """ceil(fraction * D) elements enter the statistic, at least one; decimal fractions are taken at their word."""
    assert replace(n.PartialRMSNorm(), fraction=fraction).standardization.count(width) == count


@pytest.mark.parametrize(
    ("width", "fraction", "count"), [(16, 0.0625, 1), (10, 0.25, 2), (3, 0.01, 1), (7, 1.0, 7), (100, 0.29, 28)]
)
def test_fraction_may_count_downwards(width: int, fraction: float, count: int) -> None:
    """With rounding="floor" it is int(fraction * D), at least one, in the arithmetic of the code that says so."""
    assert replace(n.PartialRMSNorm(rounding="floor"), fraction=fraction).standardization.count(width) == count


def test_divisor() -> None:
    """A mean divides by the count less ddof, a sum by 1."""
    assert n.LayerNorm(ddof=1).standardization.divisor(8) == 7
    assert n.PartialRMSNorm(fraction=0.5).standardization.divisor(8) == 4
    assert n.L2Norm().standardization.divisor(8) == 1


BAD = [
    (lambda: n.LayerNorm(eps=-1e-5), r"eps=-1e-05, but should be a finite number >= 0"),
    (lambda: n.RMSNorm(eps=float("nan")), r"eps=nan, but should be a finite number >= 0"),
    (lambda: n.RMSNorm(eps=float("inf")), r"eps=inf, but should be a finite number"),
    (lambda: n.RMSNorm(eps="1e-5"), r"eps='1e-5', but should be a finite number"),
    (lambda: n.RMSNorm(768), r"eps=768, but should be a float such as 1e-5; sizes are named, such as normalized_shape=768"),
    (lambda: n.RMSNorm(eps=True), r"eps=True, but should be a finite number"),
    (lambda: n.LayerNorm(eps_placement="beside"), r"eps_placement='beside', but should be one of inside, outside, max"),
    (lambda: n.LayerNorm(ddof=2), r"ddof=2, but should be 0 or 1"),
    (lambda: n.LayerNorm(ddof=True), r"ddof=True, but should be 0 or 1"),
    (lambda: n.RMSNorm(weight_offset=float("inf")), r"weight_offset=inf, but should be a finite number"),
    (lambda: n.LayerNorm(normalized_shape=()), r"normalized_shape=\(\), but should be None or positive sizes"),
    (lambda: n.LayerNorm(normalized_shape=0), r"normalized_shape=0, but should be None or positive sizes"),
    (lambda: n.LayerNorm(normalized_shape=2.5), r"normalized_shape=2.5, but should be None, a positive size or several"),
    (lambda: n.PartialRMSNorm(fraction=0.0), r"fraction=0.0, but should be a number in \(0, 1\]"),
    (lambda: n.PartialRMSNorm(rounding="round"), "rounding='round', but should be one of ceil, floor"),
    (lambda: n.PartialRMSNorm(fraction=1.5), r"fraction=1.5, but should be a number in \(0, 1\]"),
    (lambda: n.BatchNorm(momentum=1.5), r"momentum=1.5, but should be None or a number in \[0, 1\]"),
    (lambda: n.InstanceNorm(momentum=-0.1), r"momentum=-0.1, but should be None or a number in \[0, 1\]"),
    (lambda: n.GroupNorm(0), r"num_groups=0, but should be a whole number >= 1"),
    (lambda: n.GroupNorm(2.0), r"num_groups=2.0, but should be a whole number >= 1"),
    (lambda: n.GroupNorm(3).fold((2, 4)), r"num_groups=3, but should divide the 4 channels of shape=\(2, 4\)"),
    (lambda: n.LayerNorm(5).fold((2, 4)), r"shape=\(2, 4\), but should end in normalized_shape=\(5,\)"),
    (lambda: n.LayerNorm((2, 2, 4)).fold((2, 4)), r"shape=\(2, 4\), but should end in normalized_shape=\(2, 2, 4\)"),
    (lambda: n.RMSNorm().fold(()), r"shape=\(\), but RMSNorm needs at least one dimension"),
    (lambda: n.BatchNorm().fold((4,)), r"shape=\(4,\), but BatchNorm needs at least 2 dimensions"),
    (lambda: n.InstanceNorm().fold((4, 3)), r"shape=\(4, 3\), but InstanceNorm needs at least 3 dimensions"),
    (lambda: n.BatchNorm().fold((4, 3), 2), r"channel_axis=2, but should name an axis of shape=\(4, 3\)"),
    (lambda: n.BatchNorm().fold((4, 3), 0), r"channel_axis=0, but should name an axis"),
    (lambda: n.LayerNorm(ddof=1).fold((2, 1)), r"ddof=1 with rows of 1 elements, but ddof should be less than the row width"),
    (lambda: n.LayerNorm(8).shape_of(2, 4), r"width=4, but normalized_shape=\(8,\) has 8 elements"),
    (lambda: n.LayerNorm((2, 2)).shape_of(2, 4, 1), r"rank=1, but 2 rows over normalized_shape=\(2, 2\) need a larger one"),
    (lambda: n.GroupNorm(2).shape_of(3, 4), r"rows=3, but should be a multiple of num_groups=2"),
    (lambda: n.BatchNorm().shape_of(3, 4, 2, 7), r"channel_axis=7, but should be 1 \(channels-first\) or -1"),
]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_refuses_what_no_norm_has(make: Any, message: str) -> None:
    """Impossible settings and shapes raise ValueError that names the value and what was expected."""
    with pytest.raises(ValueError, match=message):
        make()


def test_check_parameter_names_both_sizes() -> None:
    """A weight of the wrong length is refused with both lengths."""
    norm = n.LayerNorm()
    with pytest.raises(ValueError, match=r"weight has 3 elements \(shape \(3,\)\), but should have 4"):
        norm.check_parameter("weight", np.ones(3), norm.fold((2, 4)))
    norm.check_parameter("weight", np.ones(4), norm.fold((2, 4)))


def test_every_norm_is_registered_and_named() -> None:
    """NORMS holds each norm under the name it reports."""
    for name, cls in n.NORMS.items():
        assert (cls(2) if cls is n.GroupNorm else cls()).name == name
    assert len(n.NORMS) == 8


CONTRACT = [
    ({"compute": "int8"}, r"compute='int8', but should be one of float64"),
    ({"stats": "x"}, r"stats='x', but should be one of"),
    ({"cast": "twice"}, r"cast='twice', but should be one of 'once', 'before_weight'"),
    ({"output": "y"}, r"output='y', but should be 'x', 'promote' or one of"),
    ({"residual_rounding": "never"}, r"residual_rounding='never', but should be one of None, 'storage', 'compute'"),
    ({"accumulation": -1}, r"accumulation=-1, but should be 'tree', 'sequential', 'merge' or an integer height >= 0"),
    ({"accumulation": True}, r"accumulation=True, but should be"),
    ({"running_ddof": 2}, r"running_ddof=2, but should be one of 0, 1"),
    ({"momentum_convention": "jax"}, r"momentum_convention='jax', but should be one of 'torch', 'keras'"),
    ({"overflow": "wrap"}, r"overflow='wrap', but should be one of 'inf', 'saturate', 'nan'"),
]


@pytest.mark.parametrize(("settings", "message"), CONTRACT)
def test_contract_refuses_unknown_words(settings: dict[str, Any], message: str) -> None:
    """A contract takes only the documented choices."""
    with pytest.raises(ValueError, match=message):
        Contract(**settings)


def test_contract_formats() -> None:
    """The wider of compute and input is computed in; the output is x's, the promoted one, or the named one; eps is rounded."""
    f = FORMATS
    assert Contract().compute_format(f["bfloat16"]) is f["float32"]
    assert Contract().compute_format(f["float64"]) is f["float64"]
    assert Contract(output="promote").output_format(f["bfloat16"], f["float32"]) is f["float32"]
    assert Contract(output="promote").output_format(f["bfloat16"], None) is f["bfloat16"]
    assert Contract(output="float16").output_format(f["bfloat16"], None) is f["float16"]
    assert promote(f["float16"], f["bfloat16"]) is f["float32"]
    assert Contract(eps_dtype="float16").round_eps(1e-5) == float(np.float16(1e-5))
    assert Contract().round_eps(1e-5) == 1e-5
