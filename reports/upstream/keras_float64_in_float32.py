"""Keras on torch and numpy: layers of dtype float64 calculate in float32, because result_type("float64", "float32") is float32.

The result comes back as float64, with errors of float32; on tensorflow it is exact to 1e-16. Exits with 1 where the fault shows,
with 0 where it is mended or where the backend's package is missing.
"""

import os
import subprocess
import sys

SOURCE = """
import keras
import numpy as np

x = np.array([[1.0, 2.0, 4.0, 8.0]])
c = x - x.mean()
y = keras.ops.convert_to_numpy(keras.layers.LayerNormalization(dtype="float64")(x))
print(y.dtype, np.abs(y - c / np.sqrt((c * c).mean() + 1e-3)).max(), keras.backend.result_type("float64", "float32"))
"""

shown = False
for backend in ("torch", "numpy", "tensorflow"):
    given = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run([sys.executable, "-c", SOURCE], capture_output=True, text=True, check=False, env=given)  # noqa: S603
    if done.returncode == 0:
        dtype, error, promoted = done.stdout.split()
        print(f"{backend}: error of {dtype}={error}, but should be below 1e-15; result_type gives {promoted}")
        shown |= float(error) > 1e-15
sys.exit(shown)
