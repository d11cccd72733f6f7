"""The reference put to the test: python-flint's balls at 400 bits against every level of the ladder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from normcheck.formats import FORMATS, Array, Format
from normcheck.norms import PLACEMENTS, Standardization
from normcheck.reference.exact import parameter, round_fraction
from normcheck.reference.ladder import correctly_rounded
from normcheck.reference.problem import Problem
from normcheck.regimes import REGIMES, biases, weights

BITS = 400
_KINDS = (
    (True, "mean", 1.0, 0),
    (True, "mean", 1.0, 1),
    (False, "mean", 1.0, 0),
    (False, "sum", 1.0, 0),
    (False, "mean", 0.3, 0),
)
_EPS = (1e-5, 1e-6, 1e-12, 1.0, 0.0)
_WIDTHS = (2, 3, 7, 16, 33, 64, 1, 129)
_EXTREMES: dict[str, Callable[[Array], Array]] = {
    "scale-1e-320": lambda z: 1e-320 * z,
    "scale-1e300": lambda z: 1e300 * z,
    "mean-1e12": lambda z: 1e12 + z,
    "mixed-scales": lambda z: z * np.where(z > 0, 1e-200, 1e200),
}


@dataclass(frozen=True)
class Tally:
    """Counts of elements: compared, wrong, on a midpoint, and left by float64 and by double-double to the next level."""

    elements: int = 0
    mismatches: int = 0
    ties: int = 0
    level1: int = 0
    level2: int = 0

    def __add__(self, other: Tally) -> Tally:
        """Counts of both."""
        mine, theirs = asdict(self), asdict(other)
        return Tally(**{name: mine[name] + theirs[name] for name in mine})


@dataclass(frozen=True)
class Certification:
    """What a comparison of the reference with balls of 400 bits found.

    Attributes
    ----------
    forward : counts per format
    examples : the first mismatches, one line each
    """

    forward: dict[str, Tally] = field(default_factory=dict)
    examples: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing differed."""
        return not any(tally.mismatches for tally in self.forward.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Case:
    """Rows of one regime and what is done to them."""

    regime: str
    problem: Problem
    fmt: Format


def certification(elements: int = 100_000, seed: int = 0, progress: Callable[[int, int], None] | None = None) -> Certification:
    """Compare the reference with python-flint over regimes, formats, norms and placements.

    Parameters
    ----------
    elements : how many to compare at least
    seed : of the rows
    progress : called with the elements done and to be done

    Raises
    ------
    ImportError : if python-flint is missing
    """
    import flint

    flint.ctx.prec = BITS
    forward, examples, done = {name: Tally() for name in FORMATS}, [], 0
    for case in cases(elements, seed):
        tally, wrong = _compare(case, flint.arb)
        forward[case.fmt.name] += tally
        examples += wrong
        done += tally.elements
        if progress is not None:
            progress(min(done, elements), elements)
        if done >= elements:
            break
    return Certification(forward, tuple(examples[:10]))


def cases(elements: int, seed: int) -> Iterator[Case]:
    """Cases in random order, over and over with other rows, so large that each kind comes up before ``elements`` are reached."""
    rng = np.random.default_rng(seed)
    kinds = list(product(FORMATS.values(), (*REGIMES, *_EXTREMES), _KINDS, PLACEMENTS))
    share = -(-elements // len(kinds))
    round_ = 0
    while True:
        for k in rng.permutation(len(kinds)):
            case = _case(kinds[k], share, seed + round_, rng)
            if case is not None:
                yield case
        round_ += 1


def _case(kind: tuple[Any, ...], share: int, seed: int, rng: np.random.Generator) -> Case | None:
    fmt, regime, (center, reduce, fraction, ddof), placement = kind
    if regime in _EXTREMES and fmt.p != 53:
        return None
    width = int(rng.choice(_WIDTHS[: 6 if ddof else 8]))
    count = max(1, min(-(-share // width), 64))
    if regime in _EXTREMES:
        rows = _EXTREMES[regime](rng.normal(size=(count, width)))
    else:
        rows = REGIMES[regime].rows(count, width, fmt, seed)
    s = Standardization(center, reduce, fraction, float(rng.choice(_EPS)), placement, ddof)
    offset = float(rng.choice([0.0, 1.0]))
    weight = weights(width, fmt, seed, offset)[None] if rng.random() < 0.7 else None
    bias = biases(width, fmt, seed)[None] if rng.random() < 0.5 else None
    return Case(regime, Problem(rows, s, weight, bias, offset), fmt)


def _compare(case: Case, arb: Any) -> tuple[Tally, list[str]]:
    p = case.problem
    counts: dict[str, int] = {}
    got = correctly_rounded(p.x, p.standardization, p.weight, p.bias, weight_offset=p.offset, fmt=case.fmt, stats=counts)
    wrong = []
    for r in range(len(p.x)):
        for i, ball in enumerate(forward_balls(p, r, arb)):
            if not agrees(float(got[r, i]), ball, case.fmt):
                row = p.x[r].tolist()
                wrong.append(f"{case.regime} {case.fmt.name} {p.standardization} {row} element {i}: {got[r, i]!r}")
    return replace(Tally(**counts), mismatches=len(wrong)), wrong


def forward_balls(p: Problem, r: int, arb: Any) -> list[Any]:
    """Balls around y of row r, None where S is 0."""
    x, s = [arb(v) for v in p.x[r].tolist()], p.standardization
    count = s.count(len(x))
    center = sum(x, arb(0)) / len(x) if s.center else arb(0)
    c = [v - center for v in x]
    spread = sum((v * v for v in c[:count]), arb(0)) / arb(s.divisor(len(x)))
    flat = (p.x[r][:count] == (p.x[r][0] if s.center else 0.0)).all()
    scale = ball_denominator(arb(0) if flat else spread, arb(s.eps), s.placement)
    if scale == 0:
        return [None] * len(x)
    offset = arb(p.offset) if p.weight is not None else arb(0)
    w = [offset + arb(parameter(p.weight, r, i, 1.0)) for i in range(len(x))]
    b = [arb(parameter(p.bias, r, i, 0.0)) for i in range(len(x))]
    return [w[i] * (arb(0) if flat and s.center else v) / scale + b[i] for i, v in enumerate(c)]


def ball_denominator(spread: Any, eps: Any, placement: str) -> Any:
    """S as a ball."""
    if placement == "inside":
        return (spread + eps).sqrt()
    if placement == "outside":
        return spread.sqrt() + eps
    if placement == "max":
        return spread.sqrt().max(eps)
    return (spread.max(eps) if placement == "max_inside" else spread).sqrt()


def agrees(value: float, ball: Any, fmt: Format) -> bool:
    """Whether a value is the rounding of what a ball encloses; a ball around a midpoint stands for the midpoint."""
    if ball is None:
        return not np.isfinite(value)
    ends = [round_fraction(_fraction(end), fmt) for end in (ball.lower(), ball.upper())]
    if ends[0] == ends[1] or all(map(np.isnan, ends)):
        return value == ends[0] or bool(np.isnan(value) and np.isnan(ends[0]))
    if not all(map(np.isfinite, ends)):
        return value in ends
    return value == round_fraction((Fraction(ends[0]) + Fraction(ends[1])) / 2, fmt)


def _fraction(ball: Any) -> Fraction:
    mantissa, exponent = ball.man_exp()
    return Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
