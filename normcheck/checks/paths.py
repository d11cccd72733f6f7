"""Paths: which operators of the framework an ordinary call dispatches to."""

from __future__ import annotations

from collections.abc import Iterator

from normcheck.checks.base import Context, describe, guarded, register
from normcheck.checks.verdicts import some_rows
from normcheck.implementations import call
from normcheck.implementations.ways import traced
from normcheck.results import Outcome, Result, Severity

ID = "dispatched-operators"


def _needs_torch(context: Context) -> str:
    return "" if context.implementation.framework == "torch" else f"{context.implementation.framework} tells of no operators"


@register(ID, applies=_needs_torch)
def dispatched_operators(context: Context) -> Iterator[Result]:
    """A call runs the operator that it is said to run.

    Statement
    ---------
    The operators that one call on standard rows dispatches are written down. Where the implementation names its ``path``, that
    operator is among them.

    Why it matters
    --------------
    One function has several kernels, by device, dtype, layout and flags. A grade holds for the kernel that ran; one that was
    meant to be forced and was not is judged under another's name.

    Holds for
    ---------
    torch code. Kernels below an operator, such as vectorized ones, are not told apart.

    Tolerance
    ---------
    None: names.

    Known exceptions
    ----------------
    A path that is not taken is a warning: what ran may be sound.

    References
    ----------
    torch.utils._python_dispatch; `Implementation`, ``path``.
    """
    yield from guarded(context, ID, _dispatched, regime="standard")


def _dispatched(context: Context) -> Result:
    case = context.case("standard", some_rows(context))
    seen: list[str] = []
    call(context.implementation, case.inputs, traced(seen))
    ran = ", ".join(dict.fromkeys(seen)) or "nothing"
    shape, path = tuple(case.fold.shape), context.implementation.path
    if path and path not in seen:
        text = f"ran {ran}, but should run {path} [{describe(case)}]"
        return context.result(ID, Outcome.WARNED, text, severity=Severity.WARNING, regime="standard", shape=shape)
    return context.result(ID, Outcome.PASSED, f"ran {ran}", severity=Severity.WARNING, regime="standard", shape=shape)
