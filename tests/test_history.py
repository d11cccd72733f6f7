"""History: what changed between audits is said, like is compared with like, and old files stay readable."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import normcheck as nc
from normcheck import cli
from normcheck.history import KINDS, NOISE, Comparison, compare, keep, stored, trends
from normcheck.results import Outcome, Result

STORED = Path(__file__).parent / "stored"


def result(outcome: Outcome = Outcome.PASSED, ulp: float = 1.0, **changes: Any) -> Result:
    """An invented result of accuracy."""
    given: dict[str, Any] = {"check": "accuracy", "implementation": "lib.norm", "norm": "RMSNorm(eps=1e-06)", "dtype": "float32"}
    usual = {"regime": "standard", "shape": (4, 8), "measures": {"ulp": ulp, "grade": 0.0}, "bits": "aa", "outcome": outcome}
    return Result(**{**given, **usual, **changes})


def audit(*results: Result, **facts: Any) -> nc.Audit:
    """An invented audit."""
    machine = {"processor": "one", "cores": 2}
    born = {"utc": "2026-01-02T03:04:05+00:00", "seed": 0, "profile": "quick", "versions": {"lib": "1.0"}, "machine": machine}
    return nc.Audit(results, {**born, **facts})


def kinds(found: Comparison) -> list[str]:
    """The kinds of the changes, in their order."""
    return [change.kind for change in found.changes]


FAILS = result(Outcome.FAILED, message="y=1, but should be 2")


@pytest.mark.parametrize(
    ("old", "new", "kind", "text"),
    [
        ((result(),), (FAILS,), "failure", "standard 4x8: was passed, is failed: y=1, but should be 2"),
        ((), (FAILS,), "failure", "standard 4x8: was not judged, is failed: y=1, but should be 2"),
        ((FAILS,), (result(),), "fixed", "standard 4x8: was failed, is passed"),
        ((FAILS,), (result(Outcome.XFAILED),), "fixed", "standard 4x8: was failed, is xfailed"),
        ((FAILS,), (), "lost", "standard 4x8: was failed"),
        ((FAILS,), (result(Outcome.SKIPPED, message="no torch"),), "lost", "standard 4x8: was failed: no torch"),
        ((result(ulp=1.0),), (result(ulp=1.75),), "up", "standard 4x8: 1 -> 1.75 ulp"),
        ((result(ulp=31.0),), (result(ulp=2.0),), "down", "standard 4x8: 31 -> 2 ulp"),
        ((result(),), (result(bits="bb"),), "bits", "in 1 of 1 results"),
        ((result(),), (result(measures={"ulp": 1.0, "grade": 2.0}),), "grade", "A+ -> B, worse"),
        ((result(measures={"ulp": 1.0, "grade": 3.0}),), (result(),), "grade", "F -> A+, better"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_what_changed(old: tuple[Result, ...], new: tuple[Result, ...], kind: str, text: str) -> None:
    """Each kind of change is told alone, with what was and what is."""
    found = compare(audit(*old), audit(*new))
    assert [(change.kind, change.text) for change in found.changes] == [(kind, text)]
    assert found.worse == (kind == "failure")
    assert found.notes == ()


def test_like_audits_have_not_changed() -> None:
    """Times, messages, and errors that the rounding of the output can move are no change."""
    one = audit(result(ulp=1.0, seconds=1.0), FAILS)
    two = audit(result(ulp=1.0 + NOISE, seconds=9.0), replace(FAILS, message="y=3, but should be 2"), utc="2027-01-01")
    assert compare(one, two) == Comparison((), (), common=2)


def test_the_same_case_elsewhere_is_another() -> None:
    """A failure in another regime, shape or layout is new, also where the check failed before."""
    others = [
        replace(FAILS, regime="tiny"),
        replace(FAILS, shape=(4, 9)),
        replace(FAILS, layout="strided"),
        replace(FAILS, device="cuda"),
    ]
    found = compare(audit(FAILS), audit(FAILS, *others))
    assert kinds(found) == ["failure"] * 4


def test_several_judgements_of_one_case() -> None:
    """A check that judges one case twice is compared judgement by judgement."""
    assert kinds(compare(audit(result(), result()), audit(result(), FAILS))) == ["failure"]


def test_unlike_births_are_told() -> None:
    """Other versions, machines and seeds are said; with another seed errors and bits are not compared."""
    other = {"seed": 7, "versions": {"lib": "2.0", "new": "1"}, "machine": {"processor": "two", "cores": 2}}
    found = compare(audit(result()), audit(result(ulp=9.0, bits="bb"), **other))
    assert found.notes == (
        "machine processor: one -> two",
        "lib: 1.0 -> 2.0",
        "new: None -> 1",
        "seed: 0 -> 7",
        "errors and bits are not compared: the seeds differ",
    )
    assert found.changes == ()


def test_the_trend_names_the_release() -> None:
    """A change of outcome, error or bits is told with the versions that changed beside it."""
    audits = {
        "1": audit(result()),
        "2": audit(result()),
        "3": audit(result(bits="bb"), versions={"lib": "1.1"}),
        "4": audit(result(Outcome.FAILED, ulp=40.0, bits="cc"), versions={"lib": "1.1"}),
    }
    (trend,) = trends(audits)
    assert trend.events == (
        "3: other bits [lib 1.0 -> 1.1]",
        "4: passed -> failed; 1 -> 40 ulp; other bits [same versions]",
    )
    assert [point.audit for point in trend.points] == ["1", "2", "3", "4"]


def test_the_worst_result_stands_for_the_task() -> None:
    """A task is what its worst result is; one that was only skipped is skipped."""
    (trend,) = trends(
        {"1": audit(result(), result(Outcome.CRASHED), result(Outcome.WARNED)), "2": audit(result(Outcome.SKIPPED))}
    )
    assert [point.outcome for point in trend.points] == [Outcome.CRASHED, Outcome.SKIPPED]


def test_kept_audits_sort_as_they_came(tmp_path: Path) -> None:
    """Names are made of the time of birth; folders with an audit count too."""
    later = keep(audit(result(), utc="2026-03-01T00:00:00+00:00"), tmp_path)
    sooner = keep(audit(result(), utc="2026-02-01T10:20:30+00:00"), tmp_path)
    audit(result()).write(tmp_path / "2026-01" / "audit.json")
    assert sooner.name == "2026-02-01T10-20-30Z.json"
    assert list(stored(tmp_path)) == ["2026-01", sooner.stem, later.stem]


@pytest.mark.parametrize("utc", ["../../outside", "/outside", "yesterday"])
def test_what_is_no_time_names_no_file(tmp_path: Path, utc: str) -> None:
    """A file that says that it was born at a path, or at no time at all, is not kept anywhere."""
    folder = tmp_path / "a" / "b"
    with pytest.raises(ValueError, match=r"utc='.+', but should be a time such as '2026-03-01T00:00:00\+00:00'"):
        keep(audit(result(), utc=utc), folder)
    assert not list(tmp_path.rglob("*"))


def test_a_time_with_a_slash_stays_in_the_folder(tmp_path: Path) -> None:
    """Only the parts of a time make the name, whatever stands between them; without a time it is a name of its own."""
    assert keep(audit(result(), utc="2026-03-01/10:00:00"), tmp_path) == tmp_path / "2026-03-01T10-00-00.json"
    assert keep(audit(result(), utc=""), tmp_path) == tmp_path / "audit.json"


@pytest.mark.parametrize(("text", "said"), [(None, "holds no audit"), ("{}", "one.json is no audit: schema is missing")])
def test_folders_without_audits_are_refused(tmp_path: Path, text: str | None, said: str) -> None:
    """An empty folder, or a file in it that is no audit, is an error that names it."""
    if text is not None:
        (tmp_path / "one.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        stored(tmp_path)


def test_the_first_schema_is_read() -> None:
    """A file of schema 1 is what it was: results, times and birth; written anew it is of the present schema."""
    old = nc.Audit.read(STORED / "audit-schema-1.json")
    raw = json.loads((STORED / "audit-schema-1.json").read_text(encoding="utf-8"))
    assert [result.seconds for result in old.results] == [one.get("seconds", 0.0) for one in raw["results"]]
    assert old.born == raw["born"]
    assert old.grades == {("textbook.rms_norm", "float32"): "A+"}
    again = nc.Audit.from_dict(json.loads(json.dumps(old.to_dict())))
    assert again.results == old.results
    assert again.born == old.born
    assert old.to_dict()["schema"] > raw["schema"]


def test_an_old_audit_is_compared() -> None:
    """A fresh audit of the same norm is compared with the stored one case by case."""
    old = nc.Audit.read(STORED / "audit-schema-1.json")
    norms = [one for one in nc.implementations("numpy") if one.name == "textbook.rms_norm"]
    found = compare(old, nc.audit(norms, profile="quick", dtypes=["float32"], checks=["accuracy"]))
    assert not {"failure", "grade", "lost"} & set(kinds(found))


# --- commands ---------------------------------------------------------------------------------------------------------------


def run(*arguments: str) -> Any:
    """Run the command line in this process."""
    return CliRunner().invoke(cli.main, arguments)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two audits, the second with a failure more and other bits."""
    monkeypatch.chdir(tmp_path)
    audit(result(shape=(1, 1)), FAILS).write("past/1.json")
    audit(replace(FAILS, regime="tiny"), FAILS, result(bits="bb", shape=(1, 1)), versions={"lib": "2.0"}).write("past/2.json")
    return tmp_path


