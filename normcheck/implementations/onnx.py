"""ONNX: its norms as functions that make a model of one node, and its reference evaluator, which runs models in numpy.

Other runtimes of ONNX stand in their own files and take the functions from here. Arrays are numpy's; eps is a float32 attribute.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from normcheck.contract import Contract
from normcheck.implementations.base import Implementation
from normcheck.implementations.numpy import FLOATS, Numpy
from normcheck.implementations.targets import Named, Pasted
from normcheck.norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, Norm, RMSNorm

Run = Callable[..., list[Any]]


class Runtime(Numpy):
    """The adapter of a runtime whose arrays are numpy's.

    Parameters
    ----------
    name : of the package
    line : installs what is needed
    packages : that are needed beside it
    """

    def __init__(self, name: str, line: str, *packages: str) -> None:
        self.name = name
        self._line = line
        self._needed = (name, *packages)

    def available(self) -> str | None:
        """None, or the line that installs what is missing."""
        return None if all(map(importlib.util.find_spec, self._needed)) else self._line

    def version(self) -> str:
        """The runtime's version."""
        return importlib.metadata.version(self.name)


class ThreadedRuntime(Runtime):
    """A runtime with threads of its own inside one operation; 0 lets it choose their number."""

    def __init__(self, name: str, line: str, *packages: str) -> None:
        super().__init__(name, line, *packages)
        self._threads = 0

    def pin_threads(self, count: int) -> None:
        """Set the number of threads inside one operation."""
        self._threads = count

    def threads(self) -> int:
        """The number that was set."""
        return self._threads


@dataclass(frozen=True)
class Operator(Pasted):
    """A function that builds and runs a model, bound to a runtime.

    Parameters
    ----------
    target : the function; called with the runtime's ``run`` before what an implementation passes
    place : module of the runtime: its ``run(model, arrays, threads)``, what that needs in ``NEEDS``, and its ``ADAPTER``
    """

    place: str = __name__

    def __call__(self, *passed: Any) -> Any:
        """Run the model with the runtime's number of threads."""
        run = functools.partial(Named(f"{self.place}:run"), threads=Named(f"{self.place}:ADAPTER.threads")())
        return Named(self.target)(run, *passed)

    @property
    def source(self) -> str:
        """The function under its name with the runtime bound, after all that it uses."""
        parts: list[str] = []
        for target in (self.target, f"{self.place}:run", *reversed(importlib.import_module(self.place).NEEDS)):
            if not parts or re.search(rf"\b{target.rpartition(':')[2]}\(", "\n".join(parts)):
                parts.insert(0, Pasted(target).source)
        name = self.target.rpartition(":")[2]
        return "\n\n".join(["import functools", *parts, f"{name} = functools.partial({name}, run)"])


