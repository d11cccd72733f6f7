"""ONNX: the function body of GroupNormalization computes E[x**2] - E[x]**2, and so does every runtime without a kernel for it.

At mean/std = 1000 half of the result is lost, at 10000 it is NaN. Exits with 1 where the fault shows, with 0 where it is mended.
The runtime is ONNX Runtime where it is installed, else onnx's reference evaluator.
"""

import sys

import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

names = ["x", "w", "b"]
values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in [*names, "y"]]
node = helper.make_node("GroupNormalization", names, ["y"], num_groups=4)
graph = helper.make_graph([node], "g", values[:3], values[3:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
x = (np.random.default_rng(0).standard_normal((2, 8, 16, 16)) + 1000).astype(np.float32)
given = {"x": x, "w": np.ones(8, np.float32), "b": np.zeros(8, np.float32)}
rows = x.astype(np.float64).reshape(2, 4, -1)
rows = rows - rows.mean(-1, keepdims=True)
exact = (rows / np.sqrt(np.square(rows).mean(-1, keepdims=True) + 1e-5)).reshape(x.shape)
found = {"onnx": ReferenceEvaluator(model).run(None, given)[0]}
try:
    import onnxruntime

    found["onnxruntime"] = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, given)[0]
except ImportError:
    pass
errors = {name: float(np.nan_to_num(np.abs(y - exact), nan=np.inf).max()) for name, y in found.items()}
for name, error in errors.items():
    print(f"{name}: largest error={error:.2g}, but should be about 1e-4 as with two passes")
sys.exit(max(errors.values()) > 0.01)