def test_compare_prints_and_exits(folder: Path) -> None:
    """The changes are a table, unlike births stand above, and something new that fails exits 1."""
    shown = run("compare", "past/1.json", "past/2.json")
    assert shown.exit_code == 1, shown.output
    assert "Not alike: lib: 1.0 -> 2.0" in shown.output
    assert shown.output.splitlines()[-1] == f"{KINDS['failure']}: 1, {KINDS['bits']}: 1"
    assert run("compare", "past/1.json", "past/1.json").output.strip() == "Nothing has changed."
    assert run("compare", "past/1.json", "past/1.json").exit_code == 0
    assert json.loads(run("compare", "past/1.json", "past/2.json", "--json").output)["changes"][0]["kind"] == "failure"


def test_audits_with_nothing_in_common(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no case was judged in both, that is said instead of that nothing has changed, and it is no success."""
    audit(result(implementation="other"), result(Outcome.SKIPPED, dtype="float16")).write("other.json")
    audit(result(), *(result(check=f"c{i}") for i in range(6))).write("more.json")
    audit(result()).write("one.json")
    shown = run("compare", "one.json", "other.json")
    assert shown.exit_code == 3
    assert shown.output.splitlines() == [
        "Judged only in the old: lib.norm float32 accuracy",
        "Judged only in the new: other float32 accuracy",
        "Nothing in common was judged.",
    ]
    wider = run("compare", "one.json", "more.json")
    assert wider.exit_code == 0
    assert "lib.norm float32 c3, and 2 more\nNothing else has changed." in wider.output
    monkeypatch.setitem(vars(nc), "audit", lambda *given, **more: audit(result()))
    beside = judged("--baseline", "other.json", "--fail-on", "new")
    assert beside.exit_code == 3
    assert beside.output.splitlines()[-1] == "Nothing in common was judged."


def test_names_reach_the_terminal_as_text(folder: Path) -> None:
    """Line breaks, control characters and lone surrogates in stored names are flattened."""
    odd = {"implementation": "a\n\x1b[31mb\ud800", "shape": (1, 1)}
    audit(result(**odd)).write("odd/1.json")
    audit(result(**odd, ulp=9.0), versions={"lib": "2\x1b[0m"}).write("odd/2.json")
    for shown in (run("compare", "odd/1.json", "odd/2.json"), run("history", "odd")):
        assert shown.exit_code == 0, shown.output
        assert "\x1b" not in shown.output
        assert "a [31mb\\ud800" in shown.output


def test_history_prints_what_changed(folder: Path) -> None:
    """Each task with its changes; what has not changed only when asked."""
    audit(result(check="moments"), utc="2026-05-05").write("past/3.json")
    shown = run("history", "past")
    assert shown.exit_code == 0, shown.output
    assert "3 audits, from 1 to 3" in shown.output
    assert "2: other bits [lib 1.0 -> 2.0]" in " ".join(shown.output.split())
    assert "moments" not in shown.output
    assert "moments" in run("history", "past", "--all").output
    assert "0 of 0 tasks" in run("history", "past", "--implementation", "other*").output
    assert run("history", ".").exit_code == 2


def test_history_draws(folder: Path) -> None:
    """A picture for each implementation with an error, under a name that is safe for a file."""
    pytest.importorskip("matplotlib")
    audit(result(implementation="../lib/norm[a, b]")).write("past/3.json")
    shown = run("history", "past", "--plots", "drawn")
    assert shown.exit_code == 0, shown.output
    pictures = sorted(path.name for path in (folder / "drawn").iterdir())
    assert pictures == ["lib-norm-a-b.png", "lib.norm.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (folder / "drawn").iterdir())


@pytest.mark.filterwarnings("error")
def test_history_draws_any_name(folder: Path) -> None:
    """Letters that the font lacks, lone surrogates, formulas and line breaks in names are drawn without a warning."""
    pytest.importorskip("matplotlib")
    named = {"implementation": "\u6b63\u898f\ud800 $x_{$\n", "dtype": "\u6b63"}
    audit(result(**named)).write("odd/$x_{$\u6b63.json")
    audit(result(**named, ulp=3.0, bits="bb")).write("odd/b.json")
    shown = run("history", "odd", "--plots", "drawn")
    assert shown.exit_code == 0, shown.output
    assert [path.read_bytes()[:4] for path in (folder / "drawn").iterdir()] == [b"\x89PNG"]


def judged(*more: str) -> Any:
    """A short audit by the command line."""
    few = ("--implementation", "textbook.rms_norm", "--profile", "quick", "--dtype", "float32", "--check", "accuracy")
    return run("audit", *few, "--no-isolation", "--output", "out", *more)


def test_a_baseline_forgives_what_it_knows(folder: Path) -> None:
    """What the baseline has and the audit has not is told as fixed; --keep stores the audit by its date."""
    assert judged("--keep", "kept").exit_code == 0
    (kept,) = (folder / "kept").iterdir()
    data = json.loads(kept.read_text(encoding="utf-8"))
    assert data == json.loads((folder / "out" / "audit.json").read_text(encoding="utf-8"))
    last = max(i for i, one in enumerate(data["results"]) if one["outcome"] == "passed")
    data["results"][last]["outcome"] = "failed"
    Path("failing.json").write_text(json.dumps(data), encoding="utf-8")
    shown = judged("--baseline", "failing.json", "--fail-on", "new")
    assert shown.exit_code == 0
    assert "fixed: 1" in shown.output


@pytest.mark.parametrize(("option", "code"), [((), 1), (("--fail-on", "new"), 0)])
def test_known_failures_of_a_baseline(folder: Path, monkeypatch: pytest.MonkeyPatch, option: tuple[str, ...], code: int) -> None:
    """A failure that the baseline has makes an audit fail unless only new ones are asked for."""
    audit(FAILS).write("base.json")
    monkeypatch.setitem(vars(nc), "audit", lambda *given, **more: audit(FAILS))
    assert judged("--baseline", "base.json", *option).exit_code == code
    monkeypatch.setitem(vars(nc), "audit", lambda *given, **more: audit(FAILS, replace(FAILS, regime="tiny")))
    assert judged("--baseline", "base.json", *option).exit_code == 1