def model_of(
    operator: str, opset: int, arrays: dict[str, Any], outputs: dict[str, str], domain: str = "", **attributes: Any
) -> bytes:
    """A model of one node, in ONNX's bytes, whose sizes are all open.

    Parameters
    ----------
    arrays : inputs by name, in the node's order; an optional one may be None
    outputs : for each output of the node the input whose dtype and rank it has, or ``""`` for one that is not asked for
    """
    from onnx import helper

    def described(name: str, like: Any) -> Any:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(like.dtype), [None] * like.ndim)

    given = {name: array for name, array in arrays.items() if array is not None}
    names = [name if name in given else "" for name in arrays]
    results = [name if like else "" for name, like in outputs.items()]
    node = helper.make_node(operator, names, results, "norm", domain=domain, **attributes)
    described_outputs = [described(name, given[like]) for name, like in outputs.items() if like]
    graph = helper.make_graph([node], operator, [described(*one) for one in given.items()], described_outputs)
    opsets = [helper.make_opsetid("", opset), *[helper.make_opsetid(domain, 1)] * bool(domain)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def affine(weight: Any, bias: Any, shape: Any, dtype: Any) -> dict[str, Any]:
    """Weight and bias of a node that must have both, in this shape; ones and zeros where none are given."""
    import numpy as np

    weight = np.ones(shape, dtype) if weight is None else weight
    bias = np.zeros(shape, dtype) if bias is None else bias
    return {"weight": weight.reshape(shape), "bias": bias.reshape(shape)}


def layer_normalization(run: Run, x: Any, weight: Any, bias: Any, normalized_shape: Any, eps: float) -> Any:
    """LayerNormalization-17."""
    arrays = {"x": x, **affine(weight, bias, normalized_shape, x.dtype)}
    return run(model_of("LayerNormalization", 17, arrays, {"y": "x"}, axis=-len(normalized_shape), epsilon=eps), arrays)[0]


def rms_normalization(run: Run, x: Any, weight: Any, normalized_shape: Any, eps: float) -> Any:
    """RMSNormalization-23."""
    arrays = {"x": x, "weight": affine(weight, None, normalized_shape, x.dtype)["weight"]}
    return run(model_of("RMSNormalization", 23, arrays, {"y": "x"}, axis=-len(normalized_shape), epsilon=eps), arrays)[0]


def group_normalization(run: Run, x: Any, num_groups: int, weight: Any, bias: Any, eps: float) -> Any:
    """GroupNormalization-21."""
    arrays = {"x": x, **affine(weight, bias, x.shape[1], x.dtype)}
    return run(model_of("GroupNormalization", 21, arrays, {"y": "x"}, num_groups=num_groups, epsilon=eps), arrays)[0]


def instance_normalization(run: Run, x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """InstanceNormalization-22."""
    arrays = {"x": x, **affine(weight, bias, x.shape[1], x.dtype)}
    return run(model_of("InstanceNormalization", 22, arrays, {"y": "x"}, epsilon=eps), arrays)[0]


def batch_normalization(
    run: Run, x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    """BatchNormalization-15. In training all three outputs are declared; statistics that are not given begin at 0 and 1."""
    state = affine(var, mean, x.shape[1], x.dtype if weight is None else weight.dtype)
    own = affine(weight, bias, x.shape[1], state["weight"].dtype)
    arrays = {"x": x, **own, "mean": state["bias"], "var": state["weight"]}
    outputs = {"y": "x", "new_mean": "mean", "new_var": "var"} if training else {"y": "x"}
    model = model_of("BatchNormalization", 15, arrays, outputs, epsilon=eps, momentum=momentum, training_mode=int(training))
    y, *new = run(model, arrays)
    return (y, None, None) if mean is None else (y, *(new or (mean, var)))


SHARED = (f"{__name__}:model_of", f"{__name__}:affine")
NEEDS = (*SHARED, f"{__name__}:evaluator")


@functools.lru_cache(maxsize=64)
def evaluator(model: bytes) -> Any:
    """The evaluator of a model; types that ONNX does not allow are refused, as the evaluator itself does not."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(onnx.shape_inference.infer_shapes(onnx.load_from_string(model), check_type=True))


def run(model: bytes, arrays: dict[str, Any], threads: int = 1) -> list[Any]:  # noqa: ARG001 (of every runtime)
    """The outputs of a model by onnx's reference evaluator, which knows one thread."""
    return list(evaluator(model).run(None, {name: array for name, array in arrays.items() if array is not None}))


ADAPTER = Runtime("onnx", "pip install 'normcheck[onnx]'")

CONTRACT = Contract(eps_dtype="float32")
# momentum is the old statistic's share, and the running variance is the biased one
MOVING = Contract(eps_dtype="float32", running_ddof=0, momentum_convention="keras")
HALVES = FLOATS[2:]
_STATE = ("x", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
_MANY = range(2, 2**62)


def builtins() -> Iterator[Implementation]:
    """The reference evaluator's norms. GroupNormalization is specified to compute in float32 whatever the dtype."""
    yield row(__name__, "LayerNormalization", "layer_normalization")
    yield row(__name__, "RMSNormalization", "rms_normalization")
    rounded = replace(CONTRACT, cast="before_weight")
    yield row(__name__, "GroupNormalization", "group_normalization", contract=rounded, dtypes=FLOATS[1:])
    # where no arithmetic is specified it is that of the input's dtype
    own = replace(CONTRACT, compute="bfloat16")
    yield row(__name__, "InstanceNormalization", "instance_normalization", contract=own)
    for mode in modes(__name__):
        yield mode if mode.training else replace(mode, contract=replace(mode.contract, compute="bfloat16"))


# 0.9 as a float32 attribute holds it
_MOMENTUM = float(np.float32(0.9))
_ROWS: dict[str, tuple[Norm, tuple[str, ...]]] = {
    "layer_normalization": (LayerNorm(), ("x", "weight", "bias", "normalized_shape", "eps")),
    "rms_normalization": (RMSNorm(eps=1e-5), ("x", "weight", "normalized_shape", "eps")),
    "group_normalization": (GroupNorm(4), ("x", "num_groups", "weight", "bias", "eps")),
    "instance_normalization": (InstanceNorm(), ("x", "weight", "bias", "eps")),
    "batch_normalization": (BatchNorm(momentum=_MOMENTUM), _STATE),
}


def row(place: str, operator: str, function: str, **options: Any) -> Implementation:
    """An operator of ONNX in a runtime, as an implementation.

    Parameters
    ----------
    place : module of the runtime, see `Operator`
    operator : its name; the row's is that with the runtime's before it
    function : of this module, or the target of another
    options : any of `Implementation`, and ``mark``, which stands in brackets behind the name
    """
    target = function if ":" in function else f"{__name__}:{function}"
    framework = place.rpartition(".")[2]
    mark = options.pop("mark", "")
    norm, arguments = options.pop("norm", None), options.pop("arguments", None)
    if norm is None:
        norm, arguments = _ROWS[function]
    return Implementation(
        Operator(target, place),
        norm,
        name=f"{framework}.{operator}" + (f"[{mark}]" if mark else ""),
        framework=framework,
        arguments=arguments,
        **{"contract": CONTRACT, "dtypes": FLOATS, "grad": None, "validates": False, **options},
    )


def modes(place: str, dtypes: tuple[str, ...] = FLOATS, wide: tuple[str, ...] = HALVES) -> Iterator[Implementation]:
    """BatchNormalization in training and in evaluation, and with float32 parameters where x has one of the dtypes ``wide``."""
    for training, mark in ((True, "train"), (False, "eval")):
        own: dict[str, Any] = {"contract": MOVING, "training": training, "widths": _MANY if training else None}
        yield row(place, "BatchNormalization", "batch_normalization", mark=mark, dtypes=dtypes, **own)
        if wide:
            full = f"{mark}, float32 parameters"
            yield row(place, "BatchNormalization", "batch_normalization", mark=full, dtypes=wide, weight_dtype="float32", **own)
