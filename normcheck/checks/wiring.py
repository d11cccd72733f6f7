"""Residual and wiring: fused add and norm, and how a block connects norm, sublayer and skip."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from normcheck.checks.base import Context, SkipCaseError, describe, guarded, register
from normcheck.checks.batches import looked_at
from normcheck.checks.cases import Case
from normcheck.checks.geometry import arrangements, shapes
from normcheck.checks.verdicts import held, some_rows
from normcheck.checks.witness import pass_class, place_of, pointed, shown
from normcheck.contract import ResidualRounding
from normcheck.formats import Array
from normcheck.implementations import Block, CallError, call, natives, observe, require, user_code
from normcheck.implementations.snippets import PLAIN, Script
from normcheck.results import Outcome, Result, Witness

_ALPHAS = (1.0, 2.0, 1.5, 0.25)
_FACTORS = (0.0, 0.5, -2.0)
_SIZES = ((41, 64), (130, 33), (300, 768), (5, 1000))


def _needs_residual(context: Context) -> str:
    return "" if context.implementation.residual else "no residual is added: give residual=True"


def _needs_block(context: Context) -> str:
    return "" if context.implementation.block is not None else "no block is given: give block="


@register("residual-sum", applies=_needs_residual)
def residual_sum(context: Context) -> Iterator[Result]:
    """The norm sees the sum with the residual, rounded as the contract says, and the rounded sum comes back.

    Statement
    ---------
    y = norm(RN(x + residual)) with the rounding to x's dtype (``residual_rounding="storage"``) or to the compute dtype
    (``"compute"``); new_residual is x + residual rounded to x's dtype, bit for bit; for an x of any rank, and many rows.

    Why it matters
    --------------
    In bfloat16 the two roundings differ on 23.6 % of outputs. Two kernels of one library that disagree on it make a model
    depend on which of them a shape selects.

    Holds for
    ---------
    Implementations with ``residual=True``. Where the contract leaves the rounding open, either passes.

    Tolerance
    ---------
    The set of ``accuracy`` for the rounding that is claimed; none for the sum. Where the other rounding fits and the claimed one
    does not, it is named.

    Known exceptions
    ----------------
    In float32 both are the same.

    References
    ----------
    Kind K21 of the catalogue of faults: NVIDIA-NeMo/Speech#4350.
    """
    for shape in dict.fromkeys((some_rows(context), *arrangements(context), *shapes(context, _SIZES))):
        yield from guarded(context, "residual-sum", _summed, shape, regime="standard", shape=shape)


@register("residual-absent", applies=_needs_residual)
def residual_absent(context: Context) -> Iterator[Result]:
    """No residual is a residual of zeros.

    Statement
    ---------
    residual=None gives the bits of y that residual=0 gives, and returns x as the new residual, if any; also just after a call
    whose residual was NaN.

    Why it matters
    --------------
    The first layer has no residual. Code that takes whatever its scratch memory holds is right as long as that is fresh.

    Holds for
    ---------
    Implementations with ``residual=True`` that accept None.

    Tolerance
    ---------
    None: bits.

    Known exceptions
    ----------------
    Code that refuses None is skipped.

    References
    ----------
    Kind K21 of the catalogue of faults.
    """
    yield from guarded(context, "residual-absent", _absent, regime="standard")


@register("residual-aliasing", applies=_needs_residual)
def residual_aliasing(context: Context) -> Iterator[Result]:
    """x and residual are left as they were, unless the code says that it writes them.

    Statement
    ---------
    After the call x and residual hold their values, but for those that ``mutates`` names. A residual that is the very array x
    gives norm(2*x).

    Why it matters
    --------------
    ``x.float()`` is x itself in float32. Code that then multiplies in place destroys the skip connection in that dtype alone.

    Holds for
    ---------
    Implementations with ``residual=True``, each dtype by itself.

    Tolerance
    ---------
    None for the arrays; the bound of ``accuracy`` for norm(2*x), which is exact in every dtype.

    Known exceptions
    ----------------
    Kernels that write the sum into the residual say so: ``mutates=("residual",)``; the aliased call is not made then.

    References
    ----------
    Kind K21 of the catalogue of faults: GeeeekExplorer/nano-vllm#170, sgl-project/sglang#28005.
    """
    yield from guarded(context, "residual-aliasing", _aliased, regime="standard")


@register("block-wiring", applies=_needs_block)
def block_wiring(context: Context) -> Iterator[Result]:
    """A block connects norm, sublayer and skip as its wiring says.

    Statement
    ---------
    A Pre-Norm block gives f the value norm(x) and returns x + f(norm(x)), which for f = 0 is x, bit for bit; here f multiplies by
    0, 1/2 and -2. A Post-Norm block gives f the value x and returns norm(x + f(x)), which for f = 0 is norm(x); a DeepNorm block
    returns norm(alpha*x + f(x)), which for alpha = 1 is Post-Norm; here f(x) is x, moved by one place, times 0, 1/2 and -2. f is
    called once.

    Why it matters
    --------------
    A norm before the branch point, a skip that starts behind it or an alpha on the wrong branch trains, only worse.

    Holds for
    ---------
    Implementations with ``block=``.

    Tolerance
    ---------
    x and alpha are such that alpha*x + f(x) is exact: what f is given, and what comes back of Post-Norm and DeepNorm blocks, is
    held to the set of ``accuracy``. Of a Pre-Norm block y is x + f(z), with z what f was given, and half a unit for each of the
    product and the sum.

    Known exceptions
    ----------------
    None known.

    References
    ----------
    Xiong et al. 2020; Wang et al. 2022 (DeepNorm). Kind K21: tracel-ai/burn#1056, facebookresearch/xformers#233.
    """
    block = cast(Block, context.implementation.block)
    for alpha in _ALPHAS if block.wiring == "deep" else (1.0,):
        for factor in _FACTORS:
            yield from guarded(context, "block-wiring", _wired, block, factor, alpha, regime="standard")


def _operands(context: Context, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """x and residual as rows (R, D) whose sums need rounding in every dtype."""
    fold = context.norm.fold(shape, context.implementation.channel_axis)
    rng = np.random.default_rng([context.seed, *shape])
    x = context.x_format.round(rng.standard_normal((fold.rows, fold.width)) + 5.0)
    residual = context.x_format.round(rng.standard_normal((fold.rows, fold.width)) * 16.0)
    return x, residual


def _with(case: Case, x: Array, residual: Array | None) -> Case:
    """The case of a sum, called with its two parts."""
    parts = None if residual is None else case.fold.unfold(residual)
    return replace(case, inputs=replace(case.inputs, x=case.fold.unfold(x), residual=parts))


def _sum_case(context: Context, shape: tuple[int, ...], rounding: ResidualRounding) -> tuple[Case, Array]:
    """The case of a sum under a rounding, and the sum as it is to come back."""
    x, residual = _operands(context, shape)
    fmt = context.x_format if rounding == "storage" else context.compute
    case = _with(context.case_of(fmt.round(x + residual), shape), x, residual)
    return case, case.fold.unfold(context.x_format.round(x + residual))


def _summed(context: Context, shape: tuple[int, ...]) -> Result:
    claimed = context.implementation.contract.residual_rounding
    roundings: tuple[ResidualRounding, ...] = ("storage", "compute")
    case, total = _sum_case(context, shape, claimed or "storage")
    output = call(context.implementation, case.inputs)
    rows: Array = case.fold.fold(output.y)
    where: dict[str, Any] = {"regime": "standard", "shape": tuple(case.fold.shape)}
    name = pass_class(context)
    if case.judge(rows, name).worst_ratio > 1:
        others = (rounding for rounding in roundings if rounding != (claimed or "storage"))
        other = next((r for r in others if _sum_case(context, shape, r)[0].judge(rows, name).worst_ratio <= 1), None)
        if other is None:
            called = (context.implementation, case)
            return held(context, "residual-sum", case, rows, ", residual", called=called, regime="standard")
        if claimed:
            text = f"residual_rounding={other!r}, but should be {claimed!r} [{describe(case)}, residual]"
            verdict = case.judge(rows, name)
            worst = cast("tuple[int, int]", verdict.worst)
            where["witness"] = shown(
                context.implementation, case, rows, worst, float(case.exact[worst]), verdict.figures["tolerance"]
            )
            return context.result("residual-sum", Outcome.FAILED, text, **where)
    if output.new_residual is not None and not np.array_equal(output.new_residual, total):
        at = tuple(int(i) for i in np.argwhere(output.new_residual != total)[0])
        text = (
            f"new_residual{list(at)}={float(output.new_residual[at])!r}, but should be {float(total[at])!r} "
            f"[{describe(case)}, residual]"
        )
        got, due = float(output.new_residual[at]), float(total[at])
        where["witness"] = pointed(context.implementation, case.inputs, "new_residual", at, got, due)
        return context.result("residual-sum", Outcome.FAILED, text, **where)
    return context.result("residual-sum", Outcome.PASSED, **where)


def _absent(context: Context) -> Result:
    shape = some_rows(context)
    x, _ = _operands(context, shape)
    case = context.case_of(x, shape)
    where: dict[str, Any] = {"regime": "standard", "shape": shape}
    zeros = call(context.implementation, _with(case, x, np.zeros_like(x)).inputs)
    call(context.implementation, _with(case, x, np.full_like(x, np.nan)).inputs)
    without = _with(case, x, None).inputs
    try:
        absent = call(context.implementation, without)
    except CallError as error:
        return context.result("residual-absent", Outcome.SKIPPED, f"residual=None is refused: {error}", **where)
    pairs = {"y": (absent.y, zeros.y), "new_residual": (absent.new_residual, case.inputs.x)}
    for name, (got, expected) in pairs.items():
        if got is not None and not np.array_equal(got, expected):
            at = tuple(int(i) for i in np.argwhere(got != expected)[0])
            text = (
                f"{name}{list(at)}={float(got[at])!r}, but should be {float(expected[at])!r} as with a residual of zeros "
                f"[{describe(case)}, residual=None]"
            )
            where["witness"] = pointed(context.implementation, without, name, at, float(got[at]), float(expected[at]))
            return context.result("residual-absent", Outcome.FAILED, text, **where)
    return context.result("residual-absent", Outcome.PASSED, **where)


def _aliased(context: Context) -> Result:
    shape = some_rows(context)
    x, residual = _operands(context, shape)
    mutates = context.implementation.mutates
    case = _with(context.case_of(x, shape), x, residual)
    seen = observe(context.implementation, case.inputs)
    where: dict[str, Any] = {"regime": "standard", "shape": shape}
    for name in (n for n in ("x", "residual") if n not in mutates):
        before, after = cast(Array, getattr(case.inputs, name)), seen.after[name]
        if not np.array_equal(before, after, equal_nan=True):
            at = tuple(int(i) for i in np.argwhere(before != after)[0])
            text = (
                f"{name}{list(at)}={float(after[at])!r} after the call, but should still be {float(before[at])!r} "
                f"[{describe(case)}, residual]"
            )
            where["witness"] = pointed(context.implementation, case.inputs, name, at, float(after[at]), float(before[at]))
            return context.result("residual-aliasing", Outcome.FAILED, text, **where)
    if {"x", "residual"} & set(mutates):
        return context.result("residual-aliasing", Outcome.PASSED, **where)
    double = context.case_of(2 * x, shape)
    output = call(context.implementation, _with(double, x, x).inputs, _same_array(context))
    called, way = (context.implementation, _with(double, x, x)), ("residual = x", *PLAIN)
    where = {"called": called, "way": way, "regime": "standard"}
    return held(context, "residual-aliasing", double, double.fold.fold(output.y), ", residual is x", **where)


def _same_array(context: Context) -> Any:
    """Makes the call with x for the residual."""
    passes = context.implementation.passes

    def around(function: Any, passed: list[Any]) -> Any:
        x = passed[passes.index("x")]
        return function(*(x if name == "residual" else value for name, value in zip(passes, passed, strict=True)))

    return around


@dataclass(eq=False)
class _Sublayer:
    """Multiplies by a factor, or returns the array that it holds, and remembers what it was given."""

    factor: float
    fixed: Array | None
    native: Any = None
    given: list[Any] = field(default_factory=list)

    def __call__(self, z: Any) -> Any:
        """f(z)."""
        self.given.append(z)
        return z * self.factor if self.fixed is None else self.native


def _wired(context: Context, block: Block, factor: float, alpha: float) -> Result | None:
    shape = some_rows(context)
    fold = context.norm.fold(shape, context.implementation.channel_axis)
    rng = np.random.default_rng([context.seed, *shape])
    # on a grid so coarse that alpha*x + f(x) is exact in every dtype
    x = np.rint(rng.standard_normal((fold.rows, fold.width)) * 6.0 + 2.0)
    moved = None if block.wiring == "pre" else factor * np.roll(x, 1, axis=1)
    case = context.case_of(x if moved is None else alpha * x + moved, shape)
    case = replace(case, inputs=replace(case.inputs, x=fold.unfold(x)))
    sublayer = _Sublayer(factor, None if moved is None else fold.unfold(moved))
    y, given = _called(context, block, case, sublayer, alpha)
    how = f", {block.wiring}, f={factor}*{'z' if moved is None else 'x moved by one'}" + f", alpha={alpha}" * (
        block.wiring == "deep"
    )
    where: dict[str, Any] = {"regime": "standard", "shape": shape}
    script = _script(context, block, case, sublayer, alpha)
    if len(given) != 1:
        text = f"f is called {len(given)} times, but should be once [{describe(case)}{how}]"
        where["witness"] = Witness(script.add("assert len(given) == 1").text, "f")
        return context.result("block-wiring", Outcome.FAILED, text, **where)
    if block.wiring == "pre":
        return _pre(context, case, fold.fold(y), fold.fold(given[0]), factor, how, script)
    if not np.array_equal(given[0], case.inputs.x):
        at = tuple(int(i) for i in np.argwhere(given[0] != case.inputs.x)[0])
        got, due = float(given[0][at]), float(case.inputs.x[at])
        text = f"f is given {got!r}, but should be given {due!r}, its x [{describe(case)}{how}]"
        return context.result("block-wiring", Outcome.FAILED, text, witness=looked_at(script, "given[0]", at, got, due), **where)
    result = held(context, "block-wiring", case, fold.fold(y), how, way=None, regime="standard")
    return _told(result, case, fold.fold(y), script, "y")


def _script(context: Context, block: Block, case: Case, sublayer: _Sublayer, alpha: float) -> Script:
    """The block's call, written down."""
    inputs = case.inputs
    script = Script(context.implementation).arrays(inputs)
    if sublayer.fixed is not None:
        script.array("moved", sublayer.fixed, inputs, dtype=inputs.dtype)
    returned = f"z * {sublayer.factor!r}" if sublayer.fixed is None else "moved"
    script.add("given = []", "def f(z):", "    given.append(z)", f"    return {returned}")
    names = ("x", "weight", "bias") if context.norm.has_bias else ("x", "weight")
    passed = [*(name if getattr(inputs, name) is not None else "None" for name in names), "f"]
    passed += [repr(alpha)] * (block.wiring == "deep")
    return script.add(f"y = {script.imported(block.call)}({', '.join(passed)})")


