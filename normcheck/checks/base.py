"""What a check is, how it is registered and run, and the context that it runs in."""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import math
import pkgutil
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from normcheck.checks.cases import Case, make_case, numerics, regime_case, with_statistics
from normcheck.formats import Array, Format, format_of
from normcheck.implementations import CallError, Implementation, Inputs, Output, call, frameworks, snippet
from normcheck.norms import Norm
from normcheck.regimes import WIDTHS, weights
from normcheck.results import Outcome, Result, Witness

HEADINGS = ("Statement", "Why it matters", "Holds for", "Tolerance", "Known exceptions", "References")
_HELD = 8
"""Arrays of x's shape in the arithmetic's format that a forward and a backward pass may hold: x, y, their gradients, and wide
copies of each."""


class FormError(Exception):
    """The output's shape or dtype is not what the norm and its contract say; the message follows the house grammar.

    Attributes
    ----------
    snippet : source that shows it, where one call does
    """

    snippet = ""


class SkipCaseError(Exception):
    """A case that cannot be judged; the message is the reason."""


@dataclass(frozen=True, repr=False)
class Context:
    """One implementation in one dtype on one device, and how thoroughly it is looked at.

    Attributes
    ----------
    implementation : code under judgement
    dtype, device : of the input
    profile : ``quick``, ``standard`` or ``deep``
    seed : of all random inputs
    shrink : whether failing inputs are shrunk; a search that shrinks them itself needs no second time
    """

    implementation: Implementation
    dtype: str
    device: str = "cpu"
    profile: str = "standard"
    seed: int = 0
    shrink: bool = True

    def __repr__(self) -> str:
        """What a failing search shows; the implementation by its name."""
        return f"Context({self.implementation.name}, {self.dtype}, {self.device}, {self.profile}, seed={self.seed})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """The same, where IPython or Hypothesis would print every field."""
        printer.text(repr(self))

    @property
    def norm(self) -> Norm:
        """What is claimed."""
        return self.implementation.norm

    @functools.cached_property
    def norm_name(self) -> str:
        """The norm as results name it."""
        return str(self.norm)

    @property
    def x_format(self) -> Format:
        """Format of the input."""
        return format_of(self.dtype)

    @property
    def compute(self) -> Format:
        """Format of the arithmetic that is promised."""
        return self.implementation.contract.compute_format(self.x_format)

    @property
    def training(self) -> bool:
        """Whether the norm takes its statistics from the batch."""
        return self.implementation.training is not False

    @property
    def own_statistics(self) -> bool:
        """Whether statistics come from the rows themselves."""
        return self.training or not self.norm.has_running

    @functools.cached_property
    def widths(self) -> tuple[int, ...]:
        """Row widths of the profile that the norm and the implementation can take; else those that they name."""
        usual = [width for width in WIDTHS[self.profile] if self.can_take(width)]
        if usual:
            return tuple(usual)
        fixed = getattr(self.norm, "normalized_shape", None)
        named = self.implementation.widths
        return (math.prod(fixed),) if fixed else tuple(sorted(itertools.islice(named, 8) if isinstance(named, Iterable) else ()))

    def can_take(self, width: int) -> bool:
        """Whether rows of this width can be given."""
        if width <= self.norm.ddof:
            return False
        try:
            self.shape(1, width)
        except SkipCaseError:
            return False
        return True

    @property
    def shrinks(self) -> bool:
        """Whether failing inputs are shrunk: not where every size is compiled anew and time is short."""
        return self.shrink and not (self.implementation.static and self.profile == "quick")

    @property
    def layout(self) -> str:
        """How x lies in memory where a check does not say."""
        return self.implementation.layouts[0]

    @property
    def parameter_format(self) -> Format:
        """Format of weight, bias and running statistics."""
        return format_of(self.implementation.weight_dtype or self.dtype)

    def shape(self, rows: int, width: int, rank: int | None = None) -> tuple[int, ...]:
        """An input shape with about this many rows of this width.

        Raises
        ------
        SkipCaseError : where the norm or the implementation has none
        """
        groups = getattr(self.norm, "num_groups", 1)
        whole = max(groups, rows // groups * groups)
        refused = "no rank fits"
        for tried in (rank,) if rank is not None else (None, 2, 3, 4, 5):
            try:
                shape = self.norm.shape_of(whole, width, tried, self.implementation.channel_axis)
            except ValueError as error:
                refused = str(error)
                continue
            refused = self.implementation.refuses(shape) or self._crowded(math.prod(shape))
            if not refused:
                return shape
        raise SkipCaseError(refused)

    @functools.cached_property
    def _free(self) -> int | None:
        free: Callable[[str], int | None] | None = getattr(frameworks()[self.implementation.framework], "free_memory", None)
        return None if free is None else free(self.device)

    def _crowded(self, size: int) -> str:
        """Why the device has no room for an x of so many elements, or ``""``."""
        need = size * _HELD * np.dtype(self.compute.dtype).itemsize
        if self._free is None or need <= self._free:
            return ""
        return f"{need:,} bytes may be needed, but {self.device} has {self._free:,} free"

    def case(self, regime: str, shape: tuple[int, ...], layout: str | None = None) -> Case:
        """The case of a regime in this context, with random weights and biases as far as they are taken."""
        return regime_case(
            self.norm,
            numerics(self.implementation.contract),
            regime,
            shape,
            self.dtype,
            weight_dtype=self.implementation.weight_dtype,
            channel_axis=self.implementation.channel_axis,
            layout=layout or self.layout,
            device=self.device,
            weighted=self.implementation.takes("weight"),
            biased=self.implementation.takes("bias"),
            training=self.training,
            tracked=self.implementation.takes("running_mean"),
            seed=self.seed,
        )

    def case_of(self, rows: Array, shape: tuple[int, ...], *, norm: Norm | None = None, affine: bool = True) -> Case:
        """A case from rows (R, D) of one's own, without bias; with random weights, or with ones where ``affine`` is False."""
        norm = norm or self.norm
        fold = norm.fold(shape, self.implementation.channel_axis)
        size, fmt = norm.parameter_size(fold), self.parameter_format
        weight = None
        if self.implementation.takes("weight"):
            weight = weights(size, fmt, self.seed, norm.weight_offset) if affine else np.full(size, 1.0 - norm.weight_offset)
        inputs = Inputs(
            x=rows,
            weight=weight,
            bias=np.zeros(size) if self.implementation.takes("bias") else None,
            dtype=self.dtype,
            weight_dtype=self.implementation.weight_dtype,
            device=self.device,
            layout=self.layout,
            training=self.training,
        )
        inputs = with_statistics(inputs, norm, fold, rows, taken=self.implementation.takes("running_mean"))
        return make_case(norm, numerics(self.implementation.contract), fold, rows, inputs)

    def run(self, case: Case, implementation: Implementation | None = None) -> Array:
        """Call the implementation and fold its output to rows (R, D).

        Raises
        ------
        CallError : if the call raised or returned no array
        FormError : if the output's shape or dtype is not as promised
        """
        called = implementation or self.implementation
        output = call(called, case.inputs)
        check_form(output, case, called)
        rows: Array = case.fold.fold(output.y)
        return rows

    def result(self, check: str, outcome: Outcome, message: str = "", **values: Any) -> Result:
        """A result of this context; an error that is NaN counts as infinite."""
        implementation = self.implementation
        if values.get("error") is not None and math.isnan(values["error"]):
            values["error"] = math.inf
        return Result(
            check=check,
            implementation=implementation.name,
            norm=self.norm_name,
            dtype=self.dtype,
            outcome=outcome,
            device=self.device,
            message=message,
            **{"layout": self.layout, **values},
        )


