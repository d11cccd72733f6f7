"""Precision inside: eps in every dtype, statistics that are kept, and what 16 bits cannot hold."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np

from normcheck.bounds import error_class
from normcheck.checks.base import Context, SkipCaseError, describe, guarded, register
from normcheck.checks.cases import Case
from normcheck.checks.spoiled import spoiled
from normcheck.checks.verdicts import held, needs_sound_ordinary_rows, some_rows, standard_case
from normcheck.checks.witness import beyond, missed, pass_class, witness
from normcheck.formats import FORMATS, Array, Format
from normcheck.implementations import CallError, Output, call
from normcheck.implementations.snippets import Script
from normcheck.results import Outcome, Result, Severity, Witness

_EPS = (1e-5, 1e-6, 1e-8, 1e-12, 0.0)


def _needs_variable_eps(context: Context) -> str:
    if "eps" not in context.implementation.variable:
        return "eps is fixed: give make= so that it can be varied"
    if context.norm.eps_placement == "none":
        return "the norm has no eps"
    return "" if context.own_statistics else "statistics are given"


def _needs_default_eps(context: Context) -> str:
    if context.x_format.p >= 24:
        return "the default is judged in 16 bit, against float32"
    if context.norm.eps_placement != "inside":
        return "eps is not inside the root"
    return _needs_variable_eps(context)


def _needs_kept_statistics(context: Context) -> str:
    kept = set(context.implementation.returns or ()) & {"mean", "rstd"}
    return "" if kept else "no statistics are returned: give returns="


def _needs_narrow_range(context: Context) -> str:
    if context.x_format.p >= 24:
        return "no 16-bit input"
    return "" if context.own_statistics else "statistics are given"


@register("epsilon-precision", applies=_needs_variable_eps)
def epsilon_precision(context: Context) -> Iterator[Result]:
    """eps from 1e-5 to 1e-12 acts with its own value in every dtype.

    Statement
    ---------
    For eps = 1e-5, 1e-6, 1e-8 and 1e-12 zero rows give zero, never NaN, and rows whose spread is near sqrt(eps) (eps where it
    stands outside the root), or as near as the input's format reaches, are scaled by 1/S with that eps. eps = 0 is a number as
    others are, for rows that are not constant.

    Why it matters
    --------------
    float16 holds 1e-8 as 0, and 1e-6 with an error of 1 %. eps belongs in the dtype of the arithmetic. Where 0 counts as not
    given, the default takes its place.

    Holds for
    ---------
    Norms whose eps can be varied.

    Tolerance
    ---------
    The bound of ``accuracy``. With ``contract.eps_dtype`` eps is first rounded to that dtype.

    Known exceptions
    ----------------
    None known.

    References
    ----------
    Kind K04 of the catalogue of faults: pytorch/pytorch#41527, #32137.
    """
    for eps in _EPS:
        yield from guarded(context, "epsilon-precision", _eps, eps, regime="tiny")


@register("default-epsilon", applies=_needs_default_eps)
def default_epsilon(context: Context) -> Iterator[Result]:
    """The eps that stands for None does not depend on the dtype of x.

    Statement
    ---------
    Where eps=None is accepted, rows of +-t show the eps that is used instead, t**2/y**2 - t**2; in 16 bit it is that of float32.

    Why it matters
    --------------
    The machine epsilon of bfloat16 is 0.0078. With it a quiet layer comes out 1.8 times smaller than in float32, and looks like
    bad accumulation.

    Holds for
    ---------
    Code that accepts eps=None, with eps inside the root, in 16 bit.

    Tolerance
    ---------
    A tenth: the probe resolves t**2 + eps to 8*u of the storage format, 3 % in bfloat16, and the machine epsilons of two formats
    differ at least eightfold. What is below the resolution, 8*u*t**2, is no difference.

    Known exceptions
    ----------------
    torch before 2.8 took the machine epsilon of x's dtype; a warning.

    References
    ----------
    Kind K07 of the catalogue of faults: pytorch/pytorch#189581.
    """
    yield from guarded(context, "default-epsilon", _default, regime="tiny")


@register("saved-statistics", applies=_needs_kept_statistics)
def saved_statistics(context: Context) -> Iterator[Result]:
    """Statistics kept for the backward pass have the promised dtype and value.

    Statement
    ---------
    mean and rstd come back in ``contract.saved_stats``, by default the compute dtype, and are the row's mean and 1/S.

    Why it matters
    --------------
    A mean rounded to bfloat16 gives every element of the row the same error in the gradient; such errors add up, row sums of dx
    are no longer zero, and no check of the output sees it.

    Holds for
    ---------
    Code that returns them: ``returns=("y", "mean", "rstd")``.

    Tolerance
    ---------
    None for the dtype. RN(s - E) <= s_hat <= RN(s + E): of the mean E = (H+1)*u*mean|x| + 3*u*max|x|, of rstd relative
    u*((H+4)*phi/2 + 9) + tau**2/2 + sqrt(2)*tau*sqrt(phi), as derived in ``normcheck.bounds``.

    Known exceptions
    ----------------
    None known.

    References
    ----------
    Kind K15 of the catalogue of faults: amd/IRON#139.
    """
    yield from guarded(context, "saved-statistics", _saved, regime="standard")


@register("narrow-range", applies=_needs_narrow_range)
def narrow_range(context: Context) -> Iterator[Result]:
    """Squares, sums and counts may leave the range of 16 bits.

    Statement
    ---------
    Rows of size 1, 16, 260, 1024 and an eighth of the largest value, rows with one outlier of 300 or more, rows whose sum is
    beyond 65504, and rows of 2049 and 4098 elements (70000 in the profile ``deep``) are normalized like all others.

    Why it matters
    --------------
    In float16 300 squared is infinite and so is a count of 65520, which turns the output to 0; 2049 elements count as 2048.

    Holds for
    ---------
    float16 and bfloat16 input, whatever the arithmetic.

    Tolerance
    ---------
    The bound of ``accuracy``.

    Known exceptions
    ----------------
    None: the compute dtype that a contract can promise is never 16 bit wide in its range by accident.

    References
    ----------
    Kinds K02 and K03 of the catalogue of faults: microsoft/onnxruntime#28442, pytorch/executorch#16727.
    """
    widths = (2049,) if context.profile == "quick" else (300, 2049, 4098) + (70000,) * (context.profile == "deep")
    for width in (w for w in widths if context.can_take(w)):
        yield from guarded(context, "narrow-range", _ranged, width, regime="huge")


def _eps(context: Context, eps: float) -> Result | None:
    needs_sound_ordinary_rows(context)
    norm = replace(cast(Any, context.norm), eps=eps)
    chosen = context.implementation.with_norm(norm)
    if chosen is None:
        return None
    shape = some_rows(context)
    fold = norm.fold(shape, context.implementation.channel_axis)
    near = math.sqrt(eps) if norm.eps_placement in ("inside", "max_inside") else eps
    least = max(context.x_format.min_normal, 2.0**-48)
    # zero rows are 0/0 without eps
    relative, least = ([0.0, 1.0, 0.25, 4.0], least) if eps else ([1.0, 0.25, 4.0], 2.0**-12)
    sizes = np.resize(relative, fold.rows) * max(near / math.sqrt(norm.standardization.divisor(fold.width)), least)
    rng = np.random.default_rng(context.seed)
    made = sizes[:, None] * (np.resize([1.0, -1.0], fold.width) * rng.uniform(0.5, 1.5, (fold.rows, fold.width)))
    case = context.case_of(context.x_format.round(made), shape, norm=norm)
    try:
        output = context.run(case, chosen)
    except CallError as error:
        if eps == 0:
            raise SkipCaseError(f"eps=0 is refused: {error}") from None
        raise
    return held(context, "epsilon-precision", case, output, f", eps={eps!r}", called=(chosen, case), regime="tiny")


_PROBE = 2.0**-12


def _default(context: Context) -> Result | None:
    try:
        found = [_effective(context, dtype) for dtype in (context.dtype, "float32")]
    except CallError as error:
        return context.result("default-epsilon", Outcome.SKIPPED, f"eps=None is refused: {error}", regime="tiny")
    if not np.isfinite(found).all():
        return context.result("default-epsilon", Outcome.SKIPPED, "eps=None gives no finite values", regime="tiny")
    measures = {"eps": found[0], "eps_float32": found[1]}
    if abs(found[0] - found[1]) <= 0.1 * found[1] + 8 * context.x_format.u * _PROBE**2:
        return context.result("default-epsilon", Outcome.PASSED, measures=measures, regime="tiny")
    text = f"eps=None acts as {found[0]:.3g} in {context.dtype}, but should be {found[1]:.3g} as in float32 [eps=None]"
    return context.result("default-epsilon", Outcome.WARNED, text, severity=Severity.WARNING, measures=measures, regime="tiny")


def _effective(context: Context, dtype: str) -> float:
    """The eps that stands for None, from a row of +-t whose square is far below it."""
    t = _PROBE
    shape = some_rows(context, rows=4)
    fold = context.norm.fold(shape, context.implementation.channel_axis)
    rows = np.full((fold.rows, fold.width), t) * np.resize([1.0, -1.0], fold.width)
    other = replace(context, dtype=dtype)
    inputs = other.case_of(rows, shape, affine=False).inputs
    output = call(spoiled(context.implementation, eps=None), inputs)
    gain = float(np.abs(fold.fold(output.y)[0, 0]))
    return (t / gain) ** 2 - t * t if gain else math.inf


def _saved(context: Context) -> Result | None:
    case = standard_case(context, context.implementation.contract)
    output = call(context.implementation, case.inputs)
    saved = context.implementation.contract.saved_stats
    fmt = context.compute if saved is None else FORMATS[saved]
    where: dict[str, Any] = {"regime": "standard", "shape": tuple(case.fold.shape)}
    for name in (n for n in ("mean", "rstd") if getattr(output, n) is not None):
        text, claim, at = _kept(case, output, name, fmt)
        if text:
            shown = _looked_at(context, case, output, name, claim, at)
            return context.result("saved-statistics", Outcome.FAILED, text, witness=shown, **where)
    return context.result("saved-statistics", Outcome.PASSED, **where)


def _looked_at(context: Context, case: Case, output: Output, name: str, claim: str, at: int) -> Witness:
    """The call, and what must hold of a statistic, or of one row's."""
    script = Script(context.implementation).arrays(case.inputs).call(case.inputs)
    if at < 0:
        kept = script.of(name)
        script.add(f"kept = {kept}", "print(kept.dtype, kept.shape)", f"assert {claim}")
        return Witness(script.text, name)
    shape = cast(Array, getattr(output, name)).shape
    exact = float(_statistic(case, name)[0][at])
    script.element(script.of(name), tuple(int(i) for i in np.unravel_index(at, shape)), exact, claim=claim)
    return Witness(script.text, name)


