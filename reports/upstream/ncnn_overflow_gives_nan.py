"""ncnn: a finite row whose squares overflow comes out as NaN.

Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys
import tempfile
from pathlib import Path

import ncnn
import numpy as np

net = ncnn.Net()
for name in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage"):
    setattr(net.opt, f"use_{name}", False)
with tempfile.TemporaryDirectory() as folder:
    parameters, model = Path(folder, "net.param"), Path(folder, "net.bin")
    parameters.write_text("7767517\n2 2\nInput in 0 1 x\nRMSNorm norm 1 1 x y 0=4 1=1.0e-05 2=1\n", encoding="utf-8")
    model.write_bytes(np.ones(4, np.float32).tobytes())
    net.load_param(str(parameters))
    net.load_model(str(model))
x = np.full(4, 1e20, np.float32)
extractor = net.create_extractor()
extractor.input("x", ncnn.Mat(x).clone())
y = np.array(extractor.extract("y")[1])
print(f"RMSNorm of four times 1e20: y={y.tolist()}, but should be 1")
sys.exit(bool(np.isnan(y).any()))
