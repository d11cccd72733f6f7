"""torch: the adapter, and torch's own norms as a table. The same code serves CPU, CUDA, MPS and XPU."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from normcheck.contract import Contract
from normcheck.formats import Array
from normcheck.implementations.arrays import encode
from normcheck.implementations.base import Built, Implementation
from normcheck.implementations.targets import Named
from normcheck.norms import BatchNorm, GroupNorm, InstanceNorm, L2Norm, LayerNorm, Norm, RMSNorm

FLOATS = ("float64", "float32", "float16", "bfloat16")
HALVES = FLOATS[2:]
DEVICES = ("cpu", "cuda", "mps", "xpu")
_BITS = {"bfloat16": np.int16, "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8}


class Torch:
    """The adapter."""

    name = "torch"

    def available(self) -> str | None:
        """None, or the line that installs torch."""
        return None if importlib.util.find_spec("torch") else "pip install 'normcheck[torch]'"

    def version(self) -> str:
        """torch's version."""
        return importlib.metadata.version("torch")

    def devices(self) -> tuple[str, ...]:
        """The CPU and the accelerators that torch finds."""
        import torch

        return tuple(name for name in DEVICES if getattr(torch, name).is_available())

    def pin_threads(self, count: int) -> None:
        """Set the number of threads inside one operation."""
        import torch

        torch.set_num_threads(count)

    def guard(self) -> AbstractContextManager[Any]:
        """A context in which no gradients are recorded."""
        import torch

        return torch.no_grad()  # type: ignore[no-any-return]

    def to_native(self, values: Array, dtype: str, device: str = "cpu", layout: str = "contiguous") -> Any:
        """A tensor with exactly these values, in memory that torch has allocated; 16 and 8 bits through an integer view."""
        import torch

        typed = encode(values, dtype, layout)
        if dtype in _BITS:
            tensor = torch.from_numpy(typed.view(_BITS[dtype])).view(getattr(torch, dtype))
        else:
            tensor = torch.from_numpy(typed)
        return tensor.clone() if device == "cpu" else tensor.to(device)

    def to_values(self, native: Any) -> tuple[Array, str]:
        """The values of a tensor, detached, and the name of its dtype. Every format widens to float64 exactly."""
        import torch

        if not isinstance(native, torch.Tensor):
            raise TypeError(f"returned {type(native).__name__}, but should return a torch.Tensor")
        tensor = native.detach().cpu()
        real = tensor.real if tensor.is_complex() else tensor
        return np.array(real.to(torch.float64).numpy(), order="C"), str(native.dtype).removeprefix("torch.")

    def bind(self, module: Any, state: Mapping[str, Any], training: bool, dtype: str, device: str) -> Callable[..., Any]:
        """Bring the module to device and dtype, then put in parameters and buffers. What is not given keeps its initial value."""
        import torch

        module = module.to(device=device, dtype=getattr(torch, dtype)).train(training)
        for name, value in state.items():
            wrapped = torch.nn.Parameter(value, requires_grad=False) if name in ("weight", "bias") else value
            setattr(module, name, wrapped)
        return module  # type: ignore[no-any-return]

    def snippet_array(self, name: str, dtype: str, device: str, layout: str, rank: int) -> str:
        """``x = torch.from_numpy(x).to(...)``, exact because the values are the dtype's."""
        text = f"{name} = torch.from_numpy({name}).to(torch.{dtype})"
        if layout == "channels_last":
            text += ".movedim(1, -1).contiguous().movedim(-1, 1)"
        elif layout == "transposed":
            order = tuple(reversed(range(rank)))
            text += f".permute({order}).contiguous().permute({order})"
        return text if device == "cpu" else f"{text}.to({device!r})"

    def snippet_bind(self, state: Iterable[str], training: bool, dtype: str, device: str) -> list[str]:
        """What `bind` does."""
        lines = [f"module = module.to(device={device!r}, dtype=torch.{dtype}).train({training})"]
        for name in state:
            value = f"torch.nn.Parameter({name}, requires_grad=False)" if name in ("weight", "bias") else name
            lines.append(f"module.{name} = {value}")
        return lines

    def snippet_value(self, expression: str) -> str:
        """``.item()``, which also serves tensors that require gradients."""
        return f"{expression}.item()"


ADAPTER = Torch()

