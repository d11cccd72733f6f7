"""Lanes: each leads one worker process, gives it one check at a time, and replaces it when it dies."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normcheck.checks import Check, Context
from normcheck.engine import worker
from normcheck.engine.units import AHEAD
from normcheck.implementations.targets import describe
from normcheck.results import Outcome, Result

TIME_LIMITS = {"quick": 120.0, "standard": 600.0, "deep": 3600.0}
_PACKAGE = str(Path(__file__).resolve().parents[1])
_LIBRARY = sysconfig.get_path("stdlib")
_START = 300.0  # seconds after which a worker that does not answer will never do
_GRACE = 10.0  # seconds between a worker's own timer and the pool's
_POLL = 0.2
_PATIENCE = 15  # polls that find no worker, before it counts as gone: the pool tells more, but takes its time
_TIMER = -getattr(signal, "SIGALRM", 0) or None  # the code of a worker that its own timer has ended
_KEPT = 4096  # bytes of output kept from the beginning and from the end


class EngineError(RuntimeError):
    """The engine itself cannot go on. The message is one line."""


@dataclass(frozen=True)
class Limits:
    """What one check may take.

    Attributes
    ----------
    seconds : wall time; None for that of `TIME_LIMITS` for the profile
    memory : bytes that the worker process may allocate; None for what is free
    """

    seconds: float | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        """Refuse limits that nothing can meet."""
        for name in ("seconds", "memory"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value!r}, but should be > 0")

    def time(self, profile: str) -> float:
        """Seconds that a check may take in a profile."""
        return self.seconds if self.seconds is not None else TIME_LIMITS[profile]


class Lane:
    """One worker process at a time, started when it is needed. Used as a context manager, and from one thread.

    Parameters
    ----------
    limits : of one check
    frameworks : whose implementations it will be given
    stop : once it is set, whatever is waited for raises `Stopped`
    """

    def __init__(self, limits: Limits, frameworks: Iterable[str] = (), stop: threading.Event | None = None) -> None:
        self.limits = limits
        self.stop = stop or threading.Event()
        self._frameworks = tuple(frameworks)
        self._pool: Any = None
        self._worker = 0
        self._output: _Output | None = None
        self._sent: tuple[Context, bytes] | None = None
        self._asked: dict[str, Future[Any]] = {}

    def __enter__(self) -> Lane:
        """The lane; no process is started yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the worker and whatever it has started."""
        self.close()

    def perform(
        self, check: Check, context: Context, seconds: float | None = None, ahead: Callable[[], Sequence[Check]] = tuple
    ) -> list[Result]:
        """The results of a check that is run in the worker; a process that dies or hangs is a result as well.

        Parameters
        ----------
        seconds : that it may take; None for the limit
        ahead : tells the checks that will be asked for next, in this order: the worker goes on with them without waiting to be
            asked

        Raises
        ------
        EngineError : if no worker process can be started
        Stopped : once ``stop`` is set
        """
        limit = self.limits.time(context.profile) if seconds is None else seconds
        try:
            payload = self._payload(context)
        except Exception as error:  # noqa: BLE001 - pickling runs the user's code
            return [unsent(context, check, error)]
        self._start()
        began = time.monotonic()
        if check.id not in self._asked or len(self._asked) <= AHEAD // 2:
            for one in (check, *ahead()):
                if one.id not in self._asked:
                    self._asked[one.id] = self._pool.schedule(worker.judge, (payload, one.id, limit), timeout=limit + _GRACE)
        try:
            found = self._wait(self._asked.pop(check.id))
        except (_Gone, TimeoutError, BrokenProcessPool) as end:
            return [self._ended(context, check, end, limit, time.monotonic() - began)]
        except Exception as error:  # noqa: BLE001 - unpickling runs the user's code
            return [unsent(context, check, error)]
        if found.spoiled:
            self.close()
        return found.results

    def _payload(self, context: Context) -> bytes:
        """The context as it is sent; what was asked ahead of another context is not waited for."""
        if self._sent is None or self._sent[0] is not context:
            self._asked = {}
            self._sent = (context, worker.encode(context))
        return self._sent[1]

    def close(self) -> None:
        """End the worker and whatever it has started; the next check starts another."""
        self._asked = {}
        if self._pool is None:
            return
        _kill_group(self._worker)
        self._pool.stop()
        self._pool.join()
        self._pool, self._worker = None, 0
        if self._output is not None:
            self._output.close()

    def _start(self) -> None:
        if self._pool is not None:
            return
        from pebble import ProcessPool

        starting = _starting(self._frameworks)
        self._output = _Output(starting)
        given = (self._output.writer,)
        self._pool = ProcessPool(max_workers=1, initializer=worker.prepare, initargs=given, context=starting)
        try:
            self._worker = self._pool.schedule(worker.hello, (self.limits.memory or _free(),), timeout=_START).result()
        except MemoryError as error:
            self.close()
            raise EngineError(str(error)) from None
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing can be judged
            said = self._output.last()
            self.close()
            hint = "a script that asks for workers should do so below: if __name__ == '__main__'"
            raise EngineError(f"no worker process can be started: {describe(error)} {said}; {hint}") from None

    def _wait(self, future: Future[Any]) -> worker.Found:
        """What the worker answers; raises _Gone where it dies, and Stopped where nobody waits for the answer any more."""
        from pebble import ProcessExpired

        try:
            return self._answer(future)
        except ProcessExpired as end:
            raise _Gone(end.exitcode) from None

    def _answer(self, future: Future[Any]) -> worker.Found:
        missed = 0
        while missed < _PATIENCE:
            with contextlib.suppress(TimeoutError):
                return future.result(timeout=_POLL)  # type: ignore[no-any-return]
            if future.done():
                return future.result()  # type: ignore[no-any-return]
            if self.stop.is_set():
                raise Stopped
            missed = 0 if _alive(self._worker) else missed + 1
        raise _Gone(0)  # the pool takes no notice of a worker that ends in peace

    def _ended(self, context: Context, check: Check, end: Exception, limit: float, seconds: float) -> Result:
        said = self._output.last() if self._output is not None else ""
        code = end.code if isinstance(end, _Gone) else None
        self.close()
        asked = f"[{check.id}, {context.dtype}]"
        if isinstance(end, TimeoutError) or (code is not None and code == _TIMER):
            text = f"time={limit:g} s and more, but should be less {asked}{said}"
            return context.result(check.id, Outcome.TIMEOUT, text, seconds=seconds)
        text = f"the process {_how(code)}, but should return {asked}{said}"
        return context.result(check.id, Outcome.CRASHED, text, seconds=seconds)


def _starting(frameworks: Iterable[str]) -> Any:
    """How processes are started: from a clean server that has imported what all of them need, or afresh."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    made = multiprocessing.get_context("forkserver")
    # of the frameworks only torch is known to survive a fork after its import
    made.set_forkserver_preload(["normcheck.engine.worker", *({"torch"} & set(frameworks))])
    return made


