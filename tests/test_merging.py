"""Merging: shards give the audit of the whole plan, environments stand side by side, and contradictions are named."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import normcheck as nc
from normcheck import cli, ledger
from normcheck.merging import MergeError, merge
from normcheck.results import Outcome, Result

OPTIONS: dict[str, Any] = {"profile": "quick", "checks": ["accuracy"]}


def rms(x: Any, weight: Any) -> Any:
    """A sound RMSNorm."""
    h = x.astype(np.float32)
    return (h / np.sqrt((h * h).mean(-1, keepdims=True) + np.float32(1e-6)) * weight.astype(np.float32)).astype(x.dtype)


def norms() -> list[nc.Implementation]:
    """Three names of one sound norm, in two dtypes."""
    norm = nc.RMSNorm(eps=1e-6)
    return [nc.Implementation(rms, norm, framework="numpy", name=n, dtypes=("float32", "float16")) for n in ("c", "a", "b")]


def stripped(audit: nc.Audit) -> list[dict[str, Any]]:
    """Results without their times."""
    return [{**result.to_dict(), "seconds": 0} for result in audit.results]


def result(check: str = "accuracy", outcome: Outcome = Outcome.PASSED, **changes: Any) -> Result:
    """An invented result."""
    given: dict[str, Any] = {"implementation": "lib.norm", "norm": "RMSNorm(eps=1e-06)", "dtype": "float32", **changes}
    return Result(check=check, outcome=outcome, **given)


def born(**facts: Any) -> dict[str, Any]:
    """Where an invented audit was born."""
    return {"utc": "2026-01-02", "profile": "quick", "seed": 0, "versions": {"numpy": "2"}, "command": "normcheck audit", **facts}


@pytest.mark.parametrize("parts", [2, 4])
def test_shards_give_the_whole(parts: int) -> None:
    """The shards of a plan, joined in any order, are the audit of the plan."""
    whole = nc.audit(norms(), **OPTIONS)
    shards = {str(i): nc.audit(norms(), **OPTIONS, shard=(i, parts)) for i in range(parts, 0, -1)}
    joined = merge(shards)
    assert stripped(joined) == stripped(whole)
    assert joined.grades == whole.grades
    assert "interrupted" not in joined.born
    assert [part["shard"] for part in joined.born["parts"]] == [f"{i}/{parts}" for i in range(parts, 0, -1)]


def test_a_missing_shard_is_told() -> None:
    """An audit of some shards says which are missing, and that it is not whole."""
    joined = merge({str(i): nc.audit(norms(), **OPTIONS, shard=(i, 4)) for i in (1, 4)})
    assert joined.born["interrupted"] == "shards 2/4, 3/4 are missing"


@pytest.mark.parametrize("shard", [(0, 2), (3, 2)])
def test_shards_are_counted_from_one(shard: tuple[int, int]) -> None:
    """A share that there is not is refused."""
    with pytest.raises(ValueError, match=f"shard={shard[0]}/2, but should be between 1/2 and 2/2"):
        nc.audit(norms(), **OPTIONS, shard=shard)


def test_environments_stand_side_by_side() -> None:
    """Results of all are kept as they were judged, and so is where each was born and what was judged there."""
    one = nc.Audit((result(outcome=Outcome.XFAILED, ledger="known"),), born(versions={"numpy": "2", "torch": "2.13"}))
    two = nc.Audit((result(implementation="jax.norm"),), born(utc="2026-01-01", versions={"numpy": "1", "jax": "0.7"}))
    joined = merge({"one": one, "two": two})
    assert [(r.implementation, r.outcome, r.ledger) for r in joined.results] == [
        ("jax.norm", Outcome.PASSED, ""),
        ("lib.norm", Outcome.XFAILED, "known"),
    ]
    assert joined.born["versions"] == {"numpy": "2, 1", "torch": "2.13", "jax": "0.7"}
    assert joined.born["utc"] == "2026-01-01"
    assert joined.born["command"] == "normcheck audit"
    assert [part["implementations"] for part in joined.born["parts"]] == [["lib.norm"], ["jax.norm"]]
    assert [part["versions"] for part in joined.born["parts"]] == [one.born["versions"], two.born["versions"]]


def test_a_merged_audit_can_be_merged() -> None:
    """The parts of a merged audit are parts of the next."""
    audits = [nc.Audit((result(implementation=name),), born(versions={name: "1"})) for name in "abc"]
    twice = merge({"ab": merge({"a": audits[0], "b": audits[1]}), "c": audits[2]})
    assert [part["implementations"] for part in twice.born["parts"]] == [["a"], ["b"], ["c"]]
    assert [r.implementation for r in twice.results] == ["a", "b", "c"]


def test_a_contradiction_is_named() -> None:
    """One task with two different results is an error that names it and where it was found; times do not count."""
    one = nc.Audit((result(error=1.0, tolerance=2.0, seconds=1.0),), born())
    same = nc.Audit((result(error=1.0, tolerance=2.0, seconds=5.0),), born())
    other = nc.Audit((result(error=1.5, tolerance=2.0),), born())
    assert merge({"one": one, "same": same}).results == one.results
    with pytest.raises(MergeError, match=r"lib\.norm float32 cpu accuracy: the results in one and in other differ"):
        merge({"one": one, "other": other})


def test_numbers_that_differ_from_themselves_are_the_same() -> None:
    """A measure that is no number does not make a result differ from its like."""
    audits = {name: nc.Audit((result(measures={"ulp": float("nan")}),), born()) for name in ("one", "two")}
    assert len(merge(audits).results) == 1


def test_what_was_judged_stands_above_what_was_skipped() -> None:
    """A task that could not be run in one environment is taken from the other, whichever comes first."""
    skipped = nc.Audit((result(outcome=Outcome.SKIPPED, message="no cuda"),), born())
    judged = nc.Audit((result(),), born())
    for audits in ({"a": skipped, "b": judged}, {"b": judged, "a": skipped}):
        (kept,) = merge(audits).results
        assert kept.outcome is Outcome.PASSED


def test_the_ledger_sees_all_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one shard took for mended is a known fault where another shard still shows it, and is marked once where none does."""
    entry = ledger.Entry("lib.*", "lib", "<2", "accuracy", "is wrong")
    monkeypatch.setattr(ledger, "entries", lambda: (entry,))
    facts = born(versions={"lib": "1.0"})
    mended = replace(result(implementation="lib.a"), outcome=Outcome.XPASSED, ledger=entry.text)
    again = replace(mended, implementation="lib.b")
    known = replace(again, outcome=Outcome.XFAILED)
    for second, expected in ((known, [Outcome.PASSED, Outcome.XFAILED]), (again, [Outcome.XPASSED, Outcome.PASSED])):
        audits = {"1": nc.Audit((mended,), {**facts, "shard": "1/2"}), "2": nc.Audit((second,), {**facts, "shard": "2/2"})}
        assert [r.outcome for r in merge(audits).results] == expected


