"""Stateful modules by the class that makes them: ``module:Class`` with arguments of its constructor."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from normcheck.implementations.base import Built, setting
from normcheck.implementations.targets import Named, TargetError, describe, load, staying
from normcheck.norms import Norm

ELEMENTS = ("normalized_shape", "hidden_size", "dim", "dims", "hidden", "d_model", "size")
CHANNELS = ("num_features", "num_channels", "channels", "dims")
"""Names of constructor arguments that are filled with the sizes of x: of the elements of a row, and of the channels."""
_ALIASES = {"epsilon": "eps"}


@dataclass(frozen=True)
class Constructed(Built):
    """The factory of a stateful module by its class.

    Attributes
    ----------
    target : ``module:Class`` or ``file.py:Class``
    settings : arguments that are filled with the norm's settings and the sizes of x, by name
    init : arguments that are the same in every call
    channel_axis : of x
    """

    init: tuple[tuple[str, Any], ...] = ()
    channel_axis: int = 1

    def keywords(self, norm: Norm, shape: tuple[int, ...]) -> dict[str, Any]:
        """What the module is made with."""
        return {**dict(self.init), **{name: self._filled(norm, name, shape) for name in self.settings}}

    def _filled(self, norm: Norm, name: str, shape: tuple[int, ...]) -> Any:
        if name in CHANNELS:
            return shape[self.channel_axis]
        if name != "normalized_shape" and name in ELEMENTS:
            return math.prod(getattr(norm, "normalized_shape", None) or shape[-1:])
        return setting(norm, _ALIASES.get(name, name), shape, self.channel_axis)


def constructed(
    target: str, norm: Norm, init: Mapping[str, Any], channel_axis: int = 1, widths: tuple[int, ...] = ()
) -> tuple[Constructed, tuple[int, ...]]:
    """The factory of a class, and the row widths that it takes; none of them stands for any.

    Its constructor is given ``init``, the norm's eps, momentum and num_groups where it takes them, and the sizes of x where it
    has an argument of `ELEMENTS` or `CHANNELS` that ``init`` does not fill. Where it has none, its weight tells the width.

    Raises
    ------
    TargetError : for an argument that the constructor has not, or one that is missing; if it raises; if the width is fixed and
        cannot be told
    """
    parameters = _parameters(target)
    _refuse_unknown(target, init, parameters)
    sizes = [name for name in (CHANNELS if norm.per_channel else ELEMENTS) if name in parameters and name not in init][:1]
    settings = ("eps", "epsilon", "momentum", "num_groups", "fraction")
    taken = [name for name in settings if name in parameters and name not in init and hasattr(norm, _ALIASES.get(name, name))]
    made = Constructed(target, (*sizes, *taken), tuple(init.items()), channel_axis)
    lacking = [name for name, one in parameters.items() if _needed(one) and name not in init and name not in made.settings]
    if lacking:
        raise TargetError(f"{target} needs {', '.join(lacking)}, but should be told them, such as by --init {lacking[0]}=64")
    return made, widths if sizes or widths else _fixed(made, norm)


def _parameters(target: str) -> dict[str, inspect.Parameter]:
    """The arguments of the constructor by name."""
    try:
        found = inspect.signature(load(target)).parameters
    except (ValueError, TypeError) as error:
        raise TargetError(f"the constructor of {target} cannot be read: {describe(error)}") from None
    return dict(found)


def _refuse_unknown(target: str, init: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> None:
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return
    for name in init:
        if name not in parameters:
            raise TargetError(f"--init {name}=..., but {target} takes {', '.join(parameters) or 'no argument'}")


def _needed(parameter: inspect.Parameter) -> bool:
    several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return parameter.default is inspect.Parameter.empty and parameter.kind not in several


def _fixed(made: Constructed, norm: Norm) -> tuple[int, ...]:
    """The one width that a module takes, by its weight."""
    if norm.per_channel:
        raise TargetError(
            f"the channels of {made.target} are fixed, but its constructor should take {' or '.join(CHANNELS)}, without --init"
        )
    try:
        with staying():
            module = Named(made.target)(**made.keywords(norm, (1, 1)))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a constructor of the user's may raise anything, SystemExit included
        raise TargetError(f"{made.target} cannot be made: {describe(error)}") from None
    weight = getattr(module, "weight", None)
    if weight is None:
        raise TargetError(f"the width of {made.target} is fixed, but cannot be told without a weight: give it by --width")
    return (math.prod(weight.shape),)
