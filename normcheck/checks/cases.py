"""Cases: the inputs of one call, its certified value and its bounds, built once and shared by all implementations."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from normcheck.bounds import ClassName, ErrorClass, RowErrors, classes_of
from normcheck.cells import Judgement, distance, judge, judge_before_weight
from normcheck.contract import Accumulation, Contract
from normcheck.formats import Array, Format, format_of
from normcheck.implementations import Inputs
from normcheck.norms import Fold, Norm, Standardization
from normcheck.reference import Certified, certify
from normcheck.regimes import REGIMES, biases, weights

Level = Literal["float64", "double-double"]


@dataclass(frozen=True, eq=False)
class Case:
    """One call and what is known about its result.

    Attributes
    ----------
    norm, contract : what is claimed, and in which arithmetic
    fold : how the input becomes rows
    rows : the input as the norm sees it, (R, D)
    inputs : what the implementation is called with
    certified : unrounded reference of the rows; of the standardized value alone where the cast is ``before_weight``
    errors : the quantities from which bounds follow
    """

    norm: Norm
    contract: Contract
    fold: Fold
    rows: Array
    inputs: Inputs
    certified: Certified
    errors: RowErrors

    @functools.cached_property
    def x_format(self) -> Format:
        """Format of the input."""
        return format_of(self.inputs.dtype)

    @property
    def weight_format(self) -> Format | None:
        """Format of weight and bias, or None where there are none."""
        return None if self.inputs.weight is None else format_of(self.inputs.weight_dtype or self.inputs.dtype)

    @functools.cached_property
    def out_format(self) -> Format:
        """Format that the output must have."""
        return self.contract.output_format(self.x_format, self.weight_format)

    @functools.cached_property
    def inner_cast(self) -> bool:
        """Whether the standardized value is rounded before it meets the weight, and this can be told from one rounding."""
        return _inner_cast(self.contract, self.x_format, self.inputs.weight is not None)

    @functools.cached_property
    def classes(self) -> Mapping[ClassName, ErrorClass]:
        """What each class of kernels is allowed."""
        std = self.errors.standardization
        return classes_of(self.contract, std.count(self.fold.width), std.center)

    @functools.cached_property
    def exact(self) -> Array:
        """The exact result rounded to float64, (R, D); for diagnostics and messages, never for judging."""
        if not self.inner_cast:
            return self.certified.hi
        weight, bias = self.parameters
        inner = np.ones(1) if weight is None else weight
        return inner * self.certified.hi + (0.0 if bias is None else bias)

    def rounding(self, output: Array) -> Array:
        """What rounding to storage adds to E, (R, D): half an ulp of the output; with an inner cast |w| times half one of n."""
        return 0.5 * self.out_format.ulp(output) + self.inner_rounding

    @property
    def inner_rounding(self) -> Array:
        """What the rounding of n before the weight adds to E in units of the output, (R, D); 0 where there is none."""
        weight, _ = self.parameters
        if not self.inner_cast or weight is None:
            return np.zeros(1)
        return np.asarray(0.5 * np.abs(weight) * self.x_format.ulp(self.certified.hi))

    def reach(self, name: ClassName) -> Array:
        """E of the class in units of the output, (R, D): times |w| where the bound is that of n."""
        weight, _ = self.parameters
        return self.bound(name) if not self.inner_cast or weight is None else np.asarray(np.abs(weight) * self.bound(name))

    @functools.cached_property
    def affine(self) -> tuple[Array | None, Array | None]:
        """Weight (offset included) and bias, broadcast to the rows."""
        shape = (self.fold.rows, self.fold.width)
        weight, bias = (None if part is None else np.broadcast_to(part, shape) for part in self.parameters)
        return weight, bias

    @functools.cached_property
    def parameters(self) -> tuple[Array | None, Array | None]:
        """Weight (offset included) and bias, of shapes that broadcast to the rows."""
        return _parameters(self.norm, self.fold, self.inputs)

    @property
    def given(self) -> tuple[Array | None, Array | None]:
        """Mean and variance, one per row, where the statistics are given."""
        return _given(self.norm, self.fold, self.inputs)

    def bound(self, name: ClassName) -> Array:
        """E of the class, (R, D)."""
        return self.errors.bound(self.classes[name])

    def verdicts(self, output: Array) -> dict[ClassName, Judgement]:
        """Hold output rows (R, D) against the bound of every class; of a sequential sum only where that of a tree is broken."""
        self.errors.bounds(self.classes["strict"], self.classes["tree"])
        gap = None if self.inner_cast else distance(output, self.certified, self.out_format)
        found: dict[ClassName, Judgement] = {name: self.judge(output, name, gap) for name in ("strict", "tree")}
        if found["tree"].worst_ratio > 1:
            found["sequential"] = self.judge(output, "sequential", gap)
        return found

    def flushing(self) -> Case:
        """The same case where every subnormal number may be flushed to zero."""
        return replace(self, errors=replace(self.errors, flushes=True))

    def judge(self, output: Array, name: ClassName, gap: Array | None = None) -> Judgement:
        """Hold output rows (R, D) against the bound of a class; ``gap`` as for `normcheck.cells.judge`."""
        judged, bound = self.errors.judged(), self.bound(name)
        if not self.inner_cast:
            return judge(output, self.certified, bound, self.out_format, judged, gap)
        weight, bias = self.parameters
        assert weight is not None
        return judge_before_weight(output, self.certified, bound, weight, bias, self.x_format, self.out_format, judged)


def make_case(
    norm: Norm,
    contract: Contract,
    fold: Fold,
    rows: Array,
    inputs: Inputs,
    *,
    level: Level | None = None,
) -> Case:
    """A case from rows (R, D) and the inputs that unfold to them (``inputs.x`` is set from the rows).

    Parameters
    ----------
    level : ``"float64"`` or ``"double-double"``; None takes the level that the compute format asks for
    """
    x_format = format_of(inputs.dtype)
    compute = contract.compute_format(x_format)
    std = replace(norm.standardization, eps=contract.round_eps(norm.eps))
    inner = _inner_cast(contract, x_format, inputs.weight is not None)
    weight, bias = (None, None) if inner else _raw_affine(fold, inputs)
    mean, variance = _given(norm, fold, inputs)
    certified = certify(
        rows,
        std,
        weight,
        bias,
        weight_offset=norm.weight_offset if weight is not None else 0.0,
        mean=mean,
        variance=variance,
        level=level or ("double-double" if compute.p == 53 else "float64"),
    )
    errors = _errors(norm, contract, fold, rows, inputs, certified, std)
    return Case(norm, contract, fold, rows, replace(inputs, x=fold.unfold(rows)), certified, errors)


def regime_case(
    norm: Norm,
    contract: Contract,
    regime: str,
    shape: tuple[int, ...],
    dtype: str,
    *,
    weight_dtype: str | None = None,
    channel_axis: int = 1,
    layout: str = "contiguous",
    device: str = "cpu",
    weighted: bool = True,
    biased: bool = True,
    training: bool = True,
    tracked: bool = True,
    seed: int = 0,
) -> Case:
    """The case of a regime: its rows in this shape, random weights, and a bias, of zeros where another would hide all.

    Shapes that fold to the same rows share what is known about them, until `forget`.
    """
    fold = norm.fold(shape, channel_axis)
    flat = Fold((fold.rows, fold.width), (0, 1), fold.rows, fold.width, fold.period, fold.repeat)
    case = _regime_rows(norm, contract, regime, flat, dtype, weight_dtype, weighted, biased, training, tracked, seed)
    inputs = replace(case.inputs, x=fold.unfold(case.rows), device=device, layout=layout)
    return replace(case, fold=fold, inputs=inputs)


def forget() -> None:
    """Let go of the cases of regimes that were made: others are to come."""
    _regime_rows.cache_clear()


@functools.lru_cache(maxsize=512)
def _regime_rows(
    norm: Norm,
    contract: Contract,
    regime: str,
    fold: Fold,
    dtype: str,
    weight_dtype: str | None,
    weighted: bool,
    biased: bool,
    training: bool,
    tracked: bool,
    seed: int,
) -> Case:
    """The case of a regime with its rows as x."""
    x_format = format_of(dtype)
    family = REGIMES[regime]
    rows = family.rows(fold.rows, fold.width, x_format, seed, contract.compute_format(x_format))
    parameters = format_of(weight_dtype or dtype)
    size = norm.parameter_size(fold)
    inputs = Inputs(
        x=rows,
        weight=weights(size, parameters, seed, norm.weight_offset) if weighted else None,
        bias=(biases(size, parameters, seed) * family.bias) if biased else None,
        dtype=dtype,
        weight_dtype=weight_dtype,
        training=training,
    )
    return make_case(norm, contract, fold, rows, with_statistics(inputs, norm, fold, rows, taken=tracked))


def with_statistics(inputs: Inputs, norm: Norm, fold: Fold, rows: Array, *, taken: bool = True) -> Inputs:
    """Add running statistics to the inputs of a norm that has them: in evaluation such as suit the rows, else zeros and ones.

    Parameters
    ----------
    taken : whether the implementation takes them; in training it need not
    """
    if not norm.has_running or not (taken or not inputs.training):
        return inputs
    channels = fold.period
    if inputs.training:
        return replace(inputs, running_mean=np.zeros(channels), running_var=np.ones(channels))
    fmt = format_of(inputs.weight_dtype or inputs.dtype)
    first = rows[:channels]
    scale = np.abs(first).max(axis=1, initial=0.0)
    safe = np.where(scale > 0, scale, 1.0)[:, None]
    center = (first / safe).mean(axis=1) * safe[:, 0]
    spread = ((first - center[:, None]) / safe).std(axis=1) * safe[:, 0]
    largest = np.sqrt(fmt.max) / 4
    variance = np.clip(spread * (1 + np.arange(channels) % 3), 0.0, largest) ** 2
    mean = np.clip(center, -fmt.max / 4, fmt.max / 4)
    return replace(inputs, running_mean=fmt.round(mean), running_var=fmt.round(variance))


@functools.cache
def numerics(contract: Contract) -> Contract:
    """The contract reduced to what bears on reference and bounds, so that implementations that differ in the rest share cases."""
    height: Accumulation | int = contract.accumulation if isinstance(contract.accumulation, int) else "tree"
    return Contract(
        compute=contract.compute,
        eps_dtype=contract.eps_dtype,
        cast=contract.cast,
        output=contract.output,
        residual_rounding=contract.residual_rounding,
        accumulation=height,
        overflow=contract.overflow,
    )


def _inner_cast(contract: Contract, x_format: Format, weighted: bool) -> bool:
    return contract.cast == "before_weight" and weighted and contract.compute_format(x_format).p > x_format.p


def _raw_affine(fold: Fold, inputs: Inputs) -> tuple[Array | None, Array | None]:
    weight, bias = inputs.weight, inputs.bias
    return None if weight is None else fold.affine(weight), None if bias is None else fold.affine(bias)


def _parameters(norm: Norm, fold: Fold, inputs: Inputs) -> tuple[Array | None, Array | None]:
    weight, bias = _raw_affine(fold, inputs)
    if weight is not None:
        weight = weight + norm.weight_offset
    if fold.period == 1:
        return weight, bias
    take = np.arange(fold.rows) % fold.period
    return None if weight is None else weight[take], None if bias is None else bias[take]


def _given(norm: Norm, fold: Fold, inputs: Inputs) -> tuple[Array | None, Array | None]:
    if inputs.training or not norm.has_running:
        return None, None
    assert inputs.running_mean is not None
    assert inputs.running_var is not None
    return fold.statistics(inputs.running_mean), fold.statistics(inputs.running_var)


def _errors(
    norm: Norm, contract: Contract, fold: Fold, rows: Array, inputs: Inputs, certified: Certified, std: Standardization
) -> RowErrors:
    x_format = format_of(inputs.dtype)
    compute = contract.compute_format(x_format)
    inner = _inner_cast(contract, x_format, inputs.weight is not None)
    weight, bias = (None, None) if inner else _parameters(norm, fold, inputs)
    weight_format = None if inputs.weight is None else format_of(inputs.weight_dtype or inputs.dtype)
    return RowErrors(
        rows,
        certified,
        std,
        compute,
        weight=weight,
        bias=bias,
        offset=norm.weight_offset,
        given=norm.has_running and not inputs.training,
        out_is_compute=contract.output_format(x_format, weight_format) == compute,
        through_float32=compute.p == 53 and contract.output_format(x_format, weight_format).p < 24,
    )
