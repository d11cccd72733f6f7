"""Products of a norm's first and second derivative with vectors, in rationals: for tests of forward mode and double backward.

With rho(s2) = 1/S, t' the direction t less its mean where the norm subtracts one, and s2' = 2/N' sum of c t' over the statistic,

    J t = w (rho t' + rho' s2' c),
    H[t] = rho' s2' g' + 2/N' ((rho'' s2' Q + rho' Q') c + rho' Q t'),    Q = sum g' c,  Q' = sum g' t',

g' = w dy less its mean; terms in c and t' after 2/N' only for elements of the statistic. The vector-Jacobian product is
`reference_grad`'s dx.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from normcheck.contract import Contract
from normcheck.formats import Format, format_of
from normcheck.norms import Norm
from normcheck.reference.backward import like
from normcheck.reference.exact import ExactRow, exact_row, parameter
from normcheck.reference.exceptional import ordinary
from normcheck.reference.forward import Call, prepare
from normcheck.reference.problem import Problem
from normcheck.reference.rows import FoldedRows

Surd = tuple[Fraction, Fraction]


def reference_jvp(
    norm: Norm,
    x: npt.ArrayLike,
    tangent: npt.ArrayLike,
    weight: npt.ArrayLike | None = None,
    *,
    running_mean: npt.ArrayLike | None = None,
    running_var: npt.ArrayLike | None = None,
    training: bool = True,
    contract: Contract | None = None,
    dtype: Any = None,
    channel_axis: int = 1,
) -> npt.NDArray[Any]:
    """The derivative of the norm at x in the direction of a tangent, each element exact and rounded once.

    Parameters are those of `reference`, as far as they bear on a derivative; ``tangent`` has x's shape. It takes some 20 to 30
    microseconds per element. Rows with an Inf or NaN in x, tangent or weight, or with S = 0, are NaN.

    Raises
    ------
    ValueError : as `reference`
    """
    call = prepare(norm, x, weight, None, None, running_mean, running_var, training, contract, channel_axis)
    rows = FoldedRows(like("tangent", tangent, call), call.fold)
    return _each_row(call, [rows], dtype, _first)


def reference_hvp(
    norm: Norm,
    x: npt.ArrayLike,
    dy: npt.ArrayLike,
    tangent: npt.ArrayLike,
    weight: npt.ArrayLike | None = None,
    *,
    running_mean: npt.ArrayLike | None = None,
    running_var: npt.ArrayLike | None = None,
    training: bool = True,
    contract: Contract | None = None,
    dtype: Any = None,
    channel_axis: int = 1,
) -> npt.NDArray[Any]:
    """The derivative of `reference_grad`'s dx at x in the direction of a tangent: the Hessian of sum(dy * y) times the tangent.

    Parameters are those of `reference_grad`, as far as they bear on dx; ``tangent`` has x's shape. Each element is exact and
    rounded once, in some 30 to 50 microseconds. Rows are NaN as for `reference_jvp`, and constant rows where eps is added
    outside the root: there is no second derivative.

    Raises
    ------
    ValueError : as `reference_grad`
    """
    call = prepare(norm, x, weight, None, None, running_mean, running_var, training, contract, channel_axis)
    rows = [FoldedRows(like(name, part, call), call.fold) for name, part in (("dy", dy), ("tangent", tangent))]
    return _each_row(call, rows, dtype, _second)


def _each_row(call: Call, given: list[FoldedRows], dtype: Any, derivative: Callable[..., list[Surd] | None]) -> npt.NDArray[Any]:
    fmt = call.x if dtype is None else format_of(dtype)
    out = np.empty(call.fold.shape, fmt.dtype)
    target, p = FoldedRows(out, call.fold), call.problem
    for r in range(len(target)):
        chosen = slice(r, r + 1)
        vectors = [np.asarray(part[chosen], np.float64)[0] for part in given]
        target[chosen] = _row(p.rows(chosen), vectors, fmt, derivative)[None].astype(fmt.dtype)
    return out


def _row(p: Problem, vectors: list[Any], fmt: Format, derivative: Callable[..., list[Surd] | None]) -> Any:
    weights = [parameter(p.weight, 0, i, 1.0) for i in range(p.width)]
    finite = all(np.isfinite(part).all() for part in (p.x, weights, *vectors))
    with np.errstate(all="ignore"):
        regular = bool(ordinary(p)[0][0])
    if not (finite and regular):
        return np.full(p.width, np.nan)
    row, offset = exact_row(p, 0), Fraction(p.offset) if p.weight is not None else Fraction(0)
    exact = [[Fraction(float(v)) for v in part] for part in vectors]
    parts = derivative(row, [offset + Fraction(w) for w in weights], *exact)
    return np.full(p.width, np.nan) if parts is None else np.array([row.rounded(a, b, fmt)[0] for a, b in parts])


def _first(row: ExactRow, weight: list[Fraction], tangent: list[Fraction]) -> list[Surd]:
    t = _less_mean(row, tangent)
    c = [row.c(i) for i in range(len(t))]
    moved = _moved(row, c, t)
    rho, slope = row.inverse, _times(row.bend, Fraction(-1, 2) * moved)
    return [_times(_plus(_times(rho, v), _times(slope, u)), w) for w, v, u in zip(weight, t, c, strict=True)]


def _second(row: ExactRow, weight: list[Fraction], dy: list[Fraction], tangent: list[Fraction]) -> list[Surd] | None:
    bow = _second_derivative(row)
    if bow is None:
        return None
    t, g = _less_mean(row, tangent), _less_mean(row, [w * v for w, v in zip(weight, dy, strict=True)])
    c = [row.c(i) for i in range(len(t))]
    moved, slope = _moved(row, c, t), _times(row.bend, Fraction(-1, 2))
    share = Fraction(2, row.standardization.divisor(len(t)))
    q, q_moved = (sum((a * b for a, b in zip(g, part, strict=True)), Fraction(0)) for part in (c, t))
    of_c = _times(_plus(_times(bow, moved * q), _times(slope, q_moved)), share)
    count, zero = row.standardization.count(len(t)), (Fraction(0), Fraction(0))
    inner = [_plus(_times(of_c, c[j]), _times(slope, share * q * t[j])) if j < count else zero for j in range(len(t))]
    return [_plus(_times(slope, moved * v), part) for v, part in zip(g, inner, strict=True)]


def _second_derivative(row: ExactRow) -> Surd | None:
    """The second derivative of 1/S with respect to s2; None where there is none."""
    zero = Fraction(0)
    outside = row.standardization.placement == "outside" and not row.given
    if outside and row.spread == 0:
        return None
    if row.bend == (zero, zero):
        return zero, zero
    if not outside:
        return _times(row.bend, Fraction(3, 4) / row.radicand)
    square = _product(row, row.inverse, row.inverse)
    sigma = (row.root, zero) if row.root is not None else (zero, Fraction(1))
    cubed = _times(_product(row, square, row.inverse), 1 / (2 * row.spread))
    return _plus(cubed, _times(_product(row, square, sigma), 1 / (4 * row.spread**2)))


def _less_mean(row: ExactRow, values: list[Fraction]) -> list[Fraction]:
    if row.given or not row.standardization.center:
        return values
    mean = sum(values, Fraction(0)) / len(values)
    return [v - mean for v in values]


def _moved(row: ExactRow, c: list[Fraction], t: list[Fraction]) -> Fraction:
    """How s2 moves with the row."""
    s, count = row.standardization, row.standardization.count(len(c))
    return 2 * sum((a * b for a, b in zip(c[:count], t[:count], strict=True)), Fraction(0)) / s.divisor(len(c))


def _plus(a: Surd, b: Surd) -> Surd:
    return a[0] + b[0], a[1] + b[1]


def _times(a: Surd, factor: Fraction) -> Surd:
    return a[0] * factor, a[1] * factor


def _product(row: ExactRow, a: Surd, b: Surd) -> Surd:
    return a[0] * b[0] + a[1] * b[1] * row.radicand, a[0] * b[1] + a[1] * b[0]
