"""Norm layers of a model: found, judged with their own weights on what enters them, and told with their regime."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from normcheck import models
from normcheck.audit import Audit
from normcheck.checks.captured import CAPTURED, REGIME
from normcheck.cli import main
from normcheck.implementations import frameworks, left_out
from normcheck.models import ModelError, audit_model, build, markdown, table
from normcheck.results import Outcome

ONLY = (CAPTURED, REGIME)


class OnePassLayerNorm(nn.Module):
    """A variance that is the mean of squares less the square of the mean."""

    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x):
        """One pass."""
        mean = x.mean(-1, keepdim=True)
        variance = (x * x).mean(-1, keepdim=True) - mean * mean
        return (x - mean) * torch.rsqrt(variance + self.eps) * self.weight + self.bias


class NoEpsRMSNorm(nn.RMSNorm):
    """An eps that is forgotten."""

    def forward(self, x):
        """One pass."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True)) * self.weight).to(x.dtype)


class GammaNorm(nn.Module):
    """A sound norm whose weight has another name."""

    def __init__(self, dim):
        super().__init__()
        self.gamma = nn.Parameter(torch.linspace(0.5, 2.0, dim))

    def forward(self, x):
        """One pass."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gamma


class GatedNorm(nn.Module):
    """Not a norm of ours."""

    def forward(self, x, gate):
        """One pass."""
        return x * gate


class Block(nn.Module):
    """Two convolutions with BatchNorm around a shortcut."""

    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        """One pass."""
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(x + self.bn2(self.conv2(y)))


class ConvNet(nn.Module):
    """A small residual network; the last norm can be replaced."""

    def __init__(self, last=None):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(Block(8), Block(8))
        self.gn = nn.GroupNorm(4, 8)
        self.lrn = nn.LocalResponseNorm(2)
        self.unused = nn.LayerNorm(7)
        self.last = last or nn.LayerNorm(8)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        """One pass."""
        x = self.lrn(self.gn(self.blocks(torch.relu(self.bn(self.stem(x))))))
        return self.head(self.last(x.mean((2, 3)) + 300))


def convnet(last=None):
    """The network with random weights in evaluation, and an image."""
    torch.manual_seed(0)
    return ConvNet(last).eval(), torch.randn(2, 3, 8, 8)


def by_layer(audit: Audit, check: str):
    """Results of a check by layer."""
    return {result.implementation: result for result in audit.results if result.check == check}


def only(model, x, **options):
    """The audit of captured calls alone."""
    return audit_model(model, x, checks=ONLY, **options)


def test_every_norm_layer_of_a_convnet_is_judged_or_named():
    """Layers of torch pass with their grade; what is never called and what is no norm of ours is warned of, with the reason."""
    audit = only(*convnet())
    outcomes = {name: result.outcome.value for name, result in by_layer(audit, CAPTURED).items()}
    passed = ("bn", "blocks.0.bn1", "blocks.0.bn2", "blocks.1.bn1", "blocks.1.bn2", "gn", "last")
    assert outcomes == {**dict.fromkeys(passed, "passed"), "lrn": "warned", "unused": "warned"}
    assert audit.passed
    assert audit.born["model"] == "ConvNet"
    reasons = {name: by_layer(audit, CAPTURED)[name].message for name in ("lrn", "unused")}
    assert reasons == {"lrn": "not judged: no norm of ours", "unused": "not judged: was not called in the forward pass"}
    assert list(outcomes) == ["bn", "blocks.0.bn1", "blocks.0.bn2", "blocks.1.bn1", "blocks.1.bn2", "gn", "lrn", "unused", "last"]


def test_an_injected_one_pass_variance_is_found():
    """At mean/std of a thousand the layer is told by name, with class, grade F and what it returned."""
    audit = only(*convnet(OnePassLayerNorm(8)))
    (failure,) = audit.failures
    assert (failure.implementation, failure.check, failure.norm.partition(":")[0]) == ("last", CAPTURED, "OnePassLayerNorm")
    assert "captured]" in failure.message
    assert audit.grades["last", "float32"] == "F"
    assert audit.grades["gn", "float32"] == "A"


def test_a_forgotten_eps_is_found():
    """The attribute says what is claimed, also where the forward pass of a derived class does not read it."""
    layer = NoEpsRMSNorm(16, eps=1e-3)
    torch.manual_seed(0)
    audit = only(nn.Sequential(layer), torch.randn(4, 16) / 16)
    assert [failure.check for failure in audit.failures] == [CAPTURED]
    assert "RMSNorm(eps=0.001" in audit.failures[0].norm


def test_each_configuration_is_judged_once_by_the_checks():
    """Layers that differ in their weights alone share the checks of the first; each has its own captured call."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(16), nn.LayerNorm(16), nn.LayerNorm(16, eps=1e-3))
    audit = audit_model(model, torch.randn(4, 16), checks=["accuracy", *ONLY])
    assert set(by_layer(audit, CAPTURED)) == {"0", "1", "2"}
    assert set(by_layer(audit, "accuracy")) == {"0", "2"}
    assert {result.shape[-1] for result in audit.results if result.check == "accuracy"} == {16}


