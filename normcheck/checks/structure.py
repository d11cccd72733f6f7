"""Structure: which elements belong together, which do not, and what weight and bias do to them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from normcheck.checks.base import Context, SkipCaseError, guarded, register
from normcheck.checks.cases import Case, make_case
from normcheck.checks.comparing import case_from, equal, held, mixed, near, need_sound_base
from normcheck.checks.witness import pass_class
from normcheck.formats import Array
from normcheck.implementations import CallError, Implementation
from normcheck.norms import GroupNorm, InstanceNorm, LayerNorm, Norm
from normcheck.results import Outcome, Result

_PARAMETERS = ("weight", "bias", "running_mean", "running_var")
Order = npt.NDArray[np.intp]
_GROUPS = 40


def _shape(context: Context, width: int = 48) -> tuple[int, ...]:
    """A shape with several channels, groups and samples, and in every group more than one channel."""
    width = width if context.can_take(width) else context.widths[-1]
    try:
        return context.shape(12, width, 4 if context.norm.per_channel else None)
    except SkipCaseError:
        return context.shape(12, width)


@register("permutation")
def permutation(context: Context) -> Iterator[Result]:
    """Reordering samples, channels, positions or elements reorders the output, and does nothing else.

    Statement
    ---------
    For every axis of x, y(Px) = P y(x), with weight, bias and given statistics reordered along. Channels of a GroupNorm are
    reordered within their groups, and the groups as a whole.

    Why it matters
    --------------
    A reshape without a transpose, groups that interleave, weights that belong to the wrong element: on symmetric inputs and with
    unit weights nothing is seen.

    Holds for
    ---------
    Every norm and every axis; the elements of a PartialRMSNorm within its counted part and within the rest.

    Tolerance
    ---------
    |y_hat(Px) - P y_hat(x)| <= E(Px) + E(x) + half an ulp of each: the exact difference is zero. Sums in another order may differ
    within E.

    Known exceptions
    ----------------
    No exception is known.

    References
    ----------
    tensorflow/addons 751, tensorflow/tensorflow 39942, onnx/onnx 5466 (kind K19 of the catalogue of faults).
    """
    shape = _shape(context)
    for axis in range(len(shape)):
        if shape[axis] > 1:
            yield from guarded(
                context, "permutation", _permuted, shape, axis, regime=_axis_name(context, shape, axis), shape=shape
            )


def _axis_name(context: Context, shape: tuple[int, ...], axis: int) -> str:
    if context.norm.per_channel:
        channels = context.implementation.channel_axis % len(shape)
        return "channels" if axis == channels else "samples" if axis == 0 else "positions"
    return "elements" if axis >= len(shape) - len(_dims(context, shape)) else "rows"


def _dims(context: Context, shape: tuple[int, ...]) -> tuple[int, ...]:
    return cast("tuple[int, ...]", getattr(context.norm, "normalized_shape", None) or shape[-1:])


def _order(context: Context, shape: tuple[int, ...], axis: int) -> Order:
    """An order of the axis that the norm must not mind."""
    name = _axis_name(context, shape, axis)
    if name == "channels" and isinstance(context.norm, GroupNorm):
        groups = np.arange(shape[axis]).reshape(context.norm.num_groups, -1)
        return np.concatenate([group[_mixed_up(context, len(group))] for group in groups[_mixed_up(context, len(groups))]])
    counted = context.norm.standardization.count(shape[axis]) if name == "elements" else shape[axis]
    return np.concatenate([_mixed_up(context, counted), counted + _mixed_up(context, shape[axis] - counted)])


def _mixed_up(context: Context, size: int) -> Order:
    """An order of so many; of a few, one that parts all neighbours and both halves."""
    if size > 12:
        return np.random.default_rng([context.seed, size]).permutation(size)
    return np.concatenate([np.arange(1, size, 2), np.arange(0, size, 2)])


def _permuted(context: Context, shape: tuple[int, ...], axis: int) -> Result:
    name, order = _axis_name(context, shape, axis), _order(context, shape, axis)
    case = case_from(context, mixed(context, shape))
    plain = np.take(case.fold.unfold(context.run(case)), order, axis)
    changes = {key: getattr(case.inputs, key) for key in _PARAMETERS}
    if name in ("channels", "elements"):
        at = 0 if name == "channels" else axis - len(shape) + len(_dims(context, shape))
        alike = {key: value for key, value in changes.items() if value is not None and value.size > 1}
        changes |= {key: np.take(value, order, at) for key, value in alike.items()}
    moved = case_from(context, np.take(case.inputs.x, order, axis), **cast(Any, changes))
    expected = moved.fold.fold(plain)
    output = context.run(moved)
    return near(context, "permutation", moved, output, (moved, expected), f"before {name} were reordered", regime=name)


@register("row-independence")
def row_independence(context: Context) -> Iterator[Result]:
    """A row's result depends on no other row.

    Statement
    ---------
    With all rows replaced by others, sixteen times as large, except every second one, those keep their result bit for bit. Rows
    are tokens, or the channels of a BatchNorm, the channels of a sample, the groups of a sample.

    Why it matters
    --------------
    Stores that spill into the neighbour, offsets that wrap, statistics of the wrong axis and masks that slip all make one sample
    depend on another.

    Holds for
    ---------
    Every norm; with given statistics, too.

    Tolerance
    ---------
    None: the same call on the same shape takes the same path for each row. Differing bits within the bound E of ``accuracy`` are
    a warning, beyond it an error.

    Known exceptions
    ----------------
    No exception is known.

    References
    ----------
    ROCm/aiter 5044, pytorch/pytorch 181555, tensorflow/addons 2143 (kinds K17, K19 and K20 of the catalogue of faults).
    """
    for width in (48, 33):
        if context.can_take(width):
            shape = _shape(context, width)
            for kept in (0, 1):
                yield from guarded(context, "row-independence", _neighbours, shape, kept, shape=shape)


def _neighbours(context: Context, shape: tuple[int, ...], kept: int) -> Result:
    case = case_from(context, mixed(context, shape))
    plain = context.run(case)
    others = context.x_format.round(16 * case.fold.fold(mixed(context, shape, salt=1)))
    kin = np.arange(case.fold.rows)[:, None] % 2 == kept
    given: Any = {key: getattr(case.inputs, key) for key in _PARAMETERS[2:]}
    beside = case_from(context, case.fold.unfold(np.where(kin, case.rows, others)), **given)
    seen = np.where(kin, context.run(beside), plain)
    return equal(context, "row-independence", case, seen, plain, "beside other rows", called=(context.implementation, beside))


def _needs_kin(context: Context) -> str:
    norm = context.norm
    if norm.name not in ("LayerNorm", "GroupNorm", "InstanceNorm") or not context.own_statistics:
        return f"{norm.name} is no special case of another norm here"
    if isinstance(norm, GroupNorm) and norm.num_groups > 1 and "num_groups" not in context.implementation.variable:
        return "num_groups is fixed: name it among the arguments, or give make=, so that it can be varied"
    return ""


@register("equivalent-norms", applies=_needs_kin)
def equivalent_norms(context: Context) -> Iterator[Result]:
    """One group is LayerNorm, one channel a group is InstanceNorm.

    Statement
    ---------
    GroupNorm(1) is the LayerNorm of (channels, space), GroupNorm(C) is InstanceNorm, InstanceNorm is the LayerNorm of space, and
    LayerNorm is GroupNorm(1) with elements for channels; each with weight and bias laid out accordingly. A GroupNorm of 40
    groups normalizes each of them.

    Why it matters
    --------------
    Models are ported by these identities. A group count that is taken for a group size, or groups that ignore their setting, keep
    one end right and break the other. Between them are the 32 groups of diffusion models.

    Holds for
    ---------
    LayerNorm, GroupNorm, InstanceNorm with their own statistics.

    Tolerance
    ---------
    The output is held against the certified value of the other norm, within its bound E of ``accuracy``.

    Known exceptions
    ----------------
    All is skipped where a plain input is wrong already.

    References
    ----------
    Wu and He 2018, section 3; tensorflow/addons 2143, osaurus-ai/vmlx-swift 188 (kind K19 of the catalogue of faults).
    """
    need_sound_base(context)
    for kin in _kin(context):
        implementation = context.implementation.with_norm(kin.own)
        if implementation is not None:
            yield from guarded(context, "equivalent-norms", _as_other, implementation, kin, regime=kin.other.name)
    if context.norm.name == "GroupNorm":
        yield from guarded(context, "equivalent-norms", _finely, regime=f"{_GROUPS} groups")


def _finely(context: Context) -> Result | None:
    """The verdict on more groups than a warp has lanes, each of several channels."""
    norm: Any = replace(cast(Any, context.norm), num_groups=_GROUPS)
    channels = 3 * _GROUPS * cast(Any, context.norm).num_groups
    shape = (2, 5, channels) if context.implementation.channel_axis == -1 else (2, channels, 5)
    implementation = context.implementation.with_norm(norm)
    if implementation is None or implementation.refuses(shape) is not None:
        return None
    case = case_from(context, mixed(context, shape), norm=norm)
    output, called = context.run(case, implementation), (implementation, case)
    return held(context, "equivalent-norms", case, output, called=called, note=f", {norm}", regime=f"{_GROUPS} groups")


@dataclass(frozen=True)
class _Kin:
    """A norm, the other one that it then is, its x's shape from rows, width and channels, and whether it can have the weights."""

    own: Norm
    other: Norm
    shape: Callable[[int, int, int], tuple[int, ...]]
    affine: bool = True


