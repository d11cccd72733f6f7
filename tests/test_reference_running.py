"""Running statistics: hand-made values, and numpy's where it is exact."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from normcheck.reference.running import batch_statistics, running, shares


def test_one_step_by_hand() -> None:
    """The batch 1, 2, 3, 4 moves a variance of 1 to 1 + 0.1*(5/3 - 1) unbiased, and to 1.025 biased."""
    rows = np.array([[1.0, 2.0, 3.0, 4.0]])
    mean, unbiased = running(rows, np.zeros(1), np.ones(1))
    _, biased = running(rows, np.zeros(1), np.ones(1), ddof=0)
    assert [mean[0], biased[0]] == [float(Fraction(0.1) * Fraction(5, 2)), 1.025]
    assert unbiased[0] == float((1 - Fraction(0.1)) + Fraction(0.1) * Fraction(5, 3))


def test_conventions_mirror_each_other() -> None:
    """Momentum m of torch is 1 - m of Keras; None is the average over the steps."""
    assert shares(0.25, "torch") == (Fraction(3, 4), Fraction(1, 4)) == shares(0.75, "keras")
    assert shares(None, "torch", step=4) == (Fraction(3, 4), Fraction(1, 4))


def test_cumulative_average_forgets_the_initial_value() -> None:
    """With momentum None the first step takes the batch alone, and after three steps all count alike."""
    mean, var = np.full(1, 7.0), np.full(1, 7.0)
    for step, value in enumerate((1.0, 2.0, 6.0), start=1):
        mean, var = running(np.full((1, 4), value), mean, var, momentum=None, step=step)
    assert [mean[0], var[0]] == [3.0, 0.0]


def test_rows_of_one_channel_are_averaged() -> None:
    """A channel with several rows has the averages of their statistics, not those of the pooled values."""
    rows = np.array([[0.0, 2.0], [5.0, 5.0], [10.0, 14.0], [5.0, 5.0]])
    mean, variance = batch_statistics(rows, period=2)
    assert [[float(v) for v in mean], [float(v) for v in variance]] == [[6.5, 5.0], [2.5, 0.0]]


def test_no_variance_of_one_element() -> None:
    """One element has no unbiased variance; it counts as 0 and never as NaN."""
    assert batch_statistics(np.array([[3.0]]), period=1, ddof=1)[1] == [0]


def test_statistics_are_exact_for_numbers_far_apart() -> None:
    """Sums are made of whole numbers, so that neither the largest nor the smallest double is lost."""
    row = np.array([[1e300, -1e300, 5e-324, 0.0]])
    mean, variance = batch_statistics(row, period=1)
    values = [Fraction(float(value)) for value in row[0]]
    exact = sum(values) / 4
    assert mean == [exact]
    assert variance == [sum((value - exact) ** 2 for value in values) / 4]
    assert batch_statistics(np.zeros((2, 3)), period=2) == ([0, 0], [0, 0])
