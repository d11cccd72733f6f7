"""The drawings of a report, by matplotlib where it is installed: a panel for each implementation, a colour for each dtype."""

from __future__ import annotations

import importlib.util
import io
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from normcheck.reporters import summary, text
from normcheck.reporters.summary import Judged
from normcheck.results import Result

Curve = Sequence[tuple[float, float]]

COLUMNS = 3
PANEL = (4.2, 2.7)
PANELS = 24  # of one picture
DPI = 120
CELL = (0.24, 0.19)
WORST = 1e4  # ulp at which the colours of the map end
UNSEEN = 2.0**-60  # a spread that no dtype can hold beside 1
POINTS = 18
MARKS = {
    "float64": ("#333333", "s", 7.0),
    "float32": ("#0072b2", "o", 5.0),
    "float16": ("#009e73", "v", 3.5),
    "bfloat16": ("#d55e00", "^", 2.5),
}
OTHER_MARK = ("#cc79a7", "D", 4.0)
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
    drawings = (_ulp_by_regime(audit), _condition_sweep(audit), _outlier_curve(audit), _eps_placement_curve(audit))
    return tuple(drawing for drawing in drawings if drawing is not None)


def _ulp_by_regime(audit: Judged) -> Drawing | None:
    """A map: implementations down, regimes across, one block for each dtype."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    errors = {(row.implementation, row.dtype): row.ulp for row in summary.ulps(audit)}
    if not errors:
        return None
    names, regimes = tuple(dict.fromkeys(name for name, _ in errors)), summary.regimes(audit)
    dtypes = tuple(dtype for dtype in summary.dtypes(audit) if any(dtype == measured for _, measured in errors))
    size = (3.0 + CELL[0] * len(regimes) * len(dtypes), 1.8 + CELL[1] * len(names))
    figure = Figure(figsize=size, layout="constrained", dpi=DPI)
    for axes, dtype in zip(figure.subplots(1, len(dtypes), sharey=True, squeeze=False)[0], dtypes, strict=True):
        table = [[errors.get((name, dtype), {}).get(regime) for regime in regimes] for name in names]
        image = axes.imshow(
            [[_colour(ulp) for ulp in line] for line in table],
            norm=LogNorm(0.5, WORST, clip=True),
            cmap="cividis_r",
            aspect="auto",
        )
        axes.set_title(_label(dtype), fontsize=9, parse_math=False)
        axes.set_xticks(range(len(regimes)), map(_label, regimes), rotation=90, fontsize=7, parse_math=False)
        axes.set_yticks(range(len(names)), map(_label, names), fontsize=7, parse_math=False)
        axes.tick_params(length=0)
        _write_values(axes, table)
    figure.colorbar(image, ax=figure.axes, label="worst error (ulp)", shrink=min(1.0, 3.0 / size[1]), pad=0.01)
    caption = (
        "Worst error over all shapes, in ulp of the output's dtype. Correct rounding gives at most 0.5. White: not measured."
    )
    return Drawing("ulp-by-regime", "Error in ulp by regime", caption, png(figure))


def _colour(ulp: float | None) -> float:
    """What the colour stands for: nothing where nothing was measured, the worst for an output that is NaN."""
    return math.nan if ulp is None else min(ulp, WORST) if ulp == ulp else WORST


def _write_values(axes: Any, table: Sequence[Sequence[float | None]]) -> None:
    for line, values in enumerate(table):
        for column, value in enumerate(values):
            if value is not None:
                ink = "black" if _colour(value) < math.sqrt(0.5 * WORST) else "white"
                axes.text(column, line, _short(value), ha="center", va="center", fontsize=5, color=ink)


def _short(value: float) -> str:
    """A figure in at most four characters."""
    if value >= 1e100:
        return ">e99"
    if value >= 1000:
        return f"{value:.0e}".replace("e+0", "e").replace("e+", "e")
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def _condition_sweep(audit: Judged) -> Drawing | None:
    results = _with_curves(audit, "condition-sweep")
    if not results:
        return None

    def panel(axes: Any, name: str) -> None:
        for result in _of(results, name):
            _line(axes, result.series.get("bound", ()), "-", f"bound in {result.dtype}", MARKS.get(result.dtype, OTHER_MARK)[0])
            _points(axes, result.series["measured"], result.dtype)

    caption = "Largest error of a row as its mean grows beside its standard deviation; the bound at the same element as a line."
    png = _panels(_names(results), panel, "mean / std of the row", "largest error")
    return Drawing("condition-sweep", "Error over mean / std", _told(caption, results), png)


def _outlier_curve(audit: Judged) -> Drawing | None:
    results = _with_curves(audit, "outlier-sensitivity")
    if not results:
        return None

    def panel(axes: Any, name: str) -> None:
        chosen = _of(results, name)
        expected = [(x, y) for x, y in _merged(chosen, "expected") if y >= UNSEEN]
        _line(axes, expected, "-", "closed form")
        for result in chosen:
            seen = {x for x, _ in expected} or {x for x, _ in result.series["measured"]}
            _points(axes, [(x, y) for x, y in result.series["measured"] if x in seen], result.dtype)

    caption = (
        "How far one outlier squeezes the other elements of its row together: measured, and the closed form as a line. "
        "Where a dtype cannot hold so small a spread beside the mean of the others, only rounding is left."
    )
    png = _panels(_names(results), panel, "size of the outlier", "spread of the others")
    return Drawing("outlier-curve", "Spread of the others beside one outlier", _told(caption, results), png)


def _eps_placement_curve(audit: Judged) -> Drawing | None:
    results = _with_curves(audit, "epsilon-placement")
    if not results:
        return None

    def panel(axes: Any, name: str) -> None:
        chosen = _of(results, name)
        for placement, style in PLACEMENTS.items():
            _line(axes, _merged(chosen, placement), style, placement)
        for result in chosen:
            _points(axes, result.series["measured"], result.dtype)

    caption = "Spread of the row over the denominator, measured, and what each placement of the claimed eps would give as lines."
    png = _panels(_names(results), panel, "spread of the row", "spread / denominator")
    return Drawing("epsilon-placement", "Where eps stands", _told(caption, results), png)


def _panels(names: Sequence[str], panel: Callable[[Any, str], None], xlabel: str, ylabel: str) -> bytes:
    """One panel with logarithmic scales for each of the first names, and one legend for all."""
    from matplotlib.figure import Figure

    names = names[:PANELS]
    columns = min(COLUMNS, len(names))
    lines = math.ceil(len(names) / columns)
    figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * lines + 0.8), layout="constrained", dpi=DPI)
    grid = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes, name in zip(grid, names, strict=False):
        panel(axes, name)
        axes.set(xscale="log", yscale="log")
        axes.set_title(_label(name), fontsize=7.5, parse_math=False)
        axes.grid(visible=True, color="#e5e5e5", linewidth=0.6)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid[len(names) :]:
        axes.remove()
    figure.supxlabel(xlabel, fontsize=9)
    figure.supylabel(ylabel, fontsize=9)
    _legend(figure, grid[: len(names)], 3 * columns)
    return png(figure)


def _legend(figure: Any, grid: Iterable[Any], columns: int) -> None:
    entries: dict[str, Any] = {}
    for axes in grid:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        figure.legend(entries.values(), entries.keys(), loc="outside upper center", ncols=columns, fontsize=8, frameon=False)


def png(figure: Any) -> bytes:
    """A figure as a PNG file; letters that the font lacks are boxes, and nobody is warned of them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name may hold letters that the font lacks
        FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()


