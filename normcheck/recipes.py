"""Recipes: inputs written down in a few numbers, so that a search can vary them, a corpus keep them and a reader paste them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

import numpy as np

from normcheck.checks import Context
from normcheck.checks.cases import Case
from normcheck.checks.comparing import case_from
from normcheck.formats import FORMATS, Array, Format
from normcheck.regimes import REGIMES, biases, weights

_KINDS = 9  # rows over which the longest cycle of a regime runs
_HEADROOM = 1 / 8


class _Short:
    """Shows only what is not as usual, so that a recipe can be pasted."""

    def __repr__(self) -> str:
        given = ((f, getattr(self, f.name)) for f in fields(cast(Any, self)))
        shown = ", ".join(f"{f.name}={value!r}" for f, value in given if value != f.default)
        return f"{type(self).__name__}({shown})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


@dataclass(frozen=True, repr=False)
class Row(_Short):
    """One row: a background, scaled and shifted, with a few elements replaced.

    Attributes
    ----------
    base : the name of a regime, or values that are repeated over the row
    seed : of the regime's random numbers; also which of its kinds of rows is taken
    exponent : the background is multiplied by 2**exponent ...
    shift : ... and moved by this
    edits : (position, value) of elements that are replaced afterwards; positions count modulo the width, -1 is the last

    Raises
    ------
    ValueError : for a base that is neither a regime nor values, naming it
    """

    base: str | tuple[float, ...] = (0.0,)
    seed: int = 0
    exponent: int = 0
    shift: float = 0.0
    edits: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        """Refuse a background that is none."""
        if self.base not in REGIMES if isinstance(self.base, str) else not self.base:
            raise ValueError(f"base={self.base!r}, but should be values or one of {', '.join(REGIMES)}")

    def values(self, width: int, fmt: Format, compute: Format = FORMATS["float32"]) -> Array:
        """The row's values, (D,), finite and exact in the format; parameters as for `normcheck.regimes.Regime.rows`.

        A row whose sum of squares comes within an eighth of the arithmetic's exponents of overflow is scaled down by a power of
        two: the check ``overflow`` speaks of those.
        """
        with np.errstate(over="ignore", under="ignore"):
            made = np.ldexp(self._background(width, fmt, compute), self.exponent) + self.shift
        for position, value in self.edits:
            made[position % width] = value
        made = np.clip(made, -fmt.max, fmt.max)
        return fmt.round(np.ldexp(made, -excess(made, fmt, compute)))

    @property
    def words(self) -> str:
        """The row as a reader would say it."""
        parts = [self.base if isinstance(self.base, str) else f"the values {', '.join(f'{value:.6g}' for value in self.base)}"]
        parts += [f"seed {self.seed}"] if isinstance(self.base, str) else []
        parts += [f"times 2**{self.exponent}"] * bool(self.exponent) + [f"moved by {self.shift:.6g}"] * bool(self.shift)
        return ", ".join([*parts, *(f"element {position} is {value:.6g}" for position, value in self.edits)])

    def _background(self, width: int, fmt: Format, compute: Format) -> Array:
        if not isinstance(self.base, str):
            return np.resize(np.asarray(self.base, np.float64), width)
        made = REGIMES[self.base].rows(_KINDS, width, fmt, self.seed // _KINDS, compute)
        return np.asarray(made[self.seed % _KINDS])


@dataclass(frozen=True, repr=False)
class Trial(_Short):
    """One call: its rows, its weight and its shape, for whatever norm it is tried on.

    Attributes
    ----------
    width : of the rows
    rows : taken over and over until the shape is filled
    rank : of x; None for the usual one
    weight : seed of random weights; None for ones
    gain : the weights are multiplied by 2**gain
    bias : seed of random biases; None for zeros
    """

    width: int
    rows: tuple[Row, ...] = (Row(),)
    rank: int | None = None
    weight: int | None = None
    gain: int = 0
    bias: int | None = None

    def shape(self, context: Context) -> tuple[int, ...]:
        """The shape of x; the usual rank's where there is none of this rank.

        Raises
        ------
        SkipCaseError : where the norm or the implementation takes no such rows
        """
        try:
            return context.shape(len(self.rows), self.width, self.rank)
        except Exception:
            if self.rank is None:
                raise
            return context.shape(len(self.rows), self.width)

    def values(self, context: Context, shape: tuple[int, ...]) -> Array:
        """All rows, (R, D)."""
        made = [row.values(self.width, context.x_format, context.compute) for row in self.rows]
        count = context.norm.fold(shape, context.implementation.channel_axis).rows
        return np.asarray([made[r % len(made)] for r in range(count)])

    def case(self, context: Context, rows: Array | None = None) -> Case:
        """The case in a context; ``rows``, (R, D), take the place of the trial's own.

        Raises
        ------
        SkipCaseError : where the norm or the implementation takes no such rows
        """
        shape = self.shape(context)
        fold = context.norm.fold(shape, context.implementation.channel_axis)
        x = fold.unfold(self.values(context, shape) if rows is None else rows)
        parameters = self._parameters(context, context.norm.parameter_size(fold))
        return case_from(context, x, affine=False, layout=context.layout, **parameters)

    def _parameters(self, context: Context, size: int) -> dict[str, Any]:
        fmt, offset, takes = context.parameter_format, context.norm.weight_offset, context.implementation.takes
        given: dict[str, Any] = {}
        if self.weight is not None and takes("weight"):
            given["weight"] = fmt.round(np.ldexp(weights(size, fmt, self.weight, offset), self.gain))
        if self.bias is not None and takes("bias"):
            given["bias"] = biases(size, fmt, self.bias)
        return given

    @property
    def words(self) -> str:
        """The input as a reader would say it."""
        rows = "; ".join(row.words for row in self.rows)
        size = f" times 2**{self.gain}" if self.gain else ""
        weight = "weights of 1" if self.weight is None else f"random weights (seed {self.weight}){size}"
        bias = "" if self.bias is None else f", random biases (seed {self.bias})"
        return f"rows of {self.width} elements ({rows}), {weight}{bias}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Trial:
        """The inverse of `to_dict`.

        Raises
        ------
        ValueError, TypeError, KeyError : for anything else
        """
        known = {f.name for f in fields(cls)}
        return cls(**{key: value for key, value in data.items() if key in known} | {"rows": tuple(map(_row, data["rows"]))})


def excess(row: Array, fmt: Format, compute: Format) -> int:
    """By which power of two a row (D,) must be divided for its sum of squares to stay well below overflow; 0 where it does."""
    top = float(np.abs(row).max())
    if top == 0:
        return 0
    # quotients first: squares of float64 rows may overflow themselves
    size = math.log2(top) + 0.5 * math.log2(float(np.square(row / top).sum()))
    emax = fmt.emax if fmt.p > compute.p else compute.emax
    return max(0, math.ceil(size - 0.5 * (1 - _HEADROOM) * emax))


def _row(data: Mapping[str, Any]) -> Row:
    base: str | Sequence[float] = data["base"]
    edits = tuple((int(position), float(value)) for position, value in data["edits"])
    return Row(**{**data, "base": base if isinstance(base, str) else tuple(base), "edits": edits})
