"""One audit from several: the shards of one plan, or what was judged in different environments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from normcheck import ledger
from normcheck.audit import SCHEMA, Audit
from normcheck.engine.units import Key
from normcheck.results import Outcome, Result

# what tells the shards of one plan from each other, and the runs of one environment
_OWN = {"utc", "shard", "command", "dirty", "interrupted", "implementations", "alike", "parts"}


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


def _by_task(results: Iterable[Result]) -> dict[Key, list[Result]]:
    tasks: dict[Key, list[Result]] = {}
    for result in results:
        tasks.setdefault((result.implementation, result.dtype, result.device, result.check), []).append(result)
    return tasks


def _agrees(one: Sequence[Result], other: Sequence[Result]) -> bool:
    return _skipped(one) or _skipped(other) or [_timeless(r) for r in one] == [_timeless(r) for r in other]


def _timeless(result: Result) -> str:
    # numbers that are not equal to themselves are compared by their names
    return repr(replace(result, seconds=0.0))


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
        if "shard" not in born:
            continue
        flat = [_unmarked(result) for key in keys for result in tasks[key]]
        labelled = ledger.apply(flat, profile=born["profile"], versions=born["versions"])
        done.update(_by_task(labelled))
    return done


def _unmarked(result: Result) -> Result:
    return replace(result, outcome=Outcome.PASSED, ledger="") if result.outcome is Outcome.XPASSED else result


def _environments(audits: Mapping[str, Audit]) -> list[list[str]]:
    """The names of the audits, those together that differ in nothing but their share of the plan."""
    groups: list[tuple[dict[str, Any], list[str]]] = []
    for name, audit in audits.items():
        facts = {key: value for key, value in audit.born.items() if key not in _OWN} | {"whole": "shard" not in audit.born}
        for known, names in groups:
            if known == facts:
                names.append(name)
                break
        else:
            groups.append((facts, [name]))
    return [names for _, names in groups]


def _born(audits: Mapping[str, Audit], home: Mapping[Key, str]) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    for name, audit in audits.items():
        judged = {key[0] for key, place in home.items() if place == name}
        parts += audit.born.get("parts") or [{**audit.born, "implementations": sorted(judged)}]
    common = {key: value for key, value in parts[0].items() if all(part.get(key) == value for part in parts)}
    alike = {name: others for audit in audits.values() for name, others in audit.born.get("alike", {}).items()}
    broken = [text for text in (*(audit.born.get("interrupted") for audit in audits.values()), _lacking(audits)) if text]
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
    missing = []
    for names in _environments(audits):
        shards = {str(audits[name].born["shard"]) for name in names if "shard" in audits[name].born}
        for count in sorted({shard.partition("/")[2] for shard in shards}):
            missing += [f"{i}/{count}" for i in range(1, int(count) + 1) if f"{i}/{count}" not in shards]
    if not missing:
        return ""
    return f"shard {missing[0]} is missing" if len(missing) == 1 else f"shards {', '.join(missing)} are missing"