def _points(axes: Any, curve: Curve, dtype: str) -> None:
    colour, marker, size = MARKS.get(dtype, OTHER_MARK)
    xs, ys = _drawable(curve[:: max(1, len(curve) // POINTS)])
    if xs:
        shape = {"markersize": size, "markerfacecolor": "none", "markeredgewidth": 0.9}
        axes.plot(xs, ys, marker, color=colour, label=_label(dtype), **shape)


def _line(axes: Any, curve: Curve, style: Any, label: str, colour: str = "#888888") -> None:
    xs, ys = _drawable(curve)
    if xs:
        axes.plot(xs, ys, linestyle=style, color=colour, linewidth=0.9, label=label, zorder=1)


def _drawable(curve: Curve) -> tuple[list[float], list[float]]:
    """What can stand on logarithmic scales."""
    points = [(x, y) for x, y in curve if 0 < x < math.inf and 0 < y < math.inf]
    return [x for x, _ in points], [y for _, y in points]


def _with_curves(audit: Judged, check: str) -> tuple[Result, ...]:
    """The first result with a measured curve of each implementation and dtype."""
    first: dict[tuple[str, str], Result] = {}
    for result in audit.results:
        if result.check == check and result.series.get("measured"):
            first.setdefault((result.implementation, result.dtype), result)
    widest = summary.dtypes(audit)
    return tuple(sorted(first.values(), key=lambda result: widest.index(result.dtype)))


def _merged(results: Iterable[Result], curve: str) -> list[tuple[float, float]]:
    """One curve from those of all dtypes, which differ only in where they were sampled."""
    return sorted({point for result in results for point in result.series.get(curve, ())})


def _of(results: Iterable[Result], name: str) -> list[Result]:
    return [result for result in results if result.implementation == name]


def _names(results: Iterable[Result]) -> tuple[str, ...]:
    """The implementations, those with a finding first."""
    return tuple(dict.fromkeys(r.implementation for r in sorted(results, key=lambda r: not r.outcome.finding)))


def _told(caption: str, results: Iterable[Result]) -> str:
    """The caption, and how many implementations there was no room for."""
    more = len(_names(results)) - PANELS
    return f"{caption} {summary.number(more, 'more implementation')} in report.html." if more > 0 else caption


def _label(name: str) -> str:
    line = text.plain(name)
    return line if len(line) <= 60 else f"{line[:28]}...{line[-29:]}"
