"""The HTML page, JUnit XML, the badge and what GitHub shows: each says what the results say, and user code breaks none."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from normcheck import reporters
from normcheck.reporters import github, html, summary
from normcheck.results import Outcome, Result

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&]]>::error::%0A\x1b[31m\u202e|`\ufffe"


class Page(HTMLParser):
    """A page as a browser takes it apart: its elements, and the text that stands outside scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.shown = ""
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep an element."""
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        self.scripts += [""] * (tag == "script")

    def handle_endtag(self, tag: str) -> None:
        """Leave an element."""
        self._inside = ""

    def handle_data(self, data: str) -> None:
        """Keep text."""
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.shown += data

    @property
    def data(self) -> Any:
        """What the page's script is given."""
        return json.loads(self.scripts[0])


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if plotly were not installed, whose five megabytes no test here needs."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "plotly" else find(name, *rest))


def hostile(audit: Any) -> Any:
    """The audit with every text that can come from outside replaced."""
    changed = dict.fromkeys(("implementation", "message", "norm", "regime", "ledger", "layout", "device", "dtype"), HOSTILE)
    results = []
    for result in audit.results:
        witness = result.witness and dataclasses.replace(result.witness, snippet=HOSTILE, got=HOSTILE, expected=HOSTILE)
        results.append(dataclasses.replace(result, **changed, check=HOSTILE, witness=witness))
    return dataclasses.replace(audit, results=tuple(results), grades={(HOSTILE, HOSTILE): "F"}, born={"command": HOSTILE})


@pytest.mark.usefixtures("plain")
def test_the_page_tells_verdict_grades_findings_and_how_to_repeat_it(audit: Any) -> None:
    """Everything that Markdown tells stands on the page, in the order in which it is read."""
    shown = Page(reporters.render(audit, ".html")).shown
    places = [
        "1 of 3 implementations fails",
        "lib.group_norm",
        "y=3.0, but should be 0.0 [lib.group_norm(x)]",
        "print(lib.group_norm(np.ones(4)))",
        "Got 0x1.8p+1 (3), but should be 0x0.0p+0 (0) at element 2 of the row.",
        "jax is missing [pip install jax]",
        "single pass, see #1",
        "normcheck audit --seed 7",
    ]
    found = [shown.index(place) for place in places]
    assert found == sorted(found)


@pytest.mark.usefixtures("plain")
def test_the_page_holds_every_result_and_the_figures(audit: Any) -> None:
    """The script is given all results in columns, and errors, curves and determinism by implementation."""
    data = Page(reporters.render(audit, ".html")).data
    for column in ("implementation", "check", "dtype", "message", "regime"):
        assert [data["names"][i] for i in data["columns"][column]] == [getattr(result, column) for result in audit.results]
    assert data["numbers"]["ratio"] == [result.ratio and float(f"{result.ratio:.4g}") for result in audit.results]
    figures = data["figures"][str(data["names"].index("lib.rms_norm"))]
    assert figures["ulp"]["bfloat16"] == {"standard": 0.7, "large-mean": 31.0, "outlier": 1.3, "tiny": 2.0}
    assert len(figures["outlier-sensitivity"]["float32"]["measured"]) == 7
    assert "inside" in figures["epsilon-placement"]["float32"]


@pytest.mark.usefixtures("plain")
def test_gradient_errors_and_determinism_are_summed_up(audit: Any) -> None:
    """The worst ratio of each gradient check, and how often each outcome came for each check of determinism."""
    like = dataclasses.replace(audit.results[0], measures={}, series={})
    results = [
        dataclasses.replace(like, check="input-gradient", error=error, tolerance=2.0, outcome=Outcome.PASSED)
        for error in (1.0, 3.0)
    ]
    results += [
        dataclasses.replace(like, check="run-to-run", outcome=outcome) for outcome in 2 * [Outcome.PASSED] + [Outcome.WARNED]
    ]
    data = Page(reporters.render(dataclasses.replace(audit, results=tuple(results)), ".html")).data
    (figures,) = data["figures"].values()
    assert figures["gradients"] == {"float32": {"input-gradient": 1.5}}
    assert figures["determinism"] == {"run-to-run float32": {"passed": 2, "warned": 1}}


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize(("value", "shown"), [("inf", html._INFINITE), ("-inf", -html._INFINITE), ("nan", html._INFINITE)])
def test_errors_that_are_no_numbers_reach_the_page(audit: Any, value: str, shown: float) -> None:
    """JSON has neither NaN nor infinity: both are the largest number."""
    odd = dataclasses.replace(audit.results[0], error=float(value))
    data = Page(reporters.render(dataclasses.replace(audit, results=(odd,)), ".html")).data
    assert data["numbers"]["error"] == [shown]


