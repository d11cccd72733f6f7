"""The rounding test, after Ziv: a value is known once the whole interval around it rounds to one number."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from normcheck.formats import Array, Format, Mask
from normcheck.reference.arithmetic import U2, U, two_sum


class Triple(NamedTuple):
    """|hi + lo - y| <= err elementwise; lo is None for 0."""

    hi: Array
    lo: Array | None
    err: Array


def settle(values: Triple, fmt: Format) -> tuple[Array, Mask]:
    """The rounding test: hi + lo rounded to the format, and where all of [hi + lo - err, hi + lo + err] rounds to it.

    Values of float32 may come as float32.
    """
    hi, lo, err = values
    with np.errstate(all="ignore"):
        if lo is None:
            # 1.01 u|hi|: the ends of the interval are rounded themselves
            wide = err + 1.01 * U * np.abs(hi)
            lower, upper, value = (_rounded(part, fmt) for part in (hi - wide, hi + wide, hi))
        else:
            # an exact sum needs no allowance for lo -+ wide
            wide = np.where(err == 0.0, 0.0, err + 1.01 * U2 * np.abs(hi))
            lower, upper = (fmt.round_sum(*two_sum(hi, lo + sign * wide)) for sign in (-1.0, 1.0))
            value = fmt.round_sum(hi, lo)
        same = lower == upper
        if not fmt.has_inf:
            # NaN stands for overflow at either end
            same |= np.isnan(lower) & np.isnan(upper) & (np.abs(hi) > wide)
        return value, np.isfinite(wide) & same


def _rounded(a: Array, fmt: Format) -> npt.NDArray[Any]:
    return a.astype(np.float32) if fmt.p == 24 else fmt.round(a)
