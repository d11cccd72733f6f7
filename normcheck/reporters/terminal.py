"""What the terminal shows after an audit: the table of grades and the findings."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from normcheck.reporters import summary, text
from normcheck.reporters.summary import Finding, Judged
from normcheck.results import Outcome

GRADE_STYLES = {"A+": "green", "A": "green", "B": "yellow", "F": "bold red", "-": "dim"}
OUTCOME_STYLES = {Outcome.WARNED: "yellow", Outcome.XFAILED: "magenta", Outcome.XPASSED: "cyan"}


def render(audit: Judged) -> RenderableType:
    """The verdict, the grades by implementation and dtype, and every finding with its worst result."""
    return Group(_grades(audit), *_findings(audit), Text(summary.verdict(audit), style="bold"))


def _grades(audit: Judged) -> Table:
    dtypes = summary.dtypes(audit)
    table = Table(title="Grades", title_justify="left")
    table.add_column("implementation", overflow="fold")
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


def _findings(audit: Judged) -> Iterator[RenderableType]:
    for finding in (*summary.errors(audit), *summary.warnings(audit), *summary.known(audit)):
        yield _heading(finding)
        yield Padding(Text(text.plain(finding.worst.message)), (0, 0, 0, 4))


def _heading(finding: Finding) -> Text:
    heading = Text(f"{finding.outcome.value:>8} ", style=OUTCOME_STYLES.get(finding.outcome, "bold red"))
    heading.append(f"{text.plain(finding.implementation)}: {finding.check}", style="bold")
    where = ", ".join(dict.fromkeys(result.dtype for result in finding.results))
    heading.append(f"  ({where}; {summary.number(len(finding.results), 'result')})", style="dim")
    return heading
