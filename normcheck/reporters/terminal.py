"""What the terminal shows after an audit: the table of grades and the findings."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from normcheck.reporters import summary, text
from normcheck.reporters.summary import Finding, Judged
from normcheck.results import Outcome

MOST = 12
GRADE_STYLES = {"A+": "green", "A": "green", "B": "yellow", "F": "bold red", "-": "dim"}
OUTCOME_STYLES = {Outcome.WARNED: "yellow", Outcome.XFAILED: "magenta", Outcome.XPASSED: "cyan"}


def render(audit: Judged) -> RenderableType:
    """The verdict, the grades by implementation and dtype, and every finding with its worst result."""
    return Group(_grades(audit), _findings(audit), Text(f"\n{summary.verdict(audit)}", style="bold"))


def _grades(audit: Judged) -> Table:
    dtypes = summary.dtypes(audit)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("implementation", overflow="fold", min_width=24)
    for dtype in dtypes:
        table.add_column(dtype, justify="center")
    for heading in ("errors", "warnings", "known", "passed", "skipped"):
        table.add_column(heading, justify="right")
    shown = (Outcome.WARNED, Outcome.XFAILED, Outcome.PASSED, Outcome.SKIPPED)
    for row in summary.rows(audit):
        grades = [Text(g, style=GRADE_STYLES.get(g, "")) for g in (row.grades.get(dtype, "") for dtype in dtypes)]
        counts = [Text(str(row.counts.get(outcome, 0))) for outcome in shown]
        bad = Text(str(row.bad), style="bold red" if row.bad else "")
        table.add_row(Text(text.plain(row.implementation)), *grades, bad, *counts)
    return table


def _findings(audit: Judged) -> Table:
    """Errors with their messages; the others too where they are few, else counted by check."""
    errors, others = summary.errors(audit), (*summary.warnings(audit), *summary.known(audit))
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for finding in errors if len(others) > MOST else (*errors, *others):
        told = _heading(finding).append(f"\n{text.plain(finding.worst.message)}")
        table.add_row(_outcome(finding.outcome), told)
    if len(others) > MOST:
        for (outcome, check), counted in _counted(others).items():
            table.add_row(_outcome(outcome), Text.assemble((check, "bold"), (f" ({counted})", "dim")))
    return table


def _outcome(outcome: Outcome) -> Text:
    return Text(outcome.value, style=OUTCOME_STYLES.get(outcome, "bold red"))


def _counted(findings: Iterable[Finding]) -> dict[tuple[Outcome, str], str]:
    """By outcome and check: on how many implementations it was found, and in how many results."""
    groups: dict[tuple[Outcome, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.outcome, finding.check), []).append(finding)
    counted = {}
    for key, members in groups.items():
        names = {name for finding in members for name in finding.implementations}
        results = sum(len(finding.results) for finding in members)
        counted[key] = f"{summary.number(len(names), 'implementation')}; {summary.number(results, 'result')}"
    return counted


def _heading(finding: Finding) -> Text:
    heading = Text(f"{finding.check}: {', '.join(map(text.plain, finding.implementations))}", style="bold")
    where = f"{', '.join(finding.dtypes)}; {summary.number(len(finding.results), 'result')}"
    return Text.assemble(heading, (f" ({where})", "dim"))
