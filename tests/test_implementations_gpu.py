"""Packages whose kernels need a GPU: each is named where it is left out, and tried where it is not."""

from __future__ import annotations

import pytest

from normcheck.implementations import frameworks, gpu, implementations, left_out
from normcheck.implementations.base import MissingPackageError
from normcheck.implementations.gpu import ADAPTERS, builtins

NAMES = [adapter.name for adapter in ADAPTERS]


def test_every_package_has_an_adapter_and_rows_on_the_gpu_alone() -> None:
    """The six packages are frameworks by the names under which pip knows them, and no row is ever tried on a CPU."""
    assert NAMES == ["apex", "flash-attn", "quack-kernels", "transformer-engine", "vllm", "xformers"]
    assert set(NAMES) <= set(frameworks())
    rows = list(builtins())
    assert {row.framework for row in rows} == set(NAMES)
    assert {row.devices for row in rows} == {("cuda",)}


@pytest.mark.parametrize("adapter", ADAPTERS, ids=NAMES)
def test_what_is_left_out_is_named_with_its_line_and_the_reason(adapter, monkeypatch, tmp_path) -> None:
    """Without a driver nothing is judged, and the line that installs the package is given."""
    monkeypatch.setattr(gpu, "_DRIVER", tmp_path / "none")
    (said,) = left_out(adapter.name)
    assert said.startswith(f"{adapter.name} is not installed; pip install ")
    assert said.endswith("on a machine with a CUDA GPU, for which these kernels are written")
    with pytest.raises(MissingPackageError, match=f"{adapter.name} is not installed"):
        implementations(adapter.name)


def test_a_package_is_found_where_there_is_a_driver(monkeypatch, tmp_path) -> None:
    """Driver and module are what counts; the device is then torch's to find."""
    pytest.importorskip("torch")
    monkeypatch.setattr(gpu, "_DRIVER", tmp_path)
    adapter = type(ADAPTERS[0])("numpy", "numpy", "pip install numpy")
    assert adapter.available() is None
    assert adapter.version()
    assert "cpu" not in adapter.devices()


def test_a_package_without_a_gpu_is_not_said_to_be_missing(monkeypatch, tmp_path) -> None:
    """Where the package is installed and the driver is not there, that is said, and no line that installs it."""
    pytest.importorskip("torch")
    monkeypatch.setattr(gpu, "_DRIVER", tmp_path / "none")
    assert type(ADAPTERS[0])("numpy", "numpy", "pip install numpy").available() == (
        "run it on a machine with a CUDA GPU, for which these kernels are written"
    )
