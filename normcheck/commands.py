"""The commands that judge, and those that read what was judged: ``audit``, ``check``, ``merge``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from normcheck.console import console, progress
from normcheck.judging import EXIT_CODES, claiming, finish, judging, one_line, print_plan, run, tell_missing, workers_of
from normcheck.options import OptionError, checked, chosen, implementation_of

PLANNED = ("profile", "checks", "dtypes", "devices", "seed")


_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


class _Shard(click.ParamType):  # type: ignore[type-arg]
    """``3/8`` as (3, 8)."""

    name = "shard"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The two numbers; refused in one line."""
        part, _, parts = str(value).partition("/")
        if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
            self.fail(f"{value!r} should be such as 3/8, the third of eight", param, ctx)
        return int(part), int(parts)


@click.command(epilog=EXIT_CODES)
@judging
@click.option("--implementation", "names", multiple=True, metavar="GLOB", help="Only implementations with such a name.")
@click.option("--framework", metavar="NAME", help="Only implementations of this framework.")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), default="normcheck-report", show_default=True)
@click.option("--resume", "resumed", type=_FOLDER, metavar="DIR", help="Go on with the audit that was broken off there.")
@click.option("--shard", type=_Shard(), metavar="I/N", help="Only this part of the plan; `normcheck merge` joins them.")
@click.option("--scheduler", metavar="ADDRESS", help="Run on a dask cluster, such as tcp://10.0.0.1:8786.")
@click.option("--dry-run", is_flag=True, help="Print what would be judged, and stop.")
@click.option("--faults", "zoo", is_flag=True, help="Judge the zoo of faults and the sound norms beside it instead.")
@click.option("--fault", "globs", multiple=True, metavar="GLOB", help="As --faults, but only what has such a name.")
@click.option("--kind", "kinds", multiple=True, metavar="K01", help="As --faults, but only faults of this kind.")
@click.pass_context
def audit(ctx: click.Context, /, **options: Any) -> None:
    """Judge the norms that are installed and write a report folder.

    Results are kept in the folder as they come: an audit that was broken off is gone on with by --resume.
    """
    given = _stored(ctx, options) if options["resumed"] is not None else options
    planned = checked({key: given[key] for key in PLANNED})
    workers = workers_of(given["workers"], given["isolation"])
    if given["zoo"] or given["globs"] or given["kinds"]:
        _judge_zoo(given, planned, workers)
        return
    found = chosen(given["names"], given["framework"])
    tell_missing(given["framework"])
    if given["dry_run"]:
        _show_plan(found, planned)
        return
    running = {key: given[key] for key in ("isolation", "time_limit", "memory_limit", "shard", "scheduler")}
    kept = {
        "journal": given["output"] / "journal.jsonl",
        "resume": given["resumed"] is not None,
        "selection": {"names": list(given["names"]), "framework": given["framework"]},
    }
    done = run(found, {**planned, **running, **kept, "workers": workers})
    finish(*done, given["output"], fail_on_warning=given["fail_on_warning"], strict_ledger=given["strict_ledger"])


@click.command(epilog=EXIT_CODES)
@claiming
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Write a report folder as well.")
@judging
def check(target: str, output: Path | None, fail_on_warning: bool, strict_ledger: bool, **options: Any) -> None:
    """Judge one function of yours, TARGET: module:callable or file.py:callable.

    It is called with x and what else the norm has, such as call(x, weight, bias), and must return y.
    """
    from normcheck.audit import DTYPES, modes

    plan = checked({key: options.pop(key) for key in PLANNED})
    running = {key: options.pop(key) for key in ("isolation", "time_limit", "memory_limit", "workers")}
    running["workers"] = workers_of(running["workers"], running["isolation"])
    implementation = implementation_of(target, plan["dtypes"] or DTYPES, plan["devices"] or ("cpu",), options)
    done = run(modes(implementation), {**plan, **running})
    finish(*done, output, fail_on_warning=fail_on_warning, strict_ledger=strict_ledger)


@click.command(epilog=EXIT_CODES)
@click.argument("output", metavar="OUT", type=click.Path(path_type=Path))
@click.argument("sources", metavar="IN...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--fail-on-warning", is_flag=True, help="Warnings count as failures.")
@click.option("--strict-ledger", is_flag=True, help="Known upstream faults that no longer show count as failures.")
def merge(output: Path, sources: Sequence[Path], fail_on_warning: bool, strict_ledger: bool) -> None:
    """Join audits, IN, each a file or a report folder, to one in the folder OUT.

    They are the shards of one plan, or were made in different environments; where each was born is kept.
    """
    from normcheck.merging import MergeError
    from normcheck.merging import merge as joined

    try:
        whole = joined({str(source): read(source) for source in sources})
    except MergeError as error:
        raise OptionError(str(error)) from None
    finish(whole, False, output, fail_on_warning=fail_on_warning, strict_ledger=strict_ledger)


def read(source: Path) -> Any:
    """The audit of a file, or of a report folder.

    Raises
    ------
    UsageError : if there is none
    """
    from normcheck.audit import Audit

    path = source / "audit.json" if source.is_dir() else source
    try:
        return Audit.read(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise click.UsageError(f"{path} is no audit: {type(error).__name__}: {error}") from None


def _stored(ctx: click.Context, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with which the audit was begun that is gone on with.

    Raises
    ------
    OptionError : for one that is given anew and differs
    """
    from normcheck.engine import journal

    folder: Path = options["resumed"]
    with one_line():
        header = journal.read(folder / journal.NAME)[0]
    settings = {**header["settings"], **(header["settings"].get("selection") or {})}
    stored = {name: settings[name] for name in (*PLANNED, "names", "framework", "shard", "time_limit", "memory_limit")}
    for name, value in {**stored, "output": folder}.items():
        typed = ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if typed and _plain(options[name]) != _plain(value):
            raise OptionError(f"{name}={_plain(options[name])!r}, but should be {value!r}, with which {folder} was begun")
    again = {name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()}
    none = {name: () for name in ("checks", "dtypes", "devices") if again[name] is None}
    return {**options, **again, **none, "output": folder}


def _plain(value: Any) -> Any:
    """An option as a journal has it; what was not given is None."""
    return list(value) or None if isinstance(value, tuple | list) else value


def _show_plan(found: Sequence[Any], planned: Mapping[str, Any]) -> None:
    from normcheck.audit import plan

    print_plan(plan(found, **planned))


def _judge_zoo(given: Mapping[str, Any], planned: Mapping[str, Any], workers: int) -> None:
    """Judge faults and sound norms, show the matrix and write it, and exit with the code that it deserves."""
    from normcheck import zoo
    from normcheck.reporters import zoo as shown

    try:
        units = zoo.units(*zoo.chosen(given["globs"], given["kinds"]), **planned)
    except ValueError as error:
        raise OptionError(str(error)) from None
    if given["dry_run"]:
        print_plan(units)
        return
    with progress() as moved:
        judged = zoo.judge(units, workers=workers, progress=moved, profile=planned["profile"], seed=planned["seed"])
    console().print(shown.table(judged))
    judged.write(given["output"] / "zoo.json")
    (given["output"] / "faults.md").write_text(shown.render(judged), encoding="utf-8")
    if judged.interrupted:
        raise KeyboardInterrupt
    raise click.exceptions.Exit(0 if judged.passed else 1)


COMMANDS = (audit, check, merge)