def _kept(case: Case, output: Output, name: str, fmt: Format) -> tuple[str, str, int]:
    """What is wrong with a kept statistic, what should hold of it in a snippet, and its place, or -1; empty if nothing is."""
    got = cast(Array, getattr(output, name)).reshape(-1)
    if output.dtypes[name] != fmt.name:
        text = f"{name} is kept in {output.dtypes[name]}, but should be in {fmt.name} [{describe(case)}]"
        return text, f'str(kept.dtype).removeprefix("torch.") == {fmt.name!r}', -1
    if got.shape != (case.fold.rows,):
        text = f"{name} has {got.size} values, but should have one for each of {case.fold.rows} rows [{describe(case)}]"
        return text, f"len(kept.reshape(-1)) == {case.fold.rows}", -1
    exact, error = _statistic(case, name)
    wrong = ~((fmt.round(exact - error) <= got) & (got <= fmt.round(exact + error)))
    if not wrong.any():
        return "", "", -1
    at = int(wrong.argmax())
    due, limit = float(exact[at]), float(error[at])
    claim = f"abs(got - {due!r}) <= {missed(float(got[at]), due, limit)!r}"
    return f"{name}[{at}]={float(got[at])!r}, but should be {due!r} within {limit:.3g} [{describe(case)}]", claim, at


