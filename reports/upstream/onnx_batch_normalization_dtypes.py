"""onnx: the reference evaluator's BatchNormalization treats statistics that are in another dtype than x as it should not.

New running statistics come back in x's dtype, where ONNX gives them that of those which went in. The root of a given variance is
taken in its own dtype, so that float64 results have the digits of float32. Exits with 1 where the fault shows, with 0 where it is
mended.
"""

import sys

import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

NAMES = ("x", "w", "b", "m", "v")


def normalized(x, kind, variance, training):
    """Outputs for statistics and parameters in float32."""
    outputs = ["y", "new_m", "new_v"][: 3 if training else 1]
    kinds = [kind, *[TensorProto.FLOAT] * 4, kind, *[TensorProto.FLOAT] * 2]
    values = [helper.make_tensor_value_info(name, one, None) for name, one in zip([*NAMES, *outputs], kinds, strict=False)]
    node = helper.make_node("BatchNormalization", NAMES, outputs, training_mode=int(training))
    graph = helper.make_graph([node], "g", values[:5], values[5:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)])
    given = {"w": 1, "b": 0, "m": 0, "v": variance}
    return ReferenceEvaluator(model).run(None, {"x": x, **{name: np.full(1, given[name], np.float32) for name in given}})


_, mean, _ = normalized(np.array([[1.0], [3.0]], np.float16), TensorProto.FLOAT16, 1, True)
print(f"running mean={float(mean[0])!r} in {mean.dtype}, but should be 0.2 in float32")
(y,) = normalized(np.array([[1.0]]), TensorProto.DOUBLE, 2, False)
exact = 1 / np.sqrt(2 + float(np.float32(1e-5)))
print(f"y={y[0, 0]!r}, but should be {exact!r}")
sys.exit(bool(mean.dtype != np.float32 or abs(y[0, 0] - exact) > 1e-12))
