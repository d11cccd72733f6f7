"""The second derivative of a norm in closed form, with the moduli from which its tolerance follows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from normcheck.checks.gradient_cases import GradientCase
from normcheck.formats import Array, Mask
from normcheck.gradient_bounds import per_parameter

_SUMS = 4
_OPERATIONS = 64


class Bend(NamedTuple):
    """f = 1/S as a function of s2: its value and its first two derivatives, each (R, 1)."""

    f: Array
    first: Array
    second: Array


class Terms(NamedTuple):
    """What enters the formula: as it is, or by its modulus.

    Attributes
    ----------
    c : deviations, (R, D)
    moves : which elements enter the statistic, (D,)
    bend : f and its derivatives
    centred : whether a mean is subtracted
    moduli : whether these are moduli
    """

    c: Array
    moves: Mask
    bend: Bend
    centred: bool
    moduli: bool

    def take(self, values: Array) -> Array:
        """The values, or their moduli."""
        return np.abs(values) if self.moduli else values

    def free(self, values: Array) -> Array:
        """The values less their mean, where one is subtracted; of moduli the sum of both."""
        mean = values.mean(axis=1, keepdims=True) if self.centred else np.zeros(1)
        return np.asarray(values + mean if self.moduli else values - mean)


def second_order(gradient: GradientCase, along: Mapping[str, Array]) -> dict[str, tuple[Array, Array]]:
    """Gradients of <dx, t> + <dweight, s> + <dbias, s'> with respect to x, weight, bias and dy (as ``"y"``), with bounds.

    With f = 1/S, N' the divisor of s2 and primes for what the mean is subtracted from, J t = f*t' + (2f_1/N')*c*<c, t'> and

        H[t] = (2f_1/N')*(c*<g', t'> + g'*<c, t'> + t'*<c, g'>) + (4f_2/N'**2)*c*<c, g'>*<c, t'>

    where f_1 and f_2 are the derivatives of f by s2; the inner products with t run over the elements of the statistic.

    Parameters
    ----------
    along : the directions t, s, s' under ``"x"``, ``"weight"`` and ``"bias"``; what is absent is 0

    Returns
    -------
    for x and dy rows (R, D), for parameters (1, size)
    """
    case = gradient.case
    plain, moduli = (_gradients(gradient, _terms(gradient, moduli), along) for moduli in (False, True))
    height = 32 + math.ceil(math.log2(max(case.fold.width, gradient.errors.terms, 2)))
    bound = (_SUMS * (height + 1) + _OPERATIONS) * case.errors.compute.u
    return {name: (plain[name], bound * moduli[name]) for name in plain}


def _terms(gradient: GradientCase, moduli: bool) -> Terms:
    case, bend = gradient.case, _bend(gradient)
    std = case.errors.standardization
    c = case.rows - case.certified.mean[:, None]
    if moduli:
        c = np.abs(case.rows) + (np.abs(case.rows).mean(axis=1, keepdims=True) if std.center else 0.0)
        bend = Bend(*(np.abs(part) for part in bend))
    moves = np.arange(case.fold.width) < std.count(case.fold.width)
    return Terms(c, moves, bend, std.center and case.given[0] is None, moduli)


def _bend(gradient: GradientCase) -> Bend:
    std, cert = gradient.case.errors.standardization, gradient.case.certified
    sigma, f = cert.sigma[:, None], 1.0 / cert.scale[:, None]
    zero = np.zeros_like(f)
    if gradient.case.given[0] is not None:
        return Bend(f, zero, zero)
    if std.placement == "outside":
        return Bend(f, -(f**2) / (2 * sigma), f**3 / (2 * sigma**2) + f**2 / (4 * sigma**3))
    fixed = std.placement in ("max", "max_inside") and bool((sigma < cert.scale[:, None] * (1 - 2.0**-30)).any())
    return Bend(f, zero, zero) if fixed else Bend(f, -0.5 * f**3, 0.75 * f**5)


def _gradients(gradient: GradientCase, terms: Terms, along: Mapping[str, Array]) -> dict[str, Array]:
    case = gradient.case
    fold, once = case.fold, 2 * terms.bend.first / case.errors.standardization.divisor(case.fold.width)
    weight = np.ones(1) if case.affine[0] is None else terms.take(case.affine[0])
    dy, rows = terms.take(gradient.dy), np.arange(fold.rows) % fold.period
    t = terms.free(terms.take(fold.fold(along["x"]))) if "x" in along else np.zeros_like(dy)
    s, shift = (terms.take(fold.affine(along[name])[rows]) if name in along else np.zeros(1) for name in ("weight", "bias"))
    turned = terms.bend.f * t + once * terms.c * _inner(np.where(terms.moves, terms.c, 0.0), t)
    found = {"x": _second(terms, once, terms.free(weight * dy), t) + _first(terms, once, terms.free(s * dy))}
    found["y"] = weight * turned + s * terms.c * terms.bend.f + shift
    if case.inputs.weight is not None:
        found["weight"] = per_parameter(fold, dy * turned)[None, :]
    if case.inputs.bias is not None:
        found["bias"] = np.zeros((1, case.inputs.bias.size))
    return found


def _first(terms: Terms, once: Array, g: Array) -> Array:
    """J' g."""
    return np.asarray(terms.bend.f * g + np.where(terms.moves, once * terms.c * _inner(terms.c, g), 0.0))


def _second(terms: Terms, once: Array, g: Array, t: Array) -> Array:
    """H[t]."""
    c, inner = np.where(terms.moves, terms.c, 0.0), _inner(terms.c, g)
    along = _inner(c, t)
    # 4 f_2/N'**2 from (2 f_1/N')**2, where S moves at all
    twice = np.where(
        terms.bend.first != 0, once**2 * terms.bend.second / np.where(terms.bend.first != 0, terms.bend.first, 1) ** 2, 0
    )
    return np.asarray(once * (c * _inner(g, t) + g * along + np.where(terms.moves, t, 0.0) * inner) + twice * c * inner * along)


def _inner(a: Array, b: Array) -> Array:
    return np.asarray((a * b).sum(axis=1, keepdims=True))
