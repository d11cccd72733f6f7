"""OpenVINO: Convert from float32 to bfloat16 rounds to nearest only where the kept digits are odd; else it truncates.

A quarter of all values come out one unit away from the nearest. Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import ml_dtypes
import numpy as np
import openvino

x = openvino.opset15.parameter([-1], openvino.Type.f32)
model = openvino.Model([openvino.opset15.convert(x, "bf16")], [x], "m")
convert = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": openvino.Type.f32})
values = np.append(np.float32(1.0077), np.random.default_rng(0).standard_normal(4096, np.float32))
found = convert(values)[0].view(ml_dtypes.bfloat16)
wrong = found != values.astype(ml_dtypes.bfloat16)
print(f"1.0077 becomes {found[0]}, but should be 1.00781")
print(f"share of wrong values={wrong.mean():.2f}, but should be 0")
sys.exit(bool(wrong.any()))
