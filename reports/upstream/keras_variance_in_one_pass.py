"""Keras on torch and on numpy: keras.ops.moments computes E[x**2] - E[x]**2, and lets it become negative.

BatchNormalization and GroupNormalization return NaN or garbage at mean/std = 3000 in float32; on tensorflow and jax they do not.
Exits with 1 where the fault shows, with 0 where it is mended or where the backend's package is missing.
"""

import os
import subprocess
import sys

SOURCE = """
import keras
import numpy as np

x = np.random.default_rng(0).standard_normal((16, 32, 8)).astype(np.float32) + 3000
batch, group = keras.layers.BatchNormalization(), keras.layers.GroupNormalization(2)
for y in map(keras.ops.convert_to_numpy, (batch(x, training=True), group(x))):
    print(float(np.abs(y).max()) if np.isfinite(y).all() else float("nan"))
"""

shown = False
for backend in ("torch", "numpy", "tensorflow"):
    given = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run([sys.executable, "-c", SOURCE], capture_output=True, text=True, check=False, env=given)  # noqa: S603
    found = [float(line) for line in done.stdout.split()]
    print(f"{backend}: largest |y| of batch and group={found}, but should be below 6")
    shown |= any(not value < 6 for value in found)
sys.exit(shown)
