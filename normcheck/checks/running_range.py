"""Running statistics of unusual batches: many or few channels, values and samples, and statistics of any size."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from normcheck.checks.base import Context, SkipCaseError, guarded, register
from normcheck.checks.batches import batch, judged, needs_training
from normcheck.formats import Array
from normcheck.implementations import call
from normcheck.results import Result

# batch, channels, space
_SHAPES: dict[str, tuple[tuple[int, int, tuple[int, ...]], ...]] = {
    "quick": (
        *((1, 5, (6, 4)), (1, 131, (9,)), (300, 2, ()), (3, 40, (5, 7)), (33, 2, (3, 2)), (13, 2, (16, 11)), (2503, 2, ())),
        (2, 3, (1300,)),
    ),
    "standard": ((1, 3, (70, 1)), (2, 1030, (3,)), (5, 257, (2, 2)), (1, 2, (66, 64)), (70, 2, (9, 9)), (8200, 2, (2,))),
}
_SIZES = ("usual", "large variance", "small variance", "large mean")


@dataclass(frozen=True)
class _Size:
    """Deviation of x, and its mean in units of it."""

    deviation: float
    mean: float


@register("running-range", applies=needs_training, requires=("output-form", "running-update"))
def running_range(context: Context) -> Iterator[Result]:
    """Running statistics are right for any number of channels, samples and values, and of any size.

    Statement
    ---------
    The update of ``running-update`` holds for one sample and for hundreds, for one channel and for more than a thousand, for a
    few values per channel and for thousands; and for variances of 1e9, of 1e-12 and means of 1e5, as far as the formats of x and
    of the buffers hold them.

    Why it matters
    --------------
    Statistics are stored by one thread for each channel, summed in blocks of values, and clipped by code that means well. The
    first layer behind an image in 0..255, or behind an embedding of size 1e-4, is where none of it was tried.

    Holds for
    ---------
    BatchNorm and tracked InstanceNorm whose new statistics are returned or written.

    Tolerance
    ---------
    As in ``running-update``.

    Known exceptions
    ----------------
    None known. Skipped where an ordinary update is wrong already.

    References
    ----------
    Kinds K09 and K10 of the catalogue of faults; apple/coreai-torch 54, tensorflow/tensorflow 55545.
    """
    for number, shape in enumerate(_shapes(context)):
        for kind in _SIZES if number < 2 or context.profile != "quick" else _SIZES[:1]:
            yield from guarded(context, "running-range", _updated, shape, kind, regime=kind, shape=shape)


def _shapes(context: Context) -> Iterator[tuple[int, ...]]:
    implementation, groups = context.implementation, ("quick",) if context.profile == "quick" else ("quick", "standard")
    for batch_, channels, space in itertools.chain.from_iterable(_SHAPES[name] for name in groups):
        last = implementation.channel_axis == -1
        for extra in ((), (1,), (1, 1)):
            shape = (batch_, *space, *extra, channels) if last else (batch_, channels, *space, *extra)
            if implementation.refuses(shape) is None and context.norm.fold(shape, implementation.channel_axis).width > 1:
                yield shape
                break


def _size(context: Context, kind: str) -> _Size:
    """A size that x and the buffers can hold; raises SkipCaseError where there is none."""
    x, kept = context.x_format, context.parameter_format
    if kind == "large variance":
        return _Size(min(4e4, x.max / 128, float(np.sqrt(kept.max)) / 64), 3.0)
    if kind == "small variance":
        # a variance below the normal range of the buffer is rounded to what the bound no longer sees
        return _Size(max(1e-6, 64 * x.min_normal, 16 * float(np.sqrt(kept.min_normal))), 3.0)
    if kind == "large mean":
        mean = min(1e5, x.max / 64, kept.max / 64)
        return _Size(mean / 64, 64.0)
    return _Size(1.0, 3.0)


def _updated(context: Context, shape: tuple[int, ...], kind: str) -> Result:
    size = _size(context, kind)
    given = batch(context, shape, size=size.deviation, mean=size.mean)
    if not np.isfinite(cast(Array, given.inputs.running_var)).all():
        raise SkipCaseError("the buffer holds no such variance")
    output = call(context.implementation, given.inputs)
    found = (output.running_mean, output.running_var)
    result = judged(context, "running-range", given, found, getattr(context.norm, "momentum", None))
    return replace(result, regime=kind)
