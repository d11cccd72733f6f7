"""OpenVINO: eps of a float16 model is rounded to float16, and a row of zeros is NaN although eps is not zero.

Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import numpy as np
import openvino

x = openvino.opset15.parameter([1, 4], openvino.Type.f16)
node = openvino.opset15.normalize_l2(x, np.array([-1]), 1e-12, "add")
y = openvino.Core().compile_model(openvino.Model([node], [x], "m"), "CPU")(np.zeros((1, 4), np.float16))[0]
print(f"eps 1e-12, four zeros: y={y.ravel().tolist()}, but should be 0")
sys.exit(bool(np.isnan(y).any()))
