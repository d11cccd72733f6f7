"""What a certification of the references found: a table, a verdict, and a file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from normcheck.born import born
from normcheck.reference.certification import Certification, Tally
from normcheck.stored import put

COLUMNS = ("direction", "format", "elements", "mismatches", "ties", "to double-double", "to exact", "certified")

LEGEND = (
    "Levels: float64 decides how most elements of narrower formats round; level1 are those that it leaves to double-double, "
    "level2 those that this leaves to exact arithmetic, with all ties, which lie halfway between two numbers of the format; "
    "uncertified are those left even then. Settings: the seed draws rows over all regimes, formats, norms and places of eps, "
    "until so many elements of all formats together are compared forward, and as many of dx, with dweight and dbias beside them, "
    "backward. Examples: the first ten mismatches."
)


def rows(found: Certification) -> Iterable[tuple[str, ...]]:
    """One row for each direction and format."""
    for direction, tallies in (("forward", found.forward), ("backward", found.backward)):
        for name, tally in tallies.items():
            counts = (tally.elements, tally.mismatches, tally.ties, tally.level1, tally.level2)
            yield direction, name, *(f"{count:,}" for count in counts), f"{share(tally):.4%}"


def share(tally: Tally) -> float:
    """Share of elements whose rounding is decided; 1 where there are none."""
    return 1 - tally.uncertified / tally.elements if tally.elements else 1.0


def verdict(found: Certification) -> str:
    """One line, and the first mismatches below it."""
    tallies = [*found.forward.values(), *found.backward.values()]
    total, wrong = sum(tally.elements for tally in tallies), sum(tally.mismatches for tally in tallies)
    return "\n".join([f"{wrong:,} of {total:,} elements differ.", *found.examples])


def write(found: Certification, path: Path, **settings: int) -> None:
    """The counts as JSON, with where they were made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {"born": born(("python-flint", "numba"), **settings), "legend": LEGEND, **found.to_dict()}
    put(path, json.dumps(data, indent=1) + "\n")
