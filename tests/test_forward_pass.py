"""Hand-written layers of a model: what is read in their source holds for what they do, or they are named with the reason."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody writes it

from normcheck.checks.captured import CAPTURED, REGIME
from normcheck.models import ModelError, audit_model, judges, table
from normcheck.results import Outcome


class Own(nn.Module):
    """What the layers below have in common."""

    def __init__(self, n, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2.0, n))
        self.bias = nn.Parameter(torch.linspace(-1.0, 1.0, n))
        self.eps = eps


class SumNorm(nn.Module):
    """A LayerNorm whose means are sums by a number."""

    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2.0, n))

    def forward(self, x):
        """One pass."""
        total = x.sum(-1, keepdim=True)
        centred = x - total / x.shape[-1]
        variance = (centred * centred).sum(-1, keepdim=True) / x.shape[-1]
        return centred / torch.sqrt(variance + 1e-5) * self.weight


class ByMethods(nn.Module):
    """A LayerNorm by methods and functions instead of operators."""

    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2.0, n))

    def forward(self, x):
        """One pass."""
        x = x.sub(x.mean(-1, keepdim=True))
        variance = torch.mul(x.square().sum(-1, keepdim=True), 1 / x.shape[-1])
        variance += 1e-5
        return torch.div(x, variance.sqrt()).mul(self.weight)


class SumRMS(nn.Module):
    """The same without a mean."""

    def forward(self, x):
        """One pass."""
        return x / ((x * x).sum(-1, keepdim=True) / x.shape[-1] + 1e-6).sqrt()


class Images(nn.Module):
    """An instance norm by hand: over two axes."""

    def forward(self, x):
        """One pass."""
        mean, var = x.mean((2, 3), keepdim=True), x.var((2, 3), keepdim=True, unbiased=False)
        return (x - mean) / torch.sqrt(var + 1e-5)


class Doubled(nn.Module):
    """A number where others have a weight."""

    def __init__(self):
        super().__init__()
        self.scale = 2.0

    def forward(self, x):
        """One pass."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale


class Groups(nn.Module):
    """A group norm by hand: x is reshaped first."""

    def forward(self, x):
        """One pass."""
        rows = x.reshape(len(x), 2, -1)
        rows = (rows - rows.mean(-1, keepdim=True)) * torch.rsqrt(rows.var(-1, keepdim=True, unbiased=False) + 1e-5)
        return rows.reshape(x.shape)


class Images1(nn.Module):
    """The same with a weight, in the shape that broadcasts over images."""

    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, n, 1, 1))

    def forward(self, x):
        """One pass."""
        return (x - x.mean(1, keepdim=True)) / torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5) * self.weight


class Planes(nn.Module):
    """A LayerNorm of two axes by hand."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(5, 16))

    def forward(self, x):
        """One pass."""
        mean, var = x.mean((-2, -1), keepdim=True), x.var((-2, -1), keepdim=True, unbiased=False)
        return (x - mean) / torch.sqrt(var + 1e-5) * self.weight


class Deviation(nn.Module):
    """No norm: the deviation becomes one more channel."""

    def forward(self, x):
        """One pass."""
        centred = x - x.mean(0, keepdim=True)
        deviation = torch.sqrt(centred.square().mean(0, keepdim=True) + 1e-8).mean()
        return torch.cat([x, deviation.expand(len(x), 1, *x.shape[2:])], 1)


class Frozen(nn.Module):
    """A BatchNorm of buffers that a loop registers."""

    def __init__(self, n):
        super().__init__()
        for name, start in (("weight", 2.0), ("bias", 1.0), ("running_mean", 0.5), ("running_var", 2.0)):
            self.register_buffer(name, torch.full((n,), start))

    def forward(self, x):
        """One pass."""
        scale = self.weight.reshape(1, -1, 1, 1) * (self.running_var.reshape(1, -1, 1, 1) + 1e-5).rsqrt()
        return x * scale + (self.bias.reshape(1, -1, 1, 1) - self.running_mean.reshape(1, -1, 1, 1) * scale)


class Moving(Frozen):
    """A BatchNorm that in training writes its statistics itself."""

    def forward(self, x):
        """One pass."""
        mean, var = self.running_mean, self.running_var
        if self.training:
            mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
            self.running_mean.lerp_(mean, 0.1)
        y = (x - mean[:, None, None]) / torch.sqrt(var[:, None, None] + 1e-5)
        return y * self.weight[:, None, None] + self.bias[:, None, None]


class Group1(nn.GroupNorm):
    """One of torch under another name."""

    def __init__(self, channels):
        super().__init__(1, channels)


class Wide(nn.LayerNorm):
    """A kernel of torch on wide input."""

    def forward(self, x):
        """One pass."""
        return F.layer_norm(x.float(), self.normalized_shape, self.weight, self.bias, self.eps).type_as(x)


class OtherEps(Own):
    """An eps that is set, and another number that is used."""

    def forward(self, x):
        """One pass."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3) * self.weight + self.bias


