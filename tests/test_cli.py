"""The command line: what it refuses, what it writes, and how it exits."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import normcheck
from normcheck import cli
from normcheck.checks import checks
from normcheck.norms import NORMS
from normcheck.regimes import REGIMES
from normcheck.results import Outcome

SOUND = """
import numpy as np

def rms_norm(x, weight):
    wide = x.astype(np.float64)
    scale = np.sqrt(np.square(wide).mean(axis=-1, keepdims=True) + 1e-6)
    return (wide / scale * weight.astype(np.float64)).astype(x.dtype)

def raises(x, weight):
    raise RuntimeError("no such kernel")

def one_argument(x):
    return x

def wrong_shape(x, weight):
    return x[..., :1]

def no_array(x, weight):
    return "text"

def nan(x, weight):
    return x * np.float32("nan")

not_callable = 3
"""


def run(*arguments: str) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(cli.main, arguments)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with user code in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SOUND, encoding="utf-8")
    wrong = {"check": 3, "implementation": "i", "norm": "n", "dtype": "float32", "outcome": "passed"}
    (tmp_path / "wrong.json").write_text(json.dumps({"schema": 1, "results": [wrong]}), encoding="utf-8")
    (tmp_path / "raising.py").write_text("raise ValueError('at import')\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def judged(audit: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands for the audit: gives the invented results, and keeps what it was asked."""
    asked: dict[str, Any] = {"returns": audit}

    def fake(implementations: Any, progress: Any, **options: Any) -> Any:
        asked.update(options, names=[one.name for one in implementations])
        progress(1, 2, "lib.layer_norm [float32]")
        if isinstance(asked["returns"], BaseException):
            raise asked["returns"]
        return asked["returns"]

    monkeypatch.setitem(vars(normcheck), "audit", fake)
    return asked


def judge(name: str, *more: str) -> Result:
    """Check a function of the user code as an RMSNorm in numpy, briefly."""
    quick = ("--profile", "quick", "--dtype", "float32", "--check", "output-form", "--check", "accuracy")
    return run("check", f"mine.py:{name}", "--norm", "rms_norm", "--eps", "1e-6", "--framework", "numpy", *quick, *more)


# --- exit codes -------------------------------------------------------------------------------------------------------------


def test_help_documents_the_exit_codes() -> None:
    """Both judging commands and the program itself list every exit code."""
    for arguments in (["--help"], ["audit", "--help"], ["check", "--help"]):
        shown = run(*arguments)
        assert shown.exit_code == 0
        assert re.findall(r"(?m)^ +(\d+)  ", shown.output) == ["0", "1", "2", "3", "130"]


def test_version() -> None:
    """``--version`` says which."""
    assert run("--version").output.split()[-1] == normcheck.__version__


def test_failures_exit_1(judged: dict[str, Any]) -> None:
    """An audit with failures exits 1, and its report is written all the same."""
    shown = run("audit", "--framework", "numpy")
    assert shown.exit_code == 1
    assert {"report.md", "audit.json"} <= {path.name for path in Path("normcheck-report").iterdir()}
    assert "1 of 3 implementations fails" in shown.output


@pytest.mark.parametrize(
    ("outcome", "option", "code"),
    [
        (Outcome.PASSED, (), 0),
        (Outcome.WARNED, (), 0),
        (Outcome.WARNED, ("--fail-on-warning",), 1),
        (Outcome.XFAILED, ("--fail-on-warning", "--strict-ledger"), 0),
        (Outcome.XPASSED, (), 0),
        (Outcome.XPASSED, ("--strict-ledger",), 1),
        (Outcome.BROKEN, (), 1),
        (Outcome.CRASHED, (), 1),
        (Outcome.TIMEOUT, (), 1),
        (Outcome.SKIPPED, (), 3),
    ],
)
def test_outcomes_decide_the_exit_code(
    judged: dict[str, Any], audit: Any, outcome: Outcome, option: tuple[str, ...], code: int
) -> None:
    """Warnings and the ledger count when asked; an audit that judged nothing is none."""
    skipped = next(r for r in audit.results if r.outcome is Outcome.SKIPPED)
    judged["returns"] = dataclasses.replace(audit, results=(dataclasses.replace(skipped, outcome=outcome), skipped))
    assert run("audit", "--framework", "numpy", *option).exit_code == code


