"""What several test modules share: a small audit made of invented results, for reporters and the command line."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from normcheck.results import Outcome, Result, Severity, Witness


@dataclass(frozen=True)
class FakeAudit:
    """Stands for `normcheck.Audit` where a test needs nothing but results."""

    results: tuple[Result, ...]
    grades: dict[tuple[str, str], str] = field(default_factory=dict)
    born: dict[str, Any] = field(default_factory=dict)

    @property
    def failures(self) -> tuple[Result, ...]:
        """The results that make the audit fail."""
        return tuple(result for result in self.results if result.outcome.bad)

    @property
    def passed(self) -> bool:
        """Whether nothing fails."""
        return not self.failures

    def to_dict(self) -> dict[str, Any]:
        """The audit as plain data."""
        return {"schema": 1, "born": self.born, "results": [result.to_dict() for result in self.results]}


def result(check: str = "accuracy", outcome: Outcome = Outcome.PASSED, **changes: Any) -> Result:
    """A result of an invented layer norm, with some fields changed."""
    given: dict[str, Any] = {"implementation": "lib.layer_norm", "norm": "LayerNorm", "dtype": "float32", **changes}
    return Result(check=check, outcome=outcome, **given)


def _curve(sizes: list[float], gain: float) -> tuple[tuple[float, float], ...]:
    return tuple((size, gain * math.sqrt(64 / (64 + size * size))) for size in sizes)


def _sizes() -> list[float]:
    return [10.0**k for k in range(-1, 6)]


def _of_one(name: str, norm: str, dtype: str) -> list[Result]:
    common = {"implementation": name, "norm": norm, "dtype": dtype}
    accuracy = [
        result(
            regime=regime, shape=(16, 64), error=0.4e-7, tolerance=1e-7, **common, measures={"ulp": ulp, "correctly_rounded": 0.9}
        )
        for regime, ulp in (("standard", 0.7), ("large-mean", 31.0), ("outlier", 1.3), ("tiny", 2.0))
    ]
    sigma = [1e-4, 1e-3, 1e-2]
    placements = {"inside": 1.0, "outside": 0.7, "max": 1.2}
    series = {key: tuple((s, g * s / math.sqrt(s * s + 1e-5)) for s in sigma) for key, g in placements.items()}
    outlier = {"expected": _curve(_sizes(), 1.0), "measured": _curve(_sizes(), 1.0)}
    return [
        *accuracy,
        result("outlier-sensitivity", **common, series=outlier),
        result("epsilon-placement", **common, series={**series, "measured": series["inside"]}),
    ]


@pytest.fixture
def audit() -> FakeAudit:
    """An audit of two sound and one broken implementation, with every kind of outcome in it."""
    names = {"lib.layer_norm": "LayerNorm", "lib.rms_norm": "RMSNorm"}
    sound = [r for name, norm in names.items() for dtype in ("float32", "bfloat16") for r in _of_one(name, norm, dtype)]
    witness = Witness("import numpy as np\nprint(lib.group_norm(np.ones(4)))", "np.ones(4)", 2, "0x1.8p+1", "0x0.0p+0")
    broken = {"implementation": "lib.group_norm", "norm": "GroupNorm", "layout": "channels-last"}
    others = [
        result(
            outcome=Outcome.FAILED,
            **broken,
            regime="large-mean",
            shape=(2, 8, 16),
            error=3.0,
            tolerance=1e-4,
            message="y=3.0, but should be 0.0 [lib.group_norm(x)]",
            witness=witness,
        ),
        result(
            outcome=Outcome.FAILED, **broken, regime="standard", shape=(2, 8, 16), error=2e-4, tolerance=1e-4, message="lesser"
        ),
        result("overflow", Outcome.WARNED, severity=Severity.WARNING, message="y=0.0, but should be 1.0 [lib.layer_norm(x)]"),
        result("zero-and-constant-rows", Outcome.XFAILED, message="y=-105.0, but should be 0.0", ledger="single pass, see #1"),
        result("output-form", Outcome.SKIPPED, message="jax is missing [pip install jax]", implementation="jax.rms_norm"),
        result("output-form", Outcome.SKIPPED, message="jax is missing [pip install jax]", implementation="jax.layer_norm"),
    ]
    grades = {(name, dtype): "A" for name in names for dtype in ("float32", "bfloat16")}
    born = {"command": "normcheck audit --seed 7", "seed": 7, "versions": {"lib": "1.0"}, "dirty": False}
    return FakeAudit((*sound, *others), {**grades, ("lib.group_norm", "float32"): "F"}, born)
