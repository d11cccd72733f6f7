"""The engine from the command line: isolation, going on, shards, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import normcheck as nc
from normcheck import born, cli
from normcheck.audit import Interrupted

FEW = (
    "--implementation",
    "textbook.l*_norm",
    "--profile",
    "quick",
    "--dtype",
    "float32",
    "--check",
    "accuracy",
    "--output",
    "out",
)
MINE = """
import os
import numpy as np

def rms_norm(x, weight):
    wide = x.astype(np.float64)
    return (wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-6) * weight).astype(x.dtype)

def aborts(x, weight):
    os.abort()

def sleeps(x, weight):
    import time
    time.sleep(1000)
"""


def run(*arguments: str) -> Any:
    """Run the command line in this process."""
    return CliRunner().invoke(cli.main, arguments)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with user code in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    return tmp_path


@pytest.fixture
def broken_off(folder: Path) -> Path:
    """A report folder of an audit that was broken off in the middle, and beside it that of the whole."""
    assert run("audit", *FEW, "--no-isolation").exit_code == 0
    (folder / "out").rename(folder / "whole")
    (folder / "out").mkdir()
    lines = (folder / "whole" / "journal.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "out" / "journal.jsonl").write_text("".join(lines[: len(lines) // 2]) + '{"task": ["to', encoding="utf-8")
    return folder


def timeless(path: Path) -> dict[str, Any]:
    """A stored audit but for times."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    data.pop("times")
    return data


def check(name: str, *more: str) -> Any:
    """Check a function of the user code."""
    quick = ("--profile", "quick", "--dtype", "float32", "--check", "output-form")
    return run("check", f"mine.py:{name}", "--norm", "rms_norm", "--framework", "numpy", *quick, *more)


def test_going_on(broken_off: Path) -> None:
    """``--resume DIR`` needs no other option, and writes what an uninterrupted audit writes, but for times."""
    shown = run("audit", "--resume", "out", "--no-isolation")
    assert shown.exit_code == 0, shown.output
    assert timeless(broken_off / "out" / "audit.json") == timeless(broken_off / "whole" / "audit.json")
    assert (broken_off / "out" / "report.md").exists()


