"""The ledger: verified faults of other people's released libraries, which turn a failure into an expected one, narrowly."""

from __future__ import annotations

import functools
import itertools
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from importlib import metadata, resources
from typing import Any, TypeVar

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from normcheck.regimes import WIDTHS
from normcheck.results import Outcome, Result

T = TypeVar("T")
_PROFILES = tuple(WIDTHS)
_EXPECTED = (Outcome.FAILED, Outcome.BROKEN, Outcome.CRASHED)


@dataclass(frozen=True)
class Entry:
    """One verified fault. Names may hold the wildcards of fnmatch; an empty one matches everything.

    Attributes
    ----------
    implementation, check, dtype, device, regime, layout : which results it expects to fail
    library, versions : the distribution that has the fault, and in which versions
    reason : what is wrong, in one line
    link : where it is reported, or empty
    script : a script in the repository that shows it without normcheck
    direction : ``forward`` or ``backward``
    sometimes : it shows on some inputs only, by the seed: where all pass, nothing was mended
    profile : the least thorough profile that shows it; in a lesser one its absence is no news
    warning : the check only warns of it: such a warning stays one and carries the reason, and no failure is excused
    """

    implementation: str
    library: str
    versions: str
    check: str
    reason: str
    dtype: str = ""
    device: str = ""
    regime: str = ""
    layout: str = ""
    direction: str = "forward"
    sometimes: bool = False
    link: str = ""
    script: str = ""
    profile: str = "quick"
    warning: bool = False

    def expects(self, result: Result, versions: Mapping[str, str] | None = None) -> bool:
        """Whether the entry speaks of this result, in these versions of libraries; None for those that are installed."""
        matched = ("implementation", "check", "dtype", "device", "regime", "layout")
        return all(_matches(getattr(result, name), getattr(self, name)) for name in matched) and self.speaks_of(versions)

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The outcomes that the entry explains."""
        return (Outcome.WARNED,) if self.warning else _EXPECTED

    @property
    def installed(self) -> bool:
        """Whether one of the faulty versions is installed."""
        return self.speaks_of(None)

    def speaks_of(self, versions: Mapping[str, str] | None) -> bool:
        """Whether one of the faulty versions is among these; None for those that are installed."""
        version = _version(self.library) if versions is None else versions.get(self.library)
        return version is not None and SpecifierSet(self.versions).contains(version.partition("+")[0], prereleases=True)

    @property
    def text(self) -> str:
        """Reason, library and link in one line."""
        return f"{self.reason} [{self.library} {self.versions}{'; ' + self.link if self.link else ''}]"


def entries() -> tuple[Entry, ...]:
    """The entries of the ledger that ships with the package; a list in its file stands for one entry each.

    Raises
    ------
    ValueError : for an entry with an unknown or missing key or an invalid version range, naming it
    """
    text = resources.files("normcheck").joinpath("ledger.toml").read_text(encoding="utf-8")
    faults = tomllib.loads(text).get("fault", ())
    return tuple(_entry(number, one) for number, data in enumerate(faults, start=1) for one in _expanded(data))


def apply(
    results: Iterable[Result],
    ledger: Iterable[Entry] | None = None,
    profile: str = "deep",
    versions: Mapping[str, str] | None = None,
) -> tuple[Result, ...]:
    """Turn expected failures into ``xfailed`` and give expected warnings their reason; where all passed, mark one ``xpassed``.

    Parameters
    ----------
    ledger : the entries; None for those that ship
    profile : of the audit; an entry that only a more thorough one shows cannot be stale in it
    versions : of libraries where the results were found; None for those that are installed
    """
    done = list(results)
    of = _by_implementation_and_check(done)
    for entry in entries() if ledger is None else ledger:
        named = (members for checks in _meant(of, entry.implementation) for members in _meant(checks, entry.check))
        places = sorted(i for members in named for i in members if entry.expects(done[i], versions))
        for i in (i for i in places if done[i].outcome in entry.outcomes):
            done[i] = replace(done[i], outcome=done[i].outcome if entry.warning else Outcome.XFAILED, ledger=entry.text)
        seen = any(done[i].outcome in (Outcome.XFAILED, Outcome.WARNED) for i in places)
        passed = [i for i in places if done[i].outcome is Outcome.PASSED]
        shown = not entry.sometimes and _PROFILES.index(entry.profile) <= _PROFILES.index(profile)
        if passed and not seen and shown:
            done[passed[0]] = replace(done[passed[0]], outcome=Outcome.XPASSED, ledger=entry.text)
    return tuple(done)


def excuse(results: Iterable[Result], names: Mapping[str, str]) -> tuple[Result, ...]:
    """Turn into ``xfailed`` what fails as the ledger says of the same code under another name; what passes is no news of that.

    Parameters
    ----------
    names : the other names, by that of the implementation
    """
    found = list(results)
    failing = [i for i, one in enumerate(found) if one.outcome.bad and one.implementation in names]
    renamed = [replace(found[i], implementation=names[found[i].implementation]) for i in failing]
    for i, one in zip(failing, apply(renamed), strict=True):
        found[i] = replace(one, implementation=found[i].implementation)
    return tuple(found)


def _by_implementation_and_check(results: Iterable[Result]) -> dict[str, dict[str, list[int]]]:
    of: dict[str, dict[str, list[int]]] = {}
    for i, result in enumerate(results):
        of.setdefault(result.implementation, {}).setdefault(result.check, []).append(i)
    return of


def _meant(of: Mapping[str, T], pattern: str) -> Iterator[T]:
    """The members of the names that a pattern stands for."""
    if "*" not in pattern and pattern:
        names: Iterable[str] = (pattern,) if pattern in of else ()
    else:
        names = (name for name in of if _matches(name, pattern))
    return (of[name] for name in names)


def _expanded(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One entry for each combination of what a fault lists."""
    listed = {key: value for key, value in data.items() if isinstance(value, list)}
    for chosen in itertools.product(*listed.values()):
        yield {**data, **dict(zip(listed, chosen, strict=True))}


def _entry(number: int, data: Mapping[str, Any]) -> Entry:
    known = {f.name for f in fields(Entry)}
    wrong = set(data) - known
    if wrong:
        raise ValueError(
            f"ledger entry {number} has key {sorted(wrong)[0]!r}, but should have some of {', '.join(sorted(known))}"
        )
    try:
        entry = Entry(**data)
        SpecifierSet(entry.versions)
    except TypeError as error:
        raise ValueError(f"ledger entry {number}: {error}") from None
    except InvalidSpecifier:
        raise ValueError(f"ledger entry {number}: versions={data['versions']!r}, but should be a range such as '<2.14'") from None
    return entry


def _matches(value: str, pattern: str) -> bool:
    # names of implementations carry brackets, which are no character sets here
    return pattern in ("", value) or ("*" in pattern and fnmatchcase(value, pattern.replace("[", "[[]")))


@functools.cache
def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None
