"""Audits: which checks are run on which implementations, and all that came out."""

from __future__ import annotations

import difflib
import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from normcheck import ledger
from normcheck.born import born
from normcheck.checks import Check, Context, checks, run_check
from normcheck.checks.cases import regime_case
from normcheck.implementations import Implementation, MissingPackageError, frameworks, require
from normcheck.norms import Norm
from normcheck.regimes import WIDTHS
from normcheck.results import Outcome, Result

SCHEMA = 1
PROFILES = tuple(WIDTHS)
GRADES = ("A+", "A", "B", "F")
THREADS = 1
DTYPES = ("float32", "bfloat16", "float16")

Progress = Callable[[int, int, str], None]
_LAST: dict[str, tuple[str, str]] = {}


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
        """Plain data for JSON."""
        return {"schema": SCHEMA, "born": dict(self.born), "results": [result.to_dict() for result in self.results]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Audit:
        """The inverse of `to_dict`.

        Raises
        ------
        ValueError : if the data is no audit, or of a newer schema
        """
        schema = data.get("schema")
        if not isinstance(schema, int) or "results" not in data:
            raise ValueError("no audit: the keys 'schema' and 'results' are missing")
        if schema > SCHEMA:
            raise ValueError(f"schema={schema}, but should be at most {SCHEMA}: it was written by a newer normcheck")
        return cls(tuple(Result.from_dict(result) for result in data["results"]), dict(data.get("born", {})))

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
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} holds no JSON: {error}") from None
        if not isinstance(data, Mapping):
            raise ValueError(f"{path} holds no audit")
        return cls.from_dict(data)

    def write(self, path: str | Path) -> Path:
        """Write a report; the suffix says which: ``.md`` or ``.json``."""
        import importlib

        written: Path = importlib.import_module("normcheck.reporters").write(self, Path(path))
        return written


@dataclass(frozen=True)
class Unit:
    """Work that stays together: all checks of one implementation, dtype and device, so that a failed root skips the rest."""

    context: Context
    checks: tuple[Check, ...]

    @property
    def label(self) -> str:
        """Shown while it runs."""
        return f"{self.context.implementation.name} {self.context.dtype}"

    def missing(self) -> str:
        """Why nothing can be run: a package or device that is not there; else ``""``."""
        try:
            require(self.context.implementation, self.context.device)
        except (MissingPackageError, ValueError) as error:
            return str(error)
        return ""

    def run(self) -> Iterator[list[Result]]:
        """The results of one check after the other."""
        missing = self.missing()
        if missing:
            yield from ([self.context.result(check.id, Outcome.SKIPPED, missing)] for check in self.checks)
            return
        failed: set[str] = set()
        for check in self.checks:
            roots = sorted(failed & set(check.requires))
            if roots:
                yield [self.context.result(check.id, Outcome.SKIPPED, f"{roots[0]} failed")]
                continue
            results = run_check(check, self.context)
            if any(result.outcome.bad for result in results):
                failed.add(check.id)
            yield results


def plan(
    implementations: Iterable[Implementation],
    *,
    profile: str = "standard",
    checks: Iterable[str] | None = None,
    dtypes: Iterable[str] | None = None,
    devices: Iterable[str] | None = None,
    seed: int = 0,
) -> list[Unit]:
    """What an audit will do, ordered so that implementations of one norm share certified values.

    Raises
    ------
    ValueError : for an unknown profile or check, naming the nearest, or two implementations of one name
    """
    if seed < 0:
        raise ValueError(f"seed={seed}, but should be >= 0")
    if profile not in PROFILES:
        raise ValueError(f"profile={profile!r}, but should be one of {', '.join(PROFILES)}")
    chosen = _chosen(checks)
    wanted = None if dtypes is None else set(dtypes)
    units = []
    for implementation in _distinct(implementations):
        for device in devices or _present(implementation):
            taken = (dtype for dtype in implementation.dtypes if wanted is None or dtype in wanted)
            units += [Unit(Context(implementation, dtype, device, profile, seed), chosen) for dtype in taken]
    return sorted(units, key=_shared)


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
) -> Audit:
    """Run checks on implementations.

    Parameters
    ----------
    implementations : code under judgement
    profile : ``quick`` (pytest, CI), ``standard``, or ``deep`` (nightly)
    checks, dtypes, devices : limit the audit to these; None means all that apply
    seed : of all random inputs; same seed, same results, whatever the number of workers
    workers : processes; 1 runs in this one
    progress : called with tasks done, tasks in all, and a label
    journal : file to which results are appended as they come, one JSON object a line

    Raises
    ------
    ValueError : for unknown options, see `plan`
    Interrupted : on Ctrl-C, with what was measured until then
    """
    if workers < 1:
        raise ValueError(f"workers={workers}, but should be >= 1")
    units = plan(implementations, profile=profile, checks=checks, dtypes=dtypes, devices=devices, seed=seed)
    facts = born(_libraries(units), schema=SCHEMA, profile=profile, seed=seed, threads=THREADS, command=_command())
    results: dict[tuple[int, int], list[Result]] = {}
    total = sum(len(unit.checks) for unit in units)
    try:
        for key, found in run_all(units, workers):
            results[key] = found
            _append(journal, found)
            if progress is not None:
                progress(len(results), total, units[key[0]].label)
    except KeyboardInterrupt:
        raise Interrupted(_collect(results, {**facts, "interrupted": f"{len(results)} of {total} tasks were done"})) from None
    return _collect(results, facts)


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
    run = {"profile", "checks", "devices", "seed", "workers", "progress", "journal"}
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


