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
from normcheck.implementations.arrays import VIEWS, LayoutError, encode
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

    def free_memory(self, device: str) -> int | None:
        """Bytes that can be allocated on an accelerator that is there; None for the CPU, whose memory the engine limits."""
        import torch

        if device == "cpu" or not getattr(torch, device).is_available():
            return None
        if device == "mps":
            return int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
        return int(getattr(torch, device).mem_get_info()[0])

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

        if layout == "reversed":
            raise LayoutError("layout='reversed', but torch has no negative strides")
        typed = encode(values, dtype, layout)
        if layout in VIEWS:
            return _viewed(typed, dtype, device)
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
        return np.asarray(real.to(torch.float64, copy=True).numpy(), order="C"), str(native.dtype).removeprefix("torch.")

    def bind(self, module: Any, state: Mapping[str, Any], training: bool, dtype: str, device: str) -> Callable[..., Any]:
        """Bring the module to device and dtype, then put in parameters and buffers. What is not given keeps its initial value."""
        import torch

        module = module.to(device=device, dtype=getattr(torch, dtype)).train(training)
        for name, value in state.items():
            wrapped = torch.nn.Parameter(value, requires_grad=False) if name in ("weight", "bias") else value
            if value.requires_grad:
                # a plain tensor in the parameter's place, so that the gradient reaches the leaf itself
                delattr(module, name)
                wrapped = value
            setattr(module, name, wrapped)
        return module  # type: ignore[no-any-return]

    def pull_back(
        self, run: Callable[[dict[str, Any]], list[Any]], at: Mapping[str, Any], slopes: Sequence[Any], passes: int = 1
    ) -> dict[str, Any]:
        """Gradients by the tape, as ``.grad`` holds them. The activations x and residual are no leaves, as in a network."""
        import torch

        with torch.enable_grad():
            leaves = {name: value.detach().requires_grad_(True) for name, value in at.items()}
            outputs = run({name: leaf if name in _AFFINE else leaf.clone() for name, leaf in leaves.items()})
            for left in range(passes, 0, -1):
                torch.autograd.backward(outputs, slopes, retain_graph=left > 1)
        return {name: leaf.grad for name, leaf in leaves.items()}

    def pull_back_twice(
        self, run: Callable[[dict[str, Any]], list[Any]], at: Mapping[str, Any], slope: Any, along: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Gradients of <gradients, along>, with respect to the leaves and, under ``"y"``, to the slope."""
        import torch

        with torch.enable_grad():
            leaves = {name: value.detach().requires_grad_(True) for name, value in {**at, "y": slope}.items()}
            y = run({name: leaves[name] for name in at})[:1]
            first = torch.autograd.grad(y, [leaves[name] for name in along], leaves["y"], create_graph=True)
            second = torch.autograd.grad(first, list(leaves.values()), list(along.values()), allow_unused=True)
        return dict(zip(leaves, second, strict=True))

    def snippet_array(self, name: str, dtype: str, device: str, layout: str, rank: int) -> str:
        """``x = torch.from_numpy(x).to(...)``, exact because the values are the dtype's."""
        text = f"torch.from_numpy({name}).to(torch.{dtype})"
        if layout == "channels_last":
            text += ".movedim(1, -1).contiguous().movedim(-1, 1)"
        elif layout == "transposed":
            order = tuple(reversed(range(rank)))
            text += f".permute({order}).contiguous().permute({order})"
        text = _VIEW_TEXTS.get(layout, "{0}").format(text if device == "cpu" else f"{text}.to({device!r})", f"{name}.shape")
        return f"{name} = {text}"

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

    def threads(self) -> int:
        """The number of threads inside one operation."""
        import torch

        return int(torch.get_num_threads())

    def shares_memory(self, one: Any, other: Any) -> bool:
        """Whether two tensors lie in one storage."""
        first, second = one.untyped_storage(), other.untyped_storage()
        return bool(first.nbytes() > 0 and first.data_ptr() == second.data_ptr())


def _viewed(typed: Any, dtype: str, device: str) -> Any:
    """A tensor in a larger storage, as the array lies in its base."""
    import torch

    base = typed.base
    bits = torch.from_numpy(base.view(_BITS[dtype])).view(getattr(torch, dtype)) if dtype in _BITS else torch.from_numpy(base)
    start = typed.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    steps = [stride // typed.itemsize for stride in typed.strides]
    return bits.clone().to(device).as_strided(typed.shape, steps, start // typed.itemsize)


ADAPTER = Torch()

_VIEW_TEXTS = {
    "strided": "{0}.repeat_interleave(2, -1)[..., ::2]",
    "strided_rows": "{0}.repeat_interleave(2, 0)[::2]",
    "sliced": "torch.nn.functional.pad({0}, (1, 2), value=torch.nan)[..., 1:-2]",
    "unaligned": "torch.nn.functional.pad({0}.flatten(), (1, 0))[1:].view({1})",
    "expanded": "{0}[:1].expand({1})",
}

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
    yield _row(
        "torch.native_layer_norm",
        LayerNorm(),
        call=Named("torch:native_layer_norm"),
        arguments=("x", "normalized_shape", *_AFFINE, "eps"),
        returns=("y", "mean", "rstd"),
        contract=_MERGE,
    )
    yield _function("rms_norm", RMSNorm(), ("x", "normalized_shape", "weight", "eps"))
    yield _module("RMSNorm", RMSNorm(), ("normalized_shape", "eps"))
    yield _function("normalize", L2Norm(), ("x", 2.0, -1, "eps"), affine=False)
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
    tracked: dict[str, Any] = {"label": ["tracked", "train"], "training": True, "widths": _WIDE_ROWS}
    yield _function("instance_norm", _GIVEN, _BATCH_ARGUMENTS, **tracked)
    yield _module("InstanceNorm2d", _GIVEN, settings, ranks=(4,), **tracked)


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
