"""One audit from several: the shards of one plan, or what was judged in different environments."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from normcheck import ledger
from normcheck.audit import PROFILES, SCHEMA, Audit
from normcheck.engine.units import Key
from normcheck.results import Outcome, Result

# what tells the shards of one plan from each other, and the runs of one environment
_OWN = {"utc", "shard", "command", "dirty", "interrupted", "implementations", "alike", "parts", "versions"}


class MergeError(ValueError):
    """Audits that contradict each other. The message names the task and where it was found."""


def merge(audits: Mapping[str, Audit]) -> Audit:
    """All results of several audits, ordered as in one plan.

    Where an audit was born is kept in ``born["parts"]``, one for each, with the names of the implementations that were judged
    there; above them stands what all have in common. The ledger's outcomes stay as they were judged, each in its own
    environment; only over the shards of one plan it is applied as if they had been one audit. A task that was skipped in one
    audit and judged in another counts as judged.

    Parameters
    ----------
    audits : by a name for messages, such as that of the file

    Raises
    ------
    MergeError : if a task has different results in two of them
    ValueError : if there is none
    """
    if not audits:
        raise ValueError("audits={}, but should hold at least one")
    tasks: dict[Key, list[Result]] = {}
    home: dict[Key, str] = {}
    for name, audit in audits.items():
        for key, results in _by_task(audit.results).items():
            if key in tasks and not _agrees(tasks[key], results):
                raise MergeError(f"{' '.join(key)}: the results in {home[key]} and in {name} differ, but should be the same")
            if key not in tasks or _skipped(tasks[key]):
                tasks[key], home[key] = results, name
    joined = _relabelled(audits, tasks, home)
    return Audit(tuple(result for key in _ordered(joined) for result in joined[key]), _born(audits, home))


def repeated(audits: Mapping[str, Audit]) -> str:
    """One line about the tasks that were judged in several of the audits, or ``""``.

    Parameters
    ----------
    audits : as `merge` takes them
    """
    judged = {name: {key for key, r in _by_task(audit.results).items() if not _skipped(r)} for name, audit in audits.items()}
    count = Counter(key for keys in judged.values() for key in keys)
    twice = {key for key, times in count.items() if times > 1}
    if not twice:
        return ""
    what = "1 task was" if len(twice) == 1 else f"{len(twice)} tasks were"
    return f"{what} judged in several audits, with the same results: {', '.join(n for n, keys in judged.items() if keys & twice)}"


def _by_task(results: Iterable[Result]) -> dict[Key, list[Result]]:
    tasks: dict[Key, list[Result]] = {}
    for result in results:
        tasks.setdefault((result.implementation, result.dtype, result.device, result.check), []).append(result)
    return tasks


def _agrees(one: Sequence[Result], other: Sequence[Result]) -> bool:
    return _skipped(one) or _skipped(other) or [_timeless(r) for r in one] == [_timeless(r) for r in other]


def _timeless(result: Result) -> str:
    # numbers that are not equal to themselves are compared by their names; whether a fault counts as mended the whole decides
    plain = _unmarked(result)
    return repr(replace(plain, seconds=0.0))


def _skipped(results: Iterable[Result]) -> bool:
    return all(result.outcome is Outcome.SKIPPED for result in results)


def _ordered(tasks: Mapping[Key, list[Result]]) -> list[Key]:
    """By unit as in a plan; the checks of a unit stay as they are. What is no unit, having no norm, comes last."""
    return sorted(tasks, key=lambda key: (not tasks[key][0].norm, tasks[key][0].norm, key[1], key[0]))


def _relabelled(audits: Mapping[str, Audit], tasks: dict[Key, list[Result]], home: Mapping[Key, str]) -> dict[Key, list[Result]]:
    """The tasks, with the ledger applied to all shards of one plan: what one shard took for mended may fail in another."""
    done = dict(tasks)
    for names in _environments(audits):
        keys = [key for key in _ordered(tasks) if home[key] in names]
        born = audits[names[0]].born
        if "shard" not in born or born.get("profile") not in PROFILES:
            continue
        flat = [_unmarked(result) for key in keys for result in tasks[key]]
        versions = _versions(audits[name].born for name in names)
        labelled = ledger.apply(flat, profile=born["profile"], versions=versions)
        done.update(_by_task(labelled))
    return done


def _unmarked(result: Result) -> Result:
    return replace(result, outcome=Outcome.PASSED, ledger="") if result.outcome is Outcome.XPASSED else result


def _environments(audits: Mapping[str, Audit]) -> list[list[str]]:
    """The names of the audits, those together that differ in nothing but their share of the plan."""
    return [[name for name, _ in group] for group in _together((name, audit.born) for name, audit in audits.items())]


def _together(births: Iterable[tuple[str, Mapping[str, Any]]]) -> list[list[tuple[str, Mapping[str, Any]]]]:
    groups: list[list[tuple[str, Mapping[str, Any]]]] = []
    for name, born in births:
        alike = (
            group for group in groups if ("shard" in group[0][1]) == ("shard" in born) and all(_alike(b, born) for _, b in group)
        )
        group = next(alike, None)
        if group is None:
            groups.append([(name, born)])
        else:
            group.append((name, born))
    return groups


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two were born in one environment: a shard knows the versions only of what it has judged."""
    facts, others = ({key: value for key, value in born.items() if key not in _OWN} for born in (one, other))
    here, there = one.get("versions", {}), other.get("versions", {})
    return facts == others and all(here[name] == there[name] for name in here.keys() & there.keys())


