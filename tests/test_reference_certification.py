"""The reference against python-flint's balls: nothing may differ, and a wrong reference must be noticed."""

from __future__ import annotations

import numpy as np
import pytest

from normcheck.formats import FORMATS, Array, Format
from normcheck.reference import certification as c
from normcheck.reference.problem import Problem

pytest.importorskip("flint", reason="python-flint is missing: pip install normcheck[exact]")


def test_sample_of_all_regimes() -> None:
    """Of some five thousand elements each way, over all kinds of cases, none differs from 400-bit arithmetic."""
    found = c.certification(5_000, seed=1)
    assert found.passed, found.examples
    assert sum(tally.elements for tally in found.forward.values()) >= 5_000
    for tallies in (found.forward, found.backward):
        assert all(tally.elements > 0 for tally in tallies.values())
    assert sum(tally.uncertified for tally in found.backward.values()) == 0


@pytest.mark.slow
def test_every_regime_at_length() -> None:
    """Of 10**5 elements over regimes, formats, norms and placements, none differs from 400-bit arithmetic."""
    found = c.certification(100_000, seed=0)
    assert found.passed, found.examples
    assert sum(tally.ties for tally in found.forward.values()) > 0


def test_a_wrong_reference_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One ulp off in one element per call is counted and shown."""
    sound = c.round_problem

    def off_by_one(p: Problem, fmt: Format, counts: dict[str, int]) -> Array:
        got = sound(p, fmt, counts)
        got[0, 0] = fmt.next_up(got[0, 0]) if np.isfinite(got[0, 0]) else 0.0
        return got

    monkeypatch.setattr(c, "round_problem", off_by_one)
    found = c.certification(300, seed=0)
    assert not found.passed
    assert found.examples


def test_progress_reaches_the_end() -> None:
    """The callback hears how many of the asked elements are done, up to all of them."""
    heard: list[tuple[int, int]] = []
    c.certification(100, progress=lambda done, total: heard.append((done, total)))
    assert heard[-1] == (100, 100)
    assert heard == sorted(heard)


def test_same_seed_same_cases() -> None:
    """The cases depend on the seed alone; other seeds give others."""
    first, again, other = (c.certification(500, seed=seed).to_dict() for seed in (3, 3, 4))
    assert first == again != other


def test_cases_cover_all_kinds() -> None:
    """One round of cases has every format, regime and placement in it."""
    seen = [case for case, _ in zip(c.cases(1000, 0), range(2500), strict=False)]
    assert {case.fmt.name for case in seen} == set(FORMATS)
    assert {case.regime for case in seen} >= set(c.REGIMES)
    assert len({case.problem.standardization.placement for case in seen}) == 5
