"""Keras: UnitNormalization of a row of zeros is NaN in float16, where 1/epsilon = 1e12 is infinite.

In float32 it is 0. Exits with 1 where the fault shows, with 0 where it is mended.
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

shown = False
for dtype in ("float32", "float16"):
    y = keras.ops.convert_to_numpy(keras.layers.UnitNormalization(dtype=dtype)(np.zeros((1, 4), dtype)))
    print(f"UnitNormalization({dtype} zeros)={y[0].tolist()}, but should be zeros")
    shown |= bool(np.isnan(y).any())
sys.exit(shown)
