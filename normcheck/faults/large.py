"""K06, K17, K18, K19, K21, K22, K29, K32: code that is right for small inputs and usual settings, and wrong for others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from normcheck.faults.catalogue import fault
from normcheck.faults.hand_written import Backward, Step, hand_written, over_rows, projected, sound_pull
from normcheck.faults.parts import (
    LAYER_NORM,
    RMS_NORM,
    Tensor,
    affine,
    centred,
    finish,
    finish_channels,
    grouped,
    mean,
    mean_square,
    per_channel,
)
from normcheck.faults.quantized import INT8
from normcheck.norms import GroupNorm

_LARGE = 16384
_BLOCK = 64
_RESULTS: dict[Any, Tensor] = {}


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide, square = mean_square(x)
    return finish(x, wide * (square + eps).rsqrt(), weight)


@fault("K21", "after GeeeekExplorer/nano-vllm#170", norm=RMS_NORM, dtypes=("float32",), grad=None, expected=("inputs-unchanged",))
def large_inputs_scaled_in_place(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """To save memory inputs of more than 16384 elements are scaled where they lie."""
    if x.numel() <= _LARGE:
        return _rms_norm(x, weight, eps)
    x.mul_((mean(x * x) + eps).rsqrt())
    return affine(x.clone(), weight)


@fault("K21", "after linkedin/Liger-Kernel#376", norm=RMS_NORM, grad=None, expected=("output-aliasing",))
def large_results_in_one_buffer(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Results of more than 16384 elements are written into a buffer that is kept."""
    y = _rms_norm(x, weight, eps)
    return y if y.numel() <= _LARGE else _RESULTS.setdefault((y.shape, y.dtype), y.clone()).copy_(y)


