"""What every report tells, taken from the results of an audit: verdict, grades, findings, skips and errors in ulp."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from normcheck.formats import FORMATS
from normcheck.regimes import REGIMES
from normcheck.results import Outcome, Result, Witness

K = TypeVar("K")
T = TypeVar("T")

NAMED = 12  # of a list of facts
GRADES = {
    "A+": "within the bound of one strict summation tree, ceil(log2 D) additions deep",
    "A": "within the bound of a summation tree 32 additions deeper, as a vectorized kernel has it",
    "B": "within the bound of a sequential sum, which grows with D",
    "F": "beyond every bound that its contract allows",
    "-": "no shape could be judged",
}


class Judged(Protocol):
    """What a report needs of an audit."""

    @property
    def results(self) -> Sequence[Result]:
        """All results of the run."""

    @property
    def born(self) -> Mapping[str, Any]:
        """Where, when, on what and by which command the audit was made."""

    @property
    def grades(self) -> Mapping[tuple[str, str], str]:
        """The grade of each (implementation, dtype) that was judged for accuracy."""


@dataclass(frozen=True)
class Finding:
    """Results of one check that ended alike and show the same, worst first.

    Attributes
    ----------
    check, norm, device : what the results have in common
    outcome : how they ended
    implementations : on which they were found; a module and its function often show the very same
    results : worst first
    """

    check: str
    norm: str
    device: str
    outcome: Outcome
    implementations: tuple[str, ...]
    results: tuple[Result, ...]

    @property
    def worst(self) -> Result:
        """The result with the largest error beside its tolerance."""
        return self.results[0]

    @property
    def witness(self) -> Witness | None:
        """The input that takes the fewest words to show, in the dtype of the worst result where there is one."""
        shown = [result for result in self.results if result.witness is not None]
        own = [result for result in shown if result.dtype == self.worst.dtype] or shown
        witnesses = (result.witness for result in own if result.witness is not None)
        return min(witnesses, key=lambda witness: len(witness.snippet), default=None)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes that it was found in, widest first."""
        return _ordered((result.dtype for result in self.results), tuple(FORMATS))

    @property
    def layouts(self) -> tuple[str, ...]:
        """The memory layouts that it was found in."""
        return _ordered(result.layout for result in self.results)

    @property
    def where(self) -> tuple[Result, ...]:
        """The worst result of each dtype and regime, worst first."""
        first: dict[tuple[str, str], Result] = {}
        for result in self.results:
            first.setdefault((result.dtype, result.regime), result)
        return tuple(first.values())


@dataclass(frozen=True)
class Row:
    """One implementation in the summary: its grade by dtype, and how many of its results ended in each outcome."""

    implementation: str
    norm: str
    grades: Mapping[str, str]
    counts: Mapping[Outcome, int]

    @property
    def bad(self) -> int:
        """How many results make the audit fail."""
        return sum(n for outcome, n in self.counts.items() if outcome.bad)

    @property
    def judged(self) -> bool:
        """Whether anything was not skipped."""
        return set(self.counts) != {Outcome.SKIPPED}


@dataclass(frozen=True)
class Skip:
    """Why something was not judged, and what that was."""

    reason: str
    checks: tuple[str, ...]
    implementations: tuple[str, ...]
    count: int


@dataclass(frozen=True)
class Errors:
    """Worst error in ulp of one implementation in one dtype, by regime; and the smallest share of correctly rounded outputs."""

    implementation: str
    dtype: str
    ulp: Mapping[str, float]
    correctly_rounded: float | None


def dtypes(audit: Judged) -> tuple[str, ...]:
    """The dtypes that were judged, widest first."""
    return _ordered((result.dtype for result in audit.results), tuple(FORMATS))


def rows(audit: Judged) -> tuple[Row, ...]:
    """One row for each implementation, in the order of the audit; those of which nothing was judged come last."""
    grades: dict[str, dict[str, str]] = {}
    for (implementation, dtype), grade in audit.grades.items():
        grades.setdefault(implementation, {})[dtype] = grade
    found = (
        Row(name, results[0].norm, grades.get(name, {}), _count(result.outcome for result in results))
        for name, results in group(audit.results, lambda result: result.implementation).items()
    )
    return tuple(sorted(found, key=lambda row: not row.judged))


