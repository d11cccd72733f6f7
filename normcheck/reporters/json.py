"""The record that programs read: audit.json, as `Audit.to_dict` has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

from normcheck.stored import put

SUFFIX = ".json"


class Recorded(Protocol):
    """What this report needs of an audit."""

    def to_dict(self) -> dict[str, Any]:
        """The audit as plain data."""


def render(audit: Recorded) -> str:
    """The audit as JSON text, one line for each result; every number in it is one that JSON knows."""
    members = [f"{json.dumps(key)}: {_value(value)}" for key, value in audit.to_dict().items()]
    return "{\n" + ",\n".join(members) + "\n}\n"


def write(audit: Recorded, path: Path) -> None:
    """Write the audit to a file."""
    put(path, render(audit))


def _value(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(json.dumps(item, allow_nan=False) for item in value) + "\n]"
    return json.dumps(value, allow_nan=False)
