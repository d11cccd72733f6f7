"""K21 to K25 and K29: backward passes written by hand, and what goes wrong in them."""

from __future__ import annotations

from typing import Any

import numpy as np

from normcheck.faults.catalogue import HALF, fault
from normcheck.faults.hand_written import Backward, Step, hand_written, over_rows, projected, sound_pull
from normcheck.faults.parts import LAYER_NORM, RMS_NORM, Tensor, affine, centred, finish, mean, mean_square
from normcheck.faults.sums import Values
from normcheck.norms import RMSNorm

_DX = ("input-gradient",)
_ROWS = ("many-row-gradients",)
_FLOW = ("gradient-flow",)
_TWICE: dict[str, Any] = {"expected": ("double-backward",), "dtypes": ("float32",)}
_NUMPY: dict[str, Any] = {"framework": "numpy"}


def _weight_applied_twice(step: Step) -> Backward:
    q = mean(step.g * step.n)
    dx = step.r * (step.g - (step.n * q if step.weight is None else step.weight * step.n * q))
    return Backward(dx, over_rows(step.dy * step.n), over_rows(step.dy))


@fault("K22", "NVIDIA/Megatron-LM#6859", norm=RMS_NORM, expected=_DX)
def variance_term_weighted_twice(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The projection is multiplied by the weight once more: right where all weights are 1."""
    return hand_written(_weight_applied_twice, x, weight, None, eps, center=False)


def _mean_twice(step: Step) -> Backward:
    dx = step.r * (step.g - 2 * mean(step.g) - step.n * mean(step.g * step.n))
    return Backward(dx, over_rows(step.dy * step.n), over_rows(step.dy))


@fault("K22", "tenstorrent/tt-metal#53204", norm=LAYER_NORM, expected=(*_DX, "gradient-identities"))
def mean_of_the_gradient_subtracted_twice(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """mean(g) is subtracted twice."""
    return hand_written(_mean_twice, x, weight, bias, eps)


def _last_tile(step: Step) -> Backward:
    tile = (step.g * step.n)[..., -32:].sum(-1, keepdim=True) / step.n.shape[-1]
    dx = step.r * (step.g - mean(step.g) - step.n * tile)
    return Backward(dx, over_rows(step.dy * step.n), over_rows(step.dy))


@fault("K22", "tenstorrent/tt-metal#34760", norm=LAYER_NORM, expected=_DX)
def last_tile_of_the_projection(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Of the sum of g*n only the last 32 elements are kept."""
    return hand_written(_last_tile, x, weight, bias, eps)


def _constant_statistics(step: Step) -> Backward:
    return Backward(step.r * step.g, over_rows(step.dy * step.n), over_rows(step.dy))


@fault("K22", "pytorch/pytorch#82493", norm=LAYER_NORM, expected=(*_DX, "gradient-identities"))
def statistics_taken_for_constants(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The gradient does not pass through mean and variance."""
    return hand_written(_constant_statistics, x, weight, bias, eps)


def _unbiased(step: Step) -> Backward:
    width = step.n.shape[-1]
    dx = step.r * (step.g - mean(step.g) - step.n * (step.g * step.n).sum(-1, keepdim=True) / max(width - 1, 1))
    return Backward(dx, over_rows(step.dy * step.n), over_rows(step.dy))


@fault("K22", "pytorch/pytorch#60528", norm=LAYER_NORM, expected=_DX)
def projection_divided_by_one_less(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The backward pass is that of the unbiased variance."""
    return hand_written(_unbiased, x, weight, bias, eps)


def _without_eps(step: Step) -> Backward:
    _, variance = centred(step.x)
    steep = variance.clamp(min=1e-30).rsqrt()
    dx = step.r * (step.g - mean(step.g)) - step.n * mean(step.g * step.n) * steep
    return Backward(dx, over_rows(step.dy * step.n), over_rows(step.dy))


@fault("K22", "tenstorrent/tt-metal#53204", norm=LAYER_NORM, expected=_DX)
def eps_left_out_of_the_projection(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The projection is divided by the standard deviation without eps: right for rows of size 1."""
    return hand_written(_without_eps, x, weight, bias, eps)


def _no_offset(step: Step) -> Backward:
    g = step.dy if step.weight is None else step.dy * (step.weight - 1.0)
    return Backward(projected(g, step.n, step.r, center=False), over_rows(step.dy * step.n), over_rows(step.dy))


@fault("K22", "NVIDIA/TransformerEngine#67", norm=RMSNorm(eps=1e-6, weight_offset=1.0), expected=_DX)
def backward_without_the_offset(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The forward pass multiplies by 1 + w, the backward pass by w."""
    return hand_written(_no_offset, x, None if weight is None else 1.0 + weight.float(), None, eps, center=False)


def _rms_backward(inputs: dict[str, Any], grads: dict[str, Any]) -> dict[str, Any]:
    x, dy = inputs["x"].astype(np.float32), grads["y"].astype(np.float32)
    g = dy if inputs["weight"] is None else dy * inputs["weight"].astype(np.float32)
    c = x - x.mean(-1, keepdims=True)
    r = 1 / np.sqrt((c * c).mean(-1, keepdims=True) + np.float32(inputs["eps"]))
    dx = r * (g - c * r * (g * c * r).mean(-1, keepdims=True))
    return _returned(inputs, dx, (dy * c * r).sum(0), dy.sum(0))


@fault("K22", "tenstorrent/tt-metal#53204", norm=LAYER_NORM, expected=(*_DX, "gradient-identities"), grad=_rms_backward, **_NUMPY)
def backward_of_rms_norm(x: Values, weight: Values, bias: Values, eps: float) -> Values:
    """The backward function is RMSNorm's: mean(g) is not subtracted."""
    return _numpy_layer_norm(x, weight, bias, eps)


def _one_by_one(terms: Tensor, dtype: Any) -> Tensor:
    total = terms[0].to(dtype)
    for row in terms[1:].to(dtype):
        total = total + row
    return total


def _storage_sums(step: Step) -> Backward:
    terms = (step.dy * step.n, step.dy)
    dw, db = (_one_by_one(term.reshape(-1, term.shape[-1]), step.dtype).float() for term in terms)
    return Backward(sound_pull(step).dx, dw, db)


@fault("K23", "karpathy/llm.c#428", norm=LAYER_NORM, expected=_ROWS, dtypes=HALF)
def parameter_gradients_summed_in_storage(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Rows are added to a 16-bit buffer one by one: the sum of 8192 ones is 256 in bfloat16."""
    return hand_written(_storage_sums, x, weight, bias, eps)


def _rounded_partials(step: Step) -> Backward:
    import torch

    def total(terms: Tensor) -> Tensor:
        blocks = terms.reshape(-1, terms.shape[-1]).split(64)
        return _one_by_one(torch.stack([block.sum(0) for block in blocks]), step.dtype).float()

    return Backward(sound_pull(step).dx, total(step.dy * step.n), total(step.dy))


@fault("K23", "linkedin/Liger-Kernel#950", norm=RMS_NORM, expected=_ROWS, dtypes=HALF)
def partial_sums_kept_in_storage(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Blocks of 64 rows are summed in float32, and their sums in 16 bits."""
    return hand_written(_rounded_partials, x, weight, None, eps, center=False)


def _whole_blocks(step: Step) -> Backward:
    def total(terms: Tensor) -> Tensor:
        rows = terms.reshape(-1, terms.shape[-1])
        return rows[: len(rows) // 256 * 256 or len(rows)].sum(0)

    return Backward(sound_pull(step).dx, total(step.dy * step.n), total(step.dy))


@fault("K23", "karpathy/llm.c#428", norm=LAYER_NORM, expected=_ROWS)
def last_partial_block_dropped(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Only whole blocks of 256 rows reach the gradients of weight and bias."""
    return hand_written(_whole_blocks, x, weight, bias, eps)


def _one_half(step: Step) -> Backward:
    def total(terms: Tensor) -> Tensor:
        rows = terms.reshape(-1, terms.shape[-1])
        return rows[: (len(rows) + 1) // 2].sum(0)

    return Backward(sound_pull(step).dx, total(step.dy * step.n), total(step.dy))


@fault("K23", "NVIDIA/Megatron-LM#1446", norm=LAYER_NORM, expected=("parameter-gradients", *_ROWS))
def gradient_of_one_rank(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The gradients of the parameters are those of one half of the rows: the sum over workers is missing."""
    return hand_written(_one_half, x, weight, bias, eps)


def _averaged(step: Step) -> Backward:
    right = sound_pull(step)
    rows = step.dy.numel() // step.dy.shape[-1]
    return Backward(right.dx, right.dweight / rows, right.dbias / rows)


@fault("K23", "EleutherAI/gpt-neox#1259", norm=RMS_NORM, expected=("parameter-gradients", *_ROWS))
def gradient_averaged_over_rows(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The gradient of the weight is the mean over rows and not the sum."""
    return hand_written(_averaged, x, weight, None, eps, center=False)


def _weighted_bias(step: Step) -> Backward:
    right = sound_pull(step)
    return Backward(right.dx, right.dweight, over_rows(step.g))


@fault("K23", "ml-explore/mlx#3220", norm=LAYER_NORM, expected=("parameter-gradients", *_ROWS))
def bias_gradient_times_the_weight(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The gradient of the bias is that of n."""
    return hand_written(_weighted_bias, x, weight, bias, eps)


def _overwritten(step: Step) -> Backward:
    right = sound_pull(step)
    if step.leaf is not None:
        step.leaf.grad = right.dweight.to(step.leaf.dtype)
    return Backward(right.dx, None, right.dbias)


@fault("K23", "NVIDIA/Megatron-LM#1446", norm=LAYER_NORM, expected=("gradient-accumulation",))
def accumulation_ignored(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The kernel writes the weight's gradient into its place where it should add."""
    return hand_written(_overwritten, x, weight, bias, eps)


def _unreduced_backward(inputs: dict[str, Any], grads: dict[str, Any]) -> dict[str, Any]:
    dx, dw, db = _pull_numpy(inputs, grads["y"])
    return {**_returned(inputs, dx, dw.sum(0), db.sum(0)), "weight": dw.astype(inputs["x"].dtype)}


@fault("K23", "NVIDIA/TransformerEngine#435", norm=LAYER_NORM, expected=_FLOW, grad=_unreduced_backward, **_NUMPY)
def weight_gradient_per_row(x: Values, weight: Values, bias: Values, eps: float) -> Values:
    """The gradient of the weight is not summed over rows: its shape is that of x."""
    return _numpy_layer_norm(x, weight, bias, eps)


def _in_place(step: Step) -> Backward:
    right = sound_pull(step)
    if step.slope.is_contiguous():
        step.slope.copy_(right.dx)
    return right


@fault("K21", "linkedin/Liger-Kernel#376", norm=LAYER_NORM, expected=("gradient-accumulation",))
def backward_in_the_memory_of_dy(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """dx is written over dy, which others still need."""
    return hand_written(_in_place, x, weight, bias, eps)


@fault("K24", "huggingface/candle#2168", norm=LAYER_NORM, expected=_FLOW)
def result_without_history(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The output is detached from the graph."""
    c, variance = centred(x)
    return finish(x, c * (variance + eps).rsqrt(), weight, bias).detach()


@fault("K24", "huggingface/candle#2168", norm=LAYER_NORM, expected=_FLOW)
def contiguous_input_without_history(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The fast path for contiguous input leaves the graph; weight and bias still learn."""
    c, variance = centred(x.detach() if x.is_contiguous() else x)
    return finish(x, c * (variance + eps).rsqrt(), weight, bias)


@fault("K24", "unslothai/unsloth#4533", norm=RMS_NORM, expected=_FLOW)
def weight_without_gradient(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The weight is detached: it never learns."""
    wide, square = mean_square(x)
    return finish(x, wide * (square + eps).rsqrt(), None if weight is None else weight.detach())


@fault("K24", "pytorch/pytorch#175754", norm=LAYER_NORM, **_TWICE)
def saved_statistics_without_history(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The backward pass takes the saved n and r for constants: the second derivative is wrong."""
    return hand_written(lambda step: sound_pull(step.constant()), x, weight, bias, eps)


def _detached_bias(step: Step) -> Backward:
    right = sound_pull(step)
    return right if step.weight is not None else Backward(right.dx, right.dweight, right.dbias.detach() + 0 * step.dy.sum())


@fault("K24", "pytorch/pytorch#79705", norm=LAYER_NORM, **_TWICE)
def bias_forgotten_without_weight(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Without a weight the second derivative knows nothing of the bias."""
    return hand_written(_detached_bias, x, weight, bias, eps)


def _unit_weight(step: Step) -> Backward:
    g = step.dy if step.weight is None else step.dy * step.weight.detach()
    right = sound_pull(step)
    return Backward(projected(g, step.n, step.r, center=True), right.dweight, right.dbias)


@fault("K24", "pytorch/pytorch#41595", norm=LAYER_NORM, **_TWICE)
def weight_without_history_in_the_gradient(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The input's gradient does not depend on the weight: its derivative by the weight is missing."""
    return hand_written(_unit_weight, x, weight, bias, eps)


def _asks_the_weight(step: Step) -> Backward:
    right = sound_pull(step)
    return Backward(right.dx, right.dweight, right.dbias.to(step.leaf.dtype))


@fault("K29", "ml-explore/mlx#3220", norm=LAYER_NORM, expected=("affine-gradients",))
def backward_asks_the_absent_weight(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The bias's gradient takes its dtype from the weight: without one the backward pass raises."""
    return hand_written(_asks_the_weight, x, weight, bias, eps)


def _only_together(step: Step) -> Backward:
    right = sound_pull(step)
    return right if step.weight is not None and step.bias is not None else Backward(right.dx, None, None)


@fault("K29", "unslothai/unsloth#4533", norm=LAYER_NORM, expected=("affine-gradients",))
def parameters_learn_only_together(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """A weight without a bias, or a bias without a weight, gets no gradient."""
    return hand_written(_only_together, x, weight, bias, eps)


def _zeros_for_none(step: Step) -> Backward:
    right = sound_pull(step)
    return Backward(right.dx if step.weight is not None else right.dx * 0, right.dweight, right.dbias)


@fault("K29", "pytorch/pytorch#69208", norm=RMS_NORM, expected=("affine-gradients",))
def absent_weight_as_zeros_in_the_backward_pass(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The backward pass takes the weight that is not there for zeros."""
    return hand_written(_zeros_for_none, x, weight, None, eps, center=False)


def _from_output(step: Step) -> Backward:
    n = affine(step.y.float(), None, None if step.bias is None else -step.bias)
    n = n if step.weight is None else n / step.weight
    return sound_pull(step.with_n(n))


@fault("K25", "ServiceNow/Fast-LLM#220", norm=LAYER_NORM, expected=("zero-weight-gradients",))
def standardized_from_the_output(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """n is rebuilt as (y - bias)/weight: NaN for a zero weight."""
    return hand_written(_from_output, x, weight, bias, eps)


@fault("K25", "ServiceNow/Fast-LLM#220", norm=RMS_NORM, expected=("zero-weight-gradients",))
def root_mean_square_from_the_output(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """n is rebuilt as y/weight: NaN for a zero weight."""
    return hand_written(_from_output, x, weight, None, eps, center=False)


def _from_output_clamped(step: Step) -> Backward:
    if step.weight is None:
        return _from_output(step)
    safe = step.weight.abs().clamp(min=1e-3)
    safe = safe.where(step.weight >= 0, -safe)
    n = (step.y.float() - (0.0 if step.bias is None else step.bias)) / safe
    return sound_pull(step.with_n(n))


@fault("K25", "NVIDIA/apex#1715", norm=LAYER_NORM, expected=("zero-weight-gradients",))
def standardized_from_the_output_by_a_clamped_weight(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """n is rebuilt as (y - bias)/weight, with weights of at least 1e-3: finite, and wrong where the weight is less."""
    return hand_written(_from_output_clamped, x, weight, bias, eps)


def _pull_numpy(inputs: dict[str, Any], slope: Values) -> tuple[Values, Values, Values]:
    """dx, and the terms of dweight and dbias."""
    x, dy = inputs["x"].astype(np.float32), slope.astype(np.float32)
    g = dy if inputs["weight"] is None else dy * inputs["weight"].astype(np.float32)
    c = x - x.mean(-1, keepdims=True)
    r = 1 / np.sqrt((c * c).mean(-1, keepdims=True) + np.float32(inputs["eps"]))
    n = c * r
    return r * (g - g.mean(-1, keepdims=True) - n * (g * n).mean(-1, keepdims=True)), dy * n, dy


def _returned(inputs: dict[str, Any], dx: Values, dw: Values, db: Values) -> dict[str, Any]:
    dtype = inputs["x"].dtype
    return {"x": dx.astype(dtype), "weight": dw.astype(dtype), "bias": db.astype(dtype)}


def _numpy_layer_norm(x: Values, weight: Values | None, bias: Values | None, eps: float) -> Values:
    wide = x.astype(np.float32)
    c = wide - wide.mean(-1, keepdims=True)
    n = c / np.sqrt((c * c).mean(-1, keepdims=True) + np.float32(eps))
    n = n if weight is None else n * weight.astype(np.float32)
    y: Values = (n if bias is None else n + bias.astype(np.float32)).astype(x.dtype)
    return y
