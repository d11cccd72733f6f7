"""What an audit will do: units of work, in the order of the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from normcheck.checks import Check, Context, checks, run_check
from normcheck.checks.cases import forget
from normcheck.implementations import Implementation, MissingPackageError, frameworks, require
from normcheck.regimes import WIDTHS
from normcheck.results import Outcome, Result
from normcheck.spelling import refusal

PROFILES = tuple(WIDTHS)
THREADS = 1
AHEAD = 16

Perform = Callable[[Check, Context], list[Result]]
Key = tuple[str, str, str, str]
"""Implementation, dtype, device and check: the name of one task."""

_ENDED = {Outcome.CRASHED: "crashed", Outcome.TIMEOUT: "ran out of time"}
_LAST: dict[str, tuple[str, str]] = {}


@dataclass(frozen=True)
class Unit:
    """Work that stays together: all checks of one implementation, dtype and device, so that a failed root skips the rest."""

    context: Context
    checks: tuple[Check, ...]

    @property
    def label(self) -> str:
        """Shown while it runs."""
        return f"{self.context.implementation.name} {self.context.dtype}"

    @property
    def shared(self) -> tuple[str, str]:
        """Units that have this in common share certified values."""
        return str(self.context.norm), self.context.dtype

    def key(self, number: int) -> Key:
        """The name of a task, by the place of its check."""
        return self.context.implementation.name, self.context.dtype, self.context.device, self.checks[number].id

    def missing(self) -> str:
        """Why nothing can be run: a package or device that is not there; else ``""``."""
        try:
            require(self.context.implementation, self.context.device)
        except (MissingPackageError, ValueError) as error:
            return str(error)
        return ""

    def run(self, perform: Perform = run_check) -> Iterator[list[Result]]:
        """The results of one check after the other."""
        course = Course(self)
        for number in range(len(self.checks)):
            yield course.step(number, perform)


@dataclass
class Course:
    """A unit on its way: what has failed in it decides what is skipped.

    Attributes
    ----------
    failed : how the checks ended that must not be built upon, by id
    """

    unit: Unit
    failed: dict[str, str] = field(default_factory=dict)

    @cached_property
    def missing(self) -> str:
        """Why nothing of the unit can be run, or ``""``."""
        return self.unit.missing()

    def reason(self, number: int) -> str:
        """Why a check is not run, or ``""``."""
        check = self.unit.checks[number]
        roots = sorted(set(self.failed) & set(check.requires))
        found = f"{roots[0]} {self.failed[roots[0]]}" if roots else ""
        return self.missing or found or check.needless(self.unit.context)

    def ahead(self, number: int, numbers: Sequence[int]) -> list[Check]:
        """The checks behind one that will be run whatever comes of it: all that they build upon has passed."""
        found: list[Check] = []
        open_ = {self.unit.checks[n].id for n in numbers if n >= number}
        for n in numbers:
            if n > number:
                if len(found) == AHEAD or open_ & set(self.unit.checks[n].requires):
                    break
                if not self.reason(n):
                    found.append(self.unit.checks[n])
        return found

    def step(self, number: int, perform: Perform) -> list[Result]:
        """The results of one check."""
        check, context = self.unit.checks[number], self.unit.context
        reason = self.reason(number)
        results = [context.result(check.id, Outcome.SKIPPED, reason)] if reason else perform(check, context)
        self.learn(results)
        return results

    def learn(self, results: Iterable[Result]) -> None:
        """Take note of results, also of those that an earlier run has left."""
        for result in results:
            if result.outcome.bad:
                self.failed.setdefault(result.check, _ENDED.get(result.outcome, "failed"))


def plan(
    implementations: Iterable[Implementation],
    *,
    profile: str = "standard",
    checks: Iterable[str] | None = None,
    dtypes: Iterable[str] | None = None,
    devices: Iterable[str] | None = None,
    seed: int = 0,
) -> list[Unit]:
    """What an audit will do, ordered so that implementations of one norm share certified values.

    Raises
    ------
    ValueError : for an unknown profile or check, naming the nearest, or two implementations of one name
    """
    if seed < 0:
        raise ValueError(f"seed={seed}, but should be >= 0")
    if profile not in PROFILES:
        raise ValueError(f"profile={profile!r}, but should be one of {', '.join(PROFILES)}")
    chosen = _chosen(checks)
    wanted = None if dtypes is None else set(dtypes)
    units = []
    for implementation in _distinct(implementations):
        for device in devices or _present(implementation):
            taken = (dtype for dtype in implementation.dtypes if wanted is None or dtype in wanted)
            units += [Unit(Context(implementation, dtype, device, profile, seed), chosen) for dtype in taken]
    return sorted(units, key=_order)


def settle(context: Context) -> None:
    """Make this process ready for a context: pin threads, and forget the certified values of another norm or dtype."""
    framework = frameworks()[context.implementation.framework]
    shared = (str(context.norm), context.dtype)
    if shared != _LAST.get("shared"):
        forget()
        getattr(framework, "forget", int)()  # of an adapter whose framework keeps what it has compiled
        _LAST["shared"] = shared
    if framework.available() is None:
        framework.pin_threads(THREADS)


def _order(unit: Unit) -> tuple[str, str, str]:
    return *unit.shared, unit.context.implementation.name


def _chosen(ids: Iterable[str] | None) -> tuple[Check, ...]:
    known = checks()
    if isinstance(ids, str):
        raise ValueError(f"checks={ids!r}, but should be several ids, such as [{ids!r}]")
    if ids is None:
        return tuple(known.values())
    wanted = list(ids)
    for id_ in wanted:
        if id_ not in known:
            raise ValueError(refusal("check", id_, known, "normcheck list checks"))
    return tuple(check for id_, check in known.items() if id_ in wanted or not check.requires)


def _distinct(implementations: Iterable[Implementation]) -> Sequence[Implementation]:
    found = list(implementations)
    for one in found:
        if not isinstance(one, Implementation):
            raise ValueError(f"implementation={one!r}, but should be an Implementation")
    names = [implementation.name for implementation in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"two implementations are named {twice[0]!r}, but names should differ")
    return found


def _present(implementation: Implementation) -> Sequence[str]:
    """The devices that can be used now among those that the implementation takes; all of them where that cannot be told."""
    framework = frameworks()[implementation.framework]
    here = framework.devices() if framework.available() is None else implementation.devices
    return [device for device in implementation.devices if device in here] or implementation.devices[:1]
