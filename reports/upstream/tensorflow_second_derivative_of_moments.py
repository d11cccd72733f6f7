"""TensorFlow: second derivatives of the variance of tf.nn.moments are wrong.

The mean inside the variance is cut off with stop_gradient. That leaves the first derivative as it is, since the deviations sum to
zero, but takes the mean's part out of the second: the Hessian of the variance of n elements is 2/n*(I - 1/n), and 2/n*I comes.
Keras' LayerNormalization, GroupNormalization and BatchNormalization inherit it. Exits with 1 where the fault shows, with 0 where
it is mended.
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

x = tf.constant([1.0, 2.0, 4.0, 9.0])


def hessian(variance):
    """The matrix of second derivatives."""
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            value = variance(x)
        slope = inner.gradient(value, x)
    return outer.jacobian(slope, x)


got = hessian(lambda x: tf.nn.moments(x, 0)[1])
exact = hessian(lambda x: tf.reduce_mean(tf.square(x - tf.reduce_mean(x))))
print(f"d2 variance / dx0 dx1={float(got[0, 1])}, but should be {float(exact[0, 1])}")
sys.exit(abs(float(got[0, 1] - exact[0, 1])) > 1e-6)
