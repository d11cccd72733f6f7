"""The jobs of an audit, handed out to whoever is free: what is left of each unit, or task by task where time is short."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from normcheck.engine.units import Course, Key, Unit
from normcheck.results import Outcome, Result

Place = tuple[int, int]
"""Of a task in the plan: its unit and its check."""

OUT_OF_BUDGET = "budget: the time that was given was over"


@dataclass(frozen=True)
class Job:
    """Checks of one unit, in their order."""

    unit: int
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Budget:
    """A limit to the time of a whole audit.

    Attributes
    ----------
    seconds : that it may take
    rank : of a task by its name: what is smaller comes first
    cost : expected seconds of a task
    """

    seconds: float
    rank: Mapping[Key, float]
    cost: Mapping[Key, float]


class Jobs:
    """What is still to be done. Safe to be used from several threads.

    Parameters
    ----------
    units : the plan
    known : results that an earlier run has left
    budget : tasks are handed out one by one, the most telling first, until the time is over
    """

    def __init__(self, units: Sequence[Unit], known: Mapping[Place, list[Result]], budget: Budget | None = None) -> None:
        self.units = units
        self.courses = [Course(unit) for unit in units]
        for place in sorted(known):
            self.courses[place[0]].learn(known[place])
        self.budget = budget
        self._end = None if budget is None else time.monotonic() + budget.seconds
        self._left = self._ordered(known)
        self._busy: set[int] = set()
        self._changed = threading.Condition()

    def take(self, last: int | None = None) -> Job | None:
        """The next job, of a unit that nobody works on; None when there is no more, or no more time.

        Parameters
        ----------
        last : the unit that the caller has worked on, whose certified values it has at hand
        """
        with self._changed:
            while True:
                possible = [job for job in self._left if self._in_time(job)]
                if not possible:
                    return None
                free = [job for job in possible if job.unit not in self._busy]
                if free:
                    job = free[0] if self.budget is not None else self._nearest(free, last)
                    self._left.remove(job)
                    self._busy.add(job.unit)
                    return job
                self._changed.wait()

    def release(self, job: Job) -> None:
        """The job is done."""
        with self._changed:
            self._busy.discard(job.unit)
            self._changed.notify_all()

    def cancel(self) -> None:
        """Hand out no more."""
        with self._changed:
            self._left = []
            self._changed.notify_all()

    @property
    def remaining(self) -> float | None:
        """Seconds that are left of the budget, at least one; None without a budget."""
        return None if self._end is None else max(1.0, self._end - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return self._end is not None and time.monotonic() >= self._end

    def left_out(self, done: Iterable[Place]) -> Iterator[tuple[Place, list[Result]]]:
        """A result for each task that there was no time for."""
        seen = set(done)
        for i, unit in enumerate(self.units):
            for number, check in enumerate(unit.checks):
                if (i, number) not in seen:
                    yield (i, number), [unit.context.result(check.id, Outcome.SKIPPED, OUT_OF_BUDGET)]

    def _ordered(self, known: Mapping[Place, list[Result]]) -> list[Job]:
        numbers = ((i, tuple(n for n in range(len(unit.checks)) if (i, n) not in known)) for i, unit in enumerate(self.units))
        whole = [Job(i, left) for i, left in numbers if left]
        if self.budget is None:
            return whole
        rank = self.budget.rank
        single = [Job(job.unit, (number,)) for job in whole for number in job.numbers]
        return sorted(single, key=lambda job: rank.get(self._key(job), float("inf")))

    def _in_time(self, job: Job) -> bool:
        if self.budget is None or self._end is None:
            return True
        return time.monotonic() + self.budget.cost.get(self._key(job), 0.0) < self._end

    def _key(self, job: Job) -> Key:
        return self.units[job.unit].key(job.numbers[0])

    def _nearest(self, free: Sequence[Job], last: int | None) -> Job:
        """One that shares certified values with what the caller did last, else with nothing that others are at."""
        if last is not None:
            for job in free:
                if self.units[job.unit].shared == self.units[last].shared:
                    return job
        others = {self.units[unit].shared for unit in self._busy}
        return next((job for job in free if self.units[job.unit].shared not in others), free[0])
