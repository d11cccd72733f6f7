"""A package of somebody else's with one entry point is found, audited and reported, as CONTRIBUTING.md shows it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The package of CONTRIBUTING.md, with the metadata that an installer writes for it."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (point,) = re.findall(r'(?m)^mine = "(my_package\.norms:\w+)"', page)
    (code,) = re.findall(r"(?ms)^```python\n(.*?def for_normcheck.*?)^```", page)
    place = tmp_path / "site"
    (place / "my_package").mkdir(parents=True)
    (place / "my_package" / "__init__.py").touch()
    (place / "my_package" / "norms.py").write_text(code, encoding="utf-8")
    facts = place / "my_package-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n", encoding="utf-8")
    (facts / "entry_points.txt").write_text(f"[normcheck.implementations]\nmine = {point}\n", encoding="utf-8")
    return place


def normcheck(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own that sees the package."""
    paths = os.pathsep.join([str(place), *([str(ROOT)] if (ROOT / "normcheck").is_dir() else [])])
    environment = {**os.environ, "PYTHONPATH": paths, "COLUMNS": "150"}
    called = [sys.executable, "-m", "normcheck", *arguments]
    return subprocess.run(called, capture_output=True, text=True, env=environment, cwd=place.parent, check=False)


def test_an_outsiders_package_is_audited_and_reported(installed: Path) -> None:
    """One line of metadata is enough: the implementation is judged in its dtypes, passes, and is in every report."""
    given = ("--implementation", "my_package.*", "--profile", "quick", "--check", "accuracy", "--check", "epsilon-placement")
    done = normcheck(installed, "audit", *given, "--workers", "1", "--output", "out")
    assert done.returncode == 0, done.stdout + done.stderr
    stored = json.loads((installed.parent / "out" / "audit.json").read_text(encoding="utf-8"))
    judged = {(result["implementation"], result["dtype"]) for result in stored["results"]}
    assert judged == {("my_package.rms_norm", "float64"), ("my_package.rms_norm", "float32")}
    checked = {result["check"] for result in stored["results"] if result["outcome"] == "passed"}
    assert {"accuracy", "epsilon-placement"} <= checked
    assert "my_package.rms_norm" in (installed.parent / "out" / "report.md").read_text(encoding="utf-8")


def test_an_outsiders_package_is_listed(installed: Path) -> None:
    """``normcheck list implementations`` has it with what it claims."""
    done = normcheck(installed, "list", "implementations")
    assert re.search(r"my_package\.rms_norm\s+RMSNorm\(", done.stdout), done.stdout + done.stderr


def test_an_outsiders_mistake_is_told_with_its_place(installed: Path) -> None:
    """An entry point that yields no implementation stops the audit with one line that names entry point, package and version."""
    (installed / "my_package" / "norms.py").write_text("def for_normcheck():\n    return 3\n", encoding="utf-8")
    done = normcheck(installed, "audit", "--dry-run")
    assert done.returncode == 3
    assert "entry point 'mine = my_package.norms:for_normcheck' of my-package 1.0 yields 3" in done.stderr
