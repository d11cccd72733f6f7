"""What code under judgement is: how to call it, the norm and the contract that it claims, and what it can take."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

from normcheck.contract import Contract
from normcheck.formats import FORMATS, Array
from normcheck.implementations.arrays import LAYOUTS
from normcheck.implementations.companions import Block, Quantized
from normcheck.implementations.framework import Framework as Framework
from normcheck.implementations.targets import Named
from normcheck.norms import Norm

if TYPE_CHECKING:
    from normcheck.implementations.captured import Captured

ARRAYS = ("x", "weight", "bias", "residual", "running_mean", "running_var")
INPUTS = (*ARRAYS, "training", "momentum")
RESULTS = ("y", "new_residual", "running_mean", "running_var", "mean", "rstd")
SETTINGS = ("eps", "normalized_shape", "num_groups", "num_features", "num_channels", "fraction", "affine", "track_running_stats")
VARIABLE = ("eps", "normalized_shape", "num_groups", "fraction", "momentum")
# what a factory is trusted to read from the norm; sizes it usually takes from the shape
_MADE = ("eps", "num_groups", "fraction", "momentum")


@dataclass(frozen=True, eq=False)
class Inputs:
    """What one call is given. Arrays are float64 and hold values that their dtype represents exactly.

    Attributes
    ----------
    x : in the shape that the implementation takes
    weight, bias, residual, running_mean, running_var : None where there is none; the residual has x's shape and dtype
    dtype : of x and residual
    weight_dtype : of parameters and running statistics; None means ``dtype``
    device, layout : where x lies and how (see `encode`)
    training : for norms with running statistics: the batch's own statistics are used
    momentum : of the running statistics; None means the norm's
    parameter_layout : how weight, bias and running statistics lie in memory (see `encode`)
    """

    x: Array
    weight: Array | None = None
    bias: Array | None = None
    residual: Array | None = None
    running_mean: Array | None = None
    running_var: Array | None = None
    dtype: str = "float32"
    weight_dtype: str | None = None
    device: str = "cpu"
    layout: str = "contiguous"
    training: bool = True
    momentum: float | None = None
    parameter_layout: str = "contiguous"


@dataclass(frozen=True, eq=False)
class Output:
    """What one call returned: float64 values in the shape that came back, and the dtype that they came in.

    ``running_mean`` and ``running_var`` are None where the call neither returned nor wrote them; ``mean`` and
    ``rstd``, the statistics that are kept for the backward pass, where ``returns`` does not name them. ``dtypes`` holds the
    dtypes of all that is not None, by name.
    """

    y: Array
    dtype: str
    new_residual: Array | None = None
    running_mean: Array | None = None
    running_var: Array | None = None
    mean: Array | None = None
    rstd: Array | None = None
    dtypes: Mapping[str, str] = field(default_factory=dict)


class CallError(Exception):
    """The code under judgement raised, or returned something that is no array.

    Attributes
    ----------
    traceback : text of the traceback, without normcheck's own frames
    called : implementation and inputs of the call that raised, where it was made in the ordinary way
    snippet : source that raises again, where it is no such call
    """

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback
        self.called: tuple[Implementation, Inputs] | None = None
        self.snippet = ""


class MissingPackageError(ImportError):
    """A framework that is asked for is not installed. The message holds the line that installs it."""


@dataclass(frozen=True)
class Implementation:
    """Code under judgement.

    Exactly one of ``call``, ``make`` and ``module`` is given.

    Parameters
    ----------
    call : takes what the norm has, in this order, and returns y: ``call(x, weight, bias)``; ``call(x, weight)`` where the norm
        has no bias; with running statistics ``call(x, weight, bias, running_mean, running_var, training, momentum)``, which
        returns y or (y, running_mean, running_var); with ``residual=True`` one more argument, and one more result, the new
        residual. What is absent is passed as None
    norm, contract : what the code claims to compute, and in which arithmetic
    name : shown in reports; the callable's name if empty
    framework : ``"torch"``, ``"numpy"``, ...
    dtypes, devices, layouts : of x, that the code takes
    grad : ``"autograd"``, None, or ``backward(inputs: dict, grads: dict) -> dict``
    channel_axis : 1 for channels-first, -1 for channels-last
    arguments : another order, or fewer or more, of: x weight bias residual running_mean running_var training momentum, the
        norm's settings eps normalized_shape num_groups fraction, and num_features (the channels). Anything that is no string is
        passed as it is. A setting that is named here can be varied. With ``module``: what its forward takes
    residual : the code adds a residual before it normalizes
    make : ``make(norm, *, shape, dtype, device)`` returns a call for that norm and that shape of x; settings can then be varied
    module : as ``make``, but returns a stateful module with attributes weight, bias, running_mean, running_var
    mutates : arguments beside the running statistics that the code may write, such as a residual
    widths, ranks : the row widths and the ranks of x that the code can take; None for any
    training : for norms with running statistics: the mode that is judged
    weight_dtype : of parameters and running statistics, where it is not x's
    affine : whether weight and bias can be given, or ``"weight"`` for a weight alone; they are not passed otherwise
    source : target (``module:callable``) by which a snippet calls it, where it cannot be read off the callable
    requires : package that the code needs beside its framework, by the name under which pip installs it
    returns : names of the results, in order, where they are others than said above: y new_residual running_mean running_var,
        and the statistics that are kept for the backward pass, mean and rstd
    validates : whether the code is expected to refuse arguments that no norm has; None means that modules and what is named in
        a library are, and bare functions are not
    block : a block that uses this norm, with its wiring
    quantized : a fused kernel of this norm with a quantized output
    workers : the same norm of a batch that is spread over workers: ``workers(shards, weight, bias)`` returns the list of their
        y; with running statistics ``workers(shards, weight, bias, running_mean, running_var, momentum)`` returns
        (list of y, running_mean, running_var). Shards are arrays like x, cut unevenly along the first axis
    static : whether every shape of x is compiled anew, at a price: sweeps over shapes are left to the more thorough profiles
    variants : other forms of the same call, such as a compiled one, by name; each is judged by itself
    alike : names of other code of the very same text, for which this stands
    known_as : name under which the ledger knows the faults of this code, where its own is another
    captured : a call that a model made of this layer
    path : the operator of the framework that a call must dispatch to, where the code forces one of several

    Raises
    ------
    ValueError : for a setting outside these, naming it and what was expected
    """

    call: Callable[..., Any] | None = None
    norm: Norm = None  # type: ignore[assignment]
    contract: Contract = field(default_factory=Contract)
    name: str = ""
    framework: str = "torch"
    dtypes: tuple[str, ...] = ("float32",)
    devices: tuple[str, ...] = ("cpu",)
    grad: Literal["autograd"] | Callable[..., Any] | None = "autograd"
    channel_axis: int = 1
    arguments: tuple[Any, ...] | None = None
    residual: bool = False
    make: Callable[..., Any] | None = None
    module: Callable[..., Any] | None = None
    mutates: tuple[str, ...] = ()
    widths: Container[int] | None = None
    ranks: Container[int] | None = None
    training: bool | None = None
    weight_dtype: str | None = None
    layouts: tuple[str, ...] = ("contiguous",)
    affine: bool | Literal["weight"] = True
    source: str = ""
    requires: str = ""
    returns: tuple[str, ...] | None = None
    validates: bool | None = None
    block: Block | None = None
    quantized: Quantized | None = None
    workers: Callable[..., Any] | None = None
    static: bool = False
    variants: Mapping[str, Callable[..., Any]] = field(default_factory=dict, hash=False)
    alike: tuple[str, ...] = ()
    known_as: str = ""
    captured: Captured | None = None
    path: str = ""

    def __post_init__(self) -> None:
        """Refuse what cannot be called or judged."""
        self._check_claim()
        for name, known in (("dtypes", tuple(FORMATS)), ("devices", None), ("layouts", tuple(LAYOUTS)), ("mutates", ARRAYS)):
            object.__setattr__(self, name, _names(name, getattr(self, name), known, empty=name == "mutates"))
        if self.weight_dtype is not None:
            _one_of("weight_dtype", self.weight_dtype, tuple(FORMATS))
        if self.affine not in (True, False, "weight"):
            raise ValueError(f"affine={self.affine!r}, but should be True, False or 'weight'")
        if self.channel_axis not in (1, -1) or isinstance(self.channel_axis, bool):
            raise ValueError(f"channel_axis={self.channel_axis!r}, but should be 1 (channels-first) or -1 (channels-last)")
        if not (self.grad in ("autograd", None) or callable(self.grad)):
            raise ValueError(f"grad={self.grad!r}, but should be 'autograd', None or a function backward(inputs, grads)")
        if self.returns is not None:
            object.__setattr__(self, "returns", _names("returns", self.returns, RESULTS, empty=False))
        for name in ("widths", "ranks"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, Container) and value):
                raise ValueError(f"{name}={value!r}, but should be None or several sizes, such as range(2, 65)")
        self._check_mode()
        self._check_arguments()
        if not self.name:
            given = self.target
            object.__setattr__(self, "name", getattr(given, "__name__", type(given).__name__))

    def _check_claim(self) -> None:
        from normcheck.implementations.registry import frameworks

        given = [name for name in ("call", "make", "module") if getattr(self, name) is not None]
        if len(given) != 1:
            got = " and ".join(given) or "none of them"
            raise ValueError(f"{got} given, but should be exactly one of call, make and module")
        if not callable(self.target):
            raise ValueError(f"{given[0]}={self.target!r}, but should be callable")
        if self.call is not None and hasattr(self.call, "state_dict") and self.arguments is None and self.affine:
            kind = type(self.call).__name__
            raise ValueError(
                f"call={kind}(...) is a module with weights of its own, but should be a function of x and weights; give "
                f"module=lambda norm, *, shape, dtype, device: {kind}(...) instead, or arguments=('x',) where it has none"
            )
        if not isinstance(self.norm, Norm):
            raise ValueError(f"norm={self.norm!r}, but should be a norm such as LayerNorm(eps=1e-5)")
        if not isinstance(self.contract, Contract):
            raise ValueError(f"contract={self.contract!r}, but should be a Contract")
        _one_of("framework", self.framework, tuple(frameworks()))

    def _check_mode(self) -> None:
        if self.training not in (None, True, False):
            raise ValueError(f"training={self.training!r}, but should be None, True or False")
        if self.training is False and not self.norm.has_running:
            raise ValueError(f"training=False, but {self.norm.name} as given keeps no running statistics")

    def _check_arguments(self) -> None:
        if self.arguments is None:
            return
        if isinstance(self.arguments, str):  # type: ignore[unreachable]
            raise ValueError(f"arguments={self.arguments!r}, but should be a tuple of names such as ('x', 'weight', 'eps')")
        object.__setattr__(self, "arguments", tuple(self.arguments))
        names = [name for name in self.arguments if isinstance(name, str)]
        known = (*INPUTS, *(name for name in SETTINGS if self.knows(name)))
        for name in names:
            _one_of("argument", name, known)
        if "x" not in names or len(set(names)) != len(names):
            raise ValueError(f"arguments={self.arguments!r}, but should name x, and each name once")
        if self.residual != ("residual" in names):
            raise ValueError(f"residual={self.residual} with arguments={self.arguments!r}, but should agree on the residual")

    @property
    def target(self) -> Callable[..., Any]:
        """The callable that was given, as call, make or module."""
        return cast("Callable[..., Any]", next((f for f in (self.call, self.make, self.module) if f is not None), None))

    @cached_property
    def passes(self) -> tuple[Any, ...]:
        """What is passed to the callable (to a module's forward), in this order: names of inputs and settings, or constants."""
        if self.arguments is not None:
            return self.arguments
        parameters = tuple(name for name in ("weight", "bias") if self.has(name))
        running = ("running_mean", "running_var", "training", "momentum")
        state = () if self.module is not None else (*parameters, *running * self.norm.has_running)
        return ("x", *state, *("residual",) * self.residual)

    def takes(self, array: str) -> bool:
        """Whether this array of `Inputs` can be given: as an argument, or as an attribute of a module."""
        if array in self.passes or self.module is None:
            return array in self.passes
        return self.has(array) or (array.startswith("running") and self.norm.has_running)

    def has(self, parameter: str) -> bool:
        """Whether there is this parameter, weight or bias."""
        return bool(self.affine) if parameter == "weight" else parameter == "bias" and self.affine is True and self.norm.has_bias

    @property
    def variable(self) -> tuple[str, ...]:
        """The settings of the norm that can be varied."""
        named = self.passes if self.call is not None else getattr(self.target, "settings", _MADE)
        return tuple(f.name for f in fields(cast(Any, self.norm)) if f.name in VARIABLE and f.name in named)

    def knows(self, setting: str) -> bool:
        """Whether the norm has this setting."""
        if setting in ("num_features", "num_channels"):
            return self.norm.per_channel
        return setting == "affine" or any(f.name == setting for f in fields(cast(Any, self.norm)))

    def setting(self, name: str, shape: tuple[int, ...]) -> Any:
        """The value of a setting for an x of this shape."""
        return self.affine if name == "affine" else setting(self.norm, name, shape, self.channel_axis)

    def with_norm(self, norm: Norm) -> Implementation | None:
        """The same code with another setting of its norm, such as another eps; None where that is fixed."""
        if norm == self.norm:
            return self
        if type(norm) is not type(self.norm):
            return None
        changed = [f.name for f in fields(cast(Any, norm)) if getattr(norm, f.name) != getattr(self.norm, f.name)]
        return replace(self, norm=norm) if set(changed) <= set(self.variable) else None

    def refuses(self, shape: tuple[int, ...]) -> str | None:
        """Why the code cannot take an x of this shape, or None where it can."""
        if self.ranks is not None and len(shape) not in self.ranks:
            return f"rank={len(shape)}, but {self.name} takes {_span(self.ranks)}"
        try:
            width = self.norm.fold(shape, self.channel_axis).width
        except ValueError as error:
            return str(error)
        if self.widths is not None and width not in self.widths:
            return f"rows of {width} elements, but {self.name} takes {_span(self.widths)}"
        return None


def setting(norm: Norm, name: str, shape: tuple[int, ...], channel_axis: int = 1) -> Any:
    """The value of one of the norm's settings for an x of this shape; ``affine`` is True."""
    if name in ("num_features", "num_channels"):
        return shape[channel_axis]
    if name == "affine":
        return True
    value = getattr(norm, name)
    return shape[-1:] if name == "normalized_shape" and value is None else value


@dataclass(frozen=True)
class Built:
    """The factory of a stateful module that takes the norm's settings as keywords, such as ``torch.nn:LayerNorm``."""

    target: str
    settings: tuple[str, ...]

    def __call__(self, norm: Norm, *, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        """A new module for this norm and an x of this shape."""
        return Named(self.target)(**self.keywords(norm, shape))

    def keywords(self, norm: Norm, shape: tuple[int, ...]) -> dict[str, Any]:
        """What the module is made with."""
        return {name: setting(norm, name, shape) for name in self.settings}

    @property
    def __name__(self) -> str:
        """The target as a reader would write it."""
        return Named(self.target).__name__


def _span(allowed: Container[int]) -> str:
    if isinstance(allowed, range) and allowed.step == 1:
        return f"{allowed.start} or more" if allowed.stop >= 2**31 else f"{allowed.start} to {allowed.stop - 1}"
    return str(allowed)


def _one_of(what: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        near = difflib.get_close_matches(str(value), known, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"{what}={value!r}, but should be one of {', '.join(known)}{hint}")


def _names(what: str, value: Any, known: tuple[str, ...] | None, empty: bool) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ValueError(f"{what}={value!r}, but should be a tuple of names")
    names = tuple(value)
    if not names and not empty:
        raise ValueError(f"{what}={value!r}, but should name at least one")
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"{what}={value!r}, but should be a tuple of names")
        if known is not None:
            _one_of(what, name, known)
    return names
