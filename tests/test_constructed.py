"""Stateful modules by their class: on the command line, in pyproject.toml and in snippets."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import normcheck as nc
from normcheck.cli import main
from normcheck.implementations import TargetError
from normcheck.implementations.constructed import constructed
from normcheck.options import OptionError, code_of, initial

pytest_plugins = ["pytester"]

pytest.importorskip("torch")

MODULE = """
import torch

class RMS(torch.nn.Module):
    def __init__(self, hidden, eps=1e-5, scale=1.0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden))
        self.eps, self.scale = eps, scale

    def forward(self, x):
        wide = x.float()
        n = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (n * self.weight.float() * self.scale).to(x.dtype)

class Sized(RMS):
    def __init__(self, dim, eps=1e-6):
        super().__init__(dim, eps)

class Dims(RMS):
    def __init__(self, dims, eps=1e-6):
        super().__init__(dims, eps)

class Spelled(RMS):
    def __init__(self, dim, epsilon=0.5):
        super().__init__(dim, epsilon)

class Narrow(RMS):
    def __init__(self, width, eps=1e-6):
        super().__init__(width, eps)

class Greek(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gamma = torch.nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.gamma

class Exits(torch.nn.Module):
    def __init__(self, width):
        raise SystemExit(5)

class Channels(torch.nn.BatchNorm1d):
    pass

layer = Sized(64)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The target's file, in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "layers.py").write_text(MODULE, encoding="utf-8")
    return "layers.py"


def judged(*arguments: str) -> Any:
    """``normcheck check`` of an RMSNorm on the narrowest set of checks."""
    usual = ("--norm", "rms_norm", "--profile", "quick", "--dtype", "float32", "--check", "accuracy", "--no-isolation")
    return CliRunner().invoke(main, ["check", *arguments, *usual])


@pytest.mark.parametrize(
    "arguments",
    [
        ("layers.py:Sized",),
        ("layers.py:Sized", "--eps", "1e-3"),
        ("layers.py:Dims",),
        ("layers.py:Spelled",),
        ("layers.py:RMS", "--init", "eps=1e-6", "--init", "scale=1.0"),
        ("layers.py:Narrow", "--init", "width=64"),
        ("layers.py:Narrow", "--init", "{'width': 64, 'eps': 1e-6}"),
        ("layers.py:Sized", "--init", "dim=48", "--width", "48"),
    ],
    ids=" ".join,
)
def test_sound_classes_pass(file: str, arguments: tuple[str, ...]) -> None:
    """Sizes come from the shape or from the arguments, eps from the norm unless it is told."""
    done = judged(*arguments)
    assert done.exit_code == 0, done.output


def test_a_wrong_argument_shows(file: str) -> None:
    """What the constructor is given reaches the module, and a snippet makes the module with it and fails."""
    done = judged("layers.py:Narrow", "--init", "width=64", "--init", "eps=0.25", "--output", "report")
    assert done.exit_code == 1
    (failure, *_) = nc.Audit.read("report/audit.json").failures
    assert failure.witness is not None
    assert "runpy.run_path('layers.py')['Narrow'](width=64, eps=0.25)" in failure.witness.snippet
    Path("pasted.py").write_text(failure.witness.snippet, encoding="utf-8")
    pasted = subprocess.run([sys.executable, "pasted.py"], capture_output=True, text=True, check=False)
    assert "AssertionError" in pasted.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("layers.py:Narrow",), r"layers.py:Narrow needs width, but should be told them, such as by --init width=64"),
        (("layers.py:Narrow", "--init", "wdth=3"), r"--init wdth=..., but layers.py:Narrow takes width, eps"),
        (("layers.py:Narrow", "--init", "64"), r"--init='64', but should be such as hidden=64, or a dict"),
        (("layers.py:Narrow", "--init", "width='a'"), r"layers.py:Narrow cannot be made: TypeError"),
        (("layers.py:Exits", "--init", "width=3"), r"layers.py:Exits cannot be made: SystemExit: 5"),
        (
            ("layers.py:layer",),
            r"layers.py:layer is an instance of Sized, whose weights are its own, .* --init, in Python by module=",
        ),
        (("layers.py:torch.rsqrt", "--init", "a=1"), r"--init a=..., but layers.py:torch.rsqrt is no class"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_made_is_refused(file: str, arguments: tuple[str, ...], said: str) -> None:
    """One line says what is missing, and the exit code is 2."""
    done = judged(*arguments)
    assert done.exit_code == 2
    assert re.search(said, done.stderr.splitlines()[-1]), done.stderr


def test_other_names_for_the_weight_are_refused(file: str) -> None:
    """A module with gamma in the place of weight is told so, and is not judged with a weight that it does not use."""
    done = judged("layers.py:Greek")
    assert done.exit_code == 1
    assert "Greek has no attribute weight, but has gamma: normcheck sets weight;" in " ".join(done.output.split())


def test_fixed_channels_are_refused(file: str) -> None:
    """The number of channels has to follow the shape."""
    made, widths = constructed("layers.py:Channels", nc.BatchNorm(), {})
    assert made.keywords(nc.BatchNorm(), (4, 7)) == {"num_features": 7, "eps": 1e-5, "momentum": 0.1}
    assert widths == ()
    with pytest.raises(TargetError, match=r"channels of layers.py:Channels are fixed, .* num_features or num_channels"):
        constructed("layers.py:Channels", nc.BatchNorm(), {"num_features": 7})


def test_typed_arguments() -> None:
    """Literals are read as Python, other values are text, and dicts may stand beside pairs."""
    assert initial(["a=1", "b=1e-6", "c=rms", "d=(1, 2)", "{'e': None}"]) == {
        "a": 1,
        "b": 1e-6,
        "c": "rms",
        "d": (1, 2),
        "e": None,
    }
    with pytest.raises(OptionError, match="--init='nothing', but should be such as"):
        initial(["nothing"])


def test_a_width_limits_functions_as_well(file: str) -> None:
    """``--width`` says which rows code takes, whatever it is."""
    assert code_of("layers.py:torch.rsqrt", nc.RMSNorm(), widths=(48,))["widths"] == (48,)


@pytest.mark.parametrize("options", [(), ("--evaluation",)], ids="".join)
def test_a_rank_lets_layers_of_images_be_judged(options: tuple[str, ...]) -> None:
    """``--rank`` says which ranks code takes: without it a layer of images is given what it refuses."""
    given = ["check", "torch.nn:BatchNorm2d", "--norm", "batch_norm", "--profile", "quick", "--dtype", "float32"]
    given += [*options, "--no-isolation", "--check", "output-form", "--check", "accuracy"]
    done = CliRunner().invoke(main, [*given, "--rank", "4"])
    assert done.exit_code == 0, done.output
    refused = CliRunner().invoke(main, given)
    assert refused.exit_code == 1
    assert "expected 4D input" in refused.output


def test_classes_in_a_project(file: str, pytester: pytest.Pytester) -> None:
    """An entry of pyproject.toml names a class and what its constructor takes."""
    pytester.makepyprojecttoml(
        """
        [tool.normcheck]
        implementations = [{target = "layers:Narrow", init = {width = 64}, ranks = [3]}]
        norm = "rms_norm"
        dtypes = ["float32"]
        checks = ["output-form", "accuracy"]
        """
    )
    pytester.makepyfile(layers=MODULE)
    plugin = () if entry_points(group="pytest11", name="normcheck") else ("-p", "normcheck.pytest_plugin")
    pytester.runpytest(*plugin, "--normcheck").assert_outcomes(passed=2)
