"""Shapes: arrangements of rows in axes, row widths that models have, and blocks of many wide rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from normcheck.checks.base import Context, SkipCaseError

HIDDEN = (
    *(96, 100, 101, 128, 192, 256, 384, 512, 640, 768, 896, 960, 1152, 1280, 1536, 1600, 1792, 2048, 2304, 2560, 2880, 3072),
    *(3584, 4096, 4544, 4608, 5120, 5376, 6144, 6656, 7168, 7680, 8192, 9216, 10240, 12288, 14336, 16384),
)
"""Row widths that language and vision models have, with others beside them."""

Channels = tuple[int, int, tuple[int, ...]]
# axes of 1 and of more than 16, 64, 100, 256 and 1024 at every place, and both orders of a pair of sizes
_LEADS: dict[str, tuple[tuple[int, ...], ...]] = {
    "quick": (
        *((), (12,), (3, 4), (1, 12), (12, 1), (2, 19), (19, 2), (71, 2), (2, 131), (131, 2), (2, 3, 2), (1, 2, 6)),
        *((73, 1, 2), (2, 103, 1), (1, 2, 103), (2, 1, 2, 3)),
    ),
    "standard": (
        *((1, 1), (2, 300), (300, 2), (1, 1030), (1030, 1), (35, 36), (3, 5, 260), (3, 260, 5), (260, 3, 5), (1, 1, 1030)),
        *((1, 1, 1), (5, 1, 1), (2, 2, 2, 130), (130, 2, 2, 2), (1, 70, 2, 1)),
    ),
}
_SPACES: dict[str, tuple[Channels, ...]] = {
    "quick": (
        *((5, 3, ()), (75, 2, ()), (9, 40, ()), (2, 3, (7,)), (1, 3, (7,)), (71, 2, (5,)), (2, 40, (3,)), (2, 3, (131,))),
        *((2, 3, (5, 3)), (2, 3, (3, 5)), (1, 3, (5, 5)), (1, 2, (131, 2)), (1, 2, (2, 131)), (73, 2, (3, 2)), (2, 131, (2, 2))),
        *((2, 3, (1, 9)), (2, 3, (9, 1)), (2, 3, (8, 8)), (2, 3, (2, 3, 4)), (1, 2, (5, 3, 2))),
    ),
    "standard": (
        *((300, 3, (2, 2)), (2, 300, (2, 2)), (1, 3, (260, 3)), (1, 3, (3, 260)), (1, 1, (1030, 1)), (1, 1, (1, 1030))),
        *((131, 131, (2, 1)), (1, 2, (32, 32)), (1, 2, (33, 65)), (1030, 2, (2,)), (2, 1030, (2,)), (1030, 2, ()), (2, 1030, ())),
        *((2, 2, (9, 1, 1)), (2, 2, (1, 1, 9)), (1, 130, (1, 2, 3)), (35, 36, (5, 7))),
    ),
}


def arrangements(context: Context) -> Iterator[tuple[int, ...]]:
    """Shapes of every rank that the norm and the implementation take, with short and long axes at every place."""
    width = 24 if context.can_take(24) else context.widths[-1]
    dims = getattr(context.norm, "normalized_shape", None) or (width,)
    groups, axis = getattr(context.norm, "num_groups", 1), context.implementation.channel_axis
    for profile in ("quick",) if context.profile == "quick" else ("quick", "standard"):
        if context.norm.per_channel:
            for batch, channels, space in _SPACES[profile]:
                count = channels * groups
                yield from _taken(context, (batch, *space, count) if axis == -1 else (batch, count, *space))
        else:
            for lead in _LEADS[profile]:
                yield from _taken(context, (*lead, *dims))


def _taken(context: Context, shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if context.implementation.refuses(shape) is None:
        width = context.norm.fold(shape, context.implementation.channel_axis).width
        if width > max(context.norm.ddof, 1) or not context.own_statistics or not context.norm.per_channel:
            yield shape


def shapes(context: Context, sizes: Iterable[tuple[int, int]]) -> Iterator[tuple[int, ...]]:
    """A shape for each pair of a number of rows and a width that can be taken."""
    for rows, width in sizes:
        if context.can_take(width):
            try:
                yield context.shape(rows, width)
            except SkipCaseError:
                continue


BLOCKS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "quick": ((600, 80), (2100, 64)),
    "standard": ((301, 129), (600, 80), (1030, 768), (2100, 64), (4099, 100), (11003, 96)),
    "deep": ((301, 129), (600, 80), (1030, 768), (2100, 64), (4099, 100), (11003, 96), (16411, 65), (70001, 64)),
}
"""Numbers of rows, and widths, that are both large; one block of each profile but ``quick`` has more than 2**20 elements."""