def test_what_the_ledger_says_of_a_class_holds_for_a_layer():
    """A known fault of torch is expected in a layer of a model as well."""
    audit = audit_model(nn.Sequential(nn.LayerNorm(4)), torch.randn(2, 4), checks=["overflow"])
    known = [result for result in audit.results if result.outcome is Outcome.XFAILED]
    assert known
    assert audit.passed
    assert {result.implementation for result in known} == {"0"}


def test_weights_of_another_name_are_judged_as_they_are():
    """A layer whose weight is named gamma passes on its captured call; checks that put in weights are not run on it."""
    audit = audit_model(nn.Sequential(GammaNorm(16)), torch.randn(4, 16), checks=["accuracy", *ONLY])
    assert by_layer(audit, CAPTURED)["0"].outcome is Outcome.PASSED
    assert "accuracy" not in {result.check for result in audit.results}


def test_a_batch_norm_in_training_is_judged_by_its_batch():
    """In training the statistics are those of the batch, in evaluation the stored ones, which the pass has moved."""
    torch.manual_seed(0)
    x = torch.randn(16, 3, 4, 4) * 5 + 2
    for model in (nn.Sequential(nn.BatchNorm2d(3)).train(), nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False)).eval()):
        assert only(model, x).passed
    assert only(nn.Sequential(nn.BatchNorm2d(3), nn.InstanceNorm2d(3)).eval(), x).passed


class Mixed(nn.Module):
    """A convolution and a sound norm of three kinds."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.gn, self.ln = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GroupNorm(2, 8), nn.LayerNorm(8)

    def forward(self, x):
        """One pass."""
        return self.ln(self.gn(self.bn(self.conv(x))).movedim(1, -1))


@pytest.mark.parametrize("training", [True, False])
def test_sound_layers_pass_every_check_in_both_modes(training):
    """A BatchNorm that the pass has trained is judged by copies without its history; that it is no new module is said."""
    torch.manual_seed(0)
    audit = audit_model(Mixed().train(training), torch.randn(4, 3, 8, 8))
    assert [(failure.implementation, failure.check, failure.message) for failure in audit.failures] == []
    assert {"passed"} == {by_layer(audit, CAPTURED)[name].outcome.value for name in ("bn", "gn", "ln")}
    of_batch = {result.check: result for result in audit.results if result.implementation == "bn"}
    if training:
        stateful = ("running-steps", "state-round-trip", "tracking-switch")
        assert {of_batch[name].outcome for name in stateful} == {Outcome.PASSED}
        assert of_batch["fresh-evaluation"].message == "a layer of a model is no new module"


class StdNorm(nn.Module):
    """The LayerNorm of many a tutorial: the unbiased deviation, and eps beside it."""

    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.a_2 = nn.Parameter(torch.linspace(0.5, 2.0, dim))
        self.b_2 = nn.Parameter(torch.linspace(-1.0, 1.0, dim))
        self.eps = eps

    def forward(self, x):
        """One pass."""
        return self.a_2 * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + self.eps) + self.b_2


class StdLayerNorm(nn.LayerNorm):
    """The same below torch's own class, with the deviation in a variable."""

    def forward(self, x):
        """One pass."""
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return (x - mean) / (std + self.eps) * self.weight + self.bias


class TooWide(nn.LayerNorm):
    """The same with a deviation that is 1 % too large."""

    def forward(self, x):
        """One pass."""
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return (x - mean) / (std * 1.01 + self.eps) * self.weight + self.bias


