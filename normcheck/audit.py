"""Audits: which checks are run on which implementations, and all that came out."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import json
import shlex
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from normcheck import ledger
from normcheck.born import born
from normcheck.engine import planning
from normcheck.engine.jobs import Place
from normcheck.engine.journal import Journal
from normcheck.engine.lanes import Limits
from normcheck.engine.planning import Costs
from normcheck.engine.run import run_all
from normcheck.engine.units import PROFILES, THREADS, Unit, plan
from normcheck.implementations import Implementation
from normcheck.norms import Norm
from normcheck.results import RESULT, Result
from normcheck.stored import NUMBER, SHARE, TEXT, WHOLE, Record, expect

__all__ = [
    "DTYPES",
    "GRADES",
    "PROFILES",
    "SCHEMA",
    "THREADS",
    "Audit",
    "Interrupted",
    "Unit",
    "audit",
    "check",
    "modes",
    "plan",
    "run_all",
]

SCHEMA = 2
GRADES = ("A+", "A", "B", "F")
DTYPES = ("float32", "bfloat16", "float16")

Progress = Callable[[int, int, str], None]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during an audit. ``audit`` holds what was measured until then."""

    def __init__(self, partial: Audit) -> None:
        super().__init__("the audit was interrupted")
        self.audit = partial


