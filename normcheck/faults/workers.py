"""K26 and K23: a batch over several workers, simulated, whose statistics or gradients are put together wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from normcheck.faults.catalogue import fault, sound_norm
from normcheck.faults.parts import LAYER_NORM, Tensor, centred, finish, finish_channels, per_channel
from normcheck.faults.running import CASTS, Step, stepping
from normcheck.implementations.processes import Processes
from normcheck.norms import BatchNorm

_SPLIT = ("worker-split",)
_Shards = list[Tensor]
_Results = tuple[list[Tensor], list[Tensor], list[Tensor]]


def _batch_role(function: Callable[..., Any]) -> dict[str, Any]:
    """A sound BatchNorm, and workers."""
    return stepping(Step.sound) | {"workers": function}


def _layer_role(function: Callable[..., Any]) -> dict[str, Any]:
    """A sound LayerNorm, and workers."""
    return {"call": _layer_norm, "arguments": ("x", "weight", "bias"), "workers": function}


def _layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    c, variance = centred(x)
    return finish(x, c * (variance + LAYER_NORM.eps).rsqrt(), weight, bias)


def _rows(x: Tensor) -> Tensor:
    return x.float().movedim(1, 0).reshape(x.shape[1], -1)


def _pooled(shards: _Shards) -> tuple[Tensor, Tensor, int]:
    """Mean, biased variance and count over all workers."""
    rows = [_rows(shard) for shard in shards]
    count = sum(r.shape[1] for r in rows)
    mean = sum(r.sum(1) for r in rows) / count
    return mean, sum(((r - mean[:, None]) ** 2).sum(1) for r in rows) / count, count


def _normalized(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    c = x.float() - per_channel(mean, x)
    return finish_channels(x, c * per_channel((var + BatchNorm().eps).rsqrt(), x), weight, bias)


def _moved(old: Tensor, batch: Tensor, momentum: float) -> Tensor:
    return ((1 - momentum) * old.float() + momentum * batch).to(old.dtype)


def _finished(
    shards: _Shards, weight: Tensor, bias: Tensor, old: tuple[Tensor, Tensor], momentum: float, pooled: tuple[Tensor, Tensor, int]
) -> _Results:
    """Outputs and new statistics of all workers, from the statistics that all of them hold."""
    mean, var, count = pooled
    new = (_moved(old[0], mean, momentum), _moved(old[1], var * (count / (count - 1)), momentum))
    outputs = [_normalized(shard, mean, var, weight, bias) for shard in shards]
    return outputs, [new[0]] * len(shards), [new[1]] * len(shards)


@sound_norm(BatchNorm(), role=_batch_role, warns=("overflow", "layout-invariance", *CASTS))
def synchronized_batch_norm(
    shards: _Shards, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float
) -> _Results:
    """Sums and counts are added up over the workers, then the squares of the deviations."""
    return _finished(shards, weight, bias, (running_mean, running_var), momentum, _pooled(shards))


def all_reduced(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One process of a synchronized BatchNorm: counts, sums and squared deviations are added up over the group."""
    import torch
    from torch import distributed

    rows = _rows(x)
    sums = torch.cat([rows.sum(1), torch.tensor([float(rows.shape[1])])])
    distributed.all_reduce(sums)
    count, mean = int(sums[-1]), sums[:-1] / sums[-1]
    squares = ((rows - mean[:, None]) ** 2).sum(1)
    distributed.all_reduce(squares)
    outputs, means, variances = _finished(
        [x], weight, bias, (running_mean, running_var), momentum, (mean, squares / count, count)
    )
    return outputs[0], means[0], variances[0]