def _chosen(ids: Iterable[str] | None) -> tuple[Check, ...]:
    known = checks()
    if isinstance(ids, str):
        raise ValueError(f"checks={ids!r}, but should be several ids, such as [{ids!r}]")
    if ids is None:
        return tuple(known.values())
    wanted = list(ids)
    for id_ in wanted:
        if id_ not in known:
            near = difflib.get_close_matches(id_, known, n=1)
            raise ValueError(
                f"check={id_!r}, but should be one of {', '.join(known)}" + (f"; nearest: {near[0]}" if near else "")
            )
    return tuple(check for id_, check in known.items() if id_ in wanted or not check.requires)


def _distinct(implementations: Iterable[Implementation]) -> Sequence[Implementation]:
    found = list(implementations)
    for one in found:
        if not isinstance(one, Implementation):
            raise ValueError(f"implementation={one!r}, but should be an Implementation")
    names = [implementation.name for implementation in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"two implementations are named {twice[0]!r}, but names should differ")
    return found


def _present(implementation: Implementation) -> Sequence[str]:
    """The devices that can be used now among those that the implementation takes; all of them where that cannot be told."""
    framework = frameworks()[implementation.framework]
    here = framework.devices() if framework.available() is None else implementation.devices
    return [device for device in implementation.devices if device in here] or implementation.devices[:1]


def _shared(unit: Unit) -> tuple[str, str, str]:
    return repr(unit.context.norm), unit.context.dtype, unit.context.implementation.name


def run_all(units: Sequence[Unit], workers: int) -> Iterator[tuple[tuple[int, int], list[Result]]]:
    """The results of one check after the other as they come, with the places of unit and check in the plan."""
    if workers == 1:
        for i, unit in enumerate(units):
            for number, results in enumerate(_run(unit)):
                yield (i, number), results
        return
    from joblib import Parallel, delayed

    tasks = (delayed(_finished)(unit, i) for i, unit in enumerate(units))
    for i, done in Parallel(n_jobs=workers, return_as="generator_unordered")(tasks):
        for number, results in enumerate(done):
            yield (i, number), results


def _run(unit: Unit) -> Iterator[list[Result]]:
    """The results of a unit, with the certified values of the unit before it where norm and dtype are the same."""
    if _shared(unit)[:2] != _LAST.get("shared"):
        regime_case.cache_clear()
        _LAST["shared"] = _shared(unit)[:2]
    _pin(unit)
    yield from unit.run()


def _finished(unit: Unit, i: int) -> tuple[int, list[list[Result]]]:
    return i, list(_run(unit))


def _pin(unit: Unit) -> None:
    framework = frameworks()[unit.context.implementation.framework]
    if framework.available() is None:
        framework.pin_threads(THREADS)


def _libraries(units: Iterable[Unit]) -> list[str]:
    used = {name for unit in units for name in (unit.context.implementation.framework, unit.context.implementation.requires)}
    return sorted(used - {""})


def _collect(results: Mapping[tuple[int, int], list[Result]], facts: Mapping[str, Any]) -> Audit:
    ordered = [result for key in sorted(results) for result in results[key]]
    return Audit(ledger.apply(ordered, profile=facts["profile"]), facts)


def _append(journal: str | Path | None, results: Iterable[Result]) -> None:
    if journal is None:
        return
    with Path(journal).open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps(result.to_dict()) + "\n" for result in results)


def _command() -> str:
    if not sys.argv or not sys.argv[0]:
        return ""
    called = Path(sys.argv[0])
    name = f"python -m {called.parent.name}" if called.name == "__main__.py" else called.name
    return shlex.join([*name.split(), *sys.argv[1:]])
