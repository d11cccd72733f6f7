"""The HTML report in Chromium: filters, sorting, copying, colours, figures and accessibility; `tox -e browser` runs it."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from normcheck import reporters
from normcheck.results import Outcome

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is missing: pip install playwright")
expect = sync_api.expect
RANGE = "document.querySelector('.plot').layout.yaxis.range.join()"
CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium"),
    # playwright's event loop is closed by the end of the session only
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for all tests."""
    with sync_api.sync_playwright() as started:
        running = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


class Opened:
    """A page and what its console said."""

    def __init__(self, browser: Any, path: Path, **settings: Any) -> None:
        self.context = browser.new_context(**settings)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.asked: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())


@pytest.fixture
def open_page(browser: Any, audit: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens the report of the invented audit, or of another; when all is done, nothing may have been complained of."""
    opened: list[Opened] = []

    def opening(changed: Any = None, **settings: Any) -> Any:
        path = reporters.write(changed or audit, tmp_path / f"report{len(opened)}.html")
        opened.append(Opened(browser, path, **settings))
        return opened[-1].page

    yield opening
    for one in opened:
        one.context.close()
        assert one.said == []
        assert all(url.startswith(("file:", "data:", "blob:")) for url in one.asked)


def visible(page: Any, selector: str) -> list[str]:
    """The texts of the elements that are shown."""
    return [one.inner_text().strip() for one in page.locator(selector).all() if one.is_visible()]


def test_filters_narrow_everything(open_page: Any, audit: Any) -> None:
    """An implementation that is chosen is the only one in the matrix, the findings and the results; Clear brings all back."""
    page = open_page()
    page.get_by_label("implementation", exact=True).select_option(label="lib.group_norm")
    expect(page.locator("#matched")).to_have_text(f"2 of {len(audit.results)} results")
    assert visible(page, "#matrix tbody th") == ["lib.group_norm"]
    assert [text.split()[0] for text in visible(page, ".finding > summary")] == ["E1"]
    assert visible(page, "#explorer tbody td.implementation") == ["lib.group_norm"] * 2
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#matched")).to_have_text(f"{len(audit.results)} of {len(audit.results)} results")
    assert len(visible(page, "#matrix tbody tr")) == 5


@pytest.mark.parametrize(
    ("label", "choice", "count"), [("dtype", "bfloat16", 12), ("check", "overflow", 1), ("outcome", "skipped", 2)]
)
def test_each_filter_counts(open_page: Any, audit: Any, label: str, choice: str, count: int) -> None:
    """dtype, check and outcome leave the results that have them."""
    page = open_page()
    page.get_by_label(label, exact=True).select_option(label=choice)
    expect(page.locator("#matched")).to_have_text(f"{count} of {len(audit.results)} results")
    assert set(visible(page, f"#explorer tbody td.{label}")) <= {choice}


def test_search_looks_into_messages(open_page: Any, audit: Any) -> None:
    """Words of a message find its result, in whatever case."""
    page = open_page()
    page.get_by_label("search").fill("JAX IS MISSING")
    expect(page.locator("#matched")).to_have_text(f"2 of {len(audit.results)} results")


def test_the_matrix_is_sorted_by_keyboard(open_page: Any) -> None:
    """Enter on a heading sorts by it, upward and then downward, and says so to a screen reader."""
    page = open_page()
    heading = page.locator("#matrix th", has_text="errors")
    heading.locator("button").focus()
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert visible(page, "#matrix tbody th")[-1] == "lib.group_norm"
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"
    assert visible(page, "#matrix tbody th")[0] == "lib.group_norm"


def test_grades_are_sorted_from_good_to_bad(open_page: Any) -> None:
    """A column of grades is sorted by what they mean; what has none comes last."""
    page = open_page()
    page.locator("#matrix th", has_text="float32").first.locator("button").click()
    grades = [text.strip() for text in page.locator("#matrix tbody tr td.grade:nth-child(3)").all_inner_texts()]
    assert grades == ["A", "A", "F", "", ""]


def test_results_are_sorted_and_paged(open_page: Any, audit: Any) -> None:
    """The largest ratio comes first when sorted downward; fifty results make a page."""
    failed = next(result for result in audit.results if result.outcome is Outcome.FAILED)
    many = tuple(dataclasses.replace(failed, error=float(k), tolerance=1.0) for k in range(120))
    page = open_page(dataclasses.replace(audit, results=many))
    heading = page.locator("#explorer th", has_text="error / tolerance").locator("button")
    heading.click()
    heading.click()
    assert visible(page, "#explorer tbody tr:first-child td.number")[-1] == "119"
    page.get_by_role("button", name="Next").click()
    page.get_by_role("button", name="Next").click()
    assert page.get_by_text("101 to 120 of 120").is_visible()
    assert page.get_by_role("button", name="Next").is_disabled()


def test_a_witness_is_copied(open_page: Any) -> None:
    """The button puts the snippet on the clipboard as it stands."""
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    page.locator(".finding summary").first.click()
    page.locator(".finding .copy").first.click()
    page.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "import numpy as np\nprint(lib.group_norm(np.ones(4)))"


def test_dark_and_light(open_page: Any) -> None:
    """The page takes the system's colours, and a button changes them."""
    page = open_page(color_scheme="dark")

    def ground() -> Any:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    assert ground() == "rgb(20, 23, 26)"
    page.get_by_role("button", name="Change to light colours").click()
    assert ground() == "rgb(255, 255, 255)"


def test_figures_are_drawn_when_opened(open_page: Any) -> None:
    """Opening an implementation draws its plots, which can be zoomed, with their figures as tables."""
    pytest.importorskip("plotly", reason="plotly is missing: pip install normcheck[plots]")
    page = open_page()
    assert page.locator(".plot").count() == 0
    page.locator("details.implementation summary").first.click()
    expect(page.locator(".plot .main-svg").nth(2)).to_be_attached()
    assert visible(page, "figcaption") == ["Error by regime", "Spread of the others beside one outlier", "Where eps stands"]
    plot = page.locator(".plot").first
    plot.scroll_into_view_if_needed()
    before = page.evaluate(RANGE)
    plot.hover()
    plot.locator("[data-title='Zoom in']").click()
    page.wait_for_timeout(500)
    assert page.evaluate(RANGE) != before


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_sticks_out(open_page: Any, width: int) -> None:
    """At desktop and at phone width the page itself does not scroll sideways."""
    page = open_page(viewport={"width": width, "height": 800})
    page.locator("details.implementation summary").first.click()
    page.locator(".finding summary").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible(open_page: Any, scheme: str) -> None:
    """axe-core finds no violation, with everything opened, in either colours."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")
    page = open_page(color_scheme=scheme)
    for summary in page.locator("main > section > details > summary, .finding > summary, .implementation > summary").all():
        summary.click()
    page.wait_for_timeout(500)
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_hostile_names_run_nothing(open_page: Any, audit: Any) -> None:
    """Markup in names, messages and snippets is shown as text in every part that is drawn."""
    name = '<img src=x onerror="window.hit=1"></script><script>window.hit=1</script>'
    results = tuple(dataclasses.replace(r, implementation=name, message=name, regime=name, dtype=name) for r in audit.results)
    page = open_page(dataclasses.replace(audit, results=results, grades={(name, name): "F"}))
    page.locator("details.implementation summary").first.click()
    page.wait_for_timeout(500)
    assert page.evaluate("window.hit") is None
    assert name in visible(page, "#matrix tbody th")[0]
