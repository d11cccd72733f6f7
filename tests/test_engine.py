"""The engine: whatever the code under judgement does to its process becomes one result, and the rest of the audit is complete."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normcheck as nc
from normcheck.audit import Interrupted
from normcheck.engine import lanes
from normcheck.engine.lanes import EngineError, Lane, Limits
from normcheck.results import Outcome, Result

NORM = nc.RMSNorm(eps=1e-6)
CHECKS = ["shift-invariance", "scale-invariance", "outlier-sensitivity"]
SECONDS = 20.0


def rms(x: Any, weight: Any) -> Any:
    """A sound RMSNorm."""
    h = x.astype(np.float32)
    return (h / np.sqrt((h * h).mean(-1, keepdims=True) + np.float32(1e-6)) * weight.astype(np.float32)).astype(x.dtype)


def in_one_check(does: Callable[[], Any], check: str = "accuracy") -> Callable[..., Any]:
    """A sound RMSNorm that does something else besides, when it is called by one of the checks."""

    def call(x: Any, weight: Any) -> Any:
        frame: Any = sys._getframe()
        while frame is not None and frame.f_code.co_name != "run_check":
            frame = frame.f_back
        if frame is not None and frame.f_locals["check"].id == check:
            done = does()
            if done is not None:
                return done
        return rms(x, weight)

    return call


def judged(call: Callable[..., Any], **options: Any) -> nc.Audit:
    """An audit of a few checks in worker processes."""
    given = {"framework": "numpy", "dtypes": ("float32",), "profile": "quick", "name": "mine", "isolation": True} | options
    return nc.check(call, NORM, **{"checks": ["accuracy", *CHECKS], "time_limit": SECONDS, **given})


def of_check(audit: nc.Audit, check: str) -> list[Result]:
    """The results of one check."""
    return [result for result in audit.results if result.check == check]


def judged_of(results: tuple[Result, ...]) -> list[dict[str, Any]]:
    """Results without their times, and without those of the check that was disturbed."""
    return [{**result.to_dict(), "seconds": 0} for result in results if result.check != "accuracy"]


def segfault() -> None:
    """Read what is at address 0."""
    ctypes.string_at(0)


def eats_memory() -> None:
    """Take more than a gigabyte, and write to it."""
    np.ones(1 << 28)


def patches_numpy() -> None:
    """Replace a function of numpy."""
    np.sqrt = np.abs


def prints_garbage() -> None:
    """A gigabyte on the output, some of it no text."""
    line = b"\xff" * (1 << 20)
    for _ in range(1 << 10):
        os.write(1, line)


def warns() -> None:
    """A hundred thousand warnings."""
    for _ in range(100_000):
        warnings.warn("again", stacklevel=1)


def raises_interrupt() -> None:
    """What Ctrl-C raises."""
    raise KeyboardInterrupt


def forks() -> None:
    """A second process, which comes back as the first does."""
    os.fork()


def hangs() -> None:
    """For ever, with the interpreter held."""
    ctypes.PyDLL(None).sleep(1000)


def kills_itself() -> None:
    """As the kernel does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def closes_everything() -> None:
    """Close all files of the process."""
    os.closerange(0, 256)


@pytest.fixture(scope="module")
def undisturbed() -> nc.Audit:
    """The audit of the sound norm, in this process."""
    return judged(rms, isolation=False)


