"""Files: how they are written, and what stored data must look like, kinds held against what a file gives."""

from __future__ import annotations

import enum
import re
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TEXT = "text"
NUMBER = "a number"
WHOLE = "a whole number"
GRADE = "a grade from -1 to 3"
SHARE = "such as 3/8"
PAIR = "a pair of numbers"

Kind = Any
"""A name above, an enum, a `Record`, ``[kind]`` for a list of it, or ``(kind,)`` where it may be null as well."""


@dataclass(frozen=True)
class Record:
    """The kind of a mapping.

    Attributes
    ----------
    kinds : by key
    needed : keys that must be there
    rest : the kind of what has any other key; None for whatever it is
    """

    kinds: Mapping[str, Kind] = field(default_factory=dict)
    needed: tuple[str, ...] = ()
    rest: Kind = None


def put(path: Path, content: str | bytes) -> None:
    """Write a file; text as UTF-8, with lone surrogates escaped.

    Raises
    ------
    OSError : if it cannot be written, naming the file, which a full disk does not by itself
    """
    data = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
    try:
        path.write_bytes(data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def expect(data: Any, kind: Kind, name: str = "") -> None:
    """Hold data against its kind.

    Parameters
    ----------
    name : of the data, for messages

    Raises
    ------
    ValueError : for the first thing that does not fit, such as ``results[0].error='1', but should be a number``
    """
    found = _wrong(data, kind)
    if found is not None:
        raise ValueError(f"{name}{found[0]}".removeprefix(".") + found[1])


def _wrong(value: Any, kind: Kind) -> tuple[str, str] | None:
    """Where the first thing is that does not fit, and what should be there; None where all fits."""
    if isinstance(kind, tuple):
        return None if value is None else _wrong(value, kind[0])
    if isinstance(kind, Record):
        if not isinstance(value, Mapping):
            return _instead(value, "a mapping")
        missing = [key for key in kind.needed if key not in value]
        inner = ((f".{key}", one, kind.kinds.get(key, kind.rest)) for key, one in value.items())
        return (f".{missing[0]}", " is missing") if missing else _first(inner)
    if isinstance(kind, list):
        if not isinstance(value, list | tuple):
            return _instead(value, "a list")
        return _first((f"[{i}]", one, kind[0]) for i, one in enumerate(value))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        known = [one.value for one in kind]
        return None if value in known else _instead(value, f"one of {', '.join(known)}")
    return None if _FITS[kind](value) else _instead(value, kind)


def _first(parts: Iterable[tuple[str, Any, Kind]]) -> tuple[str, str] | None:
    for place, one, kind in parts:
        found = None if kind is None else _wrong(one, kind)
        if found is not None:
            return place + found[0], found[1]
    return None


def _instead(value: Any, wanted: str) -> tuple[str, str]:
    return "", f"={reprlib.repr(value)}, but should be {wanted}"


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    """What JSON has no number for is written as a word; what no double holds is no number."""
    if isinstance(value, str):
        return value in ("inf", "-inf", "nan")
    return isinstance(value, float) or (_whole(value) and abs(value) <= sys.float_info.max)


_FITS: Mapping[str, Callable[[Any], bool]] = {
    TEXT: lambda value: isinstance(value, str),
    NUMBER: _number,
    WHOLE: lambda value: _whole(value) and abs(value) < 1 << 63,
    GRADE: lambda value: isinstance(value, int | float) and value in range(-1, 4),
    SHARE: lambda value: isinstance(value, str) and re.fullmatch(r"[1-9]\d{0,5}/[1-9]\d{0,5}", value) is not None,
    PAIR: lambda value: isinstance(value, list | tuple) and len(value) == 2 and all(map(_number, value)),
}
