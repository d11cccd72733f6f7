"""The report that a person reads: report.md, with plots as files next to it."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2

from normcheck.reporters import pages, plots, summary, text
from normcheck.reporters.summary import Finding, Judged
from normcheck.results import Outcome, Result, Witness
from normcheck.stored import put

SUFFIX = ".md"
MOST = 8
DETAILED = 60  # findings of a section that are told in full
LISTED = 300  # rows of a table


@dataclass(frozen=True)
class Plot:
    """A drawing as the report refers to it."""

    title: str
    caption: str
    file: str


def write(audit: Judged, path: Path) -> None:
    """Write the report, and its plots beside it where matplotlib is installed."""
    drawings = plots.draw(audit)
    files = [path.with_name(f"{path.stem}-{drawing.name}.png") for drawing in drawings]
    for drawing, file in zip(drawings, files, strict=True):
        put(file, drawing.png)
    shown = [Plot(drawing.title, drawing.caption, file.name) for drawing, file in zip(drawings, files, strict=True)]
    put(path, render(audit, shown, plots.missing() if not shown else ""))


def render(audit: Judged, shown: Sequence[Plot] = (), note: str = "") -> str:
    """The report as Markdown text.

    Parameters
    ----------
    audit : what was found
    shown : plots that lie beside the report
    note : why there are none
    """
    page = _template().render(
        audit=audit,
        verdict=summary.verdict(audit),
        meanings=summary.GRADES,
        errors=summary.errors(audit),
        warnings=summary.warnings(audit),
        known=summary.known(audit),
        ulps=_ulps(audit),
        plots=shown,
        note=note,
        detailed=DETAILED,
        skips=_skips(audit),
        paths=_paths(audit),
        command=audit.born.get("command", ""),
        born=text.table(("fact", "value"), ([text.escaped(k), text.cell(v)] for k, v in summary.facts(audit.born))),
    )
    return re.sub(r"\n{3,}", "\n\n", page).strip() + "\n"


def _paths(audit: Judged) -> str:
    found = summary.paths(audit)
    rows = [(text.cell(ran), text.escaped(device), ", ".join(map(text.cell, names))) for (ran, device), names in found.items()]
    return text.table(("operators", "device", "implementations"), rows) if rows else ""


def _grades(audit: Judged) -> str:
    dtypes = summary.dtypes(audit)
    shown = (Outcome.WARNED, Outcome.XFAILED, Outcome.PASSED, Outcome.SKIPPED)
    columns = ["implementation", "norm", *map(text.escaped, dtypes), "errors:", "warnings:", "known:", "passed:", "skipped:"]
    rows = (
        [text.cell(row.implementation), text.cell(row.norm)]
        + [text.escaped(row.grades.get(dtype, "")) for dtype in dtypes]
        + [str(row.bad), *(str(row.counts.get(outcome, 0)) for outcome in shown)]
        for row in summary.rows(audit)
    )
    return text.table(columns, rows)


def _overview(letter: str, found: Sequence[Finding]) -> str:
    columns = ("", "check", "implementations", "dtypes", "layout", "results:", "error / tolerance:")
    rows = [(f"{letter}{number}", *_line(finding)) for number, finding in enumerate(found[:LISTED], 1)]
    return text.table(*_filled(columns, rows)) if rows else ""


def _line(finding: Finding) -> tuple[str, ...]:
    names = summary.some(list(map(text.cell, finding.implementations)), MOST)
    what = (text.escaped(finding.check), names, text.escaped(" ".join(finding.dtypes)), text.escaped(" ".join(finding.layouts)))
    return (*what, str(len(finding.results)), text.number(finding.worst.ratio))


def _places(finding: Finding) -> str:
    columns = ("dtype", "regime", "shape", "error:", "tolerance:", "unit", "error / tolerance:")
    listed = text.table(*_filled(columns, [_place(result) for result in finding.where[:MOST]]))
    more = len(finding.where) - MOST
    return f"{listed}\n\nAnd {more} more, which audit.json holds." if more > 0 else listed


def _filled(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """The columns that say something in at least one row."""
    kept = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    return [columns[i] for i in kept], [[row[i] for i in kept] for row in rows]


def _place(result: Result) -> tuple[str, ...]:
    where = (text.escaped(result.dtype), text.escaped(result.regime), " x ".join(map(str, result.shape)))
    unit = "" if result.error is None else text.escaped(result.unit)
    return (*where, text.number(result.error), text.number(result.tolerance), unit, text.number(result.ratio))


def _ulps(audit: Judged) -> str:
    regimes = summary.regimes(audit)
    columns = ["implementation", "dtype", "correctly rounded:", *(f"{text.escaped(regime)}:" for regime in regimes)]
    rows = [
        [text.cell(errors.implementation), text.escaped(errors.dtype), _percent(errors.correctly_rounded)]
        + [text.number(errors.ulp.get(regime)) for regime in regimes]
        for errors in summary.ulps(audit)
    ]
    return text.table(columns, rows) if rows else ""


def _skips(audit: Judged) -> str:
    skips = summary.skips(audit)
    table = text.table(("reason", "results:", "checks", "implementations"), [_skip(skip) for skip in skips[:LISTED]])
    more = len(skips) - LISTED
    return (table + (f"\n\nAnd {more} more reasons, which audit.json holds." if more > 0 else "")) if skips else ""


def _skip(skip: summary.Skip) -> tuple[str, ...]:
    checks, implementations = list(map(text.escaped, skip.checks)), list(map(text.cell, skip.implementations))
    return text.escaped(skip.reason), str(skip.count), summary.some(checks, MOST), summary.some(implementations, MOST)


def _difference(witness: Witness) -> str:
    return summary.difference(witness, text.code)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


@cache
def _template() -> jinja2.Template:
    # this is no HTML: every value from outside goes through normcheck.reporters.text
    environment = pages.environment(autoescape=False)
    environment.filters |= {"escaped": text.escaped, "code": text.code, "block": text.block, "difference": _difference}
    environment.filters |= {"url": urllib.parse.quote, "number_of": summary.number}
    environment.globals |= {"grades": _grades, "places": _places, "overview": _overview}
    return environment.get_template("report.md.jinja")
