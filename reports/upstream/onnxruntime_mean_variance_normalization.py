"""ONNX Runtime: MeanVarianceNormalization leaves out the 1e-9 that ONNX's function adds to the deviation.

A constant row is NaN. Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", "C", "L"]) for name in "xy"]
node = helper.make_node("MeanVarianceNormalization", ["x"], ["y"], axes=[2])
graph = helper.make_graph([node], "g", values[:1], values[1:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
constant = session.run(None, {"x": np.full((1, 1, 4), 2.0, np.float32)})[0]
small = session.run(None, {"x": np.array([[[1e-9, -1e-9]]], np.float32)})[0]
print(f"constant row: y={constant.ravel().tolist()}, but should be 0")
print(f"row of deviation 1e-9: y={small.ravel().tolist()}, but should be +-0.5")
sys.exit(bool(np.isnan(constant).any() or abs(small[0, 0, 0] - 0.5) > 0.01))
