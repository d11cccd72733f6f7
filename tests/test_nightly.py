"""The nightly recipes: the steps of docs/nightly.yml and the cron line of docs/nightly.md are run, in small."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import normcheck as nc

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FEW = "--implementation 'textbook.l*_norm' --dtype float32 --check accuracy --workers 1"
# stands for the installed command; audits are made small, whatever the recipe asks for
SHIM = f"""#!/bin/sh
if [ "$1" = audit ]; then set -- "$@" {FEW}; fi
exec {sys.executable} -m normcheck "$@"
"""

Night = tuple[Path, list[subprocess.CompletedProcess[str]]]

pytestmark = [
    pytest.mark.skipif(not DOCS.exists(), reason="the documents are not in the package"),
    pytest.mark.skipif(sys.platform == "win32", reason="the recipes are for POSIX shells"),
]


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder with programs of its own."""
    return furnished(tmp_path)


def furnished(folder: Path) -> Path:
    """The folder with a normcheck made small, a pip that installs nothing, and a mail that is kept."""
    programs = {"normcheck": SHIM, "pip": '#!/bin/sh\necho "$@" >>"$HOME/pip.log"\n', "mail": '#!/bin/sh\ncat >"$HOME/mail"\n'}
    (folder / "bin").mkdir()
    for name, text in programs.items():
        path = folder / "bin" / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    (folder / "norms").mkdir()
    return folder


def run(machine: Path, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A script as a step of a job or cron runs it, in the folder norms of that machine."""
    paths = os.pathsep.join([str(Path(nc.__file__).parents[1]), *filter(None, sys.path)])
    environment = {**os.environ, "HOME": str(machine), "PYTHONPATH": paths, "PATH": f"{machine / 'bin'}:{os.environ['PATH']}"}
    shell = ["bash", "-e", "-o", "pipefail", "-c", script]
    where = machine / "norms"
    return subprocess.run(shell, cwd=where, env={**environment, **variables}, capture_output=True, text=True, check=False)


def workflow() -> dict[str, Any]:
    """The workflow."""
    found: dict[str, Any] = pytest.importorskip("yaml").safe_load((DOCS / "nightly.yml").read_text(encoding="utf-8"))
    return found


def steps(job: dict[str, Any], **values: str) -> list[str]:
    """The scripts of a job, with its expressions filled in."""
    scripts = [step["run"] for step in job["steps"] if "run" in step]
    for name, value in values.items():
        scripts = [script.replace(f"${{{{ matrix.{name} }}}}", value) for script in scripts]
    assert not [script for script in scripts if "${{" in script]
    return scripts


def variables() -> dict[str, str]:
    """The environment of the workflow; the audit is a quick one."""
    return {key: str(value) for key, value in workflow()["env"].items()} | {"PROFILE": "quick"}


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Night:
    """A machine on which all jobs of the workflow were run, and how their steps ended; folders stand for artifacts."""
    machine = furnished(tmp_path_factory.mktemp("night"))
    jobs = workflow()["jobs"]
    scripts = [s for i in jobs["audit"]["strategy"]["matrix"]["shard"] for s in steps(jobs["audit"], shard=str(i))]
    return machine, [run(machine, script, **variables()) for script in [*scripts, *steps(jobs["report"])]]


def test_the_workflow_runs(night: Night) -> None:
    """Every step ends well; the shards make the audit of the whole plan, which is kept and reported."""
    machine, done = night
    assert [(one.returncode, one.stderr) for one in done if one.returncode] == []
    whole = nc.Audit.read(machine / "norms" / "report" / "audit.json")
    assert "interrupted" not in whole.born
    assert len(whole.born["parts"]) == int(variables()["SHARDS"])
    assert {r.implementation for r in whole.results} == {r.implementation for r in local().results}
    assert len(list((machine / "norms" / "audits").iterdir())) == 1
    assert (machine / "norms" / "report" / "report.md").exists()


def local() -> nc.Audit:
    """What the small audit judges."""
    norms = [one for one in nc.implementations("numpy") if re.fullmatch(r"textbook\.l.*_norm", one.name)]
    return nc.audit(norms, profile="quick", dtypes=["float32"], checks=["accuracy"])


def test_the_workflow_fails_for_what_is_new(night: Night, machine: Path) -> None:
    """The last night's audit as the baseline changes nothing; a failure that the baseline has not ends the job."""
    norms = machine / "norms"
    shutil.copytree(night[0] / "norms" / "report", norms / "report")
    data = json.loads((norms / "report" / "audit.json").read_text(encoding="utf-8"))
    (norms / "reports").mkdir()
    (norms / "reports" / "baseline.json").write_text(json.dumps(data), encoding="utf-8")
    compare = steps(workflow()["jobs"]["report"])[-1]
    assert run(machine, compare).returncode == 0
    data["results"][-1]["outcome"] = "failed"
    (norms / "report" / "audit.json").write_text(json.dumps(data), encoding="utf-8")
    assert run(machine, compare).returncode == 1


def test_the_workflow_installs_what_there_is(night: Night) -> None:
    """The extras that are installed exist."""
    wanted = re.findall(r"normcheck\[([^\]]*)\]", (night[0] / "pip.log").read_text(encoding="utf-8"))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert wanted
    assert {name for names in wanted for name in names.split(",")} <= set(extras)


@pytest.mark.slow
def test_the_cron_line_runs(machine: Path) -> None:
    """The line keeps the audit and is silent; when something new fails, it mails the log."""
    page = (DOCS / "nightly.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"```cron\n(.*)\n```", page)
    fields = line.split(" ", 5)
    assert all(re.fullmatch(r"[\d*/,-]+", field) for field in fields[:5])
    norms = machine / "norms"
    local().write(norms / "baseline.json")
    script = fields[5].replace("--profile standard", "--profile quick")
    assert run(machine, script).returncode == 0
    assert not (machine / "mail").exists(), (machine / "mail").read_text(encoding="utf-8")
    assert len(list((norms / "audits").iterdir())) == 1
    (norms / "baseline.json").unlink()
    run(machine, script)
    assert "baseline.json" in (machine / "mail").read_text(encoding="utf-8")