def _statistic(case: Case, name: str) -> tuple[Array, Array]:
    """A row's statistic and its error bound, (R,)."""
    std, cert, u = case.errors.standardization, case.certified, case.errors.compute.u
    allowed = error_class("sequential", std.count(case.fold.width), std.center)
    if name == "mean":
        return cert.mean, u * ((allowed.height + 1) * cert.abs_mean + 3 * cert.max_abs) + 1e-12 * np.abs(cert.mean)
    tau, share = case.errors.tau(allowed), cert.sigma / cert.scale
    relative = u * (0.5 * (allowed.height + 4) * share**2 + allowed.roundings) + 0.5 * tau**2 + math.sqrt(2) * tau * share
    return 1 / cert.scale, (relative + 1e-12) / cert.scale


def _ranged(context: Context, width: int) -> Result | None:
    needs_sound_ordinary_rows(context)
    fmt = context.x_format
    shape = context.shape(8, width)
    fold = context.norm.fold(shape, context.implementation.channel_axis)
    rng = np.random.default_rng([context.seed, width])
    rows = rng.standard_normal((fold.rows, fold.width))
    kinds = [1.0, 16.0, 260.0, 1024.0, fmt.max / 8 if fmt.emax < 100 else 6e4, 1.0, 1.0, 1.0]
    rows = np.clip(rows, -4, 4) * np.resize(kinds, fold.rows)[:, None] / np.resize([1, 1, 1, 1, 4, 1, 1, 1], fold.rows)[:, None]
    for row in range(fold.rows):
        if row % 8 == 5:
            rows[row, width // 2] = 300.0
        elif row % 8 == 6:
            rows[row, width // 3] = 6e4
        elif row % 8 == 7:
            rows[row] += 2.5 * 65504 / width
    case = context.case_of(fmt.round(rows), shape)
    result = held(context, "narrow-range", case, context.run(case), regime="huge")
    if result.outcome is Outcome.FAILED:
        name = pass_class(context)
        shown = witness(context, case, context.run(case), lambda smaller, out: beyond(smaller, out, name))
        result = replace(result, witness=shown)
    return result