def unreduced(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One process that keeps to itself."""
    mean, var, count = _pooled([x])
    pooled = (mean, var, max(count, 2))
    outputs, means, variances = _finished([x], weight, bias, (running_mean, running_var), momentum, pooled)
    return outputs[0], means[0], variances[0]


def _processes(function: Callable[..., Any]) -> dict[str, Any]:
    """A sound BatchNorm, and workers that are processes."""
    return stepping(Step.sound) | {"workers": Processes(f"{__name__}:{function()}"), "grad": None}


@sound_norm(BatchNorm(), role=_processes, dtypes=("float32",), warns=("overflow", "layout-invariance"))
def batch_norm_over_a_process_group() -> str:
    """Processes of a gloo group add up their sums."""
    return all_reduced.__name__


@fault("K26", "NVIDIA/apex#387", norm=BatchNorm(), role=_processes, dtypes=("float32",), expected=_SPLIT, profile="deep")
def process_group_that_is_not_used() -> str:
    """Every process of the group normalizes with its own statistics."""
    return unreduced.__name__


@sound_norm(LAYER_NORM, role=_layer_role, warns=("overflow",))
def layer_norm_over_tokens_of_several_workers(shards: _Shards, weight: Tensor, bias: Tensor) -> list[Tensor]:
    """Each worker normalizes its tokens with the shared weight, whose gradients add up."""
    return [_layer_norm(shard, weight, bias) for shard in shards]


@fault("K26", "pytorch/pytorch#22192", "PaddlePaddle/Paddle#32464", norm=BatchNorm(), role=_batch_role, expected=_SPLIT)
def average_of_the_workers_statistics(
    shards: _Shards, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float
) -> _Results:
    """The mean of the workers' means, and the mean of their variances."""
    parts = [_pooled([shard]) for shard in shards]
    mean, var = (sum(part[i] for part in parts) / len(parts) for i in (0, 1))
    return _finished(shards, weight, bias, (running_mean, running_var), momentum, (mean, var, sum(p[2] for p in parts)))


@fault("K26", "pytorch/pytorch#22192", norm=BatchNorm(), role=_batch_role, expected=_SPLIT)
def bessel_factor_of_the_own_count(
    shards: _Shards, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float
) -> _Results:
    """Each worker stores the pooled variance with Bessel's factor for its own count, so that they differ."""
    var = _pooled(shards)[1]
    outputs, means, _ = _finished(shards, weight, bias, (running_mean, running_var), momentum, _pooled(shards))
    counts = [_rows(shard).shape[1] for shard in shards]
    return outputs, means, [_moved(running_var, var * (n / max(n - 1, 1)), momentum) for n in counts]


@fault("K26", "NVIDIA/apex#387", norm=BatchNorm(), role=_batch_role, expected=_SPLIT)
def statistics_of_the_own_shard(
    shards: _Shards, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float
) -> _Results:
    """Nothing is exchanged: each worker normalizes with the statistics of its own samples."""
    _, means, variances = _finished(shards, weight, bias, (running_mean, running_var), momentum, _pooled(shards))
    return [_normalized(shard, *_pooled([shard])[:2], weight, bias) for shard in shards], means, variances


@fault("K26", "pytorch/pytorch#36382", norm=BatchNorm(), role=_batch_role, dtypes=("float32",), expected=_SPLIT)
def gradient_through_the_own_share_only(
    shards: _Shards, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float
) -> _Results:
    """Backwards no sums are exchanged: each worker sees how its own samples move the statistics, and not those of the others."""
    _, means, variances = _finished(shards, weight, bias, (running_mean, running_var), momentum, _pooled(shards))
    outputs = []
    for own, shard in enumerate(shards):
        seen = [other if i == own else other.detach() for i, other in enumerate(shards)]
        outputs.append(_normalized(shard, *_pooled(seen)[:2], weight, bias))
    return outputs, means, variances


@fault(
    "K23",
    "NVIDIA/Megatron-LM#1446",
    "NVIDIA/TransformerEngine#435",
    norm=LAYER_NORM,
    role=_layer_role,
    dtypes=("float32",),
    expected=_SPLIT,
)
def weight_gradient_of_one_worker(shards: _Shards, weight: Tensor, bias: Tensor) -> list[Tensor]:
    """The gradient of the weight is that of the first worker's tokens."""
    others = (None if weight is None else weight.detach(), None if bias is None else bias.detach())
    return [_layer_norm(shard, *((weight, bias) if i == 0 else others)) for i, shard in enumerate(shards)]


@fault("K26", "EleutherAI/gpt-neox#1259", norm=LAYER_NORM, role=_layer_role, dtypes=("float32",), expected=_SPLIT)
def weight_gradient_averaged_over_workers(shards: _Shards, weight: Tensor, bias: Tensor) -> list[Tensor]:
    """The gradients of weight and bias are averaged over the workers, where they should add."""

    def averaged(parameter: Tensor | None) -> Tensor | None:
        if parameter is None:
            return None
        share = parameter / len(shards)
        return share + (parameter - share).detach()

    return [_layer_norm(shard, averaged(weight), averaged(bias)) for shard in shards]
