"""Work shared among threads, in order: numpy and compiled kernels let go of the interpreter while they compute."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def workers() -> int:
    """How many threads to use: the environment's NORMCHECK_THREADS, or the processors that this process may use."""
    asked = os.environ.get("NORMCHECK_THREADS", "")
    if asked:
        return max(1, int(asked))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def each(do: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """do(item) for every item, in their order; a few at a time, so that memory does not grow with their number."""
    stream, count = iter(items), workers()
    first = list(islice(stream, 2))
    if count == 1 or len(first) < 2:
        yield from map(do, first)
        yield from map(do, stream)
        return
    with ThreadPoolExecutor(count) as pool:
        waiting: deque[Future[Result]] = deque(pool.submit(do, item) for item in (*first, *islice(stream, 2 * count - 2)))
        while waiting:
            done = waiting.popleft().result()
            waiting.extend(pool.submit(do, item) for item in islice(stream, 1))
            yield done
