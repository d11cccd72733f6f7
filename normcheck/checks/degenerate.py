"""Degenerate rows: all zero, all equal, a single element, or so large that their squares overflow."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from normcheck.checks.base import Context, describe, guarded, register
from normcheck.checks.cases import Case
from normcheck.checks.witness import witness
from normcheck.formats import Array, Mask
from normcheck.implementations import CallError
from normcheck.results import Outcome, Result, Severity

_CONSTANTS = (1.0, 0.1, 3.0, 1234.5, 1e4, 1e7, -1e7)
_OVERFLOWING = ("overflow-edge", "overflow-far")
_WIDTHS = {
    "quick": (7, 64, 1000),
    "standard": (2, 7, 64, 257, 1000, 1024, 4096),
    "deep": (2, 3, 7, 64, 257, 1000, 1024, 4096, 65536),
}


def _needs_own_statistics(context: Context) -> str:
    return "" if context.own_statistics else "statistics are given: constant rows are ordinary ones"


def _needs_eps_on_constants(context: Context) -> str:
    if context.norm.eps == 0 or context.norm.eps_placement == "none":
        return "without eps a row without spread is 0/0"
    return _needs_own_statistics(context)


@register("zero-and-constant-rows", applies=_needs_eps_on_constants)
def zero_and_constant_rows(context: Context) -> Iterator[Result]:
    """Rows without spread give the bias, and never NaN.

    Statement
    ---------
    A norm that subtracts its mean maps a constant row to the bias: exactly for zero rows and for rows of one element, exactly too
    where D is a power of two and every multiple of c up to D*c is exact in the accumulator; elsewhere up to the rounding of the
    mean. A norm without a mean maps a zero row to zero and a row of constants c to w*c/S(c). No finite row gives NaN.

    Why it matters
    --------------
    Padding, dead channels and the first steps of training give such rows. Dividing by sqrt(eps) enlarges the rounding error of
    the mean 316-fold at eps = 1e-5, and forming x*r - mu*r instead of (x - mu)*r leaves a residue that no longer is bounded by 1:
    -105 instead of 0 on a constant channel of 1e7.

    Holds for
    ---------
    Every norm with its own statistics and eps > 0.

    Tolerance
    ---------
    In (x - mu_hat)*r_hat with two passes the deviation e = c - mu_hat enters the variance too, so that |n| = e/sqrt(e**2 + eps)
    <= min(1, tau), with tau the common mode of ``normcheck.bounds``; the output is within |w|*min(1, tau) plus the rounding of
    the addition of the bias. An output beyond it, or not exactly the bias where that is due, yet within the bound E of
    ``accuracy`` is a warning: a folded kernel is sound and leaves a residue. Beyond E it is an error. Without a mean the bound
    is E.

    Known exceptions
    ----------------
    An implementation that refuses rows of one element is skipped for them.

    References
    ----------
    pytorch/pytorch discussions of constant channels (kind K12 of the catalogue of faults); derivation above.
    """
    for width in (1, *_WIDTHS[context.profile]):
        if not context.can_take(width):
            continue
        shape = context.shape(len(_CONSTANTS) + 1, width)
        yield from guarded(context, "zero-and-constant-rows", _constant, shape, regime="constant", shape=shape)


def _constant(context: Context, shape: tuple[int, ...]) -> Result | None:
    fold = context.norm.fold(shape, context.implementation.channel_axis)
    fmt = context.x_format
    largest = min(fmt.max, math.sqrt(context.compute.max / max(fold.width, 1)) / 2)
    constants = np.resize([0.0, *(c for c in _CONSTANTS if abs(c) <= largest)], fold.rows)
    rows = np.repeat(fmt.round(constants)[:, None], fold.width, axis=1)
    case = context.case_of(rows, shape)
    try:
        output = context.run(case)
    except CallError as error:
        if fold.width == 1:
            text = f"rows of one element are refused: {error}"
            return context.result("zero-and-constant-rows", Outcome.SKIPPED, text, regime="constant", shape=shape)
        raise
    return constant_verdict(context, case, output)


def _promised(context: Context, case: Case) -> Array:
    """What a centred two-pass kernel cannot exceed, (R, D); without a mean, the bound E."""
    if not context.norm.center:
        return case.reach("sequential")
    weight, bias = case.affine
    tau = np.minimum(1.0, case.errors.tau(case.classes["sequential"]))
    exact = _mean_is_exact(context, case)
    scale = np.ones(1) if weight is None else np.abs(weight)
    rounding = case.certified.err if bias is None else case.certified.err + case.errors.compute.u * (np.abs(bias) + scale)
    return np.where(exact[:, None], 0.0, scale * tau[:, None] + rounding)


def _mean_is_exact(context: Context, case: Case) -> Mask:
    """Whether every kernel finds the mean exactly: zero rows, one element, or D a power of two and all multiples of c exact."""
    width = case.fold.width
    first = case.rows[:, 0]
    # the odd part of c times D must fit the significand, so that every partial sum does
    significand = np.abs(np.frexp(first)[0]) * 2.0**53
    lowest = np.where(first == 0, 1, significand.astype(np.int64) & -significand.astype(np.int64))
    multiples = significand / lowest * width <= 2.0**context.compute.p
    return np.asarray((first == 0) | (width == 1) | ((width & (width - 1) == 0) & multiples))


def _residue(context: Context, case: Case, output: Array, failed: bool) -> tuple[int, int] | None:
    """The element furthest beyond the bound (``failed``) or beyond what is promised, or None."""
    with np.errstate(all="ignore"):
        gap = np.maximum(np.abs(output - case.exact) - case.rounding(output), 0.0)
    limit = case.reach("sequential") if failed else _promised(context, case)
    over = np.isfinite(case.exact) & ~(gap <= limit)
    if not over.any():
        return None
    row, element = np.unravel_index(np.where(over, np.where(np.isnan(gap), np.inf, gap), -1.0).argmax(), over.shape)
    return int(row), int(element)


def constant_verdict(context: Context, case: Case, output: Array) -> Result:
    """The judgement of ``zero-and-constant-rows`` on rows that are constant, (R, D)."""
    where: dict[str, Any] = {"regime": "constant", "shape": tuple(case.fold.shape)}
    beyond = _residue(context, case, output, failed=True)
    failed = beyond is not None
    at = beyond or _residue(context, case, output, failed=False)
    if at is None:
        return context.result("zero-and-constant-rows", Outcome.PASSED, **where)
    limits = case.reach("sequential") if failed else _promised(context, case)
    limit = float(np.broadcast_to(limits, output.shape)[at])
    text = (
        f"y={float(output[at])!r} on a row of {case.fold.width} elements of {float(case.rows[at])!r}, but should be "
        f"{float(case.exact[at])!r} within {limit:.3g} [{describe(case)}]"
    )
    return context.result(
        "zero-and-constant-rows",
        Outcome.FAILED if failed else Outcome.WARNED,
        text if failed else f"{text}; a residue that x*r - mean*r leaves",
        severity=Severity.ERROR if failed else Severity.WARNING,
        error=float(np.abs(output[at] - case.exact[at])),
        tolerance=limit,
        witness=witness(context, case, output, lambda smaller, out: _residue(context, smaller, out, failed)),
        **where,
    )


def _needs_overflow(context: Context) -> str:
    if not context.own_statistics:
        return "statistics are given: no squares are summed"
    if context.x_format.max <= math.sqrt(context.compute.max) / 2:
        return f"squares of {context.dtype} values fit {context.compute.name}"
    return ""


@register("overflow", applies=_needs_overflow)
def overflow(context: Context) -> Iterator[Result]:
    """Finite rows whose squares overflow give neither NaN nor, in silence, zeros.

    Statement
    ---------
    A finite row has a finite result: scaling it by a power of two changes nothing but the share of eps. Where the sum of squares
    exceeds the largest finite value of the compute format, an implementation that does not rescale returns zeros, and one whose
    squares become inf - inf returns NaN.

    Why it matters
    --------------
    A NaN spreads to the whole model. Zeros are worse: the layer goes silent and nothing reports it.

    Holds for
    ---------
    Every norm with its own statistics, in formats whose values can overflow when squared in the compute format (float32,
    bfloat16 and float64, not float16 with float32 inside).

    Tolerance
    ---------
    Right means within the bound E of ``accuracy``. NaN or an infinity is an error; other wrong values, zeros above all, are a
    warning, and an error if the contract promises ``full_range``.

    Known exceptions
    ----------------
    Rows whose sum of absolute values overflows are left out. Most fused kernels return zeros beyond sqrt(max/D); the warning
    says from which size on.

    References
    ----------
    pytorch/pytorch 162489 (kind K03 of the catalogue of faults).
    """
    for width, regime in itertools.product((w for w in (4, 16, 256) if context.can_take(w)), _OVERFLOWING):
        shape = context.shape(8, width)
        yield from guarded(context, "overflow", _overflowing, shape, regime, regime=regime, shape=shape)


def _lost(case: Case, output: Array, nonfinite: bool) -> tuple[int, int] | None:
    """The first wrong element, among those that are not finite if ``nonfinite``, or None."""
    with np.errstate(all="ignore"):
        tolerance = case.reach("sequential") + case.rounding(output)
        wrong = ~(np.abs(output - case.exact) <= tolerance) & np.isfinite(case.exact)
    shown = wrong & ~np.isfinite(output) if nonfinite else wrong
    if not shown.any():
        return None
    row, element = np.unravel_index(shown.argmax(), shown.shape)
    return int(row), int(element)


def _overflowing(context: Context, shape: tuple[int, ...], regime: str) -> Result | None:
    fold = context.norm.fold(shape, context.implementation.channel_axis)
    rng = np.random.default_rng([context.seed, fold.width])
    made = rng.uniform(0.5, 1.0, (fold.rows, fold.width)) * np.resize([1.0, -1.0], fold.width)
    # exponents of the largest elements, counted from where D squares sum up to the largest finite value
    edge = 0.5 * (math.log2(context.compute.max) - math.log2(fold.width)) + 1.0
    # beyond it sums of the elements themselves overflow, and no kernel without a rescue finds the mean
    top = math.log2(context.x_format.max) - math.log2(fold.width) - 1.0
    first, last = (edge, edge + 3.0) if regime == "overflow-edge" else (min(edge + 4.0, top), top)
    rows = context.x_format.round(made * np.exp2(np.linspace(first, last, fold.rows))[:, None])
    case = context.case_of(rows, shape)
    return overflow_verdict(context, case, context.run(case), regime)


def overflow_verdict(context: Context, case: Case, output: Array, regime: str) -> Result:
    """The judgement of ``overflow`` on finite rows, (R, D), of any size."""
    where: dict[str, Any] = {"regime": regime, "shape": tuple(case.fold.shape)}
    lost = _lost(case, output, nonfinite=True)
    at = lost or _lost(case, output, nonfinite=False)
    if at is None:
        return context.result("overflow", Outcome.PASSED, **where)
    failed = lost is not None or context.implementation.contract.full_range
    text = (
        f"y={float(output[at])!r} where |x| is up to {float(np.abs(case.rows[at[0]]).max()):.3g}, but should be "
        f"{float(case.exact[at]):.6g} [{describe(case)}]"
    )
    return context.result(
        "overflow",
        Outcome.FAILED if failed else Outcome.WARNED,
        text if failed else f"{text}; silent where squares overflow",
        severity=Severity.ERROR if failed else Severity.WARNING,
        error=float(np.abs(output[at] - case.exact[at])),
        witness=witness(context, case, output, lambda smaller, out: _lost(smaller, out, lost is not None)),
        **where,
    )