@pytest.mark.usefixtures("plain")
def test_hostile_names_stay_text_on_the_page(audit: Any) -> None:
    """Names, messages and snippets from user code make no element and no script, and turn no writing around."""
    page, ours = (Page(reporters.render(one, ".html")) for one in (hostile(audit), audit))
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in ours.elements}
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert len(page.scripts) == len(ours.scripts) == 2
    assert page.scripts[1] == ours.scripts[1]
    assert "<img src=x onerror=alert(1)>" in page.shown
    assert not set("\x1b\u202e") & set(page.shown + page.scripts[0])


@pytest.mark.usefixtures("plain")
def test_the_page_asks_for_nothing(audit: Any) -> None:
    """No address is named that a browser would fetch, and its policy forbids all that are."""
    page = Page(reporters.render(audit, ".html"))
    addresses = [value for _, attributes in page.elements for name, value in attributes.items() if name in ("src", "href")]
    assert all(address is not None and address.startswith(("#", "data:")) for address in addresses)
    (policy,) = (a["content"] for tag, a in page.elements if tag == "meta" and "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none'")


@pytest.mark.usefixtures("plain")
def test_missing_plotly_is_said(audit: Any) -> None:
    """Without plotly the page is whole, and says how to get plots."""
    assert "plotly is missing [pip install 'normcheck[plots]']" in Page(reporters.render(audit, ".html")).shown


def test_plotly_comes_with_the_page(audit: Any) -> None:
    """The library that draws stands in the page itself."""
    pytest.importorskip("plotly", reason="plotly is missing: pip install normcheck[plots]")
    page = Page(reporters.render(audit, ".html"))
    assert "plotly is missing" not in page.shown
    assert any("Plotly" in script and len(script) > 10**6 for script in page.scripts)


def test_findings_stand_by_cause(audit: Any) -> None:
    """What the ledger explains by one reason is one cause, whatever the check; else the property that is broken is."""
    known = next(r for r in audit.results if r.outcome is Outcome.XFAILED)
    results = (*audit.results, dataclasses.replace(known, check="accuracy"))
    changed = dataclasses.replace(audit, results=results)
    ((reason, findings),) = summary.by_cause(summary.known(changed))
    assert reason == "single pass, see #1"
    assert [finding.check for finding in findings] == ["zero-and-constant-rows", "accuracy"]
    assert [cause for cause, _ in summary.by_cause(summary.warnings(changed))] == ["overflow"]


# --- JUnit ------------------------------------------------------------------------------------------------------------------


def suites(audit: Any) -> dict[str | None, ET.Element]:
    """The suites of the report by name."""
    root = ET.fromstring(reporters.render(audit, ".xml"))  # noqa: S314 (our own)
    return {suite.get("name"): suite for suite in root}


def test_junit_has_a_case_for_each_check(audit: Any) -> None:
    """A failed check is a failure with its messages and snippet, a skipped or known one is skipped, a warning passes."""
    found = suites(audit)
    broken = found["lib.group_norm float32 cpu"]
    assert (broken.get("tests"), broken.get("failures")) == ("1", "1")
    failure = broken.find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == "y=3.0, but should be 0.0 [lib.group_norm(x)]"
    assert failure.text == (
        "failed (large-mean 2 x 8 x 16): y=3.0, but should be 0.0 [lib.group_norm(x)]\nfailed (standard 2 x 8 x 16): lesser"
    )
    assert "lib.group_norm(np.ones(4))" in (broken.findtext("testcase/system-out") or "")
    sound = found["lib.layer_norm float32 cpu"]
    cases = {case.get("name"): case for case in sound}
    assert sound.get("failures") == "0"
    assert [child.tag for child in cases["overflow"]] == ["system-err"]
    assert cases["zero-and-constant-rows"].find("skipped").get("message") == "known: single pass, see #1"  # type: ignore[union-attr]
    missing = found["jax.rms_norm float32 cpu"].find("testcase/skipped")
    assert missing is not None
    assert missing.get("message") == "jax is missing [pip install jax]"


def test_junit_counts_add_up(audit: Any) -> None:
    """The counts of the whole are the sums of those of the suites."""
    root = ET.fromstring(reporters.render(audit, ".xml"))  # noqa: S314 (our own)
    for count in ("tests", "failures", "errors", "skipped"):
        assert int(root.get(count, "")) == sum(int(suite.get(count, "")) for suite in root), count
    assert (root.get("failures"), root.get("errors"), root.get("skipped")) == ("1", "0", "3")


