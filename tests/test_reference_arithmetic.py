"""Sums and double-double operations: exact where they say so, within the published bounds elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from normcheck.formats import Array
from normcheck.reference import arithmetic as dd
from normcheck.reference.arithmetic import DD, U2, height, tree_sum, tree_sum_dd


def numbers(seed: int, size: int = 400) -> Array:
    """Floats of mixed sign and size, with many trailing bits."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=size) * np.exp2(rng.integers(-30, 30, size))


def doubles(seed: int) -> DD:
    """Double-doubles."""
    hi = numbers(seed)
    return dd.two_sum(hi, numbers(seed + 1) * np.spacing(hi) / 2**31)


def exactly(a: DD | Array) -> list[Fraction]:
    """As rationals."""
    parts = a if isinstance(a, tuple) else (a, np.zeros_like(a))
    return [Fraction(h) + Fraction(low) for h, low in zip(*(np.ravel(part).tolist() for part in parts), strict=True)]


OPERATIONS: list[tuple[Callable[..., DD], int, int, Callable[[Fraction, Fraction], Fraction], float]] = [
    (dd.add, 2, 2, lambda a, b: a + b, 3.0),
    (dd.add_double, 2, 1, lambda a, b: a + b, 2.0),
    (dd.multiply, 2, 2, lambda a, b: a * b, 7.0),
    (dd.divide, 2, 2, lambda a, b: a / b, 15.0),
    (dd.divide_double, 2, 1, lambda a, b: a / b, 3.0),
    (dd.two_sum, 1, 1, lambda a, b: a + b, 0.0),
    (dd.two_product, 1, 1, lambda a, b: a * b, 0.0),
]


@pytest.mark.parametrize(("operation", "first", "second", "exact", "bound"), OPERATIONS, ids=[o[0].__name__ for o in OPERATIONS])
def test_operations_keep_their_bounds(
    operation: Callable[..., DD], first: int, second: int, exact: Callable[[Fraction, Fraction], Fraction], bound: float
) -> None:
    """Each operation errs relatively by no more than its published bound, which is 0 for the error-free ones."""
    a = doubles(0) if first == 2 else numbers(0)
    b = doubles(5) if second == 2 else numbers(5)
    for got, x, y in zip(exactly(operation(a, b)), exactly(a), exactly(b), strict=True):
        assert abs(got - exact(x, y)) <= Fraction(bound * U2) * (1 + Fraction(1, 2**50)) * abs(exact(x, y))


def test_square_root_keeps_its_bound() -> None:
    """The square of the root is within twice 25/8 u**2 of the argument; the root of 0 is 0."""
    a = tuple(np.abs(part) for part in doubles(3))
    for got, x in zip(exactly(dd.square_root(a)), exactly(a), strict=True):
        assert abs(got * got - x) <= Fraction(6.26 * U2) * x
    assert np.array_equal(dd.square_root((np.zeros(1), np.zeros(1)))[0], [0.0])


@pytest.mark.parametrize("width", [1, 2, 3, 15, 16, 17, 31, 32, 33, 100, 1000, 4097])
def test_tree_sum_of_whole_numbers_is_exact(width: int) -> None:
    """Every element is counted once, at any width."""
    x = np.random.default_rng(width).integers(-(2**20), 2**20, (3, width)).astype(np.float64)
    assert np.array_equal(tree_sum(x), x.sum(axis=1))
    hi, lo = tree_sum_dd((x, x * 2.0**-60))
    assert exactly((hi, lo)) == [Fraction(v) * (1 + Fraction(1, 2**60)) for v in x.sum(axis=1)]


@pytest.mark.parametrize("width", [2, 3, 17, 100, 1025])
def test_tree_sum_has_least_height(width: int) -> None:
    """The error stays within ceil(log2 D) roundings of the sum of moduli; double-doubles use the same tree."""
    x = np.random.default_rng(width).normal(size=(20, width)) * np.exp2(np.random.default_rng(1).integers(-40, 40, (20, width)))
    for row, got, hi, lo in zip(x, tree_sum(x), *tree_sum_dd((x, np.zeros_like(x))), strict=True):
        exact, size = sum(map(Fraction, row)), sum(abs(Fraction(v)) for v in row)
        assert abs(Fraction(got) - exact) <= height(width) * Fraction(1, 2**53) * size
        assert abs(Fraction(hi) + Fraction(lo) - exact) <= 4 * height(width) * Fraction(1, 2**106) * size


def test_tree_sum_depends_on_the_row_alone() -> None:
    """A row's sum has the same bits alone, among others, and in another memory order."""
    x = np.random.default_rng(0).normal(size=(50, 333))
    whole = tree_sum(x)
    assert np.array_equal(np.concatenate([tree_sum(x[r : r + 1]) for r in range(50)]), whole)
    assert np.array_equal(tree_sum(np.asfortranarray(x)), whole)