def test_nothing_to_merge() -> None:
    """At least one audit is needed."""
    with pytest.raises(ValueError, match="should hold at least one"):
        merge({})


def test_a_merged_audit_survives_its_file(tmp_path: Path) -> None:
    """The births of the parts are written and read, and their times stand apart."""
    joined = merge({str(i): nc.audit(norms(), **OPTIONS, shard=(i, 2)) for i in (1, 2)})
    path = joined.write(tmp_path / "audit.json")
    assert nc.Audit.read(path).born == json.loads(json.dumps(dict(joined.born)))
    assert len(json.loads(path.read_text(encoding="utf-8"))["times"]["parts"]) == 2


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``normcheck merge`` takes files and folders, writes a report folder, and exits as the merged audit deserves."""
    monkeypatch.chdir(tmp_path)
    nc.Audit((result(implementation="a"),), born()).write("a/audit.json")
    nc.Audit((result(implementation="b", outcome=Outcome.FAILED, message="y=1"),), born()).write("b.json")
    nc.Audit((result(implementation="b"),), born()).write("other.json")
    shown = CliRunner().invoke(cli.main, ["merge", "out", "a", "b.json"])
    assert shown.exit_code == 1, shown.output
    assert [r.implementation for r in nc.Audit.read("out/audit.json").results] == ["a", "b"]
    assert CliRunner().invoke(cli.main, ["merge", "out", "a"]).exit_code == 0
    wrong = CliRunner().invoke(cli.main, ["merge", "out", "other.json", "b.json"])
    assert wrong.exit_code == 2
    assert "b float32 cpu accuracy: the results in other.json and in b.json differ" in wrong.output
    assert CliRunner().invoke(cli.main, ["merge", "out", "a", "."]).exit_code == 2


def shards(*numbers: int, of: int = 2, **facts: Any) -> dict[str, nc.Audit]:
    """Invented shards of one plan, each with one implementation."""
    return {f"{i}.json": nc.Audit((result(implementation=f"lib.{i}"),), born(shard=f"{i}/{of}", **facts)) for i in numbers}


def test_an_empty_shard_is_there() -> None:
    """A shard that had nothing to judge knows fewer versions than the others, and counts as present whichever comes first."""
    full = nc.Audit((result(),), born(shard="1/2", versions={"numpy": "2", "torch": "2.13"}))
    empty = nc.Audit((), born(shard="2/2"))
    for audits in ({"full": full, "empty": empty}, {"empty": empty, "full": full}):
        joined = merge(audits)
        assert "interrupted" not in joined.born
        assert joined.born["versions"] == {"numpy": "2", "torch": "2.13"}
    elsewhere = nc.Audit((), born(shard="2/2", versions={"numpy": "1"}))
    assert merge({"full": full, "elsewhere": elsewhere}).born["interrupted"] == "shards 2/2, 1/2 are missing"


def test_a_shard_of_an_unknown_profile_is_taken_as_it_is() -> None:
    """What a file does not say of its birth keeps nothing from being merged."""
    assert len(merge({"one": nc.Audit((result(),), {"shard": "1/1"})}).results) == 1


def test_merged_parts_are_whole_together() -> None:
    """Shards that were merged in two steps are not missing."""
    first = merge(shards(1, 2, of=4))
    assert first.born["interrupted"] == "shards 3/4, 4/4 are missing"
    assert "interrupted" not in merge({"first": first, **shards(3, 4, of=4)}).born


def test_a_missing_shard_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merging what is not whole exits with 3 and the reason, and writes what there is."""
    monkeypatch.chdir(tmp_path)
    for name, audit in shards(1, 3, of=3).items():
        audit.write(name)
    shown = CliRunner().invoke(cli.main, ["merge", "out", "1.json", "3.json"])
    assert shown.exit_code == 3, shown.output
    assert "The audit is not whole: shard 2/3 is missing." in shown.output
    assert len(nc.Audit.read("out/audit.json").results) == 2


