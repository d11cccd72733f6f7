"""A norm in a saved ONNX model: its node is taken out as it is and run alone by ONNX Runtime: so every input can be given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from normcheck.implementations.base import Implementation, MissingPackageError
from normcheck.implementations.onnx import CONTRACT, MOVING, Operator, Run, model_of
from normcheck.implementations.onnxruntime import FUSED
from normcheck.implementations.registry import frameworks
from normcheck.implementations.targets import TargetError, describe
from normcheck.norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, Norm, RMSNorm

SUFFIX = ".onnx"
_AFFINE = ("x", "weight", "bias")
_ROLES: dict[str, tuple[str, ...]] = {
    "LayerNormalization": _AFFINE,
    "RMSNormalization": _AFFINE[:2],
    "SimplifiedLayerNormalization": _AFFINE[:2],
    "SkipLayerNormalization": ("x", "residual", "weight", "bias"),
    "SkipSimplifiedLayerNormalization": ("x", "residual", "weight"),
    "GroupNormalization": _AFFINE,
    "InstanceNormalization": _AFFINE,
    "BatchNormalization": (*_AFFINE, "running_mean", "running_var"),
}
_WITH_AXIS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
_CONTRACTS = {"BatchNormalization": MOVING, "SkipLayerNormalization": FUSED, "SkipSimplifiedLayerNormalization": FUSED}
_EPS = dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), 1e-12)
"""What ONNX Runtime's own operators take where the node says nothing; ONNX's take 1e-5."""
_DTYPES = {"DOUBLE": "float64", "FLOAT": "float32", "FLOAT16": "float16", "BFLOAT16": "bfloat16"}


def run_node(run: Run, *passed: Any) -> Any:
    """One node on arrays in its order; the last argument says which: operator, opset, domain, inputs, outputs and attributes."""
    import numpy as np

    *values, (operator, opset, domain, inputs, outputs, attributes) = passed
    arrays, settings = dict(zip(inputs, values, strict=True)), dict(attributes)
    x = arrays["x"]
    channels = operator in ("GroupNormalization", "InstanceNormalization", "BatchNormalization")
    sizes = x.shape[1:2] if channels else x.shape[settings.get("axis", -1) :]
    neutral = {"weight": 1.0, "running_var": 1.0, "residual": -0.0}
    for name, array in arrays.items():
        like = x.shape if name in ("x", "residual") else sizes
        arrays[name] = np.full(like, neutral.get(name, 0.0), x.dtype) if array is None else array.reshape(like)
    returned = run(model_of(operator, opset, arrays, dict(outputs), domain, **settings), arrays)
    return returned[0] if len(returned) == 1 else tuple(returned)


@dataclass(frozen=True)
class _Node:
    """A norm of a model, and what the model says about the values around it: dtype and sizes by name."""

    node: Any
    opset: int
    known: Mapping[str, tuple[str, tuple[int | None, ...]]]

    @property
    def name(self) -> str:
        """Its name, or that of its first output where it has none."""
        return str(self.node.name or self.node.output[0])

    @property
    def attributes(self) -> dict[str, Any]:
        """Its attributes by name."""
        from onnx import helper

        return {one.name: helper.get_attribute_value(one) for one in self.node.attribute}

    @property
    def inputs(self) -> tuple[str, ...]:
        """The roles of its inputs."""
        roles = _ROLES[self.node.op_type]
        if any(self.node.input[len(roles) :]):
            raise TargetError(f"node {self.name!r} adds {self.node.input[len(roles)]!r} before the norm, which no norm here does")
        return tuple(role for role, name in zip(roles, self.node.input, strict=False) if name)

    def of(self, role: str) -> tuple[str, tuple[int | None, ...]] | None:
        """Dtype and sizes of an input, where the model says so."""
        names = dict(zip(_ROLES[self.node.op_type], self.node.input, strict=False))
        return self.known.get(names.get(role, ""))


def implementation_in(path: str, node: str = "", **contract: Any) -> Implementation:
    """The norm in a saved model as an implementation for ONNX Runtime, with its own attributes and dtypes.

    Its weights are given anew by every check; with LayerNormalization and its like their shape says what is normalized.

    Parameters
    ----------
    path : of the file
    node : name of the node, or of its output; needed where the model has several norms
    contract : fields of `Contract` that differ from what the operator is specified to do

    Raises
    ------
    TargetError : if the file cannot be read, has no norm, several and no name is given, none of that name, or one that is not
        fully described
    MissingPackageError : if onnx or onnxruntime is not installed
    """
    found = _chosen(path, node)
    operator, norm = found.node.op_type, _norm(found)
    attributes = {**found.attributes, **_axis(operator, norm)}
    training = bool(attributes.get("training_mode", 0)) if norm.has_running else None
    outputs: tuple[tuple[str, str], ...] = (("y", "x"),)
    if training:
        outputs = (*outputs, ("new_mean", "running_mean"), ("new_var", "running_var"))
    residual = "residual" in found.inputs
    if residual:
        outputs = (*outputs, ("mean", ""), ("rstd", ""), ("new_residual", "x"))
    spec = (operator, found.opset, found.node.domain, found.inputs, outputs, tuple(sorted(attributes.items())))
    dtype = _dtype(found, "x") or _dtype(found, "weight") or "float32"
    own = _dtype(found, "weight") or dtype
    return Implementation(
        Operator(f"{__name__}:run_node", "normcheck.implementations.onnxruntime"),
        norm,
        contract=replace(_CONTRACTS.get(operator, CONTRACT), **contract),
        name=f"{path}:{found.name}",
        framework="onnxruntime",
        dtypes=(dtype,),
        weight_dtype=None if own == dtype else own,
        arguments=(*found.inputs, spec),
        residual=residual,
        training=training,
        grad=None,
        validates=False,
        ranks=(2, 3) if residual else None,
        known_as=_known_as(operator, training),
    )


def _known_as(operator: str, training: bool | None) -> str:
    """The name of the operator in the list of ONNX Runtime's."""
    mode = {None: "", True: "[train]", False: "[eval]"}[training]
    return f"onnxruntime.{operator}{mode}"