class Stopped(Exception):  # noqa: N818 - no error
    """Nobody waits for the answer any more."""


class _Gone(Exception):  # noqa: N818 - no error of ours
    """The worker has died."""

    def __init__(self, code: int | None) -> None:
        super().__init__(code)
        self.code = code


class _Output:
    """What a worker prints: read away, however much it is; beginning and end are kept."""

    def __init__(self, starting: Any) -> None:
        self._reader, self.writer = starting.Pipe(duplex=False)
        self._head, self._tail = b"", b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def last(self) -> str:
        """Where the code was when it died, if that was told, or else the last line that it wrote; behind a semicolon."""
        time.sleep(_POLL)  # what was written last is still on its way
        text = (self._head + b"\n" + self._tail).decode("utf-8", "replace")
        frames = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', text)
        foreign = [frame for frame in frames if not frame[0].startswith(_PACKAGE)]
        if foreign:
            own = next((frame for frame in foreign if not frame[0].startswith(_LIBRARY)), foreign[0])
            return f"; it was in {Path(own[0]).name}, line {own[1]}, {own[2]}"
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return f"; it said last: {lines[-1][:200]}" if lines else ""

    def close(self) -> None:
        """Stop reading, when no process writes any more."""
        self.writer.close()
        self._thread.join(timeout=_POLL)
        if not self._thread.is_alive():
            self._reader.close()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while part := os.read(self._reader.fileno(), 1 << 16):
                room = _KEPT - len(self._head)
                self._head += part[:room]
                self._tail = (self._tail + part[room:])[-_KEPT:]


def unsent(context: Context, check: Check, error: Exception) -> Result:
    """The result of code that cannot be pickled, or not be read again."""
    text = f"it cannot be taken to a worker process: {describe(error)}; isolation=False (--no-isolation) judges it in this one"
    return context.result(check.id, Outcome.BROKEN, text)


def _free() -> int | None:
    """Bytes of memory that are free, or half of all if that is more; None where the system does not tell."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        total, available = (int(re.findall(rf"{name}:\s+(\d+) kB", text)[0]) << 10 for name in ("MemTotal", "MemAvailable"))
        free = max(total // 2, available)
    except (OSError, IndexError):
        return None
    with contextlib.suppress(OSError, ValueError):  # a container may have less than its machine; without a limit this says max
        free = min(free, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return free


def _how(code: int | None) -> str:
    if code is None:
        return "died"
    if code >= 0:
        return f"exited with code {code}"
    with contextlib.suppress(ValueError):
        return f"died of {signal.Signals(-code).name}"
    return f"died of signal {-code}"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _kill_group(pid: int) -> None:
    """End a worker and its children, which are of its session."""
    if pid and hasattr(os, "killpg"):
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
