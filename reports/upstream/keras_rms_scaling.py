"""Keras: LayerNormalization(rms_scaling=True) divides by the standard deviation, not by the root mean square.

At mean/std = 1000 the result is 1000 times too large; a single element gives x/sqrt(epsilon). See keras-team/keras 21234. Exits
with 1 where the fault shows, with 0 where it is mended.
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32) + 1000
y = keras.ops.convert_to_numpy(keras.layers.LayerNormalization(rms_scaling=True)(x))
print(f"root mean square of y={float(np.sqrt((y * y).mean())):.4g}, but should be 1")
sys.exit(bool(np.sqrt((y * y).mean()) > 2))