@pytest.mark.parametrize(
    ("does", "outcome", "said"),
    [
        (
            segfault,
            Outcome.CRASHED,
            r"the process died of SIGSEGV, but should return \[accuracy, float32\]; it was in test_engine.py",
        ),
        (os.abort, Outcome.CRASHED, r"the process died of SIGABRT, but should return"),
        (kills_itself, Outcome.CRASHED, r"the process died of SIGKILL, but should return"),
        (lambda: os._exit(0), Outcome.CRASHED, r"the process exited with code 0, but should return"),
        (lambda: os._exit(3), Outcome.CRASHED, r"the process exited with code 3, but should return"),
        (closes_everything, Outcome.CRASHED, r"the process .*, but should return"),
        (sys.exit, Outcome.BROKEN, r"call raised SystemExit"),
        (raises_interrupt, Outcome.BROKEN, r"call raised KeyboardInterrupt \(test_engine.py, line \d+\)$"),
        (patches_numpy, Outcome.BROKEN, r"numpy.sqrt was replaced by the call, but should be left as it is"),
        (lambda: np.ones((2, 2), np.float32), Outcome.FAILED, r"shape=\(2, 2\), but should be"),
    ],
    ids=["segfault", "abort", "killed", "exit-0", "exit-3", "closed", "sys.exit", "interrupt", "numpy", "shape"],
)
def test_what_the_code_does_becomes_the_result_of_that_check(
    undisturbed: nc.Audit, does: Callable[[], Any], outcome: Outcome, said: str
) -> None:
    """The check that was disturbed says what happened; all others say what they say of the undisturbed norm."""
    audit = judged(in_one_check(does))
    found = of_check(audit, "accuracy")
    assert {result.outcome for result in found} == {outcome}
    assert all(re.search(said, result.message) for result in found), found[0].message
    assert len(found) == 1 or outcome is not Outcome.CRASHED
    assert judged_of(audit.results) == judged_of(undisturbed.results)


@pytest.mark.parametrize("does", [prints_garbage, warns, forks], ids=lambda does: does.__name__)
def test_noise_changes_nothing(undisturbed: nc.Audit, does: Callable[[], Any]) -> None:
    """A gigabyte of output, a flood of warnings, a process more: the results are those of the undisturbed norm."""
    done: list[int] = []

    def once() -> None:
        if not done:
            done.append(1)
            does()

    audit = judged(in_one_check(once), time_limit=120.0)
    assert [{**r.to_dict(), "seconds": 0} for r in audit.results] == [{**r.to_dict(), "seconds": 0} for r in undisturbed.results]


def test_a_hang_ends_with_the_time_limit(undisturbed: nc.Audit) -> None:
    """Code that never returns, and lets nothing else run, is ended; the message says where it was."""
    began = time.monotonic()
    audit = judged(in_one_check(hangs), time_limit=3.0)
    (result,) = of_check(audit, "accuracy")
    assert result.outcome is Outcome.TIMEOUT
    assert result.message.startswith("time=3 s and more, but should be less [accuracy, float32]; it was in test_engine.py")
    assert result.seconds >= 3.0
    assert time.monotonic() - began < 60
    assert judged_of(audit.results) == judged_of(undisturbed.results)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited by the kernel of Linux")
def test_memory_is_limited(undisturbed: nc.Audit) -> None:
    """Code that takes more memory than it may is refused it, and nothing else suffers."""
    audit = judged(in_one_check(eats_memory), memory_limit=1 << 30)
    found = of_check(audit, "accuracy")
    assert {result.outcome for result in found} == {Outcome.BROKEN}
    assert all("MemoryError" in result.message for result in found)
    assert judged_of(audit.results) == judged_of(undisturbed.results)


def test_a_root_that_crashes_skips_what_builds_upon_it() -> None:
    """A norm that always crashes is one finding; the skips say that it crashed."""
    audit = judged(lambda x, weight: os.abort())
    assert [(result.check, result.outcome) for result in audit.failures] == [("output-form", Outcome.CRASHED)]
    assert "output-form crashed" in {result.message for result in audit.results if result.outcome is Outcome.SKIPPED}


def test_children_end_with_their_worker(tmp_path: Path) -> None:
    """What the code has started is ended with the process that hangs."""
    note = tmp_path / "pid"

    def starts_another() -> None:
        child = os.fork()
        if child:
            note.write_text(str(child), encoding="utf-8")
        time.sleep(1000)

    judged(in_one_check(starts_another), time_limit=3.0, checks=["accuracy"])
    child = int(note.read_text(encoding="utf-8"))
    ended = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and time.monotonic() < ended:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()


