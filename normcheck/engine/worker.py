"""What runs in a worker process: one check of one context after the other, guarded against whatever the code does."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib.machinery
import math
import operator
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np

from normcheck.checks import Check, Context, checks, run_check
from normcheck.engine.units import settle
from normcheck.implementations import Implementation, discovered
from normcheck.implementations.calls import place
from normcheck.implementations.targets import describe
from normcheck.results import Outcome, Result

STDERR = 2
_HAS_TIMER = hasattr(signal, "setitimer")
_GUARDED: tuple[ModuleType, ...] = (np, np.linalg, math)
_BEFORE: dict[str, dict[str, Any]] = {}
_SETTLED: dict[str, Context] = {}


@dataclass(frozen=True)
class Found:
    """What a worker sends back: results, and whether it must not be used again."""

    results: list[Result]
    spoiled: bool = False


@dataclass(frozen=True)
class _ByName:
    """Stands for a discovered implementation, which need not survive pickling."""

    name: str


def encode(context: Context) -> bytes:
    """A context for another process: discovered implementations by name, others by cloudpickle.

    Modules that another process would not find, such as a test file that pytest has loaded, go with them.

    Raises
    ------
    Exception : whatever pickling raises, for code that cannot be sent
    """
    implementation = context.implementation
    rest = replace(context, implementation=None)  # type: ignore[arg-type]
    if discovered(implementation.name) is implementation:
        return bytes(cloudpickle.dumps((_ByName(implementation.name), rest)))
    with contextlib.ExitStack() as stack:
        for module in _unreachable(implementation):
            cloudpickle.register_pickle_by_value(module)
            stack.callback(cloudpickle.unregister_pickle_by_value, module)
        return bytes(cloudpickle.dumps((implementation, rest)))


@functools.lru_cache(maxsize=2)
def decode(payload: bytes) -> Context:
    """The inverse of `encode`.

    Raises
    ------
    LookupError : for an implementation that is not discovered in this process
    """
    source: Any
    context: Context
    source, context = cloudpickle.loads(payload)
    found = discovered(source.name) if isinstance(source, _ByName) else source
    if found is None:
        raise LookupError(f"{source.name} is not among the implementations of this process")
    return replace(context, implementation=found)


def prepare(output: Any) -> None:
    """Begin a worker: a session of its own, what it prints sent to the pipe."""
    if hasattr(os, "setsid"):
        os.setsid()
    for stream in (1, STDERR):
        os.dup2(output.fileno(), stream)
    faulthandler.enable(file=STDERR)
    if _HAS_TIMER:
        faulthandler.register(signal.SIGALRM, file=STDERR, chain=True)
    _BEFORE.update({module.__name__: dict(vars(module)) for module in _GUARDED})


def hello(memory: int | None) -> int:
    """The number of this process, whose memory is limited to so many bytes from now on.

    Raises
    ------
    MemoryError : if it has more than that already
    """
    if memory is not None:
        import resource

        taken = _taken()
        if memory < taken:
            raise MemoryError(f"memory_limit={memory}, but should be more than the {taken} bytes that a worker starts with")
        # address space would count what CUDA and torch only reserve
        resource.setrlimit(resource.RLIMIT_DATA, (memory, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    return os.getpid()


def _taken() -> int:
    """Bytes that this process has allocated; 0 where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:")), 0)


def judge(payload: bytes, check: str, seconds: float) -> Found:
    """Run one check; whatever the code raises becomes a result, and when its time is over the process ends."""
    own = os.getpid()
    try:
        with _timer(seconds):
            return _judged(decode(payload), check)
    finally:
        if os.getpid() != own:
            os._exit(0)  # the code has forked, and this is the child: it must not answer as well


@contextlib.contextmanager
def _timer(seconds: float) -> Iterator[None]:
    """End the process when the time is over, also where the code holds the interpreter or nobody waits for it any more.

    The signal says where the code was, and kills. Where a system has no such timer the pool's own must do.
    """
    if not _HAS_TIMER:
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _judged(context: Context, check: str) -> Found:
    if _SETTLED.get("context") is not context:
        settle(context)
        _SETTLED["context"] = context
    try:
        results = run_check(_checks()[check], context)
    except BaseException as error:  # noqa: BLE001 - Ctrl-C does not reach this process: it is the code that raised
        results = [context.result(check, Outcome.BROKEN, f"call raised {describe(error)}{place(error)}")]
    replaced = _replaced()
    if replaced:
        text = f"{replaced} was replaced by the call, but should be left as it is"
        return Found([context.result(check, Outcome.BROKEN, text)], spoiled=True)
    return Found(results)


@functools.cache
def _checks() -> Mapping[str, Check]:
    return checks()


def _replaced() -> str:
    """The first name of numpy or math that is not what it was when the worker began."""
    for name, before in _BEFORE.items():
        now = map(vars(sys.modules[name]).get, before)
        same = list(map(operator.is_, before.values(), now))
        if not all(same):
            return f"{name}.{list(before)[same.index(False)]}"
    return ""


def _unreachable(implementation: Implementation) -> list[ModuleType]:
    """The modules of its code that another process could not import by name."""
    given = (implementation.target, implementation.grad, implementation.workers, *implementation.variants.values())
    names = {getattr(one, "__module__", None) or type(one).__module__ for one in given if callable(one)}
    return [sys.modules[name] for name in sorted(names - {"__main__"}) if name in sys.modules and not _importable(name)]


def _importable(name: str) -> bool:
    top = name.partition(".")[0]
    if top in sys.builtin_module_names or top in sys.stdlib_module_names:
        return True
    spec = importlib.machinery.PathFinder.find_spec(top)
    if spec is None or "." not in name:
        return spec is not None
    loaded = getattr(sys.modules[name], "__file__", None)
    package = importlib.machinery.PathFinder.find_spec(name, list(spec.submodule_search_locations or ()))
    return name.count(".") > 1 or package is not None or loaded is None
