"""A pytest session as an audit: what its items found, told in the terminal, in a report folder and on GitHub."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from normcheck import ledger
from normcheck.audit import SCHEMA, THREADS, Audit
from normcheck.born import born
from normcheck.regimes import WIDTHS
from normcheck.reporters import summary
from normcheck.reporters.text import plain
from normcheck.results import Outcome, Result

MOST = 12


def audit(told: Sequence[Mapping[str, Any]], arguments: Iterable[str], seed: int, interrupted: str = "") -> Audit:
    """What the items of a session told, as an audit.

    Parameters
    ----------
    told : the records of `Task.record`, in the order in which they came
    arguments : pytest's
    seed : of all random inputs
    interrupted : how far the session came, if it was interrupted
    """
    results = [Result.from_dict(result) for one in told for result in one["results"]]
    profiles = " ".join(sorted({one["profile"] for one in told}))
    facts = born(
        sorted({one["framework"] for one in told}),
        schema=SCHEMA,
        profile=profiles,
        seed=seed,
        threads=THREADS,
        command=shlex.join(["pytest", *arguments]),
    )
    facts |= {"interrupted": interrupted} if interrupted else {}
    ordered = sorted(results, key=lambda result: (result.implementation, result.dtype))
    return Audit(ledger.apply(ordered, profile=min((one["profile"] for one in told), key=_rank, default="deep")), facts)


def _rank(profile: str) -> int:
    return tuple(WIDTHS).index(profile)


def lines(found: Audit | None, told: Iterable[Mapping[str, Any]], skipped: Mapping[str, int] | None = None) -> list[str]:
    """The section of the terminal summary: grades, warnings, expected failures that passed, and the verdict.

    Parameters
    ----------
    found : what was judged; None for nothing
    told : as for `audit`
    skipped : how many items were skipped by reason, which is told where nothing was judged
    """
    if found is None or all(result.outcome is Outcome.SKIPPED for result in found.results):
        reasons = sorted((skipped or {}).items(), key=lambda pair: -pair[1])
        told_of = [f"skipped {summary.number(count, 'item')}: {plain(reason)}" for reason, count in reasons[:MOST]]
        return ["Nothing was judged.", *told_of, *[f"and for {len(reasons) - MOST} more reasons"] * (len(reasons) > MOST)]
    stale = [f"stale: {one['stale']}" for one in told if one["stale"]]
    findings = (*summary.warnings(found), *summary.known(found))
    shown = [_finding(one) for one in findings[:MOST]]
    more = len(findings) - MOST
    return [*_grades(found), *shown, *[f"and {more} more"] * (more > 0), *stale, summary.verdict(found)]


def _grades(found: Audit) -> list[str]:
    """Grades by implementation and dtype, as a table."""
    dtypes = summary.dtypes(found)
    table = [("implementation", *dtypes)]
    table += [(plain(row.implementation), *(row.grades.get(dtype, "") for dtype in dtypes)) for row in summary.rows(found)]
    wide = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, wide, strict=True)).rstrip() for row in table]


def _finding(finding: summary.Finding) -> str:
    names, dtypes = ", ".join(map(plain, finding.implementations)), ", ".join(finding.dtypes)
    return f"{finding.outcome.value}: {finding.check}: {names} ({dtypes}): {_worst(finding)}"


def _worst(finding: summary.Finding) -> str:
    """The worst message, with its dtype where there are several."""
    several = f"worst in {finding.worst.dtype}: " if len(finding.dtypes) > 1 else ""
    return several + plain(finding.worst.message)