class Unreadable(nn.LayerNorm):
    """Sound, by means that are not read."""

    def forward(self, x):
        """One pass."""
        return getattr(nn.functional, "layer_" + "norm")(x, self.normalized_shape, self.weight, self.bias, self.eps)


class UnreadableWrong(Unreadable):
    """The same, and wrong."""

    def forward(self, x):
        """One pass."""
        return Unreadable.forward(self, x) * 1.01


class ChannelsFirst(nn.LayerNorm):
    """Channels are moved last and back."""

    def forward(self, x):
        """One pass."""
        return super().forward(x.transpose(1, -1)).transpose(1, -1)


class ElsewhereFirst(nn.LayerNorm):
    """The same in a way that is not read."""

    def forward(self, x):
        """One pass."""
        return torch.swapaxes(super().forward(torch.swapaxes(x, 1, 3)), 1, 3)


class Conditional(nn.BatchNorm1d):
    """Takes more than x."""

    def forward(self, x, scale):
        """One pass."""
        return nn.BatchNorm1d.forward(self, x) * scale


class Strange(nn.LayerNorm):
    """A parameter that no norm has."""

    def __init__(self, dim):
        super().__init__(dim)
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, x):
        """One pass."""
        return super().forward(x) * self.temperature


CLAIMED = {
    StdNorm: (True, "LayerNorm(eps=1e-06, eps_placement='outside', ddof=1)"),
    StdLayerNorm: (True, "LayerNorm(eps=1e-05, eps_placement='outside', ddof=1)"),
    TooWide: (False, "LayerNorm(eps=1e-05, eps_placement='outside', ddof=1)"),
    Unreadable: (True, "LayerNorm(eps=1e-05)"),
    UnreadableWrong: (False, "LayerNorm(eps=1e-05)"),
}


@pytest.mark.parametrize("kind", CLAIMED)
def test_a_hand_written_layer_norm_is_judged(kind):
    """By what its text says, a deviation by std among it; where that cannot be read, by what its base claims."""
    torch.manual_seed(0)
    audit = only(nn.Sequential(kind(16)), torch.randn(8, 16))
    sound, norm = CLAIMED[kind]
    assert by_layer(audit, CAPTURED)["0"].outcome is (Outcome.PASSED if sound else Outcome.FAILED)
    assert table(audit)[0][models.COLUMNS.index("norm")] == norm


def test_a_layer_norm_by_std_passes_every_check():
    """Sound code is not accused where its claim was read."""
    torch.manual_seed(0)
    assert audit_model(nn.Sequential(StdLayerNorm(16)), torch.randn(8, 16)).failures == ()


def test_channels_that_a_layer_moves_are_moved_for_it():
    """A LayerNorm over axis 1 passes every check; where its axis is not found, it does not fit, and is not judged."""
    torch.manual_seed(0)
    x = torch.randn(4, 8, 3, 5)
    assert audit_model(nn.Sequential(ChannelsFirst(8)), x, checks=["accuracy", "output-form", *ONLY]).failures == ()
    (row,) = table(only(nn.Sequential(ElsewhereFirst(8)), x))
    told = dict(zip(models.COLUMNS, row, strict=True))
    assert told["outcome"] == "warned"
    assert told["danger"].startswith("not judged: ")


