"""All checks, those of later families included: what holds for one seed of the random inputs holds for every one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from normcheck import ledger
from normcheck.audit import DTYPES
from normcheck.checks import Context, checks, run_check
from normcheck.implementations import implementations
from normcheck.results import Outcome
from normcheck.strategies import holds

CHECKS, LEDGER = checks(), ledger.entries()
CONTEXTS = [
    Context(implementation, dtype, profile="quick")
    for implementation in implementations()
    for dtype in implementation.dtypes
    if dtype in DTYPES and "cpu" in implementation.devices
]
# what is known to fail one of these fails others by the same cause, with one seed or another
GRADIENTS = ("parameter-gradients", "input-gradient")
# the checks shrink their inputs themselves; a seed has nothing to shrink
PHASES = set(settings().phases) - {Phase.shrink}


def _contexts(check: str) -> list[Context]:
    """Where a check applies, less where all that needs a bound fails by a cause that is known from another check."""
    causes = ("accuracy", *(GRADIENTS if "gradient" in check else ()))
    others = [cause for cause in causes if cause != check and CHECKS[check].requires]
    sound = (context for context in CONTEXTS if not any(_known(other, context) for other in others))
    return [context for context in sound if not CHECKS[check].applies(context)]


def _known(check: str, context: Context) -> bool:
    failure = context.result(check, Outcome.FAILED)
    return any(entry.expects(failure) for entry in LEDGER)


@pytest.mark.parametrize("check", [check for check in CHECKS if _contexts(check)])
@settings(phases=PHASES)
@given(data=st.data(), seed=st.integers(0, 2**16))
def test_any_seed(check: str, data: st.DataObject, seed: int) -> None:
    """No check fails on any implementation but for what the ledger knows."""
    context = data.draw(st.sampled_from(_contexts(check)))
    holds(*ledger.apply(run_check(CHECKS[check], replace(context, seed=seed)), LEDGER))
