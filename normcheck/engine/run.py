"""Running a plan: in this process, in worker processes, or on a cluster. What comes out is the same."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from normcheck.checks import Check, Context, run_check
from normcheck.engine.jobs import Budget, Job, Jobs, Place
from normcheck.engine.lanes import Lane, Limits, Stopped
from normcheck.engine.units import Unit, settle
from normcheck.results import Outcome, Result

Done = tuple[Place, list[Result]]


def run_all(
    units: Sequence[Unit],
    workers: int = 1,
    *,
    isolation: bool | None = None,
    limits: Limits | None = None,
    known: Mapping[Place, list[Result]] | None = None,
    budget: Budget | None = None,
    scheduler: Any = None,
) -> Generator[Done]:
    """The results of one check after the other as they come, with the places of unit and check in the plan.

    Parameters
    ----------
    workers : processes
    isolation : whether code runs in worker processes; None: where there are several
    limits : of one check in a worker process
    known : results that need not be found again; they are not told
    budget : of time; what it leaves out comes last, as skipped
    scheduler : a cluster to run on, see `normcheck.engine.cluster`

    Raises
    ------
    ValueError : for more than one worker without isolation, or a budget on a cluster
    """
    if workers > 1 and isolation is False:
        raise ValueError(f"workers={workers}, but should be 1 without isolation")
    if scheduler is not None and budget is not None:
        raise ValueError("budget and scheduler were given, but should be one of them: a cluster is not told to stop in time")
    jobs = Jobs(units, known or {}, budget)
    if scheduler is not None:
        from normcheck.engine.cluster import run

        return run(jobs, scheduler, limits or Limits())
    if workers == 1 and not isolation:
        return _complete(jobs, known or {}, _here(jobs))
    return _complete(jobs, known or {}, _in_lanes(jobs, workers, limits or Limits()))


def _complete(jobs: Jobs, known: Mapping[Place, list[Result]], found: Iterator[Done]) -> Generator[Done]:
    """What was found, and then what the budget left out."""
    seen = set(known)
    for place, results in found:
        seen.add(place)
        yield place, results
    if jobs.budget is not None:
        yield from jobs.left_out(seen)


def _here(jobs: Jobs) -> Iterator[Done]:
    last = None
    while (job := jobs.take(last)) is not None:
        last = job.unit
        settle(jobs.units[job.unit].context)
        for number in job.numbers:
            yield (job.unit, number), jobs.courses[job.unit].step(number, run_check)
        jobs.release(job)


def _in_lanes(jobs: Jobs, workers: int, limits: Limits) -> Iterator[Done]:
    found: queue.Queue[Done | BaseException | None] = queue.Queue()
    stop = threading.Event()
    count = max(1, min(workers, len(jobs.units)))
    threads = [threading.Thread(target=_lead, args=(jobs, limits, stop, found), daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        while count:
            one = found.get()
            if isinstance(one, BaseException):
                raise one
            if one is None:
                count -= 1
            else:
                yield one
    finally:
        stop.set()
        jobs.cancel()
        for thread in threads:
            thread.join()


def _lead(jobs: Jobs, limits: Limits, stop: threading.Event, found: queue.Queue[Done | BaseException | None]) -> None:
    """One lane: job after job, until there is none."""
    try:
        frameworks = {unit.context.implementation.framework for unit in jobs.units}
        with Lane(limits, frameworks, stop) as lane:
            last = None
            while (job := jobs.take(last)) is not None:
                last = job.unit
                for done in _done(jobs, job, lane):
                    found.put(done)
                jobs.release(job)
    except Stopped:
        pass
    except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that waits
        found.put(error)
    finally:
        found.put(None)


def _done(jobs: Jobs, job: Job, lane: Lane) -> Iterator[Done]:
    course = jobs.courses[job.unit]
    for number in job.numbers:

        def perform(check: Check, context: Context, number: int = number) -> list[Result]:
            limit, left = lane.limits.time(context.profile), jobs.remaining
            seconds = limit if left is None else min(limit, left)
            return lane.perform(check, context, seconds, lambda: course.ahead(number, job.numbers))

        results = course.step(number, perform)
        if not (jobs.over and any(result.outcome is Outcome.TIMEOUT for result in results)):
            yield (job.unit, number), results
