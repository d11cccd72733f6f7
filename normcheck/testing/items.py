"""Checks as pytest items: one for each implementation, check, dtype and device."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from normcheck import ledger
from normcheck.audit import THREADS, Unit, modes, plan
from normcheck.checks import Check, Context, checks
from normcheck.formats import FORMATS
from normcheck.implementations import Implementation, frameworks
from normcheck.options import one_of
from normcheck.results import Outcome, Result
from normcheck.spelling import nearest
from normcheck.testing import failure


@dataclass(eq=False)
class Bench:
    """One implementation in one dtype on one device; its items share what came of the checks that others require."""

    context: Context
    known: dict[str, list[Result]] = field(default_factory=dict)

    def judge(self, check: Check) -> list[Result]:
        """The results of a check; skipped where one that it requires fails."""
        root = next((root for root in check.requires if self._fails(root)), None)
        if root is not None:
            return [self.context.result(check.id, Outcome.SKIPPED, f"{root} failed")]
        with self.pinned():
            self.known[check.id] = next(Unit(self.context, (check,)).run())
        return self.known[check.id]

    @contextlib.contextmanager
    def pinned(self) -> Iterator[None]:
        """A context in which the framework runs with an audit's number of threads; afterwards with the user's own."""
        framework = frameworks()[self.context.implementation.framework]
        if framework.available() is not None:
            yield
            return
        before = framework.threads()
        framework.pin_threads(THREADS)
        try:
            yield
        finally:
            framework.pin_threads(before)

    def _fails(self, root: str) -> bool:
        results = self.known[root] if root in self.known else self.judge(checks()[root])
        return any(result.outcome.bad for result in results)


@dataclass(eq=False)
class Task:
    """What a test function gets as ``check``: calling it judges.

    Attributes
    ----------
    bench, check : what is judged, and by what
    id : the item's, such as ``"my_rms-shift-invariance-bfloat16"``
    reason : why it is expected to fail, or empty
    besides : results that are known without judging, to be recorded with this item's
    results : what came of it, once it was called
    """

    bench: Bench
    check: Check
    id: str
    reason: str = ""
    besides: list[Result] = field(default_factory=list)
    results: tuple[Result, ...] = ()

    def __call__(self) -> None:
        """Judge; fail, skip or xfail the running test as the results say. A warning passes."""
        import pytest

        __tracebackhide__ = True
        self.results = ledger.apply(self.bench.judge(self.check), profile=self.bench.context.profile)
        bad = [result for result in self.results if result.outcome.bad]
        if bad:
            with self.bench.pinned():
                text = failure.text(self.bench.context, self.check, bad, len(self.results))
            pytest.fail(text, pytrace=False)
        known = [result for result in self.results if result.outcome is Outcome.XFAILED]
        if known:
            pytest.xfail(known[0].ledger)
        if all(result.outcome is Outcome.SKIPPED for result in self.results):
            pytest.skip(self.results[0].message)

    @property
    def stale(self) -> bool:
        """Whether it was expected to fail, was judged, and did not."""
        judged = any(result.outcome is not Outcome.SKIPPED for result in self.results)
        return bool(self.reason) and judged and not any(result.outcome.bad for result in self.results)

    def record(self) -> str:
        """The results as JSON text, which travels with a pytest report from whatever process judged."""
        found = list(self.results)
        if self.reason:
            found = [replace(r, outcome=Outcome.XFAILED, ledger=self.reason) if r.outcome.bad else r for r in found]
        told = {
            "framework": self.bench.context.implementation.framework,
            "profile": self.bench.context.profile,
            "stale": f"{self.id}: {self.reason}" if self.stale else "",
            "results": [result.to_dict() for result in (*found, *self.besides)],
        }
        return json.dumps(told)


class Tasks(Sequence[Any]):
    """The parameters of a test: made when pytest asks for them, so that its options can still take part.

    Parameters
    ----------
    implementations, checks, dtypes, devices, profile, expected_failures, strict : as for `parametrize`
    seed : of all random inputs
    """

    def __init__(
        self,
        implementations: Implementation | Iterable[Implementation],
        *,
        checks: Iterable[str] | None = None,
        dtypes: Iterable[str] | None = None,
        devices: Iterable[str] | None = None,
        profile: str = "quick",
        seed: int = 0,
        expected_failures: Mapping[str, str] | None = None,
        strict: bool = True,
    ) -> None:
        self.implementations = _judged(implementations)
        self.settings: dict[str, Any] = {"profile": profile, "seed": seed}
        limits = {"checks": checks, "dtypes": dtypes, "devices": devices}
        self.settings |= {name: None if limit is None else tuple(limit) for name, limit in limits.items()}
        for dtype in self.settings["dtypes"] or ():
            one_of("dtype", dtype, FORMATS)
        self.expected = dict(expected_failures or {})
        self.strict = strict
        self._refuse_unmatched()

    def choose(self, options: Mapping[str, Any]) -> None:
        """Let options of the command line (None: not given) replace settings; checks and dtypes only leave out."""
        for key, value in options.items():
            if value is not None:
                own = self.settings[key] if key in ("checks", "dtypes") else None
                self.settings[key] = value if own is None else tuple(one for one in own if one in value)

    def tasks(self) -> Iterator[Task]:
        """One task for each item. What does not apply has none, unless it was asked for by name; it is told with the first."""
        wanted = self.settings["checks"]
        for unit in plan(self.implementations, **self.settings):
            bench = Bench(unit.context)
            chosen = [check for check in unit.checks if wanted is None or check.id in wanted]
            left_out = {} if wanted is not None or unit.missing() else _inapplicable(unit.context, chosen)
            besides = [unit.context.result(name, Outcome.SKIPPED, reason) for name, reason in left_out.items()]
            for check in chosen:
                if check.id not in left_out:
                    name = self._id(unit.context, check.id)
                    yield Task(bench, check, name, self._reason(check.id, name), besides)
                    besides = []

    def __iter__(self) -> Iterator[Any]:
        """The parameters for ``pytest.mark.parametrize``."""
        import pytest

        for task in self.tasks():
            marks = [pytest.mark.xfail(reason=task.reason, strict=self.strict)] if task.reason else []
            yield pytest.param(task, id=task.id, marks=marks)

    def __len__(self) -> int:
        """How many items there are."""
        return sum(1 for _ in self.tasks())

    def __getitem__(self, index: Any) -> Any:
        """One parameter, or a list of some."""
        return list(self)[index]

    def _id(self, context: Context, check: str) -> str:
        several = len(set(context.implementation.devices)) > 1 or context.device != "cpu"
        return "-".join((context.implementation.name, check, context.dtype, *(context.device,) * several))

    def _reason(self, check: str, name: str) -> str:
        return next((reason for key, reason in self.expected.items() if _matches(key, check, name)), "")

    def _refuse_unmatched(self) -> None:
        planned = plan(self.implementations, **self.settings)
        names = [(check.id, self._id(unit.context, check.id)) for unit in planned for check in unit.checks]
        for key, reason in self.expected.items():
            if not isinstance(reason, str) or not reason.strip():
                raise ValueError(f"expected_failures[{key!r}]={reason!r}, but should be the reason why it fails")
            if not any(_matches(key, *pair) for pair in names):
                known = dict.fromkeys(name for pair in names for name in pair)
                raise ValueError(f"expected_failures has {key!r}, but should name a check or an item{nearest(key, known)}")


def parametrize(
    implementations: Implementation | Iterable[Implementation],
    checks: Iterable[str] | None = None,
    dtypes: Iterable[str] | None = None,
    devices: Iterable[str] | None = None,
    profile: str = "quick",
    expected_failures: Mapping[str, str] | None = None,
    strict: bool = True,
) -> Any:
    """Make a test of all checks on some implementations: one pytest item for each of them, check, dtype and device.

    It stands above a function that takes ``check`` and calls it::

        @nc.parametrize([mine], expected_failures={"overflow": "squares of 1e19 overflow float32"})
        def test_norms(check):
            check()

    Parameters
    ----------
    implementations : code under judgement; a norm with running statistics is judged in training and in evaluation
    checks, dtypes, devices : limit it to these; None means all that apply
    profile : ``quick``, ``standard`` or ``deep``; ``--normcheck-profile`` takes its place
    expected_failures : reasons by id of a check, or by pattern of item ids such as ``"my_rms-accuracy-*16"``
    strict : whether an expected failure that passes fails

    Raises
    ------
    ValueError : for an unknown check or profile, an expected failure that speaks of no item or has no reason, equal names
    TypeError : for what is no `Implementation`
    """
    import pytest

    tasks = Tasks(
        implementations,
        checks=checks,
        dtypes=dtypes,
        devices=devices,
        profile=profile,
        expected_failures=expected_failures,
        strict=strict,
    )
    return pytest.mark.parametrize("check", tasks)


def _judged(implementations: Implementation | Iterable[Implementation]) -> tuple[Implementation, ...]:
    given = (implementations,) if isinstance(implementations, Implementation) else tuple(implementations)
    for one in given:
        if not isinstance(one, Implementation):
            raise TypeError(f"implementation={one!r}, but should be a normcheck.Implementation, which says what it computes")
    return tuple(mode for one in given for mode in modes(one))


def _inapplicable(context: Context, chosen: Iterable[Check]) -> dict[str, str]:
    """Reasons by check. One that cannot say whether it applies is judged, and then says what it raised."""
    reasons = {}
    for check in chosen:
        with contextlib.suppress(Exception):
            reasons[check.id] = check.applies(context)
    return {name: reason for name, reason in reasons.items() if reason}


def _matches(key: str, check: str, name: str) -> bool:
    # names of implementations carry brackets, which are no character sets here
    return key == check or fnmatchcase(name, key.replace("[", "[[]"))
