"""Rows of an array as a norm folds it, taken and written a few at a time, so that no folded copy of the whole is ever made."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from normcheck.norms import Fold

Index = npt.NDArray[np.intp]


class FoldedRows:
    """The rows (R, D) of an array; taking some gives a copy, assigning writes into the array.

    Parameters
    ----------
    array : of the fold's shape
    fold : how it becomes rows
    """

    def __init__(self, array: npt.NDArray[Any], fold: Fold) -> None:
        self.shape = (fold.rows, fold.width)
        self.size, self.dtype = array.size, array.dtype
        moved = np.transpose(array, fold.order)
        lead = (fold.rows,) if moved.flags.c_contiguous else _leading_sizes(moved.shape, fold.rows)
        trail = (fold.width,) if moved.flags.c_contiguous else _trailing_sizes(moved.shape, lead)
        self._lead, self._view = lead, moved.reshape(*lead, *trail)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen: Index | slice) -> npt.NDArray[Any]:
        rows: npt.NDArray[Any] = self._view[self._where(chosen)]
        return rows.reshape(len(rows), self.shape[1])

    def __setitem__(self, chosen: Index | slice, rows: npt.NDArray[Any]) -> None:
        self._view[self._where(chosen)] = rows.reshape(len(rows), *self._view.shape[len(self._lead) :])

    def _where(self, chosen: Index | slice) -> Any:
        if len(self._lead) == 1:
            return chosen
        return np.unravel_index(np.arange(self.shape[0])[chosen], self._lead)


def _leading_sizes(shape: tuple[int, ...], rows: int) -> tuple[int, ...]:
    """Sizes of the leading axes that make up the rows; the last of them may be the front part of an axis (groups of channels)."""
    lead: list[int] = []
    for size in shape:
        have = math.prod(lead)
        if have == rows and lead:
            break
        lead.append(min(size, rows // have) if have else size)
    return tuple(lead) or (rows,)


def _trailing_sizes(shape: tuple[int, ...], lead: tuple[int, ...]) -> tuple[int, ...]:
    last = len(lead) - 1
    split = shape[last] // lead[last] if last < len(shape) and lead[last] else 1
    return (split, *shape[last + 1 :])