class NoBias(nn.LayerNorm):
    """A bias that is learned and forgotten."""

    def forward(self, x):
        """One pass."""
        return F.layer_norm(x, self.normalized_shape, self.weight, None, self.eps)


class OddRMSNorm(nn.Module):
    """A mean over time, though the weight lies along the features."""

    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        """One pass."""
        return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6) * self.weight


class OddWeight(nn.Module):
    """A norm whose weight has a name that is not known, and a class that speaks of none."""

    def __init__(self, n):
        super().__init__()
        self.w = nn.Parameter(torch.ones(n))

    def forward(self, x):
        """One pass."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.w


class HiddenRMS(nn.Module):
    """A norm by another function, whose class speaks of one."""

    def forward(self, x):
        """One pass."""
        return x / (x.norm(dim=-1, keepdim=True) * x.shape[-1] ** -0.5)


class Functional(nn.Module):
    """A block that calls norms as functions, one of them inside a layer that no attribute holds."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.kept = [nn.RMSNorm(8)]

    def forward(self, x):
        """One pass."""
        return F.normalize(F.layer_norm(self.kept[0](self.norm(x)), (8,)), dim=-1)


def rows():
    """Two sequences."""
    torch.manual_seed(0)
    return torch.randn(2, 5, 16) * 3 + 1


def images():
    """Two images."""
    torch.manual_seed(0)
    return torch.randn(2, 8, 6, 6) * 3 + 1


def judged(layer, x, *checks):
    """The audit of a model of one layer."""
    return audit_model(nn.Sequential(layer), x, checks=(*checks, CAPTURED, REGIME))


def captured(audit):
    """The result of the layer's captured call."""
    return next(result for result in audit.results if result.check == CAPTURED)


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (SumNorm(16), rows()),
        (SumRMS(), rows()),
        (ByMethods(16), rows()),
        (Wide(16), rows()),
        (Images1(8), images()),
        (Frozen(8), images()),
        (Moving(8).eval(), images()),
        (Group1(8), images()),
    ],
    ids=lambda given: type(given).__name__,
)
def test_sound_layers_of_many_hands_pass(layer, x):
    """Sums by a number are means, buffers are parameters, a weight may have axes of one element, a kernel of torch is known."""
    audit = judged(layer, x, "accuracy", "overflow", "shift-invariance")
    assert captured(audit).outcome is Outcome.PASSED
    assert audit.passed, audit.failures


