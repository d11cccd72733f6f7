"""Hugging Face transformers: every norm layer in its modeling files, found by reading them, one row for each distinct text.

Nothing of the package is imported before a layer is called: its hundreds of modules take minutes.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normcheck.implementations.base import Built, Implementation, setting
from normcheck.implementations.formulas import Formula, read
from normcheck.implementations.syntax import UnreadableError, canonical
from normcheck.implementations.torch import DEVICES, FLOATS
from normcheck.norms import Norm, RMSNorm

PACKAGE = "transformers"
_CLASS = re.compile(r"^class (\w*norm\w*)\b.*?(?=^\S|\Z)", re.MULTILINE | re.DOTALL | re.IGNORECASE)
_NORM = re.compile("(?<!un)norm(?!al)")
_RANKS = {"FalconH1RMSNormGated": (2, 3), "SqueezeBertLayerNorm": (3,)}
"""Ranks of x that the text does not tell."""
# whose layer gives a row its name, where several are the same
_FIRST = ("llama", "gemma", "t5", "qwen3", "cohere", "convnext", "olmo2", "mamba2", "deepseek_v4", "detr")


@dataclass(frozen=True)
class Layer(Built):
    """The factory of a layer whose constructor has its own names for the norm's settings.

    Attributes
    ----------
    build : as in `Formula`
    axis : where its channels are, if they are not last; x is moved there and y back by hooks
    """

    build: tuple[tuple[str, str], ...] = ()
    axis: int | None = None

    def __call__(self, norm: Norm, *, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        """A new layer for this norm and an x of this shape, with the weights that its model begins with."""
        import torch

        module = super().__call__(norm, shape=shape, dtype=dtype, device=device)
        if isinstance(getattr(module, "weight", None), torch.nn.Parameter):
            # some leave memory as it is until the model around them is initialized
            torch.nn.init.constant_(module.weight, 1.0 - norm.weight_offset)
        return self.moved(module)

    def moved(self, module: Any) -> Any:
        """The layer, given its channels where it wants them."""
        if self.axis is not None:
            module.register_forward_pre_hook(lambda module, given: (given[0].movedim(-1, 1).contiguous(),))
            module.register_forward_hook(lambda module, given, y: y.movedim(1, -1))
        return module

    def keywords(self, norm: Norm, shape: tuple[int, ...]) -> dict[str, Any]:
        """What the layer is made with."""
        width = shape[1] if norm.per_channel else shape[-1]
        return {name: self._value(role, norm, width, shape) for name, role in self.build}

    def _value(self, role: str, norm: Norm, width: int, shape: tuple[int, ...]) -> Any:
        kind, _, rest = role.partition(" ")
        if kind == "config":
            return _Config({name: norm.eps if "eps" in name else width for name in rest.split()})
        plain = {"width": width, "channels": width, "sizes": (width,), "eps": norm.eps}
        if kind in plain:
            return plain[kind]
        return setting(norm, "num_groups", shape) if kind == "groups" else role.strip("'")

    @property
    def lines(self) -> tuple[str, ...]:
        """What a snippet does to the new layer."""
        if self.axis is None:
            return ()
        return (
            "module.register_forward_pre_hook(lambda module, given: (given[0].movedim(-1, 1).contiguous(),))",
            "module.register_forward_hook(lambda module, given, y: y.movedim(1, -1))",
        )


class _Config:
    """An object with these attributes, which shows itself as source text."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __repr__(self) -> str:
        return f"type('Config', (), {self._values!r})"


@dataclass(frozen=True)
class Found:
    """A class in the package's source."""

    module: str
    name: str
    source: str

    @property
    def target(self) -> str:
        """Module and name, as a target."""
        return f"{self.module}:{self.name}"


def builtins() -> Iterator[Implementation]:
    """A row for each distinct text that is a norm; without the package one row, which says what is missing."""
    found = families()
    if not found:
        yield _row("transformers.LlamaRMSNorm", Layer("transformers.models.llama.modeling_llama:LlamaRMSNorm", ()), RMSNorm())
    for members in found:
        formula = _formula(members[0].source)
        if isinstance(formula, Formula):
            yield from _rows(formula, members)


def refused() -> dict[str, str]:
    """The classes that have no row, and why."""
    reasons: dict[str, str] = {}
    for members in families():
        formula = _formula(members[0].source)
        if isinstance(formula, str):
            reasons |= {f"{PACKAGE}.{one.name}": formula for one in members}
    return reasons


@functools.cache
def families() -> tuple[tuple[Found, ...], ...]:
    """The classes of the package whose names speak of a norm, those of equal text together, the best known of them first."""
    groups = defaultdict(list)
    for one in _found():
        groups[_text(one.source.replace(one.name, "Self"))].append(one)
    return tuple(tuple(sorted(members, key=_rank)) for members in groups.values())


@functools.cache
def _text(source: str) -> str:
    return canonical(source)


def _rank(one: Found) -> tuple[int, str]:
    place = one.module.split(".")[-2]
    return (_FIRST.index(place) if place in _FIRST else len(_FIRST), one.name)


def _found() -> Iterator[Found]:
    spec = importlib.util.find_spec(PACKAGE)
    for folder in map(Path, spec.submodule_search_locations or () if spec is not None else ()):
        for path in sorted((folder / "models").rglob("*.py")):
            if not path.name.startswith("modular_"):
                module = ".".join((PACKAGE, *path.relative_to(folder).with_suffix("").parts))
                model = path.parent.name.replace("_", "")
                for match in _CLASS.finditer(path.read_text(encoding="utf-8")):
                    # models may have a norm in their own names
                    if _NORM.search(match[1].lower().replace(model, "")):
                        yield Found(module, match[1], match[0])


@functools.cache
def _formula(source: str) -> Formula | str:
    """The formula, or the reason why there is none."""
    try:
        formula = read(source)
    except UnreadableError as reason:
        return str(reason)
    return formula.unbuildable or formula


def _rows(formula: Formula, members: tuple[Found, ...]) -> Iterator[Implementation]:
    first, *others = members
    name = f"{PACKAGE}.{first.name}"
    more = {"alike": tuple(other.name for other in others)}
    settings = ("eps",) * bool(formula.eps) + ("num_groups",) * ("groups" in dict(formula.build).values())
    axis = 1 if formula.channels_first else None
    ranks = _RANKS.get(first.name, (4,) if axis or formula.given else None)
    yield _row(name, Layer(first.target, settings, formula.build, axis), formula.norm, formula, ranks=ranks, **more)
    if "data_format" in first.source:
        build = (*formula.build, ("data_format", "'channels_first'"))
        yield _row(f"{name}[channels_first]", Layer(first.target, settings, build, 1), formula.norm, formula, ranks=(4,), **more)


def _row(name: str, layer: Layer, norm: Norm, formula: Formula | None = None, **options: Any) -> Implementation:
    if formula is not None:
        affine = len(formula.parameters) == 2 or ("weight" if formula.parameters else False)
        options |= {"contract": formula.contract, "affine": affine if norm.has_bias else bool(formula.parameters)}
        options |= {"dtypes": FLOATS[formula.upcasts :], "weight_dtype": "float32" if formula.wide_parameters else None}
        options |= {"training": False} if formula.given else {}
    return Implementation(norm=norm, name=name, module=layer, devices=DEVICES, requires=PACKAGE, validates=False, **options)
