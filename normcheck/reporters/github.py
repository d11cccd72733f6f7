"""What GitHub shows: the summary of a job, short enough to be read there, and annotations of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from normcheck.reporters import summary, text
from normcheck.reporters.summary import Finding, Judged

MOST = 20
ANNOTATIONS = 10  # of each kind; GitHub shows no more


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


def commands(audit: Judged) -> Iterator[str]:
    """Workflow commands, one a line, that annotate a run with its errors and its warnings."""
    for command, findings in (("error", summary.errors(audit)), ("warning", summary.warnings(audit))):
        for finding in findings[:ANNOTATIONS]:
            title = f"{finding.check}: {', '.join(finding.implementations)} ({', '.join(finding.dtypes)})"
            message = f"{text.plain(finding.worst.message)} [{summary.number(len(finding.results), 'result')}]"
            yield f"::{command} title={_property(title)}::{_data(message)}"


def announce(audit: Judged, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Add to the summary of the job where GitHub runs one; the annotations to print where it is GitHub that reads the output."""
    path = environment.get("GITHUB_STEP_SUMMARY")
    if path:
        with Path(path).open("a", encoding="utf-8") as stream:
            stream.write(render(audit))
    return tuple(commands(audit)) if environment.get("GITHUB_ACTIONS") == "true" else ()


def _data(said: str) -> str:
    """Escaped as the value of a workflow command."""
    return said.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(said: str) -> str:
    """Escaped as a property of a workflow command."""
    return _data(text.plain(said)).replace(":", "%3A").replace(",", "%2C")