def check_form(output: Output, case: Case, called: Implementation | None = None) -> None:
    """Raise FormError if an output has another shape or dtype than the case asks for; ``called`` lets a snippet show it."""
    expected = (tuple(case.fold.shape), case.out_format.name)
    for what, got, should in zip(("shape", "dtype"), (output.y.shape, output.dtype), expected, strict=True):
        if got != should:
            error = FormError(f"{what}={got}, but should be {should} [{describe(case)}]")
            error.snippet = "" if called is None else snippet(called, case.inputs, form=expected)
            raise error


def describe(case: Case) -> str:
    """The call in brackets of the message grammar: shape, dtype and what else was passed."""
    inputs = case.inputs
    parts = [f"x: {inputs.dtype}{list(case.fold.shape)}"]
    if inputs.weight is not None:
        parts.append(f"weight: {inputs.weight_dtype or inputs.dtype}")
    if inputs.bias is not None:
        parts.append("bias")
    if case.norm.has_running:
        parts.append(f"training={inputs.training}")
    if inputs.layout != "contiguous":
        parts.append(inputs.layout)
    if inputs.parameter_layout != "contiguous":
        parts.append(f"parameters: {inputs.parameter_layout}")
    return ", ".join(parts)


Runner = Callable[[Context], Iterator[Result]]


