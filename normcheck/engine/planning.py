"""What an audit will cost, and in which order its checks tell most."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from statistics import fmean, median
from typing import Any

from normcheck.engine.jobs import Budget
from normcheck.engine.units import Key, Unit
from normcheck.results import Result

TELLING = "accuracy"


@dataclass(frozen=True)
class Costs:
    """Expected seconds of tasks.

    Attributes
    ----------
    source : where they come from, in words
    checks : seconds by check
    tasks : seconds by task, which count more
    start : seconds until a worker process is ready, by the framework that it loads
    """

    source: str
    checks: Mapping[str, float]
    tasks: Mapping[Key, float] = field(default_factory=dict)
    start: Mapping[str, float] = field(default_factory=dict)

    def of(self, key: Key) -> float:
        """Seconds that a task may take; as of a usual check where nothing is known of it."""
        if key in self.tasks:
            return self.tasks[key]
        return self.checks.get(key[3], median(self.checks.values()) if self.checks else 0.0)

    def total(self, units: Iterable[Unit]) -> float:
        """Seconds of work in a plan."""
        return sum(self.of(unit.key(number)) for unit in units for number in range(len(unit.checks)))

    def wall(self, units: Sequence[Unit], workers: int, isolated: bool = False) -> float:
        """Seconds that a plan takes with so many workers: no less than its longest unit, and their start if isolated."""
        longest = max((self.total([unit]) for unit in units), default=0.0)
        return max(longest, self.total(units) / workers) + (self.starting(units) if isolated else 0.0)

    def starting(self, units: Iterable[Unit]) -> float:
        """Seconds until workers that start together have loaded what a plan needs; as for the slowest where that is unknown."""
        used = {unit.context.implementation.framework for unit in units}
        if not used or not self.start:
            return 0.0
        least, most = min(self.start.values()), max(self.start.values())
        return least + sum(self.start.get(framework, most) - least for framework in used)


def measured(profile: str) -> Costs:
    """What checks cost where ``reports/costs.py`` was run last; a more thorough profile than those costs at least as much."""
    table = _table()["seconds"]
    known = [name for name in ("standard", "quick") if name in table]
    taken = profile if profile in table else known[0]
    at_least = "" if taken == profile else f", of the profile {taken}: it will be more"
    return Costs(f"as measured for normcheck's own table{at_least}", table[taken], start=_table()["start"])


def of_results(results: Iterable[Result], profile: str, source: str) -> Costs:
    """What tasks have cost in an earlier audit of the same profile, and by check for those that were not in it."""
    tasks: dict[Key, float] = {}
    for result in results:
        key = (result.implementation, result.dtype, result.device, result.check)
        tasks[key] = tasks.get(key, 0.0) + result.seconds
    checks: dict[str, list[float]] = {}
    for (_, _, _, check), seconds in tasks.items():
        checks.setdefault(check, []).append(seconds)
    known = {check: fmean(seconds) for check, seconds in checks.items()}
    usual = measured(profile)
    return Costs(source, {**usual.checks, **known}, tasks, usual.start)


def budget(units: Sequence[Unit], seconds: float, costs: Costs) -> Budget:
    """Tasks in the order in which they tell most: the form, accuracy, then what found most faults of the zoo a second."""
    cost = {unit.key(number): costs.of(unit.key(number)) for unit in units for number in range(len(unit.checks))}
    place = {check: float(i) for i, check in enumerate(_telling(units, costs))}
    return Budget(seconds, {key: place[key[3]] for key in cost}, cost)


def _telling(units: Iterable[Unit], costs: Costs) -> list[str]:
    requires = {check.id: check.requires for unit in units for check in unit.checks}
    finds = _table()["finds"]

    def worth(check: str) -> tuple[bool, bool, float]:
        seconds = max(costs.checks.get(check, 1.0), 1e-3)
        return bool(requires[check]), check != TELLING, -finds.get(check, 0) / seconds

    ordered: dict[str, None] = {}

    def add(check: str) -> None:
        for root in requires[check]:
            if root in requires and root not in ordered:
                add(root)
        ordered.setdefault(check)

    for check in sorted(requires, key=worth):
        add(check)
    return list(ordered)


def _table() -> Mapping[str, Any]:
    table: Mapping[str, Any] = json.loads(resources.files("normcheck.engine").joinpath("costs.json").read_text(encoding="utf-8"))
    return table