_F = "torch.nn.functional"
_AFFINE = ("weight", "bias")
_RUNNING = ("running_mean", "running_var")
_MERGE = Contract(accumulation="merge")
_TREE = Contract()
_GIVEN = InstanceNorm(track_running_stats=True)
_BATCH_ARGUMENTS = ("x", *_RUNNING, *_AFFINE, "training", "momentum", "eps")
_WIDE_ROWS = range(2, 2**62)
# another memory format is another kernel: a row of its own, with a grade of its own
_LAST: dict[str, Any] = {"layouts": ("channels_last",), "ranks": (4,)}
_CHANNELS_LAST: dict[str, Any] = {"label": ["channels_last"], **_LAST}


def builtins() -> Iterator[Implementation]:
    """torch's own norms: the functions and their modules."""
    yield _function("layer_norm", LayerNorm(), ("x", "normalized_shape", *_AFFINE, "eps"), contract=_MERGE)
    yield _module("LayerNorm", LayerNorm(), ("normalized_shape", "eps"), contract=_MERGE)
    yield _function("rms_norm", RMSNorm(), ("x", "normalized_shape", "weight", "eps"))
    yield _module("RMSNorm", RMSNorm(), ("normalized_shape", "eps"))
    yield _function("normalize", L2Norm(), ("x", 2.0, -1, "eps"), affine=False, dtypes=FLOATS[:2])
    for place in ({}, _CHANNELS_LAST):
        yield _function("group_norm", GroupNorm(4), ("x", "num_groups", *_AFFINE, "eps"), contract=_MERGE, **place)
        yield _module("GroupNorm", GroupNorm(4), ("num_groups", "num_channels", "eps"), contract=_MERGE, **place)
    yield from _modes(_function, "batch_norm", BatchNorm(), _BATCH_ARGUMENTS)
    yield from _modes(_module, "BatchNorm1d", BatchNorm(), ("num_features", "eps", "momentum"), ranks=(2, 3))
    yield from _modes(_module, "BatchNorm2d", BatchNorm(), ("num_features", "eps", "momentum"), ranks=(4,))
    yield from _modes(_module, "BatchNorm2d", BatchNorm(), ("num_features", "eps", "momentum"), mark=["channels_last"], **_LAST)
    yield from _modes(_function, "instance_norm", InstanceNorm(), _BATCH_ARGUMENTS, given=_GIVEN)
    settings = ("num_features", "eps", "momentum", "affine", "track_running_stats")
    yield from _modes(_module, "InstanceNorm2d", InstanceNorm(), settings, given=_GIVEN, ranks=(4,))


def _modes(
    row: Callable[..., Implementation],
    path: str,
    norm: Norm,
    settings: tuple[str, ...],
    given: Norm | None = None,
    mark: Sequence[str] = (),
    **options: Any,
) -> Iterator[Implementation]:
    """Own and given statistics, each with parameters in the input's dtype and in float32.

    In 16 bit the kernels hold the batch's statistics in the dtype of the parameters.
    """
    for training in (True, False):
        chosen = given if given is not None and not training else norm
        mode = [*([] if given is not None and training else ["train" if training else "eval"]), *mark]
        own = {**options, "training": training if chosen.has_running else None, "widths": _WIDE_ROWS if training else None}
        yield row(path, chosen, settings, label=mode, **own)
        yield row(path, chosen, settings, label=[*mode, "float32 parameters"], dtypes=HALVES, weight_dtype="float32", **own)


def _function(path: str, norm: Norm, arguments: tuple[Any, ...], **options: Any) -> Implementation:
    return _row(f"{_F}.{path}", norm, call=Named(f"{_F}:{path}"), arguments=arguments, mutates=_mutates(norm), **options)


def _module(path: str, norm: Norm, settings: tuple[str, ...], **options: Any) -> Implementation:
    return _row(f"torch.nn.{path}", norm, module=Built(f"torch.nn:{path}", settings), mutates=_mutates(norm), **options)


def _mutates(norm: Norm) -> tuple[str, ...]:
    return _RUNNING if norm.has_running else ()


def _row(
    name: str,
    norm: Norm,
    contract: Contract = _TREE,
    label: Iterable[str] = (),
    dtypes: tuple[str, ...] = FLOATS,
    **options: Any,
) -> Implementation:
    marks = ", ".join(label)
    full = f"{name}[{marks}]" if marks else name
    return Implementation(norm=norm, contract=contract, name=full, dtypes=dtypes, devices=DEVICES, **options)