@dataclass(frozen=True)
class Check:
    """One property, stated.

    Attributes
    ----------
    id : names the property, hyphenated
    title : the first line of its page
    doc : its page, with the headings of ``HEADINGS``
    family : the module it lives in
    run : yields results for a context
    applies : the reason why a context is skipped, or ``""``
    requires : ids of checks without which this one would only repeat a root cause
    sweeps : whether it goes through many shapes
    """

    id: str
    title: str
    doc: str
    family: str
    run: Runner = field(repr=False)
    applies: Callable[[Context], str] = field(repr=False)
    requires: tuple[str, ...] = ("output-form",)
    sweeps: bool = False

    def unaffordable(self, context: Context) -> str:
        """Why a profile leaves it out whatever it judges, or ``""``."""
        sweeps = self.sweeps and context.implementation.static and context.profile == "quick"
        return "every shape is compiled anew: judged in the profiles standard and deep" if sweeps else ""

    def needless(self, context: Context) -> str:
        """Why it is not run in a context, which can be told without any call; or ``""``."""
        return self.unaffordable(context) or self.applies(context)


_REGISTRY: dict[str, Check] = {}


def register(
    check: str,
    *,
    applies: Callable[[Context], str] = lambda context: "",
    requires: tuple[str, ...] = ("output-form",),
    sweeps: bool = False,
) -> Callable[[Runner], Runner]:
    """Make a generator of results a check; its docstring is its page.

    Raises
    ------
    ValueError : at import, for a duplicate id or a docstring without the six headings, naming file and line
    """

    def add(run: Runner) -> Runner:
        page = inspect.getdoc(run) or ""
        where = f"{inspect.getsourcefile(run)}:{run.__code__.co_firstlineno}"
        missing = [heading for heading in HEADINGS if f"\n{heading}\n{'-' * len(heading)}\n" not in page]
        if missing:
            raise ValueError(f"check {check!r} at {where} has no heading {', '.join(missing)} in its docstring")
        if check in _REGISTRY:
            raise ValueError(f"check {check!r} at {where} is registered already, by {_REGISTRY[check].run.__module__}")
        title = page.splitlines()[0].rstrip(".")
        _REGISTRY[check] = Check(check, title, page, run.__module__.rpartition(".")[2], run, applies, requires, sweeps)
        return run

    return add


def checks() -> Mapping[str, Check]:
    """All checks by id, in the order in which they are run: prerequisites first, then by family and id."""
    package = importlib.import_module("normcheck.checks")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"normcheck.checks.{module.name}")
    ordered = sorted(_REGISTRY.values(), key=lambda check: (_depth(check), check.family, check.id))
    return {check.id: check for check in ordered}


