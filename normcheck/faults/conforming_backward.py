"""Sound backward passes written by hand: the forms that fused kernels use."""

from __future__ import annotations

from typing import Any

import numpy as np

from normcheck.contract import Contract
from normcheck.faults.catalogue import sound_norm
from normcheck.faults.hand_written import Backward, Step, hand_written, over_rows, sound_pull
from normcheck.faults.parts import LAYER_NORM, RMS_NORM, Tensor, mean
from normcheck.faults.sums import Values, sequential
from normcheck.norms import RMSNorm

_OVERFLOW = ("overflow",)
_NUMPY: dict[str, Any] = {"framework": "numpy"}


@sound_norm(LAYER_NORM, warns=_OVERFLOW)
def hand_written_backward(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """r*(g - mean(g) - n*mean(g*n)), n formed anew."""
    return hand_written(sound_pull, x, weight, bias, eps)


@sound_norm(RMS_NORM, warns=_OVERFLOW)
def hand_written_backward_of_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """r*(g - n*mean(g*n)), n formed anew."""
    return hand_written(sound_pull, x, weight, None, eps, center=False)


def _folded(step: Step) -> Backward:
    width = step.x.shape[-1]
    mu = mean(step.x)
    along, total = (step.g * step.x).sum(-1, keepdim=True), step.g.sum(-1, keepdim=True)
    slope = (total * mu - along) * step.r**3 / width
    dx = step.r * step.g + slope * step.x + (-slope * mu - total * step.r / width)
    return Backward(dx, over_rows(step.dy * (step.x * step.r - mu * step.r)), over_rows(step.dy))


@sound_norm(LAYER_NORM, warns=_OVERFLOW)
def folded_backward(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """a*g + b*x + c, with a, b and c prepared per row from the sums of g*x and g, as torch's kernels have it."""
    return hand_written(_folded, x, weight, bias, eps)


@sound_norm(RMSNorm(eps=1e-6, weight_offset=1.0), warns=_OVERFLOW)
def gemma_with_a_hand_written_backward(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """1 + w in float32, in both passes."""
    return hand_written(sound_pull, x, None if weight is None else 1.0 + weight.float(), None, eps, center=False)


@sound_norm(LAYER_NORM, warns=_OVERFLOW)
def differentiable_once(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """A second derivative is refused."""

    def pull(step: Step) -> Backward:
        import torch

        if torch.is_grad_enabled():
            raise RuntimeError("the backward pass cannot be differentiated")
        return sound_pull(step)

    return hand_written(pull, x, weight, bias, eps)


def _rows_of(inputs: dict[str, Any], slope: Values) -> tuple[Values, Values, Values]:
    """x, dy and g as float32 (float64 stays what it is)."""
    wide = np.float64 if inputs["x"].dtype == np.float64 else np.float32
    dy = slope.astype(wide)
    weight = inputs["weight"]
    return inputs["x"].astype(wide), dy, dy if weight is None else dy * weight.astype(wide)


def _flat(terms: Values) -> Values:
    return terms.reshape(-1, terms.shape[-1])


def _two_pass_backward(inputs: dict[str, Any], grads: dict[str, Any]) -> dict[str, Any]:
    x, dy, g = _rows_of(inputs, grads["y"])
    c = x - x.mean(-1, keepdims=True)
    r = 1 / np.sqrt((c * c).mean(-1, keepdims=True) + x.dtype.type(inputs["eps"]))
    n = c * r
    dx = r * (g - g.mean(-1, keepdims=True) - n * (g * n).mean(-1, keepdims=True))
    made = {"x": dx, "weight": _flat(dy * n).sum(0), "bias": _flat(dy).sum(0)}
    return {name: value.astype(inputs["x"].dtype) for name, value in made.items()}


@sound_norm(LAYER_NORM, warns=(*_OVERFLOW, "layout-invariance"), grad=_two_pass_backward, **_NUMPY)
def numpy_with_a_backward_function(x: Values, weight: Values, bias: Values, eps: float) -> Values:
    """Both passes in numpy, in float32."""
    wide = x.astype(np.float32)
    c = wide - wide.mean(-1, keepdims=True)
    return _affine(c / np.sqrt((c * c).mean(-1, keepdims=True) + np.float32(eps)), weight, bias).astype(x.dtype)


def _sequential_backward(inputs: dict[str, Any], grads: dict[str, Any]) -> dict[str, Any]:
    x, dy, g = _rows_of(inputs, grads["y"])
    count = x.dtype.type(x.shape[-1])
    c = x - sequential(x) / count
    r = 1 / np.sqrt(sequential(c * c) / count + x.dtype.type(inputs["eps"]))
    n = c * r
    dx = r * (g - sequential(g) / count - n * (sequential(g * n) / count))
    made = {"x": dx, "weight": sequential(_flat(dy * n).T)[..., 0], "bias": sequential(_flat(dy).T)[..., 0]}
    return {name: value.astype(inputs["x"].dtype) for name, value in made.items()}


@sound_norm(LAYER_NORM, contract=Contract(accumulation="sequential"), warns=_OVERFLOW, grad=_sequential_backward, **_NUMPY)
def sequential_sums_in_both_passes(x: Values, weight: Values, bias: Values, eps: float) -> Values:
    """Running sums over rows and columns alike."""
    wide, count = x.astype(np.float32), np.float32(x.shape[-1])
    c = wide - sequential(wide) / count
    return _affine(c / np.sqrt(sequential(c * c) / count + np.float32(eps)), weight, bias).astype(x.dtype)


def _affine(n: Values, weight: Values | None, bias: Values | None) -> Values:
    n = n if weight is None else n * weight.astype(n.dtype)
    return n if bias is None else n + bias.astype(n.dtype)
