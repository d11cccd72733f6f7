"""Where the heavy loops run: compiled where numba is installed and there is enough to do, else in numpy."""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from typing import NamedTuple, cast

from normcheck.reference import loops, loops_dd
from normcheck.reference.double_double import LoopsDD
from normcheck.reference.loops import Loops


class Place(NamedTuple):
    """The loops of both levels."""

    float64: Loops
    dd: LoopsDD


_WORTHWHILE = 1 << 20


def fastest(elements: int) -> Place:
    """The loops to use for so many elements; the environment's NORMCHECK_NUMBA=0 or =1 decides without counting them."""
    asked = os.environ.get("NORMCHECK_NUMBA", "")
    if asked == "0" or (asked != "1" and elements < _WORTHWHILE) or importlib.util.find_spec("numba") is None:
        return Place(cast(Loops, loops), cast(LoopsDD, loops_dd))
    return _compiled()


@cache
def _compiled() -> Place:
    from normcheck.reference import compiled, compiled_dd

    return Place(cast(Loops, compiled), cast(LoopsDD, compiled_dd))