@pytest.mark.parametrize(
    ("layer", "x", "reason"),
    [
        (Images(), images(), r"y\[1:\] changes with x\[0\], rows of 6 elements, which no LayerNorm of such rows does"),
        (Groups(), images(), r"y\[1:\] changes with x\[0\], rows of 6"),
        (Deviation(), images(), r"its y has shape \(2, 9, 6, 6\), but x \(2, 8, 6, 6\)"),
        (Planes(), rows(), r"its weight has shape \(5, 16\), but should be \(16,\)"),
        (Moving(8), images(), "in training, and its running statistics are written by code of its own"),
        (OddWeight(16), rows(), "its parameters w are not understood"),
        (HiddenRMS(), rows(), "takes no mean, sum or variance"),
        (Doubled(), rows(), "its scale is a number, but should be a tensor or None"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_what_is_not_understood_is_named_and_never_flagged(layer, x, reason):
    """Other axes, reshaped input, other outputs and unknown parameters are a warning with the reason, no failure."""
    audit = judged(layer, x, "accuracy")
    assert captured(audit).outcome is Outcome.WARNED
    assert re.search(f"not judged: .*{reason}", captured(audit).message), captured(audit).message
    assert audit.passed
    assert not judges(audit)


@pytest.mark.parametrize("layer", [OtherEps(16), NoBias(16), OddRMSNorm(16)], ids=lambda given: type(given).__name__)
def test_what_a_layer_has_and_does_not_use_is_claimed(layer):
    """Another number than its eps, a bias that is forgotten, and an axis that its weight does not lie along are found."""
    if isinstance(layer, NoBias):
        nn.init.ones_(layer.bias)
    audit = judged(layer, rows(), "accuracy")
    assert CAPTURED in {failure.check for failure in audit.failures}


class Gated(nn.Module):
    """A norm that may be given a gate besides x."""

    def forward(self, x, gate=None):
        """One pass."""
        x = x if gate is None else x * F.silu(gate)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Gating(nn.Module):
    """A model that gives it one, or not."""

    def __init__(self, gates):
        super().__init__()
        self.norm, self.gates = Gated(), gates

    def forward(self, x):
        """One pass."""
        return self.norm(x, gate=x + 1) if self.gates else self.norm(x)


def test_what_is_given_more_than_x_is_named():
    """A gate changes what is normalized: with one the layer is not judged, without it is."""
    with_gate, without = (audit_model(Gating(gates), rows(), checks=(CAPTURED, REGIME)) for gates in (True, False))
    assert [one.message for one in with_gate.results] == [
        "not judged: was given 2 tensors in the forward pass, but x alone is judged"
    ]
    assert judges(without)
    assert without.passed


def test_norms_that_are_called_as_functions_are_named():
    """A module that calls norms of torch itself is a warning, also one in no attribute; the layers beside it are judged."""
    torch.manual_seed(0)
    audit = audit_model(nn.Sequential(Functional()), torch.randn(3, 8), checks=(CAPTURED, REGIME))
    told = {one.implementation: one.message for one in audit.results if one.message.startswith("not judged: ")}
    assert told == {
        "0": "not judged: calls layer_norm, normalize of torch itself: a function is judged by normcheck check",
        "RMSNorm (no submodule)": "not judged: calls rms_norm of torch itself: a function is judged by normcheck check",
    }
    assert [one.outcome for one in audit.results if one.implementation == "0.norm" and one.check == CAPTURED] == [Outcome.PASSED]
    with pytest.raises(ModelError, match="Linear has no norm layer, and calls no norm of torch as a function"):
        audit_model(nn.Linear(8, 8), torch.randn(3, 8))


def test_a_compiled_function_inside_a_model_is_let_be():
    """Where calls cannot be noted, as in what torch.compile traces, the layers are judged all the same."""

    class Compiled(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(8)
            self.double = torch.compile(lambda x: F.layer_norm(x, (8,)) * 2, backend="eager")

        def forward(self, x):
            return self.double(self.norm(x))

    audit = audit_model(Compiled(), torch.randn(3, 8), checks=(CAPTURED, REGIME))
    assert {one.implementation for one in audit.results} == {"norm"}
    assert judges(audit)
    assert audit.passed


def test_scripted_layers_and_those_without_data_are_named():
    """What has no class or no values cannot be judged; the reason says so."""
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        scripted = torch.jit.script(nn.Sequential(nn.LayerNorm(8)))
    (result,) = audit_model(scripted, torch.randn(3, 8), checks=(CAPTURED,)).results
    assert (result.norm, result.implementation) == ("LayerNorm", "0")
    assert "it is scripted, without its class" in result.message
    (result,) = audit_model(nn.LayerNorm(8, device="meta"), torch.randn(3, 8, device="meta"), checks=(CAPTURED,)).results
    assert result.message == "not judged: Cannot copy out of meta tensor; no data!"


def test_statistics_that_make_nan_of_everything_are_warned_of():
    """NaN, infinity and a negative variance in what a layer holds, though y is what the norm makes of them."""
    layers = [nn.BatchNorm2d(8) for _ in range(3)]
    with torch.no_grad():
        layers[0].running_var[1] = -2.0
        layers[1].running_mean[0] = torch.inf
        layers[2].weight[0] = torch.nan
    told = ("running_var=-2, but should be >= 0", "running_mean holds 1 NaN or inf", "weight holds 1 NaN or inf")
    for layer, text in zip(layers, told, strict=True):
        audit = judged(layer.eval(), images())
        (regime,) = [one for one in audit.results if one.check == REGIME]
        assert regime.outcome is Outcome.WARNED
        assert text in regime.message
        assert text in table(audit)[0][-1]


def test_of_several_calls_the_first_is_judged_and_the_others_are_told():
    """A layer that is used three times says so in its line."""
    layer = nn.LayerNorm(16)
    audit = audit_model(nn.Sequential(layer, layer, layer), rows(), checks=(CAPTURED, REGIME))
    assert [row[-1] for row in table(audit)] == ["the first of 3 calls"]
