"""What is built and what the documents promise about it."""

from __future__ import annotations

import configparser
import email
import os
import re
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.wheel import WheelBuilder

import normcheck

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "CONTRIBUTING.md", ".ci/run")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    return zipfile.ZipFile(next(iter(WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"]))))


def _metadata(wheel: zipfile.ZipFile) -> email.message.Message:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return email.message_from_string(wheel.read(name).decode())


def test_wheel_holds_normcheck_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    """The wheel's only top-level name is normcheck."""
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"normcheck"}


@pytest.mark.parametrize(
    "name", ["normcheck/py.typed", "normcheck/reporters/templates/report.md.jinja", "normcheck/engine/costs.json"]
)
def test_wheel_holds_files_that_are_no_modules(wheel: zipfile.ZipFile, name: str) -> None:
    """Types are announced and templates are shipped."""
    assert name in wheel.namelist()


def test_core_dependencies_are_light(wheel: zipfile.ZipFile) -> None:
    """Without an extra, only the agreed packages are installed."""
    required = [line for line in _metadata(wheel).get_all("Requires-Dist", []) if "extra ==" not in line]
    names = {re.split(r"[^A-Za-z0-9_-]", line)[0].replace("-", "_") for line in required}
    numbers = {"ml_dtypes", "numpy", "scipy"}
    assert names == numbers | {"click", "cloudpickle", "jinja2", "joblib", "packaging", "pebble", "platformdirs", "rich"}


def test_version_is_said_once(wheel: zipfile.ZipFile) -> None:
    """The package and its metadata have the same version, and the changelog speaks of it."""
    assert _metadata(wheel)["Version"] == normcheck.__version__
    assert f"[{normcheck.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_extras_are_the_agreed_ones() -> None:
    """Each optional group of packages has its extra, and ``all`` holds every other one."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    frameworks = {"torch", "jax", "keras", "mlx", "onnx", "openvino", "paddle", "tinygrad", "transformers", "triton"}
    assert set(extras) == frameworks | {"plots", "exact", "fast", "dask", "test", "all"}
    assert set(re.findall(r"[\w-]+", extras["all"][0])) - {"normcheck"} == set(extras) - {"all"}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_name_environments_that_exist(document: str) -> None:
    """Every ``tox -e`` in the documents and in CI names an environment of tox.ini."""
    known = configparser.ConfigParser(interpolation=None)
    known.read(ROOT / "tox.ini", encoding="utf-8")
    named = re.findall(r"tox (?:exec )?-e ([\w,]+)", (ROOT / document).read_text(encoding="utf-8"))
    assert named
    assert {f"testenv:{env}" for envs in named for env in envs.split(",")} <= set(known.sections())


@pytest.mark.skipif("TOX_ENV_NAME" not in os.environ, reason="only tox promises to test the built wheel")
def test_tox_tests_the_wheel() -> None:
    """Under tox, the package under test is the installed one, not the checkout."""
    assert Path(normcheck.__file__).parent != ROOT / "normcheck"


def test_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python of the README runs as it stands, and its function passes."""
    pytest.importorskip("torch")
    mine, *others = re.findall(r"(?ms)^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine.py").write_text(mine, encoding="utf-8")
    names: dict[str, Any] = {}
    for block in others:
        exec(block, names)  # noqa: S102 (our own document)
        assert names["audit"].passed
    assert (tmp_path / "report.md").exists()


def test_adapters_are_found_as_those_of_outsiders_are() -> None:
    """Every file of adapters with norms of its own is an entry point of the group that other packages use."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["normcheck.implementations"]
    files = (ROOT / "normcheck" / "implementations").glob("*.py")
    have = {file.stem for file in files if re.search(r"^def builtins\(", file.read_text(), re.MULTILINE)}
    assert declared == {name: f"normcheck.implementations.{name}:builtins" for name in have}
