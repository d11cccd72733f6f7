"""The drawings of a report, by matplotlib where it is installed: a panel for each implementation, a colour for each dtype."""

from __future__ import annotations

import importlib.util
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from normcheck.reporters import summary, text
from normcheck.reporters.summary import Judged
from normcheck.results import Result

Curve = Sequence[tuple[float, float]]

COLUMNS = 3
PANEL = (4.2, 2.7)
COLOURS = {"float64": "#333333", "float32": "#0072b2", "bfloat16": "#d55e00", "float16": "#009e73"}
OTHER_COLOUR = "#cc79a7"
MARKERS = {"float64": "s", "float32": "o", "bfloat16": "^", "float16": "v"}
PLACEMENTS = {"inside": "-", "outside": "--", "max": "-.", "max_inside": ":", "none": (0, (1, 3))}


@dataclass(frozen=True)
class Drawing:
    """One picture of a report.

    Attributes
    ----------
    name : part of the file's name
    title, caption : what it shows, in words
    png : the picture itself
    """

    name: str
    title: str
    caption: str
    png: bytes


def missing() -> str:
    """Why there can be no plots, or nothing if there can."""
    return "" if importlib.util.find_spec("matplotlib") else "No plots: matplotlib is missing [pip install 'normcheck[plots]']"


def draw(audit: Judged) -> tuple[Drawing, ...]:
    """The drawings for which the audit has figures; none without matplotlib."""
    if missing():
        return ()
    drawings = (_ulp_by_regime(audit), _outlier_curve(audit), _eps_placement_curve(audit))
    return tuple(drawing for drawing in drawings if drawing is not None)


def _ulp_by_regime(audit: Judged) -> Drawing | None:
    errors = summary.ulps(audit)
    if not errors:
        return None
    regimes, dtypes = summary.regimes(audit), summary.dtypes(audit)

    def panel(axes: Any, name: str) -> None:
        for row in (row for row in errors if row.implementation == name):
            shift = 0.16 * (dtypes.index(row.dtype) - (len(dtypes) - 1) / 2)
            shown = [(row.ulp[regime], place + shift) for place, regime in enumerate(regimes) if regime in row.ulp]
            _points(axes, [(ulp, place) for ulp, place in shown if math.isfinite(ulp)], row.dtype)
        axes.axvline(0.5, color="#999999", linewidth=0.8)
        axes.set_xscale("symlog", linthresh=1.0, linscale=0.4)
        axes.set_xlim(left=0)
        axes.set_yticks(range(len(regimes)), regimes, fontsize=7)
        axes.set_ylim(len(regimes) - 0.5, -0.5)

    caption = (
        "The worst error over all shapes, in ulp of the output's dtype; the line, at 0.5, is correct rounding. "
        "Errors that are not finite are left out."
    )
    height = 0.9 + 0.17 * len(regimes)
    png = _panels(_names(row.implementation for row in errors), panel, "worst error (ulp)", "", height)
    return Drawing("ulp-by-regime", "Error in ulp by regime", caption, png)


def _outlier_curve(audit: Judged) -> Drawing | None:
    results = _with_curves(audit, "outlier-sensitivity")
    if not results:
        return None

    def panel(axes: Any, name: str) -> None:
        for result in _of(results, name):
            _line(axes, result.series.get("expected", ()), "-", "closed form")
            _points(axes, result.series["measured"], result.dtype)
        axes.set_xscale("log")
        axes.set_yscale("log")

    caption = "How far one outlier squeezes the other elements of its row together: measured, and the closed form as a line."
    png = _panels(_names(result.implementation for result in results), panel, "size of the outlier", "spread of the others")
    return Drawing("outlier-curve", "Spread of the others beside one outlier", caption, png)


def _eps_placement_curve(audit: Judged) -> Drawing | None:
    results = _with_curves(audit, "epsilon-placement")
    if not results:
        return None

    def panel(axes: Any, name: str) -> None:
        for result in _of(results, name):
            for placement, style in PLACEMENTS.items():
                _line(axes, result.series.get(placement, ()), style, placement)
            _points(axes, result.series["measured"], result.dtype)
        axes.set_xscale("log")
        axes.set_yscale("log")

    caption = "Output spread over input spread where eps matters: measured, and what each placement of eps would give as lines."
    png = _panels(_names(result.implementation for result in results), panel, "spread of the input", "gain")
    return Drawing("epsilon-placement", "Where eps stands", caption, png)


def _panels(names: Sequence[str], panel: Callable[[Any, str], None], xlabel: str, ylabel: str, height: float = PANEL[1]) -> bytes:
    """One panel for each name, all with the same scales, and one legend for all."""
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(names))
    lines = math.ceil(len(names) / columns)
    figure = Figure(figsize=(PANEL[0] * columns, height * lines + 0.5), layout="constrained", dpi=120)
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for axes, name in zip(grid, names, strict=False):
        panel(axes, name)
        axes.set_title(_label(name), fontsize=8, parse_math=False)
        axes.grid(visible=True, color="#e5e5e5", linewidth=0.6)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid[len(names) :]:
        axes.remove()
    figure.supxlabel(xlabel, fontsize=9)
    figure.supylabel(ylabel, fontsize=9)
    _legend(figure, grid[: len(names)])
    return _png(figure)


def _legend(figure: Any, grid: Iterable[Any]) -> None:
    entries: dict[str, Any] = {}
    for axes in grid:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        figure.legend(entries.values(), entries.keys(), loc="outside upper center", ncols=len(entries), fontsize=8, frameon=False)


def _png(figure: Any) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()


def _points(axes: Any, curve: Curve, dtype: str) -> None:
    xs, ys = [x for x, _ in curve], [y for _, y in curve]
    colour, marker = COLOURS.get(dtype, OTHER_COLOUR), MARKERS.get(dtype, "D")
    axes.plot(xs, ys, marker, color=colour, markersize=4.5, markerfacecolor="none", label=dtype, markeredgewidth=1.1)


def _line(axes: Any, curve: Curve, style: Any, label: str) -> None:
    if curve:
        axes.plot(
            [x for x, _ in curve], [y for _, y in curve], linestyle=style, color="#888888", linewidth=0.9, label=label, zorder=1
        )


def _with_curves(audit: Judged, check: str) -> tuple[Result, ...]:
    """The first result with a measured curve of each implementation and dtype."""
    first: dict[tuple[str, str], Result] = {}
    for result in audit.results:
        if result.check == check and result.series.get("measured"):
            first.setdefault((result.implementation, result.dtype), result)
    return tuple(first.values())


def _of(results: Iterable[Result], name: str) -> list[Result]:
    return [result for result in results if result.implementation == name]


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _label(name: str) -> str:
    line = text.plain(name)
    return line if len(line) <= 48 else f"{line[:22]}...{line[-23:]}"
