"""Errors over time: a picture for each implementation, a line for each dtype, by matplotlib where it is installed."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from normcheck.reporters.plots import MARKS, OTHER_MARK, missing, png
from normcheck.reporters.text import plain
from normcheck.stored import put


class Point(Protocol):
    """What is drawn of one audit."""

    @property
    def audit(self) -> str:
        """The name of its file."""

    @property
    def ulp(self) -> float | None:
        """The largest error, if one was measured."""

    @property
    def bits(self) -> tuple[str, ...]:
        """Digests of the outputs."""


class Trend(Protocol):
    """What is drawn of one task."""

    @property
    def implementation(self) -> str:
        """Its name."""

    @property
    def dtype(self) -> str:
        """Its dtype."""

    @property
    def points(self) -> Iterable[Point]:
        """Audit after audit."""


def draw(trends: Iterable[Trend], folder: Path) -> tuple[Path, ...]:
    """Draw the largest error of each implementation and dtype over the audits; a ring stands where bits changed.

    Parameters
    ----------
    folder : where the pictures are written; it is made

    Returns
    -------
    the files; none without matplotlib, or where no error was measured
    """
    if missing():
        return ()
    measured: dict[str, dict[str, Trend]] = {}
    for trend in trends:
        if any(point.ulp is not None for point in trend.points):
            measured.setdefault(trend.implementation, {})[trend.dtype] = trend
    folder.mkdir(parents=True, exist_ok=True)
    return tuple(_picture(name, of_dtype, folder) for name, of_dtype in measured.items())


def _picture(name: str, of_dtype: Mapping[str, Trend], folder: Path) -> Path:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    path = folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('-.')}.png"
    with rc_context({"text.parse_math": False}):  # names are no formulas
        figure = Figure(figsize=(7.0, 3.5), dpi=120, layout="constrained")
        _lines(figure, name, of_dtype)
        put(path, png(figure))
    return path


def _lines(figure: Any, name: str, of_dtype: Mapping[str, Trend]) -> None:
    axes = figure.add_subplot()
    for dtype, trend in of_dtype.items():
        colour, mark, _ = MARKS.get(dtype, OTHER_MARK)
        points = [point for point in trend.points if point.ulp is not None]
        axes.plot(_names(points), _ulps(points), color=colour, marker=mark, markersize=4, label=plain(dtype))
        changed = [p for before, p in itertools.pairwise(points) if p.bits != before.bits]
        axes.plot(_names(changed), _ulps(changed), "o", color=colour, markersize=10, fillstyle="none")
    axes.set_yscale("log")
    axes.set_ylabel("largest error, ulp")
    axes.set_title(plain(name), fontsize=9)
    axes.tick_params(axis="x", rotation=30, labelsize=7)
    axes.legend(fontsize=7)


def _names(points: Iterable[Point]) -> list[str]:
    return [plain(point.audit) for point in points]


def _ulps(points: Iterable[Point]) -> list[float]:
    return [math.nan if point.ulp is None else point.ulp for point in points]
