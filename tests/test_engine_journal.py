"""The journal: an audit that was broken off is gone on with; nothing is lost, nothing run twice, and the result is the same."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normcheck as nc
from normcheck.audit import Interrupted
from normcheck.engine import journal
from normcheck.engine.journal import Journal, JournalError
from normcheck.engine.units import plan

NORM = nc.RMSNorm(eps=1e-6)
OPTIONS: dict[str, Any] = {"profile": "quick", "dtypes": ["float32", "float16"], "checks": ["accuracy", "scale-invariance"]}
CALLS: list[str] = []


def rms(x: Any, weight: Any) -> Any:
    """A sound RMSNorm that counts its calls."""
    CALLS.append("rms")
    h = x.astype(np.float32)
    return (h / np.sqrt((h * h).mean(-1, keepdims=True) + np.float32(1e-6)) * weight.astype(np.float32)).astype(x.dtype)


def without_eps(x: Any, weight: Any) -> Any:
    """RMSNorm that forgot eps."""
    with np.errstate(all="ignore"):
        return (x / np.sqrt((x * x).mean(-1, keepdims=True)) * weight).astype(x.dtype)


def norms() -> list[nc.Implementation]:
    """A sound and a broken norm."""
    return [
        nc.Implementation(call, NORM, framework="numpy", name=call.__name__, dtypes=("float32", "float16"), grad=None)
        for call in (rms, without_eps)
    ]


def broken_off(path: Path, after: int) -> None:
    """An audit that is interrupted after so many tasks."""

    def progress(done: int, total: int, label: str) -> None:
        if done == after:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        nc.audit(norms(), **OPTIONS, journal=path, progress=progress)


def timeless(audit: nc.Audit) -> str:
    """An audit as its file has it, but for times."""
    data = audit.to_dict()
    data.pop("times")
    return json.dumps(data)


def tasks(path: Path) -> list[str]:
    """The names of the tasks in a journal."""
    whole = path.read_bytes().rpartition(b"\n")[0]
    return [json.dumps(json.loads(line)["task"]) for line in whole.splitlines()[1:]]


@pytest.mark.parametrize("after", [1, 3, 5])
def test_going_on_gives_the_same_audit(tmp_path: Path, after: int) -> None:
    """What was measured is not run again, and the whole is what an uninterrupted audit gives, roots that failed included."""
    path = tmp_path / "journal.jsonl"
    whole = nc.audit(norms(), **OPTIONS)
    broken_off(path, after)
    begun = tasks(path)
    done = nc.audit(norms(), **OPTIONS, journal=path, resume=True)
    assert len(begun) == after
    assert tasks(path)[:after] == begun
    assert len(set(tasks(path))) == len(tasks(path))
    assert timeless(done) == timeless(whole)


def test_what_is_done_is_not_run_again(tmp_path: Path) -> None:
    """Going on with a finished audit calls nothing."""
    path = tmp_path / "journal.jsonl"
    whole = nc.audit(norms(), **OPTIONS, journal=path)
    CALLS.clear()
    again = nc.audit(norms(), **OPTIONS, journal=path, resume=True)
    assert CALLS == []
    assert again.to_dict() == whole.to_dict()


@pytest.mark.parametrize("cut", [1, 40])
def test_a_torn_last_line_is_run_again(tmp_path: Path, cut: int) -> None:
    """A line that was not written to its end counts as not written, and the lines behind it are whole."""
    path = tmp_path / "journal.jsonl"
    whole = nc.audit(norms(), **OPTIONS, journal=path)
    raw = path.read_bytes()
    path.write_bytes(raw[:-cut])
    done = nc.audit(norms(), **OPTIONS, journal=path, resume=True)
    assert timeless(done) == timeless(whole)
    assert len(path.read_bytes().splitlines()) == len(raw.splitlines())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"seed": 3}, "seed=3, but should be 0, with which .* was begun"),
        ({"profile": "standard"}, "profile='standard', but should be 'quick'"),
        ({"dtypes": ["float32"]}, r"dtypes=\['float32'\], but should be \['float32', 'float16'\]"),
        ({"time_limit": 5.0}, "time_limit=5.0, but should be None"),
        ({"shard": (1, 2)}, r"shard=\[1, 2\], but should be None"),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    """An audit is gone on with only with the settings that it was begun with; the message says which differs."""
    path = tmp_path / "journal.jsonl"
    broken_off(path, 2)
    with pytest.raises(JournalError, match=said):
        nc.audit(norms(), **{**OPTIONS, **changed}, journal=path, resume=True)


def test_other_versions_are_refused(tmp_path: Path) -> None:
    """Results of another version of a library are not mixed with these."""
    path = tmp_path / "journal.jsonl"
    broken_off(path, 2)
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    changed = json.loads(header)
    changed["born"]["versions"]["numpy"] = "1.0"
    path.write_text("\n".join([json.dumps(changed), *lines]) + "\n", encoding="utf-8")
    with pytest.raises(JournalError, match=r"versions=\{'numpy': '.*'\}, but should be \{'numpy': '1.0'\}"):
        nc.audit(norms(), **OPTIONS, journal=path, resume=True)


def rewritten(path: Path, **facts: Any) -> None:
    """Change where the audit of a journal was born; None takes a fact away."""
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    changed = json.loads(header)
    changed["born"] = {key: value for key, value in {**changed["born"], **facts}.items() if value is not None}
    path.write_text("\n".join([json.dumps(changed), *lines]) + "\n", encoding="utf-8")


def test_another_normcheck_is_refused(tmp_path: Path) -> None:
    """Results of another commit of normcheck are not mixed with these."""
    path = tmp_path / "journal.jsonl"
    broken_off(path, 2)
    rewritten(path, normcheck="0123")
    with pytest.raises(JournalError, match=r"normcheck='.*', but should be '0123', with which .* was begun"):
        nc.audit(norms(), **OPTIONS, journal=path, resume=True)


@pytest.mark.parametrize("facts", [{"commit": "0123"}, {"commit": "0123", "normcheck": None}], ids=["new", "old"])
def test_a_commit_of_the_folder_keeps_no_audit_from_being_gone_on_with(tmp_path: Path, facts: dict[str, Any]) -> None:
    """The folder that the command runs in may have moved on; journals that know no commit of normcheck are read as well."""
    path = tmp_path / "journal.jsonl"
    whole = nc.audit(norms(), **OPTIONS)
    broken_off(path, 2)
    rewritten(path, **facts)
    done = nc.audit(norms(), **OPTIONS, journal=path, resume=True)
    assert [replace(result, seconds=0.0) for result in done.results] == [replace(r, seconds=0.0) for r in whole.results]
    assert done.born["commit"] == "0123"


def test_another_plan_is_refused(tmp_path: Path) -> None:
    """An implementation more or less is another audit; it is named."""
    path = tmp_path / "journal.jsonl"
    broken_off(path, 2)
    with pytest.raises(JournalError, match="another plan: without_eps float16 cpu is not the same in both"):
        nc.audit(norms()[:1], **OPTIONS, journal=path, resume=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read: No such file"),
        ("", "holds no plan: the audit was broken off before it began"),
        ('{"task": []}\n', "holds no plan"),
        ('{"journal": 99}\n', "journal=99, but should be at most 1: it was written by a newer normcheck"),
        ('{"journal": 1}\nnonsense\n{}\n', "is damaged in line 2"),
        ('{"journal": 1}\n{"task": ["i", "float32", "cpu", "c"], "results": [{}]}\n', "is damaged: check is missing"),
        ('{"journal": 1}\n[]\n', "is damaged: "),
    ],
)
def test_files_that_are_no_journal_are_refused(tmp_path: Path, text: str | None, said: str) -> None:
    """What is wrong with the file is said."""
    path = tmp_path / "journal.jsonl"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(JournalError, match=said):
        nc.audit(norms(), **OPTIONS, journal=path, resume=True)


def test_resume_needs_a_journal() -> None:
    """Without a journal there is nothing to go on with."""
    with pytest.raises(ValueError, match="resume=True, but should come with the journal"):
        nc.audit(norms(), **OPTIONS, resume=True)


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    """Two audits do not write one journal."""
    pytest.importorskip("fcntl")
    path = tmp_path / "journal.jsonl"
    units = plan(norms(), profile="quick")
    first = Journal.begin(path, units, {}, {})
    with pytest.raises(JournalError, match="is being written by another audit"):
        Journal.begin(path, units, {}, {})
    assert journal.read(path)[0]["plan"] == journal.planned(units)
    first.close()
    Journal.begin(path, units, {}, {}).close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_told(tmp_path: Path) -> None:
    """When the disk is full the audit stops in one line; what was written before stays and is gone on with."""
    path = tmp_path / "journal.jsonl"
    units = plan(norms(), **OPTIONS)
    kept = Journal.begin(path, units, {}, {})
    kept.append(units[0].key(0), [])
    kept._stream.close()
    kept._stream = Path("/dev/full").open("ab", buffering=0)  # noqa: SIM115 - the journal closes it
    with pytest.raises(JournalError, match="cannot be written: No space left on device; it holds 1 finished tasks, from which"):
        kept.append(units[0].key(1), [])
    assert list(journal.read(path)[1]) == [units[0].key(0)]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """A journal below a file is refused before anything is run."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(JournalError, match="cannot be written"):
        nc.audit(norms(), **OPTIONS, journal=tmp_path / "file" / "journal.jsonl")


