"""The commands that judge, and those that read what was judged: ``audit``, ``check``, ``merge``."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from normcheck.console import console, print_table, progress
from normcheck.judging import (
    DURATION,
    EXIT_CODES,
    NEW_FOLDER,
    claiming,
    finish,
    judging,
    lasting,
    one_line,
    print_plan,
    read,
    run,
    tell_missing,
    workers_of,
)
from normcheck.options import OptionError, checked, chosen, implementation_of
from normcheck.stored import put

if TYPE_CHECKING:
    from normcheck.audit import Audit
    from normcheck.engine.planning import Costs
    from normcheck.implementations import Implementation

PLANNED = ("profile", "checks", "dtypes", "devices", "seed")
OF_MODEL = ("model", "profile", "checks", "seed", "output", "fail_on_warning", "strict_ledger")


_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_keeping = click.option("--keep", type=NEW_FOLDER, metavar="DIR", help="Also keep the audit there, named by its date.")


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
@click.option("--output", type=NEW_FOLDER, default="normcheck-report", show_default=True)
@click.option("--resume", "resumed", type=_FOLDER, metavar="DIR", help="Go on with the audit that was broken off there.")
@click.option("--shard", type=_Shard(), metavar="I/N", help="Only this part of the plan; `normcheck merge` joins them.")
@click.option("--scheduler", metavar="ADDRESS", help="Run on a dask cluster, such as tcp://10.0.0.1:8786.")
@click.option("--budget", type=DURATION, metavar="TIME", help="Stop in time, such as 10m; the most telling checks come first.")
@click.option("--baseline", type=click.Path(exists=True, path_type=Path), help="A stored audit; say what has changed since.")
@click.option("--fail-on", type=click.Choice(["any", "new"]), default="any", show_default=True, help="With --baseline.")
@click.option("--keep", type=NEW_FOLDER, metavar="DIR", help="Also keep the audit there, by date.")
@click.option("--dry-run", is_flag=True, help="Print what would be judged and how long it may take, and stop.")
@click.option("--faults", "zoo", is_flag=True, help="Judge the zoo of faults and the sound norms beside it instead.")
@click.option("--fault", "globs", multiple=True, metavar="GLOB", help="As --faults, but only what has such a name.")
@click.option("--kind", "kinds", multiple=True, metavar="K01", help="As --faults, but only faults of this kind.")
@click.option("--model", metavar="TARGET", help="Judge the norm layers in a model instead: module:build returns it and inputs.")
@click.pass_context
def audit(ctx: click.Context, /, **options: Any) -> None:
    """Judge the norms that are installed and write a report folder.

    Results are kept in the folder as they come: an audit that was broken off is gone on with by --resume.
    """
    _refuse_unused(ctx, options)
    given = _stored(ctx, options) if options["resumed"] is not None else options
    planned = checked({key: given[key] for key in PLANNED})
    if given["model"]:
        chosen_profile = ctx.get_parameter_source("profile") is not click.core.ParameterSource.DEFAULT
        _judge_model(given, planned if chosen_profile else {**planned, "profile": "quick"})
        return
    workers = workers_of(given["workers"], given["isolation"])
    if given["zoo"] or given["globs"] or given["kinds"]:
        _judge_zoo(given, planned, workers)
        return
    found = chosen(given["names"], given["framework"])
    tell_missing(given["framework"])
    costs = _costs(given["output"], planned["profile"])
    if given["dry_run"]:
        _show_plan(found, planned, costs, workers, isolated=given["isolation"])
        return
    running = {key: given[key] for key in ("isolation", "time_limit", "memory_limit", "shard", "scheduler", "budget")}
    kept = {
        "journal": given["output"] / "journal.jsonl",
        "resume": given["resumed"] is not None,
        "selection": {"names": list(given["names"]), "framework": given["framework"]},
    }
    done, interrupted = run(found, {**planned, **running, **kept, "workers": workers, "costs": costs})
    done = done if done is None else _with_the_rest(done, found, given)
    _end(done, interrupted, given)


@click.command(epilog=EXIT_CODES)
@claiming
@click.option("--output", type=NEW_FOLDER, help="Write a report folder as well.")
@judging
def check(target: str, output: Path | None, fail_on_warning: bool, strict_ledger: bool, **options: Any) -> None:
    """Judge one function of yours, TARGET: module:callable or file.py:callable; or the norm in a saved ONNX model, a file.onnx.

    A function is called with x and what else the norm has, such as call(x, weight, bias), and must return y. It needs --norm; a
    model says itself what its norm computes.
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
@_keeping
def merge(output: Path, sources: Sequence[Path], fail_on_warning: bool, strict_ledger: bool, keep: Path | None) -> None:
    """Join audits, IN, each a file or a report folder, to one in the folder OUT.

    They are the shards of one plan, or were made in different environments; where each was born is kept. Where a shard is
    missing, or one was broken off, that is told, and the exit code is 3.
    """
    from normcheck import history
    from normcheck.merging import MergeError, repeated
    from normcheck.merging import merge as joined

    audits = {str(source): read(source) for source in sources}
    try:
        whole = joined(audits)
    except MergeError as error:
        raise OptionError(str(error)) from None
    if len(set(sources)) < len(sources) or repeated(audits):
        click.echo(repeated(audits) or "An audit was given several times; it counts once.", err=True)
    if keep is not None:
        try:
            history.keep(whole, keep)
        except ValueError as error:
            raise OptionError(f"--keep: {error}") from None
    lacking = whole.born.get("interrupted", "")
    finish(whole, False, output, fail_on_warning=fail_on_warning, strict_ledger=strict_ledger, lacking=lacking)