def _axis(operator: str, norm: Norm) -> dict[str, int]:
    """The axis, where the operator has one, counted from the end, so that it holds for every rank."""
    sizes = getattr(norm, "normalized_shape", None) or (0,)
    return {"axis": -len(sizes)} if operator in _WITH_AXIS else {}


def _chosen(path: str, node: str) -> _Node:
    """The norm that is meant."""
    found, others = _norms(path)
    shared = [one.name for one in found]
    called = [one.name if shared.count(one.name) == 1 else one.node.output[0] for one in found]
    names = ", ".join(f"{name!r} ({one.node.op_type})" for name, one in zip(called, found, strict=True))
    if not found:
        text = f"model {path!r} has no norm among its operators {', '.join(others) or '(none)'}; known are {', '.join(_ROLES)}"
        raise TargetError(f"{text}; of one that is written out in several, the layer that was exported can be judged")
    if not node:
        if len(found) > 1:
            raise TargetError(f"model {path!r} has {len(found)} norms, of which --node should choose one: {names}")
        return found[0]
    chosen = [one for one in found if node in (one.node.name, one.node.output[0])]
    if not chosen:
        raise TargetError(f"node={node!r}, but model {path!r} has {names}")
    if len(chosen) > 1:
        outputs = ", ".join(repr(one.node.output[0]) for one in chosen)
        raise TargetError(f"node={node!r} is the name of {len(chosen)} norms, but should be the output of one: {outputs}")
    return chosen[0]


def _norms(path: str) -> tuple[list[_Node], list[str]]:
    """The norms of a model, and its other operators."""
    for name in ("onnx", "onnxruntime"):
        line = frameworks()[name].available()
        if line is not None:
            raise MissingPackageError(f"{name} is not installed; {line}")
    import onnx

    try:
        model = onnx.shape_inference.infer_shapes(onnx.load(path, load_external_data=False))
    except Exception as error:  # noqa: BLE001 (parsers of files raise anything)
        raise TargetError(f"model {path!r} cannot be read: {describe(error)}") from None
    opsets = {one.domain: one.version for one in model.opset_import}
    graphs = list(_graphs(model.graph))
    known = {name: said for graph in graphs for name, said in _known(graph).items()}
    nodes = [node for graph in graphs for node in graph.node]
    norms = [_Node(one, opsets.get("", 1), known) for one in nodes if one.op_type in _ROLES]
    return norms, sorted({one.op_type for one in nodes})


def _graphs(graph: Any) -> Iterator[Any]:
    """A graph and those inside its nodes, such as the branches of an If."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _graphs(inner)


def _known(graph: Any) -> dict[str, tuple[str, tuple[int | None, ...]]]:
    """Dtype and sizes of what a graph describes, by name."""
    from onnx import TensorProto

    found: dict[str, tuple[str, tuple[int | None, ...]]] = {}
    for one in (*graph.input, *graph.value_info, *graph.output):
        kind = one.type.tensor_type
        if kind.HasField("shape"):
            sizes = tuple(size.dim_value if size.HasField("dim_value") else None for size in kind.shape.dim)
            found[one.name] = (TensorProto.DataType.Name(kind.elem_type), sizes)
    for one in graph.initializer:
        found[one.name] = (TensorProto.DataType.Name(one.data_type), tuple(one.dims))
    return found


def _dtype(found: _Node, role: str) -> str | None:
    """The dtype of an input by its name here, where the model says it."""
    said = found.of(role)
    if said is None:
        return None
    if said[0] not in _DTYPES:
        raise TargetError(f"node {found.name!r} has {role} in {said[0]}, but should have one of {', '.join(_DTYPES)}")
    return _DTYPES[said[0]]


def _norm(found: _Node) -> Norm:
    """What the node is specified to compute."""
    attributes, operator = found.attributes, found.node.op_type
    eps = float(attributes.get("epsilon", np.float32(_EPS.get(operator, 1e-5))))
    if operator == "GroupNormalization":
        if found.opset < 21:
            raise TargetError(f"opset={found.opset}, but GroupNormalization has a weight for each channel from opset 21 on")
        return GroupNorm(int(attributes["num_groups"]), eps=eps)
    if operator == "InstanceNormalization":
        return InstanceNorm(eps=eps)
    if operator == "BatchNormalization":
        if attributes.get("spatial", 1) != 1:
            raise TargetError(f"node {found.name!r} has spatial=0, but statistics should be those of channels")
        return BatchNorm(eps=eps, momentum=float(attributes.get("momentum", 0.9)))
    kind = LayerNorm if operator in ("LayerNormalization", "SkipLayerNormalization") else RMSNorm
    return kind(normalized_shape=_sizes(found), eps=eps)


def _sizes(found: _Node) -> tuple[int, ...] | None:
    """The dimensions that are normalized together: those of x behind the axis; where they are open the weight's, or the last."""
    weight, x = found.of("weight"), found.of("x")
    axis = int(found.attributes.get("axis", -1))
    count = -axis if axis < 0 else len(x[1]) - axis if x is not None else len(weight[1]) if weight is not None else 0
    for said in (x[1][-count:] if x is not None and count else None, weight[1] if weight is not None else None):
        if said is not None and len(said) == count and None not in said:
            return tuple(size for size in said if size is not None)
    if count == 1:
        return None
    raise TargetError(f"node {found.name!r} has axis={axis}, but the model says neither the weight's sizes nor those of x")
