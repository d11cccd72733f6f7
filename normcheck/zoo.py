"""The zoo judged: which check finds which fault, and what is said of the sound collection."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from normcheck.audit import PROFILES, Unit, plan, run_all
from normcheck.born import born
from normcheck.checks import Check, checks
from normcheck.faults import Fault, faults, sound, sound_warnings
from normcheck.implementations import Implementation
from normcheck.results import Outcome, Result
from normcheck.stored import put

SCHEMA = 1

Progress = Callable[[int, int, str], None]
Dtypes = tuple[str, ...]


@dataclass(frozen=True)
class Judged:
    """What the checks said of one fault or sound norm.

    Attributes
    ----------
    name : of the fault or the sound norm
    dtypes : in which it was judged
    errors, warnings : dtypes by id of the check that fired there; a check that gave both is listed with the errors
    """

    name: str
    dtypes: Dtypes
    errors: Mapping[str, Dtypes] = field(default_factory=dict)
    warnings: Mapping[str, Dtypes] = field(default_factory=dict)

    def found(self, check: str) -> Dtypes:
        """The dtypes in which the check fired, as an error or a warning."""
        return tuple(dtype for dtype in self.dtypes if dtype in (*self.errors.get(check, ()), *self.warnings.get(check, ())))


@dataclass(frozen=True)
class Row:
    """A fault and what was said of it.

    Attributes
    ----------
    missed : dtypes by expected check: those in which the first found nothing, and all where another found nothing in any,
        which is told only where the fault was judged in all of its dtypes
    """

    fault: Fault
    judged: Judged
    missed: Mapping[str, Dtypes]


@dataclass(frozen=True)
class Flagged:
    """A sound norm that was flagged without reason: dtypes by check, errors and warnings that are not documented."""

    name: str
    errors: Mapping[str, Dtypes]
    warnings: Mapping[str, Dtypes]


@dataclass(frozen=True)
class Zoo:
    """What came out of judging faults and sound norms.

    Attributes
    ----------
    judged : faults by kind and name, then sound norms by name
    checks : ids of the checks that were run
    born : machine, versions, commit, UTC time, and the settings of the run
    interrupted : whether only a part was judged
    """

    judged: tuple[Judged, ...]
    checks: tuple[str, ...]
    born: Mapping[str, Any] = field(default_factory=dict)
    interrupted: bool = False

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Every fault that was judged, by kind and name."""
        said = {one.name: one for one in self.judged}
        return tuple(
            Row(fault, said[fault.name], self._missed(fault, said[fault.name])) for fault in faults() if fault.name in said
        )

    @property
    def missed(self) -> tuple[Row, ...]:
        """The faults that some expected check did not find."""
        return tuple(row for row in self.rows if row.missed)

    @property
    def sound(self) -> tuple[Judged, ...]:
        """What was said of the sound norms, by name."""
        names = {implementation.name for implementation in sound()}
        return tuple(one for one in self.judged if one.name in names)

    @property
    def flagged(self) -> tuple[Flagged, ...]:
        """The sound norms with an error, or with a warning that the collection does not document."""
        told = []
        for one in self.sound:
            known = sound_warnings().get(one.name, ())
            undocumented = {check: dtypes for check, dtypes in one.warnings.items() if check not in known}
            if one.errors or undocumented:
                told.append(Flagged(one.name, one.errors, undocumented))
        return tuple(told)

    @property
    def passed(self) -> bool:
        """Whether every fault is caught as it should be, and no sound norm is flagged."""
        return not self.missed and not self.flagged

    @property
    def drift(self) -> tuple[str, ...]:
        """What the code and this result do not share, one line each: checks, faults, sound norms and their dtypes."""
        here = {one.name: one.dtypes for one in self.judged}
        code = {fault.name: fault.dtypes for fault in faults()} | {one.name: one.dtypes for one in sound()}
        changed = [f"{name}: dtypes differ" for name in code if name in here and set(code[name]) != set(here[name])]
        return (*_differing("check", checks(), self.checks), *_differing("norm", code, here), *changed)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        judged = [asdict(one) for one in self.judged]
        return {"schema": SCHEMA, "born": dict(self.born), "checks": list(self.checks), "zoo": judged}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Zoo:
        """The inverse of `to_dict`.

        Raises
        ------
        ValueError : if the data is no zoo, or of a newer schema
        """
        if "zoo" not in data or not isinstance(data.get("schema"), int):
            raise ValueError("no zoo: the keys 'schema' and 'zoo' are missing")
        if data["schema"] > SCHEMA:
            raise ValueError(f"schema={data['schema']}, but should be at most {SCHEMA}: it was written by a newer normcheck")
        judged = tuple(
            Judged(one["name"], tuple(one["dtypes"]), _tuples(one["errors"]), _tuples(one["warnings"])) for one in data["zoo"]
        )
        return cls(judged, tuple(data["checks"]), dict(data.get("born", {})))

    def write(self, path: str | Path) -> Path:
        """Write it as JSON, one fault or sound norm a line."""
        data = self.to_dict()
        lines = ",\n".join(json.dumps(one) for one in data.pop("zoo"))
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        put(target, f'{json.dumps(data, indent=1)[:-2]},\n "zoo": [\n{lines}\n]}}\n')
        return target

    def _missed(self, fault: Fault, judged: Judged) -> dict[str, Dtypes]:
        first, *others = fault.expected
        missed = {first: tuple(dtype for dtype in judged.dtypes if dtype not in judged.found(first))}
        if set(judged.dtypes) == set(fault.dtypes):
            missed |= {check: judged.dtypes for check in others if not judged.found(check)}
        return {check: dtypes for check, dtypes in missed.items() if dtypes and check in self.checks}


