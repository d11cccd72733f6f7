"""What a fault is, and how faults and sound norms are registered: by decorating the function that computes them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from normcheck.contract import Contract
from normcheck.implementations import Implementation
from normcheck.implementations.snippets import target_of
from normcheck.norms import Norm

HALF = ("float16", "bfloat16")
ALL = ("float32", *HALF)
USUAL = Contract()

_Function = TypeVar("_Function", bound=Callable[..., Any])
Role = Callable[[Callable[..., Any]], Mapping[str, Any]]
"""Makes of the decorated code the fields of `Implementation` that hold it."""


@dataclass(frozen=True, eq=False)
class Fault:
    """A norm broken on purpose.

    Attributes
    ----------
    name : hyphenated, such as ``"single-pass-variance"``
    kind : one of K01 .. K33 of the catalogue of public faults
    statement : what is wrong, in one line
    provenance : the public reports that it re-tells, such as ``"pytorch/pytorch#51102"``; ``"after pytorch/pytorch#51102"`` where
        it is a cousin, made up here, of what that report tells
    implementation : the broken code and what it claims to be
    expected : ids of the checks that find it, as an error or a warning: the first in every one of its dtypes, the others in one
    profile : the least thorough profile that finds it
    """

    name: str
    kind: str
    statement: str
    provenance: tuple[str, ...]
    implementation: Implementation
    expected: tuple[str, ...]
    profile: str = "quick"

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes in which the fault can be observed."""
        return self.implementation.dtypes


_FAULTS: dict[str, Fault] = {}
_SOUND: dict[str, Implementation] = {}
_WARNINGS: dict[str, tuple[str, ...]] = {}


def faults() -> tuple[Fault, ...]:
    """The zoo, ordered by kind and name. Most faults are written in torch, which is imported only when they are called."""
    _load()
    return tuple(sorted(_FAULTS.values(), key=lambda fault: (fault.kind, fault.name)))


def sound() -> tuple[Implementation, ...]:
    """The sound collection, by name: conforming implementations that no check may fail."""
    _load()
    return tuple(_SOUND[name] for name in sorted(_SOUND))


def sound_warnings() -> dict[str, tuple[str, ...]]:
    """Ids of the checks that are right to warn of a sound implementation, by its name; those without any are left out."""
    _load()
    return dict(_WARNINGS)


def fault(
    kind: str,
    *provenance: str,
    norm: Norm,
    expected: tuple[str, ...] = ("accuracy",),
    dtypes: tuple[str, ...] = ALL,
    contract: Contract = USUAL,
    profile: str = "quick",
    role: Role | None = None,
    **options: Any,
) -> Callable[[_Function], _Function]:
    """Make the decorated function a fault of the zoo; the first line of its docstring is the statement.

    The function's parameters are named for what it takes: x weight bias running_mean running_var training momentum, or a setting
    of the norm such as eps; ``*_`` stands for running statistics that are given and not used. ``options`` go to `Implementation`.
    Where the decorated code is something else, such as a module's factory or a block, ``role`` makes of it the fields of
    `Implementation` that hold it.

    Raises
    ------
    ValueError : at import, for a name that is taken
    """

    def add(function: _Function) -> _Function:
        made = _implementation(function, norm, dtypes, contract, options, role)
        _FAULTS[made.name] = Fault(made.name, kind, _statement(function), provenance, made, expected, profile)
        return function

    return add


def sound_norm(
    norm: Norm,
    *,
    dtypes: tuple[str, ...] = ALL,
    contract: Contract = USUAL,
    warns: tuple[str, ...] = (),
    role: Role | None = None,
    **options: Any,
) -> Callable[[_Function], _Function]:
    """Make the decorated function a member of the sound collection; parameters as for `fault`.

    Parameters
    ----------
    warns : ids of the checks that are right to warn of it
    """

    def add(function: _Function) -> _Function:
        made = _implementation(function, norm, dtypes, contract, options, role)
        _SOUND[made.name] = made
        if warns:
            _WARNINGS[made.name] = warns
        return function

    return add


def _implementation(
    function: Callable[..., Any],
    norm: Norm,
    dtypes: tuple[str, ...],
    contract: Contract,
    options: dict[str, Any],
    role: Role | None,
) -> Implementation:
    name = re.sub("(?<=[a-z0-9])(?=[A-Z])", "-", function.__name__).replace("_", "-").lower()
    if name in _FAULTS or name in _SOUND:
        raise ValueError(f"{function.__module__}: {name!r} names another fault or sound norm already")
    given = {"validates": False} | options
    if role is not None:
        fields = role(function)
        if not target_of(next(fields[key] for key in ("call", "make", "module") if key in fields)):
            # what the role has wrapped is found by snippets at the decorated code
            function.target = next(fields[key] for key in ("call", "make", "module") if key in fields)  # type: ignore[attr-defined]
            given = {"source": f"{function.__module__}:{function.__qualname__}.target"} | given
        return Implementation(norm=norm, contract=contract, name=name, dtypes=dtypes, **fields, **given)
    taken = [name for name in inspect.signature(function).parameters if name != "_"]
    unused = ("running_mean", "running_var") if "_" in inspect.signature(function).parameters else ()
    return Implementation(function, norm, contract, name, dtypes=dtypes, arguments=(*taken, *unused), **given)


def _statement(function: Callable[..., Any]) -> str:
    return (inspect.getdoc(function) or "").partition("\n")[0].rstrip(".")


def _load() -> None:
    package = importlib.import_module("normcheck.faults")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"normcheck.faults.{module.name}")
