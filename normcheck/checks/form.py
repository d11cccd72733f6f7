"""Form: the output has the shape and the dtype that the norm and the contract say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from normcheck.checks.base import Context, FormError, check_form, describe, raised, register
from normcheck.checks.witness import pointed
from normcheck.implementations import CallError, call
from normcheck.results import Outcome, Result


@register("output-form", requires=())
def output_form(context: Context) -> Iterator[Result]:
    """The output has the input's shape and the promised dtype.

    Statement
    ---------
    y has the shape of x; its dtype is that of x, of x and weight promoted, or the one named, as ``contract.output`` says. An
    ordinary input of moderate size gives no NaN and no infinity.

    Why it matters
    --------------
    Everything else compares y with a value of known shape and format. A float32 result for bfloat16 input doubles memory
    downstream, a bfloat16 result for float32 input loses sixteen bits in silence.

    Holds for
    ---------
    Every norm and implementation. All other checks are skipped where this one fails.

    Tolerance
    ---------
    None: exact.

    Known exceptions
    ----------------
    With float32 weights a cast before the weight returns float32 for 16-bit input; the contract says so with
    ``output="promote"``.

    References
    ----------
    Kind K14 of the catalogue of faults: output dtype and mixed dtype policy.
    """
    width = next((w for w in context.widths if w >= 16), context.widths[-1])
    shape = context.shape(4, width)
    case = context.case("standard", shape)
    try:
        output = call(context.implementation, case.inputs)
    except CallError as error:
        hint = f"where {context.dtype} or this shape is not meant, dtypes= (--dtype), widths= (--width) or ranks= (--rank) say so"
        text = f"call raised {error}; {hint} [{describe(case)}]"
        yield context.result("output-form", Outcome.BROKEN, text, regime="standard", shape=shape, witness=raised(error))
        return
    where: dict[str, Any] = {"regime": "standard", "shape": shape}
    try:
        check_form(output, case, context.implementation)
    except FormError as error:
        yield context.result("output-form", Outcome.FAILED, str(error), witness=raised(error), **where)
        return
    wrong = int(np.count_nonzero(~np.isfinite(output.y)))
    if wrong:
        text = f"{wrong} of {output.y.size} outputs are not finite, but all should be [{describe(case)}]"
        at = tuple(int(i) for i in np.argwhere(~np.isfinite(output.y))[0])
        exact = float(case.fold.unfold(case.exact)[at])
        found = pointed(context.implementation, case.inputs, "y", at, float(output.y[at]), exact, claim="np.isfinite(got)")
        yield context.result("output-form", Outcome.FAILED, text, witness=found, **where)
    else:
        yield context.result("output-form", Outcome.PASSED, **where)
