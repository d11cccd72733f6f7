"""Text from user code made safe: it cannot break a table, end a code block, or reach the terminal as a control sequence."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
_CONTROL_IN_BLOCK = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_SPECIAL = re.compile(r"[\\`*{}\[\]<>#|~$!&@]|(?<![^\W_])_|_(?![^\W_])")  # an underscore inside a word is no emphasis


def plain(text: object) -> str:
    """One line without control characters or marks that turn the direction of writing; a lone surrogate is escaped."""
    return " ".join(_CONTROL.sub(" ", _encodable(str(text))).split())


def escaped(text: object) -> str:
    """One line that Markdown shows as it is, in a table as well."""
    return _SPECIAL.sub(lambda match: f"&#{ord(match[0])};", plain(text))


def code(text: object) -> str:
    """One line as a code span, outside tables."""
    line = plain(text)
    if not line:
        return ""
    ticks = _longer_than_any(line, 1)
    pad = " " if "`" in (line[0], line[-1]) else ""
    return f"{ticks}{pad}{line}{pad}{ticks}"


def cell(text: object) -> str:
    """One line as code in a table, where a bar inside a code span would end the cell."""
    return f"<code>{escaped(text)}</code>" if "|" in plain(text) else code(text)


def listing(text: str) -> str:
    """Lines of code without control characters or marks that turn the direction of writing; a lone surrogate is escaped."""
    return _CONTROL_IN_BLOCK.sub("", _encodable(text).replace("\r\n", "\n")).strip("\n")


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def block(text: str, language: str = "python") -> str:
    """A fenced code block that the text cannot end."""
    body = listing(text)
    fence = _longer_than_any(body, 3)
    return f"{fence}{language}\n{body}\n{fence}"


def number(value: float | None) -> str:
    """Three significant digits; empty for None."""
    if value is None:
        return ""
    return f"{value:.3g}" if math.isfinite(value) else str(value)


def _longer_than_any(text: str, least: int) -> str:
    runs = {len(run) for run in re.findall(r"`+", text)}
    return "`" * max(least, 1 + max(runs, default=0))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of cells that are safe already; a column whose name ends in a colon is set to the right."""
    names = [name.removesuffix(":") for name in columns]
    rules = ["---:" if name.endswith(":") else "---" for name in columns]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (names, rules, *rows))
