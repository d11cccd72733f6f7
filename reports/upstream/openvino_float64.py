"""OpenVINO: models in float64 are computed in float32, without a word.

Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import numpy as np
import openvino

x = openvino.opset15.parameter([1, 4], openvino.Type.f64)
node = openvino.opset15.mvn(x, np.array([-1]), True, 1e-5, "inside_sqrt")
row = np.array([[1.0, 2.0, 4.0, 8.0]])
y = openvino.Core().compile_model(openvino.Model([node], [x], "m"), "CPU")(row)[0]
exact = (row - row.mean()) / np.sqrt(row.var() + 1e-5)
error = np.abs(y - exact).max()
print(f"dtype={y.dtype}; largest error={error:.2g}, but should be about 1e-16")
sys.exit(bool(error > 1e-12))
