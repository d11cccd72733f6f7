"""The denominator S of a standardization and how far an error of the statistic moves it."""

from __future__ import annotations

import numpy as np

from normcheck.formats import Array, Mask
from normcheck.norms import EpsPlacement


def denominator(spread: Array, eps: float | Array, placement: EpsPlacement) -> Array:
    """S in float64 from s2 = ``spread``; NaN where the square root has a negative argument."""
    if placement == "inside":
        return np.sqrt(spread + eps)
    if placement == "outside":
        return np.sqrt(spread) + eps
    if placement == "max":
        return np.maximum(np.sqrt(spread), eps)
    if placement == "max_inside":
        return np.sqrt(np.maximum(spread, eps))
    return np.sqrt(spread)


def denominator_error(spread: Array, error: Array, eps: float | Array, placement: EpsPlacement, add: float, root: float) -> Array:
    """Bound on the error of a computed S.

    Parameters
    ----------
    spread, error : s2 as computed, and a bound on its absolute error
    add, root : relative errors of an addition and of a square root in the arithmetic that computed S from ``spread``

    Notes
    -----
    Let a be the computed argument of the square root, e the bound on its error, and q = sqrt(a). The exact root lies between
    sqrt(max(a - e, 0)) and sqrt(a + e); the lower end is the farther one, by q - sqrt(a - e) = e/(q + sqrt(a - e)) where e <= a,
    and by at most max(q, sqrt(a + e) - q) <= sqrt(e) where e > a. max(., eps) moves no two numbers apart, and takes all error
    away where both ends lie below eps. The result carries 1 % for the roundings of its own evaluation.
    """
    if placement == "inside":
        total = spread + eps
        return 1.01 * (root_error(total, error + add * total) + root * np.sqrt(total))
    if placement == "max_inside":
        floored = np.maximum(spread, eps)
        return 1.01 * (root_error(floored, _floored_error(spread, error, eps)) + root * np.sqrt(floored))
    sigma = np.sqrt(spread)
    off = root_error(spread, error) + root * sigma
    if placement == "outside":
        off = off + add * (sigma + eps)
    if placement == "max":
        off = _floored_error(sigma, off, eps)
    return 1.01 * off


def root_error(value: Array, error: Array) -> Array:
    """Bound on how far the root of a value lies from that of a number within ``error`` of it."""
    lower = np.sqrt(np.maximum(value - error, 0.0))
    close = np.divide(error, np.sqrt(value) + lower, out=np.zeros_like(value), where=value > 0)
    return np.where(error <= value, close, np.sqrt(error))


def _floored_error(value: Array, error: Array, floor: float | Array) -> Array:
    off = 1.01 * error
    return np.where(value + off < floor, 0.0, off)


def bend(
    spread: Array, error: Array, relative: Array, eps: float | Array, placement: EpsPlacement, root: float
) -> tuple[Mask, Array]:
    """Where S moves with s2, and a bound on the relative error of T in dS/d(s2) = 1/(2 T): inf where one cannot tell.

    T is S, or sqrt(s2) for eps placed ``outside``. max(., eps) does not move below eps; at equality it moves.

    Parameters
    ----------
    spread, error : s2 as computed, and a bound on its absolute error
    relative : that on the relative error of S
    root : relative error of a square root
    """
    if placement not in ("outside", "max", "max_inside"):
        return np.ones(spread.shape, bool), relative
    sigma = np.sqrt(spread)
    off = root_error(spread, error) + root * sigma
    if placement == "outside":
        moves = (spread > 0) | (error > 0)
        return moves, np.where(moves, 1.01 * off / sigma, 0.0)
    value, slack = (sigma, off) if placement == "max" else (spread, error)
    return value >= eps, np.where(np.abs(value - eps) <= 1.01 * slack, np.inf, relative)