def _end(done: Audit | None, interrupted: bool, given: Mapping[str, Any]) -> None:
    """Keep the audit where audits are kept, hold it against its baseline, and finish."""
    from normcheck.history import keep
    from normcheck.past import against

    if given["shard"] is not None and done is not None and not done.results:
        written = done.write(given["output"] / "audit.json")
        click.echo(f"The plan has fewer units than shards: this one is empty. Written: {written}")
        return
    known = None if given["baseline"] is None else against(given["baseline"], given["fail_on"] == "new")
    if done is not None and given["keep"] is not None and not interrupted:
        keep(done, given["keep"])
    counted = {name: given[name] for name in ("fail_on_warning", "strict_ledger")}
    finish(done, interrupted, given["output"], **counted, known=known)


def _refuse_unused(ctx: click.Context, options: Mapping[str, Any]) -> None:
    """Refuse what would be ignored: a fail-on without a baseline, and beside a model what is not asked of its layers."""
    if options["fail_on"] == "new" and options["baseline"] is None:
        raise OptionError("--fail-on new without --baseline, but should be given what is not new")
    if not options["model"]:
        return
    for option in ctx.command.params:
        typed = ctx.get_parameter_source(str(option.name)) is click.core.ParameterSource.COMMANDLINE
        if typed and option.name not in OF_MODEL:
            reason = "but a model has its own" if option.name in ("dtypes", "devices") else "which does not go with it"
            raise OptionError(f"{option.opts[0]} with --model, {reason}")


def _with_the_rest(audit: Audit, found: Sequence[Implementation], given: Mapping[str, Any]) -> Audit:
    """The audit, with what adapters found and do not judge as skipped results, and for which code each implementation stands."""
    from normcheck.implementations import unjudged
    from normcheck.results import Outcome, Result

    wanted = given["names"] or ("*",)
    rest = {name: reason for name, reason in unjudged().items() if any(fnmatch.fnmatch(name, glob) for glob in wanted)}
    first = given["shard"] is None or given["shard"][0] == 1
    rest = rest if first and given["framework"] in (None, "torch") else {}
    skipped = tuple(Result("output-form", name, "", "float32", Outcome.SKIPPED, message=reason) for name, reason in rest.items())
    alike = {one.name: list(one.alike) for one in found if one.alike}
    return replace(audit, results=(*audit.results, *skipped), born={**audit.born, **({"alike": alike} if alike else {})})