def test_going_on_behind_a_commit_says_so(broken_off: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the folder has another commit than at the beginning, that is told, and the audit is gone on with."""
    path = broken_off / "out" / "journal.jsonl"
    header, _, rest = path.read_text(encoding="utf-8").partition("\n")
    begun = json.loads(header)
    begun["born"]["commit"] = "a" * 40
    path.write_text(f"{json.dumps(begun)}\n{rest}", encoding="utf-8")
    monkeypatch.setattr(born, "commit", lambda: "b" * 40)
    shown = run("audit", "--resume", "out", "--no-isolation")
    assert shown.exit_code == 0, shown.output
    assert "Begun at commit aaaaaaaaaaaa, gone on with at bbbbbbbbbbbb: what was judged already" in shown.output


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--seed", "3"), "seed=3, but should be 0, with which out was begun"),
        (("--dtype", "float16"), "dtypes=['float16'], but should be ['float32'], with which out was begun"),
        (("--framework", "torch"), "framework='torch', but should be None, with which out was begun"),
        (("--shard", "1/2"), "shard=[1, 2], but should be None, with which out was begun"),
        (("--output", "other"), "with which out was begun"),
    ],
)
def test_going_on_otherwise_is_refused(broken_off: Path, option: tuple[str, ...], said: str) -> None:
    """An option that differs from what the audit was begun with is named, exit code 2."""
    shown = run("audit", "--resume", "out", *option)
    assert shown.exit_code == 2
    assert said in " ".join(shown.output.split())


def test_what_was_begun_with_may_be_said_again(broken_off: Path) -> None:
    """The command that was broken off, with --resume behind it, goes on."""
    assert run("audit", *FEW, "--resume", "out", "--no-isolation").exit_code == 0


def test_going_on_with_nothing(folder: Path) -> None:
    """A folder without a journal cannot be gone on with, in one line."""
    (folder / "empty").mkdir()
    shown = run("audit", "--resume", "empty")
    assert shown.exit_code == 2
    assert "--resume=empty, but it holds no journal.jsonl: no audit was begun there" in shown.output


def test_an_interrupted_command_can_be_gone_on_with(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C writes what there is and exits 130; going on gives the whole."""
    real = nc.audit

    def interrupted(*given: Any, **more: Any) -> Any:
        def progress(done: int, total: int, label: str) -> None:
            if done == 3:
                raise KeyboardInterrupt

        with pytest.raises(Interrupted) as stop:
            real(*given, **{**more, "progress": progress})
        raise stop.value

    with monkeypatch.context() as patched:
        patched.setitem(vars(nc), "audit", interrupted)
        assert run("audit", *FEW, "--no-isolation").exit_code == 130
    assert "3 of" in nc.Audit.read("out/audit.json").born["interrupted"]
    assert run("audit", "--resume", "out", "--no-isolation").exit_code == 0
    assert "interrupted" not in nc.Audit.read("out/audit.json").born


def test_shards_of_the_command_line(folder: Path) -> None:
    """The shards of a plan are merged to the audit of the plan; one that has no unit is written, empty, and exits 0."""
    assert run("audit", *FEW, "--no-isolation").exit_code == 0
    whole = timeless(folder / "out" / "audit.json")["results"]
    units = len({(one["implementation"], one["dtype"]) for one in whole if one["norm"]})
    count = units + 1
    for part in range(1, count + 1):
        shown = run("audit", *FEW, "--no-isolation", "--shard", f"{part}/{count}", "--output", f"s{part}")
        assert shown.exit_code == 0, shown.output
    assert "this one is empty" in shown.output
    assert run("merge", "m", *(f"s{part}" for part in range(1, count + 1))).exit_code == 0
    assert timeless(folder / "m" / "audit.json")["results"] == whole


@pytest.mark.parametrize(
    ("name", "option", "said"),
    [("aborts", (), "the process died of SIGABRT"), ("sleeps", ("--time-limit", "2s"), "time=2 s and more, but should be less")],
)
def test_code_that_dies_or_hangs_is_a_finding(folder: Path, name: str, option: tuple[str, ...], said: str) -> None:
    """`check` runs the code in another process: what it does there is a result, exit code 1."""
    shown = check(name, *option, "--output", "out")
    assert shown.exit_code == 1, shown.output
    (failure,) = nc.Audit.read("out/audit.json").failures
    assert failure.message.startswith(said)
    assert failure.check == "output-form"


def test_one_process_for_debuggers(folder: Path) -> None:
    """Without isolation the code runs in this process; in another one otherwise. It has one worker at most."""
    told = folder / "told"
    with (folder / "mine.py").open("a", encoding="utf-8") as stream:
        stream.write(
            f"\n\ndef tells(x, weight):\n    open({str(told)!r}, 'w').write(str(os.getpid()))\n    return rms_norm(x, weight)\n"
        )
    assert check("tells").exit_code == 0
    assert told.read_text(encoding="utf-8") != str(os.getpid())
    assert check("tells", "--no-isolation").exit_code == 0
    assert told.read_text(encoding="utf-8") == str(os.getpid())
    shown = check("rms_norm", "--no-isolation", "--workers", "2")
    assert shown.exit_code == 2
    assert "--workers 2 goes with worker processes" in shown.output


def test_a_scheduler_that_is_not_there(folder: Path) -> None:
    """A cluster that cannot be reached is one line, exit code 3."""
    pytest.importorskip("distributed")
    shown = run("audit", *FEW, "--scheduler", "nonsense://here")
    assert shown.exit_code == 3
    assert "normcheck could not run: scheduler='nonsense://here' cannot be reached" in " ".join(shown.output.split())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a signal that can be handled is POSIX's")
def test_a_terminated_audit_writes_what_was_done(folder: Path) -> None:
    """SIGTERM is what Ctrl-C is: the report of what was done is written, exit code 130."""
    options = ("--framework", "numpy", "--profile", "quick", "--workers", "1", "--output", "out")
    environment = {**os.environ, "PYTHONPATH": str(Path(nc.__file__).parents[1])}
    command = (sys.executable, "-m", "normcheck", "audit", *options)
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as running:
        journal = folder / "out" / "journal.jsonl"
        while running.poll() is None and not (journal.exists() and journal.read_bytes().count(b"\n") > 3):
            time.sleep(0.05)
        running.send_signal(signal.SIGTERM)
        said = running.communicate()[1]
    assert running.returncode == 130, said
    assert "Interrupted." in said
    stored = nc.Audit.read(folder / "out" / "audit.json")
    assert "tasks were done" in stored.born["interrupted"]
    assert len(stored.results) >= 3


@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN])
def test_the_handling_of_signals_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch, before: Any) -> None:
    """Within a command SIGTERM interrupts, unless its caller has decided otherwise; behind it all is as before."""
    found: list[Any] = []
    monkeypatch.setattr(cli, "listed", lambda name: (found.append(signal.getsignal(signal.SIGTERM)), ((), ()))[1])
    old = signal.signal(signal.SIGTERM, before)
    try:
        assert run("list", "norms").exit_code == 0
        assert signal.getsignal(signal.SIGTERM) is before
    finally:
        signal.signal(signal.SIGTERM, old)
    assert (found[0] is before) == (before is signal.SIG_IGN)
