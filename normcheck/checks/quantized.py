"""Quantized output: a fused kernel gives what norm and quantization give one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np

from normcheck.checks.base import Context, SkipCaseError, describe, guarded, register
from normcheck.checks.cases import Case
from normcheck.checks.witness import pass_class, place_of, writable
from normcheck.formats import FORMATS, Array
from normcheck.implementations import CallError, LayoutError, Quantized, natives, require, user_code
from normcheck.implementations.snippets import Script, target_of
from normcheck.results import Outcome, Result, Witness

_OUTLIERS = (1.0, 10.0, 100.0)
# a regime of rows, how many, how wide, and how x lies
_REGIMES = {
    "standard": ("standard", 16, 256, ""),
    "outlier": ("outlier", 16, 256, ""),
    "many": ("standard", 70, 40, ""),
    "wide": ("standard", 3, 1051, ""),
    "strided": ("standard", 16, 256, "strided"),
}
_INT8 = 127.0
_CANDIDATES = (None, "float16", "bfloat16")


def _needs_quantized(context: Context) -> str:
    if context.implementation.quantized is None:
        return "no quantized output is given: give quantized="
    return "the cast before the weight is judged unquantized" if context.implementation.contract.cast != "once" else ""


def _needs_row_scales(context: Context) -> str:
    reason = _needs_quantized(context)
    return reason or ("" if _declared(context).per_row else "the scale is given")


@register("quantized-rounding", applies=_needs_quantized)
def quantized_rounding(context: Context) -> Iterator[Result]:
    """q is y over the scale, rounded once, or by way of the intermediate dtype that is declared.

    Statement
    ---------
    q = RN_q(y/s), or RN_q(RN_m(y)/s) with the declared intermediate dtype m: fused and unfused are then equal. The share of
    elements in which q differs from RN_q(y/s) is 2**-(p_m - p_q)/2 with an intermediate rounding, and 0 without. So it is for
    more and wider rows than a block takes, and for a strided x.

    Why it matters
    --------------
    Whether a compiler keeps float32 or rounds to bfloat16 in between changes 3 % of all float8 values by a whole step, and
    with them the model's output, as soon as fusion is switched on.

    Holds for
    ---------
    Implementations with ``quantized=``: float8 and int8, given scales and scales per row.

    Tolerance
    ---------
    RN_q(RN_m(y - E)/s) <= q <= RN_q(RN_m(y + E)/s), E that of ``accuracy`` plus 2*u*|y| for a quotient formed by a reciprocal.
    The rate may exceed its law by six standard deviations of a binomial and by the share of elements within E of a boundary.
    Where another intermediate dtype fits it is named.

    Known exceptions
    ----------------
    int8 has no relative precision, hence no law of rates. A layout that is refused is left out.

    References
    ----------
    Kind K32 of the catalogue of faults: vllm-project/vllm#37838.
    """
    for regime in _REGIMES:
        yield from guarded(context, "quantized-rounding", _rounded, regime, regime=regime)


@register("quantized-scale", applies=_needs_row_scales)
def quantized_scale(context: Context) -> Iterator[Result]:
    """The scale of a row is its largest |y| over the largest q.

    Statement
    ---------
    s = max|y|/q_max with q_max = 127, 448 or 57344, of the intermediate value where one is declared.

    Why it matters
    --------------
    A scale taken of the input, of the whole tensor or of another largest value loses bits in every row, silently.

    Holds for
    ---------
    Implementations with ``quantized=`` that return a scale for each row.

    Tolerance
    ---------
    s lies between (max(|y| - E))/q_max and (max(|y| + E))/q_max, each rounded to the intermediate dtype, within 4*u for
    quotient and rounding.

    Known exceptions
    ----------------
    None known.

    References
    ----------
    Kind K32 of the catalogue of faults.
    """
    for regime in _REGIMES:
        yield from guarded(context, "quantized-scale", _scaled, regime, regime=regime)


@register("quantized-noise", applies=_needs_quantized)
def quantized_noise(context: Context) -> Iterator[Result]:
    """The noise of quantization is no larger than its law, also beside an outlier channel.

    Statement
    ---------
    With one channel A times as large as the others before the norm, A = 1, 10 and 100, the ratio of signal to noise in the other
    channels is that of rounding y/s to nearest: 52.87 - 20*log10(max|y|/rms) dB for int8, -20*log10(0.4247*u) dB for float8 as
    long as its range suffices.

    Why it matters
    --------------
    int8 loses 40 dB to an outlier of 100, float8 none. A kernel that loses more than that has a wrong scale or truncates.

    Holds for
    ---------
    Implementations with ``quantized=``.

    Tolerance
    ---------
    Rounding to nearest has the least noise, element by element. It may be exceeded by the factor
    1 + (u_m/u_q)**2 + 6*sqrt(0.8/N): the noise of the declared intermediate rounding, and six standard deviations of the mean of
    N squares of uniform errors. ``law`` among the measures is the figure in dB.

    Known exceptions
    ----------------
    Where all other channels round to zero (A > 254 in int8) nothing is said.

    References
    ----------
    Bennett 1948 (uniform quantization noise); Widrow and Kollar 2008, chapter 12 (floating point).
    """
    for outlier in _OUTLIERS:
        yield from guarded(context, "quantized-noise", _noisy, outlier, regime="outlier")


def _declared(context: Context) -> Quantized:
    return cast(Quantized, context.implementation.quantized)


def _largest(kind: Quantized) -> float:
    return _INT8 if kind.dtype == "int8" else FORMATS[kind.dtype].max


def _nearest(kind: Quantized, values: Array) -> Array:
    """Round to the quantized format, saturating."""
    bounded = np.clip(values, -_largest(kind), _largest(kind))
    return np.rint(bounded) if kind.dtype == "int8" else FORMATS[kind.dtype].round(bounded)


def _between(values: Array, intermediate: str | None) -> Array:
    return values if intermediate is None else FORMATS[intermediate].round(values)


def _regime_case(context: Context, regime: str) -> Case:
    """The case of a regime; that of "wide" rows is no whole number of vectors."""
    kind, rows, width, layout = _REGIMES[regime]
    shape = context.shape(rows, width if context.can_take(width) else context.widths[-1])
    case = context.case(kind, shape, layout=layout or context.layout)
    if not case.errors.judged().any():
        raise SkipCaseError("the rows cannot be judged")
    return case


def _run(context: Context, case: Case) -> tuple[Array, Array]:
    """q as rows (R, D), and the scale of each row, (R, 1)."""
    inputs = case.inputs
    try:
        values = natives(context.implementation, inputs)
        return _called(context, case, values)
    except (CallError, LayoutError) as error:
        if inputs.layout == context.layout:
            raise
        raise SkipCaseError(f"x in the layout {inputs.layout!r} is refused: {error}") from None


def _called(context: Context, case: Case, values: dict[str, Any]) -> tuple[Array, Array]:
    kind, inputs = _declared(context), case.inputs
    framework = require(context.implementation, context.device)
    names = ("x", "weight", "bias") if context.norm.has_bias else ("x", "weight")
    passed = [values[name] for name in names]
    scale = np.float64(np.float32(np.abs(case.exact).max() * 1.1 / _largest(kind)))
    if not kind.per_row:
        passed.append(framework.to_native(np.asarray(scale), "float32", context.device))
    with user_code(framework, inputs):
        returned = kind.call(*passed)
        q, scales = returned if kind.per_row else (returned, None)
        found, dtype = framework.to_values(q)
        scales = None if scales is None else framework.to_values(scales)[0]
    if dtype != kind.dtype or found.shape != tuple(case.fold.shape):
        raise SkipCaseError(f"q is {dtype}{list(found.shape)}, but should be {kind.dtype}{list(case.fold.shape)}")
    rows: Array = case.fold.fold(found)
    return rows, np.full((len(rows), 1), scale) if scales is None else scales.reshape(-1, 1)


def _reach(context: Context, case: Case) -> Array:
    """E before quantization, (R, D)."""
    return case.bound(pass_class(context)) + 2 * case.errors.compute.u * np.abs(case.exact)


def _ends(context: Context, case: Case, scale: Array, intermediate: str | None) -> tuple[Array, Array]:
    """The least and the largest q that conform."""
    kind, reach, u = _declared(context), _reach(context, case), case.errors.compute.u
    low, high = (_between(case.exact + sign * reach, intermediate) / scale for sign in (-1.0, 1.0))
    return _nearest(kind, low - 2 * u * np.abs(low)), _nearest(kind, high + 2 * u * np.abs(high))


def _shown(
    context: Context, case: Case, scale: Array, part: str, at: tuple[int, ...], claim: str, expected: float
) -> Witness | None:
    """The kernel's call, and what must hold of one element of q, or of a row's scale."""
    kind, inputs = _declared(context), case.inputs
    if not writable(inputs) or not target_of(kind.call):
        return None
    script = Script(context.implementation).arrays(inputs)
    names = ("x", "weight", "bias")[: 2 + context.norm.has_bias]
    passed = [name if getattr(inputs, name) is not None else "None" for name in names]
    if not kind.per_row:
        script.array("scale", np.asarray(scale[0, 0]), replace(inputs, weight_dtype="float32"))
        passed.append("scale")
    to = "q, scale" if kind.per_row else "q"
    script.add(f"{to} = {script.imported(kind.call)}({', '.join(passed)})")
    if part == "scale":
        script.add("scale = scale.reshape(-1)")
    elif context.implementation.framework == "torch":
        script.add("q = q.float()")
    return Witness(script.element(part, at, expected, claim=claim).text, part)


def _rounded(context: Context, regime: str) -> Result:
    kind, case = _declared(context), _regime_case(context, regime)
    q, scale = _run(context, case)
    where: dict[str, Any] = {"regime": regime, "shape": tuple(case.fold.shape)}
    judged = case.errors.judged()[:, None] & np.isfinite(case.exact)
    low, high = _ends(context, case, scale, kind.intermediate)
    wrong = judged & ~((low <= q) & (q <= high))
    plain = _nearest(kind, case.exact / scale)
    rate = float((q != plain)[judged].mean())
    measures = {"mismatch": rate, "law": _rate(kind)}
    if not wrong.any():
        excess = rate - _allowed_rate(context, case, scale, judged)
        if kind.dtype != "int8" and excess > 0:
            text = f"q differs from RN(y/s) in {rate:.2%}, but should in {_rate(kind):.2%} [{describe(case)}, {kind.dtype}]"
            return context.result("quantized-rounding", Outcome.FAILED, text, measures=measures, **where)
        return context.result("quantized-rounding", Outcome.PASSED, measures=measures, **where)
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    text = f"q[{at[0]}, {at[1]}]={float(q[at])!r}, but should be {float(low[at])!r} [{describe(case)}, {kind.dtype}]"
    fitting = [c for c in _CANDIDATES if c != kind.intermediate and _fits(context, case, q, scale, c, judged)]
    if fitting:
        text = f"intermediate={fitting[0]!r}, but should be {kind.intermediate!r}; {text}"
    claim = f"{float(low[at])!r} <= got <= {float(high[at])!r}"
    where["witness"] = _shown(context, case, scale, "q", place_of(case, (at[0], at[1])), claim, float(low[at]))
    return context.result("quantized-rounding", Outcome.FAILED, text, measures=measures, **where)


def _fits(context: Context, case: Case, q: Array, scale: Array, intermediate: str | None, judged: Any) -> bool:
    low, high = _ends(context, case, scale, intermediate)
    return bool(((low <= q) & (q <= high))[judged].all())


def _rate(kind: Quantized) -> float:
    """The law of mismatches, from the precisions of the intermediate and of the quantized format."""
    if kind.intermediate is None or kind.dtype == "int8":
        return 0.0
    return 2.0 ** -(FORMATS[kind.intermediate].p - FORMATS[kind.dtype].p) / 2


def _allowed_rate(context: Context, case: Case, scale: Array, judged: Any) -> float:
    low, high = _ends(context, case, scale, None)
    law, count = _rate(_declared(context)), int(np.count_nonzero(judged))
    near = float((low != high)[judged].mean())
    return law + near + 6 * math.sqrt(max(law * (1 - law), 1 / count) / count)


def _scaled(context: Context, regime: str) -> Result:
    kind, case = _declared(context), _regime_case(context, regime)
    _, scale = _run(context, case)
    size, reach, u = np.abs(case.exact), _reach(context, case), case.errors.compute.u
    where: dict[str, Any] = {"regime": regime, "shape": tuple(case.fold.shape)}
    ends = [_between((size + sign * reach).max(axis=1), kind.intermediate) / _largest(kind) for sign in (-1.0, 1.0)]
    got = scale[:, 0]
    wrong = case.errors.judged() & ~((ends[0] * (1 - 4 * u) <= got) & (got <= ends[1] * (1 + 4 * u)))
    if not wrong.any():
        return context.result("quantized-scale", Outcome.PASSED, **where)
    at = int(wrong.argmax())
    text = (
        f"scale[{at}]={float(got[at])!r}, but should be max|y|/{_largest(kind):g} = {float(ends[0][at])!r} "
        f"[{describe(case)}, {kind.dtype}]"
    )
    claim = f"{float(ends[0][at] * (1 - 4 * u))!r} <= got <= {float(ends[1][at] * (1 + 4 * u))!r}"
    where["witness"] = _shown(context, case, scale, "scale", (at,), claim, float(ends[0][at]))
    return context.result("quantized-scale", Outcome.FAILED, text, **where)


def _noisy(context: Context, outlier: float) -> Result | None:
    kind = _declared(context)
    shape = context.shape(16, 1024 if context.can_take(1024) else context.widths[-1])
    fold = context.norm.fold(shape, context.implementation.channel_axis)
    rows = np.random.default_rng([context.seed, int(outlier)]).standard_normal((fold.rows, fold.width))
    rows[:, fold.width // 3] = outlier * 2.0
    case = context.case_of(context.x_format.round(rows), shape, affine=False)
    q, scale = _run(context, case)
    others = np.ones(case.exact.shape, bool)
    others[:, fold.width // 3] = False
    signal = float((case.exact[others] ** 2).sum())
    noise, least = (float(((v * scale - case.exact)[others] ** 2).sum()) for v in (q, _nearest(kind, case.exact / scale)))
    rounding = 0.0 if kind.intermediate is None or kind.dtype == "int8" else _ratio(kind) ** 2
    allowed = least * (1 + rounding + 6 * math.sqrt(0.8 / int(others.sum())))
    got, best = (10 * math.log10(signal / n) if n > 0 else math.inf for n in (noise, allowed))
    law = _law(kind, case.exact, scale, others)
    where: dict[str, Any] = {"regime": "outlier", "shape": shape, "measures": {"sqnr": got, "law": law}, "unit": "dB"}
    if noise <= allowed:
        return context.result("quantized-noise", Outcome.PASSED, error=-got, tolerance=-best, **where)
    text = f"SQNR={got:.2f} dB with an outlier of {outlier:g}, but should be {best:.2f} dB [{describe(case)}, {kind.dtype}]"
    return context.result("quantized-noise", Outcome.FAILED, text, **where)


def _ratio(kind: Quantized) -> float:
    return FORMATS[cast(str, kind.intermediate)].u / FORMATS[kind.dtype].u


def _law(kind: Quantized, y: Array, scale: Array, others: Any) -> float:
    """The law's ratio of signal to noise in dB."""
    if kind.dtype != "int8":
        return -20 * math.log10(0.4247 * FORMATS[kind.dtype].u)
    step = np.broadcast_to(scale, y.shape)[others]
    return 10 * math.log10(float((y[others] ** 2).sum()) * 12 / float((step**2).sum()))
