"""The summary of a job on GitHub: the verdict, the grades and what was found, short enough to be read there."""

from __future__ import annotations

from normcheck.reporters import summary, text
from normcheck.reporters.summary import Finding, Judged

MOST = 20


def render(audit: Judged) -> str:
    """An audit as a section of Markdown."""
    dtypes = summary.dtypes(audit)
    grades = [[text.cell(row.implementation), *(row.grades.get(dtype, "") for dtype in dtypes)] for row in summary.rows(audit)]
    findings = (*summary.errors(audit), *summary.warnings(audit), *summary.known(audit))
    parts = ["## normcheck", summary.verdict(audit), text.table(("implementation", *dtypes), grades)]
    if findings:
        parts.append(text.table(("outcome", "check", "implementations", "dtypes", "worst"), map(_row, findings[:MOST])))
    if len(findings) > MOST:
        parts.append(f"{len(findings) - MOST} more are in the report.")
    return "\n\n".join(parts) + "\n"


def _row(finding: Finding) -> list[str]:
    names = ", ".join(map(text.cell, finding.implementations))
    return [finding.outcome.value, finding.check, names, ", ".join(finding.dtypes), text.escaped(finding.worst.message)]
