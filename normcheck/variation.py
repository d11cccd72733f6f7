"""Trials at random, trials that vary another, and trials that are simpler than another: the moves of a search."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np

from normcheck.checks import Context, SkipCaseError
from normcheck.formats import Format
from normcheck.recipes import Row, Trial
from normcheck.regimes import REGIMES

BLOCKS = (8, 16, 32, 64, 128, 256, 1024)
"""Sizes in which kernels work: vectors, warps, tiles."""
_WIDEST = 2**12
_MOST_ROWS = 16
_GRADED = [name for name, regime in REGIMES.items() if regime.graded]
_USUAL = {"rank": None, "bias": None, "gain": 0, "weight": None}

T = TypeVar("T")


@dataclass(frozen=True)
class Dice:
    """Random choices for rows of one width in one format.

    Attributes
    ----------
    rng : the generator
    width : of the rows
    fmt, compute : formats of the storage and of the arithmetic
    """

    rng: np.random.Generator
    width: int
    fmt: Format
    compute: Format

    def one_in(self, chances: float) -> bool:
        """Whether something happens that happens once in so many times."""
        return self.rng.random() * chances < 1

    def pick(self, choices: Sequence[T]) -> T:
        """One of these."""
        return choices[int(self.rng.integers(len(choices)))]

    def seed(self) -> int:
        """A seed, short to write."""
        return int(self.rng.integers(2**16))

    def place(self) -> int:
        """The first or the last element, or any."""
        return self.pick((0, -1, int(self.rng.integers(self.width))))

    def value(self) -> float:
        """A value of the format: of moderate size, or whole, next to a power of two, or next to a limit."""
        made = self.pick((self._moderate, self._moderate, self._moderate, self._whole, self._beside_a_power, self._limit))()
        return made if self.one_in(2) else -made

    def _moderate(self) -> float:
        return self.bounded(10.0 ** self.rng.uniform(-3, 5))

    def _whole(self) -> float:
        return self.bounded(float(self.rng.integers(2 ** int(self.rng.integers(1, min(self.fmt.p, 24) + 1)))))

    def _beside_a_power(self) -> float:
        power = self.bounded(2.0 ** int(self.rng.integers(-12, 16)))
        return float(self.pick((self.fmt.next_up, self.fmt.next_down, self.fmt.round))(power))

    def _limit(self) -> float:
        fmt = self.fmt
        edge = math.sqrt(self.compute.max) / 64
        return self.bounded(self.pick((fmt.max, fmt.min_normal, fmt.min_subnormal, edge, 1 + 2 * fmt.u, 1 - fmt.u)))

    def bounded(self, value: float) -> float:
        """The nearest finite value of the format."""
        return float(self.fmt.round(np.clip(value, -self.fmt.max, self.fmt.max)))


def fresh(rng: np.random.Generator, context: Context, elements: int) -> Trial:
    """A trial at random, of at most about this many elements: rows of every background, in a width of any residue."""
    dice = Dice(rng, _taken(rng, context), context.x_format, context.compute)
    weight = dice.seed() if dice.one_in(2) else None
    return Trial(
        dice.width,
        tuple(_row(dice) for _ in range(_count(dice, elements))),
        rank=int(rng.integers(2, 6)) if dice.one_in(3) else None,
        weight=weight,
        gain=int(rng.integers(-4, 5)) if weight is not None and dice.one_in(4) else 0,
        bias=dice.seed() if dice.one_in(10) else None,
    )


def varied(rng: np.random.Generator, parent: Trial, context: Context, elements: int) -> Trial:
    """Children of a trial's rows in one call: each row is one of them moved once or more often."""
    dice = Dice(rng, parent.width, context.x_format, context.compute)
    width = int(np.clip(_moved_width(dice), 1, _WIDEST)) if dice.one_in(4) else parent.width
    dice = replace(dice, width=width if context.can_take(width) else parent.width)
    rows = []
    for _ in range(_count(dice, elements)):
        row = dice.pick(parent.rows)
        for _ in range(1 + int(rng.geometric(0.6))):
            row = dice.pick(_MOVES)(dice, row)
        rows.append(row)
    child = replace(parent, width=dice.width, rows=tuple(rows))
    return replace(child, weight=None if dice.one_in(3) else dice.seed(), gain=0) if dice.one_in(5) else child


def simpler(trial: Trial) -> Iterator[Trial]:
    """Trials with something left out, the largest steps first."""
    for name, usual in _USUAL.items():
        if getattr(trial, name) != usual:
            yield replace(trial, **cast(Any, {name: usual}))
    if len(trial.rows) > 1:
        half = len(trial.rows) // 2
        parts = (*((row,) for row in trial.rows), trial.rows[:half], trial.rows[half:])
        yield from (replace(trial, rows=part) for part in parts)
        return
    yield from (replace(trial, width=width) for width in _narrower(trial.width))
    yield from (replace(trial, rows=(row,)) for row in _simpler_rows(trial.rows[0], trial.width))


def _taken(rng: np.random.Generator, context: Context) -> int:
    """A width that the norm and the implementation can take."""
    for _ in range(20):
        width = _width(rng)
        if context.can_take(width):
            return width
    if not context.widths:
        raise SkipCaseError("no width fits")
    return context.widths[int(rng.integers(len(context.widths)))]