def test_a_layer_that_is_not_judged_is_a_warning():
    """One that takes more than x, or has a parameter that no norm has, is told in the table, though torch's norm is its base."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conditional, self.strange = Conditional(8), Strange(8)

        def forward(self, x):
            return self.strange(self.conditional(x, x))

    rows = [dict(zip(models.COLUMNS, row, strict=True)) for row in table(only(Model(), torch.randn(4, 8)))]
    assert [(row["layer"], row["outcome"]) for row in rows] == [("conditional", "warned"), ("strange", "warned")]
    assert rows[0]["danger"] == "not judged: derives from BatchNorm1d, not from a plain layer"
    assert rows[1]["danger"] == "not judged: its parameters temperature are not understood"


def test_the_memory_format_is_that_of_the_model():
    """An input with channels last is captured as it lies."""
    x = torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last)
    audit = only(nn.Sequential(nn.GroupNorm(2, 8)), x)
    assert {result.layout for result in audit.results} == {"channels_last"}


def test_samples_of_a_large_input_are_judged(monkeypatch):
    """Where an input is too large some samples at equal distances are judged, all of them where a batch is pooled."""
    monkeypatch.setattr(models, "MOST", 64)
    x = torch.randn(32, 8)
    assert by_layer(only(nn.Sequential(nn.LayerNorm(8)), x), CAPTURED)["0"].shape == (8, 8)
    assert by_layer(only(nn.Sequential(nn.BatchNorm1d(8)).train(), x), CAPTURED)["0"].shape == (32, 8)


DANGERS = {
    "mean/std": (nn.LayerNorm(8), 1e5 + torch.arange(16.0).reshape(2, 8) / 8, "mean/std=", "should be < 4.1e+03"),
    "outlier": (nn.RMSNorm(8, eps=1e-6), torch.tensor([[1.0] * 7 + [50.0]]), "max|x|/rms=2.82", "one element holds 100%"),
    "eps": (nn.LayerNorm(8), torch.arange(8.0)[None] * 1e-4, "eps/(v+eps)=", "should be < 0.5"),
    "squares": (nn.LayerNorm(8).half(), torch.arange(8.0)[None].half() * 100, "squares of x overflow float16", ""),
    "output": (nn.LayerNorm(8).half(), torch.arange(8.0)[None].half(), "y is within a factor of", "of overflow in float16"),
}


@pytest.mark.parametrize("name", DANGERS)
def test_a_dangerous_regime_is_a_warning(name):
    """What leaves no room for rounding is told with its figure and its limit, and fails nothing."""
    layer, x, told, limit = DANGERS[name]
    if name == "output":
        nn.init.constant_(layer.weight, 30000.0)
    audit = only(nn.Sequential(layer), x)
    result = by_layer(audit, REGIME)["0"]
    assert result.outcome is Outcome.WARNED
    assert told in result.message
    assert limit in result.message
    assert audit.passed


def test_an_ordinary_regime_passes():
    """Standard normal activations are in no danger."""
    torch.manual_seed(0)
    result = by_layer(only(nn.Sequential(nn.LayerNorm(64)), torch.randn(8, 64)), REGIME)["0"]
    assert result.outcome is Outcome.PASSED
    assert result.measures["mean_over_std"] < 1 < result.measures["max_over_rms"]
    assert result.measures["output_headroom"] > 120


def test_rows_with_nan_say_nothing_of_eps():
    """The regime is that of the finite rows; that others are not is told beside it."""
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    x[1, 3] = float("nan")
    result = by_layer(only(nn.Sequential(nn.LayerNorm(64)), x), REGIME)["0"]
    assert result.measures["eps_share"] < 1e-3
    assert "x holds 1 NaN or inf" in result.message


def test_rows_of_zeros_are_in_the_regime_of_eps():
    """A row without spread is all eps; zeros are no outlier and have infinitely much room."""
    result = by_layer(only(nn.Sequential(nn.LayerNorm(8)), torch.zeros(2, 8)), REGIME)["0"]
    assert result.measures["eps_share"] == 1.0
    assert result.measures["share_of_one"] == 0.0
    assert result.measures["square_headroom"] == float("inf")


INPUTS = {
    "a tensor": torch.ones(2, 8),
    "a tuple": (torch.ones(2, 8),),
    "keywords": {"input": torch.ones(2, 8)},
    "a function": lambda: torch.ones(2, 8),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_may_be_given_in_several_ways(name):
    """A tensor, a tuple, a dict of keywords or a function that makes them."""
    assert set(by_layer(only(nn.LayerNorm(8), INPUTS[name]), CAPTURED)) == {"LayerNorm"}


def test_a_model_may_bring_its_own_inputs():
    """``dummy_inputs`` and ``example_input_array`` are taken where none are given; without them the message asks for them."""
    for name in ("dummy_inputs", "example_input_array"):
        model = nn.Sequential(nn.LayerNorm(8))
        setattr(model, name, torch.ones(2, 8))
        assert set(by_layer(only(model, None), CAPTURED)) == {"0"}
    with pytest.raises(ModelError, match=r"Sequential comes without inputs, but its callable should return \(model, inputs\)"):
        only(nn.Sequential(nn.LayerNorm(8)), None)


def test_what_cannot_be_walked_or_run_is_refused():
    """A model without norms, and a forward pass that raises, are told in one line."""
    with pytest.raises(ModelError, match="Linear has no norm layer"):
        only(nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(ModelError, match="the forward pass of Sequential raised RuntimeError: "):
        only(nn.Sequential(nn.LayerNorm(3)), torch.ones(1, 2))


def test_what_is_no_norm_of_ours_is_named():
    """A layer whose name speaks of a norm has its reason, also where it is called with something else than numbers."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.gated, self.norm = GatedNorm(), nn.LayerNorm(4)

        def forward(self, x):
            return self.norm(self.gated(x, x))

    audit = only(Model(), torch.ones(1, 4))
    assert by_layer(audit, CAPTURED)["gated"].message == "not judged: its forward pass takes gate besides x"