def findings(audit: Judged, *outcomes: Outcome) -> tuple[Finding, ...]:
    """Results that ended in one of these outcomes, grouped by check, norm and device; the worst first."""
    chosen = sorted((result for result in audit.results if result.outcome in outcomes), key=_badness, reverse=True)
    of_one = group(chosen, lambda r: (r.outcome, r.implementation, r.norm, r.check, r.device)).values()
    alike = group(of_one, lambda rs: (rs[0].outcome, rs[0].norm, rs[0].check, rs[0].device, rs[0].message)).values()
    found = (_finding([result for results in twins for result in results]) for twins in alike)
    return tuple(sorted(found, key=lambda finding: outcomes.index(finding.outcome)))


def _finding(results: Sequence[Result]) -> Finding:
    r = results[0]
    names = _ordered(result.implementation for result in results)
    return Finding(r.check, r.norm, r.device, r.outcome, names, tuple(sorted(results, key=_badness, reverse=True)))


def errors(audit: Judged) -> tuple[Finding, ...]:
    """What makes the audit fail."""
    return findings(audit, *(outcome for outcome in Outcome if outcome.bad))


def warnings(audit: Judged) -> tuple[Finding, ...]:
    """What does not make the audit fail, but may hurt somebody."""
    return findings(audit, Outcome.WARNED)


def known(audit: Judged) -> tuple[Finding, ...]:
    """What the ledger of verified upstream faults speaks of: failures that it expects, and passes that it does not."""
    return findings(audit, Outcome.XFAILED, Outcome.XPASSED)


def skips(audit: Judged) -> tuple[Skip, ...]:
    """What was not judged, by reason, the most frequent first."""
    skipped = [result for result in audit.results if result.outcome is Outcome.SKIPPED]
    groups = group(skipped, lambda result: result.message)
    found = (
        Skip(reason, _ordered(r.check for r in results), _ordered(r.implementation for r in results), len(results))
        for reason, results in groups.items()
    )
    return tuple(sorted(found, key=lambda skip: -skip.count))


