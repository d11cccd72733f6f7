"""The terminal: tables and a progress bar."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 140  # where the output is no terminal


def console(stderr: bool = False) -> Console:
    """The terminal, or what it is sent to, which is wide enough for a table."""
    from rich.console import Console

    made = Console(stderr=stderr)
    return made if made.is_terminal else Console(stderr=stderr, width=max(WIDTH, made.width))


def unwritable(folder: Path) -> str:
    """Why a folder cannot be made or written into, or ``""``."""
    above = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not above.is_dir():
        return f"{above} is a file"
    return "" if os.access(above, os.W_OK | os.X_OK) else f"{above} may not be written"


@contextmanager
def progress() -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar, as the function that moves it."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from normcheck.reporters.text import plain

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, label: bar.update(task, completed=done, total=total, description=plain(label))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows of cells below their columns' names; the first column is not broken."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from normcheck.reporters.text import listing

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=i == 0)
    for row in rows:
        table.add_row(*(Text(listing(cell)) for cell in row))
    console().print(table)