def _born(audits: Mapping[str, Audit], home: Mapping[Key, str]) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    for name, audit in audits.items():
        judged = {key[0] for key, place in home.items() if place == name}
        parts += audit.born.get("parts") or [{**audit.born, "implementations": sorted(judged)}]
    common = {key: value for key, value in parts[0].items() if all(part.get(key) == value for part in parts)}
    alike = {name: others for audit in audits.values() for name, others in audit.born.get("alike", {}).items()}
    broken = [text for text in (*(part.get("interrupted") for part in parts), _lacking(audits)) if text]
    return {
        "utc": min((str(part.get("utc", "")) for part in parts), default=""),
        **{key: value for key, value in common.items() if key not in _OWN},
        "versions": _versions(parts),
        "schema": SCHEMA,
        "command": _command(parts),
        **({"alike": alike} if alike else {}),
        **({"interrupted": "; ".join(broken)} if broken else {}),
        "parts": parts,
    }


def _versions(parts: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The versions of all libraries; where there are several of one, all of them."""
    found: dict[str, list[str]] = {}
    for part in parts:
        for name, version in part.get("versions", {}).items():
            if version not in found.setdefault(name, []):
                found[name].append(version)
    return {name: ", ".join(versions) for name, versions in found.items()}


def _command(parts: Iterable[Mapping[str, Any]]) -> str:
    """What was typed, once for each environment: without the number of the shard."""
    typed = (re.sub(r" --shard[ =]\S+", "", str(part.get("command", ""))) for part in parts)
    return " && ".join(dict.fromkeys(one for one in typed if one))


def _lacking(audits: Mapping[str, Audit]) -> str:
    """Which shards are missing, or ``""``."""
    births = [(name, part) for name, audit in audits.items() for part in audit.born.get("parts") or [audit.born]]
    missing = []
    for group in _together((name, part) for name, part in births if "shard" in part):
        shards = {str(part["shard"]) for _, part in group}
        if not _whole(audits, {name for name, _ in group}, group[0][1]):
            for count in sorted({shard.partition("/")[2] for shard in shards}):
                missing += [f"{i}/{count}" for i in range(1, int(count) + 1) if f"{i}/{count}" not in shards]
    if not missing:
        return ""
    return f"shard {missing[0]} is missing" if len(missing) == 1 else f"shards {', '.join(missing)} are missing"


def _whole(audits: Mapping[str, Audit], names: set[str], born: Mapping[str, Any]) -> bool:
    """Whether an audit that is no shard, of the same environment, has all that these shards have."""
    tasks = {key for name in names for key in _by_task(audits[name].results)}
    others = (audit for name, audit in audits.items() if name not in names and "shard" not in audit.born)
    return any(tasks and _alike(audit.born, born) and tasks <= _by_task(audit.results).keys() for audit in others)
