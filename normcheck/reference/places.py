"""Where the heavy loops run: compiled where numba is installed and there is enough to do, else in numpy."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, cast

from normcheck.formats import Array
from normcheck.reference import loops, loops_dd
from normcheck.reference.double_double import LoopsDD
from normcheck.reference.loops import Loops


class Place(NamedTuple):
    """What runs in one place.

    Attributes
    ----------
    float64, dd : the loops of both levels
    narrow : whether those of the first take float32 rows as they are
    columns : sums over rows, see `normcheck.reference.compiled_sums.columns`; None where products and trees have to do
    """

    float64: Loops
    dd: LoopsDD
    narrow: bool = False
    columns: Columns | None = None


Columns = Callable[[Array, tuple[Any, Array, Array, Array] | None], tuple[Array, Array, Array]]


_WORTHWHILE = 1 << 20


def fastest(elements: int) -> Place:
    """The loops to use for so many elements; the environment's NORMCHECK_NUMBA=0 or =1 decides without counting them."""
    asked = os.environ.get("NORMCHECK_NUMBA", "")
    if asked == "0" or (asked != "1" and elements < _WORTHWHILE) or importlib.util.find_spec("numba") is None:
        return Place(cast(Loops, loops), cast(LoopsDD, loops_dd))
    return _compiled()


@cache
def _compiled() -> Place:
    from normcheck.reference import compiled, compiled_dd, compiled_sums

    return Place(cast(Loops, compiled), cast(LoopsDD, compiled_dd), True, compiled_sums.columns)