def chosen(globs: Sequence[str] = (), kinds: Sequence[str] = ()) -> tuple[tuple[Fault, ...], tuple[Implementation, ...]]:
    """The faults and the sound norms to judge.

    Parameters
    ----------
    globs : patterns of names of faults and sound norms; none stands for all
    kinds : such as ``"K01"``; where one is given, no sound norm is taken

    Raises
    ------
    ValueError : for a pattern or a kind that matches nothing
    """
    known = sorted({fault.kind for fault in faults()})
    for kind in kinds:
        if kind not in known:
            raise ValueError(f"kind={kind!r}, but should be one of {', '.join(known)}")
    ill = tuple(fault for fault in faults() if not kinds or fault.kind in kinds)
    well = () if kinds else sound()
    names = [*(fault.name for fault in ill), *(implementation.name for implementation in well)]
    for glob in globs:
        if not fnmatch.filter(names, glob):
            raise ValueError(f"fault={glob!r} matches no fault and no sound norm")
    return tuple(f for f in ill if _matches(f.name, globs)), tuple(s for s in well if _matches(s.name, globs))


def units(ill: Iterable[Fault], well: Iterable[Implementation] = (), *, profile: str = "quick", **options: Any) -> list[Unit]:
    """What judging them will do.

    Every check is run, and as in an audit it is skipped behind a root that failed; the checks that a fault is expected to fail
    are run all the same, in the profile that the fault needs where that is more thorough.

    Parameters
    ----------
    options : of `normcheck.audit.plan`

    Raises
    ------
    ValueError : as `normcheck.audit.plan` does
    """
    expected = {fault.name: fault for fault in ill}
    planned = plan([*(fault.implementation for fault in expected.values()), *well], profile=profile, **options)
    made = []
    for unit in planned:
        fault = expected.get(unit.context.implementation.name)
        own = () if fault is None else tuple(_free(check) for check in unit.checks if check.id in fault.expected)
        if fault is None or PROFILES.index(fault.profile) <= PROFILES.index(profile):
            free = {check.id: check for check in own}
            made.append(Unit(unit.context, tuple(free.get(check.id, check) for check in unit.checks)))
        else:
            made += [unit, Unit(replace(unit.context, profile=fault.profile), own)]
    return made


def judge(planned: Sequence[Unit], *, workers: int = 1, progress: Progress | None = None, **settings: Any) -> Zoo:
    """Run the checks on faults and sound norms.

    Parameters
    ----------
    planned : from `units`
    workers : processes; 1 runs in this one
    progress : called with tasks done, tasks in all, and a label
    settings : of the run, recorded with the result
    """
    facts = born(sorted({unit.context.implementation.framework for unit in planned}), **settings)
    fired: dict[tuple[str, str], dict[str, Outcome]] = {}
    total, interrupted = sum(len(unit.checks) for unit in planned), False
    try:
        for done, ((i, _), results) in enumerate(run_all(planned, workers), 1):
            _gather(fired, results)
            if progress is not None:
                progress(done, total, planned[i].label)
    except KeyboardInterrupt:
        interrupted = True
    ids = tuple(dict.fromkeys(check.id for unit in planned for check in unit.checks))
    return Zoo(_judged(fired), ids, facts, interrupted)


def read(path: str | Path) -> Zoo:
    """A zoo from its JSON file.

    Raises
    ------
    ValueError : if the file holds no zoo
    OSError : if it cannot be read
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} holds no JSON: {error}") from None
    if not isinstance(data, Mapping):
        raise ValueError(f"{path} holds no zoo")
    return Zoo.from_dict(data)


def _free(check: Check) -> Check:
    """The check, run also where what it builds upon failed."""
    return replace(check, requires=())


def _gather(fired: dict[tuple[str, str], dict[str, Outcome]], results: Iterable[Result]) -> None:
    for result in results:
        found = fired.setdefault((result.implementation, result.dtype), {})
        if result.outcome.bad or result.outcome is Outcome.WARNED:
            bad = result.outcome.bad or found.get(result.check) is Outcome.FAILED
            found[result.check] = Outcome.FAILED if bad else Outcome.WARNED


def _judged(fired: Mapping[tuple[str, str], Mapping[str, Outcome]]) -> tuple[Judged, ...]:
    names = {name for name, _ in fired}
    made = []
    for implementation in (*(fault.implementation for fault in faults()), *sound()):
        if implementation.name in names:
            said = {
                dtype: fired[implementation.name, dtype]
                for dtype in implementation.dtypes
                if (implementation.name, dtype) in fired
            }
            made.append(
                Judged(implementation.name, tuple(said), _by_check(said, Outcome.FAILED), _by_check(said, Outcome.WARNED))
            )
    return tuple(made)


def _by_check(said: Mapping[str, Mapping[str, Outcome]], outcome: Outcome) -> dict[str, Dtypes]:
    ids = sorted({check for found in said.values() for check, its in found.items() if its is outcome})
    return {check: tuple(dtype for dtype, found in said.items() if found.get(check) is outcome) for check in ids}


def _differing(what: str, code: Iterable[str], stored: Iterable[str]) -> list[str]:
    missing, gone = sorted(set(code) - set(stored)), sorted(set(stored) - set(code))
    return [*(f"{what} {one} was not judged" for one in missing), *(f"{what} {one} is no more" for one in gone)]


def _matches(name: str, globs: Sequence[str]) -> bool:
    return not globs or any(fnmatch.fnmatch(name, glob) for glob in globs)


def _tuples(dtypes_by_check: Mapping[str, Sequence[str]]) -> dict[str, Dtypes]:
    return {check: tuple(dtypes) for check, dtypes in dtypes_by_check.items()}
