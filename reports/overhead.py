"""How much of an audit's processor time goes to the code under judgement, to certified values, and to normcheck itself.

`python reports/overhead.py` prints a table; profiles to measure may be named behind it. Each row is one `normcheck.check` of one
callable in float32, bfloat16 and float16 with all checks of a profile, in one thread, after a first call that loads and compiles.

- code: what was given to be judged, called forward, and autograd's backward passes through it
- reference: `normcheck.reference`, forward and backward
- tolerances: the derived bounds, and holding outputs against them
- normcheck: all else, such as making inputs, converting arrays to the framework's and back, results, and snippets

Timers stand at the boundaries between the four, where they cost some microseconds a crossing; time spent inside one that was
called by another counts for the inner one only.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import normcheck as nc
from normcheck import bounds, gradient_bounds
from normcheck.checks.cases import forget
from normcheck.implementations import calls
from normcheck.implementations.torch import ADAPTER

PARTS = ("code", "reference", "tolerances", "normcheck")
MODULES = {"normcheck.reference": "reference"} | dict.fromkeys(
    ("normcheck.bounds", "normcheck.gradient_bounds", "normcheck.cells"), "tolerances"
)
METHODS: dict[type, tuple[str, ...]] = {
    bounds.RowErrors: ("bounds", "judged", "standardized"),
    gradient_bounds.GradientErrors: ("dx", "dweight", "dbias", "row_sum", "judged"),
}
Native = npt.NDArray[Any]


class Clock:
    """Processor seconds by part; at any time one part is charged.

    Attributes
    ----------
    seconds : so far, by part
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._part, self._since = PARTS[-1], time.process_time()

    def switch(self, part: str) -> str:
        """Charge another part from now on; returns the one that was charged."""
        now = time.process_time()
        self.seconds[self._part] += now - self._since
        before, self._part, self._since = self._part, part, now
        return before

    def charged(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time is charged to a part."""

        @functools.wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            before = self.switch(part)
            try:
                return function(*arguments, **options)
            finally:
                self.switch(before)

        return timed


def put_timers(clock: Clock) -> None:
    """Stand at the boundaries of the parts."""
    callee, called = calls.callee, calls._called

    def timed_callee(*arguments: Any) -> Callable[..., Any]:
        return clock.charged("code", callee(*arguments))

    def timed_called(implementation: Any, framework: Any, inputs: Any, around: Any = None) -> Any:
        return called(implementation, framework, inputs, None if around is None else clock.charged("code", around))

    calls.callee, calls._called = timed_callee, timed_called
    for name in ("pull_back", "pull_back_twice"):
        setattr(ADAPTER, name, clock.charged("code", getattr(ADAPTER, name)))
    for kind, names in METHODS.items():
        for name in names:
            setattr(kind, name, clock.charged("tolerances", getattr(kind, name)))
    for module in [module for name, module in sys.modules.items() if name.startswith("normcheck.")]:
        for name, value in list(vars(module).items()):
            part = _part(value.__module__) if isinstance(value, FunctionType) else ""
            if part and part != _part(module.__name__):
                setattr(module, name, clock.charged(part, value))


def _part(module: str) -> str:
    """The part to which what a module defines belongs, or ``""``."""
    return next((part for name, part in MODULES.items() if f"{module}.".startswith(f"{name}.")), "")


def rms_norm(x: Native, weight: Native | None) -> Native:
    """A plain RMSNorm that calculates in float32 and rounds once."""
    wide = x.astype(np.float32)
    scaled = wide / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + np.float32(1e-6))
    return (scaled if weight is None else scaled * weight.astype(np.float32)).astype(x.dtype)


def batch_norm(x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float) -> Any:
    """torch's, which writes the running statistics in place."""
    return torch.nn.functional.batch_norm(x, mean, variance, weight, bias, training, momentum, 1e-5)


JUDGED: dict[str, Callable[..., Any]] = {
    "F.layer_norm": functools.partial(
        nc.check,
        torch.nn.functional.layer_norm,
        nc.LayerNorm(),
        contract=nc.Contract(accumulation="merge"),
        arguments=("x", "normalized_shape", "weight", "bias", "eps"),
    ),
    "F.batch_norm": functools.partial(nc.check, batch_norm, nc.BatchNorm(), mutates=("running_mean", "running_var")),
    "numpy rms_norm": functools.partial(nc.check, rms_norm, nc.RMSNorm(), framework="numpy"),
}


def measure(clock: Clock, judge: Callable[..., Any], profile: str) -> dict[str, float]:
    """Processor seconds by part of one check, of which nothing has been certified before."""
    forget()
    clock.switch(PARTS[-1])
    clock.seconds = dict.fromkeys(PARTS, 0.0)
    judge(profile=profile)
    clock.switch(PARTS[-1])
    return clock.seconds


def main(profiles: tuple[str, ...]) -> None:
    """Measure and print."""
    for judge in JUDGED.values():
        judge(profile="quick", checks=["accuracy", "input-gradient"], dtypes=("float32",))
    clock = Clock()
    put_timers(clock)
    print(f"| judged | profile | CPU seconds | {' | '.join(PARTS)} |\n| --- | --- | ---: |{' ---: |' * len(PARTS)}")
    for name, judge in JUDGED.items():
        for profile in profiles:
            seconds = measure(clock, judge, profile)
            total = sum(seconds.values())
            shares = " | ".join(f"{part / total:.0%}" for part in seconds.values())
            print(f"| {name} | {profile} | {total:.1f} | {shares} |")


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or ("quick", "standard"))
