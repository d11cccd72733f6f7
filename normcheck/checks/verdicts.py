"""Output rows held against the bound of accuracy, for checks whose point is how the call was made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normcheck.checks.base import Context, SkipCaseError, describe
from normcheck.checks.cases import Case, numerics, regime_case
from normcheck.checks.terms import terms
from normcheck.checks.witness import beyond, pass_class, shown, witness
from normcheck.contract import Contract
from normcheck.formats import Array
from normcheck.implementations import Implementation
from normcheck.implementations.snippets import PLAIN
from normcheck.results import Outcome, Result


def some_rows(context: Context, width: int = 64, rows: int = 8) -> tuple[int, ...]:
    """A shape with about so many rows of this width, or of another that the implementation takes."""
    return context.shape(rows, width if context.can_take(width) else context.widths[-1])


def standard_case(context: Context, contract: Contract, weight_dtype: str | None = None) -> Case:
    """Standard rows under a contract, with weights of a dtype."""
    implementation = context.implementation
    return regime_case(
        context.norm,
        numerics(contract),
        "standard",
        some_rows(context),
        context.dtype,
        weight_dtype=weight_dtype or implementation.weight_dtype,
        channel_axis=implementation.channel_axis,
        layout=context.layout,
        device=context.device,
        weighted=implementation.takes("weight"),
        biased=implementation.takes("bias"),
        training=context.training,
        tracked=implementation.takes("running_mean"),
        seed=context.seed,
    )


def needs_sound_ordinary_rows(context: Context) -> None:
    """Raise SkipCaseError where ordinary rows are wrong already: ``accuracy`` tells of them."""
    case = standard_case(context, context.implementation.contract)
    if case.judge(context.run(case), pass_class(context)).worst_ratio > 1:
        raise SkipCaseError("ordinary rows are wrong already: accuracy tells of them")


def held(
    context: Context,
    check: str,
    case: Case,
    output: Array,
    how: str = "",
    *,
    called: tuple[Implementation, Case] | None = None,
    way: Sequence[str] | None = PLAIN,
    **values: Any,
) -> Result:
    """The result of holding output rows (R, D) against the bound of accuracy.

    Parameters
    ----------
    how : what was special about the call, for the message
    called : what was called, and with what, if it was not the context's code with this case; rows lie as those of this case
    way : how a snippet makes the call; None where it cannot
    """
    name = pass_class(context)
    verdict = case.judge(output, name)
    where: dict[str, Any] = {"shape": tuple(case.fold.shape), **values}
    if verdict.worst is None or verdict.worst_ratio <= 1:
        return context.result(check, Outcome.PASSED, **where)
    at = verdict.worst
    text = (
        f"y[{at[0]}, {at[1]}]={float(output[at])!r}, but should be {float(case.exact[at])!r} within "
        f"{verdict.figures['tolerance']:.3g} [{describe(case)}{how}]"
    )
    where |= {"terms": terms(case, output, at, name), **verdict.figures}
    limit = where["tolerance"]
    if called is None and way is PLAIN:
        found = witness(context, case, output, lambda smaller, out: beyond(smaller, out, name))
    else:
        code, own = called or (context.implementation, case)
        found = None if way is None else shown(code, own, output, at, float(case.exact[at]), limit, way=way)
    return context.result(check, Outcome.FAILED, text, **{"witness": found, **where})