def test_interrupt_writes_what_was_measured(judged: dict[str, Any], audit: Any) -> None:
    """Ctrl-C writes the results that there are, and exits 130."""
    stop = KeyboardInterrupt()
    stop.audit = audit  # type: ignore[attr-defined]
    judged["returns"] = stop
    shown = run("audit", "--framework", "numpy", "--output", "here")
    assert shown.exit_code == 130
    assert len(json.loads(Path("here/audit.json").read_text(encoding="utf-8"))["results"]) == len(audit.results)


def test_interrupt_before_any_result(judged: dict[str, Any]) -> None:
    """Ctrl-C before the first result writes nothing, and exits 130."""
    judged["returns"] = KeyboardInterrupt()
    assert run("audit", "--framework", "numpy", "--output", "here").exit_code == 130
    assert not Path("here").exists()


def test_nothing_to_judge_exits_3(folder: Path) -> None:
    """An audit that no implementation is in says so, and overwrites no report."""
    shown = run("audit", "--implementation", "textbook.rms_norm", "--dtype", "float8_e5m2")
    assert shown.exit_code == 3
    assert "Nothing was judged: " in shown.stderr
    assert not (folder / "normcheck-report").exists()


def test_a_device_that_is_not_there_is_named_where_nothing_is_judged(folder: Path) -> None:
    """The last line says why: the reason that most results have."""
    given = ["audit", "--implementation", "textbook.rms_norm", "--device", "cuda", "--profile", "quick", "--check", "accuracy"]
    shown = run(*given)
    assert shown.exit_code == 3
    assert re.search(r"Nothing was judged: device='cuda', but numpy .* finds cpu\.", shown.stderr), shown.stderr


