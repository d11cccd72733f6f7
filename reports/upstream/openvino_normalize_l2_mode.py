"""OpenVINO: normalize_l2 of the Python API ignores eps_mode="max" and adds eps to the sum of squares.

Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import numpy as np
import openvino

x = openvino.opset15.parameter([1, 16], openvino.Type.f32)
node = openvino.opset15.normalize_l2(x, np.array([-1]), 48.0, "max")
y = openvino.Core().compile_model(openvino.Model([node], [x], "m"), "CPU")(np.ones((1, 16), np.float32))[0]
print(f"eps_mode={node.get_attributes()['eps_mode']!r}, but should be 'max'")
print(f"16 ones, eps 48: y={y[0, 0]}, but should be 1/sqrt(max(16, 48)) = {48**-0.5}")
sys.exit(bool(abs(y[0, 0] - 48**-0.5) > 1e-6))
