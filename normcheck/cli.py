"""The command line: ``normcheck audit | check | merge | compare | history | hunt | list | explain | report | certify``."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

import normcheck
from normcheck import commands, past
from normcheck.console import print_table, progress
from normcheck.judging import EXIT_CODES, NEW_FILE, NEW_FOLDER, claiming, tell_missing
from normcheck.options import OptionError, implementation_of, one_of
from normcheck.stored import put
from normcheck.topics import TOPICS, listed

if TYPE_CHECKING:
    from normcheck.hunt import Hunt
    from normcheck.implementations import Implementation


class _Group(click.Group):
    """Turns what escapes a command into the documented exit codes, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; of a fatal signal, such as a segfault where user code is imported, it is told where it came."""
        if not faulthandler.is_enabled():
            with suppress(ValueError, OSError):  # where stderr is no file
                faulthandler.enable()
        try:
            with _terminable():
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


@contextmanager
def _terminable() -> Iterator[None]:
    """A context in which the first SIGTERM is what Ctrl-C is, unless the caller handles it; the next ends all."""
    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_DFL or threading.current_thread() is not threading.main_thread():
        yield
        return
    own = os.getpid()

    def stop(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, before)
        if os.getpid() != own:
            os.kill(os.getpid(), number)  # a child that the code has forked has nothing to write
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@click.group(cls=_Group, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(normcheck.__version__, prog_name="normcheck")
def main() -> None:
    """Hold implementations of normalization layers against the mathematics that they claim to compute."""


for command in (*commands.COMMANDS, *past.COMMANDS):
    main.add_command(command)


@main.command(
    epilog="""\b
Exit codes:
  0    no counterexample was found
  1    one was found
  2    wrong usage
  3    nothing was judged: no call came back
  130  interrupted, by Ctrl-C or SIGTERM; the corpus is written
"""
)
@claiming
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True, help="When to end.")
@click.option("--dtype", "dtypes", multiple=True, metavar="DTYPE", help="Only this dtype; can be repeated.")
@click.option("--device", default="cpu", show_default=True, metavar="DEVICE", help="Where to call it.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of all random inputs.")
@click.option("--corpus", "folder", type=NEW_FOLDER, help="Default: in the user's cache.")
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
        tell_missing(None)


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
        put(output, page)


@main.command()
@click.argument("source", metavar="AUDIT.JSON", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--to", "form", default="md", show_default=True, help="Format: md, html, json, xml (JUnit) or svg (a badge).")
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
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{source} is no audit: {error}") from None
    if output is None:
        click.echo(reporters.render(stored, suffix), nl=False)
    else:
        reporters.write(stored, output if output.suffix == suffix else output.with_name(output.name + suffix))


@main.command(
    epilog="""\b
Exit codes:
  0    no element differs
  1    one does
  2    wrong usage, or python-flint is not installed
  3    it could not run
  130  interrupted, by Ctrl-C or SIGTERM; nothing is written
"""
)
@click.option("--elements", type=click.IntRange(min=1), default=100_000, show_default=True, help="To compare, each way.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the rows.")
@click.option("-o", "--output", type=NEW_FILE, help="Write the counts to this JSON file.")
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
    click.echo(certificate.LEGEND)
    click.echo(certificate.verdict(found))
    if output is not None:
        certificate.write(found, output, elements=elements, seed=seed)
    raise click.exceptions.Exit(0 if found.passed else 1)


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
        put(output, page)
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


def _with_headings(page: str) -> str:
    """A page with its title and headings in bold, where the terminal can."""
    title, _, rest = page.partition("\n")
    return (
        click.style(title, bold=True) + "\n" + re.sub(r"(?m)^(\S.*)\n-+$", lambda match: click.style(match[1], bold=True), rest)
    )
