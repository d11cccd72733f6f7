"""K10 and K33: the state machine of running statistics, and what evaluation and training take from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from normcheck.contract import Contract
from normcheck.faults.catalogue import fault, sound_norm
from normcheck.faults.modules import Module, as_module
from normcheck.faults.parts import LAYER_NORM, Tensor, centred, finish, finish_channels, per_channel
from normcheck.norms import BatchNorm, InstanceNorm, Norm

_UPDATE = ("running-update",)
_KERAS = Contract(momentum_convention="keras", running_ddof=0)
Result = tuple[Tensor, Tensor, Tensor]
# x meets float32 at several places: its gradients are rounded to storage before they are added
CASTS = ("input-gradient", "gradient-identities")
_ARGUMENTS = ("x", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")


def statistics(x: Tensor) -> Result:
    """Mean, biased and unbiased variance of each channel, in float32."""
    rows = x.float().movedim(1, 0).reshape(x.shape[1], -1)
    mean = rows.mean(1)
    squares = ((rows - mean[:, None]) ** 2).sum(1)
    return mean, squares / rows.shape[1], squares / max(rows.shape[1] - 1, 1)


def _normalized(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    c = x.float() - per_channel(mean.float(), x)
    return finish_channels(x, c * per_channel((var.float() + eps).rsqrt(), x), weight, bias)


def moved(old: Tensor, batch: Tensor, share: float) -> Tensor:
    """A running statistic after a batch that has this share in it."""
    return ((1 - share) * old.float() + share * batch).to(old.dtype)


@dataclass(frozen=True, eq=False)
class Step:
    """The arguments of one call of a BatchNorm, and what a sound one does with them."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    mean: Tensor
    var: Tensor
    training: bool
    momentum: float
    eps: float

    def normalized(self, mean: Tensor, var: Tensor) -> Tensor:
        """The output with these statistics."""
        return _normalized(self.x, mean, var, self.weight, self.bias, self.eps)

    def sound(self) -> Result:
        """With the batch's statistics in training, the given ones in evaluation; torch's convention."""
        if not self.training:
            return self.normalized(self.mean, self.var), self.mean, self.var
        m, biased, unbiased = statistics(self.x)
        return self.normalized(m, biased), moved(self.mean, m, self.momentum), moved(self.var, unbiased, self.momentum)


def stepping(function: Callable[[Step], Result]) -> dict[str, Any]:
    """The fields of `Implementation` that hold code which takes a `Step`."""
    return {"call": lambda *given: function(Step(*given)), "arguments": _ARGUMENTS}


@sound_norm(BatchNorm(), role=stepping, warns=("overflow", "layout-invariance", *CASTS))
def batch_norm_with_statistics(s: Step) -> Result:
    """Both modes, with new statistics in the convention of torch."""
    return s.sound()


@sound_norm(BatchNorm(momentum=0.99), contract=_KERAS, role=stepping, warns=("overflow", "layout-invariance", *CASTS))
def batch_norm_of_keras(s: Step) -> Result:
    """Both modes, in the convention of Keras: momentum is what is kept, the variance is the biased one."""
    if not s.training:
        return s.sound()
    m, biased, _ = statistics(s.x)
    y = s.normalized(m, biased)
    return y, moved(s.mean, m, 1 - s.momentum), moved(s.var, biased, 1 - s.momentum)


@fault("K10", "pytorch/vision#8250", "huggingface/transformers#19454", norm=BatchNorm(), role=stepping, expected=_UPDATE)
def momentum_of_the_other_convention(s: Step) -> Result:
    """Momentum is what is kept, where it is claimed to be what is taken."""
    return replace(s, momentum=1 - s.momentum).sound()


@fault("K10", "r9y9/tacotron_pytorch#19", norm=BatchNorm(momentum=0.99), role=stepping, contract=_KERAS, expected=_UPDATE)
def momentum_of_torch_under_keras(s: Step) -> Result:
    """Momentum is what is taken, where it is claimed to be what is kept."""
    if not s.training:
        return s.sound()
    m, biased, _ = statistics(s.x)
    y = s.normalized(m, biased)
    return y, moved(s.mean, m, s.momentum), moved(s.var, biased, s.momentum)


@fault("K10", "pytorch/pytorch#18525", norm=BatchNorm(), role=stepping, expected=_UPDATE)
def momentum_of_one(s: Step) -> Result:
    """The exported graph takes the batch's statistics alone, whatever the momentum."""
    return replace(s, momentum=1.0).sound()


@fault("K10", "pytorch/pytorch#37823", norm=BatchNorm(), role=stepping, expected=_UPDATE)
def never_updated(s: Step) -> Result:
    """Training leaves the running statistics as they are."""
    return replace(s, momentum=0.0).sound()


@fault("K10", "pytorch/pytorch#96136", "facebookresearch/fairscale#1035", norm=BatchNorm(), role=stepping, expected=_UPDATE)
def updated_twice(s: Step) -> Result:
    """Each training step updates the running statistics twice, as a recomputed forward pass does."""
    _, mean, var = s.sound()
    return replace(s, mean=mean, var=var).sound()


