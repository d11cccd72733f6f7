"""The report that a person explores: one HTML file that needs no network, with filters, a sortable table and zoomable plots."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from normcheck.reporters import pages, summary, text
from normcheck.reporters.summary import Finding, Judged
from normcheck.results import Outcome, Result
from normcheck.stored import put

SUFFIX = ".html"
MOST = 400
CURVES = ("condition-sweep", "outlier-sensitivity", "epsilon-placement")
_COLUMNS = ("implementation", "check", "dtype", "outcome", "regime", "layout", "shape", "message")
_INFINITE = 1e308  # stands for an error that JSON cannot hold


def write(audit: Judged, path: Path) -> None:
    """Write the report."""
    put(path, render(audit))


def render(audit: Judged) -> str:
    """The report as one HTML page; its plots are drawn by plotly.js where the package plotly is installed."""
    names = Names()
    sections = [
        Section(title, letter, found, nothing)
        for title, letter, found, nothing in (
            ("Errors", "E", summary.errors(audit), "None."),
            ("Warnings", "W", summary.warnings(audit), "None."),
            ("Known upstream faults", "K", summary.known(audit), "None was met."),
        )
    ]
    return _template().render(
        audit=audit,
        verdict=summary.verdict(audit),
        passed=not sections[0].causes,
        meanings=summary.GRADES,
        dtypes=summary.dtypes(audit),
        rows=summary.rows(audit),
        shown=(Outcome.WARNED, Outcome.XFAILED, Outcome.PASSED, Outcome.SKIPPED),
        sections=sections,
        skips=summary.skips(audit),
        facts=list(summary.facts(audit.born)),
        paths=summary.paths(audit),
        alike=audit.born.get("alike", {}),
        command=audit.born.get("command", ""),
        choices=_choices(audit),
        names=names,
        data=_json(_data(audit, names)),
        plotly=_plotly(),
        css=_file("report.css"),
        js=_file("report.js"),
    )


class Names:
    """A number for every name, so that a name stands in the page's data once."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def __call__(self, name: object) -> int:
        """The number of a name."""
        return self.known.setdefault(text.plain(name), len(self.known))


class Section:
    """Findings under one heading, by cause.

    Attributes
    ----------
    title, letter, nothing : the heading, the letter that numbers its findings, and what stands there where there are none
    causes : (what they have in common, what that property is, the findings with their numbers), in the order of the findings
    left_out : how many are only in audit.json
    """

    def __init__(self, title: str, letter: str, found: tuple[Finding, ...], nothing: str) -> None:
        self.title, self.letter, self.nothing = title, letter, nothing
        self.left_out = max(0, len(found) - MOST)
        numbers = {id(finding): number for number, finding in enumerate(found, 1)}
        self.causes = [
            (cause, _titles().get(cause, ""), [(numbers[id(one)], one) for one in findings])
            for cause, findings in summary.by_cause(found[:MOST])
        ]


def _data(audit: Judged, names: Names) -> dict[str, Any]:
    """What the page's script needs: every result in columns, and the figures of each implementation."""
    columns = {column: [names(_said(result, column)) for result in audit.results] for column in _COLUMNS}
    numbers = {name: [_short(getattr(result, name)) for result in audit.results] for name in ("error", "tolerance", "ratio")}
    figures = {names(name): of_one for name, of_one in _figures(audit).items()}
    return {"names": list(names.known), "columns": columns, "numbers": numbers, "figures": figures}


def _said(result: Result, column: str) -> str:
    value = getattr(result, column)
    return " × ".join(map(str, value)) if column == "shape" else str(value)


def _figures(audit: Judged) -> dict[str, dict[str, Any]]:
    """By implementation: errors in ulp by dtype and regime, curves, gradient errors over their bounds, and determinism."""
    found: dict[str, dict[str, Any]] = {}
    for errors in summary.ulps(audit):
        of_one = found.setdefault(errors.implementation, {})
        of_one.setdefault("ulp", {})[text.plain(errors.dtype)] = {text.plain(k): _short(v) for k, v in errors.ulp.items()}
    families = _families()
    for result in audit.results:
        of_one = found.setdefault(result.implementation, {})
        family = families.get(result.check, "")
        if result.check in CURVES and result.series:
            curves = {name: [(_short(x), _short(y)) for x, y in curve] for name, curve in result.series.items()}
            of_one.setdefault(result.check, {}).setdefault(text.plain(result.dtype), curves)
        elif family.startswith("gradient") and result.ratio is not None:
            worst = of_one.setdefault("gradients", {}).setdefault(text.plain(result.dtype), {})
            worst[result.check] = max(worst.get(result.check, 0.0), _short(result.ratio) or 0.0)
        elif family == "determinism":
            counts = of_one.setdefault("determinism", {}).setdefault(f"{result.check} {text.plain(result.dtype)}", {})
            counts[result.outcome.value] = counts.get(result.outcome.value, 0) + 1
    return found


@cache
def _families() -> Mapping[str, str]:
    from normcheck.checks import checks

    return {check.id: check.family for check in checks().values()}


@cache
def _titles() -> Mapping[str, str]:
    from normcheck.checks import checks

    return {check.id: check.title for check in checks().values()}


def _choices(audit: Judged) -> Iterator[tuple[str, list[str]]]:
    """What there is to filter by."""
    for name in ("implementation", "dtype", "check", "outcome"):
        yield name, sorted({text.plain(getattr(result, name)) for result in audit.results})


def _short(value: float | None) -> float | None:
    """Four significant digits."""
    if value is None or math.isfinite(value):
        return None if value is None else float(f"{value:.4g}")
    return -_INFINITE if value == -math.inf else _INFINITE


def _json(value: Any) -> str:
    """JSON that a script element can hold: nothing in it ends the element or begins a comment."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c").replace("&", "\\u0026")


def _plotly() -> str:
    """The library that draws, or nothing where it is not installed."""
    if importlib.util.find_spec("plotly") is None:
        return ""
    return (resources.files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def _file(name: str) -> str:
    return (resources.files(__package__) / "templates" / name).read_text(encoding="utf-8")


def _indices(names: Names, values: Iterable[object]) -> str:
    return " ".join(str(names(value)) for value in values)


def _harmless(value: Any) -> Any:
    """One line without control characters; what is markup already is left alone."""
    return text.plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _listing(code: str) -> Markup:
    return escape(text.listing(code))


@cache
def _template() -> jinja2.Template:
    environment = pages.environment(autoescape=True, finalize=_harmless)
    environment.filters |= {"number": text.number, "count": summary.number, "listing": _listing, "some": summary.some}
    environment.globals |= {"indices": _indices, "difference": summary.difference}
    return environment.get_template("report.html.jinja")
