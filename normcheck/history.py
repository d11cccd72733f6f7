"""Audits over time: what changed between two, what a baseline has already, and the trend of many."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from normcheck.audit import GRADES, Audit
from normcheck.results import Outcome, Result

# The rounding of the output itself moves a measured error by up to half an ulp, whatever the code does.
NOISE = 0.5
KINDS = {
    "failure": "new failures",
    "fixed": "fixed",
    "lost": "failed before, and not judged now",
    "grade": "changed grade",
    "up": "larger error",
    "down": "smaller error",
    "bits": "other bits",
}
# facts that results may depend on
_FACTS = ("machine", "python", "versions", "threads", "profile", "seed")
_ORDER = (Outcome.FAILED, Outcome.BROKEN, Outcome.CRASHED, Outcome.TIMEOUT, Outcome.XFAILED, Outcome.XPASSED, Outcome.WARNED)

Case = tuple[Any, ...]
Task = tuple[str, str, str]
"""Implementation, dtype and check."""


@dataclass(frozen=True)
class Change:
    """One thing that is not what it was.

    Attributes
    ----------
    kind : a key of `KINDS`
    implementation, dtype, check : where
    text : what it was and what it is
    """

    kind: str
    implementation: str
    dtype: str
    check: str
    text: str


@dataclass(frozen=True)
class Comparison:
    """Two audits beside each other.

    Attributes
    ----------
    notes : how their births differ, one line each, so that unlike things are not taken for like ones
    changes : by kind, in the order of `KINDS`
    common : how many cases were judged in both
    gone, added : the tasks that were judged only in the old one, and only in the new one
    """

    notes: tuple[str, ...]
    changes: tuple[Change, ...]
    common: int = 0
    gone: tuple[Task, ...] = ()
    added: tuple[Task, ...] = ()

    @property
    def worse(self) -> bool:
        """Whether something fails that did not."""
        return any(change.kind == "failure" for change in self.changes)


def compare(old: Audit, new: Audit) -> Comparison:
    """What changed from one audit to another.

    Errors and bits are compared case by case where both have the same seed: an error counts as changed beyond half an ulp, which
    the rounding of the output alone can make. A case is the same where implementation, dtype, device, check, regime, shape and
    layout are.
    """
    before, now = _cases(old), _cases(new)
    changes = [*_outcomes(before, now), *_grades(old, new)]
    if old.born.get("seed") == new.born.get("seed"):
        changes += [*_errors(before, now), *_bits(before, now)]
    kinds = list(KINDS)
    changes.sort(key=lambda change: kinds.index(change.kind))
    common = sum(_judged(result) and _judged(now.get(case)) for case, result in before.items())
    then, since = (_tasks(filter(_judged, audit.results)) for audit in (old, new))
    gone, added = (tuple(task for task in one if task not in other) for one, other in ((then, since), (since, then)))
    return Comparison(tuple(_notes(old.born, new.born)), tuple(changes), common, gone, added)


@dataclass(frozen=True)
class Point:
    """One task in one audit.

    Attributes
    ----------
    audit : the name of its file
    outcome : the worst of its results
    ulp : the largest error; None where none was measured
    bits : digests of its results, in their order
    versions : of libraries
    """

    audit: str
    outcome: Outcome
    ulp: float | None
    bits: tuple[str, ...]
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Trend:
    """One task over several audits, in their order."""

    implementation: str
    dtype: str
    check: str
    points: tuple[Point, ...]

    @property
    def events(self) -> tuple[str, ...]:
        """What changed from one audit to the next, one line each, with the versions that changed beside it."""
        pairs = itertools.pairwise(self.points)
        return tuple(
            f"{now.audit}: {'; '.join(what)}{_release(then, now)}" for then, now in pairs if (what := _differs(then, now))
        )


def trends(audits: Mapping[str, Audit]) -> tuple[Trend, ...]:
    """Every task of several audits over time.

    Parameters
    ----------
    audits : by the names of their files, in order
    """
    points: dict[Task, list[Point]] = {}
    for name, audit in audits.items():
        for task, results in _tasks(audit.results).items():
            points.setdefault(task, []).append(_point(name, results, audit.born.get("versions", {})))
    return tuple(Trend(*task, tuple(found)) for task, found in points.items())


def stored(folder: Path) -> dict[str, Audit]:
    """The audits of a folder by the names of their files, sorted: ``*.json``, and ``*/audit.json`` by the folder's name.

    Raises
    ------
    ValueError : if one of the files holds no audit, naming it, or there is none
    """
    files = {path.stem: path for path in folder.glob("*.json")} | {path.parent.name: path for path in folder.glob("*/audit.json")}
    audits = {}
    for name in sorted(files):
        try:
            audits[name] = Audit.read(files[name])
        except ValueError as error:
            raise ValueError(f"{files[name]} is no audit: {error}") from None
    if not audits:
        raise ValueError(f"{folder} holds no audit")
    return audits


def keep(audit: Audit, folder: Path) -> Path:
    """Write an audit into a folder, named by the time of its birth, so that names sort as the audits came.

    Raises
    ------
    ValueError : for a time that is none: what a file says of itself must not choose where it is written
    """
    return audit.write(folder / f"{_date(str(audit.born.get('utc', '')))}.json")


def _date(utc: str) -> str:
    """A time as the name of a file, from its parsed parts alone."""
    try:
        return datetime.fromisoformat(utc).isoformat().replace("+00:00", "Z").replace(":", "-") if utc else "audit"
    except ValueError:
        raise ValueError(f"utc={utc!r}, but should be a time such as '2026-03-01T00:00:00+00:00'") from None


def _cases(audit: Audit) -> dict[Case, Result]:
    """Results by case; where a check judges one case in several ways, by their number as well."""
    found: dict[Case, Result] = {}
    count: dict[Case, int] = {}
    for r in audit.results:
        case = (r.implementation, r.dtype, r.device, r.check, r.regime, r.shape, r.layout)
        count[case] = count.get(case, 0) + 1
        found[*case, count[case]] = r
    return found


def _judged(result: Result | None) -> bool:
    return result is not None and result.outcome is not Outcome.SKIPPED


def _tasks(results: Iterable[Result]) -> dict[Task, list[Result]]:
    tasks: dict[Task, list[Result]] = {}
    for result in results:
        tasks.setdefault((result.implementation, result.dtype, result.check), []).append(result)
    return tasks


def _change(kind: str, result: Result, text: str) -> Change:
    return Change(kind, result.implementation, result.dtype, result.check, text)


def _outcomes(before: Mapping[Case, Result], now: Mapping[Case, Result]) -> Iterator[Change]:
    for case, result in now.items():
        then = before.get(case)
        if result.outcome.bad and (then is None or not then.outcome.bad):
            was = "was not judged" if then is None else f"was {then.outcome}"
            yield _change("failure", result, f"{_where(result)}{was}, is {result.outcome}: {result.message}")
    for case, then in before.items():
        if not then.outcome.bad:
            continue
        result = now.get(case, then)
        if case not in now or result.outcome is Outcome.SKIPPED:
            reason = f": {result.message}" if case in now else ""
            yield _change("lost", then, f"{_where(then)}was {then.outcome}{reason}")
        elif not result.outcome.bad:
            yield _change("fixed", result, f"{_where(result)}was {then.outcome}, is {result.outcome}")


def _grades(old: Audit, new: Audit) -> Iterator[Change]:
    for (implementation, dtype), grade in new.grades.items():
        then = old.grades.get((implementation, dtype), "-")
        if grade != then and "-" not in (grade, then):
            better = GRADES.index(grade) < GRADES.index(then)
            yield Change("grade", implementation, dtype, "accuracy", f"{then} -> {grade}, {'better' if better else 'worse'}")


def _errors(before: Mapping[Case, Result], now: Mapping[Case, Result]) -> Iterator[Change]:
    """The largest change of each task, each way."""
    largest: dict[tuple[Task, str], tuple[float, str, Result]] = {}
    for case, result in now.items():
        then, is_ = (one.measures.get("ulp", math.nan) if one is not None else math.nan for one in (before.get(case), result))
        moved = is_ - then
        if not abs(moved) > NOISE:
            continue
        place = ((result.implementation, result.dtype, result.check), "up" if moved > 0 else "down")
        if abs(moved) > largest.get(place, (0.0, "", result))[0]:
            largest[place] = (abs(moved), f"{_where(result)}{then:.3g} -> {is_:.3g} ulp", result)
    for (_, kind), (_, text, result) in largest.items():
        yield _change(kind, result, text)


def _bits(before: Mapping[Case, Result], now: Mapping[Case, Result]) -> Iterator[Change]:
    both = {case: (before[case], result) for case, result in now.items() if case in before and result.bits and before[case].bits}
    tasks: dict[Task, list[bool]] = {}
    for then, result in both.values():
        tasks.setdefault((result.implementation, result.dtype, result.check), []).append(result.bits != then.bits)
    for (implementation, dtype, check), other in tasks.items():
        if any(other):
            yield Change("bits", implementation, dtype, check, f"in {sum(other)} of {len(other)} results")


def _where(result: Result) -> str:
    parts = [result.regime, "x".join(map(str, result.shape)), result.layout if result.layout != "contiguous" else ""]
    text = " ".join(part for part in parts if part)
    return f"{text}: " if text else ""


def _notes(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for key in _FACTS:
        one, other = then.get(key), now.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from (
                f"{'' if key == 'versions' else key + ' '}{name}: {one.get(name)} -> {other.get(name)}"
                for name in {**one, **other}
                if one.get(name) != other.get(name)
            )
        elif one != other:
            yield f"{key}: {one} -> {other}"
    if then.get("seed") != now.get("seed"):
        yield "errors and bits are not compared: the seeds differ"


def _point(name: str, results: Sequence[Result], versions: Mapping[str, str]) -> Point:
    outcomes = {result.outcome for result in results}
    rest = Outcome.PASSED if Outcome.PASSED in outcomes else Outcome.SKIPPED
    worst = next((outcome for outcome in _ORDER if outcome in outcomes), rest)
    ulps = [result.measures["ulp"] for result in results if "ulp" in result.measures]
    return Point(name, worst, max(ulps, default=None), tuple(result.bits for result in results if result.bits), versions)


def _differs(then: Point, now: Point) -> list[str]:
    what = [f"{then.outcome} -> {now.outcome}"] if then.outcome is not now.outcome else []
    if then.ulp is not None and now.ulp is not None and abs(now.ulp - then.ulp) > NOISE:
        what.append(f"{then.ulp:.3g} -> {now.ulp:.3g} ulp")
    if then.bits and now.bits and then.bits != now.bits:
        what.append("other bits")
    return what


def _release(then: Point, now: Point) -> str:
    """The versions that changed, in brackets."""
    names = [name for name in {**then.versions, **now.versions} if then.versions.get(name) != now.versions.get(name)]
    changed = ", ".join(f"{name} {then.versions.get(name, 'none')} -> {now.versions.get(name, 'none')}" for name in sorted(names))
    return f" [{changed}]" if changed else " [same versions]"
