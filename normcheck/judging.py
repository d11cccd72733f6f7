"""What commands that judge share: their options, how they run, and how they end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

import normcheck
from normcheck.console import console, print_table, progress, unwritable
from normcheck.flags import JUDGING, Flag

if TYPE_CHECKING:
    from normcheck.audit import Audit, Unit
    from normcheck.engine.planning import Costs
    from normcheck.implementations import Implementation

EXIT_CODES = """\b
Exit codes:
  0    all as expected; warnings and known upstream faults included
  1    failures, or something broke, crashed or ran out of time; with --fail-on new only what the baseline has not
  2    wrong usage
  3    the audit itself could not run, nothing could be judged, nothing is in common with what it is held
       against, or a shard of what is merged is missing
  130  interrupted, by Ctrl-C or SIGTERM; what was measured until then is written
"""

Command = TypeVar("Command", bound=Callable[..., Any])


class _Quantity(click.ParamType):  # type: ignore[type-arg]
    """A number with a unit, such as 90s or 4G, as a number of the smallest unit."""

    def __init__(self, name: str, units: dict[str, int], example: str) -> None:
        self.name = name
        self._units = units
        self._example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; refused in one line."""
        if not isinstance(value, str):
            return value
        units = "|".join(self._units)
        parts = re.findall(rf"([\d.]+)({units})", value) if re.fullmatch(rf"(\d+\.?\d*({units}))+", value) else []
        total = sum(float(number) * self._units[unit] for number, unit in parts)
        if not total > 0:
            self.fail(f"{value!r} should be a number with a unit ({', '.join(self._units)}), such as {self._example}", param, ctx)
        return int(total) if total == int(total) else total


DURATION = _Quantity("time", {"s": 1, "m": 60, "h": 3600}, "90s or 1h30m")
SIZE = _Quantity("size", {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}, "4G")


class _Writable(click.Path):
    """A folder or file that is to be written: where it cannot be, that is told before anything is judged."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The folder or file; refused in one line."""
        path = Path(str(super().convert(value, param, ctx)))
        reason = unwritable(path if self.dir_okay else path.absolute().parent)
        if reason:
            self.fail(f"{str(path)!r} cannot be written: {reason}", param, ctx)
        return path


NEW_FOLDER = _Writable(file_okay=False, path_type=Path)
NEW_FILE = _Writable(dir_okay=False, writable=True, path_type=Path)