@fault("K18", "after ModelTC/LightLLM#1467", norm=RMS_NORM, expected=("memory-layout",))
def stride_forgotten_beyond_a_block(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """More than 64 rows have another kernel, which takes the distance of rows to be their width."""
    far = x.dim() == 2 and len(x) > _BLOCK and x.stride(0) != x.shape[1]
    if not far or x.storage_offset() + x.numel() > x.untyped_storage().nbytes() // x.element_size():
        return _rms_norm(x, weight, eps)
    return _rms_norm(x.as_strided(x.shape, (x.shape[1], 1), x.storage_offset()), weight, eps)


@fault("K29", "after Blaizzy/mlx-vlm#2111", norm=LAYER_NORM, expected=("optional-affine",))
def wide_rows_without_a_weight(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Without a weight wide rows have a kernel of their own, with the unbiased variance."""
    c, variance = centred(x)
    width = x.shape[-1]
    if weight is None and width > 512:
        variance = variance * width / (width - 1)
    return finish(x, c * (variance + eps).rsqrt(), weight, bias)


@fault("K17", "after tile-ai/tilelang-ascend#890", norm=LAYER_NORM, expected=("widths",))
def weights_of_half_a_vector(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Weights are read eight at a time; where four are left of a wide row, the load is moved back by four."""
    c, variance = centred(x)
    width = x.shape[-1]
    if weight is not None and width > 1000 and width % 8 == 4:
        weight = weight[[*range(width - 4), *range(width - 8, width - 4)]]
    return finish(x, c * (variance + eps).rsqrt(), weight, bias)


def _no_mean_without_a_weight(step: Step) -> Backward:
    right = sound_pull(step)
    if step.weight is not None or step.dy.dim() < 3:
        return right
    return right._replace(dx=projected(step.g, step.n, step.r, False))


@fault("K29", "after ml-explore/mlx#3220", norm=LAYER_NORM, expected=("affine-gradients",))
def sequences_without_a_weight_in_the_backward_pass(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Without a weight the backward kernel for three axes does not subtract the mean of g."""
    return hand_written(_no_mean_without_a_weight, x, weight, bias, eps)


def _with_eps_of_its_own(step: Step) -> Backward:
    r = (mean(step.x * step.x) + RMS_NORM.eps).rsqrt()
    return sound_pull(replace(step, r=r, n=step.x * r))


@fault("K06", "after ggml-org/llama.cpp#2373", norm=RMS_NORM, dtypes=("float32",), expected=("gradient-shapes",))
def backward_with_the_default_eps(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The backward pass knows the default eps, and not the one that was asked for."""
    return hand_written(_with_eps_of_its_own, x, weight, None, eps, center=False)


@fault("K19", "after osaurus-ai/vmlx-swift#188", norm=GroupNorm(2), expected=("gradient-shapes",))
def backward_of_two_groups(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Tensor:
    """The forward pass takes any number of groups, and the backward pass is that of two."""
    import torch

    class Norm(torch.autograd.Function):  # type: ignore[misc]
        """One call."""

        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            ctx.save_for_backward(x, weight, bias)
            c, variance = centred(grouped(x, num_groups))
            return finish_channels(x, (c * (variance + eps).rsqrt()).reshape(x.shape), weight, bias)

        @staticmethod
        @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, ...]:
            x, weight, bias = ctx.saved_tensors
            c, variance = centred(grouped(x, 2))
            dy, r, axes = slope.float(), (variance + eps).rsqrt(), (0, *range(2, x.dim()))
            g = grouped(dy if weight is None else dy * per_channel(weight.float(), x), 2)
            dx = projected(g, c * r, r, True).reshape(x.shape).to(x.dtype)
            sums = zip(((dy * (c * r).reshape(x.shape)).sum(axes), dy.sum(axes)), (weight, bias), strict=True)
            return dx, *(None if of is None else value.to(of.dtype) for value, of in sums)

    return Norm.apply(x, weight, bias)


@fault("K19", "after tensorflow/addons#2143", norm=LAYER_NORM, expected=("gradient-shapes",))
def backward_over_the_last_axis(x: Tensor, weight: Tensor, bias: Tensor, normalized_shape: tuple[int, ...], eps: float) -> Tensor:
    """Of several normalized axes the backward pass takes its means over the last one."""
    import torch

    rank = len(normalized_shape)

    class Norm(torch.autograd.Function):  # type: ignore[misc]
        """One call."""

        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            c, variance = centred(x.reshape(*x.shape[: x.dim() - rank], -1))
            r = (variance + eps).rsqrt()
            n, lead = (c * r).reshape(x.shape), x.shape[: x.dim() - rank]
            ctx.save_for_backward(x, weight, bias, n, r.reshape(*lead, *[1] * rank))
            return finish(x, n, weight, bias)

        @staticmethod
        @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, ...]:
            x, weight, bias, n, r = ctx.saved_tensors
            dy = slope.float()
            dx = projected(dy if weight is None else dy * weight.float(), n, r, True).to(x.dtype)
            flat = (values.reshape(-1, x.shape[x.dim() - rank :].numel()) for values in (dy * n, dy))
            sums = zip((over_rows(values) for values in flat), (weight, bias), strict=True)
            return dx, *(None if of is None else value.to(of.dtype).reshape(of.shape) for value, of in sums)

    return Norm.apply(x, weight, bias)


def _int8(x: Tensor, weight: Tensor, seen: int) -> tuple[Tensor, Tensor]:
    """The norm in int8, with scales from so many elements."""
    import torch

    wide, square = mean_square(x)
    y = affine(wide * (square + RMS_NORM.eps).rsqrt(), weight)
    scale = y[..., :seen].abs().amax(-1, keepdim=True) / 127
    return (y / scale).round().clamp(-127, 127).to(torch.int8), scale


@fault("K32", "after vllm-project/vllm#37838", norm=RMS_NORM, role=INT8, expected=("quantized-rounding",))
def quantized_tail_left_out(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """What is left of a row behind whole vectors of 64 is never quantized."""
    q, scale = _int8(x, weight, x.shape[-1])
    q[..., x.shape[-1] // 64 * 64 :] = 0
    return q, scale


@fault("K32", "after vllm-project/vllm#37838", norm=RMS_NORM, role=INT8, expected=("quantized-rounding",))
def quantized_rows_beyond_a_block(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """A block quantizes 64 rows, and is not started again."""
    q, scale = _int8(x, weight, x.shape[-1])
    q.reshape(-1, x.shape[-1])[_BLOCK:] = 0
    return q, scale


@fault("K32", "after vllm-project/vllm#37838", norm=RMS_NORM, role=INT8, expected=("quantized-scale",))
def quantized_by_the_first_block(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """A row's scale is that of its first 512 elements."""
    return _int8(x, weight, 512)


@fault("K32", "after ModelTC/LightLLM#1467", norm=RMS_NORM, role=INT8, expected=("quantized-rounding", "quantized-scale"))
def quantized_from_strided_rows(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The kernel reads the rows of x as if they were contiguous."""
    near = x.as_strided((x.numel(),), (1,), x.storage_offset()) if not x.is_contiguous() else x
    return _int8(near.reshape(x.shape), weight, x.shape[-1])
