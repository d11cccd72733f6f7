"""Certification as a command: counts on the terminal and in a file, and what happens without python-flint."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from normcheck.born import source
from normcheck.cli import main
from normcheck.reference import certification
from normcheck.reference.certification import Certification, Tally
from normcheck.reporters import certificate


def test_the_reference_agrees_with_python_flint(tmp_path: Path) -> None:
    """A small certification passes, prints counts for every format and direction, and keeps them with where they were made."""
    pytest.importorskip("flint")
    path = tmp_path / "kept" / "certification.json"
    done = CliRunner().invoke(main, ["certify", "--elements", "1500", "--seed", "2", "-o", str(path)])
    assert done.exit_code == 0, done.output
    assert "elements differ" in done.output
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert (
        set(kept["forward"])
        == set(kept["backward"])
        == {"float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"}
    )
    assert sum(tally["elements"] for tally in kept["forward"].values()) >= 1500
    assert sum(tally["mismatches"] for side in ("forward", "backward") for tally in kept[side].values()) == 0
    assert kept["born"]["seed"] == 2
    assert "python-flint" in kept["born"]["versions"]
    assert kept["born"]["normcheck"] == source()
    assert kept["legend"] in done.output
    assert set(re.findall(r"\w+", kept["legend"])) >= {*kept["forward"]["float64"], "seed", "Examples"}


def test_a_mismatch_is_counted_and_shown() -> None:
    """One element that differs fails the certification and is among the examples."""
    found = Certification(
        {"float32": Tally(elements=10, mismatches=1)}, {"float32": Tally(elements=4, uncertified=1)}, ("y[0, 0]: 1.0",)
    )
    assert not found.passed
    assert certificate.verdict(found) == "1 of 14 elements differ.\ny[0, 0]: 1.0"
    assert [row[-1] for row in certificate.rows(found)] == ["100.0000%", "75.0000%"]


def test_without_python_flint_the_install_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing python-flint is wrong usage with the line that mends it."""
    monkeypatch.setitem(sys.modules, "flint", None)
    done = CliRunner().invoke(main, ["certify"])
    assert done.exit_code == 2
    assert "pip install 'normcheck[exact]'" in done.output


def test_a_file_that_cannot_be_written_is_told_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file below a file is wrong usage, and nothing is compared."""
    monkeypatch.setattr(certification, "certification", lambda *_: pytest.fail("it was begun"))
    (tmp_path / "file").write_text("", encoding="utf-8")
    done = CliRunner().invoke(main, ["certify", "-o", str(tmp_path / "file" / "counts.json")])
    assert done.exit_code == 2
    assert "cannot be written" in done.output


@pytest.mark.parametrize(("command", "code"), [("certify", "0    no element differs"), ("hunt", "1    one was found")])
def test_commands_that_judge_no_audit_have_exit_codes_of_their_own(command: str, code: str) -> None:
    """--help says what the codes mean of this very command."""
    shown = CliRunner().invoke(main, [command, "--help"]).output
    assert code in shown
    assert "baseline" not in shown
