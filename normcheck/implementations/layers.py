"""Norm layers of a torch model: which of its modules are norms, what each claims, and how one is called again."""

from __future__ import annotations

import copy
import functools
import inspect
import re
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

    @property
    def written(self) -> bool:
        """Whether what it claims was read in the source of its own formula, and in no name of torch."""
        return not self.formula.fused and _base(self.kind) is None


def found(model: Any) -> tuple[list[Found], dict[str, str]]:
    """The norm layers of a model, and by name what looks like one and is none of ours, with the reason."""
    layers, others = [], {}
    for name, module in model.named_modules():
        kind = getattr(module, "original_name", type(module).__name__)
        try:
            formula = _formula(module)
            first = formula.channels_first or getattr(module, "data_format", "") == "channels_first"
            layers.append(Found(name or kind, module, replace(formula, channels_first=first)))
        except UnreadableError as reason:
            names = (kind, *(parent.__name__ for parent in type(module).__mro__))
            if isinstance(reason, _NotOursError) or (any(map(_SPEAKING.search, names)) and not _holds(module)):
                others[name or kind] = f"{kind}: {reason}"
    return layers, others


_SPEAKING = re.compile(r"(?i:norm)|RMS|(?<![A-Z])(LN|BN|GN|IN)(?![A-Z])")
"""Names of classes that speak of a norm."""


class _NotOursError(UnreadableError):
    """A norm, by its source, that cannot be called as ours are."""


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
    parent = _base(kind)
    base = _OF_TORCH[parent.__name__] if parent is not None else None
    if base is not None and kind.forward is parent.forward:
        return base
    if hasattr(module, "original_name"):
        raise UnreadableError("it is scripted, without its class; the model should be built without torch.jit")
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
    names = (*formula.parameters, *_others(module, formula))
    strange = [name for name, tensor in module._parameters.items() if tensor is not None and name not in names]
    if strange:
        raise _NotOursError(f"its parameters {', '.join(strange)} are not understood")
    numbers = [name for name in names if isinstance(getattr(module, name, None), int | float)]
    if numbers:
        raise _NotOursError(f"its {numbers[0]} is a number, but should be a tensor or None")
    if formula.trains and module.training:
        raise _NotOursError("it is in training, and its running statistics are written by code of its own")
    return replace(formula, parameters=names)


def _others(module: Any, formula: Formula) -> list[str]:
    """A weight or bias that the layer has, and that its source does not show: it is claimed all the same."""
    has = {name for kept in (module._parameters, module._buffers) for name, tensor in kept.items() if tensor is not None}
    lacking = [names for names in (WEIGHTS, BIASES) if not set(names) & set(formula.parameters)]
    return [next(name for name in names if name in has) for names in lacking if set(names) & has]


def _base(kind: Any) -> Any:
    """The norm of torch that a class is or derives from, or None."""
    return next((one for one in kind.__mro__ if one.__module__.startswith("torch.nn.") and one.__name__ in _OF_TORCH), None)


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


def claims(layer: Found, shape: tuple[int, ...]) -> bool:
    """Whether the name of its class and its weight claim a LayerNorm or RMSNorm of the last axis, whatever its source does."""
    own = next((getattr(layer.module, name, None) for name in layer.formula.parameters), None)
    name = layer.kind.__name__
    return own is not None and own.shape == shape[-1:] and bool(_CLAIMING.search(name)) and not _ELSEWHERE.search(name)


_CLAIMING = re.compile("(?i)(layer|rms)_?norm")
_ELSEWHERE = re.compile(r"(?i)global|channel|cum|group|instance|batch|spatial|temporal|time|\dd")


def norm_of(layer: Found, dtype: str, shape: tuple[int, ...]) -> Norm:
    """The norm of a layer with the settings that it has, for an x of this dtype and shape, channels last where it moves them."""
    formula, module = layer.formula, layer.module
    norm = formula.norm
    # a number in the source is no excuse for an eps of the layer that it forgets
    eps = getattr(module, formula.eps, None) if formula.eps else getattr(module, "eps", None) or norm.eps
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


def parameters_of(layer: Found, norm: Norm, shape: tuple[int, ...]) -> dict[str, Any]:
    """The layer's weight, bias and running statistics as tensors, as far as it has them, in the sizes that the norm gives them.

    Raises
    ------
    ValueError : for one of other sizes; ones in between are left out
    """
    sizes = shape[1:2] if norm.per_channel else getattr(norm, "normalized_shape", None) or shape[-1:]
    own = {name: "weight" if name in WEIGHTS else "bias" for name in layer.formula.parameters}
    kept = {role: getattr(layer.module, name, None) for name, role in own.items()}
    kept |= {name: getattr(layer.module, name, None) for name in ("running_mean", "running_var")}
    return {name: _sized(name, value, tuple(sizes)) for name, value in kept.items() if value is not None}


def _sized(name: str, value: Any, sizes: tuple[int, ...]) -> Any:
    if [n for n in value.shape if n > 1] != [n for n in sizes if n > 1]:
        raise ValueError(f"its {name} has shape {tuple(value.shape)}, but should be {sizes}")
    return value.reshape(sizes)


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
        known_as=known_as(layer, norm),
        **options,
    )


def renewable(layer: Found) -> str:
    """Why a layer cannot be judged with other parameters than its own, or ``""``."""
    odd = [name for name in layer.formula.parameters if name not in _TWO]
    if odd:
        return f"its parameters are named {', '.join(odd)}"
    sizes = getattr(layer.module, "normalized_shape", None)
    rank = len(sizes) if isinstance(sizes, tuple | list) else 1
    tensors = {name: getattr(layer.module, name, None) for name in layer.formula.parameters}
    odd = [f"{name}{list(tensor.shape)}" for name, tensor in tensors.items() if tensor is not None and tensor.ndim != rank]
    return f"its parameters are {', '.join(odd)}" if odd else ""


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
    kind, base = layer.kind, _base(layer.kind)
    if kind.__module__.startswith(f"{PACKAGE}."):
        return next((f"{PACKAGE}.{names[0]}" for names in _families() if kind.__name__ in names), f"{PACKAGE}.{kind.__name__}")
    if layer.formula.fused:
        return f"torch.nn.{layer.formula.fused}"
    if base is None or cast(Any, kind).forward is not base.forward:
        return f"{kind.__module__}.{kind.__qualname__}"
    mode = {None: "", True: "train", False: "eval"}[training_of(layer, norm)]
    if isinstance(norm, InstanceNorm) and mode:
        mode = f"tracked, {mode}" if mode == "train" else mode
    return f"torch.nn.{base.__name__}" + (f"[{mode}]" if mode else "")


def _families() -> Iterator[tuple[str, ...]]:
    return (tuple(one.name for one in members) for members in families())
