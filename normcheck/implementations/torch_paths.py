"""Further paths of torch's norms, forced: aten operators called by name, MKLDNN's kernels, cuDNN's and torch's own on CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from normcheck.contract import Contract
from normcheck.implementations.base import Implementation
from normcheck.implementations.targets import Named
from normcheck.implementations.torch import DEVICES, FLOATS, HALVES
from normcheck.norms import BatchNorm, GroupNorm, Norm, RMSNorm

_MERGE = Contract(accumulation="merge")
_RUNNING = ("running_mean", "running_var")
_PARAMETERS = ("weight", "bias")
_BATCH = ("x", *_PARAMETERS, *_RUNNING, "training", "momentum", "eps")
_WIDE_ROWS = range(2, 2**62)


def native_group_norm(x: Any, weight: Any, bias: Any, num_groups: int, eps: float) -> Any:
    """``aten.native_group_norm``, which takes the sizes of x by themselves and returns the statistics of the groups as well."""
    import torch

    # as group_norm itself does before it calls the operator, which takes memory as it lies
    x, weight, bias = (part if part is None else part.contiguous() for part in (x, weight, bias))
    sizes = (x.shape[0], x.shape[1], x.shape[2:].numel())
    return torch.ops.aten.native_group_norm(x, weight, bias, *sizes, num_groups, eps)[0]


def batch_norm_without_update(x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float) -> Any:
    """``aten._native_batch_norm_legit_no_training``: evaluation in exported graphs."""
    import torch

    return torch.ops.aten._native_batch_norm_legit_no_training(x, weight, bias, mean, var, momentum, eps)[0]


def batch_norm_with_update(x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float) -> Any:
    """``aten._batch_norm_with_update``: training in exported graphs."""
    import torch

    return torch.ops.aten._batch_norm_with_update(x, weight, bias, mean, var, momentum, eps)[0]


def mkldnn_batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float) -> Any:
    """Batch norm of a tensor in MKLDNN's own layout."""
    import torch

    y = torch.nn.functional.batch_norm(x.to_mkldnn(), mean, var, weight, bias, training, momentum, eps)
    return y.to_dense()


def batch_norm_of_cudnn(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float) -> Any:
    """Batch norm with cuDNN switched on."""
    return _with_cudnn(True, x, weight, bias, mean, var, training, momentum, eps)


def batch_norm_of_cuda(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float) -> Any:
    """Batch norm with cuDNN switched off: torch's own kernel."""
    return _with_cudnn(False, x, weight, bias, mean, var, training, momentum, eps)


def _with_cudnn(enabled: bool, x: Any, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any) -> Any:
    import torch

    with torch.backends.cudnn.flags(enabled=enabled):
        return torch.nn.functional.batch_norm(x, mean, var, weight, bias, *rest)


def builtins() -> Iterator[Implementation]:
    """A row for each path, which names the operator that it must take."""
    # operators trust their callers
    aten: dict[str, Any] = {"dtypes": FLOATS, "devices": DEVICES, "validates": False}
    yield Implementation(
        Named("torch:ops.aten._fused_rms_norm"),
        RMSNorm(),
        name="torch.ops.aten._fused_rms_norm",
        arguments=("x", "normalized_shape", "weight", "eps"),
        returns=("y", "rstd"),
        **aten,
    )
    groups = ("x", *_PARAMETERS, "num_groups", "eps")
    yield _row("native_group_norm", GroupNorm(4), groups, path="aten.native_group_norm", contract=_MERGE, **aten)
    batch = tuple(name for name in _BATCH if name != "training")
    train: dict[str, Any] = {"mutates": _RUNNING, "training": True, "widths": _WIDE_ROWS}
    yield _row("batch_norm_with_update", BatchNorm(), batch, path="aten._batch_norm_with_update", **train, **aten)
    operator = "aten._native_batch_norm_legit_no_training"
    yield _row("batch_norm_without_update", BatchNorm(), batch, path=operator, training=False, **aten)
    yield from _modes("mkldnn_batch_norm", ("cpu",), "aten.native_batch_norm", dtypes=("float32",), ranks=(4,), grad=None)
    for layout in ("contiguous", "channels_last"):
        for name, operator in (
            ("batch_norm_of_cudnn", "aten.cudnn_batch_norm"),
            ("batch_norm_of_cuda", "aten.native_batch_norm"),
        ):
            yield from _modes(name, ("cuda",), operator, dtypes=FLOATS[1:2], layouts=(layout,), ranks=(4,))
            yield from _modes(name, ("cuda",), operator, dtypes=HALVES, weight_dtype="float32", layouts=(layout,), ranks=(4,))


def _modes(function: str, devices: tuple[str, ...], operator: str, **options: Any) -> Iterator[Implementation]:
    """A row for training and one for evaluation."""
    layout = options.get("layouts", ("contiguous",))[0]
    marks = [*(["float32 parameters"] if "weight_dtype" in options else []), *([layout] if layout != "contiguous" else [])]
    for training in (True, False):
        mark = ", ".join(["train" if training else "eval", *marks])
        own = {"training": training, "widths": _WIDE_ROWS if training else None, "mutates": _RUNNING, "devices": devices}
        yield _row(function, BatchNorm(), _BATCH, mark, path=operator, **own, **options)


def _row(function: str, norm: Norm, arguments: tuple[str, ...], mark: str = "", **options: Any) -> Implementation:
    name = f"torch.{function}[{mark}]" if mark else f"torch.{function}"
    return Implementation(Named(f"{__name__}:{function}"), norm, name=name, arguments=arguments, **options)