@dataclass(frozen=True, repr=False)
class Audit:
    """All results of one run, and where it was born.

    Attributes
    ----------
    results : in the order of the plan, whatever ran first
    born : machine, versions, commit, UTC time, and the settings of the run
    """

    results: tuple[Result, ...]
    born: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """How many results there are, and how many of them fail."""
        return f"<Audit: {len(self.results)} results, {len(self.failures)} failures>"

    @property
    def passed(self) -> bool:
        """Whether something was judged, and nothing failed, broke, crashed or ran out of time."""
        return bool(self.results) and not self.failures

    @property
    def failures(self) -> tuple[Result, ...]:
        """The results that make the audit fail."""
        return tuple(result for result in self.results if result.outcome.bad)

    @property
    def grades(self) -> dict[tuple[str, str], str]:
        """Grade by implementation and dtype: A+, A, B, F as ``accuracy`` says, ``-`` where it judged nothing."""
        worst: dict[tuple[str, str], float] = {}
        for result in self.results:
            key = (result.implementation, result.dtype)
            worst[key] = max(worst.get(key, -1.0), result.measures.get("grade", -1.0))
        return {key: GRADES[int(value)] if value >= 0 else "-" for key, value in worst.items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON. What differs from run to run stands under ``times`` alone."""
        facts, results = dict(self.born), [result.to_dict() for result in self.results]
        parts = [dict(part) for part in facts.get("parts", ())]
        times = {"utc": facts.pop("utc", ""), "seconds": [result.pop("seconds", 0.0) for result in results]}
        if parts:
            times["parts"] = [part.pop("utc", "") for part in parts]
            facts["parts"] = parts
        return {"schema": SCHEMA, "born": facts, "results": results, "times": times}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Audit:
        """The inverse of `to_dict`.

        Raises
        ------
        ValueError : for the first thing that is not as it should be, such as ``results[0].error='1', but should be a number``, or
            for a newer schema
        """
        expect(data, Record({"schema": WHOLE}, needed=("schema",)))
        schema = data["schema"]
        if schema > SCHEMA:
            raise ValueError(f"schema={schema}, but should be at most {SCHEMA}: it was written by a newer normcheck")
        expect(data, _FIRST if schema == 1 else _STORED)
        if schema == 1:
            return cls(tuple(map(Result.from_dict, data["results"])), dict(data.get("born", {})))
        times = data["times"]
        _as_many("times.seconds", times["seconds"], data["results"])
        _as_many("times.parts", times.get("parts", ()), data["born"].get("parts", ()))
        timed = zip(data["results"], times["seconds"], strict=True)
        results = tuple(Result.from_dict({**result, "seconds": seconds}) for result, seconds in timed)
        facts = {**({"utc": times["utc"]} if times["utc"] else {}), **data["born"]}
        if "parts" in times:
            facts["parts"] = [{"utc": utc, **part} for utc, part in zip(times["parts"], facts["parts"], strict=True)]
        return cls(results, facts)

    @classmethod
    def read(cls, path: str | Path) -> Audit:
        """An audit from its ``.json`` file.

        Raises
        ------
        ValueError : if the file holds no audit
        OSError : if it cannot be read
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except RecursionError:
            raise ValueError(f"{path} holds no audit: it is too deep") from None
        except ValueError as error:
            raise ValueError(f"{path} holds no JSON: {error}") from None
        if not isinstance(data, Mapping):
            raise ValueError(f"{path} holds no audit")
        return cls.from_dict(data)

    def write(self, path: str | Path) -> Path:
        """Write a report; the suffix says which: ``.md`` or ``.json``."""
        import importlib

        written: Path = importlib.import_module("normcheck.reporters").write(self, Path(path))
        return written


_BORN = {
    **dict.fromkeys(("utc", "python", "normcheck", "commit", "profile", "command", "interrupted", "model"), TEXT),
    **dict.fromkeys(("seed", "threads"), WHOLE),
    "machine": Record({"cores": WHOLE, "flags": [TEXT]}, rest=TEXT),
    "versions": Record(rest=TEXT),
    "shard": SHARE,
    "alike": Record(rest=[TEXT]),
    "implementations": [TEXT],
}
_FIRST = Record({"results": [RESULT], "born": Record({**_BORN, "parts": [Record(_BORN)]})}, needed=("results",))
_TIMES = Record({"utc": TEXT, "seconds": [NUMBER], "parts": [TEXT]}, needed=("utc", "seconds"))
_STORED = Record({**_FIRST.kinds, "times": _TIMES}, needed=("results", "born", "times"))


def _as_many(name: str, times: Sequence[Any], others: Sequence[Any]) -> None:
    if len(times) != len(others):
        raise ValueError(f"len({name})={len(times)}, but should be {len(others)}")


def audit(
    implementations: Iterable[Implementation],
    profile: str = "standard",
    checks: Iterable[str] | None = None,
    dtypes: Iterable[str] | None = None,
    devices: Iterable[str] | None = None,
    seed: int = 0,
    workers: int = 1,
    progress: Progress | None = None,
    journal: str | Path | None = None,
    *,
    resume: bool = False,
    isolation: bool | None = None,
    time_limit: float | None = None,
    memory_limit: int | None = None,
    shard: tuple[int, int] | None = None,
    scheduler: Any = None,
    budget: float | None = None,
    costs: Costs | None = None,
    selection: Mapping[str, Any] | None = None,
) -> Audit:
    """Run checks on implementations.

    Parameters
    ----------
    implementations : code under judgement
    profile : ``quick`` (pytest, CI), ``standard``, or ``deep`` (nightly)
    checks, dtypes, devices : limit the audit to these; None means all that apply
    seed : of all random inputs; same seed, same results, whatever the number of workers
    workers : processes; 1 runs in this one, unless ``isolation`` is asked for
    progress : called with tasks done, tasks in all, and a label
    journal : file to which results are appended as they come, one JSON object a line, behind the plan
    resume : go on with that journal: run only what is missing
    isolation : run the code in worker processes, so that one that dies, hangs or eats memory is a result; None: where
        ``workers`` is above 1. A script that asks for it does so below ``if __name__ == "__main__":``
    time_limit : seconds for one check of an isolated audit; None for 120, 600 or 3600 by the profile
    memory_limit : bytes that a worker process may allocate; None for what is free
    shard : (3, 8) for the third of eight parts; `normcheck.merging.merge` joins them
    scheduler : address of a dask scheduler, a ``distributed.Client``, or any ``concurrent.futures.Executor``, to run on
    budget : seconds for the whole; the most telling checks come first, and what there was no time for is skipped
    costs : what tasks are expected to take, from an earlier audit; None for normcheck's own table
    selection : how the implementations were chosen, kept in the journal

    Raises
    ------
    ValueError : for unknown options, see `plan`; for several workers without isolation; for a budget on a cluster
    JournalError : if the journal cannot be written, or was begun with other settings
    EngineError : if no worker process can be started
    Interrupted : on Ctrl-C, with what was measured until then
    """
    if workers < 1:
        raise ValueError(f"workers={workers}, but should be >= 1")
    limits = Limits(time_limit, memory_limit)
    settings = {
        "profile": profile,
        "seed": seed,
        "checks": _list(checks),
        "dtypes": _list(dtypes),
        "devices": _list(devices),
        "shard": _list(shard),
        "time_limit": time_limit,
        "memory_limit": memory_limit,
        "selection": selection,
    }
    units = plan(implementations, profile=profile, checks=checks, dtypes=dtypes, devices=devices, seed=seed)
    units = units if shard is None else _share(units, *shard)
    facts = born(_libraries(units), schema=SCHEMA, profile=profile, seed=seed, threads=THREADS, command=_command())
    facts |= {} if shard is None else {"shard": f"{shard[0]}/{shard[1]}"}
    kept = _journal(journal, resume, units, facts, settings)
    with contextlib.closing(kept) if kept is not None else contextlib.nullcontext():
        results = {} if kept is None else kept.known(units)
        facts = facts if kept is None else kept.header["born"]
        limited = None if budget is None else planning.budget(units, budget, costs or planning.measured(profile))
        options = {"isolation": isolation, "limits": limits, "known": dict(results), "scheduler": scheduler, "budget": limited}
        return _collected(units, results, facts, run_all(units, workers, **options), kept, progress)


def check(call: Callable[..., Any], norm: Norm, framework: str = "torch", **options: Any) -> Audit:
    """Audit one callable.

    Parameters
    ----------
    call : the code, called as `Implementation` says
    norm : what it claims to compute
    framework : whose arrays it takes
    options : any of `Implementation` (contract, name, dtypes, ...) and of `audit` (profile, checks, seed, ...); dtypes are
        float32, bfloat16 and float16 unless given. A norm with running statistics is judged in training and in evaluation

    Raises
    ------
    TypeError : for an option that neither has
    ValueError : as `Implementation` and `audit` do
    """
    own = {f.name for f in fields(Implementation)}
    run = set(inspect.signature(audit).parameters) - {"implementations", "dtypes"}
    unknown = sorted(set(options) - own - run)
    if unknown:
        near = difflib.get_close_matches(unknown[0], own | run, n=1)
        raise TypeError(f"check() has no option {unknown[0]!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    described = {"dtypes": DTYPES} | {key: value for key, value in options.items() if key in own}
    given = call if "make" not in described and "module" not in described else None
    implementation = Implementation(given, norm, framework=framework, **described)
    return audit(modes(implementation), **{key: value for key, value in options.items() if key in run})


def modes(implementation: Implementation) -> tuple[Implementation, ...]:
    """The implementation, or one for training and one for evaluation where its norm has both and none was chosen."""
    if implementation.training is not None or not implementation.norm.has_running:
        return (implementation,)
    names = {True: "train", False: "eval"}
    return tuple(replace(implementation, training=mode, name=f"{implementation.name}[{names[mode]}]") for mode in names)


def _libraries(units: Iterable[Unit]) -> list[str]:
    used = {name for unit in units for name in (unit.context.implementation.framework, unit.context.implementation.requires)}
    return sorted(used - {""})


def _collected(
    units: Sequence[Unit],
    results: dict[Place, list[Result]],
    facts: Mapping[str, Any],
    running: Generator[tuple[Place, list[Result]]],
    journal: Journal | None,
    progress: Progress | None,
) -> Audit:
    """The audit, when all is run; what an interrupt leaves is handed over with it."""
    total = sum(len(unit.checks) for unit in units)
    try:
        with contextlib.closing(running):
            for place, found in running:
                results[place] = found
                if journal is not None:
                    journal.append(units[place[0]].key(place[1]), found)
                if progress is not None:
                    progress(len(results), total, units[place[0]].label)
    except KeyboardInterrupt:
        told = f"{len(results)} of {total} tasks were done"
        raise Interrupted(_collect(units, results, {**facts, "interrupted": told})) from None
    return _collect(units, results, facts)


def _collect(units: Sequence[Unit], results: Mapping[Place, list[Result]], facts: Mapping[str, Any]) -> Audit:
    ordered = [result for place in sorted(results) for result in results[place]]
    names = {one.name: one.known_as for one in (unit.context.implementation for unit in units) if one.known_as}
    return Audit(ledger.apply(ledger.excuse(ordered, names), profile=facts["profile"]), facts)


def _journal(
    path: str | Path | None, resume: bool, units: Sequence[Unit], facts: Mapping[str, Any], settings: Mapping[str, Any]
) -> Journal | None:
    if path is None:
        if resume:
            raise ValueError("resume=True, but should come with the journal that is gone on with")
        return None
    if not units and not resume:
        return None
    return (Journal.go_on if resume else Journal.begin)(Path(path), units, facts, settings)


def _share(units: Sequence[Unit], part: int, parts: int) -> list[Unit]:
    if not 1 <= part <= parts:
        raise ValueError(f"shard={part}/{parts}, but should be between 1/{parts} and {parts}/{parts}")
    return [unit for i, unit in enumerate(units) if i % parts == part - 1]


def _list(given: Iterable[Any] | None) -> list[Any] | None:
    return None if given is None else list(given)


def _command() -> str:
    if not sys.argv or not sys.argv[0]:
        return ""
    called = Path(sys.argv[0])
    name = f"python -m {called.parent.name}" if called.name == "__main__.py" else called.name
    return shlex.join([*name.split(), *sys.argv[1:]])
