"""The ledger: narrow, dated by versions, and never silent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from normcheck import ledger
from normcheck.ledger import Entry, apply, entries
from normcheck.results import Outcome, Result

ROOT = Path(__file__).resolve().parents[1]
ENTRY = Entry(
    implementation="numpy.norm[train]",
    library="numpy",
    versions=">=1",
    check="accuracy",
    reason="it drops digits",
    dtype="float16",
)


def result(**changes: Any) -> Result:
    """A failed result that the entry expects, with changes."""
    given: dict[str, Any] = {
        "implementation": "numpy.norm[train]",
        "check": "accuracy",
        "dtype": "float16",
        "norm": "LayerNorm()",
        "outcome": Outcome.FAILED,
        "regime": "outlier",
    }
    return Result(**{**given, **changes})


def test_an_expected_failure_is_xfailed_with_its_reason() -> None:
    """The failure stays in the audit, as xfailed, and carries reason and versions."""
    (done,) = apply([result()], [ENTRY])
    assert done.outcome is Outcome.XFAILED
    assert done.ledger == "it drops digits [numpy >=1]"


@pytest.mark.parametrize(
    "change", [{"implementation": "numpy.norm"}, {"check": "overflow"}, {"dtype": "float32"}, {"implementation": "numpy.normt"}]
)
def test_any_other_failure_still_fails(change: dict[str, Any]) -> None:
    """Another implementation, check or dtype is not excused; brackets in names are no wildcards."""
    (done,) = apply([result(**change)], [ENTRY])
    assert done.outcome is Outcome.FAILED


def test_code_that_is_known_by_another_name_is_excused_under_its_own() -> None:
    """What fails as that other code does is expected; what passes says nothing of it, and other names are let be."""
    known = next(one for one in entries() if (one.library, one.check, one.dtype) == ("torch", "overflow", "float32"))
    given = {"check": "overflow", "dtype": "float32", "device": known.device, "regime": known.regime, "layout": known.layout}
    failed, other = (result(implementation=name, **given) for name in ("mine", "theirs"))
    passed = result(implementation="mine", **given, outcome=Outcome.PASSED)
    done = ledger.excuse([failed, passed, other], {"mine": known.implementation})
    assert [one.implementation for one in done] == ["mine", "mine", "theirs"]
    excused = Outcome.XFAILED if known.installed else Outcome.FAILED
    assert [one.outcome for one in done] == [excused, Outcome.PASSED, Outcome.FAILED]


@pytest.mark.parametrize("field", ["regime", "layout", "device"])
def test_regime_layout_and_device_narrow_an_entry(field: str) -> None:
    """An entry that names one of them excuses only failures there."""
    narrow = Entry(**{**vars(ENTRY), field: "elsewhere"})
    (done,) = apply([result()], [narrow])
    assert done.outcome is Outcome.FAILED


def test_other_versions_are_not_excused() -> None:
    """A release outside the range fails as anything else does, and so does a library that is not installed."""
    old = Entry(**{**vars(ENTRY), "versions": "<1"})
    absent = Entry(**{**vars(ENTRY), "library": "no-such-distribution"})
    assert [r.outcome for r in apply([result()], [old, absent])] == [Outcome.FAILED]


def test_a_mended_fault_is_xpassed() -> None:
    """Where all that an entry expects to fail passes, the first of it is marked, so that the stale entry is seen."""
    done = apply([result(outcome=Outcome.PASSED), result(outcome=Outcome.PASSED, regime="tiny")], [ENTRY])
    assert [r.outcome for r in done] == [Outcome.XPASSED, Outcome.PASSED]
    mixed = apply([result(), result(outcome=Outcome.PASSED, regime="tiny")], [ENTRY])
    assert [r.outcome for r in mixed] == [Outcome.XFAILED, Outcome.PASSED]


def test_a_fault_that_shows_sometimes_is_not_mended_when_it_does_not() -> None:
    """An entry that is marked so excuses what fails, and says nothing where all pass."""
    rare = Entry(**{**vars(ENTRY), "sometimes": True})
    assert [r.outcome for r in apply([result(outcome=Outcome.PASSED)], [rare])] == [Outcome.PASSED]
    assert [r.outcome for r in apply([result()], [rare])] == [Outcome.XFAILED]


def test_warnings_are_left_as_they_are() -> None:
    """A warning does not fail an audit, so an entry that excuses a failure says nothing of it."""
    (done,) = apply([result(outcome=Outcome.WARNED)], [ENTRY])
    assert (done.outcome, done.ledger) == (Outcome.WARNED, "")


def test_a_known_warning_stays_one_and_carries_its_reason() -> None:
    """An entry for a warning explains it and excuses no failure; where all pass, it has been mended."""
    known = Entry(**{**vars(ENTRY), "warning": True})
    warned, failed = apply([result(outcome=Outcome.WARNED), result()], [known])
    assert (warned.outcome, warned.ledger) == (Outcome.WARNED, "it drops digits [numpy >=1]")
    assert (failed.outcome, failed.ledger) == (Outcome.FAILED, "")
    assert [r.outcome for r in apply([result(outcome=Outcome.PASSED)], [known])] == [Outcome.XPASSED]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[fault]]\nimplementation = "a"\nwhy = "b"', "entry 1 has key 'why', but should have some of"),
        ('[[fault]]\nimplementation = "a"', "entry 1: .*missing"),
        (
            '[[fault]]\nimplementation = "a"\nlibrary = "b"\nversions = "soon"\ncheck = "c"\nreason = "d"',
            "entry 1: versions='soon', but should be a range",
        ),
    ],
)
def test_malformed_entries_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, message: str) -> None:
    """A wrong key, a missing one and an invalid range name the entry."""
    (tmp_path / "ledger.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(ledger.resources, "files", lambda package: tmp_path)
    with pytest.raises(ValueError, match=message):
        entries()


def test_every_entry_has_a_script_that_shows_it() -> None:
    """Each entry names a script of the repository; it imports no normcheck."""
    for entry in entries():
        script = ROOT / entry.script
        assert entry.script, entry
        assert script.is_file(), entry
        assert "normcheck" not in script.read_text(encoding="utf-8"), entry


SCRIPTS = sorted({entry.script for entry in entries()})


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_scripts_show_what_the_ledger_says(script: str) -> None:
    """Where the faulty version is installed each script exits with 1, its fault shown; with 0 once a release has mended it."""
    ours = [entry for entry in entries() if entry.script == script]
    if not any(entry.installed for entry in ours):
        pytest.skip(f"{ours[0].library} {ours[0].versions} is not installed")
    done = subprocess.run([sys.executable, str(ROOT / script)], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "should be" in done.stdout


def test_numpy_is_there_for_these_tests() -> None:
    """The entry used above speaks of a library that is installed."""
    assert ENTRY.installed
    assert np.__version__


def test_an_entry_is_not_stale_where_its_profile_is_not_reached() -> None:
    """What only a standard audit shows is no news when a quick one passes; from standard on it is."""
    entry = Entry(**{**vars(ENTRY), "profile": "standard"})
    passed = [result(outcome=Outcome.PASSED)]
    assert [r.outcome for r in apply(passed, [entry], profile="quick")] == [Outcome.PASSED]
    assert [r.outcome for r in apply(passed, [entry], profile="standard")] == [Outcome.XPASSED]
