"""Orders of summation over the last axis, for numpy arrays in any arithmetic. The axis is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]


def sequential(x: Values) -> Values:
    """One running sum from the first element to the last: D - 1 additions on a path."""
    return np.add.accumulate(x, axis=-1)[..., -1:]


def backward(x: Values) -> Values:
    """One running sum from the last element to the first."""
    return sequential(x[..., ::-1])


def halving(x: Values) -> Values:
    """The first half plus the second, over and over: ceil(log2 D) additions on a path."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        rest = x[..., 2 * half :]
        x = np.concatenate([x[..., :half] + x[..., half : 2 * half], rest], axis=-1)
    return x


def adjacent(x: Values) -> Values:
    """Neighbours in pairs, over and over: ceil(log2 D) additions on a path."""
    while x.shape[-1] > 1:
        paired = x.shape[-1] // 2 * 2
        x = np.concatenate([x[..., 0:paired:2] + x[..., 1:paired:2], x[..., paired:]], axis=-1)
    return x


def lanes(x: Values, count: int, most: int = 32) -> Values:
    """Element i goes to lane i % count, which adds serially; after ``most`` elements of each the lanes are added up in pairs."""
    span = count * most
    blocks = []
    for start in range(0, x.shape[-1], span):
        block = x[..., start : start + span]
        whole = block.shape[-1] // count * count
        stacked = block[..., :whole].reshape(*block.shape[:-1], whole // count, count)
        partial = np.add.accumulate(stacked, axis=-2)[..., -1, :] if whole else block[..., :0]
        rest = block[..., whole:]
        short = rest.shape[-1]
        if whole and short:
            partial = np.concatenate([partial[..., :short] + rest, partial[..., short:]], axis=-1)
        blocks.append(adjacent(partial if whole else rest))
    return adjacent(np.concatenate(blocks, axis=-1))


def kahan(x: Values, count: int = 64) -> Values:
    """Compensated running sums in a number of lanes, then pairs."""
    padded = _filled(x, count)
    total = padded[..., :count]
    lost = np.zeros_like(total)
    for start in range(count, padded.shape[-1], count):
        addend = padded[..., start : start + count] - lost
        grown = total + addend
        # once a sum is infinite its compensation would be inf - inf
        lost = np.nan_to_num((grown - total) - addend, nan=0.0, posinf=0.0, neginf=0.0)
        total = grown
    return adjacent(total)


def _filled(x: Values, count: int) -> Values:
    missing = -x.shape[-1] % count
    return np.concatenate([x, np.zeros((*x.shape[:-1], missing), x.dtype)], axis=-1)