def _told(result: Result, case: Case, output: Array, script: Script, array: str) -> Result:
    """The result with the block's call where it fails, and the worst element of what ``array`` names in it."""
    if not result.outcome.bad:
        return result
    ratio = np.where(np.isnan(output), np.inf, np.abs(output - case.exact))
    at = tuple(int(i) for i in np.unravel_index(ratio.argmax(), ratio.shape))
    bound = case.reach("sequential")[at] + case.rounding(output)[at]
    figures = (float(output[at]), float(case.exact[at]), float(bound))
    return replace(result, witness=looked_at(script, array, place_of(case, (at[0], at[1])), *figures))


def _called(context: Context, block: Block, case: Case, sublayer: _Sublayer, alpha: float) -> tuple[Array, list[Array]]:
    """What the block returned, and what its sublayer was given."""
    framework = require(context.implementation, context.device)
    values = natives(context.implementation, case.inputs)
    if sublayer.fixed is not None:
        sublayer.native = framework.to_native(sublayer.fixed, context.dtype, context.device)
    names = ("x", "weight", "bias") if context.norm.has_bias else ("x", "weight")
    with user_code(framework, case.inputs):
        returned = block.call(*(values[name] for name in names), sublayer, *(alpha,) * (block.wiring == "deep"))
        y = framework.to_values(returned)[0]
        given = [framework.to_values(z)[0] for z in sublayer.given]
    if any(array.shape != tuple(case.fold.shape) for array in (y, *given)):
        raise SkipCaseError("shapes differ: output-form tells of them")
    return y, given


def _pre(context: Context, case: Case, y: Array, z: Array, factor: float, how: str, script: Script) -> Result:
    result = held(context, "block-wiring", case, z, f"{how}, what f is given", way=None, regime="standard")
    if result.outcome is Outcome.FAILED:
        told = replace(result, message=result.message.replace("y[", "z[", 1))
        return _told(told, case, z, script, "given[0]")
    fmt = context.x_format
    total = case.rows + fmt.round(factor * z)
    # once for the sum; for a product that is not rounded to storage half a unit more
    slack = 0.5 * fmt.ulp(total) + 0.5 * fmt.ulp(factor * z) * (factor != 0)
    wrong = np.abs(y - total) > slack
    if not wrong.any():
        return result
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    text = f"y[{at[0]}, {at[1]}]={float(y[at])!r}, but should be x + f(z) = {float(total[at])!r} [{describe(case)}{how}]"
    found = looked_at(script, "y", place_of(case, (at[0], at[1])), float(y[at]), float(total[at]), float(slack[at]))
    where: dict[str, Any] = {"regime": "standard", "shape": tuple(case.fold.shape), "witness": found}
    return context.result("block-wiring", Outcome.FAILED, text, **where)
