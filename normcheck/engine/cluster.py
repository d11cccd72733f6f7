"""Units on a cluster: each is one task of the scheduler, and is judged there in a worker process of its own."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future, as_completed
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from normcheck.checks import Check, Context, checks
from normcheck.engine import worker
from normcheck.engine.jobs import Job, Jobs, Place
from normcheck.engine.lanes import EngineError, Lane, Limits, unsent
from normcheck.engine.units import Course, Unit
from normcheck.implementations.targets import describe
from normcheck.results import Result

Wanted = Sequence[tuple[str, tuple[str, ...]]]
"""Ids of checks, and what each requires."""

_HERE = threading.local()


def run(jobs: Jobs, scheduler: Any, limits: Limits) -> Generator[tuple[Place, list[Result]]]:
    """The results of one check after the other, as units end.

    A unit whose worker is killed is run again by the scheduler; one that it gives up is run by this process.

    Parameters
    ----------
    scheduler : address of a dask scheduler, a ``distributed`` client or cluster, or a ``concurrent.futures.Executor``

    Raises
    ------
    EngineError : if the scheduler is none, cannot be reached, or its workers cannot run normcheck
    """
    with ExitStack() as stack:
        executor = _executor(scheduler, stack)
        futures: dict[Future[Any], Job] = {}
        stack.callback(lambda: [future.cancel() for future in futures])
        while (job := jobs.take()) is not None:
            course = jobs.courses[job.unit]
            try:
                payload = worker.encode(course.unit.context)
            except Exception as error:  # noqa: BLE001 - pickling runs the user's code
                yield from _unsent(course, job, error)
                continue
            wanted = [(course.unit.checks[n].id, course.unit.checks[n].requires) for n in job.numbers]
            futures[executor.submit(judge_unit, payload, wanted, course.failed, limits)] = job
        for future in as_completed(tuple(futures)):
            job = futures.pop(future)
            for number, results in zip(job.numbers, _results(future, jobs.courses[job.unit], job, limits), strict=True):
                yield (job.unit, number), results


def judge_unit(payload: bytes, wanted: Wanted, failed: Mapping[str, str], limits: Limits) -> list[list[Result]]:
    """What runs on the cluster: the results of checks of one unit, one after the other.

    Parameters
    ----------
    payload : the context, from `worker.encode`
    wanted : the checks
    failed : how the checks of the unit ended that must not be built upon
    limits : of one check
    """
    # the workers of dask are daemons, which may have no children; those of a lane end with their parent by themselves
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    known = checks()
    context = worker.decode(payload)
    unit = Unit(context, tuple(replace(known[id_], requires=requires) for id_, requires in wanted))
    course = Course(unit, dict(failed))
    lane: Lane | None = getattr(_HERE, "lane", None)
    if lane is None or lane.limits != limits:
        if lane is not None:
            lane.close()
        lane = _HERE.lane = Lane(limits, [context.implementation.framework])
    return [course.step(number, lane.perform) for number in range(len(unit.checks))]


def _results(future: Future[Any], course: Course, job: Job, limits: Limits) -> Iterator[list[Result]]:
    try:
        yield from future.result()
        return
    except BrokenExecutor:
        pass
    except Exception as error:  # noqa: BLE001 - dask's own error is only there where dask is
        if type(error).__name__ != "KilledWorker":
            raise EngineError(f"the cluster cannot judge {course.unit.label}: {describe(error)}") from None
    with Lane(limits, [course.unit.context.implementation.framework]) as lane:
        for number in job.numbers:
            yield course.step(number, lane.perform)


def _unsent(course: Course, job: Job, error: Exception) -> Iterator[tuple[Place, list[Result]]]:
    def perform(check: Check, context: Context) -> list[Result]:
        return [unsent(context, check, error)]

    for number in job.numbers:
        yield (job.unit, number), course.step(number, perform)


def _executor(scheduler: Any, stack: ExitStack) -> Any:
    """Whatever was given as something that tasks can be submitted to."""
    if isinstance(scheduler, str):
        try:
            from distributed import Client
        except ImportError:
            raise EngineError("distributed is not installed; pip install 'normcheck[dask]'") from None
        try:
            scheduler = stack.enter_context(Client(scheduler, set_as_default=False))
        except (OSError, ValueError) as error:
            raise EngineError(f"scheduler={scheduler!r} cannot be reached: {describe(error)}") from None
    elif hasattr(scheduler, "get_client"):
        scheduler = scheduler.get_client()
    if hasattr(scheduler, "get_executor"):
        return scheduler.get_executor(pure=False)
    if not hasattr(scheduler, "submit"):
        raise EngineError(f"scheduler={scheduler!r}, but should be an address, a dask client, or an Executor")
    return scheduler
