"""The zoo as a table on the terminal and as a page in Markdown: which check finds which fault."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from normcheck.faults import sound, sound_warnings
from normcheck.reporters import text
from normcheck.zoo import Row, Zoo

INTRODUCTION = """\
# Faults

The zoo: norms broken on purpose, each after a fault that published code had ("after" marks cousins made up here), and which
checks find them. A check is **bold** where the fault is expected to fail it, *in italics* where it only warns, and followed by
dtypes where it does not find the fault in all of those in which the fault was judged. A check that builds upon one that failed is
not run, unless the fault is expected to fail it.
"""
MAKING = """\
`normcheck audit --faults --profile quick --output reports && mv reports/faults.md docs/` makes this page and reports/zoo.json.
"""


def table(zoo: Zoo) -> RenderableType:
    """Every fault with the checks that found it, what is amiss, and the verdict."""
    matrix = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("kind", "fault", "expected", "error", "warning", "missed"):
        matrix.add_column(column, overflow="fold")
    for row in zoo.rows:
        told = (
            row.fault.kind,
            row.fault.name,
            " ".join(row.fault.expected),
            " ".join(row.judged.errors),
            " ".join(row.judged.warnings),
        )
        matrix.add_row(*map(Text, told), Text(_listed(row.missed), style="bold red"))
    lines = [Text(line, style="bold red") for line in amiss(zoo)]
    return Group(matrix, *lines, Text(f"\n{verdict(zoo)}", style="bold"))


def amiss(zoo: Zoo) -> list[str]:
    """One line for every fault that was missed and every sound norm that was flagged."""
    missed = [f"{row.fault.kind} {row.fault.name}: not found by {_listed(row.missed)}" for row in zoo.missed]
    flagged = [f"{one.name}: sound, but {_listed({**one.errors, **one.warnings})} flagged it" for one in zoo.flagged]
    return [*missed, *flagged]


def verdict(zoo: Zoo) -> str:
    """How many are caught, and how many sound norms are flagged."""
    caught = len(zoo.rows) - len(zoo.missed)
    return f"{caught} of {len(zoo.rows)} faults caught as expected; {len(zoo.flagged)} of {len(zoo.sound)} sound norms flagged"


def render(zoo: Zoo) -> str:
    """The page: faults by kind, faults by check, and the sound collection; the same for the same findings."""
    made = f"Judged with {_versions(zoo)}: {verdict(zoo)}.\n"
    parts = [
        INTRODUCTION,
        MAKING,
        made,
        *(f"- {text.escaped(line)}" for line in amiss(zoo)),
        *_kinds(zoo),
        _by_check(zoo),
        _sound(zoo),
    ]
    return "\n".join(parts)


def _kinds(zoo: Zoo) -> Iterator[str]:
    columns = ("fault", "what is wrong", "seen in", "dtypes", "found by")
    for kind, rows in groupby(zoo.rows, key=lambda row: row.fault.kind):
        yield f"## {kind}\n\n{text.table(columns, map(_cells, rows))}\n"


def _cells(row: Row) -> tuple[str, ...]:
    fault = row.fault
    said = re.sub(r"[*<|_\[\]]", r"\\\g<0>", fault.statement)
    return (
        f"`{fault.name}`",
        said,
        ", ".join(fault.provenance),
        " ".join(row.judged.dtypes),
        ", ".join(_finders(row)) or "nothing",
    )


def _finders(row: Row) -> Iterator[str]:
    """The checks that fired, expected ones first."""
    fired = [*row.judged.errors, *row.judged.warnings]
    for check in dict.fromkeys((*(check for check in row.fault.expected if check in fired), *fired)):
        marked = check if check in row.judged.errors else f"*{check}*"
        marked = f"**{marked}**" if check in row.fault.expected else marked
        dtypes = row.judged.found(check)
        yield marked if dtypes == row.judged.dtypes else f"{marked} ({' '.join(dtypes)})"


def _by_check(zoo: Zoo) -> str:
    """How many faults each check finds, and of which kinds."""
    lines = []
    for check in zoo.checks:
        found = [row.fault.kind for row in zoo.rows if row.judged.found(check)]
        expected = sum(check in row.fault.expected for row in zoo.rows)
        lines.append((f"`{check}`", str(len(found)), str(expected), " ".join(sorted(set(found)))))
    return f"## By check\n\n{text.table(('check', 'faults found:', 'expected:', 'kinds'), lines)}\n"


def _sound(zoo: Zoo) -> str:
    """The sound norms and what warns of them."""
    claims = {one.name: repr(one.norm) for one in sound()}
    lines = []
    for one in zoo.sound:
        documented = ", ".join(sound_warnings().get(one.name, ())) or "none"
        fired = _listed({**one.warnings, **one.errors}) or "none"
        lines.append((f"`{one.name}`", text.cell(claims[one.name]), " ".join(one.dtypes), documented, fired))
    return f"## Sound\n\n{text.table(('norm', 'claims', 'dtypes', 'warnings documented', 'fired'), lines)}\n"


def _listed(dtypes_by_check: Mapping[str, Iterable[str]]) -> str:
    return ", ".join(f"{check} ({' '.join(dtypes)})" for check, dtypes in dtypes_by_check.items())


def _versions(zoo: Zoo) -> str:
    versions = zoo.born.get("versions", {})
    named = [f"{name} {versions[name].partition('+')[0]}" for name in ("torch", "numpy") if name in versions]
    return ", ".join([*named, f"profile {zoo.born.get('profile', 'unknown')}", f"seed {zoo.born.get('seed', 'unknown')}"])
