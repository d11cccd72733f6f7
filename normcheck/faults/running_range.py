"""K09 to K11 and K15: running statistics that are right for the usual batches, and wrong for others."""

from __future__ import annotations

from normcheck.faults.catalogue import fault
from normcheck.faults.running import Result, Step, moved, statistics, stepping
from normcheck.norms import BatchNorm

_RANGE = ("running-range",)


@fault("K10", "after tensorflow/tensorflow#55545", norm=BatchNorm(), role=stepping, expected=_RANGE)
def channels_beyond_the_first_warp(s: Step) -> Result:
    """Statistics of the channels from the 33rd on are never stored."""
    y, mean, var = s.sound()
    if not s.training:
        return y, mean, var
    import torch

    kept = torch.arange(len(mean)) >= 32
    return y, torch.where(kept, s.mean, mean), torch.where(kept, s.var, var)


def _with_variance(s: Step, variance: object) -> Result:
    y, mean, var = s.sound()
    return (y, mean, moved(s.var, variance, s.momentum)) if s.training else (y, mean, var)


@fault("K15", "after apple/coreai-torch#54", norm=BatchNorm(), role=stepping, dtypes=("float32", "bfloat16"), expected=_RANGE)
def large_variances_clipped(s: Step) -> Result:
    """The variance of a batch is clipped to 1e6 before it is stored."""
    return _with_variance(s, statistics(s.x)[2].clamp(max=1e6))


@fault("K15", "after apple/coreai-torch#54", norm=BatchNorm(), role=stepping, dtypes=("float32", "bfloat16"), expected=_RANGE)
def small_variances_clipped(s: Step) -> Result:
    """The variance of a batch is kept above 1e-8 before it is stored."""
    return _with_variance(s, statistics(s.x)[2].clamp(min=1e-8))


@fault("K15", "after apple/coreai-torch#54", norm=BatchNorm(), role=stepping, dtypes=("float32", "bfloat16"), expected=_RANGE)
def large_means_clipped(s: Step) -> Result:
    """The mean of a batch is clipped to -1e4..1e4 before it is stored."""
    y, mean, var = s.sound()
    return (y, moved(s.mean, statistics(s.x)[0].clamp(-1e4, 1e4), s.momentum), var) if s.training else (y, mean, var)


@fault("K09", "after tensorflow/tensorflow#55545", norm=BatchNorm(), role=stepping, expected=_RANGE)
def values_beyond_the_first_block(s: Step) -> Result:
    """The variance that is stored is that of the first 2000 values of each channel."""
    y, mean, var = s.sound()
    rows = s.x.float().movedim(1, 0).reshape(1, s.x.shape[1], -1)[..., :2000]
    return (y, mean, moved(s.var, statistics(rows)[2], s.momentum)) if s.training else (y, mean, var)


@fault("K11", "after FluxML/Flux.jl#2716", norm=BatchNorm(), role=stepping, expected=_RANGE)
def batch_of_one_not_counted(s: Step) -> Result:
    """A batch of one sample leaves the running statistics as they are, though it has many values per channel."""
    y, mean, var = s.sound()
    return (y, s.mean, s.var) if s.training and len(s.x) == 1 else (y, mean, var)


@fault("K09", "after pytorch/pytorch#60528", norm=BatchNorm(), role=stepping, expected=_RANGE)
def correction_by_the_batch_size(s: Step) -> Result:
    """Bessel's correction takes the number of samples for that of values, where there are more than 16 of them."""
    y, mean, var = s.sound()
    count = len(s.x)
    if not s.training or count <= 16:
        return y, mean, var
    return y, mean, moved(s.var, statistics(s.x)[1] * count / (count - 1), s.momentum)
