"""onnx: the reference evaluator computes LayerNormalization and RMSNormalization in 16 bit, although stash_type=1 says float32.

Squares of 300 overflow float16, and every output is 0 where it should be +-1. Batch statistics of BatchNormalization overflow in
the same way. Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator


def largest_error(operator, opset, x, outputs=("y",), **attributes):
    """Largest error of +-300 in float16, of which every norm makes +-1."""
    names = {"LayerNormalization": ["x", "w", "b"], "RMSNormalization": ["x", "w"]}.get(operator, ["x", "w", "b", "m", "v"])
    parameters = {name: np.full(4, name in "wv", np.float16) for name in names[1:]}
    described = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, None) for name in [*names, *outputs]]
    node = helper.make_node(operator, names, outputs, **attributes)
    graph = helper.make_graph([node], "g", described[: len(names)], described[len(names) :])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    y = ReferenceEvaluator(model).run(None, {"x": x, **parameters})[0]
    return np.abs(y - np.sign(x)).max()


x = np.array([[300, -300, 300, -300]] * 2, np.float16)
x[1] *= -1
errors = {
    "LayerNormalization": largest_error("LayerNormalization", 17, x),
    "RMSNormalization": largest_error("RMSNormalization", 23, x),
    "BatchNormalization": largest_error("BatchNormalization", 15, x, ("y", "new_m", "new_v"), training_mode=1),
}
for operator, error in errors.items():
    print(f"{operator} of +-300 in float16: largest error={error}, but should be below 0.001")
sys.exit(max(errors.values()) > 0.001)
