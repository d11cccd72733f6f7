"""The reference put to the test: python-flint's balls at 400 bits against every level of the ladder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from normcheck.formats import FORMATS, Array, Format
from normcheck.norms import PLACEMENTS, Fold, Standardization
from normcheck.reference.exact import parameter, round_fraction
from normcheck.reference.gradient import GRADIENT, Backward
from normcheck.reference.ladder import round_problem
from normcheck.reference.problem import Problem
from normcheck.reference.rungs import new_counts, round_rows
from normcheck.reference.sums import Normalized, One, parameter_gradient
from normcheck.regimes import REGIMES, biases, weights

BITS = 400
MORE_BITS = 8192
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
    """Counts of elements: compared, wrong, on a midpoint, left by float64 and by double-double to the next level, undecided."""

    elements: int = 0
    mismatches: int = 0
    ties: int = 0
    level1: int = 0
    level2: int = 0
    uncertified: int = 0

    def __add__(self, other: Tally) -> Tally:
        """Counts of both."""
        mine, theirs = asdict(self), asdict(other)
        return Tally(**{name: mine[name] + theirs[name] for name in mine})


@dataclass(frozen=True)
class Certification:
    """What a comparison of the reference with balls of 400 bits found.

    Attributes
    ----------
    forward, backward : counts per format
    examples : the first mismatches, one line each
    """

    forward: dict[str, Tally] = field(default_factory=dict)
    backward: dict[str, Tally] = field(default_factory=dict)
    examples: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing differed."""
        return not any(tally.mismatches for tallies in (self.forward, self.backward) for tally in tallies.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Case:
    """Rows of one regime, what is done to them, and the gradients that come back."""

    regime: str
    problem: Problem
    dy: Array
    besides: Array | None
    fmt: Format


def certification(elements: int = 100_000, seed: int = 0, progress: Callable[[int, int], None] | None = None) -> Certification:
    """Compare the reference with python-flint over regimes, formats, norms and placements.

    Parameters
    ----------
    elements : how many to compare at least, each way
    seed : of the rows
    progress : called with the elements done and to be done

    Raises
    ------
    ImportError : if python-flint is missing
    """
    import flint

    forward, backward = ({name: Tally() for name in FORMATS} for _ in range(2))
    examples, done = [], 0
    for case in cases(elements, seed):
        for compare, tallies in ((_compare_forward, forward), (_compare_backward, backward)):
            tally, wrong = compare(case, flint)
            tallies[case.fmt.name] += tally
            examples += [f"{case.regime} {case.fmt.name} {case.problem.standardization} {line}" for line in wrong]
        done += case.dy.size
        if progress is not None:
            progress(min(done, elements), elements)
        if done >= elements:
            break
    return Certification(forward, backward, tuple(examples[:10]))


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
    if weight is not None and regime in _EXTREMES:
        weight = weight * 2.0 ** rng.integers(-300, 300, weight.shape)
    bias = biases(width, fmt, seed)[None] if rng.random() < 0.5 else None
    dy, besides = (fmt.round(rng.normal(size=rows.shape) * 2.0 ** rng.integers(-6, 5, rows.shape)) for _ in range(2))
    return Case(regime, Problem(rows, s, weight, bias, offset), dy, besides if rng.random() < 0.3 else None, fmt)


def _compare_forward(case: Case, flint: Any) -> tuple[Tally, list[str]]:
    counts = new_counts()
    got = round_problem(case.problem, case.fmt, counts)
    tally, wrong = _judge("y", got, lambda: [_outputs(row) for row in _balls(case, flint.arb)], case.fmt, flint)
    return tally + Tally(**counts), wrong


def _compare_backward(case: Case, flint: Any) -> tuple[Tally, list[str]]:
    p, fmt, counts = case.problem, case.fmt, new_counts() | {"uncertified": 0}
    fold = Fold(p.shape, (0, 1), *p.shape)
    dx = np.empty(p.shape)
    round_rows(Backward(p, case.dy, case.besides), GRADIENT, dx, fmt, counts)
    dweight, dbias = (parameter_gradient(p.bare(), case.dy, fold, factor, fmt, counts) for factor in (Normalized(), One()))

    def slopes() -> list[list[Any]]:
        return [_slopes(row, case) for row in _balls(case, flint.arb)]

    def weights_() -> list[list[Any]]:
        rows = _balls(case, flint.arb)
        return [[_total([row.products(i) for row in rows]) for i in range(p.width)]]

    def biases_() -> list[list[Any]]:
        return [[sum((flint.arb(v) for v in column), flint.arb(0)) for column in case.dy.T.tolist()]]

    total = Tally(**counts)
    wrong: list[str] = []
    for name, got, balls in (("dx", dx, slopes), ("dweight", dweight, weights_), ("dbias", dbias, biases_)):
        tally, lines = _judge(name, got, balls, fmt, flint)
        total, wrong = total + tally, wrong + lines
    return total, wrong


def _judge(name: str, got: Array, balls: Callable[[], list[list[Any]]], fmt: Format, flint: Any) -> tuple[Tally, list[str]]:
    """Mismatches, from balls that are made anew with more bits where the first do not decide."""
    flint.ctx.prec = BITS
    first, finer, wrong = balls(), None, []
    for r, i in np.ndindex(got.shape):
        ball = first[r][i]
        if not decides(ball, fmt):
            flint.ctx.prec = MORE_BITS
            finer = balls() if finer is None else finer
            ball = finer[r][i]
        if not agrees(float(got[r, i]), ball, fmt):
            wrong.append(f"{name}[{r}, {i}]: {float(got[r, i])!r}, but should be in {ball}")
    return Tally(mismatches=len(wrong)), wrong


def _balls(case: Case, arb: Any) -> list[_Balls]:
    return [_Balls(case, r, arb) for r in range(len(case.dy))]


def _total(parts: list[Any]) -> Any:
    return None if any(part is None for part in parts) else sum(parts[1:], parts[0])


class _Balls:
    """A row in balls: c, S, g, and how S moves; ``scale`` is None where it is 0."""

    def __init__(self, case: Case, r: int, arb: Any) -> None:
        p, s = case.problem, case.problem.standardization
        x, self.zero = [arb(v) for v in p.x[r].tolist()], arb(0)
        self.count, self.divisor = s.count(p.width), arb(s.divisor(p.width))
        center = sum(x, arb(0)) / p.width if s.center else arb(0)
        flat = bool((p.x[r][: self.count] == (p.x[r][0] if s.center else 0.0)).all())
        self.c = [arb(0) if flat and s.center else v - center for v in x]
        self.spread = arb(0) if flat else sum((c * c for c in self.c[: self.count]), arb(0)) / self.divisor
        self.scale, self.slope = ball_denominator(self.spread, arb(s.eps), s.placement)
        offset = arb(p.offset) if p.weight is not None else arb(0)
        self.weight = [offset + arb(parameter(p.weight, r, i, 1.0)) for i in range(p.width)]
        self.bias = [arb(parameter(p.bias, r, i, 0.0)) for i in range(p.width)]
        self.dy = [arb(v) for v in case.dy[r].tolist()]
        self.besides = [arb(0)] * p.width if case.besides is None else [arb(v) for v in case.besides[r].tolist()]

    def products(self, i: int) -> Any:
        """dy n of element i."""
        return None if self.scale is None else self.dy[i] * self.c[i] / self.scale


def _outputs(row: _Balls) -> list[Any]:
    if row.scale is None:
        return [None] * len(row.c)
    return [w * c / row.scale + b for w, c, b in zip(row.weight, row.c, row.bias, strict=True)]


def _slopes(row: _Balls, case: Case) -> list[Any]:
    """dx_j as the sum over i of g_i dn_i/dx_j, each term by the quotient rule."""
    if row.scale is None:
        return [None] * len(row.c)
    g = [w * v for w, v in zip(row.weight, row.dy, strict=True)]
    mean = sum(g, row.zero) / len(g) if case.problem.standardization.center else row.zero
    pull = sum((v * c for v, c in zip(g, row.c, strict=True)), row.zero) / row.scale**2 * row.slope * 2 / row.divisor
    inner = [(v - mean) / row.scale - (c * pull if j < row.count else 0) for j, (v, c) in enumerate(zip(g, row.c, strict=True))]
    return [v + more for v, more in zip(inner, row.besides, strict=True)]


def ball_denominator(spread: Any, eps: Any, placement: str) -> tuple[Any, Any]:
    """S and dS/d(s2) as balls; (None, None) where S is 0. A constant row's slope, which meets c = 0 only, is given as 0."""
    sigma, zero = spread.sqrt(), spread * 0
    half = zero if spread == 0 else 1 / (2 * sigma)
    if placement == "inside":
        scale = (spread + eps).sqrt()
        slope = zero if scale == 0 else 1 / (2 * scale)
    elif placement == "outside":
        scale, slope = sigma + eps, half
    elif placement == "max":
        scale, slope = sigma.max(eps), zero if sigma < eps else half
    elif placement == "max_inside":
        scale, slope = spread.max(eps).sqrt(), zero if spread < eps else half
    else:
        scale, slope = sigma, half
    return (None, None) if scale == 0 else (scale, slope)


def decides(ball: Any, fmt: Format) -> bool:
    """Whether all that a ball encloses rounds alike."""
    if ball is None:
        return True
    lower, upper = _ends(ball, fmt)
    return lower == upper or bool(np.isnan(lower) and np.isnan(upper))


def agrees(value: float, ball: Any, fmt: Format) -> bool:
    """Whether a value is the rounding of what a ball encloses; a ball around 0 or a midpoint stands for it."""
    if ball is None:
        return not np.isfinite(value)
    lower, upper = _ends(ball, fmt)
    if decides(ball, fmt):
        return value == lower or bool(np.isnan(value) and np.isnan(lower))
    if ball.contains(0):
        return value == 0
    if not (np.isfinite(lower) and np.isfinite(upper)):
        return value in (lower, upper)
    return value == round_fraction((Fraction(lower) + Fraction(upper)) / 2, fmt)


def _ends(ball: Any, fmt: Format) -> tuple[float, float]:
    return round_fraction(_fraction(ball.lower()), fmt), round_fraction(_fraction(ball.upper()), fmt)


def _fraction(ball: Any) -> Fraction:
    mantissa, exponent = ball.man_exp()
    return Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