def test_the_table_has_a_line_for_each_layer():
    """Name, class, norm, dtype, shape, grade and regime of every layer, as text and as a page."""
    audit = only(*convnet(OnePassLayerNorm(8)))
    rows = {row[0]: dict(zip(models.COLUMNS, row, strict=True)) for row in table(audit)}
    assert rows["last"]["class"] == "OnePassLayerNorm"
    assert rows["last"]["norm"] == "LayerNorm(eps=1e-05)"
    assert (rows["last"]["x"], rows["last"]["grade"], rows["last"]["outcome"]) == ("2x8", "F", "failed")
    assert (rows["unused"]["outcome"], rows["unused"]["danger"]) == ("warned", "not judged: was not called in the forward pass")
    page = markdown(audit)
    assert page.count("\n| ") == len(rows) + 2
    assert "| last | OnePassLayerNorm |" in page


def test_a_failed_check_shows_in_the_table():
    """A layer whose captured call passes and whose configuration fails a check is no passed layer."""
    torch.manual_seed(0)
    audit = audit_model(nn.Sequential(OnePassLayerNorm(16)), torch.randn(4, 16), checks=["shift-invariance", *ONLY])
    (row,) = table(audit)
    assert row[models.COLUMNS.index("outcome")] == "failed shift-invariance"


def test_targets_are_built(tmp_path: Path):
    """A callable that returns a model, or a model and inputs; anything else is refused with what it returned or raised."""
    file = tmp_path / "zoo.py"
    file.write_text(
        "import torch\n"
        "def alone(): return torch.nn.LayerNorm(4)\n"
        "def both(): return torch.nn.LayerNorm(4), torch.ones(2, 4)\n"
        "def none(): return 3\n"
        "def bad(): raise KeyError('weights')\n"
        "def leaves(): raise SystemExit(4)\n"
        "def ends(): import os; os._exit(4)\n"
    )
    assert build(f"{file}:alone")[1] is None
    assert build(f"{file}:both")[1].shape == (2, 4)
    with pytest.raises(ModelError, match=r"none returned int, but should return a torch\.nn\.Module, or one and its inputs"):
        build(f"{file}:none")
    with pytest.raises(ModelError, match="bad raised KeyError: 'weights'"):
        build(f"{file}:bad")
    with pytest.raises(ModelError, match="leaves raised SystemExit: 4"):
        build(f"{file}:leaves")
    with pytest.raises(ModelError, match=r"ends raised SystemExit: os\._exit\(4\)"):
        build(f"{file}:ends")


def test_the_command_line_judges_a_model(tmp_path: Path):
    """``--model`` prints the table, writes it beside the report, and exits 1 for a bad layer."""
    text = Path(__file__).read_text(encoding="utf-8").split("ONLY = ")[1].split("def by_layer")[0].partition("\n")[2]
    (tmp_path / "net.py").write_text(
        f"import torch\nfrom torch import nn\n{text}\n\ndef bad():\n    return convnet(OnePassLayerNorm(8))\n"
    )
    given = [
        "audit",
        "--model",
        f"{tmp_path / 'net.py'}:bad",
        "--check",
        CAPTURED,
        "--check",
        REGIME,
        "--output",
        str(tmp_path / "out"),
    ]
    result = CliRunner().invoke(main, given)
    assert result.exit_code == 1, result.output
    assert "Norm layers of ConvNet" in result.output
    assert "| last | OnePassLayerNorm |" in (tmp_path / "out" / "layers.md").read_text(encoding="utf-8")
    stored = json.loads((tmp_path / "out" / "audit.json").read_text(encoding="utf-8"))
    assert (stored["born"]["model"], stored["born"]["profile"]) == ("ConvNet", "quick")


