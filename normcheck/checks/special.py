"""Special values: NaN and infinity, signed zeros, subnormal numbers, and results beyond the largest finite value."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from normcheck.checks.base import Context, SkipCaseError, guarded, register
from normcheck.checks.cases import Case
from normcheck.checks.comparing import case_from, equal, finding, first, mixed, same_bits
from normcheck.checks.witness import pass_class, shown
from normcheck.formats import Array, Format
from normcheck.results import Outcome, Result

_BAD = (math.nan, math.inf, -math.inf)


def _shape(context: Context, rows: int = 12) -> tuple[int, ...]:
    return context.shape(rows, 33 if context.can_take(33) else context.widths[-1])


@register("nonfinite-rows")
def nonfinite_rows(context: Context) -> Iterator[Result]:
    """NaN and infinity stay in their row and never turn finite there.

    Statement
    ---------
    A row with a NaN becomes NaN in all its elements; with an infinity, too, where the norm subtracts its mean. Without a mean an
    infinity gives NaN or an infinity at its own place, and zeros or NaN at the others. With given statistics only the element
    itself is affected. All other rows keep the bits that they have beside a finite row.

    Why it matters
    --------------
    A mask or a clamp that makes such a row finite hides a diverged model; a NaN that leaks into other rows destroys the whole
    batch because of one sample.

    Holds for
    ---------
    Every norm, in every format that has infinities and NaN.

    Tolerance
    ---------
    None. A finite value where there must be none, or a NaN in another row, is an error. Other rows whose bits differ within the
    bound E of ``accuracy`` are a warning.

    Known exceptions
    ----------------
    torch's rms_norm turns [1, inf, 2, 3] into [0, NaN, 0, 0], which the plain formula gives and the statement allows.

    References
    ----------
    pytorch/pytorch 173885, ohdearquant/lattice 862, xlite-dev/LeetCUDA 335 (kind K31 of the catalogue of faults).
    """
    if not context.x_format.has_inf:
        yield context.result("nonfinite-rows", Outcome.SKIPPED, f"{context.dtype} has no infinities")
        return
    shape = _shape(context)
    for value in _BAD:
        for place in ("first", "last"):
            yield from guarded(context, "nonfinite-rows", _spoilt, shape, value, place, regime=f"{value}", shape=shape)


def _spoilt(context: Context, shape: tuple[int, ...], value: float, place: str) -> Result:
    plain = case_from(context, mixed(context, shape))
    expected = context.run(plain)
    inputs, row, element = plain.inputs, plain.fold.rows // 2, 0 if place == "first" else plain.fold.width - 1
    rows = plain.rows.copy()
    rows[row, element] = value
    given: dict[str, Any] = {"running_mean": inputs.running_mean, "running_var": inputs.running_var}
    case = case_from(context, plain.fold.unfold(rows), **given)
    output = context.run(case)
    wrong = _turned_finite(context, case, output, row, element)
    if wrong is not None:
        due = "NaN or 0" if _zeros_allowed(context, value) and wrong != element else "NaN"
        text = f"y[{row}, {wrong}]={float(output[row, wrong])!r} in a row with {value} at {element}, but should be {due}"
        found = shown(context.implementation, case, output, (row, wrong), math.nan, claim="not np.isfinite(got)")
        return finding(context, "nonfinite-rows", case, Outcome.FAILED, text, found, regime=f"{value}")
    rest = output.copy()
    touched = (row, slice(None) if context.own_statistics else element)
    rest[touched] = expected[touched]
    why, called = f"beside a finite row: row {row} holds {value}", (context.implementation, case)
    return equal(context, "nonfinite-rows", plain, rest, expected, why, called=called, regime=f"{value}")


def _zeros_allowed(context: Context, value: float) -> bool:
    return not (context.norm.center or math.isnan(value))


def _turned_finite(context: Context, case: Case, output: Array, row: int, element: int) -> int | None:
    """The first element of the bad row that is finite though it must not be."""
    finite = np.isfinite(output[row])
    value = case.rows[row, element]
    counted = case.errors.standardization.count(case.fold.width)
    others = np.arange(case.fold.width) != element
    if not context.own_statistics or element >= counted:
        # a zero weight times an infinity is NaN, so that the element is never finite
        finite = finite & ~others
    elif _zeros_allowed(context, float(value)):
        finite = finite & ~(others & (output[row] == 0))
    return int(finite.argmax()) if finite.any() else None


@register("finite-in-finite-out")
def finite_in_finite_out(context: Context) -> Iterator[Result]:
    """A finite row has no NaN in its result.

    Statement
    ---------
    Rows of the largest values, of one outlier among zeros, of the smallest values, of one value, and rows that make a one-pass
    variance negative give no NaN, and no infinity where the result is representable.

    Why it matters
    --------------
    One NaN spreads through a model in a single step, and nobody finds out which layer began.

    Holds for
    ---------
    Every norm with eps > 0, on rows whose sum of squares fits the compute format; beyond, ``overflow`` decides.

    Tolerance
    ---------
    None: the outputs are finite.

    Known exceptions
    ----------------
    No exception is known.

    References
    ----------
    microsoft/onnxruntime 28463, google/flax 1491, neuroneural/brainchop-cli 56 (kinds K01, K03, K04 and K31 of the catalogue of
    faults).
    """
    if context.norm.eps == 0 or context.norm.eps_placement == "none":
        yield context.result("finite-in-finite-out", Outcome.SKIPPED, "without eps a row without spread is 0/0")
        return
    for width in (3, 64, 1000) if context.profile == "quick" else (1, 2, 3, 7, 64, 1000, 4097):
        if context.can_take(width):
            shape = context.shape(len(_hostile(context.x_format, 4, 1.0)), width)
            yield from guarded(context, "finite-in-finite-out", _stays_finite, shape, regime="hostile", shape=shape)


def _hostile(fmt: Format, width: int, largest: float) -> Array:
    """Rows (R, D) that break what is written without care."""
    one_hot, signs = np.eye(1, width)[0], np.resize([1.0, -1.0], width)
    small = fmt.min_subnormal
    baits = [c + s * np.resize([0.0, 1.0, 2.0, 3.0], width) for c, s in ((4e4, 1.0), (1e3, 1e-3), (-11.0, 2e-6), (50.0, 0.25))]
    rows = [one_hot * largest, signs * largest, np.full(width, largest), np.zeros(width), -np.zeros(width), signs * small]
    rows += [one_hot * small, np.full(width, small), one_hot * 300.0, np.full(width, 260.0), *baits]
    return fmt.round(np.clip(np.stack(rows), -largest, largest))


def _stays_finite(context: Context, shape: tuple[int, ...]) -> Result:
    fold = context.norm.fold(shape, context.implementation.channel_axis)
    largest = min(context.x_format.max, math.sqrt(context.compute.max / max(fold.width, 1)) / 2)
    made = _hostile(context.x_format, fold.width, float(context.x_format.round(largest * (1 - 2.0**-8))))
    case = case_from(context, fold.unfold(np.resize(made, (fold.rows, fold.width))))
    output = context.run(case)
    with np.errstate(invalid="ignore"):
        wrong = ~np.isfinite(output) & (np.abs(case.exact) + case.reach("sequential") < case.out_format.max)
    if not wrong.any():
        return context.result("finite-in-finite-out", Outcome.PASSED, shape=shape, regime="hostile")
    at = first(wrong)
    row = ", ".join(f"{float(v):.6g}" for v in case.rows[at[0], :4])
    text = (
        f"y[{at[0]}, {at[1]}]={float(output[at])!r} for the finite row [{row}{', ...' * (fold.width > 4)}], but should be finite"
    )
    found = shown(context.implementation, case, output, at, float(case.exact[at]), claim="np.isfinite(got)")
    return finding(context, "finite-in-finite-out", case, Outcome.FAILED, text, found, regime="hostile")


def _needs_plain_zeros(context: Context) -> str:
    if context.norm.center and context.own_statistics:
        return f"{context.norm.name} subtracts a mean: a zero result has no sign of its own"
    if context.norm.has_running:
        return "given statistics are subtracted: a zero result has no sign of its own"
    return ""


@register("signed-zeros", applies=_needs_plain_zeros)
def signed_zeros(context: Context) -> Iterator[Result]:
    """A zero stays a zero, and keeps its sign.

    Statement
    ---------
    Without mean and bias, y is +-0 where x is +-0, with the sign of x times that of the weight. Rows that are 0/0 without eps are
    left out.

    Why it matters
    --------------
    A zero that is not zero afterwards is padding that leaks. A lost sign is seen only by 1/y, atan2 and bitwise comparisons.

    Holds for
    ---------
    RMSNorm, PartialRMSNorm, L2Norm, ScaleNorm.

    Tolerance
    ---------
    None: a product of a zero is exact. A result other than zero is an error, a lost sign a warning.

    Known exceptions
    ----------------
    No exception is known.

    References
    ----------
    IEEE 754-2019, section 6.3 (the sign bit).
    """
    shape = _shape(context)
    yield from guarded(context, "signed-zeros", _zeros, shape, shape=shape)


def _zeros(context: Context, shape: tuple[int, ...]) -> Result:
    plain = case_from(context, mixed(context, shape))
    rows = plain.rows.copy()
    rows[:, ::3], rows[:, 1::3] = 0.0, -0.0
    rows[0] = np.copysign(0.0, rows[0])
    case = case_from(context, plain.fold.unfold(rows))
    output = context.run(case)
    weight = np.ones(1) if case.affine[0] is None else case.affine[0]
    expected = np.copysign(0.0, rows) * np.copysign(1.0, weight)
    zero = (rows == 0) & (case.exact == 0)  # a row of zeros is 0/0 without eps
    if not zero.any():
        return context.result("signed-zeros", Outcome.SKIPPED, "every row with a zero is 0/0 without eps", shape=shape)
    lost = zero & (weight != 0) & ~same_bits(output, expected)
    for outcome, wrong in ((Outcome.FAILED, zero & (output != 0)), (Outcome.WARNED, lost)):
        if wrong.any():
            at = first(wrong)
            text = f"y[{at[0]}, {at[1]}]={float(output[at])!r} for x={float(rows[at])!r}, but should be {float(expected[at])!r}"
            found = shown(context.implementation, case, output, at, float(expected[at]))
            return finding(context, "signed-zeros", case, outcome, text, found)
    return context.result("signed-zeros", Outcome.PASSED, shape=shape)


@register("flush-to-zero")
def flush_to_zero(context: Context) -> Iterator[Result]:
    """Subnormal inputs, weights and results are not taken for zero.

    Statement
    ---------
    A subnormal input is normalized like any other, a subnormal weight multiplies, and a result below the smallest normal value is
    rounded to the nearest subnormal.

    Why it matters
    --------------
    Hardware and compilers may flush such values to zero. In float16 all below 6e-5 are subnormal, gradients and small weights
    among them; what is flushed on one machine differs from what was trained on another.

    Holds for
    ---------
    Every norm; where the format of input, weight and result is the compute format, flushing can be seen in the compute format
    itself.

    Tolerance
    ---------
    The bound E of ``accuracy`` with its underflow terms. Zeros in the place of results above it are flushed: a warning, and an
    error if the contract promises ``subnormals``. Other values beyond E are an error.

    Known exceptions
    ----------------
    XLA flushes on the CPU.

    References
    ----------
    IEEE 754-2019, section 3.3; the underflow terms of ``normcheck.bounds``.
    """
    shape = _shape(context)
    for name in _PROBES:
        yield from guarded(context, "flush-to-zero", _flushed, shape, name, regime=f"subnormal {name}", shape=shape)


def _subnormal_input(context: Context, shape: tuple[int, ...]) -> Case:
    plain = mixed(context, shape)
    return _biasless(context, context.x_format.round(plain * context.x_format.min_normal / 64))


def _subnormal_weight(context: Context, shape: tuple[int, ...]) -> Case:
    return _weighted(context, shape, 2.0**-4)


def _subnormal_result(context: Context, shape: tuple[int, ...]) -> Case:
    return _weighted(context, shape, 2.0)


def _weighted(context: Context, shape: tuple[int, ...], factor: float) -> Case:
    """Weights of this many times the smallest normal value, up to four times as much."""
    case = _biasless(context, mixed(context, shape))
    if case.inputs.weight is None:
        raise SkipCaseError("it takes no weight")
    fmt = context.parameter_format
    size = np.resize([1.0, -1.5, 3.0, -2.0], case.inputs.weight.size)
    given = {"running_mean": case.inputs.running_mean, "running_var": case.inputs.running_var}
    return _biasless(context, case.inputs.x, weight=fmt.round(size * factor * fmt.min_normal), **given)


def _biasless(context: Context, x: Array, **changes: Any) -> Case:
    case = case_from(context, x, **changes)
    if case.inputs.bias is None:
        return case
    given = {"running_mean": case.inputs.running_mean, "running_var": case.inputs.running_var}
    return case_from(context, x, **{**given, **changes, "bias": np.zeros_like(case.inputs.bias)})


_PROBES = {"input": _subnormal_input, "weight": _subnormal_weight, "result": _subnormal_result}


def _flushed(context: Context, shape: tuple[int, ...], name: str) -> Result:
    regime = f"subnormal {name}"
    case = _PROBES[name](context, shape)
    output = context.run(case)
    tiny = np.abs(case.exact) < case.out_format.min_normal if name == "result" else True
    seen = (case.judge(np.zeros_like(output), pass_class(context)).ratio > 1) & tiny
    flushed = seen & (output == 0)
    # a few zeros among others come from rounding, such as that of statistics held in 16 bits
    if 2 * flushed.sum() < seen.sum() or not flushed.any():
        return context.result("flush-to-zero", Outcome.PASSED, shape=shape, regime=regime)
    at = first(flushed)
    outcome = Outcome.FAILED if context.implementation.contract.subnormals else Outcome.WARNED
    text = (
        f"y[{at[0]}, {at[1]}]={float(output[at])!r} for x={float(case.rows[at])!r}, but should be {float(case.exact[at]):.6g}: "
        f"a subnormal {name} is flushed to zero"
    )
    found = shown(context.implementation, case, output, at, float(case.exact[at]), claim="got != 0")
    return finding(context, "flush-to-zero", case, outcome, text, found, regime=regime)


def _needs_wide_reference(context: Context) -> str:
    if context.x_format.p == 53:
        return "the certified value overflows where float64 does"
    return "" if context.implementation.takes("weight") else "it takes no weight, and standardized values do not overflow"


@register("output-overflow", applies=_needs_wide_reference)
def output_overflow(context: Context) -> Iterator[Result]:
    """A result beyond the largest finite value becomes what the contract says.

    Statement
    ---------
    Where |y| exceeds the largest finite value of the output format by more than rounding, the output is an infinity with the sign
    of y, the largest finite value, or NaN, as ``contract.overflow`` is ``inf``, ``saturate`` or ``nan``; formats without
    infinities have NaN in their place.

    Why it matters
    --------------
    float16 ends at 65504 and float8 at 448. Whether a loss scaler sees the overflow depends on what becomes of it.

    Holds for
    ---------
    Norms with a weight, in formats narrower than float64.

    Tolerance
    ---------
    Only elements are judged whose exact value is beyond the largest finite value by more than half an ulp and the bound E of
    ``accuracy``; all conforming results overflow there.

    Known exceptions
    ----------------
    No exception is known.

    References
    ----------
    IEEE 754-2019, section 7.4 (overflow).
    """
    shape = _shape(context)
    yield from guarded(context, "output-overflow", _overflows, shape, shape=shape)


def _overflows(context: Context, shape: tuple[int, ...]) -> Result | None:
    plain = case_from(context, mixed(context, shape))
    fold, fmt = plain.fold, plain.out_format
    rng = np.random.default_rng([context.seed, fold.rows, fold.width])
    # a spread of 8 keeps weight/spread and weight*mean/spread finite, which folded kernels form
    rows = context.x_format.round(8 * rng.standard_normal((fold.rows, fold.width)) + 1)
    assert plain.inputs.weight is not None
    weight = np.resize([0.9, -0.8], plain.inputs.weight.size) * min(fmt.max, context.parameter_format.max)
    case = case_from(context, fold.unfold(rows), weight=context.parameter_format.round(weight))
    output = context.run(case)
    with np.errstate(all="ignore"):
        beyond = np.abs(case.exact) - case.reach("sequential") - case.inner_rounding > fmt.max + 0.5 * float(fmt.ulp(fmt.max))
        beyond &= case.errors.judged()[:, None] & np.isfinite(case.exact)
    if not beyond.any():
        return None
    expected = _overflowed(context, case)
    wrong = beyond & ~same_bits(output, expected)
    if not wrong.any():
        return context.result("output-overflow", Outcome.PASSED, shape=shape)
    at = first(wrong)
    got, due = float(output[at]), float(expected[at])
    text = f"y[{at[0]}, {at[1]}]={got!r} where the exact value is {float(case.exact[at]):.6g}, but should be {due!r}"
    return finding(context, "output-overflow", case, Outcome.FAILED, text, shown(context.implementation, case, output, at, due))


def _overflowed(context: Context, case: Case) -> Array:
    """What the contract has in the place of results that are too large."""
    policy = context.implementation.contract.overflow
    if policy == "saturate":
        return np.copysign(case.out_format.max, case.exact)
    if policy == "nan" or not case.out_format.has_inf:
        return np.full_like(case.exact, np.nan)
    return np.copysign(np.inf, case.exact)
