"""What the usual recipes catch of the zoo, beside normcheck.

The recipe: one call on N(0,1) input with unit weights and no bias, compared by `torch.testing.assert_close` with what torch's
own norm gives in the same precision; y must have the same dtype, too. Columns with "gradients" compare those of x, weight and
bias for an N(0,1) dy as well. Where torch has no such norm, normcheck's textbook one stands in its place. What normcheck finds is
read from zoo.json beside this file; of a sound norm, documented warnings do not count. A recipe that flags sound norms says
little by flagging a fault: torch's own gradients are less exact than theirs.

`python reports/peers.py` writes peers.md beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from normcheck import zoo
from normcheck.checks import Context
from normcheck.checks.base import SkipCaseError
from normcheck.faults import faults, sound
from normcheck.formats import format_of
from normcheck.implementations import CallError, Implementation, Inputs, backward, call, implementations
from normcheck.reporters import text

HERE = Path(__file__).parent
RECIPES = {
    "assert_close": {},
    "rtol=atol=1e-2": {"rtol": 1e-2, "atol": 1e-2},
    "rtol=0.1, atol=0.2": {"rtol": 0.1, "atol": 0.2},
}
COLUMNS = (*RECIPES, *(f"{recipe}, gradients" for recipe in RECIPES), "normcheck")
ROWS, WIDTHS = 64, (512, 256, 128, 64)
Values = dict[str, np.ndarray | None]
Caught = dict[tuple[str, str], set[str]]


def within_reach(code: Implementation) -> bool:
    """Whether the recipe looks at what is judged, and has something to compare it with."""
    plain = code.block is None and code.quantized is None and code.workers is None and not code.variants
    return plain and all(standard(code, dtype) is not None for dtype in code.dtypes)


def usual(code: Implementation, dtype: str) -> tuple[Inputs, np.ndarray]:
    """N(0,1) input, unit weights, no bias, fresh running statistics, and N(0,1) for dy."""
    context, rng = Context(code, dtype), np.random.default_rng(0)
    shape = _shape(context)
    size, channels = code.norm.parameter_size(fold := code.norm.fold(shape, code.channel_axis)), fold.period
    x, dy = (format_of(dtype).round(rng.standard_normal(shape)) for _ in range(2))
    affine = {"weight": np.full(size, 1.0 - code.norm.weight_offset), "bias": np.zeros(size)}
    given = {name: value for name, value in affine.items() if code.takes(name)}
    if code.norm.has_running:
        given |= {"running_mean": np.zeros(channels), "running_var": np.ones(channels)}
    if code.residual:
        given["residual"] = format_of(dtype).round(rng.standard_normal(shape))
    training = code.training is not False
    return Inputs(x, dtype=dtype, layout=code.layouts[0], weight_dtype=code.weight_dtype, training=training, **given), dy


def _shape(context: Context) -> tuple[int, ...]:
    for width in (*WIDTHS, *context.widths):
        try:
            return context.shape(ROWS, width)
        except SkipCaseError:
            continue
    raise SystemExit(f"no shape fits {context.implementation.name}")


def standard(code: Implementation, dtype: str) -> Implementation | None:
    """torch's own norm, or the textbook's, or None."""
    wanted = replace(code.norm, weight_offset=0.0)
    for one in (*implementations("torch"), *implementations("numpy")):
        same = type(one.norm) is type(wanted) and one.channel_axis == 1 and one.layouts == ("contiguous",)
        same &= not code.takes("weight") or one.takes("weight")
        modes = {one.training, code.training if code.norm.has_running else None}
        if same and dtype in one.dtypes and one.weight_dtype is None and len(modes - {None}) < 2:
            norm = replace(
                one.norm, **{name: getattr(wanted, name) for name in (*one.variable, "momentum") if hasattr(wanted, name)}
            )
            alike = all(getattr(norm, name, None) == getattr(wanted, name, None) for name in ("eps", "eps_placement", "ddof"))
            if alike and norm.has_running == wanted.has_running:
                return replace(one, norm=norm)
    return None


def outcome(code: Implementation, inputs: Inputs, dy: np.ndarray) -> tuple[Values, str]:
    """What comes back, by name, and the dtype of y: running statistics by torch's convention only, None for missing gradients."""
    got, contract = call(code, inputs), code.contract
    values = {"y": got.y}
    if got.running_var is not None and (contract.momentum_convention, contract.running_ddof) == ("torch", 1):
        values |= {"running_mean": got.running_mean, "running_var": got.running_var}
    if code.grad is not None:
        slope = np.resize(dy, got.y.shape)
        found = backward(code, inputs, slope, dresidual=np.zeros_like(slope) if got.new_residual is not None else None)
        values |= {f"d{name}": value for name, value in found.values.items()}
    return values, got.dtype


