"""Norm layers of a torch model: which of its modules are norms, what each claims, and how one is called again."""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from normcheck.contract import Contract
from normcheck.implementations.base import Implementation
from normcheck.implementations.formulas import Formula, read
from normcheck.implementations.syntax import BIASES, WEIGHTS, OtherLayerError, UnreadableError
from normcheck.implementations.transformers import PACKAGE, Layer, families
from normcheck.norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, Norm, RMSNorm

_MERGE = Contract(accumulation="merge")
_BATCH = (("num_features", "channels"), ("eps", "eps"))
_SIZES = (("normalized_shape", "sizes"), ("eps", "eps"))
_TWO = ("weight", "bias")
_OF_TORCH: dict[str, Formula] = {
    "LayerNorm": Formula(LayerNorm(), _MERGE, _TWO, "eps", _SIZES),
    "RMSNorm": Formula(RMSNorm(), Contract(), ("weight",), "eps", _SIZES),
    "GroupNorm": Formula(
        GroupNorm(1), _MERGE, _TWO, "eps", (("num_groups", "groups"), ("num_channels", "channels"), ("eps", "eps"))
    ),
    **dict.fromkeys(
        ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"), Formula(BatchNorm(), Contract(), _TWO, "eps", _BATCH)
    ),
    **dict.fromkeys(
        ("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"), Formula(InstanceNorm(), Contract(), _TWO, "eps", _BATCH)
    ),
}
_RANKS = {"1d": (2, 3), "2d": (4,), "3d": (5,)}


@dataclass(frozen=True)
class Found:
    """A norm layer of a model.

    Attributes
    ----------
    name : dotted, as in ``named_modules``
    module : the layer
    formula : what it claims
    """

    name: str
    module: Any
    formula: Formula

    @property
    def kind(self) -> type:
        """Its class."""
        return type(self.module)


def found(model: Any) -> tuple[list[Found], dict[str, str]]:
    """The norm layers of a model, and by name what looks like one and is none of ours, with the reason."""
    layers, others = [], {}
    for name, module in model.named_modules():
        try:
            formula = _formula(module)
            first = formula.channels_first or getattr(module, "data_format", "") == "channels_first"
            layers.append(Found(name or type(module).__name__, module, replace(formula, channels_first=first)))
        except UnreadableError as reason:
            if any("norm" in parent.__name__.lower() for parent in type(module).__mro__) and not _holds(module):
                others[name or type(module).__name__] = f"{type(module).__name__}: {reason}"
    return layers, others


def _holds(module: Any) -> bool:
    """Whether norm layers are inside, which are judged themselves."""
    return any(_readable(child) for child in module.modules() if child is not module)


def _readable(module: Any) -> bool:
    try:
        _formula(module)
    except UnreadableError:
        return False
    return True


def _formula(module: Any) -> Formula:
    """What a module claims. Raises UnreadableError where it is no norm of ours."""
    kind: Any = type(module)
    bases = [parent for parent in kind.__mro__ if parent.__module__.startswith("torch.nn.") and parent.__name__ in _OF_TORCH]
    base = _OF_TORCH[bases[0].__name__] if bases else None
    if base is not None and kind.forward is bases[0].forward:
        return base
    if kind.__module__.startswith("torch."):
        raise UnreadableError("no norm of ours")
    try:
        formula = _read(kind)
    except OtherLayerError:
        raise
    except UnreadableError:
        if base is None or _needed(kind):
            raise
        formula = base
    strange = [name for name in module._parameters if name not in (*WEIGHTS, *BIASES)]
    if strange:
        raise UnreadableError(f"its parameters {', '.join(strange)} are not understood")
    return formula


def _needed(kind: Any) -> list[str]:
    """What its forward pass must be given besides x."""
    given = list(inspect.signature(kind.forward).parameters.values())[2:]
    return [one.name for one in given if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]


@functools.cache
def _read(kind: type) -> Formula:
    """The formula of a class, from its source and that of its parents below torch's."""
    own = [parent for parent in kind.__mro__ if not parent.__module__.startswith(("torch.", "builtins"))]
    try:
        return read(*map(inspect.getsource, own))
    except (OSError, TypeError):
        raise UnreadableError("its source cannot be found") from None


def norm_of(layer: Found, dtype: str, shape: tuple[int, ...]) -> Norm:
    """The norm of a layer with the settings that it has, for an x of this dtype and shape, channels last where it moves them."""
    formula, module = layer.formula, layer.module
    norm = formula.norm
    eps = getattr(module, formula.eps, norm.eps) if formula.eps else norm.eps
    # torch.nn.RMSNorm without eps takes the machine epsilon of the arithmetic
    settings: dict[str, Any] = {"eps": float(eps) if eps is not None else 2.0**-52 if dtype == "float64" else 2.0**-23}
    if isinstance(norm, GroupNorm):
        settings["num_groups"] = int(module.num_groups)
    elif isinstance(norm, BatchNorm | InstanceNorm):
        settings["momentum"] = getattr(module, "momentum", norm.momentum)
    else:
        given = getattr(module, "normalized_shape", shape[-1:])
        settings["normalized_shape"] = (given,) if isinstance(given, int) else tuple(given)
    if isinstance(norm, InstanceNorm):
        settings["track_running_stats"] = bool(module.track_running_stats)
    return replace(cast(Any, norm), **settings)  # type: ignore[no-any-return]


