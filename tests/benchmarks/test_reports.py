"""Reports of an audit with 100,000 results: how long they take, how large they become, and how soon a browser shows them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from normcheck import Audit, reporters
from normcheck.results import Outcome, Result, Severity, Witness

pytestmark = pytest.mark.slow
RESULTS = 100_000
CHROMIUM = shutil.which("chromium")

PEAK = """
import resource, sys
import normcheck
from normcheck import reporters
audit = normcheck.Audit.read(sys.argv[1])
reporters.write_folder(audit, sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def _result(k: int) -> Result:
    """One of an audit of 100 implementations in 4 dtypes; one in ten is a finding with a snippet, each with its own message."""
    outcome = (Outcome.FAILED, Outcome.WARNED, Outcome.XFAILED)[k // 10 % 3] if k % 10 == 0 else Outcome.PASSED
    implementation, dtype = k % 100, ("float64", "float32", "float16", "bfloat16")[k // 100 % 4]
    curve = tuple((float(x), x / 1e7) for x in range(1, 25))
    checks = ("accuracy", "condition-sweep", "outlier-sensitivity", "input-gradient", "shift-invariance", "run-to-run")
    return Result(
        check=checks[k // 400 % 6],
        implementation=f"library.module.norm_{implementation}",
        norm="LayerNorm(eps=1e-05)",
        dtype=dtype,
        outcome=outcome,
        severity=Severity.ERROR,
        regime=("standard", "large-mean", "outlier", "tiny", "huge")[k // 2400 % 5],
        shape=(8, k % 1000 + 1),
        error=k / 1e9,
        tolerance=1e-4,
        message="" if outcome is Outcome.PASSED else f"y[0, {k}]={k / 7!r}, but should be 0.0 within 0.0001 [x: {dtype}]",
        measures={"ulp": k / 1e5, "correctly_rounded": 0.9},
        series={"measured": curve, "bound": curve} if k // 400 % 6 == 1 and k < 2400 else {},
        ledger=f"reason {k % 40}" if outcome is Outcome.XFAILED else "",
        witness=Witness("import numpy as np\n" * 12, "x", 0, "0x1p0", "0x0p0") if outcome is not Outcome.PASSED else None,
        seconds=0.01,
    )


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Audit, Path]:
    """The audit, and a folder with its record."""
    folder = tmp_path_factory.mktemp("reports")
    audit = Audit(tuple(map(_result, range(RESULTS))), {"command": "normcheck audit", "profile": "standard"})
    reporters.write(audit, folder / "audit.json")
    return audit, folder


def test_reports_of_a_large_audit(benchmark: Any, large: tuple[Audit, Path]) -> None:
    """All of them in 20 s; Markdown stays below 1 MB."""
    audit, folder = large
    benchmark.pedantic(lambda: reporters.write_folder(audit, folder), rounds=1)
    sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.suffix in reporters.suffixes()}
    benchmark.extra_info.update({name: round(size / 1e6, 3) for name, size in sizes.items()})
    assert sizes["report.md"] < 1e6
    assert benchmark.stats.stats.min < 20


def test_memory_of_a_large_audit(large: tuple[Audit, Path]) -> None:
    """Reading the record and writing all reports takes less than 1 GB."""
    command = [sys.executable, "-c", PEAK, str(large[1] / "audit.json"), str(large[1] / "again")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(run.stdout) < 1e9


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_large_page_in_a_browser(benchmark: Any, large: tuple[Audit, Path]) -> None:
    """The page opens in 3 s, and every filter answers in a fifth of a second."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is missing: pip install playwright")
    path = reporters.write(large[0], large[1] / "report.html")
    with api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        browser.new_page().goto("about:blank")
        opened = []
        for _ in range(3):
            page = browser.new_page()
            start = time.perf_counter()
            page.goto(path.as_uri())
            opened.append(time.perf_counter() - start)
        took = [
            page.evaluate(
                "([name, at]) => { const form = document.getElementById('filters'); form.elements[name].selectedIndex = at;"
                "const start = performance.now(); filter(); document.body.offsetHeight; return performance.now() - start; }",
                [name, 1],
            )
            for name in ("outcome", "dtype", "check", "implementation")
        ]
        browser.close()
    benchmark.extra_info.update(opens_s=round(min(opened), 2), filter_ms=round(max(took), 1))
    benchmark.pedantic(lambda: None, rounds=1)
    assert min(opened) < 3
    assert max(took) < 200
