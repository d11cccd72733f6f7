"""The catalogue of properties: every check's page in one Markdown text, which is properties/README.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Protocol

INTRODUCTION = """\
# Properties

What normcheck holds every implementation to, one section for each check: what it states, for what it holds, where its tolerance
comes from, and what it caught, in the zoo of norms broken on purpose (`normcheck list faults` says what is wrong with each) and
in released libraries (the ledger). `normcheck explain --all -o properties/README.md` makes this page from the docstrings of
`normcheck/checks`, the zoo and the ledger.

The files beside it let Hypothesis search for counterexamples, in every implementation that is discovered: `test_<family>.py` over
rows, shapes and parameters, `test_any_seed.py` over the random inputs of each check. `pytest properties` searches for minutes,
`pytest properties --hypothesis-profile=nightly` for hours; `--hypothesis-profile=examples` tries only past counterexamples.
"""
_CODE = re.compile(r"(``.+?``|(?m:^ {4}.*$))", re.DOTALL)


class Page(Protocol):
    """What the catalogue needs of a check."""

    @property
    def id(self) -> str:
        """The check's id."""

    @property
    def doc(self) -> str:
        """Its page: a summary, then sections with underlined headings."""

    @property
    def family(self) -> str:
        """The family it belongs to."""


class Broken(Protocol):
    """What the catalogue needs of a fault of the zoo."""

    @property
    def name(self) -> str:
        """The fault's name."""

    @property
    def expected(self) -> tuple[str, ...]:
        """Ids of the checks that find it."""


class Known(Protocol):
    """What the catalogue needs of an entry of the ledger."""

    @property
    def check(self) -> str:
        """Id of the check that fails."""

    @property
    def text(self) -> str:
        """Reason, library, versions and link."""


def render(checks: Iterable[Page], faults: Iterable[Broken] = (), ledger: Iterable[Known] = ()) -> str:
    """A table of all checks and their pages by family, as Markdown text.

    Parameters
    ----------
    checks : the pages
    faults : of the zoo, listed with the checks that find them
    ledger : known faults of released libraries, listed with the checks that fail
    """
    ordered = sorted(checks, key=lambda check: (check.family, check.id))
    found, known = list(faults), list(ledger)
    caught = {check.id: _caught(check.id, found, known) for check in ordered}
    families = groupby(ordered, key=lambda check: check.family)
    return "\n".join([INTRODUCTION, _table(ordered), *(_section(family, pages, caught) for family, pages in families)])


def _table(checks: Iterable[Page]) -> str:
    rows = (f"| [{check.id}](#{check.id}) | {_literal(check.doc.partition(chr(10))[0])} | {check.family} |" for check in checks)
    return "\n".join(["| check | states | family |", "|---|---|---|", *rows, ""])


def _section(family: str, pages: Iterable[Page], caught: Mapping[str, str]) -> str:
    return "\n".join([f"## {family}\n", *(_page(check, caught[check.id]) for check in pages)])


def _page(check: Page, caught: str) -> str:
    headed = re.sub(r"(?m)^(\S.*)\n-{3,}$", r"#### \1\n", check.doc)
    source = f"[Source](../normcheck/checks/{check.family}.py)"
    return f"### {check.id}\n\n{_literal(headed).strip()}\n\n{caught}{source}\n"


def _caught(check: str, faults: Iterable[Broken], ledger: Iterable[Known]) -> str:
    """The section on what a check caught, or nothing."""
    names = sorted(fault.name for fault in faults if check in fault.expected)
    released = sorted({entry.text for entry in ledger if entry.check == check})
    lines = [f"Of the zoo, {len(names)}: {', '.join(names)}."] if names else []
    lines += ["In released libraries:\n\n" + "\n".join(f"- {_literal(text)}" for text in released)] if released else []
    return "\n\n".join(["#### What it caught", *lines, ""]) if lines else ""


def _literal(page: str) -> str:
    """The page's mathematics kept from being read as emphasis or HTML; code stays as it is."""
    return "".join(part if i % 2 else re.sub(r"[*<|]", r"\\\g<0>", part) for i, part in enumerate(_CODE.split(page)))