COMMAND = [
    *(
        sys.executable,
        "-m",
        "normcheck",
        "audit",
        "--profile",
        "quick",
        "--dtype",
        "float32",
        "--implementation",
        "textbook.*_norm",
    ),
    *("--check", "accuracy", "--check", "scale-invariance", "--check", "shift-invariance", "--check", "outlier-sensitivity"),
    *("--framework", "numpy", "--output", "out"),
]


def command(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    """The audit as a process, in a folder."""
    folder.mkdir(exist_ok=True)
    paths = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": str(Path(nc.__file__).parents[1]) + os.pathsep + paths}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([*COMMAND, *more], cwd=folder, env=environment, **quiet)


def stored(folder: Path) -> str:
    """The audit that a command has written, but for times and for what was typed."""
    data = json.loads((folder / "out" / "audit.json").read_text(encoding="utf-8"))
    data.pop("times")
    return json.dumps(data)


def killed_until_done(folder: Path, moments: random.Random) -> int:
    """Begin or go on with the audit and kill it, until it ends before it is killed; how often it was killed."""
    path = folder / "out" / journal.NAME
    kills, seen = 0, 0
    while True:
        begun = path.exists() and b"\n" in path.read_bytes()
        process = command(folder, *(("--resume", "out") if begun else ()))
        with contextlib.suppress(subprocess.TimeoutExpired):
            assert process.wait(timeout=moments.uniform(0.5, 6.0)) == 0
            return kills
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        count = len(tasks(path)) if path.exists() and path.read_bytes() else 0
        assert count >= seen
        seen = count


@pytest.mark.slow
def test_twenty_kills_lose_nothing(tmp_path: Path) -> None:
    """Killed at twenty random moments and gone on with, audits are the same but for times; nothing is lost or kept twice."""
    assert command(tmp_path / "whole").wait() == 0
    whole = sorted(tasks(tmp_path / "whole" / "out" / journal.NAME))
    moments, kills, number = random.Random(5), 0, 0
    while kills < 20:
        folder = tmp_path / f"killed {number}"
        kills += killed_until_done(folder, moments)
        number += 1
        names = tasks(folder / "out" / journal.NAME)
        assert sorted(names) == whole
        assert len(names) == len(set(names))
        assert stored(folder) == stored(tmp_path / "whole")
    print(f"{kills} kills in {number} audits")  # noqa: T201 - how hard it was tried