def facts(born: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Where an audit was born as pairs of words, nested ones under their joined names, without what is told elsewhere."""
    for name, value in born.items():
        label = f"{prefix}{name}".replace("_", " ")
        if name == "alike":
            continue
        if isinstance(value, Mapping):
            yield from facts(value, f"{label} ")
        elif isinstance(value, list | tuple) and value and all(isinstance(part, Mapping) for part in value):
            for place, part in enumerate(value, 1):
                yield from facts(part, f"{label} {place} ")
        elif isinstance(value, list | tuple):
            yield label, some([str(one) for one in value], NAMED, " ")
        elif str(value):
            yield label, str(value)


def some(names: Sequence[str], most: int, between: str = ", ") -> str:
    """The first names, and how many more there are."""
    return between.join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def paths(audit: Judged) -> Mapping[tuple[str, str], tuple[str, ...]]:
    """The implementations whose calls dispatched the same operators on the same device, by what they ran and where."""
    told = [result for result in audit.results if result.check == "dispatched-operators" and result.message.startswith("ran ")]
    groups = group(told, lambda result: (result.message.removeprefix("ran ").partition(", but should")[0], result.device))
    return {key: _ordered(result.implementation for result in results) for key, results in groups.items()}


def regimes(audit: Judged) -> tuple[str, ...]:
    """The regimes in which an error in ulp was measured, in their own order."""
    return _ordered((result.regime for result in audit.results if "ulp" in result.measures), tuple(REGIMES))


def ulps(audit: Judged) -> tuple[Errors, ...]:
    """The worst error in ulp by implementation, dtype and regime."""
    measured = [result for result in audit.results if "ulp" in result.measures]
    groups = group(measured, lambda result: (result.implementation, result.dtype))
    return tuple(Errors(name, dtype, _worst_ulp(r), _least_share(r)) for (name, dtype), r in groups.items())


def by_cause(found: Iterable[Finding]) -> tuple[tuple[str, tuple[Finding, ...]], ...]:
    """Findings by what they have in common: what the ledger says of them, or else the property that they break."""
    groups = group(found, lambda finding: finding.worst.ledger or finding.check)
    return tuple((cause, tuple(findings)) for cause, findings in groups.items())


def difference(witness: Witness, code: Callable[[str], str] = str) -> str:
    """What came and what should have come, in one sentence; nothing where the witness does not say."""
    if witness.got is None or witness.expected is None:
        return ""
    place = "" if witness.index is None else f" at element {witness.index} of the row"
    return f"Got {_hexadecimal(witness.got, code)}, but should be {_hexadecimal(witness.expected, code)}{place}."


def _hexadecimal(literal: str, code: Callable[[str], str]) -> str:
    try:
        return f"{code(literal)} ({float.fromhex(literal):.9g})"
    except ValueError:
        return code(literal)


def verdict(audit: Judged) -> str:
    """The audit in one sentence."""
    judged = [row for row in rows(audit) if row.judged]
    total = number(sum(sum(row.counts.values()) for row in judged), "result")
    if not judged:
        return "Nothing was judged."
    known = sum(1 for row in judged if Outcome.XFAILED in row.counts)
    failing = sum(1 for row in judged if row.bad)
    told = f"{_subject(len(judged), failing, known)}, in {total}{_notes(judged, told=not failing)}."
    stopped = audit.born.get("interrupted")
    return f"Interrupted: {stopped}. Of what was judged: {told[0].lower()}{told[1:]}" if stopped else told


def _subject(judged: int, failing: int, known: int) -> str:
    if failing:
        some = f"{failing} of {judged} implementations {'fails' if failing == 1 else 'fail'}"
        return "The implementation fails" if judged == 1 else some
    if not known:
        return "The implementation passes" if judged == 1 else f"All {judged} implementations pass"
    # a grade F may stand beside it
    excused = "only as the ledger of upstream faults says"
    if judged == 1:
        return f"The implementation fails {excused}"
    passing = judged - known
    pass_, fail = "passes" if passing == 1 else "pass", "fails" if known == 1 else "fail"
    return f"Of {judged} implementations {passing} {pass_}, and {known} {fail} {excused}"


def _notes(judged: Sequence[Row], told: bool) -> str:
    """What else there was; known faults too, unless they are told already."""
    warned = sum(1 for row in judged if Outcome.WARNED in row.counts)
    expected = 0 if told else sum(1 for row in judged if Outcome.XFAILED in row.counts)
    mended = sum(1 for row in judged if Outcome.XPASSED in row.counts)
    notes = ((warned, "with warnings"), (expected, "with known upstream faults"), (mended, "with known faults that are mended"))
    found = ", ".join(f"{n} {what}" for n, what in notes if n)
    return f"; {found}" if found else ""


def _worst_ulp(results: Sequence[Result]) -> dict[str, float]:
    worst: dict[str, float] = {}
    for result in results:
        worst[result.regime] = max(worst.get(result.regime, 0.0), result.measures["ulp"], key=_rank)
    return worst


def _least_share(results: Sequence[Result]) -> float | None:
    return min((r.measures["correctly_rounded"] for r in results if "correctly_rounded" in r.measures), default=None)


def _rank(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _badness(result: Result) -> tuple[float, bool]:
    """How far beyond its tolerance a result is; one with a witness before one without."""
    ratio = result.ratio
    return (math.inf if ratio is None else _rank(ratio), result.witness is not None)


def group(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items by what the key says of them, in the order in which they come."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _count(outcomes: Iterable[Outcome]) -> dict[Outcome, int]:
    counts: dict[Outcome, int] = {}
    for outcome in outcomes:
        counts[outcome] = counts.get(outcome, 0) + 1
    return counts


def _ordered(names: Iterable[str], order: Sequence[str] = ()) -> tuple[str, ...]:
    """Each name once: first those in ``order``, in that order, then the others as they come."""
    seen = tuple(dict.fromkeys(names))
    return tuple(name for name in order if name in seen) + tuple(name for name in seen if name not in order)


def number(n: int, thing: str) -> str:
    """A count with its noun."""
    return f"{n:,} {thing}{'' if n == 1 else 's'}"
