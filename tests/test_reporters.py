"""Reports say what the results say, and nothing that user code names can break them."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from normcheck import reporters
from normcheck.reporters import catalogue, plots, summary, terminal
from normcheck.results import Outcome, Result

HOSTILE = "evil|`name`\n# heading\n```\n<script>*x*\x1b[31m[bold]"


def _shown(audit: Any, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(terminal.render(audit))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def _section(page: str, title: str) -> str:
    return page.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def _tables(page: str) -> list[list[str]]:
    """The tables of a page that stand outside code blocks, each as its lines."""
    prose = re.sub(r"(?ms)^(`{3,})\w*$.*?^\1$", "", page)
    return [block.splitlines() for block in re.findall(r"(?m)(?:^\|.*\n)+", prose)]


def _parsed(page: str) -> list[str]:
    """The kinds of a page's parts, as a Markdown parser sees them; tags that are not the report's own are shown."""
    tokens = MarkdownIt("commonmark").enable("table").parse(page)
    inner = [child for token in tokens for child in token.children or ()]
    assert {child.content for child in inner if child.type == "html_inline"} <= {"<code>", "</code>"}
    return [token.type for token in (*tokens, *inner)]


def _hostile(audit: Any) -> Any:
    changed = {"implementation": HOSTILE, "message": HOSTILE, "norm": HOSTILE, "regime": HOSTILE, "ledger": HOSTILE}
    results = []
    for result in audit.results:
        witness = result.witness and dataclasses.replace(result.witness, snippet=HOSTILE, got=HOSTILE, expected=HOSTILE)
        results.append(dataclasses.replace(result, **changed, witness=witness))
    return dataclasses.replace(audit, results=tuple(results), grades={(HOSTILE, "float32"): "F"}, born={"command": HOSTILE})


def test_suffix_chooses_the_format(audit: Any, tmp_path: Path) -> None:
    """A report is written in the format of its suffix, in a folder that is made for it."""
    for suffix, start in ((".md", "# Numerical audit"), (".json", "{")):
        path = reporters.write(audit, tmp_path / "new" / f"report{suffix}")
        assert path.read_text(encoding="utf-8").startswith(start)


def test_unknown_suffix_is_refused(audit: Any, tmp_path: Path) -> None:
    """A suffix of no format raises ValueError that names those there are."""
    with pytest.raises(ValueError, match=r"suffix='.pdf', but should be one of .svg, .html, .json, .xml, .md"):
        reporters.write(audit, tmp_path / "report.pdf")


def test_verdict_leads_the_report(audit: Any) -> None:
    """The first thing a reader sees is how many implementations fail."""
    page = reporters.render(audit, ".md")
    assert "1 of 3 implementations fails, in 28 results; 1 with warnings, 1 with known upstream faults." in page
    assert (
        page.index("1 of 3 implementations") < page.index("## Grades") < page.index("## Errors") < page.index("## Error in ulp")
    )


def test_verdict_of_a_clean_and_of_an_empty_audit(audit: Any) -> None:
    """All well is said as such; an audit of skips alone judged nothing."""
    passed = tuple(r for r in audit.results if r.outcome is Outcome.PASSED)
    skipped = tuple(r for r in audit.results if r.outcome is Outcome.SKIPPED)
    assert summary.verdict(dataclasses.replace(audit, results=passed)) == "All 2 implementations pass, in 24 results."
    assert summary.verdict(dataclasses.replace(audit, results=passed[:3])) == "The implementation passes, in 3 results."
    known = tuple(r for r in audit.results if r.outcome in (Outcome.PASSED, Outcome.XFAILED))
    told = summary.verdict(dataclasses.replace(audit, results=known))
    assert told == "Of 2 implementations 1 passes, and 1 fails only as the ledger of upstream faults says, in 25 results."
    failed = tuple(r for r in audit.results if r.outcome is Outcome.FAILED)
    assert summary.verdict(dataclasses.replace(audit, results=failed)) == "The implementation fails, in 2 results."
    assert summary.verdict(dataclasses.replace(audit, results=skipped)) == "Nothing was judged."


def test_what_was_not_judged_stands_below(audit: Any) -> None:
    """An implementation whose device is missing keeps its row, but no reader has to scroll past it."""
    first = audit.results[0].implementation
    skipped = tuple(dataclasses.replace(r, outcome=Outcome.SKIPPED) if r.implementation == first else r for r in audit.results)
    rows = summary.rows(dataclasses.replace(audit, results=skipped))
    assert [row.judged for row in rows] == sorted((row.judged for row in rows), reverse=True)
    assert [row.judged for row in rows if row.implementation == first] == [False]
    assert {row.implementation for row in rows} == {row.implementation for row in summary.rows(audit)}


def test_grades_stand_beside_implementation_and_dtype(audit: Any) -> None:
    """The matrix has one row for each implementation and one column for each dtype, widest first."""
    lines = _tables(_section(reporters.render(audit, ".md"), "Grades"))[0]
    assert lines[0].startswith("| implementation | norm | float32 | bfloat16 | errors |")
    assert "| `lib.group_norm` | `GroupNorm` | F |  | 2 | 0 | 0 | 0 | 0 |" in lines
    assert "| `lib.layer_norm` | `LayerNorm` | A | A | 0 | 1 | 1 | 12 | 0 |" in lines


def test_finding_shows_its_worst_result_and_witness(audit: Any) -> None:
    """A finding has its worst message, every place with error and tolerance, and a snippet to paste."""
    page = _section(reporters.render(audit, ".md"), "Errors")
    assert "`y=3.0, but should be 0.0 [lib.group_norm(x)]`" in page
    assert "lesser" not in page
    assert "| float32 | large-mean | 2 x 8 x 16 | 3 | 0.0001 | absolute | 3e+04 |" in page
    assert "| float32 | standard | 2 x 8 x 16 | 0.0002 | 0.0001 | absolute | 2 |" in page
    assert "```python\nimport numpy as np\nprint(lib.group_norm(np.ones(4)))\n```" in page
    assert "Got `0x1.8p+1` (3), but should be `0x0.0p+0` (0) at element 2 of the row." in page


def test_each_outcome_has_its_section(audit: Any) -> None:
    """Warnings, known upstream faults with what the ledger says, and skips with reasons are told apart."""
    page = reporters.render(audit, ".md")
    assert "overflow: `lib.layer_norm`" in _section(page, "Warnings")
    assert "Known: single pass, see &#35;1" in _section(page, "Known upstream faults")
    assert "| jax is missing &#91;pip install jax&#93; | 2 | output-form | `jax.rms_norm`, `jax.layer_norm` |" in _section(
        page, "What was not judged"
    )


def test_shortest_witness_is_shown(audit: Any) -> None:
    """Of all witnesses of a finding, a reader sees the one that is shortest to paste."""
    failed = next(r for r in audit.results if r.outcome is Outcome.FAILED)
    longer = dataclasses.replace(failed, error=9.0, witness=dataclasses.replace(failed.witness, snippet="long\n" * 99))
    page = _section(reporters.render(dataclasses.replace(audit, results=(longer, failed)), ".md"), "Errors")
    assert "lib.group_norm(np.ones(4))" in page
    assert "long" not in page


def test_twins_are_one_finding(audit: Any) -> None:
    """Implementations that show the very same, as a module and its function do, share one finding."""
    warned = next(r for r in audit.results if r.outcome is Outcome.WARNED)
    twin = dataclasses.replace(warned, implementation="lib.LayerNorm")
    other = dataclasses.replace(warned, implementation="lib.other", message="another")
    found = summary.warnings(dataclasses.replace(audit, results=(warned, twin, other)))
    assert [finding.implementations for finding in found] == [("lib.layer_norm", "lib.LayerNorm"), ("lib.other",)]


@pytest.mark.parametrize("error", [float("nan"), float("inf")])
def test_error_that_is_no_number_is_the_worst(audit: Any, error: float) -> None:
    """NaN and infinite errors are worse than any finite one, in findings and in the table of ulps."""
    failed = [r for r in audit.results if r.outcome is Outcome.FAILED]
    changed = dataclasses.replace(failed[1], error=error, message="not finite", measures={"ulp": error})
    found = summary.errors(dataclasses.replace(audit, results=(failed[0], changed)))
    assert found[0].worst.message == "not finite"
    finite = dataclasses.replace(changed, measures={"ulp": 1.0})
    rows = summary.ulps(dataclasses.replace(audit, results=(changed, finite)))
    assert str(rows[0].ulp["standard"]) == str(error)


def test_ulps_stand_by_regime(audit: Any) -> None:
    """The table has the worst error in ulp by regime, and the least share of correctly rounded outputs."""
    lines = _tables(_section(reporters.render(audit, ".md"), "Error in ulp by regime"))[0]
    assert lines[0] == "| implementation | dtype | correctly rounded | standard | large-mean | outlier | tiny |"
    assert "| `lib.rms_norm` | bfloat16 | 90.0 % | 0.7 | 31 | 1.3 | 2 |" in lines


def test_report_says_how_to_repeat_it(audit: Any) -> None:
    """Command, seed and versions stand at the end."""
    page = _section(reporters.render(audit, ".md"), "How to repeat it")
    assert "```sh\nnormcheck audit --seed 7\n```" in page
    assert "| seed | `7` |" in page
    assert "| versions lib | `1.0` |" in page


def test_long_findings_are_cut(audit: Any) -> None:
    """A finding lists its worst places and says how many more there are."""
    failed = next(r for r in audit.results if r.outcome is Outcome.FAILED)
    many = tuple(dataclasses.replace(failed, regime=f"r{k}") for k in range(20))
    page = _section(reporters.render(dataclasses.replace(audit, results=many), ".md"), "Errors")
    assert "And 12 more, which audit.json holds." in page


def test_hostile_names_break_no_markdown(audit: Any) -> None:
    """Bars, backticks, headings, fences, HTML and control characters from user code leave tables, headings and blocks whole."""
    page = reporters.render(_hostile(audit), ".md")
    assert "\x1b" not in page
    expected, parsed = (_parsed(page) for page in (reporters.render(audit, ".md"), page))
    for kind in ("table_open", "thead_open", "heading_open", "fence", "strong_open", "em_open"):
        assert parsed.count(kind) == expected.count(kind), kind
    assert not {"html_block", "link_open"} & set(parsed)
    for lines in _tables(page):
        assert len({line.count("|") for line in lines}) == 1, lines


@pytest.mark.parametrize("suffix", [".md", ".html", ".json", ".xml", ".svg"])
def test_a_lone_surrogate_breaks_no_report(audit: Any, tmp_path: Path, suffix: str) -> None:
    """Text of user code that UTF-8 cannot hold is written with its lone surrogates escaped, and shown so."""
    odd = {"implementation": "n\ud800", "message": "said \ud800", "norm": "n\ud800", "regime": "r\ud800", "dtype": "d\ud800"}
    results = tuple(
        dataclasses.replace(r, **odd, witness=r.witness and dataclasses.replace(r.witness, snippet="x\ud800"))
        for r in audit.results
    )
    changed = dataclasses.replace(audit, results=results, grades={("n\ud800", "d\ud800"): "F"}, born={"command": "c\ud800"})
    written = reporters.write(changed, tmp_path / f"report{suffix}").read_text(encoding="utf-8")
    assert "ud800" in written or suffix == ".svg"
    assert "said \\ud800" in _shown(changed)


def test_hostile_names_reach_the_terminal_as_text(audit: Any) -> None:
    """The terminal shows markup and control characters from user code as plain text."""
    shown = _shown(_hostile(audit))
    assert "\x1b" not in shown
    assert "[bold]" in shown


def test_json_is_strict_and_has_one_result_a_line(audit: Any) -> None:
    """Numbers that JSON lacks are strings, results restore, and each stands on its own line."""
    odd = dataclasses.replace(audit.results[0], error=float("nan"))
    text = reporters.render(dataclasses.replace(audit, results=(odd, *audit.results[1:])), ".json")
    data = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert data["results"][0]["error"] == "nan"
    assert tuple(Result.from_dict(r) for r in data["results"][1:]) == audit.results[1:]
    assert sum(line.startswith('{"check"') for line in text.splitlines()) == len(audit.results)


def test_terminal_shows_grades_and_findings(audit: Any) -> None:
    """The terminal has the grades, each finding with its message, and the verdict last."""
    shown = _shown(audit)
    assert re.search(r"lib\.group_norm +F +2 +0 +0 +0 +0", shown)
    assert "failed accuracy: lib.group_norm (float32; 2 results)" in shown
    assert "y=3.0, but should be 0.0 [lib.group_norm(x)]" in shown
    assert shown.strip().endswith(summary.verdict(audit))


def test_plots_lie_beside_the_report(audit: Any, tmp_path: Path) -> None:
    """Each plot is a PNG file next to the report, which shows it."""
    page = reporters.write(audit, tmp_path / "report.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page)
    assert shown == ["report-ulp-by-regime.png", "report-outlier-curve.png", "report-epsilon-placement.png"]
    for name in shown:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_plots_of_many_implementations_are_cut(audit: Any) -> None:
    """A picture has so many panels and no more; those with a finding come first, and the caption counts the others."""
    curve = next(r for r in audit.results if r.check == "outlier-sensitivity")
    many = [dataclasses.replace(curve, implementation=f"lib.n{k}") for k in range(30)]
    many[-1] = dataclasses.replace(many[-1], outcome=Outcome.FAILED)
    assert plots._names(many)[0] == "lib.n29"
    (drawing,) = plots.draw(dataclasses.replace(audit, results=tuple(many)))
    assert drawing.caption.endswith("6 more implementations in report.html.")


def test_plots_need_figures(audit: Any) -> None:
    """Nothing is drawn where nothing was measured."""
    bare = tuple(dataclasses.replace(r, measures={}, series={}) for r in audit.results)
    assert plots.draw(dataclasses.replace(audit, results=bare)) == ()


def test_plots_take_figures_that_are_not_finite(audit: Any) -> None:
    """Infinite errors, zeros and NaN in curves are drawn as far as they can be."""
    odd = [(1.0, 0.0), (10.0, float("nan")), (100.0, float("inf"))]
    changed = [
        dataclasses.replace(r, measures={"ulp": float("inf")} if r.measures else {}, series=dict.fromkeys(r.series, odd))
        for r in audit.results
    ]
    assert len(plots.draw(dataclasses.replace(audit, results=tuple(changed)))) == 3


def test_plots_take_any_name(audit: Any) -> None:
    """Names with letters that no font has, or with the marks of a formula, are drawn without complaint."""
    named = tuple(dataclasses.replace(r, implementation="\u6e2c$\\frac{\u8a66_") for r in audit.results)
    assert len(plots.draw(dataclasses.replace(audit, results=named))) == 3


def test_missing_matplotlib_is_said(audit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without matplotlib the report is whole, and says how to get the plots."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else find(name, *rest))
    page = reporters.write(audit, tmp_path / "report.md").read_text(encoding="utf-8")
    assert "No plots: matplotlib is missing" in _section(page, "Plots")
    assert list(tmp_path.iterdir()) == [tmp_path / "report.md"]


@dataclasses.dataclass(frozen=True)
class _Page:
    id: str
    doc: str
    family: str


def test_catalogue_keeps_mathematics_literal() -> None:
    """Pages become sections; a star outside code is a star, code stays as it is."""
    doc = "Nothing changes.\n\nStatement\n---------\ny = 2*u*x < ``a*b``\n\n    code * 2"
    page = catalogue.render([_Page("b-check", doc, "second"), _Page("a-check", "A.", "first")])
    assert page.index("## first") < page.index("### a-check") < page.index("## second") < page.index("### b-check")
    assert "#### Statement\n\ny = 2\\*u\\*x \\< ``a*b``\n\n    code * 2" in page


@dataclasses.dataclass(frozen=True)
class _Broken:
    name: str
    expected: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class _Known:
    check: str
    text: str


def test_catalogue_says_what_each_check_caught() -> None:
    """Faults stand with every check that finds them, known faults of libraries once with the check that fails."""
    pages = [_Page("a-check", "A.", "first"), _Page("b-check", "B.", "first")]
    faults = [_Broken("wrong", ("a-check",)), _Broken("worse", ("b-check", "a-check"))]
    page = catalogue.render(pages, faults, 2 * [_Known("b-check", "E[x**2] [lib <2]")])
    _, first, second = page.split("\n### ")
    assert "#### What it caught\n\nOf the zoo, 2: worse, wrong.\n\n[Source](../normcheck/checks/first.py)" in first
    assert "Of the zoo, 1: worse.\n\nIn released libraries:\n\n- E[x\\*\\*2] [lib \\<2]\n\n[Source]" in second


def test_catalogue_begins_with_a_table() -> None:
    """Every check has a row that links to its page; what caught nothing does not say so."""
    page = catalogue.render([_Page("a-check", "y = 2*x.\n\nMore.", "first")])
    assert "| [a-check](#a-check) | y = 2\\*x. | first |" in page
    assert "What it caught" not in page.partition("## first")[2]
