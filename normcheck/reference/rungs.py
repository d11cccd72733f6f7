"""The climb from level to level, the same for the forward pass and the gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np

from normcheck.formats import Array, Format, Mask
from normcheck.reference.double_double import LoopsDD
from normcheck.reference.loops import Loops
from normcheck.reference.places import Place, fastest
from normcheck.reference.problem import row_blocks
from normcheck.reference.rows import Index
from normcheck.reference.settling import Triple
from normcheck.reference.threads import each

BLOCK = 1 << 16


class Rows(Protocol):
    """Work on rows that can be taken apart."""

    @property
    def shape(self) -> tuple[int, int]:
        """(R, D)."""

    def rows(self, chosen: Index | slice, narrow: bool = False) -> Self:
        """The work on some of the rows, in float32 where ``narrow`` allows it and that holds them."""

    def blocks(self, elements: int, narrow: bool = False) -> Iterator[tuple[slice, Self]]:
        """The work in blocks of about so many elements."""

    def finite(self) -> Self:
        """The work with 0 for whatever is not finite."""


Work = TypeVar("Work", bound=Rows)


@dataclass(frozen=True)
class Rungs(Generic[Work]):
    """What is done on each level.

    Attributes
    ----------
    float64 : rounded values, and which of them are settled
    double_double : values and their errors
    exceptional : which elements IEEE arithmetic decides, and their values
    exact : rounded values of the elements (rows, columns), and how many were ties
    """

    float64: Callable[[Work, Loops, Format], tuple[Array, Mask]]
    double_double: Callable[[Work, LoopsDD], Triple]
    exceptional: Callable[[Work], tuple[Mask, Array]]
    exact: Callable[[Work, tuple[Index, Index], Format], tuple[Array, int]]


def new_counts() -> dict[str, int]:
    """Counts of elements: all, those that float64 and that double-double left open, and those on a midpoint."""
    return {"elements": 0, "level1": 0, "level2": 0, "ties": 0}


def round_rows(work: Work, rungs: Rungs[Work], out: Any, fmt: Format, counts: dict[str, int]) -> None:
    """All elements of the rows, rounded, into ``out``; ``counts`` are raised.

    First float64 for all rows, then the ladder for those in which it left an element open. Blocks of rows are shared among
    threads; nothing depends on how.
    """
    counts["elements"] += out.size
    if out.size == 0:
        return
    where = fastest(out.size)

    def do(chosen: Index | slice) -> dict[str, int]:
        own = new_counts()
        rows = climb(work.rows(chosen), rungs, where, fmt, own)
        with np.errstate(all="ignore"):
            out[chosen] = rows.astype(out.dtype, copy=False)
        return own

    for own in each(do, _open_rows(work, rungs, where, out, fmt)):
        for name, count in own.items():
            counts[name] += count


def _open_rows(work: Work, rungs: Rungs[Work], where: Place, out: Any, fmt: Format) -> Iterator[Index | slice]:
    """Blocks of the rows that float64 leaves open, and what it settles into ``out``."""
    width = work.shape[1]
    if fmt.p == 53:
        yield from row_blocks(*work.shape, BLOCK)
        return

    def do(block: tuple[slice, Work]) -> Index:
        chosen, part = block
        with np.errstate(all="ignore"):
            values, settled = rungs.float64(part, where.float64, fmt)
            out[chosen] = values.astype(out.dtype, copy=False)
        rows: Index = chosen.start + np.flatnonzero(~settled.all(axis=1))
        return rows

    left = np.concatenate(list(each(do, work.blocks(4 * BLOCK if where.narrow else BLOCK, where.narrow))))
    for some in row_blocks(len(left), width, BLOCK):
        yield left[some]


def climb(work: Work, rungs: Rungs[Work], where: Place, fmt: Format, counts: dict[str, int]) -> Array:
    """All elements of a few rows, rounded: by float64, by IEEE rules, by double-double, by exact arithmetic."""
    with np.errstate(all="ignore"):
        mask, ieee = rungs.exceptional(work)
        left = ~mask
        if fmt.p < 53:
            out, settled = rungs.float64(work, where.float64, fmt)
            left &= ~settled
        counts["level1"] += int(np.count_nonzero(left))
        values = rungs.double_double(work.finite(), where.dd)
        if left.all():
            better, proved = where.dd.settle_dd(values, fmt)
            left = ~proved
        else:
            better = fmt.round(ieee)
            better[left], proved = where.dd.settle_dd(_at(values, left), fmt)
            left[left] = ~proved
        if left.any():
            index = np.nonzero(left)
            better[index], ties = rungs.exact(work, (index[0], index[1]), fmt)
            counts["level2"] += len(index[0])
            counts["ties"] += ties
        return np.where(settled, out, better) if fmt.p < 53 else better


def _at(values: Triple, chosen: Mask) -> Triple:
    return Triple(values.hi[chosen], None if values.lo is None else values.lo[chosen], values.err[chosen])
