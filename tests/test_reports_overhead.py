"""The timers of reports/overhead.py charge each moment to one part."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def overhead() -> ModuleType:
    """The script as a module."""
    pytest.importorskip("torch")
    place = Path(__file__).parents[1] / "reports" / "overhead.py"
    spec = importlib.util.spec_from_file_location("reports_overhead", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_nested_time_counts_once(overhead: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that is called by a reference that is called by normcheck is code only, also where it raises."""
    now = [0.0]
    monkeypatch.setattr(overhead.time, "process_time", lambda: now[0])
    clock = overhead.Clock()

    def spend(seconds: float) -> None:
        now[0] += seconds

    def fail() -> None:
        spend(4.0)
        raise ValueError("stop")

    code = clock.charged("code", fail)

    def certify() -> None:
        spend(2.0)
        with pytest.raises(ValueError, match="stop"):
            code()
        spend(8.0)

    spend(1.0)
    clock.charged("reference", certify)()
    spend(16.0)
    clock.switch("normcheck")
    assert clock.seconds == {"code": 4.0, "reference": 10.0, "tolerances": 0.0, "normcheck": 17.0}
