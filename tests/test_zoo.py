"""The zoo judged: what counts as caught, what is stored, and the table and the page that are made of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from normcheck import cli, zoo
from normcheck.checks import checks
from normcheck.faults import faults, sound, sound_warnings
from normcheck.reporters import zoo as shown
from normcheck.zoo import Judged, Zoo

FAULTS = {fault.name: fault for fault in faults()}
CAUGHT = "single-pass-variance"  # expected: accuracy in every dtype, others in one
SOUND = "two-pass"
DOCUMENTED = sound_warnings()[SOUND][0]
DTYPES = ("float32", "float16", "bfloat16")


def run(*arguments: str) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(cli.main, arguments)


def made(*judged: Judged, **changes: object) -> Zoo:
    """A zoo after all checks."""
    return dataclasses.replace(Zoo(judged, tuple(checks()), {"profile": "quick", "seed": 0}), **changes)


def caught(*missing: str, **changes: object) -> Judged:
    """The fault found by its expected checks, but for accuracy in the dtypes that are missing."""
    further = dict.fromkeys(FAULTS[CAUGHT].expected[1:], ("float32",))
    fired = {"accuracy": tuple(dtype for dtype in DTYPES if dtype not in missing), **further}
    return dataclasses.replace(Judged(CAUGHT, DTYPES, fired), **changes)


def whole() -> Zoo:
    """Every fault caught by all its checks, every sound norm with the warnings that are documented."""
    ill = [Judged(fault.name, fault.dtypes, dict.fromkeys(fault.expected, fault.dtypes)) for fault in faults()]
    well = [Judged(one.name, one.dtypes, {}, dict.fromkeys(sound_warnings().get(one.name, ()), one.dtypes)) for one in sound()]
    return made(*ill, *well)


# --- the verdict ------------------------------------------------------------------------------------------------------------


def test_a_zoo_of_caught_faults_passes() -> None:
    """Nothing is missed or flagged where all is as expected, and code and result do not differ."""
    judged = whole()
    assert judged.passed
    assert (judged.missed, judged.flagged, judged.drift) == ((), (), ())
    assert [row.fault for row in judged.rows] == list(faults())
    assert [one.name for one in judged.sound] == [one.name for one in sound()]


def test_the_first_expected_check_is_missed_by_dtype() -> None:
    """It must fire in every dtype."""
    judged = made(caught("float16"))
    assert [dict(row.missed) for row in judged.missed] == [{"accuracy": ("float16",)}]
    assert not judged.passed


def test_a_further_expected_check_is_missed_where_it_never_fires() -> None:
    """It must fire in one dtype, which cannot be told before the fault was judged in all of them."""
    judged = made(caught(errors={"accuracy": DTYPES}))
    assert [dict(row.missed) for row in judged.missed] == [dict.fromkeys(FAULTS[CAUGHT].expected[1:], DTYPES)]
    assert made(Judged(CAUGHT, ("float16",), {"accuracy": ("float16",)})).passed


def test_a_warning_finds_a_fault() -> None:
    """Error and warning in different dtypes add up."""
    errors = {"accuracy": DTYPES[:1], **dict.fromkeys(FAULTS[CAUGHT].expected[1:], DTYPES)}
    judged = made(caught(errors=errors, warnings={"accuracy": DTYPES[1:]}))
    assert judged.passed
    assert judged.judged[0].found("accuracy") == DTYPES


def test_checks_that_were_not_run_are_not_missed() -> None:
    """An audit of some checks asks for nothing from the others."""
    assert made(Judged(CAUGHT, DTYPES, {"accuracy": DTYPES}), checks=("accuracy",)).passed


def test_errors_and_undocumented_warnings_flag_a_sound_norm() -> None:
    """The warnings that the collection documents do not."""
    assert made(Judged(SOUND, DTYPES, {}, {DOCUMENTED: DTYPES})).passed
    (flagged,) = made(Judged(SOUND, DTYPES, {}, {DOCUMENTED: DTYPES, "moments": ("float32",)})).flagged
    assert flagged.warnings == {"moments": ("float32",)}
    (flagged,) = made(Judged(SOUND, DTYPES, {DOCUMENTED: DTYPES})).flagged
    assert flagged.errors == {DOCUMENTED: DTYPES}


def test_drift_names_what_differs() -> None:
    """Checks and norms that only one side has, and other dtypes, are told one a line."""
    judged = [one for one in whole().judged if one.name != SOUND]
    changed = made(Judged("gone", ("float32",)), Judged(CAUGHT, ("float64",)), *(one for one in judged if one.name != CAUGHT))
    ids = tuple(check for check in checks() if check != "accuracy")
    assert dataclasses.replace(changed, checks=(*ids, "old")).drift == (
        "check accuracy was not judged",
        "check old is no more",
        f"norm {SOUND} was not judged",
        "norm gone is no more",
        f"{CAUGHT}: dtypes differ",
    )


# --- choosing and judging ---------------------------------------------------------------------------------------------------


def test_names_and_kinds_choose() -> None:
    """Patterns choose faults and sound norms; kinds choose faults; both together must hold."""
    assert zoo.chosen() == (faults(), sound())
    assert {fault.kind for fault in zoo.chosen(kinds=["K01"])[0]} == {"K01"}
    assert zoo.chosen(kinds=["K01"])[1] == ()
    assert [[one.name for one in part] for part in zoo.chosen([CAUGHT, SOUND])] == [[CAUGHT], [SOUND]]
    with pytest.raises(ValueError, match=r"kind='K99', but should be one of K01, K02"):
        zoo.chosen(kinds=["K99"])
    with pytest.raises(ValueError, match=r"fault='two-pass' matches no fault and no sound norm"):
        zoo.chosen([SOUND], ["K01"])


def test_expected_checks_are_run_behind_a_failed_root() -> None:
    """The others wait for what they build upon."""
    fault = next(f for f in faults() if f.profile == "quick" and "accuracy" not in f.expected)
    (unit,) = zoo.units([fault], dtypes=fault.dtypes[:1])
    free = {check.id for check in unit.checks if not check.requires}
    assert free == {*fault.expected, *(id_ for id_, check in checks().items() if not check.requires)}
    assert [check.id for check in unit.checks] == list(checks())


@pytest.mark.parametrize("profile", ["quick", "deep"])
def test_a_fault_is_judged_in_the_profile_that_it_needs(profile: str) -> None:
    """Its expected checks are run once more where it needs a more thorough one than the others."""
    fault = next(f for f in faults() if f.profile == "deep")
    planned = zoo.units([fault], profile=profile, dtypes=fault.dtypes[:1])
    assert [unit.context.profile for unit in planned] == list(dict.fromkeys([profile, "deep"]))
    assert set(fault.expected) <= {check.id for check in planned[-1].checks}


def test_what_is_judged_comes_back() -> None:
    """Errors and warnings are gathered by check and dtype, and the run is described."""
    planned = zoo.units(*zoo.chosen([CAUGHT, SOUND]), checks=["accuracy", "overflow"], dtypes=["float32"])
    steps: list[tuple[int, int]] = []
    judged = zoo.judge(planned, progress=lambda done, total, _: steps.append((done, total)), profile="quick", seed=0)
    assert [one.name for one in judged.judged] == [CAUGHT, SOUND]
    assert judged.rows[0].judged.errors["accuracy"] == ("float32",)
    assert judged.sound[0].warnings == {"overflow": ("float32",)}
    assert judged.passed
    assert set(judged.checks) == {"output-form", "accuracy", "overflow"}
    assert steps == [(i + 1, 6) for i in range(6)]
    assert judged.born["profile"] == "quick"


def test_an_interrupt_keeps_what_was_judged() -> None:
    """The zoo says that it is a part."""
    planned = zoo.units((FAULTS[CAUGHT],), checks=["accuracy"])

    def stop(done: int, total: int, label: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    judged = zoo.judge(planned, progress=stop)
    assert judged.interrupted
    assert [one.dtypes for one in judged.judged] == [(planned[0].context.dtype,)]


# --- stored results ---------------------------------------------------------------------------------------------------------


def test_a_stored_zoo_comes_back(tmp_path: Path) -> None:
    """Reading inverts writing, and a norm has a line of its own."""
    judged = made(caught(), Judged(SOUND, DTYPES, {}, {DOCUMENTED: DTYPES}))
    path = judged.write(tmp_path / "new" / "zoo.json")
    assert zoo.read(path) == judged
    assert sum(f'"name": "{CAUGHT}"' in line for line in path.read_text(encoding="utf-8").splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "holds no JSON"),
        ("[]", "holds no zoo"),
        ('{"schema": 1, "results": []}', "no zoo: the keys 'schema' and 'zoo' are missing"),
        ('{"schema": 99, "zoo": []}', "schema=99, but should be at most 1: it was written by a newer normcheck"),
    ],
)
def test_what_is_no_zoo_is_refused(tmp_path: Path, content: str, message: str) -> None:
    """The message says what is missing."""
    path = tmp_path / "zoo.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        zoo.read(path)


# --- table and page ---------------------------------------------------------------------------------------------------------


def test_the_page_holds_every_fault_check_and_sound_norm() -> None:
    """With kind, statement and provenance, and the verdict."""
    page = shown.render(whole())
    for fault in faults():
        (line,) = [line for line in page.splitlines() if line.startswith(f"| `{fault.name}` |")]
        assert fault.provenance[0] in line
        assert all(f"**{check}**" in line for check in fault.expected)
        assert f"\n## {fault.kind}\n" in page
    assert all(f"| `{name}` |" in page for name in (*checks(), *(one.name for one in sound())))
    assert f"{len(faults())} of {len(faults())} faults caught as expected; 0 of {len(sound())} sound norms flagged" in page


def test_the_page_tells_what_is_amiss() -> None:
    """Faults that were missed and sound norms that were flagged have a line before all tables."""
    page = shown.render(made(caught("float16"), Judged(SOUND, DTYPES, {"moments": ("float32",)})))
    assert f"- K01 {CAUGHT}: not found by accuracy (float16)\n" in page
    assert f"- {SOUND}: sound, but moments (float32) flagged it\n" in page
    assert "**accuracy** (float32 bfloat16), **shift-invariance** (float32)" in page


def test_marks_on_the_page() -> None:
    """Expected checks are bold, those that only warn in italics; mathematics is kept from being read as emphasis."""
    page = shown.render(made(caught(errors={"accuracy": DTYPES}, warnings={"shift-invariance": DTYPES, "overflow": DTYPES})))
    assert "| **accuracy**, ***shift-invariance***, *overflow* |" in page
    assert r"E\[x\*\*2\] - E\[x\]\*\*2" in page


# --- the command line -------------------------------------------------------------------------------------------------------


def test_audit_of_faults(tmp_path: Path) -> None:
    """The matrix is printed and written, and all as expected exits 0."""
    quick = ("--profile", "quick", "--check", "accuracy", "--workers", "1", "--output", str(tmp_path))
    done = run("audit", "--faults", "--fault", CAUGHT, *quick)
    assert done.exit_code == 0
    assert CAUGHT in done.output
    assert "1 of 1 faults caught as expected; 0 of 0 sound norms flagged" in done.output
    assert zoo.read(tmp_path / "zoo.json").rows[0].fault is FAULTS[CAUGHT]
    assert CAUGHT in (tmp_path / "faults.md").read_text(encoding="utf-8")


def test_a_missed_fault_exits_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the table tells by which check."""
    monkeypatch.setattr(zoo, "judge", lambda *_, **__: made(caught("float16")))
    done = run("audit", "--kind", "K01", "--output", str(tmp_path))
    assert done.exit_code == 1
    assert f"K01 {CAUGHT}: not found by accuracy (float16)" in done.output


