"""The whole battery on an accelerator in less than eight minutes, if there is one.

`python reports/gpu_session.py [FOLDER]` runs the tests with the marker gpu, audits every norm of torch and the paths that can be
forced on the first accelerator that torch finds, and writes to kernels.md which device kernels a call of each runs. The audit is
stopped when its time is up; its report says how far it came, and `normcheck audit --resume FOLDER` goes on. Exits with 0 if
nothing failed, with 1 if something did, with 3 where there is no accelerator.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from normcheck.checks import Context
from normcheck.checks.base import SkipCaseError
from normcheck.checks.verdicts import some_rows
from normcheck.implementations import CallError, Implementation, call, frameworks, implementations

TESTS, AUDIT, WRITING = 60, 300, 60
"""Seconds for the tests, for the audit, and for what it writes after it was stopped; a minute is left for the kernels."""
WORKERS = 8
ROOT = Path(__file__).parents[1]


def main(folder: str = "gpu-report") -> int:
    """Run what there is time for, and say where the report lies."""
    started, adapter = time.monotonic(), frameworks()["torch"]
    found = [device for device in adapter.devices() if device != "cpu"] if adapter.available() is None else []
    if not found:
        print(f"No accelerator: {adapter.available() or f'torch {adapter.version()} finds cpu alone'}. Nothing was run.")
        return 3
    tested = _run(["-m", "pytest", str(ROOT / "tests"), "-m", "gpu", "-q"], TESTS)
    options = ["--profile", "quick", "--workers", str(min(WORKERS, os.cpu_count() or 1)), "--output", folder]
    judged = _run(["-m", "normcheck", "audit", "--implementation", "torch.*", "--device", found[0], *options], AUDIT)
    Path(folder, "kernels.md").write_text(_kernel_page(found[0]), encoding="utf-8")
    print(f"{_named(found[0])}: tests exit with {tested}, the audit with {judged}, after {time.monotonic() - started:.0f} s")
    return 0 if (tested, judged) == (0, 0) else 1


def _run(arguments: Sequence[str], seconds: float) -> int:
    """The exit code of a Python process that is interrupted when its time is up."""
    process = subprocess.Popen([sys.executable, *arguments])  # noqa: S603 - this interpreter, fixed words
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        return process.wait(WRITING)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _kernel_page(device: str) -> str:
    """Which kernels one call of each implementation runs, by dtype."""
    lines = [f"# Kernels on {_named(device)}", "", "| implementation | dtype | kernels |", "| --- | --- | --- |"]
    for row in implementations("torch"):
        if device in row.devices and not row.requires:
            lines += [f"| {row.name} | {dtype} | {'; '.join(_kernels(row, dtype, device))} |" for dtype in row.dtypes]
    return "\n".join([*lines, ""])


def _kernels(row: Implementation, dtype: str, device: str) -> Sequence[str]:
    """Names of the kernels that one call on standard rows runs, as torch's profiler has them."""
    import torch

    context = Context(row, dtype, device, "quick")
    activities = [getattr(torch.profiler.ProfilerActivity, name) for name in ("CUDA", "XPU") if device.upper() == name]
    if not activities:
        return ("the profiler does not know this device",)
    try:
        inputs = context.case("standard", some_rows(context)).inputs
        with torch.profiler.profile(activities=activities) as profile:
            call(row, inputs)
            getattr(torch, device).synchronize()
    except (CallError, RuntimeError, SkipCaseError) as error:
        return (f"{type(error).__name__}: {' '.join(str(error).split())[:100]}",)
    return tuple(dict.fromkeys(_computing(event.name for event in profile.events())))


def _computing(names: Iterator[str]) -> Iterator[str]:
    """Kernels without those that copy, and without their arguments."""
    return (name.partition("(")[0].replace("|", "/") for name in names if "Memcpy" not in name and "Memset" not in name)


def _named(device: str) -> str:
    import torch

    name = getattr(getattr(torch, device), "get_device_name", lambda: "")()
    return f"{device} {name}, torch {torch.__version__}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