def test_what_was_judged_twice_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same shard twice, or a shard beside the whole, is one line; the whole lacks no shard."""
    monkeypatch.chdir(tmp_path)
    for name, audit in shards(1, 2).items():
        audit.write(name)
    nc.Audit(tuple(r for audit in shards(1, 2).values() for r in audit.results), born()).write("whole.json")
    shutil.copy("1.json", "again.json")
    twice = CliRunner().invoke(cli.main, ["merge", "out", "1.json", "2.json", "again.json"])
    assert twice.exit_code == 0, twice.output
    assert "1 task was judged in several audits, with the same results: 1.json, again.json\n" in twice.output
    beside = CliRunner().invoke(cli.main, ["merge", "out", "1.json", "whole.json"])
    assert beside.exit_code == 0, beside.output
    assert "1 task was judged in several audits, with the same results: 1.json, whole.json\n" in beside.output
    same = CliRunner().invoke(cli.main, ["merge", "out", "whole.json", "whole.json"])
    assert "An audit was given several times; it counts once.\n" in same.output


def test_a_malformed_time_keeps_nothing(tmp_path: Path) -> None:
    """merge --keep refuses, in one line, an audit whose time is a path."""
    source, kept = tmp_path / "one.json", tmp_path / "kept" / "deep"
    nc.Audit((result(),), born(utc="../../outside")).write(source)
    done = CliRunner().invoke(cli.main, ["merge", str(tmp_path / "out"), str(source), "--keep", str(kept)])
    assert done.exit_code == 2
    assert "--keep: utc='../../outside', but should be a time" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"]
