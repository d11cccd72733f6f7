"""The journal of an audit: what will be done, and results as they come, so that a killed audit can be taken up again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from normcheck.engine.jobs import OUT_OF_BUDGET, Place
from normcheck.engine.units import Key, Unit
from normcheck.results import Result

FORMAT = 1
NAME = "journal.jsonl"
# facts that results depend on: an audit is gone on with only where they are what they were, as far as the journal knows them
DECISIVE = ("machine", "python", "versions", "normcheck", "threads")


class JournalError(Exception):
    """A journal that cannot be written or gone on with. The message is one line."""


class Journal:
    """A file with one JSON object a line: first the plan, then one finished task after the other.

    Attributes
    ----------
    path : of the file
    header : settings, birth and plan of the audit
    done : results by the name of the task
    """

    def __init__(self, path: Path, header: Mapping[str, Any], done: dict[Key, list[Result]], stream: FileIO) -> None:
        self.path = path
        self.header = header
        self.done = done
        self._stream = stream

    @classmethod
    def begin(cls, path: Path, units: Sequence[Unit], born: Mapping[str, Any], settings: Mapping[str, Any]) -> Journal:
        """A new journal in the place of any other.

        Raises
        ------
        JournalError : if it cannot be written
        """
        header = {"journal": FORMAT, "settings": _plain(settings), "born": dict(born), "plan": planned(units)}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stream = path.open("ab", buffering=0)
            _lock(stream, path)
            stream.truncate(0)
        except OSError as error:
            raise JournalError(f"{path} cannot be written: {error.strerror}") from None
        made = cls(path, header, {}, stream)
        made._write(header)
        return made

    @classmethod
    def go_on(cls, path: Path, units: Sequence[Unit], born: Mapping[str, Any], settings: Mapping[str, Any]) -> Journal:
        """The journal of an audit that was broken off, with all that it holds.

        Raises
        ------
        JournalError : if there is none, or it was begun with other settings, on another machine, or with another plan
        """
        header, done, size = read(path)
        _same(path, "the settings", header["settings"], _plain(settings))
        facts = json.loads(json.dumps({key: born[key] for key in DECISIVE if key in born and key in header["born"]}))
        _same(path, "the machine and its versions", {key: header["born"].get(key) for key in facts}, facts)
        if header["plan"] != planned(units):
            raise JournalError(f"{path} was begun with another plan{_differing(header['plan'], planned(units))}")
        try:
            stream = path.open("r+b", buffering=0)
            _lock(stream, path)
            stream.truncate(size)
            stream.seek(size)
        except OSError as error:
            raise JournalError(f"{path} cannot be written: {error.strerror}") from None
        return cls(path, header, done, stream)

    def known(self, units: Sequence[Unit]) -> dict[Place, list[Result]]:
        """The results by their places in the plan."""
        places = {unit.key(number): (i, number) for i, unit in enumerate(units) for number in range(len(unit.checks))}
        return {places[key]: results for key, results in self.done.items()}

    def append(self, key: Key, results: Sequence[Result]) -> None:
        """Keep what a task has given; what there was no time for is left to be done.

        Raises
        ------
        JournalError : if it cannot be written, such as on a full disk; what was written before stays
        """
        if any(result.message == OUT_OF_BUDGET for result in results):
            return
        self._write({"task": list(key), "results": [result.to_dict() for result in results]})
        self.done[key] = list(results)

    def close(self) -> None:
        """No more is written."""
        with contextlib.suppress(OSError):
            self._stream.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        left = memoryview(json.dumps(line).encode() + b"\n")
        try:
            while left:
                left = left[self._stream.write(left) :]
        except OSError as error:
            self.close()
            kept = f"it holds {len(self.done)} finished tasks, from which --resume goes on"
            raise JournalError(f"{self.path} cannot be written: {error.strerror}; {kept}") from None


def read(path: Path) -> tuple[dict[str, Any], dict[Key, list[Result]], int]:
    """What a journal holds: its header, results by task, and where its last whole line ends, in bytes.

    Raises
    ------
    JournalError : if there is no journal, or it is none, or of a newer form
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise JournalError(f"{path} cannot be read: {error.strerror}") from None
    whole = raw[: raw.rfind(b"\n") + 1]
    lines = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            lines.append(json.loads(line))
        except ValueError:
            raise JournalError(f"{path} is damaged in line {number}") from None
    if not lines or "journal" not in lines[0]:
        raise JournalError(f"{path} holds no plan: the audit was broken off before it began")
    if lines[0]["journal"] > FORMAT:
        raise JournalError(f"journal={lines[0]['journal']}, but should be at most {FORMAT}: it was written by a newer normcheck")
    try:
        done = {_key(line["task"]): [Result.from_dict(result) for result in line["results"]] for line in lines[1:]}
    except (ValueError, KeyError, TypeError) as error:
        raise JournalError(f"{path} is damaged: {error}") from None
    return lines[0], done, len(whole)


def planned(units: Sequence[Unit]) -> list[list[Any]]:
    """The plan as plain data: implementation, dtype, device and checks of each unit."""
    return [[*unit.key(0)[:3], [check.id for check in unit.checks]] for unit in units if unit.checks]


def _key(task: Sequence[str]) -> Key:
    implementation, dtype, device, check = task
    return implementation, dtype, device, check


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """As it comes back from a file."""
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain


def _same(path: Path, what: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for key in {**then, **now}:
        if then.get(key) != now.get(key):
            got, wanted = _brief(now.get(key), then.get(key)), _brief(then.get(key), now.get(key))
            why = f"with which {path} was begun; an audit is gone on with only where {what} are the same"
            raise JournalError(f"{key}={got}, but should be {wanted}, {why}")


def _brief(value: Any, other: Any) -> str:
    """What differs of two records, or the value."""
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        return repr({key: one for key, one in value.items() if other.get(key) != one})
    return repr(value)


def _differing(then: list[list[Any]], now: list[list[Any]]) -> str:
    only = [one for one in now if one not in then] or [one for one in then if one not in now]
    return f": {' '.join(map(str, only[0][:3]))} is not the same in both" if only else ""


def _lock(stream: FileIO, path: Path) -> None:
    """Refuse a second writer; where files cannot be locked, none is noticed."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        stream.close()
        raise JournalError(f"{path} is being written by another audit") from None
