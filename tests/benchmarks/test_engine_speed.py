"""What worker processes cost, and what a second one saves, on an audit of a minute or more: the ratios are printed and promised.

One intra-op thread each, the median of three rounds, the ways timed in turn. The promises hold for a machine with two cores and
nothing else to do.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

import pytest

import normcheck as nc

pytest.importorskip("torch", reason="torch is missing: pip install normcheck[torch]")
pytestmark = [pytest.mark.slow, pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")]

ROUNDS = 3
LEAST = 60.0  # seconds that the audit takes in one process
WAYS: dict[str, dict[str, Any]] = {
    "here": {"isolation": False},
    "one": {"isolation": True, "workers": 1},
    "two": {"isolation": True, "workers": 2},
}


def timed(**how: Any) -> tuple[float, int]:
    """Seconds that an audit of torch's and numpy's norms takes, and how many results it has."""
    norms = [*nc.implementations("torch"), *nc.implementations("numpy")]
    began = time.perf_counter()
    audit = nc.audit(norms, profile="quick", **how)
    return time.perf_counter() - began, len(audit.results)


def test_workers(benchmark: Any) -> None:
    """Two workers are at least 1.7 times as fast as one, and one worker costs less than a tenth more than no isolation."""
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    results = set()
    for _ in range(ROUNDS):
        for way, how in WAYS.items():
            seconds, found = timed(**how)
            times[way].append(seconds)
            results.add(found)
    median = {way: statistics.median(seconds) for way, seconds in times.items()}
    figures = {
        "speedup": median["one"] / median["two"],
        "overhead": median["one"] / median["here"] - 1,
        "seconds": median["here"],
    }
    benchmark.extra_info.update({name: round(value, 3) for name, value in figures.items()})
    benchmark.pedantic(lambda: None)
    print(benchmark.extra_info)  # noqa: T201 - the figures are what this is run for
    assert len(results) == 1
    assert median["here"] >= LEAST
    assert figures["speedup"] >= 1.7
    assert figures["overhead"] < 0.1