def parameters_of(layer: Found) -> dict[str, Any]:
    """The layer's weight, bias and running statistics as tensors, as far as it has them."""
    module, kept = layer.module, {}
    for name in layer.formula.parameters:
        kept["weight" if name in WEIGHTS else "bias"] = getattr(module, name, None)
    for name in ("running_mean", "running_var"):
        kept[name] = getattr(module, name, None)
    return {name: value for name, value in kept.items() if value is not None}


def training_of(layer: Found, norm: Norm) -> bool | None:
    """Whether the layer normalizes by the batch; None for norms that know nothing else."""
    if not norm.has_running:
        return None
    return not layer.formula.given and (layer.module.training or getattr(layer.module, "running_mean", None) is None)


def implementation_of(layer: Found, norm: Norm, dtype: str, rank: int, **options: Any) -> Implementation:
    """The layer as code under judgement: copies of it, with other parameters and settings."""
    formula = layer.formula
    has = [name for name in formula.parameters if getattr(layer.module, name, None) is not None and not renewable(layer)]
    affine: Literal["weight"] | bool = "weight" if len(has) == 1 and norm.has_bias else bool(has)
    return Implementation(
        module=Copied(_target(layer.kind), _settings(formula, norm), formula.build, 1 if formula.channels_first else None, layer),
        norm=norm,
        contract=formula.contract,
        name=layer.name,
        dtypes=(dtype,),
        affine=affine,
        ranks=_ranks(layer, rank),
        training=training_of(layer, norm),
        mutates=("running_mean", "running_var") if norm.has_running else (),
        validates=False,
        **options,
    )


def renewable(layer: Found) -> str:
    """Why a layer cannot be judged with other parameters than its own, or ``""``."""
    odd = [name for name in layer.formula.parameters if name not in _TWO]
    return f"its parameters are named {', '.join(odd)}" if odd else ""


@dataclass(frozen=True)
class Copied(Layer):
    """A factory that copies a layer; a snippet makes a new one of its class.

    Attributes
    ----------
    layer : which is copied
    """

    layer: Found | None = None

    def __call__(self, norm: Norm, *, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        """A copy with the norm's settings, for an x of this shape."""
        assert self.layer is not None
        module = copy.deepcopy(self.layer.module)
        changed: Mapping[str, Any] = {self.layer.formula.eps: norm.eps, "num_groups": getattr(norm, "num_groups", None)}
        if norm.per_channel:
            changed = {**changed, "num_features": shape[1], "num_channels": shape[1]}
        if norm.has_running:
            _forget(module, shape[1])
        for name, value in changed.items():
            if name and value is not None and hasattr(module, name):
                setattr(module, name, value)
        return self.moved(module)


def _forget(module: Any, channels: int) -> None:
    """Running statistics of so many channels, and no steps counted: the pass through the model has moved and counted its own."""
    for name, start in (("running_mean", 0.0), ("running_var", 1.0)):
        kept = getattr(module, name, None)
        if kept is not None:
            setattr(module, name, kept.new_full((channels,), start))
    counted = getattr(module, "num_batches_tracked", None)
    if counted is not None:
        module.num_batches_tracked = counted * 0


def _settings(formula: Formula, norm: Norm) -> tuple[str, ...]:
    return ("eps",) * bool(formula.eps) + ("num_groups",) * isinstance(norm, GroupNorm)


def _ranks(layer: Found, rank: int) -> tuple[int, ...] | None:
    """The ranks of x that it takes: of torch's own layers by their names, else that of its call; any for rows of elements."""
    if layer.kind.__module__.startswith("torch."):
        return _RANKS.get(layer.kind.__name__[-2:])
    return (rank,)


def _target(kind: type) -> str:
    """By which name a snippet finds the class."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    place = file if file is not None and kind.__module__.startswith("normcheck_target_") else kind.__module__
    return f"{place}:{kind.__qualname__}"


def known_as(layer: Found, norm: Norm) -> str:
    """The name under which the ledger knows this code."""
    kind = layer.kind
    if kind.__module__.startswith(f"{PACKAGE}."):
        return next((f"{PACKAGE}.{names[0]}" for names in _families() if kind.__name__ in names), f"{PACKAGE}.{kind.__name__}")
    if not kind.__module__.startswith("torch."):
        return f"{kind.__module__}.{kind.__qualname__}"
    mode = {None: "", True: "train", False: "eval"}[training_of(layer, norm)]
    if isinstance(norm, InstanceNorm) and mode:
        mode = f"tracked, {mode}" if mode == "train" else mode
    return f"torch.nn.{kind.__name__}" + (f"[{mode}]" if mode else "")


def _families() -> Iterator[tuple[str, ...]]:
    return (tuple(one.name for one in members) for members in families())
