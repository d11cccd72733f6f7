"""Accelerators: every check puts its inputs where the context says, and on a machine with a device the norms are judged on it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from normcheck.audit import audit
from normcheck.implementations import frameworks, implementations
from normcheck.results import Outcome

ROOT = Path(__file__).parents[1]
ROWS = {one.name: one for one in implementations("torch")}
FOUND = [device for device in frameworks()["torch"].devices() if device != "cpu"]


@pytest.fixture
def pretended(monkeypatch):
    """torch with a second device, whose arrays lie on the CPU; the devices that arrays were made for."""
    adapter = importlib.import_module("normcheck.implementations.torch").Torch
    made, places = adapter.to_native, set()

    def to_native(self, values, dtype, device="cpu", layout="contiguous"):
        places.add(device)
        return made(self, values, dtype, "cpu", layout)

    bind = adapter.bind
    monkeypatch.setattr(adapter, "devices", lambda self: ("cpu", "cuda"))
    monkeypatch.setattr(adapter, "to_native", to_native)
    monkeypatch.setattr(
        adapter, "bind", lambda self, module, state, training, dtype, _: bind(self, module, state, training, dtype, "cpu")
    )
    return places


@pytest.mark.parametrize(
    "name", ["torch.nn.functional.layer_norm", "torch.nn.BatchNorm2d[train]", "torch.nn.functional.batch_norm[eval]"]
)
def test_every_check_puts_its_arrays_on_the_device(name, pretended):
    """Not one array of any check is made for another device than that of the context."""
    found = audit([ROWS[name]], profile="quick", devices=["cuda"], dtypes=["float32"])
    assert pretended == {"cuda"}
    assert {result.device for result in found.results} == {"cuda"}
    assert sum(result.outcome is Outcome.PASSED for result in found.results) > 100


@pytest.mark.gpu
@pytest.mark.skipif(not FOUND, reason="torch finds no accelerator here")
@pytest.mark.parametrize(
    "name", ["torch.nn.functional.layer_norm", "torch.nn.functional.rms_norm", "torch.nn.functional.batch_norm[train]"]
)
def test_norms_of_torch_on_an_accelerator(name):
    """Kernels of the device are held to the bounds of those of the CPU."""
    found = audit([ROWS[name]], profile="quick", checks=["accuracy"], devices=FOUND[:1], dtypes=["float32"])
    assert found.passed
    assert any(result.check == "accuracy" and result.outcome is Outcome.PASSED for result in found.results)


@pytest.mark.skipif(bool(FOUND), reason="torch finds an accelerator here")
@pytest.mark.skipif(not (ROOT / "reports").is_dir(), reason="the script is not in the wheel")
def test_the_session_says_that_there_is_no_device(tmp_path):
    """Without an accelerator the script runs nothing, says so, and exits with 3."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    script = [sys.executable, str(ROOT / "reports" / "gpu_session.py")]
    done = subprocess.run(script, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("No accelerator: torch ")
    assert list(tmp_path.iterdir()) == []
