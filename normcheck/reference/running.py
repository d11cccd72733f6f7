"""Running statistics after one step of training, exact until their one rounding to float64."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from normcheck.contract import MomentumConvention
from normcheck.formats import Array


def batch_statistics(rows: Array, period: int, ddof: int = 0) -> tuple[list[Fraction], list[Fraction]]:
    """Exact mean and variance of each channel of finite rows (R, D), as fractions.

    Row r belongs to channel r % period. Where a channel has several rows (InstanceNorm), its statistics are the averages of
    those of the rows, as torch and ONNX have it. With one element a row and ddof = 1 there is no variance: 0.
    """
    count = rows.shape[1]
    means: list[Fraction] = []
    variances: list[Fraction] = []
    for row in rows:
        values, unit = _whole(row)
        total, squares = sum(values), sum(value * value for value in values)
        means.append(Fraction(total, count) * unit)
        spread = Fraction(count * squares - total * total, count * (count - ddof)) if count > ddof else Fraction(0)
        variances.append(spread * unit * unit)
    times = len(rows) // period
    return (
        [sum(means[channel::period], Fraction(0)) / times for channel in range(period)],
        [sum(variances[channel::period], Fraction(0)) / times for channel in range(period)],
    )


def _whole(row: Array) -> tuple[list[int], Fraction]:
    """Finite numbers as whole multiples of a power of two."""
    mantissas, exponents = np.frexp(row)
    whole = np.ldexp(mantissas, 53).astype(np.int64)
    low = int(exponents[whole != 0].min()) if whole.any() else 0
    shifts = np.where(whole != 0, exponents - low, 0)
    return [value << shift for value, shift in zip(whole.tolist(), shifts.tolist(), strict=True)], Fraction(2) ** (low - 53)


def shares(momentum: float | None, convention: MomentumConvention, step: int = 1) -> tuple[Fraction, Fraction]:
    """Weights of the old value and of the batch in the new one.

    ``torch``: 1 - m and m; ``keras``: m and 1 - m; None: the average over all steps, (step - 1)/step and 1/step. ``step`` counts
    from 1.
    """
    if momentum is None:
        return 1 - Fraction(1, step), Fraction(1, step)
    exact = Fraction(momentum)
    return (1 - exact, exact) if convention == "torch" else (exact, 1 - exact)


def running(
    rows: Array,
    running_mean: Array,
    running_var: Array,
    *,
    momentum: float | None = 0.1,
    convention: MomentumConvention = "torch",
    ddof: int = 1,
    step: int = 1,
) -> tuple[Array, Array]:
    """Running mean and variance after one training step on these rows.

    Parameters
    ----------
    rows : (R, D), finite; row r belongs to channel r % C
    running_mean, running_var : (C,), before the step
    momentum, convention : as `shares` says; None averages over all steps
    ddof : 1 for the unbiased variance of the batch, 0 for the biased one
    step : which step this is, from 1; counts for momentum None only

    Returns
    -------
    (C,) and (C,), each correctly rounded to float64
    """
    old_share, batch_share = shares(momentum, convention, step)
    means, variances = batch_statistics(rows, len(running_mean), ddof)

    def moved(old: Array, batch: list[Fraction]) -> Array:
        return np.array([float(old_share * Fraction(float(a)) + batch_share * b) for a, b in zip(old, batch, strict=True)])

    return moved(running_mean, means), moved(running_var, variances)