def test_an_interrupted_zoo_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was judged until then, and the exit code is that of an interrupt."""
    monkeypatch.setattr(zoo, "judge", lambda *_, **__: made(caught(), interrupted=True))
    assert run("audit", "--faults", "--output", str(tmp_path)).exit_code == 130
    assert (tmp_path / "zoo.json").exists()


def test_faults_can_be_planned_without_judging(tmp_path: Path) -> None:
    """--dry-run prints the parts."""
    done = run("audit", "--fault", CAUGHT, "--dry-run", "--output", str(tmp_path / "none"))
    assert done.exit_code == 0
    assert "3 parts" in done.output
    assert not (tmp_path / "none").exists()


def test_unknown_faults_and_kinds_are_wrong_usage() -> None:
    """The message says what there is."""
    assert "kind='K99', but should be one of K01" in run("audit", "--kind", "K99").output
    done = run("audit", "--fault", "no-such-*")
    assert done.exit_code == 2
    assert "fault='no-such-*' matches no fault and no sound norm" in done.output


def test_report_makes_the_page_of_a_stored_zoo(tmp_path: Path) -> None:
    """A zoo that has all that the code has exits 0."""
    stored = whole().write(tmp_path / "zoo.json")
    done = run("report", str(stored), "-o", str(tmp_path / "faults.md"))
    assert (done.exit_code, done.output) == (0, "")
    assert (tmp_path / "faults.md").read_text(encoding="utf-8") == shown.render(whole())
    assert run("report", str(stored)).output == shown.render(whole())


def test_report_of_a_stale_zoo_exits_1(tmp_path: Path) -> None:
    """What the code has and the stored result lacks is told on the error stream."""
    stored = made(caught()).write(tmp_path / "zoo.json")
    done = run("report", str(stored))
    assert done.exit_code == 1
    assert f"norm {SOUND} was not judged\n" in done.stderr
    assert json.loads(stored.read_text(encoding="utf-8"))["zoo"][0]["name"] == CAUGHT
