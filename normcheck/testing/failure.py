"""What a failing item shows: one message, the worst element, the tolerance with its terms, and a snippet to paste."""

from __future__ import annotations

import inspect
import math
import textwrap
from collections.abc import Iterable, Sequence

from normcheck.checks import Check, Context
from normcheck.checks.terms import lines
from normcheck.implementations import CallError, snippet
from normcheck.reporters.text import number, plain
from normcheck.results import Outcome, Result, Witness


def text(context: Context, check: Check, bad: Sequence[Result], total: int) -> str:
    """The failure of a check, told by its worst result.

    Parameters
    ----------
    context, check : what was judged, and by what
    bad : the results that fail, at least one
    total : how many there are in all
    """
    worst = max(bad, key=_badness)
    claim = f"{context.implementation.name} in {context.dtype} on {context.device}, as {context.norm}"
    parts = [
        [f"{check.id}: {plain(claim)}", plain(worst.message)],
        _measured(worst),
        _tolerance(check, worst),
        [f"{len(bad)} of {total} inputs fail{_regimes(bad)}"] if total > 1 else [],
        _shown(context, worst, bad),
        [f"What it states and where its tolerance comes from: normcheck explain {check.id}"],
    ]
    return "\n".join(line for part in parts for line in part)


def _measured(worst: Result) -> list[str]:
    found: list[str] = []
    witness = worst.witness
    if witness is not None and witness.got is not None and witness.expected is not None:
        place = "" if witness.index is None else f" at element {witness.index} of the row"
        found.append(f"worst element: got {_both(witness.got)}, expected {_both(witness.expected)}{place}, x = {_short(witness)}")
    if worst.error is not None and worst.tolerance is not None:
        ratio = "" if worst.ratio is None else f", {number(worst.ratio)} times the tolerance"
        found.append(f"error: {number(worst.error)} ({worst.unit}){ratio}")
    return found


def _tolerance(check: Check, worst: Result) -> list[str]:
    """The terms where a bound was derived for the element, else what the check's page says of its tolerance."""
    if worst.tolerance is None:
        return []
    head = f"tolerance: {number(worst.tolerance)}"
    return [f"{head}, the sum of", *lines(worst.terms)] if worst.terms else [f"{head}; as the check says,", *_page(check)]


def _page(check: Check) -> list[str]:
    """The section Tolerance of a check's page."""
    _, _, rest = inspect.cleandoc(check.doc).partition("\nTolerance\n---------\n")
    section, _, _ = rest.partition("\n\nKnown exceptions\n")
    return textwrap.indent(section.strip(), "    ").splitlines()


def _shown(context: Context, worst: Result, bad: Iterable[Result]) -> list[str]:
    if worst.outcome is Outcome.BROKEN:
        return _raised(context, worst)
    witnesses = [result.witness for result in bad if result.witness is not None]
    if not witnesses:
        return ["no single call shows it"]
    shortest = worst.witness if worst.witness is not None else min(witnesses, key=lambda witness: len(witness.snippet))
    return _pasted(shortest.snippet)


def _raised(context: Context, worst: Result) -> list[str]:
    """The user's own traceback, and the call, where an input of the standard regime shows it."""
    try:
        shape = worst.shape or context.shape(4, context.widths[-1])
        case = context.case(worst.regime or "standard", shape, worst.layout)
        context.run(case)
    except CallError as error:
        return ["", *error.traceback.rstrip().splitlines(), *_pasted(snippet(context.implementation, case.inputs))]
    except Exception:  # noqa: BLE001 - whatever it is, the message says what happened
        return []
    return []


def _pasted(source: str) -> list[str]:
    # not indented, so that it can be pasted as it stands
    return ["", "# to see it without normcheck, paste from here", *source.rstrip().splitlines(), "# to here", ""]


def _regimes(bad: Sequence[Result]) -> str:
    names = list(dict.fromkeys(result.regime for result in bad if result.regime))
    return f": {', '.join(names[:6])}{', ...' if len(names) > 6 else ''}" if names else ""


def _badness(result: Result) -> tuple[bool, float]:
    """One with a witness before one without; then how far beyond its tolerance it is."""
    ratio = result.ratio
    return result.witness is not None, math.inf if ratio is None or math.isnan(ratio) else ratio


def _both(literal: str) -> str:
    try:
        return f"{literal} ({float.fromhex(literal):.9g})"
    except ValueError:
        return literal


def _short(witness: Witness) -> str:
    return witness.inputs if len(witness.inputs) <= 110 else f"{witness.inputs[:107]}..."
