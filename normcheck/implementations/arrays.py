"""Exact values to typed arrays in memory: the part of an adapter that every framework shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from normcheck.formats import Array, format_of

LAYOUTS: dict[str, Callable[[int], tuple[int, ...]]] = {
    "contiguous": lambda rank: tuple(range(rank)),
    "channels_last": lambda rank: (0, *range(2, rank), 1),
    "transposed": lambda rank: tuple(reversed(range(rank))),
}
"""Order of the axes in memory, slowest first, by layout and rank. The shape stays the same; only the strides differ."""


def encode(values: npt.ArrayLike, dtype: str, layout: str = "contiguous") -> npt.NDArray[Any]:
    """A new array of the format's numpy dtype with the same values and the layout's strides.

    Parameters
    ----------
    values : float64 array, any shape, of values that the format holds exactly
    dtype : name of the format
    layout : ``"contiguous"``; ``"channels_last"``, axis 1 innermost, as torch's memory formats of that name; ``"transposed"``,
        axes reversed in memory

    Raises
    ------
    ValueError : for an unknown dtype or layout, a layout that the rank does not have, or a value that is not the format's
    """
    array = np.asarray(values, np.float64)
    order = _order(layout, array.shape)
    with np.errstate(all="ignore"):
        typed = array.transpose(order).astype(format_of(dtype).dtype, order="C").transpose(np.argsort(order))
        if typed.dtype != np.float64:
            _check_exact(typed.astype(np.float64), array, dtype)
    return typed


def _check_exact(decoded: Array, array: Array, dtype: str) -> None:
    exact = decoded == array
    if not exact.all():
        wrong = array[~(exact | (np.isnan(decoded) & np.isnan(array)))]
        if wrong.size:
            raise ValueError(f"value {float(wrong[0])!r}, but should be a value of {dtype}")


def _order(layout: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if layout not in LAYOUTS:
        raise ValueError(f"layout={layout!r}, but should be one of {', '.join(LAYOUTS)}")
    if layout == "channels_last" and len(shape) < 3:
        raise ValueError(f"layout='channels_last' with shape={shape}, but should have 3 dimensions or more")
    return LAYOUTS[layout](len(shape))


def decode(array: Any) -> tuple[Array, str]:
    """The values of a numpy array as a new float64 array of its shape, and the name of its dtype (the real part if complex)."""
    with np.errstate(all="ignore"):
        values = np.array(np.real(np.asarray(array)), np.float64, order="C")
    return values, np.asarray(array).dtype.name