def _kin(context: Context) -> Iterator[_Kin]:
    norm: Any = context.norm
    settings: dict[str, Any] = {key: getattr(norm, key) for key in ("eps", "eps_placement", "ddof", "weight_offset")}
    if norm.name == "GroupNorm":
        channels = _shape(context)[context.implementation.channel_axis]
        yield _Kin(replace(norm, num_groups=1), LayerNorm(**settings), lambda rows, width, channels: (rows, width))
        split = replace(norm, num_groups=channels)
        yield _Kin(split, InstanceNorm(**settings), lambda rows, width, channels: (rows // channels, channels, width))
    elif norm.name == "InstanceNorm":
        yield _Kin(norm, LayerNorm(**settings), lambda rows, width, channels: (rows, width), affine=False)
    else:
        yield _Kin(norm, GroupNorm(1, **settings), lambda rows, width, channels: (rows, width, 1))


def _as_other(context: Context, implementation: Implementation, kin: _Kin) -> Result:
    case = case_from(context, mixed(context, _shape(context)), norm=kin.own, affine=kin.affine)
    output = context.run(case, implementation)
    fold = case.fold
    told = kin.other.fold(kin.shape(fold.rows, fold.width, fold.period))
    size = kin.other.parameter_size(told)

    def retold(parameter: Array | None) -> Array | None:
        if parameter is None or parameter.size == size:
            return parameter
        return np.resize(fold.affine(parameter)[0], size)

    inputs = replace(case.inputs, weight=retold(case.inputs.weight), bias=retold(case.inputs.bias), layout="contiguous")
    judged = make_case(kin.other, case.contract, told, case.rows, inputs)
    note, called = f", {kin.own} as {kin.other}", (implementation, case)
    return held(context, "equivalent-norms", judged, output, called=called, note=note, regime=kin.other.name)


def _needs_weight(context: Context) -> str:
    return "" if context.implementation.takes("weight") else "it takes no weight"


@register("affine", applies=_needs_weight)
def affine(context: Context) -> Iterator[Result]:
    """The weight multiplies, the bias is added, each where it belongs.

    Statement
    ---------
    y(x; w, b) = w*y(x; 1, 0) + b in every element with its own weight and bias. A weight of 0 gives the bias exactly; twice the
    weight gives twice the output exactly where there is no bias; changing one weight and one bias changes no element that has
    others.

    Why it matters
    --------------
    Weights start as ones and biases as zeros. A weight that is applied twice, per group, or at the wrong place is not seen until
    the model is trained.

    Holds for
    ---------
    Every norm with a weight; with ``weight_offset`` the weight means offset + w, and its double is left out.

    Tolerance
    ---------
    For the first: E(w, b) + |w|*E(1, 0) and half an ulp of each output, |w| times that of the second. The others are exact;
    differing bits within E are a warning, beyond it an error.

    Known exceptions
    ----------------
    No exception is known.

    References
    ----------
    onnx/onnx 5466, linkedin/Liger-Kernel 74, Blaizzy/mlx-vlm 2111 (kinds K13 and K19 of the catalogue of faults).
    """
    shape = _shape(context)
    for judge in (_linear, _no_weight, _doubled, _own_element):
        yield from guarded(context, "affine", judge, shape, regime=judge.__name__.strip("_").replace("_", " "), shape=shape)


def _linear(context: Context, shape: tuple[int, ...]) -> Result:
    x = mixed(context, shape)
    plain, case = case_from(context, x, affine=False), case_from(context, x)
    one, output = context.run(plain), context.run(case)
    weight, bias = cast("tuple[Array, Array | None]", case.affine)
    expected = weight * one + (0.0 if bias is None else bias)
    why = "the weight times the output for weight 1, plus bias"
    return near(context, "affine", case, output, (plain, one), why, expected=expected, factor=weight, regime="linear")


def _no_weight(context: Context, shape: tuple[int, ...]) -> Result:
    case = case_from(context, mixed(context, shape))
    assert case.inputs.weight is not None
    weight = np.where(np.arange(case.inputs.weight.size) % 2, case.inputs.weight.ravel(), -context.norm.weight_offset)
    case = _changed(context, case, weight=weight.reshape(case.inputs.weight.shape))
    output, (own, bias) = context.run(case), case.affine
    due = case.out_format.round(np.zeros_like(output) if bias is None else np.broadcast_to(bias, output.shape))
    zero = np.broadcast_to(cast(Array, own) == 0, output.shape)
    seen, expected = np.where(zero, output, 0.0) + 0.0, np.where(zero, due, 0.0) + 0.0
    return equal(context, "affine", case, seen, expected, "its bias, since its weight is 0", regime="no weight")


def _doubled(context: Context, shape: tuple[int, ...]) -> Result | None:
    if context.norm.weight_offset:
        return None
    case = case_from(context, mixed(context, shape))
    assert case.inputs.weight is not None
    bias = None if case.inputs.bias is None else 0 * case.inputs.bias
    case = _changed(context, case, bias=bias)
    once = context.run(case)
    twice = _changed(context, case, bias=bias, weight=2 * cast(Array, case.inputs.weight))
    # subnormal results are rounded to another grid
    exact = np.abs(once) >= case.out_format.min_normal
    seen = np.where(exact, context.run(twice), 2 * once)
    return equal(context, "affine", twice, seen, 2 * once, "twice that for half the weight", regime="doubled")


def _own_element(context: Context, shape: tuple[int, ...]) -> Result:
    case = case_from(context, mixed(context, shape))
    plain, own = context.run(case), cast(Array, case.inputs.weight)
    changes: dict[str, Any] = {"weight": own.copy(), "bias": None if case.inputs.bias is None else case.inputs.bias.copy()}
    at = min(1, own.size - 1)
    for name, value in (("weight", -1.5), ("bias", 3.0)):
        if changes[name] is not None:
            changes[name].flat[at] = value
    moved = _changed(context, case, **changes)
    mark = np.arange(own.size).reshape(own.shape) == at
    touched = np.broadcast_to(np.resize(case.fold.affine(mark), (case.fold.rows, *case.fold.affine(mark).shape[1:])), plain.shape)
    seen = np.where(touched, plain, context.run(moved))
    where: Any = {"regime": "own element", "called": (context.implementation, moved)}
    return equal(context, "affine", case, seen, plain, "before another's weight and bias changed", **where)


def _changed(context: Context, case: Case, **changes: Any) -> Case:
    """The same call with other parameters."""
    kept: dict[str, Any] = {key: getattr(case.inputs, key) for key in _PARAMETERS}
    return case_from(context, case.inputs.x, **(kept | changes))


@register("optional-affine", applies=_needs_weight)
def optional_affine(context: Context) -> Iterator[Result]:
    """No weight is a weight of ones, no bias a bias of zeros.

    Statement
    ---------
    In each of the combinations weight or none, bias or none, the output is that for ones in the place of an absent weight and
    zeros in the place of an absent bias; for narrow rows and for wide ones.

    Why it matters
    --------------
    Kernels with one flag for both drop the weight where only the bias is missing, or read a null pointer.

    Holds for
    ---------
    Norms with a weight, and a bias where the norm has one.

    Tolerance
    ---------
    The bound E of ``accuracy``. Multiplying by 1 and adding 0 are exact, but a fused multiply-add more or less may change bits.

    Known exceptions
    ----------------
    An absence that the implementation refuses by raising is skipped. So is all where a plain input is wrong already.

    References
    ----------
    pytorch/pytorch 69208 and 108048, flagos-ai/FlagGems 323, torch-spyre 1980 (kind K29 of the catalogue of faults).
    """
    need_sound_base(context)
    both = dict.fromkeys((_shape(context), _shape(context, 1028)))
    for shape, absent in itertools.product(both, ({"weight"}, {"bias"}, {"weight", "bias"})):
        if "bias" not in absent or context.implementation.takes("bias"):
            yield from guarded(context, "optional-affine", _without, shape, absent, regime=_named(absent), shape=shape)


def _named(absent: set[str]) -> str:
    return "no " + " and no ".join(sorted(absent, reverse=True))


def _without(context: Context, shape: tuple[int, ...], absent: set[str]) -> Result:
    case = case_from(context, mixed(context, shape))
    less = _changed(context, case, **dict.fromkeys(absent))
    try:
        output = context.run(less)
    except CallError as error:
        return context.result("optional-affine", Outcome.SKIPPED, f"{_named(absent)} is refused: {error}", shape=shape)
    twice = case.contract.cast == "before_weight" and "weight" in absent and less.inputs.bias is not None
    # what rounds before an absent weight of ones rounds again behind the bias
    ones = np.ones_like(cast(Array, case.inputs.weight)) - context.norm.weight_offset
    known = (less, _changed(context, less, weight=ones)) if twice else (less,)
    least = min(known, key=lambda one: one.judge(output, pass_class(context)).worst_ratio)
    return held(context, "optional-affine", least, output, note=f" with {_named(absent)}", regime=_named(absent))