def caught(code: Implementation, dtype: str) -> set[str]:
    """The recipes that the code fails, by their columns."""
    inputs, dy = usual(code, dtype)
    summed = inputs.x if inputs.residual is None else format_of(dtype).round(inputs.x + inputs.residual)
    weight = None if inputs.weight is None else np.ones_like(inputs.weight)
    same = replace(inputs, x=summed, residual=None, weight=weight, weight_dtype=None)
    if code.channel_axis == -1:
        expected, dtype_expected = outcome(standard(code, dtype), replace(same, x=_first(same.x)), _first(dy))
        expected = {name: np.moveaxis(value, 1, -1) if value.ndim == dy.ndim else value for name, value in expected.items()}
    else:
        expected, dtype_expected = outcome(standard(code, dtype), same, dy)
    try:
        got, dtype_got = outcome(code, inputs, dy)
    except CallError:
        return set(COLUMNS[:-1])
    if code.contract.output == "x" and dtype_got != dtype_expected:
        return set(COLUMNS[:-1])
    return set(_failed(got, expected, dtype))


def _first(array: np.ndarray) -> np.ndarray:
    """The array with its channels moved from the last axis to the one after the batch."""
    return np.moveaxis(array, -1, 1)


def _failed(got: Values, expected: Values, dtype: str) -> Iterator[str]:
    kind = getattr(torch, dtype)
    for name in got.keys() & expected.keys():
        for recipe, tolerances in RECIPES.items():
            pair = [values[name] if values[name] is None else torch.tensor(values[name]).to(kind) for values in (got, expected)]
            try:
                torch.testing.assert_close(*pair, equal_nan=True, **tolerances)
            except (AssertionError, TypeError):
                yield f"{recipe}, gradients"
                if not name.startswith("d"):
                    yield recipe


def measure(codes: Mapping[str, Implementation]) -> Caught:
    """The recipes that each fails, by name and dtype."""
    return {(name, dtype): caught(code, dtype) for name, code in codes.items() for dtype in code.dtypes}


def by_normcheck(judged: zoo.Judged) -> dict[str, bool]:
    """Whether anything fired, by dtype; of a sound norm, without the warnings that are documented."""
    known = zoo.sound_warnings().get(judged.name, ())
    fired = {*judged.errors, *(check for check in judged.warnings if check not in known)}
    return {dtype: any(dtype in judged.found(check) for check in fired) for dtype in judged.dtypes}


def table(first: str, groups: Mapping[str, list[tuple[str, str]]], found: Caught) -> str:
    """One line a group: its size, and how many of its cases each recipe catches."""
    counts = {label: Counter(column for case in cases for column in found[case]) for label, cases in groups.items()}
    rows = ([label, str(len(cases)), *(str(counts[label][column]) for column in COLUMNS)] for label, cases in groups.items())
    return text.table((first, "judged:", *(f"{column}:" for column in COLUMNS)), rows)


def grouped(cases: Mapping[tuple[str, str], set[str]], key: Callable[[str, str], str]) -> dict[str, list[tuple[str, str]]]:
    """Cases by what the key says of name and dtype, and all of them."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for case in cases:
        groups.setdefault(key(*case), []).append(case)
    return dict(sorted(groups.items())) | {"all": list(cases)}


def main() -> None:
    """Measure and write the page."""
    torch.set_num_threads(1)
    stored = zoo.read(HERE / "zoo.json")
    if stored.drift:
        raise SystemExit("zoo.json is older than the code: make it anew, as CONTRIBUTING.md tells\n" + "\n".join(stored.drift))
    said = {one.name: by_normcheck(one) for one in stored.judged}
    kinds = {fault.name: fault.kind for fault in faults()}
    ill = {fault.name: fault.implementation for fault in faults() if within_reach(fault.implementation)}
    well = {code.name: code for code in sound() if within_reach(code)}
    found, alarms = measure(ill), measure(well)
    for case, its in (*found.items(), *alarms.items()):
        its |= {"normcheck"} if said[case[0]][case[1]] else set()
    by_dtype = lambda _, dtype: dtype  # noqa: E731
    parts = (
        "# What the usual recipes catch\n",
        __doc__.split("\n", 2)[2].strip() + "\n",
        f"With torch {torch.__version__} and numpy {np.__version__}, on one input of about {ROWS} rows, {WIDTHS[0]} wide where\n"
        f"the norm takes it. A case is one norm in one dtype. {len(faults()) - len(ill)} of {len(faults())} faults and "
        f"{len(sound()) - len(well)} of {len(sound())} sound norms are left out:\n"
        "the recipe does not look where they lie (a block, a quantized output, several workers, another form of the call), or\n"
        "has nothing to compare them with.\n",
        "## Faults caught, by dtype\n",
        table("dtype", grouped(found, by_dtype), found) + "\n",
        "## Sound norms flagged, by dtype\n",
        table("dtype", grouped(alarms, by_dtype), alarms) + "\n",
        "## Faults caught, by kind\n",
        table("kind", grouped(found, lambda name, _: kinds[name]), found) + "\n",
    )
    (HERE / "peers.md").write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