def _depth(check: Check) -> int:
    """How many checks build upon each other up to this one."""
    return 1 + max((_depth(_REGISTRY[id_]) for id_ in check.requires), default=-1)


def run_check(check: Check, context: Context) -> list[Result]:
    """All results of a check in a context; what raises becomes a result, except an interrupt."""
    reason = check.needless(context)
    if reason:
        return [context.result(check.id, Outcome.SKIPPED, reason)]
    results: list[Result] = []
    started = time.perf_counter()
    try:
        for result in check.run(context):
            now = time.perf_counter()
            results.append(replace(result, seconds=now - started))
            started = now
    except CallError as error:
        seconds = time.perf_counter() - started
        results.append(context.result(check.id, Outcome.BROKEN, f"call raised {error}", seconds=seconds, witness=raised(error)))
    except FormError as error:
        seconds = time.perf_counter() - started
        results.append(context.result(check.id, Outcome.FAILED, str(error), seconds=seconds, witness=raised(error)))
    except SkipCaseError as error:
        results.append(context.result(check.id, Outcome.SKIPPED, str(error)))
    except Exception as error:  # noqa: BLE001 - a fault of ours must not lose the audit
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"normcheck raised {type(error).__name__}: {error} ({where.name}, line {where.lineno})"
        results.append(context.result(check.id, Outcome.BROKEN, text))
    if not results:
        results.append(context.result(check.id, Outcome.SKIPPED, "no input of this profile can be judged here"))
    return results


def guarded(context: Context, check: str, judge: Callable[..., Result | None], *arguments: Any, **where: Any) -> Iterator[Result]:
    """One result of a check with many: what goes wrong in it is its own result, and the others go on."""
    try:
        result = judge(context, *arguments)
    except CallError as error:
        if _may_refuse(context, where.get("shape")):
            return
        shape = where.get("shape")
        hint = f"; where that is meant, widths= (--width) or ranks= (--rank) say so [{shape}]" if shape else ""
        yield context.result(check, Outcome.BROKEN, f"call raised {error}{hint}", witness=raised(error), **where)
    except FormError as error:
        yield context.result(check, Outcome.FAILED, str(error), witness=raised(error), **where)
    except SkipCaseError:
        return
    else:
        if result is not None:
            yield result


def raised(error: CallError | FormError) -> Witness | None:
    """The call that raised, or whose result has no right form, as a witness."""
    text = error.snippet
    if isinstance(error, CallError) and error.called is not None and not text:
        text = snippet(*error.called)
    return Witness(text, "standard") if text else None


def _may_refuse(context: Context, shape: tuple[int, ...] | None) -> bool:
    """Whether the rows are of one element each, of which no spread can be taken: frameworks may refuse them."""
    if not shape or not context.own_statistics:
        return False
    return context.norm.fold(shape, context.implementation.channel_axis).width <= 1


def ulp_error(output: Array, exact: Array, fmt: Format) -> Array:
    """|output - exact| in ulp of ``fmt`` at the larger of |exact| and the row's root mean square, (R, D); 0 for rows of zeros."""
    with np.errstate(all="ignore"):
        top = np.abs(exact).max(axis=1, initial=0.0, keepdims=True)
        safe = np.where((top > 0) & np.isfinite(top), top, 1.0)
        squares = exact / safe
        squares *= squares
        rms = np.sqrt(squares.mean(axis=1, keepdims=True)) * safe
        scale = np.abs(exact, out=squares)
        np.fmin(np.fmax(scale, rms, out=scale), fmt.max, out=scale)
        ulps = np.abs(output - exact)
        ulps /= fmt.ulp(scale)
        if scale.min(initial=1.0) > 0 and not np.isnan(ulps.max(initial=0.0)):
            return ulps
        return np.where(np.isnan(output), np.inf, np.where(scale > 0, ulps, 0.0))
