"""PaddlePaddle on CPU: weight or bias of batch_norm and instance_norm alone get no gradient.

batch_norm leaves the gradient of one of them None where the other is frozen or absent; instance_norm does so too, and raises
where x itself is not differentiated, as in a first layer. Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import numpy as np
import paddle
from paddle.nn.functional import batch_norm, instance_norm

shown = False
for name in ("batch_norm", "instance_norm"):
    x = paddle.to_tensor(np.arange(8.0).reshape(1, 2, 4) ** 2)
    weight, bias = paddle.ones([2], "float64"), paddle.zeros([2], "float64")
    weight.stop_gradient = False
    if name == "batch_norm":
        state = paddle.zeros([2], "float64"), paddle.ones([2], "float64")
        y = batch_norm(x, *state, weight, bias, training=True, data_format="NCL")
    else:
        y = instance_norm(x, weight=weight, bias=bias)
    try:
        y.backward(paddle.to_tensor(np.arange(8.0).reshape(1, 2, 4)))
        got = weight.grad
    except ValueError as error:
        got = f"{str(error).strip().splitlines()[-1].strip()}"
    print(f"{name}: gradient of weight={got}, but should be an array, where weight alone is differentiated")
    shown |= not isinstance(got, paddle.Tensor)
sys.exit(shown)