def test_code_that_cannot_be_sent_says_so() -> None:
    """What cannot be pickled is one finding that names the way out; without isolation it is judged."""
    lock = threading.Lock()

    def locked(x: Any, weight: Any) -> Any:
        with lock:
            return rms(x, weight)

    audit = judged(locked)
    (failure,) = audit.failures
    assert (failure.check, failure.outcome) == ("output-form", Outcome.BROKEN)
    assert "cannot be taken to a worker process: TypeError" in failure.message
    assert failure.message.endswith("isolation=False (--no-isolation) judges it in this one")
    assert judged(locked, isolation=False).passed


def test_workers_and_order_change_nothing() -> None:
    """One process, one worker and three workers give the same results in the same order."""
    made = [nc.Implementation(rms, NORM, framework="numpy", name=f"n{i}", dtypes=("float32", "float16")) for i in range(3)]
    options: dict[str, Any] = {"profile": "quick", "checks": ["accuracy", "scale-invariance"]}
    here, one, three = (nc.audit(made, **options, **how) for how in ({}, {"isolation": True}, {"workers": 3}))
    assert len(here.results) > 6
    assert judged_of(here.results) == judged_of(one.results) == judged_of(three.results)


def test_several_workers_are_isolated() -> None:
    """Workers are processes: without isolation there is one."""
    with pytest.raises(ValueError, match="workers=2, but should be 1 without isolation"):
        nc.audit([nc.Implementation(rms, NORM, framework="numpy")], profile="quick", workers=2, isolation=False)


@pytest.mark.parametrize(("name", "value"), [("time_limit", 0), ("memory_limit", -1)])
def test_limits_are_positive(name: str, value: int) -> None:
    """A limit that nothing can meet is refused."""
    with pytest.raises(ValueError, match=f"{'seconds' if name == 'time_limit' else 'memory'}={value}, but should be > 0"):
        judged(rms, **{name: value})


def test_a_worker_that_cannot_start_ends_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no worker process comes up, the audit stops with one line that says why."""
    monkeypatch.setattr("normcheck.engine.worker.prepare", os._exit)
    with pytest.raises(EngineError, match="no worker process can be started"), Lane(Limits()) as lane:
        lane._start()


def test_memory_that_no_worker_can_start_with_ends_the_audit() -> None:
    """A limit below what a worker process has at its start is one line that says how much that is."""
    with pytest.raises(
        EngineError, match=r"^memory_limit=1024, but should be more than the \d+ bytes that a worker starts with$"
    ):
        judged(rms, memory_limit=1024)


def test_an_interrupt_stops_the_workers() -> None:
    """Ctrl-C during an isolated audit hands over what was measured, and leaves no process behind."""

    def progress(done: int, total: int, label: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        judged(rms, progress=progress)
    assert caught.value.audit.born["interrupted"].startswith("2 of ")
    assert multiprocessing.active_children() == []


def test_output_that_speaks_of_time_is_no_timeout() -> None:
    """What the code prints is not taken for what the engine says."""

    def pretends() -> None:
        os.write(2, b"Timeout (0:00:01)!\n")
        os.abort()

    (result,) = of_check(judged(in_one_check(pretends), checks=["accuracy"]), "accuracy")
    assert result.outcome is Outcome.CRASHED


@pytest.mark.parametrize(
    ("text", "free"),
    [
        ("MemTotal: 8 kB\nMemAvailable: 6 kB\n", 6 << 10),
        ("MemTotal: 8 kB\nMemAvailable: 1 kB\n", 4 << 10),
        ("nonsense", None),
    ],
)
def test_what_a_worker_may_take(monkeypatch: pytest.MonkeyPatch, text: str, free: int | None) -> None:
    """By default what is free, or half of all if that is more, and no more than a container has."""
    told = {"/proc/meminfo": text, "/sys/fs/cgroup/memory.max": "max"}
    monkeypatch.setattr("normcheck.engine.lanes.Path.read_text", lambda path, encoding: told[str(path)])
    assert lanes._free() == free
    told["/sys/fs/cgroup/memory.max"] = "2048"
    assert lanes._free() == (None if free is None else 2048)
