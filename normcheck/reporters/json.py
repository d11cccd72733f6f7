"""The record that programs read: audit.json, as `Audit.to_dict` has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

SUFFIX = ".json"


class Recorded(Protocol):
    """What this report needs of an audit."""

    def to_dict(self) -> dict[str, Any]:
        """The audit as plain data."""


def render(audit: Recorded) -> str:
    """The audit as JSON text; every number in it is one that JSON knows."""
    return json.dumps(audit.to_dict(), indent=1, allow_nan=False) + "\n"


def write(audit: Recorded, path: Path) -> None:
    """Write the audit to a file."""
    path.write_text(render(audit), encoding="utf-8")