def test_json_is_written_before_the_report(judged: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt while the plots are drawn loses no result."""

    def stop(audit: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("normcheck.reporters.plots.draw", stop)
    assert run("audit", "--framework", "numpy", "--output", "here").exit_code == 130
    assert [path.name for path in Path("here").iterdir()] == ["audit.json"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("name", ["report.md", "report.html", "junit.xml"])
def test_a_full_disk_names_the_file(judged: dict[str, Any], folder: Path, name: str) -> None:
    """Which report could not be written is said, exit code 3."""
    (folder / "here").mkdir()
    (folder / "here" / name).symlink_to("/dev/full")
    shown = run("audit", "--framework", "numpy", "--output", "here")
    assert shown.exit_code == 3
    assert f"No space left on device: 'here/{name}'" in shown.stderr.splitlines()[-1]


def test_audit_that_cannot_run_exits_3(judged: dict[str, Any]) -> None:
    """What normcheck itself raises is one line and exit code 3, no traceback."""
    judged["returns"] = OSError("no space\nleft")
    shown = run("audit", "--framework", "numpy")
    assert shown.exit_code == 3
    assert re.fullmatch(r"normcheck could not run: OSError: no space left \(fake, line \d+\)", shown.stderr.splitlines()[-1])


# --- options ----------------------------------------------------------------------------------------------------------------


def test_options_reach_the_audit(judged: dict[str, Any]) -> None:
    """What is asked for is what is run."""
    run(
        "audit", "--implementation", "textbook.rms*", "--check", "accuracy", "--dtype", "float16", "--seed", "5", "--workers", "1"
    )
    assert judged["names"] == ["textbook.rms_norm"]
    assert {key: judged[key] for key in ("profile", "checks", "dtypes", "devices", "seed", "workers")} == {
        "profile": "standard",
        "checks": ("accuracy",),
        "dtypes": ("float16",),
        "devices": None,
        "seed": 5,
        "workers": 1,
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("audit", "--profile", "quik"), "'quik' is not one of 'quick', 'standard', 'deep'"),
        (("audit", "--check", "acuracy"), r"check='acuracy' \(did you mean accuracy\?\), but should be one of the \d+ known"),
        (("audit", "--dtype", "bf16"), r"dtype='bf16' \(did you mean bfloat16\?\), but should be one of float64, "),
        (("audit", "--framework", "nunpy"), r"framework='nunpy' \(did you mean numpy\?\), but should be one of "),
        (("audit", "--implementation", "textbok.rms_norm"), r"matches none \(did you mean textbook.rms_norm\?\)"),
        (("audit", "--seed", "-1"), "-1 is not in the range"),
        (("audit", "--workers", "0"), "0 is not in the range"),
        (("audit", "--output", "mine.py"), "is a file"),
        (("audit", "--output", "mine.py/report"), r"'mine.py/report' cannot be written: .*mine.py is a file"),
        (("check", "mine.py:rms_norm", "--norm", "rms_norm", "--output", "mine.py/x"), "cannot be written"),
        (("check", "mine.py:rms_norm"), "Missing option '--norm'"),
        (
            ("check", "mine.py:rms_norm", "--norm", "rms_nrom"),
            r"norm='rms_nrom' \(did you mean RMSNorm\?\), but should be one of LayerNorm, ",
        ),
        (("check", "mine.py:rms_norm", "--norm", "rms_norm", "--eps", "-1"), "eps=-1.0, but should be a finite number >= 0"),
        (("check", "mine.py:rms_norm", "--norm", "rms_norm", "--ddof", "1"), "RMSNorm has no --ddof, but --eps"),
        (("check", "mine.py:rms_norm", "--norm", "group_norm"), "GroupNorm needs --num-groups"),
        (("check", "mine.py:rms_norm", "--norm", "rms_norm", "--normalized-shape", "4x8"), "should be sizes such as 768 or 4,32"),
        (
            ("check", "mine.py:rms_norm", "--norm", "rms_norm", "--eps-placement", "outsid"),
            "eps_placement='outsid', but should be",
        ),
        (("check", "mine.py:rms_norm", "--norm", "rms_norm", "--compute", "fp32"), "compute='fp32', but should be one of"),
        (("check", "mine.py:rms_norm", "--norm", "rms_norm", "--accumulation", "pile"), "accumulation='pile', but should be"),
        (("check", "mine.py:rms_norm", "--norm", "rms_norm", "--argument-order", "x,gamma"), "argument='gamma', but should be"),
        (("check", "mine.py:rms_norm", "--norm", "rms_norm", "--evaluation"), "training=False, but RMSNorm"),
        (("check", "mine.py:rms_norm", "--norm", "rms_norm", "--framework", "nunpy"), r"did you mean numpy\?"),
        (("check", "mine.py:rms_norm", "--norm", "rms_norm", "--framework", "numpy", "--device", "cuda"), "device='cuda', but"),
        (("check", "mine.py:rms_norms", "--norm", "rms_norm", "--framework", "numpy"), "no attribute 'rms_norms'"),
        (("check", "mine.py", "--norm", "rms_norm", "--framework", "numpy"), "should be 'module:callable' or 'file.py:callable'"),
        (("check", "missing.py:f", "--norm", "rms_norm", "--framework", "numpy"), "file 'missing.py' not found"),
        (
            ("check", "missing_module:f", "--norm", "rms_norm", "--framework", "numpy"),
            "module 'missing_module' cannot be imported",
        ),
        (("check", "raising.py:f", "--norm", "rms_norm", "--framework", "numpy"), "cannot be imported: ValueError: at import"),
        (("check", "mine.py:not_callable", "--norm", "rms_norm", "--framework", "numpy"), "should be callable"),
        (("audit", "--fail-on", "new"), "--fail-on new without --baseline, but should be given what is not new"),
        (("audit", "--model", "m:f", "--scheduler", "tcp://x:1"), "--scheduler with --model, which does not go with it"),
        (("audit", "--model", "m:f", "--shard", "1/2"), "--shard with --model, which does not go with it"),
        (("audit", "--model", "m:f", "--resume", "."), "--resume with --model, which does not go with it"),
        (("audit", "--model", "m:f", "--faults"), "--faults with --model, which does not go with it"),
        (("audit", "--model", "m:f", "--no-isolation"), "--isolation with --model, which does not go with it"),
        (("list", "norm"), "'norm' is not one of"),
        (("explain", "acuracy"), r"check='acuracy' \(did you mean accuracy\?\), but should be one of the \d+ known"),
        (("explain",), "give either the id of a check or --all"),
        (("explain", "accuracy", "--all"), "give either the id of a check or --all"),
        (("report", "missing.json"), "does not exist"),
        (("report", "mine.py"), "mine.py is no audit"),
        (("report", "wrong.json"), r"wrong.json is no audit: results\[0\].check=3, but should be text"),
        (("compare", "wrong.json", "wrong.json"), r"wrong.json is no audit: results\[0\].check=3, but should be text"),
        (("report", "mine.py", "--to", "pdf"), r"--to='pdf'.*, but should be one of"),
        (("adit",), "No such command 'adit'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_usage_exits_2(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    """A name or setting that cannot be used is one clear line that names the nearest, exit code 2, and no traceback."""
    shown = run(*arguments)
    assert shown.exit_code == 2
    assert re.search(said, shown.stderr.splitlines()[-1]), shown.stderr
    assert "Traceback" not in shown.output


@pytest.mark.parametrize("spelling", ["rms_norm", "rms-norm", "RMSNorm", "rmsnorm", "RmsNorm"])
def test_norms_in_any_spelling(judged: dict[str, Any], spelling: str) -> None:
    """Snake, kebab and camel case name the same norm."""
    run("check", "mine.py:rms_norm", "--norm", spelling, "--framework", "numpy")
    assert judged["names"] == ["mine.py:rms_norm"]


def test_check_makes_the_claim_that_was_given(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every setting of norm, contract and call arrives in the implementation that is judged."""
    seen: list[Any] = []
    monkeypatch.setitem(vars(normcheck), "audit", lambda implementations, **options: seen.extend(implementations))
    settings = "--eps 1e-3 --eps-placement outside --ddof 1 --weight-offset 1 --normalized-shape 4,32"
    contract = "--compute float64 --stats float32 --cast before_weight --output-dtype promote --accumulation 40"
    call = "--argument-order x,bias,weight --weight-dtype float32 --channel-axis -1 --dtype float16 --dtype float32"
    run("check", "mine.py:rms_norm", "--norm", "layer-norm", "--framework", "numpy", *f"{settings} {contract} {call}".split())
    (made,) = seen
    expected = normcheck.LayerNorm(normalized_shape=(4, 32), eps=1e-3, eps_placement="outside", ddof=1, weight_offset=1.0)
    assert made.norm == expected
    assert made.contract == normcheck.Contract("float64", "float32", cast="before_weight", output="promote", accumulation=40)
    assert (made.arguments, made.weight_dtype, made.channel_axis) == (("x", "bias", "weight"), "float32", -1)
    assert (made.dtypes, made.name, made.framework) == (("float16", "float32"), "mine.py:rms_norm", "numpy")


# --- judging user code ------------------------------------------------------------------------------------------------------


def test_sound_code_passes(folder: Path) -> None:
    """A sound function passes, and nothing is written unless asked."""
    shown = judge("rms_norm")
    assert shown.exit_code == 0, shown.output
    assert "The implementation passes" in shown.output
    assert not list(folder.glob("**/report.md"))


def test_check_writes_a_report_when_asked(folder: Path) -> None:
    """``--output`` writes the same report folder as an audit; `report` makes either format from it again."""
    assert judge("rms_norm", "--output", "out").exit_code == 0
    stored = folder / "out" / "audit.json"
    assert run("report", str(stored)).output.startswith("# Numerical audit")
    assert run("report", str(stored), "--to", "json").output == stored.read_text(encoding="utf-8")
    assert run("report", str(stored), "-o", "again.md").exit_code == 0
    assert (folder / "again.md").read_text(encoding="utf-8").startswith("# Numerical audit")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "RuntimeError: no such kernel"),
        ("one_argument", "TypeError"),
        ("wrong_shape", "shape="),
        ("no_array", "str"),
        ("nan", "nan"),
    ],
)
def test_broken_code_is_a_finding(folder: Path, name: str, said: str) -> None:
    """Code that raises, has another signature, or returns a wrong shape, no array or NaN is a finding, exit code 1."""
    shown = judge(name)
    assert shown.exit_code == 1, shown.output
    assert said in shown.output
    assert "Traceback" not in shown.output


