"""Exact values to typed arrays in memory: the part of an adapter that every framework shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


class LayoutError(ValueError):
    """A layout that a framework's arrays cannot have."""


@dataclass(frozen=True)
class View:
    """A way in which an array lies in a larger block of memory, whose other elements are NaN.

    Attributes
    ----------
    frame : the block's shape for an array's shape
    index : what of the block the array is
    """

    frame: Callable[[tuple[int, ...]], tuple[int, ...]]
    index: Callable[[tuple[int, ...]], tuple[slice, ...]]


def _ahead(shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(0, n) for n in shape[:-1])


VIEWS: dict[str, View] = {
    "strided": View(lambda s: (*s[:-1], 2 * s[-1]), lambda s: (*_ahead(s), slice(0, None, 2))),
    "strided_rows": View(lambda s: (2 * s[0], *s[1:]), lambda s: (slice(0, None, 2),)),
    "sliced": View(lambda s: (*s[:-1], s[-1] + 3), lambda s: (*_ahead(s), slice(1, -2))),
    "reversed": View(lambda s: s, lambda s: (*_ahead(s), slice(None, None, -1))),
    "unaligned": View(lambda s: (int(np.prod(s)) + 1,), lambda s: (slice(1, None),)),
    "expanded": View(lambda s: (1, *s[1:]), lambda s: ()),
}
"""Layouts with gaps: every second element or row of a larger array, a slice out of its middle, backwards, one element away from
the start of memory, and one sample that stands for all (stride 0)."""


def encode(values: npt.ArrayLike, dtype: str, layout: str = "contiguous") -> npt.NDArray[Any]:
    """A new array of the format's numpy dtype with the same values and the layout's strides.

    Parameters
    ----------
    values : float64 array, any shape, of values that the format holds exactly
    dtype : name of the format
    layout : ``"contiguous"``; ``"channels_last"``, axis 1 innermost, as torch's memory formats of that name; ``"transposed"``,
        axes reversed in memory; or one of ``VIEWS``: part of a larger array, which is the result's ``base``

    Raises
    ------
    ValueError : for an unknown dtype or layout, a layout that the shape does not have, or a value that is not the format's
    """
    array = np.asarray(values, np.float64)
    if layout in VIEWS:
        return _lay(encode(array, dtype), layout)
    with np.errstate(all="ignore"):
        if layout == "contiguous":
            typed = array.astype(format_of(dtype).dtype, order="C")
        else:
            order = _order(layout, array.shape)
            typed = array.transpose(order).astype(format_of(dtype).dtype, order="C").transpose(np.argsort(order))
        if typed.dtype != np.float64:
            _check_exact(typed.astype(np.float64), array, dtype)
    return typed


def _lay(typed: npt.NDArray[Any], layout: str) -> npt.NDArray[Any]:
    """The array as a view of a larger block."""
    shape, view = typed.shape, VIEWS[layout]
    if not shape:
        raise ValueError(f"layout={layout!r} with shape=(), but should have a dimension or more")
    flat = np.full(int(np.prod(view.frame(shape))), np.nan).astype(typed.dtype)
    part = flat.reshape(view.frame(shape))[view.index(shape)]
    if layout == "expanded":
        if not (typed == typed[:1]).all():
            raise ValueError("layout='expanded', but the samples along the first axis differ")
        strides = (0, *part.strides[1:])
        part[...] = typed[:1]
    else:
        part = part.reshape(shape)
        strides = part.strides
        part[...] = typed
    start = part.__array_interface__["data"][0] - flat.__array_interface__["data"][0]
    return np.ndarray(shape, typed.dtype, flat, start, strides)


def _check_exact(decoded: Array, array: Array, dtype: str) -> None:
    exact = decoded == array
    if not exact.all():
        wrong = array[~(exact | (np.isnan(decoded) & np.isnan(array)))]
        if wrong.size:
            raise ValueError(f"value {float(wrong[0])!r}, but should be a value of {dtype}")


def _order(layout: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if layout not in LAYOUTS:
        raise ValueError(f"layout={layout!r}, but should be one of {', '.join([*LAYOUTS, *VIEWS])}")
    if layout == "channels_last" and len(shape) < 3:
        raise ValueError(f"layout='channels_last' with shape={shape}, but should have 3 dimensions or more")
    return LAYOUTS[layout](len(shape))


def decode(array: Any) -> tuple[Array, str]:
    """The values of a numpy array as a new float64 array of its shape, and the name of its dtype (the real part if complex)."""
    with np.errstate(all="ignore"):
        values = np.array(np.real(np.asarray(array)), np.float64, order="C")
    return values, np.asarray(array).dtype.name