@pytest.mark.parametrize("outcome", [Outcome.BROKEN, Outcome.CRASHED, Outcome.TIMEOUT])
def test_junit_tells_errors_from_failures(audit: Any, outcome: Outcome) -> None:
    """A call that raised, died or took too long is an error."""
    one = dataclasses.replace(audit.results[0], outcome=outcome, message="call raised")
    (suite,) = suites(dataclasses.replace(audit, results=(one,))).values()
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")


def test_hostile_names_leave_xml_whole(audit: Any) -> None:
    """Marks, control characters and characters that XML forbids do not break the file."""
    root = ET.fromstring(reporters.render(hostile(audit), ".xml"))  # noqa: S314 (our own)
    assert {element.tag for element in root.iter()} <= {
        "testsuites", "testsuite", "testcase", "failure", "error", "skipped", "system-out", "system-err",
    }  # fmt: skip


# --- the badge --------------------------------------------------------------------------------------------------------------


def badge(audit: Any) -> str | None:
    """What the badge says."""
    svg = ET.fromstring(reporters.render(audit, ".svg"))  # noqa: S314 (our own)
    return svg.get("aria-label")


def test_the_badge_says_how_the_audit_ended(audit: Any) -> None:
    """How many fail, or how many pass, or that nothing was judged."""
    assert badge(audit) == "normcheck: 1 of 3 failing"
    of = {outcome: tuple(r for r in audit.results if r.outcome is outcome) for outcome in Outcome}
    assert badge(dataclasses.replace(audit, results=of[Outcome.PASSED])) == "normcheck: 2 passing"
    assert badge(dataclasses.replace(audit, results=of[Outcome.SKIPPED])) == "normcheck: nothing judged"


@pytest.mark.parametrize(
    ("outcome", "colour"), [(Outcome.PASSED, "#1a7f37"), (Outcome.WARNED, "#8a5a00"), (Outcome.FAILED, "#b31d28")]
)
def test_the_badge_is_coloured_by_the_outcome(audit: Any, outcome: Outcome, colour: str) -> None:
    """Green where all is well, another colour for warnings, red for failures."""
    chosen = dataclasses.replace(audit, results=tuple(r for r in audit.results if r.outcome is outcome))
    assert colour in reporters.render(chosen, ".svg")


# --- GitHub -----------------------------------------------------------------------------------------------------------------


def test_annotations_are_one_line_each(audit: Any) -> None:
    """Errors and warnings become commands that name check, implementation and message; nothing in them begins another."""
    error, warning = github.commands(audit)
    assert error == (
        "::error title=accuracy%3A lib.group_norm (float32)::y=3.0, but should be 0.0 [lib.group_norm(x)] [2 results]"
    )
    assert warning.startswith("::warning title=overflow%3A lib.layer_norm (float32)::y=0.0, but should be 1.0")
    for line in github.commands(hostile(audit)):
        assert "\n" not in line
        assert re.match(r"::(error|warning) title=[^:,]*::", line)
        assert "%250A" in line


def test_github_is_told_where_it_listens(audit: Any, tmp_path: Path) -> None:
    """The job summary goes to the file that the environment names; annotations only where GitHub runs the job."""
    assert github.announce(audit, {}) == ()
    path = tmp_path / "summary.md"
    told = github.announce(audit, {"GITHUB_STEP_SUMMARY": str(path), "GITHUB_ACTIONS": "true"})
    assert told == tuple(github.commands(audit))
    assert path.read_text(encoding="utf-8") == github.render(audit)


# --- all of them ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("plain")
def test_the_folder_holds_every_report(audit: Any, tmp_path: Path) -> None:
    """One call writes the record, the pages, what CI reads and the badge."""
    written = reporters.write_folder(audit, tmp_path / "new")
    assert [path.name for path in written] == ["audit.json", "report.md", "report.html", "junit.xml", "badge.svg"]
    assert all(path.stat().st_size > 0 for path in written)
    assert Result.from_dict(json.loads(written[0].read_text())["results"][0]) == audit.results[0]


def test_many_findings_are_told_in_short(audit: Any) -> None:
    """Markdown tells the first findings in full and says how many there are."""
    failed = next(r for r in audit.results if r.outcome is Outcome.FAILED)
    many = tuple(dataclasses.replace(failed, implementation=f"lib.n{k}", message=f"y={k}") for k in range(100))
    page = reporters.render(dataclasses.replace(audit, results=many), ".md")
    assert "Of the 100 findings, the 60 first are told in full; audit.json holds them all." in page
    assert page.count("\n### E") == 60
