"""The steps that faults and sound norms share, on torch tensors, in float32. What a fault gets wrong it writes out itself."""

from __future__ import annotations

from typing import Any

from normcheck.norms import LayerNorm, RMSNorm

Tensor = Any

LAYER_NORM = LayerNorm(eps=1e-5)
RMS_NORM = RMSNorm(eps=1e-6)


def widened(x: Tensor) -> Tensor:
    """x in float32, contiguous: sums then add in one order however x lies in memory."""
    return x.float().contiguous()


def mean(x: Tensor) -> Tensor:
    """Mean over the last axis, which is kept."""
    return x.mean(-1, keepdim=True)


def centred(x: Tensor) -> tuple[Tensor, Tensor]:
    """x less its mean, and the variance, in two passes."""
    x = widened(x)
    c = x - mean(x)
    return c, mean(c * c)


def mean_square(x: Tensor) -> tuple[Tensor, Tensor]:
    """x, and the mean of its squares."""
    x = widened(x)
    return x, mean(x * x)


def affine(n: Tensor, weight: Tensor | None, bias: Tensor | None = None) -> Tensor:
    """n*weight + bias in the precision of n; what is None is left out."""
    if weight is not None:
        n = n * weight.to(n.dtype)
    return n if bias is None else n + bias.to(n.dtype)


def finish(x: Tensor, n: Tensor, weight: Tensor | None, bias: Tensor | None = None) -> Tensor:
    """The affine step, then one rounding to the dtype of x."""
    return affine(n, weight, bias).to(x.dtype)


def grouped(x: Tensor, num_groups: int = 1) -> Tensor:
    """x of shape (N, C, ...) as rows (N, groups, elements of a group), also where N is 0."""
    return x.reshape(x.shape[0], num_groups, x.shape[1:].numel() // num_groups)


def per_channel(values: Tensor, x: Tensor) -> Tensor:
    """One value per channel, shaped to meet x of shape (N, C, ...)."""
    return values.reshape(1, -1, *[1] * (x.dim() - 2))


def finish_channels(x: Tensor, n: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """As `finish`, with one weight and bias per channel of x, shaped (N, C, ...)."""
    weight = None if weight is None else per_channel(weight, x)
    return finish(x, n, weight, None if bias is None else per_channel(bias, x))