def _judge_model(given: Mapping[str, Any], planned: Mapping[str, Any]) -> None:
    """Judge the norm layers in a model, show and write their table, and exit with the code that they deserve."""
    from normcheck import models
    from normcheck.audit import Interrupted
    from normcheck.implementations import MissingPackageError, TargetError

    interrupted = False
    try:
        with progress() as moved:
            own = {key: planned[key] for key in ("profile", "checks", "seed")}
            judged = models.audit_model(*models.build(given["model"]), progress=moved, **own)
    except Interrupted as broken:
        judged, interrupted = broken.audit, True
    except (models.ModelError, TargetError, MissingPackageError) as error:
        raise OptionError(str(error)) from None
    shown = [models.COLUMNS.index(name) for name in models.SHOWN]
    rows = [[row[place] for place in shown] for row in models.table(judged)]
    if rows:
        print_table(f"Norm layers of {judged.born['model']}", models.SHOWN, rows)
    else:
        click.echo(models.NO_TABLE)
    given["output"].mkdir(parents=True, exist_ok=True)
    put(given["output"] / "layers.md", models.markdown(judged))
    counted = {name: given[name] for name in ("fail_on_warning", "strict_ledger")}
    lacking = "" if models.judges(judged) else "none of the layers that it found was judged"
    finish(judged, interrupted, given["output"], lacking=lacking, **counted)


def _stored(ctx: click.Context, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with which the audit was begun that is gone on with.

    Raises
    ------
    OptionError : for one that is given anew and differs
    """
    from normcheck.engine import journal

    folder: Path = options["resumed"]
    if not (folder / journal.NAME).exists():
        raise OptionError(f"--resume={folder}, but it holds no {journal.NAME}: no audit was begun there")
    with one_line():
        header = journal.read(folder / journal.NAME)[0]
    settings = {**header["settings"], **(header["settings"].get("selection") or {})}
    stored = {name: settings[name] for name in (*PLANNED, "names", "framework", "shard", "time_limit", "memory_limit")}
    for name, value in {**stored, "output": folder}.items():
        typed = ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if typed and _plain(options[name]) != _plain(value):
            raise OptionError(f"{name}={_plain(options[name])!r}, but should be {value!r}, with which {folder} was begun")
    _tell_commit(header["born"].get("commit"))
    again = {name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()}
    none = {name: () for name in ("checks", "dtypes", "devices") if again[name] is None}
    return {**options, **again, **none, "output": folder}


def _tell_commit(then: str | None) -> None:
    """Say where the folder is another than it was when the audit was begun: what was judged may be of older code."""
    from normcheck.born import commit

    now = commit()
    if then and now and then != now:
        text = f"Begun at commit {then[:12]}, gone on with at {now[:12]}: what was judged already is not judged anew."
        click.echo(text, err=True)


def _plain(value: Any) -> Any:
    """An option as a journal has it; what was not given is None."""
    return list(value) or None if isinstance(value, tuple | list) else value


def _costs(folder: Path, profile: str) -> Costs:
    """What tasks are expected to take: as in the audit that the folder holds, if it is of this profile, or as is usual."""
    from normcheck.audit import Audit
    from normcheck.engine import planning

    path = folder / "audit.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        stored = Audit.read(path)
        if stored.born.get("profile") == profile:
            return planning.of_results(stored.results, profile, f"as in {path}")
    return planning.measured(profile)


def _show_plan(found: Sequence[Any], planned: Mapping[str, Any], costs: Costs, workers: int, isolated: bool) -> None:
    from normcheck.audit import plan

    units = plan(found, **planned)
    print_plan(units, costs)
    many = f"{workers} workers" if workers > 1 else "one worker"
    where = f"with {many} (their start takes {lasting(costs.starting(units))} of it)" if isolated else "in this process"
    click.echo(f"About {lasting(costs.wall(units, workers, isolated))} {where}, {costs.source}.")


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
    put(given["output"] / "faults.md", shown.render(judged))
    if judged.interrupted:
        raise KeyboardInterrupt
    raise click.exceptions.Exit(0 if judged.passed else 1)


COMMANDS = (audit, check, merge)
