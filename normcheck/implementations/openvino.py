"""OpenVINO: the norms of its own operator sets, and ONNX's as it reads them, on the CPU.

Models are told to infer in float32: with no word OpenVINO takes bfloat16 on machines that have instructions for it. bfloat16 goes
in and out as it lies in memory.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from normcheck.contract import Contract
from normcheck.implementations.base import Implementation
from normcheck.implementations.numpy import FLOATS
from normcheck.implementations.onnx import SHARED, Run, ThreadedRuntime, modes, row
from normcheck.norms import EpsPlacement, L2Norm, LayerNorm

ADAPTER = ThreadedRuntime("openvino", "pip install 'normcheck[openvino]'", "onnx")
_PARTS = ("parameter", "compiled", "tensor", "values", "mvn_model", "normalize_l2_model")
NEEDS = (*SHARED, *(f"{__name__}:{part}" for part in _PARTS))


def parameter(dtype: str, rank: int) -> Any:
    """The input x of a model, with open sizes."""
    import openvino

    kinds = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
    x = openvino.opset15.parameter(openvino.PartialShape([-1] * rank), getattr(openvino.Type, kinds[dtype]))
    x.output(0).set_names({"x"})
    return x


@functools.lru_cache(maxsize=64)
def compiled(model: Any, threads: int) -> Any:
    """A model of OpenVINO, or the bytes of one of ONNX, compiled for the CPU."""
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_PRECISION_HINT": openvino.Type.f32, "INFERENCE_NUM_THREADS": threads}
    return core.compile_model(core.read_model(model) if isinstance(model, bytes) else model, "CPU", settings)


def tensor(array: Any) -> Any:
    """An array of numpy as OpenVINO has it; of bfloat16 the bits."""
    import numpy as np
    import openvino

    array = np.ascontiguousarray(array)
    if array.dtype.name == "bfloat16":
        return openvino.Tensor(array.view(np.uint16), openvino.Shape(array.shape), openvino.Type.bf16)
    return openvino.Tensor(array)


def values(result: Any) -> Any:
    """A result as an array of numpy with memory of its own."""
    import ml_dtypes
    import numpy as np

    data = np.array(result.data)
    return data.view(ml_dtypes.bfloat16) if result.element_type.get_type_name() == "bf16" else data


def run(model: Any, arrays: dict[str, Any], threads: int = 0) -> list[Any]:
    """The outputs of a model."""
    request = compiled(model, threads).create_infer_request()
    request.infer({name: tensor(array) for name, array in arrays.items() if array is not None})
    return [values(result) for result in request.output_tensors]


@functools.lru_cache(maxsize=64)
def mvn_model(dtype: str, rank: int, eps: float, mode: str) -> Any:
    """A model with one MVN-6 over the last axis."""
    import numpy as np
    import openvino

    x = parameter(dtype, rank)
    return openvino.Model([openvino.opset15.mvn(x, np.array([-1]), True, eps, mode)], [x], "norm")


@functools.lru_cache(maxsize=64)
def normalize_l2_model(dtype: str, rank: int, eps: float, mode: str) -> Any:
    """A model with one NormalizeL2-1 over the last axis."""
    import numpy as np
    import openvino

    x = parameter(dtype, rank)
    return openvino.Model([openvino.opset15.normalize_l2(x, np.array([-1]), eps, mode)], [x], "norm")


def mvn(run: Run, x: Any, eps: float, mode: Any) -> Any:
    """MVN-6 over the last axis, with eps inside or outside the root."""
    return run(mvn_model(x.dtype.name, x.ndim, eps, "outside_sqrt" if mode else "inside_sqrt"), {"x": x})[0]


def normalize_l2(run: Run, x: Any, eps: float, mode: Any) -> Any:
    """NormalizeL2-1 over the last axis: the root of the sum of squares with eps added to it, or of the larger of the two."""
    return run(normalize_l2_model(x.dtype.name, x.ndim, eps, "max" if mode else "add"), {"x": x})[0]


_WIDE = Contract(eps_dtype="float32")
# bfloat16 is rounded after each operation of a decomposed norm: behind the part that is specified in float32 before the weight
_BEFORE = Contract(eps_dtype="float32", cast="before_weight")
_NARROW = Contract(eps_dtype="float32", compute="bfloat16")


def builtins() -> Iterator[Implementation]:
    """The norms of OpenVINO's own, then those that it makes of ONNX's."""
    for function, norm, contract, marks in _OWN:
        for outside, (mark, placement) in enumerate(marks):
            own: dict[str, Any] = {"norm": replace(norm, eps_placement=placement), "arguments": ("x", "eps", bool(outside))}
            name = {"mvn": "MVN", "normalize_l2": "NormalizeL2"}[function]
            yield row(__name__, name, f"{__name__}:{function}", mark=mark, affine=False, contract=contract, **own)
    for name in ("Layer", "RMS", "Instance"):
        both = (f"{name}Normalization", f"{name.lower()}_normalization")
        yield row(__name__, *both, contract=_WIDE, dtypes=FLOATS[:3])
        yield row(__name__, *both, contract=_BEFORE, dtypes=FLOATS[3:], mark="bfloat16")
    yield row(__name__, "GroupNormalization", "group_normalization", contract=_WIDE)
    # no arithmetic is specified for it: it is that of the input's dtype
    yield from (replace(mode, contract=replace(mode.contract, compute="bfloat16")) for mode in modes(__name__, wide=()))


_OWN: tuple[tuple[str, Any, Contract, tuple[tuple[str, EpsPlacement], ...]], ...] = (
    ("mvn", LayerNorm(), _WIDE, (("inside_sqrt", "inside"), ("outside_sqrt", "outside"))),
    ("normalize_l2", L2Norm(), _NARROW, (("add", "inside"), ("max", "max_inside"))),
)
