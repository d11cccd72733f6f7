"""All checks, those of later families included: what holds for one seed of the random inputs holds for every one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normcheck import ledger
from normcheck.audit import DTYPES
from normcheck.checks import Context, checks, run_check
from normcheck.implementations import implementations
from normcheck.strategies import holds

CHECKS = checks()
CONTEXTS = [
    Context(implementation, dtype, profile="quick")
    for implementation in implementations()
    for dtype in implementation.dtypes
    if dtype in DTYPES
]


def _contexts(check: str) -> list[Context]:
    return [context for context in CONTEXTS if not CHECKS[check].applies(context)]


@pytest.mark.parametrize("check", [check for check in CHECKS if _contexts(check)])
@given(data=st.data(), seed=st.integers(0, 2**16))
def test_any_seed(check: str, data: st.DataObject, seed: int) -> None:
    """No check fails on any implementation but for what the ledger knows."""
    context = data.draw(st.sampled_from(_contexts(check)))
    holds(*ledger.apply(run_check(CHECKS[check], replace(context, seed=seed))))
