"""Measures what checks cost, and counts what they found in the zoo: makes normcheck/engine/costs.json, which plans audits.

    python reports/costs.py

Seconds are processor time of one thread, the mean over some norms of numpy and torch in float32 and float16; faults are counted
in reports/zoo.json. The start of a worker is by the clock, until its first check is done, the least of three.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from normcheck.audit import Unit, plan
from normcheck.checks import Check, Context, run_check
from normcheck.engine.lanes import Lane, Limits
from normcheck.engine.units import settle
from normcheck.implementations import implementations
from normcheck.results import Result

HERE = Path(__file__).parent
NAMES = (
    "textbook.layer_norm",
    "textbook.rms_norm",
    "torch.nn.functional.layer_norm",
    "torch.nn.GroupNorm",
    "torch.nn.BatchNorm2d",
)
DTYPES = ("float32", "float16")


def main() -> None:
    """Measure and write."""
    seconds = {
        profile: measured(plan(chosen(), profile=profile, dtypes=DTYPES)) for profile in sys.argv[1:] or ("quick", "standard")
    }
    target = HERE.parent / "normcheck" / "engine" / "costs.json"
    stored = json.loads(target.read_text(encoding="utf-8")) if target.exists() else {"seconds": {}}
    table = {"seconds": {**stored["seconds"], **seconds}, "start": started(), "finds": found()}
    target.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def chosen() -> list[object]:
    """The norms that are measured."""
    return [one for one in implementations() if one.name.partition("[")[0] in NAMES]


def measured(units: Iterable[Unit]) -> dict[str, float]:
    """Seconds by check."""
    spent: dict[str, list[float]] = defaultdict(list)

    def timed(check: Check, context: Context) -> list[Result]:
        began = time.process_time()
        results = run_check(check, context)
        spent[check.id].append(time.process_time() - began)
        return results

    for unit in units:
        settle(unit.context)
        list(unit.run(timed))
        print(unit.label, file=sys.stderr)
    return {check: round(fmean(times), 4) for check, times in sorted(spent.items())}


def started() -> dict[str, float]:
    """Seconds until a worker is ready, by framework; each is measured in a process of its own, which has started none before."""
    times = defaultdict(list)
    for framework in 3 * ("numpy", "torch"):
        command = [sys.executable, __file__, "--start", framework]
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - fixed words, no shell
        times[framework].append(float(done.stdout))
    return {framework: round(min(several), 2) for framework, several in times.items()}


def start(framework: str) -> float:
    """Seconds until a worker has done the first check of a framework."""
    (unit, *_) = plan(implementations(framework)[:1], profile="quick", checks=["output-form"], dtypes=["float32"])
    began = time.perf_counter()
    with Lane(Limits(), [framework]) as lane:
        lane.perform(unit.checks[0], unit.context)
        return time.perf_counter() - began


def found() -> dict[str, int]:
    """In how many faults of the zoo each check found something."""
    zoo = json.loads((HERE / "zoo.json").read_text(encoding="utf-8"))["zoo"]
    counts = Counter(check for one in zoo for check in {**one["errors"], **one["warnings"]})
    return dict(sorted(counts.items()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--start"]:
        print(start(sys.argv[2]))
    else:
        main()
