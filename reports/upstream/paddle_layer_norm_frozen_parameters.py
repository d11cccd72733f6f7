"""PaddlePaddle on CPU: dx of layer_norm is wrong where weight and bias are frozen.

With stop_gradient=True on both, as in fine-tuning, the gradient of x is another one than with either of them trained. Exits with
1 where the fault shows, with 0 where it is mended.
"""

import sys

import numpy as np
import paddle

values, slope = np.array([[1.0, 2.0, 4.0]]), np.array([[1.0, -1.0, 0.5]])


def dx(frozen):
    """The gradient of x."""
    x, weight, bias = (paddle.to_tensor(array) for array in (values, np.array([1.0, 2.0, 3.0]), np.zeros(3)))
    x.stop_gradient, weight.stop_gradient, bias.stop_gradient = False, frozen, frozen
    paddle.nn.functional.layer_norm(x, [3], weight, bias).backward(paddle.to_tensor(slope))
    return x.grad.numpy()


got, due = dx(True), dx(False)
print(f"dx={got.tolist()} with frozen parameters, but should be {due.tolist()} as without")
sys.exit(not np.allclose(got, due))