def test_a_check_that_says_nothing_of_layers_has_no_table(tmp_path: Path):
    """``--model`` with checks of which the table is not made says so, on the screen and in the page, and judges them."""
    (tmp_path / "net.py").write_text("import torch\n\ndef build():\n    return torch.nn.LayerNorm(8), torch.ones(2, 8)\n")
    given = ["audit", "--model", f"{tmp_path / 'net.py'}:build", "--check", "row-counts", "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(main, given)
    assert result.exit_code == 0, result.output
    told = "No table of layers: it shows what captured-activations and activation-regime found, and neither was chosen."
    assert told in result.output
    assert "mean/std" not in result.output
    assert told in (tmp_path / "out" / "layers.md").read_text(encoding="utf-8")


def test_the_command_line_refuses_what_is_no_model(tmp_path: Path):
    """A target that cannot be built is wrong usage, as are a dtype and a device beside a model."""
    (tmp_path / "net.py").write_text("def bad():\n    return 3\n")
    for given, told in (
        (["net:bad"], "returned int"),
        (["x:y", "--dtype", "float32"], "--dtype with --model"),
        (["x"], "target='x'"),
    ):
        target = [given[0].replace("net", str(tmp_path / "net.py")), *given[1:]]
        result = CliRunner().invoke(main, ["audit", "--model", *target, "--output", str(tmp_path / "out")])
        assert result.exit_code == 2
        assert told in result.output


def test_without_torch_the_line_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Wrong usage, with pip's line, and no traceback."""
    monkeypatch.setattr(type(frameworks()["torch"]), "available", lambda _self: "pip install 'normcheck[torch]'")
    result = CliRunner().invoke(main, ["audit", "--model", "net.py:build", "--output", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "torch is not installed; pip install 'normcheck[torch]'" in result.output


def test_an_interrupt_leaves_what_was_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C while layers are judged: the table and the report are written, and the exit code is 130."""
    (tmp_path / "net.py").write_text("import torch\n\ndef build():\n    return torch.nn.LayerNorm(8), torch.ones(2, 8)\n")
    judge, calls = models.audit, []

    def broken_off(*given, progress=None, **options):
        def moved(done, total, label):
            calls.append(label)
            if len(calls) == 2:
                raise KeyboardInterrupt

        return judge(*given, progress=moved, **options)

    monkeypatch.setattr(models, "audit", broken_off)
    given = ["audit", "--model", f"{tmp_path / 'net.py'}:build", "--profile", "quick", "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(main, given)
    assert result.exit_code == 130, result.output
    stored = Audit.read(tmp_path / "out" / "audit.json")
    assert stored.born["interrupted"].startswith("2 of ")
    assert stored.born["model"] == "LayerNorm"
    assert (tmp_path / "out" / "layers.md").exists()


needed = pytest.mark.skipif(any("transformers" in line for line in left_out("torch")), reason="transformers is not installed")


@needed
@pytest.mark.parametrize("bad", [False, True])
def test_a_llama_with_random_weights(bad):
    """Every RMSNorm of a small Llama in bfloat16 passes, and one whose eps is forgotten is found."""
    import transformers

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 97}
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=2, **sizes)).to(torch.bfloat16).eval()
    kind = type(model.model.norm)

    class Forgotten(kind):
        def forward(self, x):
            wide = x.float()
            return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True))).to(x.dtype)

    if bad:
        model.model.layers[1].input_layernorm.__class__ = Forgotten
    audit = only(model, {"input_ids": torch.arange(24).reshape(2, 12)})
    names = [f"model.layers.{i}.{part}_layernorm" for i in range(2) for part in ("input", "post_attention")]
    assert list(by_layer(audit, CAPTURED)) == [*names, "model.norm"]
    assert [failure.implementation for failure in audit.failures] == (["model.layers.1.input_layernorm"] if bad else [])
    assert {audit.grades[name, "bfloat16"] for name in names if name not in "model.layers.1.input_layernorm"} == {"A+"}
