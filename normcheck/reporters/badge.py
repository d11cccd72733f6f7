"""A badge for a README: one line of SVG that says how an audit ended."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from normcheck.reporters import summary
from normcheck.reporters.summary import Judged
from normcheck.results import Outcome
from normcheck.stored import put

SUFFIX = ".svg"
GREEN, YELLOW, RED, GREY = "#1a7f37", "#8a5a00", "#b31d28", "#57606a"
_LABEL = "normcheck"
_LETTER, _PAD = 6.6, 8.0  # width of a letter and of the margins, in pixels


def write(audit: Judged, path: Path) -> None:
    """Write the badge."""
    put(path, render(audit))


def render(audit: Judged) -> str:
    """The badge as SVG: red where something fails, yellow where there are warnings or known upstream faults, else green."""
    said, colour = _said(audit)
    left, right = (len(part) * _LETTER + 2 * _PAD for part in (_LABEL, said))
    title = escape(f"{_LABEL}: {said}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right:.0f}" height="20" role="img" '
        f"aria-label={quoteattr(f'{_LABEL}: {said}')}>\n"
        f"<title>{title}</title>\n"
        f'<rect width="{left + right:.0f}" height="20" rx="3" fill="#24292f"/>\n'
        f'<path d="M{left:.0f} 0h{right - 3:.0f}a3 3 0 0 1 3 3v14a3 3 0 0 1 -3 3h-{right - 3:.0f}z" fill="{colour}"/>\n'
        f'<g fill="#ffffff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">\n'
        f"{_text(_LABEL, left / 2, left)}\n{_text(said, left + right / 2, right)}\n</g>\n</svg>\n"
    )


def _text(said: str, middle: float, width: float) -> str:
    return f'<text x="{middle:.1f}" y="14" textLength="{width - 2 * _PAD:.1f}">{escape(said)}</text>'


def _said(audit: Judged) -> tuple[str, str]:
    judged = [row for row in summary.rows(audit) if row.judged]
    failing = sum(1 for row in judged if row.bad)
    if not judged:
        return "nothing judged", GREY
    if failing:
        return f"{failing} of {len(judged)} failing", RED
    noted = any(row.counts.get(outcome) for row in judged for outcome in (Outcome.WARNED, Outcome.XFAILED, Outcome.XPASSED))
    return f"{len(judged)} passing", YELLOW if noted else GREEN
