"""The norms: what is meant, as frozen dataclasses, and how each folds its input to rows.

Every norm is fold -> standardize rows -> unfold -> affine. A row holds the D elements that are normalized together; everything
else in the package is written once on rows of shape (R, D).
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np
import numpy.typing as npt

EpsPlacement = Literal["inside", "outside", "max", "max_inside", "none"]
Reduce = Literal["mean", "sum"]
Rounding = Literal["ceil", "floor"]
PLACEMENTS: tuple[EpsPlacement, ...] = get_args(EpsPlacement)
ROUNDINGS: tuple[Rounding, ...] = get_args(Rounding)


@dataclass(frozen=True)
class Standardization:
    """What happens to one row: n = c/S with c = x - mean (or x), s2 = reduce of the squares of c, S from s2 and eps.

    S is sqrt(s2+eps) for eps placed ``inside``, sqrt(s2)+eps ``outside``, max(sqrt(s2), eps) for ``max``,
    sqrt(max(s2, eps)) for ``max_inside``, sqrt(s2) for ``none``.
    """

    center: bool
    reduce: Reduce
    fraction: float
    eps: float
    placement: EpsPlacement
    ddof: int
    rounding: Rounding = "ceil"

    def count(self, width: int) -> int:
        """How many leading elements of a row enter the statistic, at least one."""
        if self.fraction == 1.0:
            return width
        share = self.fraction * width
        return max(1, int(share) if self.rounding == "floor" else math.ceil(round(share, 9)))

    def divisor(self, width: int) -> int:
        """What the sum of squares is divided by: the count less ddof for ``mean``, 1 for ``sum``."""
        return self.count(width) - self.ddof if self.reduce == "mean" else 1


@dataclass(frozen=True)
class Fold:
    """How an array of one shape becomes rows (R, D) and back, and how per-channel parameters lie along the rows.

    Attributes
    ----------
    shape : the array's shape
    order : the axes in the order that brings the row axes first and the element axes last
    rows, width : R and D
    period : row r uses parameter row r % period
    repeat : how often each element of a parameter row is repeated along the width; 0 where it is broadcast
    """

    shape: tuple[int, ...]
    order: tuple[int, ...]
    rows: int
    width: int
    period: int = 1
    repeat: int = 1

    def fold(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Array of ``shape`` -> rows (R, D)."""
        return np.transpose(x, self.order).reshape(self.rows, self.width)

    def unfold(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Rows (R, D) -> array of ``shape``."""
        moved = rows.reshape([self.shape[axis] for axis in self.order])
        return np.transpose(moved, np.argsort(self.order))

    def affine(self, parameter: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A weight or bias -> (period, D) or (period, 1): row r of the input meets row r % period."""
        per_row = parameter.reshape(self.period, -1)
        return per_row if self.repeat in (0, 1) else np.repeat(per_row, self.repeat, axis=1)

    def statistics(self, given: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Running statistics, one per channel -> (R,), one per row."""
        return np.resize(given.reshape(-1), self.rows)


class Norm:
    """Base of all norms: the settings they share and how they fold. Each norm is one frozen dataclass below.

    Attributes
    ----------
    eps : the constant that keeps the denominator from zero, on the scale of the variance (``inside``, ``max_inside``) or of the
        standard deviation (``outside``, ``max``)
    eps_placement : where eps stands, see `Standardization`
    ddof : 0 for the biased variance (divisor D), 1 for Bessel's correction (divisor D - 1)
    weight_offset : added to the weight before it multiplies; 1 for Gemma's 1 + w
    center : whether the mean is subtracted
    reduce : ``mean`` or ``sum`` of squares
    fraction, rounding : the share of leading elements that enter the statistic, and how their number is rounded
    has_bias : whether the norm takes a bias
    has_running : whether it can use given statistics (evaluation mode) instead of its own
    per_channel : whether its parameters belong to channels; else to elements
    """

    center: ClassVar[bool] = True
    reduce: ClassVar[Reduce] = "mean"
    has_bias: ClassVar[bool] = True
    has_running: ClassVar[bool] = False
    per_channel: ClassVar[bool] = False

    eps: float
    eps_placement: EpsPlacement
    ddof: int = 0
    weight_offset: float = 0.0
    fraction: float = 1.0
    rounding: Rounding = "ceil"

    def __post_init__(self) -> None:
        """Refuse settings that no norm has."""
        _check_eps(self.eps)
        _check_number("weight_offset", self.weight_offset, "a finite number", lambda value: True)
        if self.eps_placement not in PLACEMENTS:
            raise ValueError(f"eps_placement={self.eps_placement!r}, but should be one of {', '.join(PLACEMENTS)}")
        if isinstance(self.ddof, bool) or self.ddof not in (0, 1):
            raise ValueError(f"ddof={self.ddof!r}, but should be 0 or 1")

    @property
    def name(self) -> str:
        """The norm's class name."""
        return type(self).__name__

    def __str__(self) -> str:
        """The norm with eps and whatever else is not as usual, such as ``LayerNorm(eps=1e-05, ddof=1)``."""
        usual = {f.name: f.default for f in fields(cast(Any, self))}
        shown = (name for name in usual if name == "eps" or getattr(self, name) != usual[name])
        return f"{self.name}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    @property
    def standardization(self) -> Standardization:
        """What the norm does to one row."""
        return Standardization(self.center, self.reduce, self.fraction, self.eps, self.eps_placement, self.ddof, self.rounding)

    def fold(self, shape: Sequence[int], channel_axis: int = 1) -> Fold:
        """How an array of this shape becomes rows.

        Parameters
        ----------
        shape : of the input
        channel_axis : where the channels of a BatchNorm, InstanceNorm or GroupNorm are: 1 for channels-first, -1 for
            channels-last; other norms ignore it

        Raises
        ------
        ValueError : for a shape that the norm cannot take, naming it and what was expected
        """
        dims = tuple(int(n) for n in shape)
        fold = self._fold(dims, channel_axis)
        if self.ddof >= max(fold.width, 1):
            raise ValueError(f"ddof={self.ddof} with rows of {fold.width} elements, but ddof should be less than the row width")
        return fold

    def check_parameter(self, name: str, parameter: npt.NDArray[Any], fold: Fold) -> None:
        """Raise ValueError if a weight or bias does not have as many elements as the fold asks for."""
        expected = self.parameter_size(fold)
        if parameter.size != expected:
            raise ValueError(f"{name} has {parameter.size} elements (shape {parameter.shape}), but should have {expected}")

    def parameter_size(self, fold: Fold) -> int:
        """How many elements the weight has for this fold."""
        return fold.period * (fold.width // fold.repeat if fold.repeat else 1)

    def shape_of(self, rows: int, width: int, rank: int | None = None, channel_axis: int = 1) -> tuple[int, ...]:
        """An input shape that folds to this many rows of this width, with the given rank where the norm leaves it open.

        Raises
        ------
        ValueError : if there is none
        """
        raise NotImplementedError

    def _fold(self, shape: tuple[int, ...], channel_axis: int) -> Fold:
        raise NotImplementedError


class _ElementNorm(Norm):
    """Norms over trailing dimensions, with one weight per element."""

    normalized_shape: int | Sequence[int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        dims = self._dims()
        if dims is not None and (not dims or min(dims) < 1):
            raise ValueError(f"normalized_shape={self.normalized_shape!r}, but should be None or positive sizes")
        if dims is not None:
            object.__setattr__(self, "normalized_shape", dims)

    def _dims(self) -> tuple[int, ...] | None:
        given = self.normalized_shape
        if given is None:
            return None
        try:
            return (operator.index(given),) if not isinstance(given, Sequence) else tuple(operator.index(n) for n in given)
        except TypeError:
            raise ValueError(f"normalized_shape={given!r}, but should be None, a positive size or several") from None

    def _fold(self, shape: tuple[int, ...], channel_axis: int) -> Fold:
        if not shape:
            raise ValueError(f"shape={shape}, but {self.name} needs at least one dimension")
        dims = self._dims() or shape[-1:]
        if shape[len(shape) - len(dims) :] != dims or len(dims) > len(shape):
            raise ValueError(f"shape={shape}, but should end in normalized_shape={dims}")
        return Fold(shape, tuple(range(len(shape))), math.prod(shape[: -len(dims)]), math.prod(dims))

    def shape_of(self, rows: int, width: int, rank: int | None = None, channel_axis: int = 1) -> tuple[int, ...]:
        """An input shape: (rows, *normalized_shape), the rows split over more dimensions for a larger rank."""
        dims = self._dims() or (width,)
        if math.prod(dims) != width:
            raise ValueError(f"width={width}, but normalized_shape={dims} has {math.prod(dims)} elements")
        lead = 1 if rank is None else rank - len(dims)
        if lead < 0 or (lead == 0 and rows != 1):
            raise ValueError(f"rank={rank}, but {rows} rows over normalized_shape={dims} need a larger one")
        return (*_split(rows, lead), *dims)


class _ChannelNorm(Norm):
    """Norms with one weight per channel."""

    per_channel = True

    def _channels(self, shape: tuple[int, ...], channel_axis: int, least_rank: int) -> int:
        """Position of the channel axis, counted from the front."""
        if len(shape) < least_rank:
            raise ValueError(f"shape={shape}, but {self.name} needs at least {least_rank} dimensions")
        if not -len(shape) <= channel_axis < len(shape) or channel_axis % len(shape) == 0:
            raise ValueError(f"channel_axis={channel_axis}, but should name an axis of shape={shape} other than the first")
        return channel_axis % len(shape)

    def _place(self, batch: int, channels: int, spatial: tuple[int, ...], channel_axis: int) -> tuple[int, ...]:
        if channel_axis == 1:
            return (batch, channels, *spatial)
        if channel_axis == -1:
            return (batch, *spatial, channels)
        raise ValueError(f"channel_axis={channel_axis}, but should be 1 (channels-first) or -1 (channels-last)")


@dataclass(frozen=True)
class LayerNorm(_ElementNorm):
    """w * (x - mean) / sqrt(var + eps) + b over the last dimensions (Ba, Kiros and Hinton 2016).

    ``LayerNorm(eps_placement="outside", ddof=1)`` is the Annotated Transformer's code.
    """

    normalized_shape: int | Sequence[int] | None = None
    eps: float = 1e-5
    eps_placement: EpsPlacement = "inside"
    ddof: int = 0
    weight_offset: float = 0.0


@dataclass(frozen=True)
class RMSNorm(_ElementNorm):
    """w * x / sqrt(mean(x**2) + eps) over the last dimensions (Zhang and Sennrich 2019)."""

    center = False
    has_bias = False

    eps: float = 1e-6
    eps_placement: EpsPlacement = "inside"
    weight_offset: float = 0.0
    normalized_shape: int | Sequence[int] | None = None


@dataclass(frozen=True)
class PartialRMSNorm(_ElementNorm):
    """RMSNorm with the mean square of the first ceil(fraction * D) elements (Zhang and Sennrich 2019, section 4).

    The paper takes ceil(fraction * D) of them, where the fraction is meant as it is written: 0.07 of 100 are 7.
    ``rounding="floor"`` is the int(fraction * D) of its authors' code, in float64, but at least 1.
    """

    center = False
    has_bias = False

    fraction: float = 0.0625
    eps: float = 1e-6
    eps_placement: EpsPlacement = "inside"
    weight_offset: float = 0.0
    normalized_shape: int | Sequence[int] | None = None
    rounding: Rounding = "ceil"

    def __post_init__(self) -> None:
        """Refuse a fraction outside (0, 1], and another rounding."""
        super().__post_init__()
        if self.rounding not in ROUNDINGS:
            raise ValueError(f"rounding={self.rounding!r}, but should be one of {', '.join(ROUNDINGS)}")
        _check_number("fraction", self.fraction, "a number in (0, 1]", lambda value: 0 < value <= 1)


@dataclass(frozen=True)
class L2Norm(_ElementNorm):
    """w * x / max(||x||, eps) over the last dimensions, as in query-key normalization (Henry et al. 2020)."""

    center = False
    reduce = "sum"
    has_bias = False

    eps: float = 1e-12
    eps_placement: EpsPlacement = "max"
    weight_offset: float = 0.0
    normalized_shape: int | Sequence[int] | None = None


@dataclass(frozen=True)
class ScaleNorm(_ElementNorm):
    """g * x / max(||x||, eps) with a single learned scalar g as the weight (Nguyen and Salazar 2019)."""

    center = False
    reduce = "sum"
    has_bias = False

    eps: float = 1e-5
    eps_placement: EpsPlacement = "max"
    weight_offset: float = 0.0
    normalized_shape: int | Sequence[int] | None = None

    def _fold(self, shape: tuple[int, ...], channel_axis: int) -> Fold:
        return replace(super()._fold(shape, channel_axis), repeat=0)


@dataclass(frozen=True)
class BatchNorm(_ChannelNorm):
    """w * (x - mean) / sqrt(var + eps) + b per channel over batch and space (Ioffe and Szegedy 2015).

    With ``training=False`` the running statistics take the place of the batch's, as in a frozen BatchNorm.
    ``momentum`` follows the contract's momentum convention; None means the cumulative average.
    """

    has_running = True

    eps: float = 1e-5
    momentum: float | None = 0.1
    eps_placement: EpsPlacement = "inside"
    ddof: int = 0
    weight_offset: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a momentum outside [0, 1]."""
        super().__post_init__()
        _check_momentum(self.momentum)

    def _fold(self, shape: tuple[int, ...], channel_axis: int) -> Fold:
        axis = self._channels(shape, channel_axis, 2)
        order = (axis, *(i for i in range(len(shape)) if i != axis))
        rows = shape[axis]
        return Fold(shape, order, rows, math.prod(shape) // rows if rows else 0, period=rows, repeat=0)

    def shape_of(self, rows: int, width: int, rank: int | None = None, channel_axis: int = 1) -> tuple[int, ...]:
        """An input shape: the width split over batch and space, the rows as channels."""
        batch, *spatial = _split(width, max((rank or 2) - 1, 1))
        return self._place(batch, rows, tuple(spatial), channel_axis)


@dataclass(frozen=True)
class InstanceNorm(_ChannelNorm):
    """w * (x - mean) / sqrt(var + eps) + b per sample and channel over space (Ulyanov, Vedaldi and Lempitsky 2016).

    With ``track_running_stats=True`` and ``training=False`` the running statistics take the place of the sample's.
    """

    eps: float = 1e-5
    momentum: float | None = 0.1
    eps_placement: EpsPlacement = "inside"
    ddof: int = 0
    weight_offset: float = 0.0
    track_running_stats: bool = False

    @property
    def has_running(self) -> bool:  # type: ignore[override]
        """Whether running statistics are kept."""
        return self.track_running_stats

    def __post_init__(self) -> None:
        """Refuse a momentum outside [0, 1]."""
        super().__post_init__()
        _check_momentum(self.momentum)

    def _fold(self, shape: tuple[int, ...], channel_axis: int) -> Fold:
        axis = self._channels(shape, channel_axis, 3)
        order = (0, axis, *(i for i in range(1, len(shape)) if i != axis))
        spatial = math.prod(n for i, n in enumerate(shape) if i not in (0, axis))
        return Fold(shape, order, shape[0] * shape[axis], spatial, period=max(shape[axis], 1), repeat=0)

    def shape_of(self, rows: int, width: int, rank: int | None = None, channel_axis: int = 1) -> tuple[int, ...]:
        """An input shape: the rows split over batch and channels, the width over space."""
        batch, channels = _split(rows, 2)
        return self._place(batch, channels, _split(width, max((rank or 3) - 2, 1)), channel_axis)


@dataclass(frozen=True)
class GroupNorm(_ChannelNorm):
    """w * (x - mean) / sqrt(var + eps) + b per sample and group of channels (Wu and He 2018)."""

    num_groups: int
    eps: float = 1e-5
    eps_placement: EpsPlacement = "inside"
    ddof: int = 0
    weight_offset: float = 0.0

    def __post_init__(self) -> None:
        """Refuse fewer than one group."""
        super().__post_init__()
        if isinstance(self.num_groups, bool) or not isinstance(self.num_groups, int) or self.num_groups < 1:
            raise ValueError(f"num_groups={self.num_groups!r}, but should be a whole number >= 1")

    def _fold(self, shape: tuple[int, ...], channel_axis: int) -> Fold:
        axis = self._channels(shape, channel_axis, 2)
        channels, groups = shape[axis], self.num_groups
        if channels % groups:
            raise ValueError(f"num_groups={groups}, but should divide the {channels} channels of shape={shape}")
        order = (0, axis, *(i for i in range(1, len(shape)) if i != axis))
        spatial = math.prod(n for i, n in enumerate(shape) if i not in (0, axis))
        return Fold(shape, order, shape[0] * groups, channels // groups * spatial, period=groups, repeat=spatial)

    def shape_of(self, rows: int, width: int, rank: int | None = None, channel_axis: int = 1) -> tuple[int, ...]:
        """An input shape: the rows split over batch and groups, the width over a group's channels and space."""
        if rows % self.num_groups:
            raise ValueError(f"rows={rows}, but should be a multiple of num_groups={self.num_groups}")
        per_group, *spatial = _split(width, max((rank or 3) - 1, 1))
        return self._place(rows // self.num_groups, self.num_groups * per_group, tuple(spatial), channel_axis)


NORMS: dict[str, type[Norm]] = {
    cls.__name__: cls for cls in (LayerNorm, RMSNorm, BatchNorm, InstanceNorm, GroupNorm, L2Norm, ScaleNorm, PartialRMSNorm)
}


def _check_number(name: str, value: Any, expected: str, holds: Callable[[Any], bool]) -> None:
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (number and math.isfinite(value) and holds(value)):
        raise ValueError(f"{name}={value!r}, but should be {expected}")


def _check_eps(eps: Any) -> None:
    if isinstance(eps, numbers.Integral) and int(eps) > 1:
        # RMSNorm(768) is meant as a width
        raise ValueError(f"eps={eps!r}, but should be a float such as 1e-5; sizes are named, such as normalized_shape={eps!r}")
    _check_number("eps", eps, "a finite number >= 0", lambda value: value >= 0)


def _check_momentum(momentum: float | None) -> None:
    if momentum is not None:
        _check_number("momentum", momentum, "None or a number in [0, 1]", lambda value: 0 <= value <= 1)


def _split(total: int, parts: int) -> tuple[int, ...]:
    """total as a product of this many factors: the first as near to the even share as divisors allow, and so on."""
    factors = []
    for left in range(parts, 1, -1):
        share = max(1, round(total ** (1 / left)))
        factor = next(n for n in range(share, 0, -1) if total % n == 0)
        factors.append(factor)
        total //= factor
    return (*factors, total) if parts else ()
