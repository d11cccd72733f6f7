"""The catalogue of properties: every check's page in one Markdown text, which is properties/README.md."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from typing import Protocol

INTRODUCTION = """\
# Properties

What normcheck holds every implementation to, one section for each check. `normcheck explain --all -o properties/README.md` makes
this page from the docstrings of `normcheck/checks`.
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


def render(checks: Iterable[Page]) -> str:
    """All pages by family as Markdown text."""
    ordered = sorted(checks, key=lambda check: (check.family, check.id))
    families = groupby(ordered, key=lambda check: check.family)
    return "\n".join([INTRODUCTION, *(_section(family, pages) for family, pages in families)])


def _section(family: str, pages: Iterable[Page]) -> str:
    return "\n".join([f"## {family}\n", *map(_page, pages)])


def _page(check: Page) -> str:
    headed = re.sub(r"(?m)^(\S.*)\n-{3,}$", r"#### \1\n", check.doc)
    return f"### {check.id}\n\n{_literal(headed).strip()}\n"


def _literal(page: str) -> str:
    """The page's mathematics kept from being read as emphasis or HTML; code stays as it is."""
    return "".join(part if i % 2 else re.sub(r"[*<|]", r"\\\g<0>", part) for i, part in enumerate(_CODE.split(page)))
