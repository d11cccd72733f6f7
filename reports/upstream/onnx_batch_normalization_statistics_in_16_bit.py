"""onnx: the reference evaluator returns the running statistics of BatchNormalization in x's dtype, and not in that of the inputs.

ONNX gives them the type T2 of the statistics that go in. Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

names, outputs = ["x", "w", "b", "m", "v"], ["y", "new_m", "new_v"]
kinds = [TensorProto.FLOAT16, *[TensorProto.FLOAT] * 4, TensorProto.FLOAT16, *[TensorProto.FLOAT] * 2]
values = [helper.make_tensor_value_info(name, kind, None) for name, kind in zip([*names, *outputs], kinds, strict=True)]
node = helper.make_node("BatchNormalization", names, outputs, training_mode=1)
graph = helper.make_graph([node], "g", values[:5], values[5:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)])
x = np.array([[1.0], [3.0]], np.float16)
given = {name: np.full(1, name in "wv", np.float32) for name in names[1:]}
_, mean, _ = ReferenceEvaluator(model).run(None, {"x": x, **given})
print(
    f"dtype of the running mean={mean.dtype}, but should be float32; its value={float(mean[0])!r}, but should be 0.2 to 7 digits"
)
sys.exit(mean.dtype != np.float32)