@fault("K10", "pytorch/pytorch#20967", norm=BatchNorm(), role=stepping, expected=("running-steps",))
def updated_in_evaluation(s: Step) -> Result:
    """Evaluation normalizes rightly, and updates the running statistics as well."""
    y, _, _ = s.sound()
    _, mean, var = replace(s, training=True).sound()
    return y, mean, var


@fault("K09", "tensorflow/tensorflow#55545", norm=BatchNorm(), role=stepping, expected=_UPDATE)
def estimator_that_depends_on_the_rank(s: Step) -> Result:
    """Images store the unbiased variance, and other inputs the biased one."""
    y, mean, var = s.sound()
    biased = moved(s.var, statistics(s.x)[1], s.momentum)
    return y, mean, var if s.x.dim() == 4 or not s.training else biased


@fault("K10", "ludwig-ai/ludwig#2100", norm=BatchNorm(), role=stepping, expected=_UPDATE)
def deviation_for_variance(s: Step) -> Result:
    """The running variance is an average of deviations."""
    y, mean, var = s.sound()
    return y, mean, moved(s.var, statistics(s.x)[2].sqrt(), s.momentum) if s.training else var


@fault("K11", "pytorch/pytorch#1381", norm=BatchNorm(), role=stepping, expected=("one-value-statistics",))
def one_value_stores_nan(s: Step) -> Result:
    """Bessel's factor n/(n-1) is taken of one value, too."""
    import torch

    y, mean, var = s.sound()
    count = torch.tensor(float(s.x.numel() // s.x.shape[1]))
    biased = statistics(s.x)[1]
    return y, mean, moved(s.var, biased * 0 if count < 1 else biased * (count / (count - 1)), s.momentum) if s.training else var


@fault("K33", "pytorch/pytorch#58843", norm=BatchNorm(), role=stepping, expected=("running-steps",))
def evaluation_by_the_batch(s: Step) -> Result:
    """Evaluation normalizes with the batch's statistics."""
    y, mean, var = replace(s, training=True).sound()
    return (y, mean, var) if s.training else (y, s.mean, s.var)


@fault("K33", "pytorch/pytorch#30294", norm=BatchNorm(), role=stepping, expected=("training-ignores-statistics", "accuracy"))
def training_by_the_running_statistics(s: Step) -> Result:
    """Training normalizes with the statistics that it has just updated."""
    _, mean, var = s.sound()
    return s.normalized(mean, var), mean, var


@fault("K33", "pytorch/vision#2169", norm=BatchNorm(), training=False, expected=("evaluation-statistics",))
def frozen_without_eps(x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor) -> Tensor:
    """The frozen norm adds no eps to the variance; only a zero variance is kept from the division."""
    return _normalized(x, running_mean, running_var.float().clamp(min=1e-30), weight, bias, 0.0)


@fault("K33", "apple/coreai-torch#54", norm=BatchNorm(), training=False, expected=("evaluation-statistics",))
def folded_with_a_clipped_variance(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, eps: float
) -> Tensor:
    """The folded scale comes from a variance that is kept between 1e-3 and 1e4."""
    return _normalized(x, running_mean, running_var.float().clamp(1e-3, 1e4), weight, bias, eps)


class BatchNormModule(Module):
    """A sound BatchNorm with state, in the convention of torch."""

    steps = 1

    def __init__(self, norm: Norm, channels: int) -> None:
        super().__init__(norm)
        import torch

        self.running_mean, self.running_var = torch.zeros(channels), torch.ones(channels)
        self.num_batches_tracked = 0
        self.track_running_stats = True

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize, and update in training."""
        if not self.training:
            return _normalized(x, self.running_mean, self.running_var, self.weight, self.bias, self.norm.eps)
        m, biased, _ = statistics(x)
        if self.track_running_stats:
            self.update(x)
        return _normalized(x, m, biased, self.weight, self.bias, self.norm.eps)

    def update(self, x: Tensor) -> None:
        """One training step of the statistics."""
        self.num_batches_tracked += 1
        m, _, unbiased = statistics(x)
        momentum = getattr(self.norm, "momentum", None)
        share = 1 / self.num_batches_tracked if momentum is None else momentum
        self.running_mean, self.running_var = moved(self.running_mean, m, share), moved(self.running_var, unbiased, share)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {
            **super().state(),
            **{name: getattr(self, name) for name in ("running_mean", "running_var", "num_batches_tracked")},
        }


def _module(change: Callable[..., Any]) -> dict[str, Any]:
    return as_module(lambda norm, shape: change(norm, shape[1]), change) | {"mutates": ("running_mean", "running_var")}


def _plain_module(change: Callable[..., Any]) -> dict[str, Any]:
    return as_module(lambda norm, shape: change(norm), change)


@sound_norm(BatchNorm(), role=_module, warns=("overflow", "recomputed-update", "layout-invariance", *CASTS))
class BatchNormWithState(BatchNormModule):
    """A module that keeps its statistics."""


@fault(
    "K10",
    "pytorch/pytorch#96136",
    "facebookresearch/fairscale#1035",
    norm=BatchNorm(),
    role=_module,
    expected=("recomputed-update",),
    profile="standard",
)
class BatchNormThatLearnsFromTheRecomputedPass(BatchNormModule):
    """The pass that is made again for the backward pass updates the statistics a second time."""


@fault("K10", "pytorch/pytorch#3122", norm=BatchNorm(), role=_module, expected=("fresh-evaluation",))
class VarianceThatStartsAtZero(BatchNormModule):
    """The running variance starts at 0, so that a fresh module multiplies by 316."""

    def __init__(self, norm: Norm, channels: int) -> None:
        super().__init__(norm, channels)
        self.running_var = self.running_var * 0


@fault("K10", "pytorch/pytorch#3122", norm=BatchNorm(), role=_module, expected=("running-cumulative",))
class CumulativeAverageThatCountsTheInitialValue(BatchNormModule):
    """With momentum None the t-th step has the share 1/(t+1), and the initial value that of one batch."""

    def update(self, x: Tensor) -> None:
        """One step too many."""
        self.num_batches_tracked += 1
        super().update(x)
        self.num_batches_tracked -= 1


@fault("K10", "after pytorch/pytorch#3122", norm=BatchNorm(), role=_module, expected=("running-cumulative",))
class CumulativeAverageOfValues(BatchNormModule):
    """With momentum None a batch has the share of its values, where all batches count alike."""

    seen = 0

    def update(self, x: Tensor) -> None:
        """The share of the values that have been seen."""
        if self.norm.momentum is not None:  # type: ignore[attr-defined]
            return super().update(x)
        self.num_batches_tracked += 1
        self.seen += x.numel()
        m, _, unbiased = statistics(x)
        share = x.numel() / self.seen
        self.running_mean, self.running_var = moved(self.running_mean, m, share), moved(self.running_var, unbiased, share)
        return None


@fault("K10", "after pytorch/pytorch#3122", norm=BatchNorm(), role=_module, dtypes=("float32",), expected=("running-cumulative",))
class StepsCountedInEightBits(BatchNormModule):
    """The count of steps of a cumulative average is kept in 8 bits."""

    def update(self, x: Tensor) -> None:
        """Count around."""
        if self.norm.momentum is None:  # type: ignore[attr-defined]
            self.num_batches_tracked %= 256
        super().update(x)


@fault("K10", "pytorch/pytorch#20967", norm=BatchNorm(), role=_module, expected=("tracking-switch",))
class SwitchThatIsNotLookedAt(BatchNormModule):
    """Statistics are updated wherever there are buffers, whatever track_running_stats says."""

    def __call__(self, x: Tensor) -> Tensor:
        """Update in any case."""
        self.track_running_stats = True
        return super().__call__(x)


@fault("K10", "pytorch/pytorch#37823", norm=BatchNorm(), role=_module, expected=("state-round-trip",))
class VarianceThatIsNotStored(BatchNormModule):
    """The running variance is no part of the state."""

    def state(self) -> dict[str, Any]:
        """Without the variance."""
        state = super().state()
        del state["running_var"]
        return state


@fault("K10", "Tencent/YOLO-Master#262", norm=BatchNorm(), role=_module, expected=("running-steps",))
class StepsThatAreCountedInEvaluation(BatchNormModule):
    """The count of batches grows in evaluation, too."""

    def __call__(self, x: Tensor) -> Tensor:
        """Count every call."""
        y = super().__call__(x)
        self.num_batches_tracked += not self.training
        return y


@fault("K33", "pytorch/pytorch#4348", norm=InstanceNorm(), role=_plain_module, expected=("mode-independence",))
class InstanceNormThatEvaluatesTheLastInstance(Module):
    """In evaluation the statistics of the last training step are used, though none are claimed to be tracked."""

    kept: Any = None

    def __call__(self, x: Tensor) -> Tensor:
        """Remember in training."""
        axes = tuple(range(2, x.dim()))
        c = x.float()
        if self.training:
            self.kept = (c.mean(axes, keepdim=True), c.var(axes, keepdim=True, unbiased=False))
        mean, var = self.kept
        return finish_channels(x, (c - mean) * (var + self.norm.eps).rsqrt(), self.weight, self.bias)


@fault(
    "K33",
    "junyanz/pytorch-CycleGAN-and-pix2pix#395",
    norm=LAYER_NORM,
    role=_plain_module,
    expected=("mode-independence",),
)
class LayerNormThatIsBypassedInEvaluation(Module):
    """In evaluation only weight and bias are applied, as if a running norm had been folded."""

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize in training only."""
        c, variance = centred(x)
        n = c * (variance + self.norm.eps).rsqrt() if self.training else x.float()
        return finish(x, n, self.weight, self.bias)
