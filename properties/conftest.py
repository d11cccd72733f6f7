"""What all properties share: the profiles of the search, the contexts they are searched in, and the ledger of known faults.

A property says which check it states with ``@pytest.mark.check("accuracy")``. One that takes a ``context`` is searched once for
each discovered implementation and dtype to which the check applies; what the ledger knows is expected to fail.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

from normcheck import ledger
from normcheck.audit import DTYPES
from normcheck.checks import Check, Context, checks
from normcheck.implementations import frameworks, implementations
from normcheck.results import Outcome

CHECKS, LEDGER = checks(), ledger.entries()
# the code under judgement decides how long an example takes; rows of 2000 elements are meant
USUAL = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large], "print_blob": True}
settings.register_profile("quick", max_examples=12, database=None, **USUAL)
settings.register_profile("examples", phases=[Phase.explicit], **USUAL)
settings.register_profile("nightly", max_examples=400, **USUAL)
settings.load_profile("quick")


def pytest_configure(config: pytest.Config) -> None:
    """Announce the marker, and run each framework in one thread, as audits do."""
    config.addinivalue_line("markers", "check(id): the check that a property states")
    # on a failure Hypothesis loads whatever formats code, old packages included
    config.addinivalue_line("filterwarnings", "ignore:mypy_extensions:DeprecationWarning")
    for framework in frameworks().values():
        if framework.available() is None:
            framework.pin_threads(1)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Search in every context to which the property's check applies."""
    marker = metafunc.definition.get_closest_marker("check")
    if marker is None or "context" not in metafunc.fixturenames:
        return
    check = CHECKS[marker.args[0]]
    found = [pytest.param(context, id=_name(context), marks=_known(check, context)) for context in _contexts(check)]
    metafunc.parametrize("context", found)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the entries of the ledger for which the search found nothing: they may be stale."""
    stale = sorted({report.wasxfail for report in terminalreporter.stats.get("xpassed", ())})
    if stale:
        terminalreporter.section("known faults without a counterexample")
        for reason in stale:
            terminalreporter.line(reason)


def _contexts(check: Check) -> Iterator[Context]:
    every = settings.get_current_profile_name() == "nightly"
    for implementation in (one for one in implementations() if "cpu" in one.devices):
        for dtype in implementation.dtypes:
            context = Context(implementation, dtype, profile="quick", shrink=False)
            if (every or dtype in DTYPES) and not check.applies(context):
                yield context


def _known(check: Check, context: Context) -> list[pytest.MarkDecorator]:
    """Marks for what the ledger expects to fail; a short search may find nothing, so they are not strict.

    Where ``accuracy`` is known to fail, some rows break every other property that needs a bound as well, by the same cause.
    """
    own, other = _reasons(check.id, context), _reasons("accuracy", context)
    if own:
        return [pytest.mark.xfail(reason=f"{check.id}: {own[0]}", raises=AssertionError, strict=False)]
    return [pytest.mark.skip(reason=f"accuracy is known to fail: {other[0]}")] if other and check.requires else []


def _reasons(check: str, context: Context) -> list[str]:
    failure = context.result(check, Outcome.FAILED)
    return [entry.text for entry in LEDGER if entry.expects(failure)]


def _name(context: Context) -> str:
    return f"{context.implementation.name}-{context.dtype}"
