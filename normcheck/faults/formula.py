"""K08, K09 and K29: another formula than the one claimed, the wrong divisor, weights that are left out."""

from __future__ import annotations

from normcheck.faults.catalogue import fault
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
)
from normcheck.norms import BatchNorm, GroupNorm, InstanceNorm, PartialRMSNorm, ScaleNorm

_UNBIASED = ("accuracy", "moments", "range-bounds", "idempotence")


@fault("K08", "mosaicml/llm-foundry#371", norm=RMS_NORM, expected=("accuracy", "scale-invariance", "moments", "idempotence"))
def divided_by_the_reciprocal(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x is divided by 1/rms."""
    wide, square = mean_square(x)
    return finish(x, wide / (square + eps).rsqrt(), weight)


@fault("K08", "after mosaicml/llm-foundry#371", norm=LAYER_NORM, expected=("accuracy", "scale-invariance", "idempotence"))
def divided_by_the_variance(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The root is forgotten."""
    c, variance = centred(x)
    return finish(x, c / (variance + eps), weight, bias)


@fault("K08", "keras-team/keras#21234", norm=RMS_NORM)
def variance_for_mean_square(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x is divided by its standard deviation and not by its root mean square."""
    _, variance = centred(x)
    return finish(x, x.float() * (variance + eps).rsqrt(), weight)


@fault("K08", "ggml-org/llama.cpp#173", norm=RMS_NORM)
def layer_norm_for_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The mean is subtracted."""
    c, variance = centred(x)
    return finish(x, c * (variance + eps).rsqrt(), weight)


@fault("K08", "after ggml-org/llama.cpp#173", norm=LAYER_NORM)
def rms_norm_for_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The mean is not subtracted."""
    wide, square = mean_square(x)
    return finish(x, wide * (square + eps).rsqrt(), weight, bias)


@fault("K08", "after lucidrains/x-transformers#246", norm=RMS_NORM, expected=("accuracy", "moments", "range-bounds"))
def sum_for_mean(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The squares are summed and not averaged: the gain D**0.5 is missing."""
    wide, _ = mean_square(x)
    return finish(x, wide * ((wide * wide).sum(-1, keepdim=True) + eps).rsqrt(), weight)


@fault("K08", "lucidrains/x-transformers#246", norm=ScaleNorm())
def scale_norm_with_the_inverse_gain(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The length is multiplied by D**-0.5, as if the mean were meant."""
    wide = x.float()
    length = wide.norm(dim=-1, keepdim=True) * x.shape[-1] ** -0.5
    return finish(x, wide / length.clamp(min=eps), weight)


@fault("K08", "after keras-team/keras#21234", norm=LAYER_NORM)
def mean_absolute_deviation(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The mean absolute deviation takes the place of the standard deviation."""
    c, _ = centred(x)
    return finish(x, c / (mean(c.abs()) + eps), weight, bias)


@fault("K08", "quake-3-arena: Q_rsqrt", norm=LAYER_NORM)
def quake_reciprocal_root(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The reciprocal root is the famous bit trick with one Newton step: 0.17 % off."""
    c, variance = centred(x)
    return finish(x, c * _quake(variance + eps, 1), weight, bias)


@fault("K08", "quake-3-arena: Q_rsqrt", norm=RMS_NORM, dtypes=("float32",))
def quake_reciprocal_root_twice_refined(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The bit trick with two Newton steps: 5e-6 off."""
    wide, square = mean_square(x)
    return finish(x, wide * _quake(square + eps, 2), weight)


@fault("K08", "after pytorch/pytorch#186577", norm=RMS_NORM)
def estimated_reciprocal_root(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The reciprocal root is a 12-bit hardware estimate that nobody refines."""
    import torch

    wide, square = mean_square(x)
    estimate = ((square + eps).rsqrt().view(torch.int32) & ~0xFFF).view(torch.float32)
    return finish(x, wide * estimate, weight)


def _quake(value: Tensor, steps: int) -> Tensor:
    import torch

    root = (0x5F3759DF - (value.view(torch.int32) >> 1)).view(torch.float32)
    for _ in range(steps):
        root = root * (1.5 - 0.5 * value * root * root)
    return root


@fault("K08", "after keras-team/keras#21234", norm=PartialRMSNorm(fraction=0.25))
def partial_norm_of_the_whole_row(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The mean square is that of the whole row and not of its first quarter."""
    wide, square = mean_square(x)
    return finish(x, wide * (square + eps).rsqrt(), weight)


@fault("K08", "after keras-team/keras#21234", norm=PartialRMSNorm(fraction=0.25))
def partial_norm_that_counts_downwards(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The elements that are averaged are int(D/4), where ceil(D/4) are claimed."""
    _, square = mean_square(x[..., : max(1, x.shape[-1] // 4)])
    return finish(x, x.float() * (square + eps).rsqrt(), weight)


@fault("K09", "LBANN/lbann#2024", "pytorch/pytorch#60528", norm=LAYER_NORM, expected=_UNBIASED)
def unbiased_variance(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The variance is divided by D - 1, the default of torch.var."""
    wide = x.float()
    return finish(x, (wide - mean(wide)) * (wide.var(-1, keepdim=True) + eps).rsqrt(), weight, bias)


@fault("K09", "after pytorch/pytorch#3122", norm=LAYER_NORM, expected=("accuracy", "epsilon-placement"))
def annotated_transformer(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The unbiased standard deviation plus eps, where the biased one with eps inside the root is claimed."""
    wide = x.float()
    return finish(x, (wide - mean(wide)) / (wide.std(-1, keepdim=True) + eps), weight, bias)


@fault("K09", "after pytorch/pytorch#22617", norm=BatchNorm(), training=True)
def batch_norm_by_the_unbiased_variance(x: Tensor, weight: Tensor, bias: Tensor, eps: float, *_: Tensor) -> Tensor:
    """The batch is normalized by the variance that belongs into the running average."""
    wide, axes = x.float(), (0, *range(2, x.dim()))
    n = (wide - wide.mean(axes, keepdim=True)) * (wide.var(axes, keepdim=True) + eps).rsqrt()
    return finish_channels(x, n, weight, bias)


@fault("K09", "after ml-explore/mlx#3817", norm=GroupNorm(2))
def group_norm_by_the_unbiased_variance(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Tensor:
    """The variance of a group is divided by its size less 1."""
    groups = grouped(x.float(), num_groups)
    n = (groups - mean(groups)) * (groups.var(-1, keepdim=True) + eps).rsqrt()
    return finish_channels(x, n.reshape(x.shape), weight, bias)


@fault("K09", "after ml-explore/mlx#3817", norm=InstanceNorm())
def instance_norm_by_the_unbiased_variance(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The variance of a sample's channel is divided by its size less 1."""
    wide, axes = x.float(), tuple(range(2, x.dim()))
    n = (wide - wide.mean(axes, keepdim=True)) * (wide.var(axes, keepdim=True) + eps).rsqrt()
    return finish_channels(x, n, weight, bias)


@fault("K29", "after ml-explore/mlx#3220", norm=LAYER_NORM)
def weight_for_bias(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Where there is a bias the weight is added once more in its place."""
    c, variance = centred(x)
    return finish(x, c * (variance + eps).rsqrt(), weight, None if bias is None else weight)


@fault("K29", "after pytorch/pytorch#69208", norm=LAYER_NORM)
def bias_before_weight(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """The bias is added first, and multiplied by the weight."""
    c, variance = centred(x)
    return finish(x, affine(c * (variance + eps).rsqrt(), None, bias), weight)


@fault("K29", "after pytorch/pytorch#69208", norm=RMS_NORM, expected=("accuracy", "signed-zeros"))
def absolute_weight(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Weights lose their sign."""
    wide, square = mean_square(x)
    return finish(x, wide * (square + eps).rsqrt(), None if weight is None else weight.abs())
