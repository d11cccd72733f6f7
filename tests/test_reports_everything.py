"""reports/everything.py: one audit for each environment, none twice, and what is there is merged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "reports" / "everything.py"
# stands for tox: keeps what it was called with, and leaves an audit unless it is asked for openvino
TOX = """#!{python}
import pathlib, sys
with open("calls", "a") as stream:
    stream.write(" ".join(sys.argv[1:]) + "\\n")
if "openvino" in sys.argv:
    sys.exit(1 if "merge" in sys.argv else 7)
if "--output" in sys.argv or "--resume" in sys.argv:
    folder = pathlib.Path(sys.argv[-1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "audit.json").touch()
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Runs the script beside a tox that does nothing; returns the exit code and the calls of tox so far."""
    (tmp_path / "bin").mkdir()
    tox = tmp_path / "bin" / "tox"
    tox.write_text(TOX.format(python=sys.executable))
    tox.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tox.parent}{os.pathsep}{os.environ['PATH']}")

    def running(*arguments: str) -> tuple[int, list[str]]:
        done = subprocess.run([sys.executable, str(SCRIPT), "out", *arguments], cwd=tmp_path, check=False, capture_output=True)
        return done.returncode, (tmp_path / "calls").read_text().splitlines()

    return running


def test_every_framework_is_judged_in_its_environment_and_merged(run, tmp_path: Path) -> None:
    """One audit each, in its own folder; what was broken off is gone on with, and what is done is not done again.

    An environment gets its package before: ``tox exec`` installs none.
    """
    (tmp_path / "out" / "audits" / "jax").mkdir(parents=True)
    (tmp_path / "out" / "audits" / "jax" / "journal.jsonl").touch()
    code, calls = run("--only", "onnxruntime", "jax")
    assert code == 0
    assert calls == [
        "run -e onnx --notest",
        "exec -e onnx -- normcheck audit --profile quick --framework onnxruntime --output out/audits/onnxruntime",
        "run -e jax --notest",
        "exec -e jax -- normcheck audit --profile quick --framework jax --resume out/audits/jax",
        "run -e audit --notest",
        "exec -e audit -- normcheck merge out out/audits/onnxruntime out/audits/jax",
    ]
    assert run("--only", "onnxruntime", "jax")[1][6:] == calls[4:]


def test_a_framework_that_cannot_be_judged_is_named(run) -> None:
    """The others are merged all the same, and the exit code says that one is missing."""
    code, calls = run("--only", "openvino", "mlx")
    assert code == 3
    assert calls[-1] == "exec -e audit -- normcheck merge out out/audits/mlx"