# --- looking around ---------------------------------------------------------------------------------------------------------


def test_dry_run_prints_the_plan(folder: Path) -> None:
    """``--dry-run`` lists what would be judged, and judges nothing."""
    shown = run("audit", "--dry-run", "--implementation", "textbook.rms_norm", "--dtype", "float32")
    assert shown.exit_code == 0
    assert re.search(r"textbook\.rms_norm +float32 +cpu +[\d.]+ s +[a-z]", shown.output)
    told = r"About ([\d.]+) s with \w+ workers? \(their start takes ([\d.]+) s of it\), as "
    whole, start = re.search(told, shown.output).groups()  # type: ignore[union-attr]
    assert 0 < float(start) < float(whole)
    alone = run("audit", "--dry-run", "--no-isolation", "--implementation", "textbook.rms_norm", "--dtype", "float32")
    assert re.search(r"About [\d.]+ s in this process, as ", alone.output)
    assert "1 part\n" in re.sub(" +\n", "\n", shown.output)
    assert not (folder / "normcheck-report").exists()


@pytest.mark.parametrize(
    ("topic", "expected"),
    [("norms", set(NORMS)), ("regimes", set(REGIMES)), ("checks", set(checks())), ("implementations", {"textbook.rms_norm"})],
)
def test_list_names_what_there_is(topic: str, expected: set[str]) -> None:
    """Each topic lists all that there is."""
    shown = run("list", topic)
    assert shown.exit_code == 0
    assert expected <= set(shown.output.split())


