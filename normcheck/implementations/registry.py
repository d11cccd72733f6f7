"""Which frameworks and implementations there are: adapter files in this package, entry points outside it."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from pathlib import Path
from types import ModuleType
from typing import Any

from normcheck.implementations.base import Framework, Implementation, MissingPackageError
from normcheck.implementations.targets import describe, staying

GROUP = "normcheck.implementations"


class RegistrationError(ValueError):
    """An entry point that does not yield implementations, or a name that is taken. The message says where each came from."""


@functools.cache
def frameworks() -> dict[str, Framework]:
    """The adapters by name: every file of this package that has an ``ADAPTER``, or several in ``ADAPTERS``."""
    found = ((getattr(module, "ADAPTER", None), *getattr(module, "ADAPTERS", ())) for module in _modules())
    return {adapter.name: adapter for adapters in found for adapter in adapters if adapter is not None}


def require(implementation: Implementation, device: str = "cpu") -> Framework:
    """The adapter of an implementation, if its framework and what else it requires are installed, and the device is there.

    Raises
    ------
    MissingPackageError : with the line that installs what is missing
    ValueError : for a device that the framework does not find here
    """
    framework = frameworks()[implementation.framework]
    lacking = missing(implementation)
    if lacking:
        raise MissingPackageError(lacking)
    if device != "cpu" and device.partition(":")[0] not in framework.devices():
        found = ", ".join(framework.devices())
        raise ValueError(f"device={device!r}, but {framework.name} {framework.version()} finds {found}")
    return framework


def implementations(framework: str | None = None) -> tuple[Implementation, ...]:
    """The implementations that are discovered: built in, and entry points of the group ``normcheck.implementations``.

    An entry point resolves to an `Implementation`, to a list of them, or to a function that returns either.

    Parameters
    ----------
    framework : only those of this framework; None for all. Those that lack a package are left out, see `left_out`

    Raises
    ------
    RegistrationError : for an entry point that yields something else, and for a name that is taken, naming where it came from
    MissingPackageError : if the framework that is asked for is not installed
    ValueError : for an unknown framework
    """
    if framework is not None:
        if framework not in frameworks():
            raise ValueError(f"framework={framework!r}, but should be one of {', '.join(frameworks())}")
        line = frameworks()[framework].available()
        if line is not None:
            raise MissingPackageError(_lacks(framework, line))
    return tuple(found for found in _registered().values() if framework in (None, found.framework) and not missing(found))


def discovered(name: str) -> Implementation | None:
    """The implementation that was discovered under a name, whether its packages are there or not."""
    return _registered().get(name)


def missing(implementation: Implementation) -> str:
    """Which package an implementation lacks here, with the line that installs it; ``""`` where it can be called."""
    line = frameworks()[implementation.framework].available()
    if line is not None:
        return _lacks(implementation.framework, line)
    package = implementation.requires
    return _lacks(package, f"pip install {package}") if package and not _installed(package) else ""


def left_out(framework: str | None = None) -> tuple[str, ...]:
    """Which packages are missing, with the lines that install them, and so keep implementations (of a framework) out."""
    adapters = {name: adapter.available() for name, adapter in frameworks().items() if framework in (None, name)}
    whole = [_lacks(name, line) for name, line in adapters.items() if line is not None]
    rest = [missing(found) for found in _registered().values() if framework in (None, found.framework)]
    return tuple(dict.fromkeys([*whole, *filter(None, rest)]))


def unjudged() -> dict[str, str]:
    """What the adapters find in installed packages and do not judge, by name, with the reason."""
    found = (module.refused() for module in _modules() if hasattr(module, "refused"))
    return {name: reason for reasons in found for name, reason in reasons.items()}


def _lacks(package: str, line: str) -> str:
    return f"{package} {'is not installed' if 'pip install' in line else 'cannot be used here'}; {line}"


@functools.cache
def _installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True


def _modules() -> Iterator[ModuleType]:
    for found in pkgutil.iter_modules([str(Path(__file__).parent)]):
        yield importlib.import_module(f"{__package__}.{found.name}")


@functools.cache
def _registered() -> dict[str, Implementation]:
    places: dict[str, str] = {}
    found = {}
    for place, provide in _sources():
        for implementation in _provided(place, provide):
            if implementation.name in places:
                taken = places[implementation.name]
                raise RegistrationError(f"{place}: the name {implementation.name!r} is taken by {taken}")
            places[implementation.name] = place
            found[implementation.name] = implementation
    return found


def _sources() -> Iterator[tuple[str, Callable[[], Any]]]:
    """The entry points, our own first; the files of this package themselves where it is run from a checkout."""
    points = entry_points(group=GROUP)
    own = [point for point in points if point.value.startswith(f"{__package__}.")]
    if not own:
        for module in _modules():
            if hasattr(module, "builtins"):
                yield module.__name__, module.builtins
    for point in (*own, *(point for point in points if point not in own)):
        yield _place(point), point.load


def _place(point: EntryPoint) -> str:
    package = f" of {point.dist.name} {point.dist.version}" if point.dist is not None else ""
    return f"entry point '{point.name} = {point.value}'{package}"


def _provided(place: str, provide: Callable[[], Any]) -> tuple[Implementation, ...]:
    try:
        with staying():
            given = provide()
            if callable(given) and not isinstance(given, Implementation):
                given = given()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise RegistrationError(f"{place} cannot be loaded: {describe(error)}") from error
    found = (given,) if isinstance(given, Implementation) else tuple(given) if isinstance(given, Iterable) else (given,)
    for one in found:
        if not isinstance(one, Implementation):
            raise RegistrationError(f"{place} yields {one!r}, but should yield an Implementation or a list of them")
    return found
