"""What came out: one frozen Result per check, implementation, dtype, device, regime, shape and layout."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

from normcheck.stored import GRADE, NUMBER, PAIR, TEXT, WHOLE, Record, expect


class Outcome(enum.StrEnum):
    """How a check ended. ``broken``: it or the call raised; ``xfailed``: failed as the ledger says; ``xpassed``: did not."""

    PASSED = "passed"
    FAILED = "failed"
    WARNED = "warned"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"
    BROKEN = "broken"
    CRASHED = "crashed"
    TIMEOUT = "timeout"

    @property
    def bad(self) -> bool:
        """Whether it makes an audit fail."""
        return self in (Outcome.FAILED, Outcome.BROKEN, Outcome.CRASHED, Outcome.TIMEOUT)

    @property
    def finding(self) -> bool:
        """Whether a reader should look at it."""
        return self.bad or self in (Outcome.WARNED, Outcome.XFAILED, Outcome.XPASSED)


class Severity(enum.StrEnum):
    """``error``: the code does not compute what it claims; ``warning``: sound code may differ, but somebody will be hurt."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True)
class Witness:
    """The smallest input found that shows a failure.

    Attributes
    ----------
    snippet : Python source that shows it with nothing but the user's library and numpy
    inputs : seeded numpy expression or literal of the row that makes it
    index : position of the worst element in the row
    got, expected : the worst element's value and the certified one, as hex literals
    """

    snippet: str
    inputs: str
    index: int | None = None
    got: str | None = None
    expected: str | None = None


@dataclass(frozen=True)
class Result:
    """One judgement.

    Attributes
    ----------
    check : id of the check, such as ``"shift-invariance"``
    implementation, norm : names of what was judged and of what it claims
    dtype, device, layout : of the input
    regime : family of rows, ``""`` where the check makes its own
    shape : of the input as the implementation saw it
    outcome, severity : see `Outcome` and `Severity`
    error, tolerance : of the worst element, in ``unit``; the ratio of the two decides
    unit : ``"absolute"``, ``"ulp"`` or what the check says
    message : one line, ``thing=got, but should be expected [call]``, or the reason of a skip
    terms : what the tolerance is the sum of, by name, where a bound was derived for the worst element of a failure
    measures : further figures by name, such as ``ulp``, ``ratio_tree`` or ``correctly_rounded``
    series : curves for the plots by name, each a sequence of (x, y) pairs
    witness : the input that shows it
    ledger : reason and link from the ledger where the outcome is xfailed or xpassed, or a warning is known
    bits : digest of the output's bits, where the check keeps one
    seconds : wall time that the judgement took
    """

    check: str
    implementation: str
    norm: str
    dtype: str
    outcome: Outcome
    severity: Severity = Severity.ERROR
    device: str = "cpu"
    layout: str = "contiguous"
    regime: str = ""
    shape: tuple[int, ...] = ()
    error: float | None = None
    tolerance: float | None = None
    unit: str = "absolute"
    message: str = ""
    terms: Mapping[str, float] = field(default_factory=dict)
    measures: Mapping[str, float] = field(default_factory=dict)
    series: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    witness: Witness | None = None
    ledger: str = ""
    bits: str = ""
    seconds: float = 0.0

    @property
    def ratio(self) -> float | None:
        """error / tolerance, or None where the check measures none."""
        if self.error is None or self.tolerance is None:
            return None
        if self.error == 0:
            return 0.0
        return self.error / self.tolerance if self.tolerance > 0 else math.inf

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without what is as usual; numbers that JSON lacks become ``"inf"``, ``"-inf"``, ``"nan"``."""
        usual = {f.name: f.default_factory() if f.default_factory is not MISSING else f.default for f in fields(self)}
        return {name: _plain(value) for name, value in asdict(self).items() if value != usual[name]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Result:
        """The inverse of `to_dict`; keys that this version does not know are ignored.

        Raises
        ------
        ValueError : for the first thing that is not as `RESULT` says, such as ``error='1', but should be a number``
        """
        expect(data, RESULT)
        known = {f.name for f in fields(cls)}
        values = {key: _restore(value) if key in _NUMERIC else value for key, value in data.items() if key in known}
        values["outcome"] = Outcome(values["outcome"])
        values["severity"] = Severity(values.get("severity", "error"))
        values["shape"] = tuple(values.get("shape", ()))
        values["series"] = {k: tuple((float(a), float(b)) for a, b in v) for k, v in values.get("series", {}).items()}
        if data.get("witness") is not None:
            parts = {f.name for f in fields(Witness)}
            values["witness"] = Witness(**{key: value for key, value in data["witness"].items() if key in parts})
        return cls(**values)


_NUMBERS_BY_NAME = Record({"grade": GRADE}, rest=NUMBER)
RESULT = Record(
    {
        **dict.fromkeys(("check", "implementation", "norm", "dtype", "device", "layout", "regime", "unit"), TEXT),
        **dict.fromkeys(("message", "ledger", "bits"), TEXT),
        "outcome": Outcome,
        "severity": Severity,
        "shape": [WHOLE],
        "error": (NUMBER,),
        "tolerance": (NUMBER,),
        "terms": _NUMBERS_BY_NAME,
        "measures": _NUMBERS_BY_NAME,
        "series": Record(rest=[PAIR]),
        "seconds": NUMBER,
        "witness": (
            Record(
                {"snippet": TEXT, "inputs": TEXT, "index": (WHOLE,), "got": (TEXT,), "expected": (TEXT,)}, ("snippet", "inputs")
            ),
        ),
    },
    needed=("check", "implementation", "norm", "dtype", "outcome"),
)
_NUMERIC = ("error", "tolerance", "terms", "measures", "series", "seconds")
_NUMBERS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _restore(value: Any) -> Any:
    if isinstance(value, str):
        return _NUMBERS.get(value, value)
    if isinstance(value, Mapping):
        return {k: _restore(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_restore(v) for v in value]
    return value