def test_list_faults() -> None:
    """The zoo is listed with where each fault was seen."""
    from normcheck.faults import faults

    shown = "".join(run("list", "faults").output.split())
    for fault in faults():
        assert fault.name in shown


@pytest.mark.parametrize("check_id", list(checks()))
def test_explain_prints_the_page(check_id: str) -> None:
    """Every check's page has its six headings and all its text."""
    shown = run("explain", check_id)
    assert shown.exit_code == 0
    page = [line for line in checks()[check_id].doc.splitlines() if not re.fullmatch("-+", line)]
    assert shown.output.splitlines() == page


def test_catalogue_has_every_check(tmp_path: Path) -> None:
    """``explain --all`` writes one section for each check."""
    assert run("explain", "--all", "-o", str(tmp_path / "README.md")).exit_code == 0
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"(?m)^### (.+)$", page)) == sorted(checks())


def test_module_is_the_command_line() -> None:
    """``python -m normcheck`` is the same program."""
    shown = subprocess.run([sys.executable, "-m", "normcheck", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.split()[-1] == normcheck.__version__


def test_a_segfault_of_an_import_says_where(folder: Path) -> None:
    """Code that kills the command while it is imported is told with its file and line."""
    (folder / "kills.py").write_text("import ctypes\n\nctypes.string_at(0)\n", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(Path(normcheck.__file__).parents[1])}
    command = [sys.executable, "-m", "normcheck", "check", "kills.py:f", "--norm", "rms_norm"]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert shown.returncode not in range(4)
    assert re.search(r'File ".*kills.py", line 3', shown.stderr)