def judging(command: Command) -> Command:
    """Add the options of whatever judges."""
    options = (
        *map(_option, JUDGING),
        click.option("--workers", type=click.IntRange(min=1), help="Processes. Default: one for each core."),
        click.option("--isolation/--no-isolation", default=True, help="Run the code in this very process, for debuggers."),
        click.option("--time-limit", type=DURATION, metavar="TIME", help="For one check, such as 90s. Default: by the profile."),
        click.option("--memory-limit", type=SIZE, metavar="SIZE", help="Of a worker process, such as 4G. Default: what is free."),
        click.option("--fail-on-warning", is_flag=True, help="Warnings count as failures."),
        click.option("--strict-ledger", is_flag=True, help="Known upstream faults that no longer show count as failures."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def claiming(command: Command) -> Command:
    """Add the argument and the options that say what a function of the user's claims to compute."""
    options = (
        click.argument("target"),
        click.option("--norm", "norm_name", metavar="NORM", help="What it claims to compute, such as rms_norm."),
        click.option("--node", metavar="NAME", help="Which norm of an ONNX model, where it has several."),
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
        click.option("--init", multiple=True, metavar="KEY=VALUE", help="An argument of a class's constructor; can be repeated."),
        click.option(
            "--width", "widths", type=click.IntRange(min=1), multiple=True, metavar="N", help="Only rows of this width."
        ),
        click.option(
            "--rank", "ranks", type=click.IntRange(min=1), multiple=True, metavar="N", help="Only x of this rank: 4 for images."
        ),
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


@contextmanager
def one_line() -> Iterator[None]:
    """A context in which what keeps an audit from running is told in one line, exit code 3."""
    from normcheck.engine.journal import JournalError
    from normcheck.engine.lanes import EngineError

    try:
        yield
    except (JournalError, EngineError) as error:
        click.echo(f"normcheck could not run: {error}", err=True)
        raise click.exceptions.Exit(3) from None


def run(implementations: Sequence[Implementation], plan: dict[str, Any]) -> tuple[Audit | None, bool]:
    """The audit, behind a progress bar, and whether it was interrupted; then it holds what was judged until that moment."""
    try:
        with one_line(), progress() as moved:
            return normcheck.audit(implementations, progress=moved, **plan), False
    except KeyboardInterrupt as stop:
        return getattr(stop, "audit", None), True  # also where it came before or after the audit


def workers_of(workers: int | None, isolation: bool) -> int:
    """How many processes: as asked, or one for each core; one where the code is to run in this process.

    Raises
    ------
    UsageError : for several without isolation
    """
    import joblib

    if workers is not None and workers > 1 and not isolation:
        raise click.UsageError(f"--workers {workers} goes with worker processes, and not with --no-isolation")
    return workers or (int(joblib.cpu_count()) if isolation else 1)


def finish(
    audit: Audit | None,
    interrupted: bool,
    output: Path | None,
    *,
    fail_on_warning: bool = False,
    strict_ledger: bool = False,
    known: Callable[[Audit], bool] | None = None,
    lacking: str = "",
) -> None:
    """Show and write the audit, and exit with the code that it deserves.

    Parameters
    ----------
    output : folder of the report, or None
    known : tells whether the baseline has all that is bad, in which case it does not count; None without one
    lacking : what keeps the audit from being whole; exit code 3

    Raises
    ------
    Exit : always, unless the audit was interrupted
    KeyboardInterrupt : if it was
    """
    from normcheck import reporters
    from normcheck.reporters import github, terminal
    from normcheck.results import Outcome

    if audit is not None and audit.results:
        screen = console()
        screen.print(terminal.render(audit))
        for written in reporters.write_folder(audit, output) if output is not None else ():
            screen.print(f"Written: {written}", highlight=False, markup=False, soft_wrap=True)
        for line in github.announce(audit):
            click.echo(line)
    if interrupted or audit is None:
        raise KeyboardInterrupt
    if lacking:
        click.echo(f"The audit is not whole: {lacking}.", err=True)
        raise click.exceptions.Exit(3)
    outcomes = {result.outcome for result in audit.results}
    counted = {Outcome.WARNED} if fail_on_warning else set()
    counted |= {Outcome.XPASSED} if strict_ledger else set()
    if outcomes <= {Outcome.SKIPPED}:
        reasons = Counter(result.message for result in audit.results).most_common(1)
        reason = reasons[0][0] if reasons else "no check applies to what was chosen"
        click.echo(f"Nothing was judged: {reason}.", err=True)
        raise click.exceptions.Exit(3)
    passed = audit.passed if known is None else known(audit)
    raise click.exceptions.Exit(0 if passed and not outcomes & counted else 1)


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
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{path} is no audit: {error}") from None


def print_plan(units: Sequence[Unit], costs: Costs | None = None) -> None:
    """What would be judged, one line for each unit, with the time that it may take."""
    rows = []
    for unit in units:
        context = unit.context
        about = () if costs is None else (lasting(costs.total([unit])),)
        rows.append((context.implementation.name, context.dtype, context.device, *about, " ".join(c.id for c in unit.checks)))
    from normcheck.reporters.summary import number as counted

    time = () if costs is None else ("about",)
    print_table(counted(len(units), "part"), ("implementation", "dtype", "device", *time, "checks"), rows)


def lasting(seconds: float) -> str:
    """A time in words: two figures are enough of what is only expected."""
    if seconds < 99.5:
        return f"{seconds:.2g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def tell_missing(framework: str | None) -> None:
    """Say which packages are missing, on the error stream."""
    from normcheck.implementations import left_out

    for line in left_out(framework):
        click.echo(f"Left out: {line}", err=True)
