"""Planning: what an audit will cost, which checks come first, and that a budget is kept."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import normcheck as nc
from normcheck import cli
from normcheck.checks import checks
from normcheck.engine import planning
from normcheck.engine.jobs import OUT_OF_BUDGET, Budget, Jobs
from normcheck.engine.planning import Costs, of_results
from normcheck.engine.units import plan
from normcheck.judging import DURATION, SIZE, lasting
from normcheck.results import Outcome, Result

NORM = nc.RMSNorm(eps=1e-6)


def rms(x: Any, weight: Any) -> Any:
    """A sound RMSNorm."""
    h = x.astype(np.float32)
    return (h / np.sqrt((h * h).mean(-1, keepdims=True) + np.float32(1e-6)) * weight.astype(np.float32)).astype(x.dtype)


def slow(x: Any, weight: Any) -> Any:
    """A sound RMSNorm that takes its time."""
    time.sleep(0.05)
    return rms(x, weight)


def norms(call: Any = rms, count: int = 2) -> list[nc.Implementation]:
    """Some names of one norm."""
    return [nc.Implementation(call, NORM, framework="numpy", name=f"n{i}", dtypes=("float32",), grad=None) for i in range(count)]


def result(check: str, seconds: float, implementation: str = "n0") -> Result:
    """An invented result."""
    return Result(check, implementation, "RMSNorm", "float32", Outcome.PASSED, seconds=seconds)


def test_costs_come_from_an_earlier_audit() -> None:
    """A task costs what it cost, another of the same check what that cost in the mean, and one of neither what is usual."""
    found = of_results([result("moments", 1.0), result("moments", 2.0), result("moments", 5.0, "n1")], "quick", "as before")
    assert found.of(("n0", "float32", "cpu", "moments")) == 3.0
    assert found.of(("other", "float32", "cpu", "moments")) == 4.0
    assert found.of(("n0", "float32", "cpu", "accuracy")) == planning.measured("quick").of(("n0", "float32", "cpu", "accuracy"))


def test_the_table_knows_the_checks() -> None:
    """Most checks have been measured, in quick and in standard; what the table lacks costs as much as a usual check."""
    for profile in ("quick", "standard"):
        table = planning.measured(profile)
        assert len(set(table.checks) & set(checks())) > 0.8 * len(checks())
        assert all(seconds >= 0 for seconds in table.checks.values())
        assert min(table.checks.values()) <= table.of(("n", "float32", "cpu", "no-such-check")) <= max(table.checks.values())
    assert planning.measured("deep").source.endswith("of the profile standard: it will be more")


def test_the_estimate_is_no_less_than_the_longest_unit() -> None:
    """Work is shared among workers, but a unit stays whole."""
    units = plan(norms(), profile="quick", checks=["moments"])
    costs = Costs("", {"moments": 4.0}, {("n0", "float32", "cpu", "moments"): 10.0})
    count = len(units[0].checks)
    roots = (count - 1) * 4.0  # checks that others require come along
    assert costs.total(units) == 14.0 + 2 * roots
    assert costs.wall(units, 1) == 14.0 + 2 * roots
    assert costs.wall(units, 8) == 10.0 + roots


def test_the_start_of_workers_is_counted() -> None:
    """What workers of all frameworks have in common counts once; what was never measured starts as slowly as the slowest."""
    torch = replace(norms()[0], framework="torch", name="t")
    jax = replace(norms()[0], framework="jax", name="j")
    costs = Costs("", {}, start={"numpy": 1.0, "torch": 3.0})
    cases = ((norms(), 1.0), ([torch], 3.0), ([jax], 3.0), ([*norms(), torch], 3.0), ([torch, jax], 5.0), ([], 0.0))
    for given, expected in cases:
        units = plan(given, profile="quick", checks=["accuracy"])
        assert costs.starting(units) == expected
        assert costs.wall(units, 2, isolated=True) == costs.wall(units, 2) + expected
    table = planning.measured("quick")
    assert 0.0 < table.start["numpy"] < table.start["torch"]
    assert planning.of_results([], "quick", "").start == table.start


def test_the_most_telling_come_first() -> None:
    """Roots, then accuracy, and nothing before what it builds upon; over all units check by check."""
    units = plan(norms(), profile="quick")
    limited = planning.budget(units, 3600.0, planning.measured("quick"))
    jobs = Jobs(units, {}, limited)
    order = []
    while (job := jobs.take()) is not None:
        order.append(units[job.unit].key(job.numbers[0]))
        jobs.release(job)
    ids = list(dict.fromkeys(key[3] for key in order))
    roots = [check for check in ids if not checks()[check].requires]
    assert ids[: len(roots) + 1] == [*roots, "accuracy"]
    for check in ids:
        assert all(ids.index(root) < ids.index(check) for root in checks()[check].requires)
    assert [key[3] for key in order] == [check for check in ids for _ in units]
    assert len(order) == sum(len(unit.checks) for unit in units)


def test_units_that_share_values_stay_together() -> None:
    """A worker goes on with the norm and dtype that it has at hand; another takes what nobody is at."""
    both = [*norms(count=2), nc.Implementation(rms, nc.RMSNorm(eps=1e-3), framework="numpy", name="other", dtypes=("float32",))]
    units = plan(both, profile="quick", checks=["accuracy"])
    jobs = Jobs(units, {})
    first, second = jobs.take(), jobs.take()
    assert first is not None
    assert second is not None
    assert units[first.unit].shared != units[second.unit].shared
    jobs.release(first)
    third = jobs.take(first.unit)
    assert third is not None
    assert third.unit not in (first.unit, second.unit)


@pytest.mark.parametrize("isolation", [False, True])
def test_a_budget_is_kept(isolation: bool) -> None:
    """An audit stops in time, has judged the form first, and says what was left out."""
    began = time.monotonic()
    costs = Costs("", dict.fromkeys(checks(), 0.2))
    audit = nc.audit(norms(slow), profile="quick", budget=6.0, costs=costs, isolation=isolation)
    assert time.monotonic() - began < 60
    left = [r for r in audit.results if r.message == OUT_OF_BUDGET]
    judged = {(r.implementation, r.check) for r in audit.results if r.outcome is Outcome.PASSED}
    assert left
    assert {r.outcome for r in left} == {Outcome.SKIPPED}
    assert {("n0", "output-form"), ("n1", "output-form")} <= judged
    assert {r.check for r in audit.results} == set(checks())
    assert not audit.failures


def test_nothing_is_begun_that_would_not_end_in_time() -> None:
    """A task that is expected to take longer than what is left is left out; shorter ones are taken."""
    units = plan(norms(count=1), profile="quick", checks=["moments"])
    cost = {units[0].key(n): 1e6 if check.id == "moments" else 0.0 for n, check in enumerate(units[0].checks)}
    jobs = Jobs(units, {}, Budget(60.0, dict.fromkeys(cost, 0.0), cost))
    taken = []
    while (job := jobs.take()) is not None:
        taken += [units[0].checks[number].id for number in job.numbers]
        jobs.release(job)
    assert taken == [check.id for check in units[0].checks if check.id != "moments"]
    assert jobs.take() is None


def test_what_was_left_out_can_be_taken_up(tmp_path: Path) -> None:
    """An audit that had no time is gone on with, and is then what an unlimited one is."""
    path = tmp_path / "journal.jsonl"
    options: dict[str, Any] = {"profile": "quick", "checks": ["accuracy", "moments", "scale-invariance"]}
    expensive = Costs("", {**dict.fromkeys(checks(), 0.0), "moments": 1e6})
    limited = nc.audit(norms(), **options, journal=path, budget=60.0, costs=expensive)
    assert {r.check for r in limited.results if r.message == OUT_OF_BUDGET} == {"moments"}
    done = nc.audit(norms(), **options, journal=path, resume=True)
    whole = nc.audit(norms(), **options)
    assert {**done.to_dict(), "times": {}} == {**whole.to_dict(), "times": {}}


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [(DURATION, "90s", 90), (DURATION, "1h30m", 5400), (DURATION, "1.5m", 90), (SIZE, "4G", 4 << 30), (SIZE, "512M", 512 << 20)],
)
def test_quantities(kind: Any, text: str, value: int) -> None:
    """Times and sizes are numbers with units."""
    assert kind.convert(text, None, None) == value


@pytest.mark.parametrize(
    ("option", "text"),
    [("--budget", "10"), ("--budget", "0s"), ("--time-limit", "m5"), ("--memory-limit", "4T"), ("--shard", "9/8")],
)
def test_quantities_that_are_none(option: str, text: str) -> None:
    """A number without a unit, with another, or of nothing is refused with an example."""
    shown = CliRunner().invoke(cli.main, ["audit", option, text])
    assert shown.exit_code == 2
    assert f"'{text}' should be" in " ".join(shown.output.split())


@pytest.mark.parametrize(("seconds", "text"), [(0.123, "0.12 s"), (59.0, "59 s"), (600.0, "10 min"), (7500.0, "2 h 05 min")])
def test_times_in_words(seconds: float, text: str) -> None:
    """Two figures are enough of what is only expected."""
    assert lasting(seconds) == text