def _width(rng: np.random.Generator) -> int:
    """Half of the widths are of any size up to 300, the others next to multiples of `BLOCKS` or wider."""
    if rng.random() < 0.5:
        return int(rng.integers(1, 301))
    near = int(rng.choice(BLOCKS)) * int(rng.integers(1, 5)) + int(rng.integers(-2, 3))
    return int(min(near if rng.random() < 0.8 else 2.0 ** rng.uniform(0, 12), _WIDEST))


def _moved_width(dice: Dice) -> int:
    block, width = dice.pick(BLOCKS), dice.width
    return dice.pick((width + 1, width - 1, width + block, width - block, 2 * width, width // 2))


def _count(dice: Dice, elements: int) -> int:
    most = max(1, min(_MOST_ROWS, elements // dice.width))
    return int(dice.rng.integers(1, most + 1)) if dice.one_in(3) else most


def _row(dice: Dice) -> Row:
    """A row at random: of a regime, or of a value or a few that are repeated; often with elements replaced."""
    regime = dice.rng.random() < 0.6
    base: str | tuple[float, ...]
    base = dice.pick(_GRADED) if regime else tuple(dice.value() for _ in range(int(dice.rng.integers(1, 5))))
    exponent = int(dice.rng.integers(-8, 9)) if dice.one_in(6) else 0
    row = Row(base, dice.seed(), exponent, dice.value() if dice.one_in(6) else 0.0)
    replaced = int(dice.rng.integers(1, 4)) if dice.rng.random() < (0.3 if regime else 0.8) else 0
    for _ in range(replaced):
        row = _replaced(dice, row)
    return row


Move = Callable[[Dice, Row], Row]


def _replaced(dice: Dice, row: Row) -> Row:
    return replace(row, edits=(*row.edits[-7:], (dice.place(), dice.value())))


def _grown(dice: Dice, row: Row) -> Row:
    """One replaced element, or the shift, times a factor."""
    factor = float(2.0 ** dice.rng.normal(0, 2)) * (-1.0 if dice.one_in(10) else 1.0)
    if not row.edits or dice.one_in(3):
        return replace(row, shift=dice.bounded(row.shift * factor))
    at = int(dice.rng.integers(len(row.edits)))
    position, value = row.edits[at]
    return replace(row, edits=(*row.edits[:at], (position, dice.bounded(value * factor)), *row.edits[at + 1 :]))


def _shifted(dice: Dice, row: Row) -> Row:
    return replace(row, shift=dice.value())


def _scaled(dice: Dice, row: Row) -> Row:
    return replace(row, exponent=int(np.clip(row.exponent + dice.rng.integers(-4, 5), -40, 40)))


def _reseeded(dice: Dice, row: Row) -> Row:
    """Other random numbers; of values that are repeated, one changed a little or replaced."""
    if isinstance(row.base, str):
        return replace(row, seed=dice.seed())
    at = int(dice.rng.integers(len(row.base)))
    new = dice.bounded(row.base[at] * (1 + float(dice.rng.normal(0, 0.1)))) if dice.one_in(2) else dice.value()
    return replace(row, base=(*row.base[:at], new, *row.base[at + 1 :]))


def _restored(dice: Dice, row: Row) -> Row:
    """One replaced element less, or no shift."""
    if not row.edits:
        return replace(row, shift=0.0)
    at = int(dice.rng.integers(len(row.edits)))
    return replace(row, edits=row.edits[:at] + row.edits[at + 1 :])


def _rebased(dice: Dice, row: Row) -> Row:
    return replace(_row(dice), edits=row.edits)


_MOVES: tuple[Move, ...] = (_replaced, _grown, _grown, _shifted, _scaled, _reseeded, _reseeded, _restored, _rebased)


def _narrower(width: int) -> Iterator[int]:
    """Smaller widths: small ones, parts, and those of the same residue modulo the sizes in which kernels work."""
    same = [width % block + extra for block in BLOCKS for extra in (0, block)]
    parts = (width // 2, width * 3 // 4, width * 7 // 8, width * 31 // 32, width - 1)
    yield from (smaller for smaller in sorted({1, 2, 3, 4, 6, 8, 12, 16, 24, *parts, *same}) if 0 < smaller < width)


def _simpler_rows(row: Row, width: int) -> Iterator[Row]:
    inside = tuple((position if position == -1 else position % width, value) for position, value in row.edits)
    if inside != row.edits:
        yield replace(row, edits=inside)
    for at, (position, value) in enumerate(row.edits):
        yield replace(row, edits=row.edits[:at] + row.edits[at + 1 :])
        short = float(f"{value:.0e}")
        if short != value:
            yield replace(row, edits=(*row.edits[:at], (position, short), *row.edits[at + 1 :]))
    if row.exponent:
        yield replace(row, exponent=0)
    if row.shift:
        yield replace(row, shift=0.0)
    yield from (replace(row, base=base, seed=0) for base in ((0.0,), (1.0,)) if row.base not in ((0.0,), base))
    if not isinstance(row.base, str) and len(row.base) > 1:
        yield from (replace(row, base=(value,)) for value in row.base)
