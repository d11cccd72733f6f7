"""The commands that look back: ``compare`` and ``history``, and what an audit is told of its baseline."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from normcheck.console import print_table
from normcheck.judging import read
from normcheck.options import OptionError

if TYPE_CHECKING:
    from normcheck.audit import Audit
    from normcheck.history import Comparison, Trend

COLUMNS = ("what", "implementation", "dtype", "check", "then and now")
SHOWN = 4  # tasks that are named of those that only one audit has
_AUDIT = click.Path(exists=True, path_type=Path)


@click.command()
@click.argument("old", type=_AUDIT)
@click.argument("new", type=_AUDIT)
@click.option("--json", "plain", is_flag=True, help="As JSON.")
def compare(old: Path, new: Path, plain: bool) -> None:
    """Say what changed from the audit OLD to the audit NEW, each a file or a report folder.

    Exits with 1 if something fails in NEW that does not in OLD, with 3 if nothing was judged in both, else with 0.
    """
    from dataclasses import asdict

    from normcheck.history import compare as compared

    found = compared(read(old), read(new))
    if plain:
        click.echo(json.dumps(asdict(found), indent=1))
    else:
        tell(found)
    raise click.exceptions.Exit(1 if found.worse else 0 if found.common else 3)


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--implementation", "names", multiple=True, metavar="GLOB", help="Only implementations with such a name.")
@click.option("--all", "every", is_flag=True, help="Also what has not changed.")
@click.option("--plots", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Draw errors over time into DIR.")
def history(folder: Path, names: Sequence[str], every: bool, plots: Path | None) -> None:
    """Say what changed from audit to audit in FOLDER: outcomes, errors and bits, and with which release.

    The files are taken in the order of their names.
    """
    from fnmatch import fnmatch

    from normcheck.history import stored, trends
    from normcheck.reporters import trends as drawn

    try:
        audits = stored(folder)
    except (ValueError, OSError) as error:
        raise OptionError(str(error)) from None
    found = [one for one in trends(audits) if not names or any(fnmatch(one.implementation, glob) for glob in names)]
    shown = [one for one in found if every or one.events]
    print_table(
        f"{len(audits)} audits, from {min(audits)} to {max(audits)}",
        ("implementation", "dtype", "check", "changes"),
        _rows(shown),
    )
    click.echo(f"{len(shown)} of {len(found)} tasks have changed." if not every else f"{len(found)} tasks.")
    if plots is not None:
        for path in drawn.draw(found, plots):
            click.echo(f"Written: {path}")


def tell(found: Comparison) -> None:
    """Print a comparison."""
    from normcheck.history import KINDS
    from normcheck.reporters.text import plain

    for note in found.notes:
        click.echo(f"Not alike: {plain(note)}")
    for where, tasks in (("old", found.gone), ("new", found.added)):
        if tasks:
            more = f", and {len(tasks) - SHOWN} more" if len(tasks) > SHOWN else ""
            click.echo(f"Judged only in the {where}: {plain('; '.join(map(' '.join, tasks[:SHOWN])))}{more}")
    rows = [tuple(map(plain, (KINDS[one.kind], one.implementation, one.dtype, one.check, one.text))) for one in found.changes]
    counts = {what: sum(one.kind == kind for one in found.changes) for kind, what in KINDS.items()}
    if rows:
        print_table("Changes", COLUMNS, rows)
    usual = "Nothing else has changed." if found.gone or found.added else "Nothing has changed."
    usual = usual if found.common else "Nothing in common was judged."
    click.echo(", ".join([f"{what}: {count}" for what, count in counts.items() if count] or [usual]))


def against(baseline: Path, only_new: bool) -> Callable[[Audit], bool] | None:
    """What `finish` asks whether an audit passes beside its baseline; it prints the comparison.

    Parameters
    ----------
    baseline : the stored audit
    only_new : whether what fails in the baseline as well does not count; then a baseline that has nothing in common with the
        audit exits with 3
    """
    from normcheck.history import compare as compared

    old = read(baseline)

    def known(audit: Audit) -> bool:
        found = compared(old, audit)
        tell(found)
        if only_new and not found.worse and not found.common:
            raise click.exceptions.Exit(3)
        return not found.worse if only_new else audit.passed

    return known


def _rows(found: Sequence[Trend]) -> list[tuple[str, str, str, str]]:
    from normcheck.reporters.text import plain

    return [
        (
            plain(one.implementation),
            plain(one.dtype),
            plain(one.check),
            "\n".join(map(plain, one.events)) or f"{one.points[-1].outcome} in {len(one.points)} audits",
        )
        for one in found
    ]


COMMANDS = (compare, history)
