"""The command line: ``normcheck audit | check | hunt | list | explain | report | certify``."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

import normcheck
from normcheck.console import console, print_table, progress
from normcheck.flags import JUDGING, Flag
from normcheck.options import OptionError, checked, chosen, implementation_of, one_of
from normcheck.topics import TOPICS, listed

if TYPE_CHECKING:
    from normcheck.audit import Audit, Unit
    from normcheck.hunt import Hunt
    from normcheck.implementations import Implementation

EXIT_CODES = """\b
Exit codes:
  0    all as expected; warnings and known upstream faults included
  1    failures, or something broke, crashed or ran out of time
  2    wrong usage
  3    the audit itself could not run, or nothing could be judged
  130  interrupted; what was measured until then is written
"""

Command = TypeVar("Command", bound=Callable[..., Any])


class _Group(click.Group):
    """Turns what escapes a command into the documented exit codes, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(130)
        except OptionError as error:
            raise click.UsageError(str(error)) from None
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:  # noqa: BLE001 (whatever it is, the caller gets its exit code and one line)
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = " ".join(str(error).split())
            click.echo(f"normcheck could not run: {type(error).__name__}: {text} ({where.name}, line {where.lineno})", err=True)
            ctx.exit(3)


@click.group(cls=_Group, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(normcheck.__version__, prog_name="normcheck")
def main() -> None:
    """Hold implementations of normalization layers against the mathematics that they claim to compute."""


def _judging(command: Command) -> Command:
    """Add the options that audit and check share."""
    options = (
        *map(_option, JUDGING),
        click.option("--fail-on-warning", is_flag=True, help="Warnings count as failures."),
        click.option("--strict-ledger", is_flag=True, help="Known upstream faults that no longer show count as failures."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _claiming(command: Command) -> Command:
    """Add the argument and the options that say what a function of the user's claims to compute."""
    options = (
        click.argument("target"),
        click.option("--norm", "norm_name", required=True, metavar="NORM", help="What it claims to compute, such as rms_norm."),
        click.option("--eps", type=float, help="The norm's eps. Default: see `normcheck list norms`."),
        click.option("--eps-placement", metavar="PLACEMENT", help="inside, outside, max, max_inside or none."),
        click.option("--ddof", type=int, help="1 for the variance with Bessel's correction."),
        click.option("--weight-offset", type=float, help="Added to the weight before it multiplies; 1 for 1 + w."),
        click.option("--num-groups", type=int, help="Groups of a GroupNorm."),
        click.option("--normalized-shape", metavar="N[,N...]", help="Sizes of the last dimensions that are normalized together."),
        click.option("--fraction", type=float, help="Share of the elements that enter a partial statistic."),
        click.option("--momentum", type=float, help="Of running statistics."),
        click.option("--compute", metavar="DTYPE", help="Dtype of the arithmetic that is promised. Default: float32."),
        click.option("--stats", metavar="DTYPE", help="Dtype that holds mean and variance. Default: as --compute."),
        click.option("--cast", type=click.Choice(["once", "before_weight"]), help="When the result is rounded to its dtype."),
        click.option("--output-dtype", metavar="DTYPE", help="x, promote, or a dtype. Default: x, the input's."),
        click.option("--accumulation", metavar="HOW", help="tree, sequential, merge, or the height of the summation tree."),
        click.option("--framework", default="torch", show_default=True, metavar="NAME", help="Whose arrays it takes."),
        click.option("--argument-order", metavar="NAME[,NAME...]", help="Such as x,weight,eps. Default: the norm's, x first."),
        click.option("--weight-dtype", metavar="DTYPE", help="Dtype of weight and bias. Default: the input's."),
        click.option("--channel-axis", type=click.Choice(["1", "-1"]), default="1", show_default=True, help="Of the channels."),
        click.option("--autograd", is_flag=True, help="Judge the gradients that the framework's autograd gives as well."),
        click.option("--validates", is_flag=True, help="It is expected to refuse wrong arguments such as a negative eps."),
        click.option("--training/--evaluation", default=None, help="Which mode of a norm with running statistics is judged."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _option(flag: Flag) -> Callable[[Command], Command]:
    """A shared option as click has it; an audit is thorough unless told otherwise."""
    given: dict[str, Any] = {"help": flag.help, "multiple": flag.many}
    if flag.choices:
        given |= {"type": click.Choice(flag.choices), "default": "standard", "show_default": True}
    elif flag.number:
        given |= {"type": click.IntRange(min=0), "default": 0}
    return click.option(f"--{flag.name}", flag.key, metavar=flag.metavar or None, **given)


@main.command(epilog=EXIT_CODES)
@_judging
@click.option("--implementation", "names", multiple=True, metavar="GLOB", help="Only implementations with such a name.")
@click.option("--framework", metavar="NAME", help="Only implementations of this framework.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes. Default: one for each core.")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), default="normcheck-report", show_default=True)
@click.option("--dry-run", is_flag=True, help="Print what would be judged, and stop.")
@click.option("--faults", "zoo", is_flag=True, help="Judge the zoo of faults and the sound norms beside it instead.")
@click.option("--fault", "globs", multiple=True, metavar="GLOB", help="As --faults, but only what has such a name.")
@click.option("--kind", "kinds", multiple=True, metavar="K01", help="As --faults, but only faults of this kind.")
def audit(
    names: Sequence[str],
    framework: str | None,
    workers: int | None,
    output: Path,
    dry_run: bool,
    zoo: bool,
    globs: Sequence[str],
    kinds: Sequence[str],
    fail_on_warning: bool,
    strict_ledger: bool,
    **options: Any,
) -> None:
    """Judge the norms that are installed and write a report folder."""
    from normcheck.audit import plan

    given = checked(options)
    if zoo or globs or kinds:
        _judge_zoo(globs, kinds, given, output, workers or _cores(), dry_run)
        return
    found = chosen(names, framework)
    _tell_missing(framework)
    if dry_run:
        _print_plan(plan(found, **given))
        return
    _finish(*_run(found, {**given, "workers": workers or _cores()}), output, fail_on_warning, strict_ledger)


@main.command(epilog=EXIT_CODES)
@_claiming
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Write a report folder as well.")
@_judging
def check(target: str, output: Path | None, fail_on_warning: bool, strict_ledger: bool, **options: Any) -> None:
    """Judge one function of yours, TARGET: module:callable or file.py:callable.

    It is called with x and what else the norm has, such as call(x, weight, bias), and must return y.
    """
    from normcheck.audit import DTYPES, modes

    judging = {key: options.pop(key) for key in ("profile", "checks", "dtypes", "devices", "seed")}
    plan = checked(judging)
    implementation = implementation_of(target, plan["dtypes"] or DTYPES, plan["devices"] or ("cpu",), options)
    _finish(*_run(modes(implementation), {**plan, "workers": 1}), output, fail_on_warning, strict_ledger)


@main.command(epilog=EXIT_CODES)
@_claiming
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True, help="When to end.")
@click.option("--dtype", "dtypes", multiple=True, metavar="DTYPE", help="Only this dtype; can be repeated.")
@click.option("--device", default="cpu", show_default=True, metavar="DEVICE", help="Where to call it.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of all random inputs.")
@click.option("--corpus", "folder", type=click.Path(file_okay=False, path_type=Path), help="Default: in the user's cache.")
@click.option("--keep-going", is_flag=True, help="Go on for the worst ratio after a counterexample was found.")
def hunt(
    target: str,
    minutes: float,
    dtypes: Sequence[str],
    device: str,
    seed: int,
    folder: Path | None,
    keep_going: bool,
    **options: Any,
) -> None:
    """Search for an input on which one function of yours, TARGET, breaks its error bound.

    What came closest is kept, and the next search goes on from it.
    """
    from normcheck.audit import DTYPES, modes
    from normcheck.formats import FORMATS

    wanted = tuple(one_of("dtype", name, FORMATS) for name in dtypes) or DTYPES
    claims = modes(implementation_of(target, wanted, (device,), options))
    given = {"minutes": minutes / len(claims), "seed": seed, "device": device, "keep_going": keep_going}
    hunts = [_hunted(claim, folder, given) for claim in claims]
    if not any(one.rows for one in hunts):
        click.echo("Nothing was judged: no call came back.", err=True)
        raise click.exceptions.Exit(3)
    raise click.exceptions.Exit(1 if any(one.found for one in hunts) else 0)


@main.command("list")
@click.argument("topic", type=click.Choice(TOPICS), required=False)
def list_(topic: str | None) -> None:
    """List what there is: implementations, checks, norms, regimes or faults. Everything, if none is named."""
    for name in (topic,) if topic else TOPICS:
        columns, rows = listed(name)
        print_table(name, columns, rows)
    if topic in (None, "implementations"):
        _tell_missing(None)


@main.command()
@click.argument("check_id", metavar="CHECK", required=False)
@click.option("--all", "every", is_flag=True, help="The catalogue of all checks, in Markdown.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file.")
def explain(check_id: str | None, every: bool, output: Path | None) -> None:
    """Say what a check states, why it matters, for what it holds, and where its tolerance comes from."""
    from normcheck import ledger
    from normcheck.checks import checks
    from normcheck.faults import faults
    from normcheck.reporters import catalogue

    if every == (check_id is not None):
        raise click.UsageError("give either the id of a check or --all")
    known = checks()
    if every:
        page = catalogue.render(known.values(), faults(), ledger.entries())
    else:
        page = known[one_of("check", str(check_id), known)].doc + "\n"
    if output is None:
        click.echo(page if every else _with_headings(page), nl=False)
    else:
        output.write_text(page, encoding="utf-8")


@main.command()
@click.argument("source", metavar="AUDIT.JSON", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--to", "form", default="md", show_default=True, help="Format of the report: md or json.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file, plots beside it.")
def report(source: Path, form: str, output: Path | None) -> None:
    """Make a report from a stored audit, or the page of faults from a stored zoo."""
    from normcheck import reporters
    from normcheck.audit import Audit

    if _page_of_faults(source, output):
        return
    known = [suffix.removeprefix(".") for suffix in reporters.suffixes()]
    suffix = f".{one_of('--to', form, known)}"
    try:
        stored = Audit.read(source)
    except (ValueError, KeyError, TypeError) as error:
        raise click.UsageError(f"{source} is no audit: {type(error).__name__}: {error}") from None
    if output is None:
        click.echo(reporters.render(stored, suffix), nl=False)
    else:
        reporters.write(stored, output if output.suffix == suffix else output.with_name(output.name + suffix))


@main.command(epilog=EXIT_CODES)
@click.option("--elements", type=click.IntRange(min=1), default=100_000, show_default=True, help="To compare, each way.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the rows.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the counts to this JSON file.")
def certify(elements: int, seed: int, output: Path | None) -> None:
    """Compare the certified references with python-flint's balls of 400 bits, forward and backward."""
    from normcheck.reference.certification import certification
    from normcheck.reporters import certificate

    try:
        with progress() as moved:
            found = certification(elements, seed, lambda done, total: moved(done, total, "certify"))
    except ImportError:
        raise click.UsageError("python-flint is not installed; pip install 'normcheck[exact]'") from None
    print_table(f"Elements against python-flint, seed {seed}", certificate.COLUMNS, certificate.rows(found))
    click.echo(certificate.verdict(found))
    if output is not None:
        certificate.write(found, output, elements=elements, seed=seed)
    raise click.exceptions.Exit(0 if found.passed else 1)


def _run(implementations: Sequence[Implementation], plan: dict[str, Any]) -> tuple[Audit | None, bool]:
    """The audit, behind a progress bar, and whether it was interrupted; then it holds what was judged until that moment."""
    try:
        with progress() as moved:
            return normcheck.audit(implementations, progress=moved, **plan), False
    except KeyboardInterrupt as stop:
        return getattr(stop, "audit", None), True  # also where it came before or after the audit


def _judge_zoo(
    globs: Sequence[str], kinds: Sequence[str], given: dict[str, Any], output: Path, workers: int, dry_run: bool
) -> None:
    """Judge faults and sound norms, show the matrix and write it, and exit with the code that it deserves."""
    from normcheck import zoo
    from normcheck.reporters import zoo as shown

    try:
        units = zoo.units(*zoo.chosen(globs, kinds), **given)
    except ValueError as error:
        raise OptionError(str(error)) from None
    if dry_run:
        _print_plan(units)
        return
    with progress() as moved:
        judged = zoo.judge(units, workers=workers, progress=moved, profile=given["profile"], seed=given["seed"])
    console().print(shown.table(judged))
    judged.write(output / "zoo.json")
    (output / "faults.md").write_text(shown.render(judged), encoding="utf-8")
    if judged.interrupted:
        raise KeyboardInterrupt
    raise click.exceptions.Exit(0 if judged.passed else 1)


def _finish(audit: Audit | None, interrupted: bool, output: Path | None, fail_on_warning: bool, strict_ledger: bool) -> None:
    """Show and write the audit, and exit with the code that it deserves."""
    from normcheck import reporters
    from normcheck.reporters import terminal
    from normcheck.results import Outcome

    if audit is not None and audit.results:
        screen = console()
        screen.print(terminal.render(audit))
        for name in ("audit.json", "report.md") if output is not None else ():
            written = reporters.write(audit, cast(Path, output) / name)
            screen.print(f"Written: {written}", highlight=False, markup=False, soft_wrap=True)
    if interrupted or audit is None:
        raise KeyboardInterrupt
    outcomes = {result.outcome for result in audit.results}
    counted = {Outcome.WARNED} if fail_on_warning else set()
    counted |= {Outcome.XPASSED} if strict_ledger else set()
    if outcomes <= {Outcome.SKIPPED}:
        click.echo("Nothing was judged: no check applies to what was chosen.", err=True)
        raise click.exceptions.Exit(3)
    raise click.exceptions.Exit(0 if audit.passed and not outcomes & counted else 1)


def _page_of_faults(source: Path, output: Path | None) -> bool:
    """Write the page, if the file is a stored zoo; what the code has and the zoo lacks, or the other way round, exits 1."""
    from normcheck import zoo
    from normcheck.reporters import zoo as shown

    try:
        stored = zoo.read(source)
    except (ValueError, KeyError, TypeError):
        return False
    page = shown.render(stored)
    if output is None:
        click.echo(page, nl=False)
    else:
        output.write_text(page, encoding="utf-8")
    for line in stored.drift:
        click.echo(line, err=True)
    if stored.drift:
        raise click.exceptions.Exit(1)
    return True


def _hunted(claim: Implementation, folder: Path | None, given: dict[str, Any]) -> Hunt:
    """One search, told as it goes on; an interrupt is passed on when the corpus is written and the outcome told."""
    from normcheck.hunt import Corpus, corpus_path
    from normcheck.hunt import hunt as search

    path = corpus_path(claim, folder)
    try:
        corpus = Corpus.read(path)
    except ValueError as error:
        raise OptionError(str(error)) from None
    done = search(claim, corpus=corpus, progress=lambda now: click.echo(now.line, err=True), **given)
    click.echo(done.text)
    click.echo(f"Corpus: {path}")
    if done.interrupted:
        raise KeyboardInterrupt
    return done


def _print_plan(units: Sequence[Unit]) -> None:
    rows = [(u.context.implementation.name, u.context.dtype, u.context.device, " ".join(c.id for c in u.checks)) for u in units]
    print_table(f"{len(units)} parts", ("implementation", "dtype", "device", "checks"), rows)


def _tell_missing(framework: str | None) -> None:
    from normcheck.implementations import left_out

    for line in left_out(framework):
        click.echo(f"Left out: {line}", err=True)


def _with_headings(page: str) -> str:
    """A page with its title and headings in bold, where the terminal can."""
    title, _, rest = page.partition("\n")
    return (
        click.style(title, bold=True) + "\n" + re.sub(r"(?m)^(\S.*)\n-+$", lambda match: click.style(match[1], bold=True), rest)
    )


def _cores() -> int:
    import joblib

    return int(joblib.cpu_count())
