"""Sound LayerNorms: the algorithms, summation orders and final forms that a library may well use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from normcheck.contract import Contract
from normcheck.faults.catalogue import sound_norm
from normcheck.faults.parts import LAYER_NORM, Tensor, centred, finish, mean, widened
from normcheck.faults.sums import Values, adjacent, backward, halving, kahan, lanes, sequential
from normcheck.norms import LayerNorm

_SEQUENTIAL = Contract(accumulation="sequential")
_MERGE = Contract(accumulation="merge")
_NUMPY: dict[str, Any] = {"framework": "numpy", "grad": None}
_OVERFLOW = ("overflow",)


@sound_norm(LAYER_NORM, warns=_OVERFLOW)
def two_pass(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Mean first, then the mean of the squared deviations."""
    c, variance = centred(x)
    return finish(x, c * (variance + eps).rsqrt(), weight, bias)


@sound_norm(LAYER_NORM, warns=_OVERFLOW)
def division(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The deviations are divided by the root."""
    c, variance = centred(x)
    return finish(x, c / (variance + eps).sqrt(), weight, bias)


@sound_norm(LAYER_NORM, warns=_OVERFLOW)
def reciprocal(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The deviations are multiplied by 1/sqrt."""
    c, variance = centred(x)
    return finish(x, c * (1 / (variance + eps).sqrt()), weight, bias)


@sound_norm(LAYER_NORM, warns=_OVERFLOW)
def corrected_two_pass(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """What the rounded mean leaves in the deviations is subtracted once more."""
    c, _ = centred(x)
    c = c - mean(c)
    return finish(x, c * (mean(c * c) + eps).rsqrt(), weight, bias)


@sound_norm(LAYER_NORM)
def float64_inside(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Everything is computed in float64, and rounded once."""
    wide = x.double().contiguous()
    c = wide - mean(wide)
    return finish(x, c * (mean(c * c) + eps).rsqrt(), weight, bias)


@sound_norm(LAYER_NORM, warns=("overflow", "input-gradient", "gradient-identities"))
def folded_apply(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """x*r - mean*r, without a fused multiply-add; in its gradient sums of g*x and mean*g cancel."""
    _, variance = centred(x)
    r = (variance + eps).rsqrt()
    return finish(x, x.float() * r - mean(widened(x)) * r, weight, bias)


@sound_norm(LAYER_NORM, warns=_OVERFLOW)
def shifted_by_the_mean(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """One pass over x less its rounded mean, where nothing cancels any more."""
    c, square = centred(x)
    m = mean(c)
    # the square may be infinite, and so must not be what is subtracted
    variance = (square - (m * m).clamp(max=3e38)).clamp(min=0)
    return finish(x, (c - m) * (variance + eps).rsqrt(), weight, bias)


@sound_norm(LAYER_NORM, warns=_OVERFLOW)
def composed_of_torch_calls(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """mean, var and division as a user would write them."""
    wide = widened(x)
    return finish(x, (wide - mean(wide)) / (wide.var(-1, unbiased=False, keepdim=True) + eps).sqrt(), weight, bias)


@sound_norm(LAYER_NORM, warns=_OVERFLOW)
def affine_folded_into_the_scale(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The weight meets 1/sigma first, then the deviations."""
    c, variance = centred(x)
    r = (variance + eps).rsqrt()
    return finish(x, c * (r if weight is None else r * weight.float()), None, bias)


@sound_norm(LAYER_NORM, contract=Contract(full_range=True))
def rescued_from_overflow(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Rows are scaled by a power of two, and eps by its square."""
    import torch

    wide = widened(x)
    largest = wide.detach().abs().amax(-1, keepdim=True)
    # a factor: torch.ldexp with negative whole exponents has the gradient 0
    factor = torch.ldexp(torch.ones_like(largest), -torch.frexp(largest)[1].clamp(min=0))
    c, variance = centred(wide * factor)
    return finish(x, c * (variance + eps * factor * factor).rsqrt(), weight, bias)


@sound_norm(LayerNorm(eps=1e-5, eps_placement="outside", ddof=1))
def textbook_annotated(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The Annotated Transformer's code, claimed for what it is."""
    wide = widened(x)
    return finish(x, (wide - mean(wide)) / (wide.std(-1, keepdim=True) + eps), weight, bias)


@sound_norm(LayerNorm(eps=1e-3, eps_placement="max"), warns=_OVERFLOW)
def textbook_maximum(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """max(sigma, eps), claimed for what it is."""
    c, variance = centred(x)
    return finish(x, c / variance.clamp(min=eps * eps).sqrt(), weight, bias)


@sound_norm(LAYER_NORM, contract=_MERGE, warns=_OVERFLOW)
def welford_by_chunks(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Sixty-four lanes run Welford's update, and their means and squares are merged in pairs (Chan, Golub and LeVeque)."""
    wide = widened(x)
    whole = _welford(wide)
    return finish(x, (wide - whole.mean) * (whole.squares / whole.size + eps).rsqrt(), weight, bias)


@dataclass(frozen=True)
class _Part:
    """Mean, sum of squared deviations and size of some elements."""

    mean: Tensor
    squares: Tensor
    size: int

    def merged(self, other: _Part) -> _Part:
        """Both parts as one."""
        delta, size = other.mean - self.mean, self.size + other.size
        return _Part(
            self.mean + delta * (other.size / size),
            self.squares + other.squares + delta * delta * (self.size * other.size / size),
            size,
        )

    def pooled(self) -> _Part:
        """The lanes along the last axis as one part: the first half with the second, over and over."""
        lanes = self.mean.shape[-1]
        if lanes == 1:
            return self
        half = lanes // 2
        both = self._at(slice(half)).merged(self._at(slice(half, 2 * half))).pooled()
        return both if lanes % 2 == 0 else both.merged(self._at(slice(lanes - 1, lanes)))

    def _at(self, lanes: slice) -> _Part:
        return _Part(self.mean[..., lanes], self.squares[..., lanes], self.size)


def _welford(x: Tensor, lanes: int = 64) -> _Part:
    """Welford's update in lanes, pooled; the elements beyond the last whole step are merged at the end."""
    whole = x.shape[-1] // lanes * lanes
    rest = None if whole == x.shape[-1] else _Part(x[..., whole:], x[..., whole:] * 0, 1).pooled()
    if not whole:
        return cast("_Part", rest)
    mean_so_far, squares = x[..., :lanes], x[..., :lanes] * 0
    for step in range(1, whole // lanes):
        element = x[..., step * lanes : (step + 1) * lanes]
        delta = element - mean_so_far
        mean_so_far = mean_so_far + delta / (step + 1)
        squares = squares + delta * (element - mean_so_far)
    part = _Part(mean_so_far, squares, whole // lanes).pooled()
    return part if rest is None else part.merged(rest)


def _numpy_norm(x: Values, weight: Values | None, bias: Values | None, eps: float, total: Callable[[Values], Values]) -> Values:
    """Two-pass LayerNorm in float32 with the given sum."""
    wide, count = np.ascontiguousarray(x, np.float32), np.float32(x.shape[-1])
    c = wide - total(wide) / count
    return _affine(c / np.sqrt(total(c * c) / count + np.float32(eps)), weight, bias).astype(x.dtype)


def _affine(n: Values, weight: Values | None, bias: Values | None) -> Values:
    n = n if weight is None else n * weight.astype(n.dtype)
    return n if bias is None else n + bias.astype(n.dtype)


@sound_norm(LAYER_NORM, contract=_SEQUENTIAL, warns=_OVERFLOW, **_NUMPY)
def sequential_sums(x: Values, weight: Values, bias: Values, eps: float) -> Values:
    """Running sums from the first element to the last."""
    return _numpy_norm(x, weight, bias, eps, sequential)


@sound_norm(LAYER_NORM, contract=_SEQUENTIAL, warns=_OVERFLOW, **_NUMPY)
def reversed_sums(x: Values, weight: Values, bias: Values, eps: float) -> Values:
    """Running sums from the last element to the first."""
    return _numpy_norm(x, weight, bias, eps, backward)


@sound_norm(LAYER_NORM, warns=_OVERFLOW, **_NUMPY)
def halving_tree(x: Values, weight: Values, bias: Values, eps: float) -> Values:
    """Sums by a tree that adds the second half to the first."""
    return _numpy_norm(x, weight, bias, eps, halving)


@sound_norm(LAYER_NORM, warns=_OVERFLOW, **_NUMPY)
def adjacent_pairs(x: Values, weight: Values, bias: Values, eps: float) -> Values:
    """Sums by a tree that adds neighbours."""
    return _numpy_norm(x, weight, bias, eps, adjacent)


@sound_norm(LAYER_NORM, warns=_OVERFLOW, **_NUMPY)
def eight_lanes(x: Values, weight: Values, bias: Values, eps: float) -> Values:
    """Sums in eight vector lanes of at most 32 elements each, and those by a tree."""
    return _numpy_norm(x, weight, bias, eps, lambda values: lanes(values, 8))


@sound_norm(LAYER_NORM, warns=_OVERFLOW, **_NUMPY)
def warp_lanes(x: Values, weight: Values, bias: Values, eps: float) -> Values:
    """Sums in 128 lanes of at most 32 elements each, and those by a tree."""
    return _numpy_norm(x, weight, bias, eps, lambda values: lanes(values, 128))


@sound_norm(LAYER_NORM, contract=_SEQUENTIAL, warns=_OVERFLOW, **_NUMPY)
def eight_long_lanes(x: Values, weight: Values, bias: Values, eps: float) -> Values:
    """Sums in eight lanes as long as it takes."""
    return _numpy_norm(x, weight, bias, eps, lambda values: lanes(values, 8, most=values.shape[-1]))


@sound_norm(LAYER_NORM, warns=_OVERFLOW, **_NUMPY)
def kahan_sums(x: Values, weight: Values, bias: Values, eps: float) -> Values:
    """Compensated sums."""
    return _numpy_norm(x, weight, bias, eps, kahan)


@sound_norm(LAYER_NORM, warns=_OVERFLOW, **_NUMPY)
def numpy_calls(x: Values, weight: Values, bias: Values, eps: float) -> Values:
    """mean and var of numpy, in float32."""
    wide = np.ascontiguousarray(x, np.float32)
    n = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + np.float32(eps))
    return _affine(n, weight, bias).astype(x.dtype)


@sound_norm(LAYER_NORM, dtypes=("float64",), warns=_OVERFLOW, **_NUMPY)
def numpy_calls_in_float64(x: Values, weight: Values, bias: Values, eps: float) -> Values:
    """mean and var of numpy on float64 rows."""
    x = np.ascontiguousarray(x)
    return _affine((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps), weight, bias)
