"""OpenVINO on CPU: MVN over the last of four dimensions rounds its mean to bfloat16; over the last of two it does not.

Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import ml_dtypes
import numpy as np
import openvino


def largest_error(shape):
    """Largest error of the same twelve rows in this shape, in bfloat16."""
    x = openvino.opset15.parameter([-1] * len(shape), openvino.Type.bf16)
    model = openvino.Model([openvino.opset15.mvn(x, np.array([-1]), True, 1e-5, "inside_sqrt")], [x], "m")
    request = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": openvino.Type.f32}).create_infer_request()
    rows = (np.random.default_rng(0).standard_normal((12, 24)) + 0.5).astype(ml_dtypes.bfloat16)
    request.infer([openvino.Tensor(rows.reshape(shape).view(np.uint16), openvino.Shape(shape), openvino.Type.bf16)])
    y = request.get_output_tensor(0).data.view(ml_dtypes.bfloat16).astype(np.float64).reshape(12, 24)
    wide = rows.astype(np.float64)
    exact = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    return float(np.abs(y - exact).max())


two, four = largest_error((12, 24)), largest_error((2, 3, 2, 24))
print(f"largest error in four dimensions={four:.2g}, but should be {two:.2g} as in two")
sys.exit(four > two)
