"""ONNX Runtime: ONNX's norms and those of its own domain, on the CPU. bfloat16 goes in and out as it lies in memory."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from normcheck.contract import Contract
from normcheck.implementations.base import Implementation
from normcheck.implementations.numpy import FLOATS
from normcheck.implementations.onnx import CONTRACT, SHARED, Run, ThreadedRuntime, affine, model_of, modes, row
from normcheck.norms import InstanceNorm, LayerNorm, RMSNorm

ADAPTER = ThreadedRuntime("onnxruntime", "pip install 'normcheck[onnx]'", "onnx")
NEEDS = (*SHARED, *(f"{__name__}:{part}" for part in ("session", "value", "values", "skip")))


@functools.lru_cache(maxsize=64)
def session(model: bytes, threads: int) -> Any:
    """A session on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def value(array: Any) -> Any:
    """An array of numpy as the runtime has it, in its memory; of bfloat16 the bits."""
    import numpy as np
    import onnxruntime

    array = np.ascontiguousarray(array)
    if array.dtype.name == "bfloat16":
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), 16)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def values(result: Any) -> Any:
    """A value of the runtime as an array of numpy."""
    import ctypes
    import math

    import ml_dtypes
    import numpy as np

    if result.data_type() != "tensor(bfloat16)":
        return result.numpy()
    shape = result.shape()
    bits = bytearray(ctypes.string_at(result.data_ptr(), 2 * math.prod(shape)))
    return np.frombuffer(bits, ml_dtypes.bfloat16).reshape(shape)


def run(model: bytes, arrays: dict[str, Any], threads: int = 0) -> list[Any]:
    """The outputs of a model."""
    given = {name: value(array) for name, array in arrays.items() if array is not None}
    return [values(result) for result in session(model, threads).run_with_ort_values(None, given)]


def simplified_layer_normalization(run: Run, x: Any, weight: Any, normalized_shape: Any, eps: float) -> Any:
    """SimplifiedLayerNormalization-1."""
    arrays, axis = {"x": x, "weight": affine(weight, None, normalized_shape, x.dtype)["weight"]}, -len(normalized_shape)
    return run(model_of("SimplifiedLayerNormalization", 17, arrays, {"y": "x"}, axis=axis, epsilon=eps), arrays)[0]


def skip(run: Run, operator: str, x: Any, residual: Any, parameters: dict[str, Any], eps: float) -> Any:
    """One of the norms behind a sum, and the sum; no residual is one of -0, which leaves every x as it is."""
    import numpy as np

    arrays = {"x": x, "residual": -np.zeros_like(x) if residual is None else residual, **parameters}
    outputs = {"y": "x", "mean": "", "rstd": "", "new_residual": "x"}
    return tuple(run(model_of(operator, 17, arrays, outputs, "com.microsoft", epsilon=eps), arrays))


def skip_layer_normalization(run: Run, x: Any, weight: Any, bias: Any, residual: Any, eps: float) -> Any:
    """SkipLayerNormalization."""
    return skip(run, "SkipLayerNormalization", x, residual, affine(weight, bias, x.shape[-1:], x.dtype), eps)


def skip_simplified_layer_normalization(run: Run, x: Any, weight: Any, residual: Any, eps: float) -> Any:
    """SkipSimplifiedLayerNormalization."""
    own = {"weight": affine(weight, None, x.shape[-1:], x.dtype)["weight"]}
    return skip(run, "SkipSimplifiedLayerNormalization", x, residual, own, eps)


def mean_variance_normalization(run: Run, x: Any) -> Any:
    """MeanVarianceNormalization-13 over space; its eps is 1e-9 and stands outside the root."""
    arrays = {"x": x}
    return run(model_of("MeanVarianceNormalization", 17, arrays, {"y": "x"}, axes=list(range(2, x.ndim))), arrays)[0]


_NARROW = FLOATS[:3]
FUSED = Contract(eps_dtype="float32", residual_rounding="compute")
_SKIP: dict[str, Any] = {"dtypes": FLOATS[1:], "ranks": (2, 3), "residual": True, "contract": FUSED}


def builtins() -> Iterator[Implementation]:
    """The norms that have a kernel for the CPU, or a function that is made of such."""
    own = f"{__name__}:"
    yield row(__name__, "LayerNormalization", "layer_normalization")
    yield row(__name__, "RMSNormalization", "rms_normalization", dtypes=_NARROW)
    yield row(
        __name__,
        "SimplifiedLayerNormalization",
        f"{own}simplified_layer_normalization",
        norm=RMSNorm(eps=1e-5),
        arguments=("x", "weight", "normalized_shape", "eps"),
    )
    yield row(
        __name__,
        "SkipLayerNormalization",
        f"{own}skip_layer_normalization",
        norm=LayerNorm(),
        arguments=("x", "weight", "bias", "residual", "eps"),
        **_SKIP,
    )
    yield row(
        __name__,
        "SkipSimplifiedLayerNormalization",
        f"{own}skip_simplified_layer_normalization",
        norm=RMSNorm(eps=1e-5),
        arguments=("x", "weight", "residual", "eps"),
        **_SKIP,
    )
    # its function computes in float32 whatever the dtype
    yield row(__name__, "GroupNormalization", "group_normalization", dtypes=_NARROW[1:])
    yield row(__name__, "InstanceNormalization", "instance_normalization", dtypes=_NARROW[1:])
    yield row(
        __name__,
        "MeanVarianceNormalization",
        f"{own}mean_variance_normalization",
        norm=InstanceNorm(eps=1e-9, eps_placement="outside"),
        arguments=("x",),
        affine=False,
        dtypes=_NARROW[1:],
        contract=CONTRACT,
    )
    yield from modes(__name__, _NARROW, ("float16",))
