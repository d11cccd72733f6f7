"""Layers of transformers: formulas are read from source, every class is judged or named with a reason, nothing is imported."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from normcheck.audit import Audit
from normcheck.cli import main
from normcheck.contract import Contract
from normcheck.implementations import Inputs, call, implementations, left_out, registry, snippet, transformers, unjudged
from normcheck.implementations.formulas import read
from normcheck.implementations.syntax import UnreadableError, canonical
from normcheck.implementations.transformers import builtins, families
from normcheck.norms import BatchNorm, GroupNorm, L2Norm, LayerNorm, RMSNorm
from normcheck.results import Outcome, Result

PLAIN = "super().__init__()\nself.weight = nn.Parameter(torch.ones(dim))\nself.eps = eps"


def layer(forward, init="", base="nn.Module", arguments="dim, eps=1e-6", given="x"):
    """Source of a layer's class: ``init`` and ``forward`` are lines of the two methods."""
    lines = textwrap.indent(textwrap.dedent(forward).strip(), " " * 8)
    own = textwrap.indent(textwrap.dedent(init or PLAIN).strip(), " " * 8)
    return f"class Layer({base}):\n    def __init__(self, {arguments}):\n{own}\n\n    def forward(self, {given}):\n{lines}\n"


WIDE = "n = x.float()\nn = n * torch.rsqrt(n.pow(2).mean(-1, keepdim=True) + self.eps)\n"
BOTH = "self.weight = nn.Parameter(torch.ones(dim))\nself.bias = nn.Parameter(torch.zeros(dim))\nself.eps = eps"
CENTRED = "m = x.mean(-1, keepdim=True)\nv = {}\nreturn self.weight * (x - m) / {} + self.bias"
FORMULAS = {
    "before the weight": (
        layer(WIDE + "return self.weight * n.to(x.dtype)"),
        (RMSNorm(), Contract(cast="before_weight", output="promote"), ("weight",), False),
    ),
    "once": (layer(WIDE + "return (self.weight * n).to(x.dtype)"), (RMSNorm(), Contract(), ("weight",), False)),
    "before the weight, by the weight's dtype": (
        layer(WIDE + "if self.weight.dtype in [torch.float16]:\n    n = n.to(self.weight.dtype)\nreturn self.weight * n"),
        (RMSNorm(), Contract(cast="before_weight", output="promote"), ("weight",), False),
    ),
    "one plus weight": (
        layer(WIDE + "return (n * (1.0 + self.weight.float())).type_as(x)"),
        (RMSNorm(weight_offset=1.0), Contract(), ("weight",), False),
    ),
    "no weight": (layer(WIDE + "return n.type_as(x)"), (RMSNorm(), Contract(), (), False)),
    "length": (
        layer("return (x * torch.rsqrt(x.float().pow(2).sum(-1, keepdim=True) + self.eps)).type_as(x)"),
        (L2Norm(eps=1e-6, eps_placement="inside"), Contract(), (), False),
    ),
    "nothing is cast": (
        layer(CENTRED.format("(x - m).pow(2).mean(-1, keepdim=True)", "torch.sqrt(v + self.eps)"), BOTH),
        (LayerNorm(eps=1e-6), Contract(output="promote"), ("weight", "bias"), False),
    ),
    "eps beside the root": (
        layer(CENTRED.format("(x - m).pow(2).mean(-1, keepdim=True)", "(torch.sqrt(v) + self.eps)"), BOTH),
        (LayerNorm(eps=1e-6, eps_placement="outside"), Contract(output="promote"), ("weight", "bias"), False),
    ),
    "Bessel's correction": (
        layer(CENTRED.format("x.var(-1, keepdim=True)", "torch.sqrt(v + self.eps)"), BOTH),
        (LayerNorm(eps=1e-6, ddof=1), Contract(output="promote", accumulation="merge"), ("weight", "bias"), False),
    ),
    "eps that is set and forgotten": (
        layer(CENTRED.format("x.var(-1, unbiased=False, keepdim=True)", "torch.sqrt(v)"), BOTH),
        (LayerNorm(eps=1e-6), Contract(output="promote", accumulation="merge"), ("weight", "bias"), False),
    ),
    **{
        name: (
            layer(f"m, s = x.mean(-1, keepdim=True), {std}\nreturn self.weight * (x - m) / {root} + self.bias", BOTH),
            (LayerNorm(eps=1e-6, **norm), Contract(output="promote", accumulation="merge"), ("weight", "bias"), False),
        )
        for name, std, root, norm in (
            ("std, eps beside it", "x.std(-1, keepdim=True)", "(s + self.eps)", {"eps_placement": "outside", "ddof": 1}),
            ("biased std", "x.std(-1, unbiased=False, keepdim=True)", "(s + self.eps)", {"eps_placement": "outside"}),
            ("biased std by place", "torch.std(x, -1, False, True)", "(s + self.eps)", {"eps_placement": "outside"}),
            ("std with a limit", "x.std(-1, keepdim=True)", "s.clamp_min(self.eps)", {"eps_placement": "max", "ddof": 1}),
            ("std, limit by name", "x.std(-1, keepdim=True)", "s.clamp(min=self.eps)", {"eps_placement": "max", "ddof": 1}),
            ("torch.std", "torch.std(x, dim=-1, keepdim=True, correction=0)", "(s + self.eps)", {"eps_placement": "outside"}),
            ("std squared", "x.std(-1, keepdim=True)", "torch.sqrt(s**2 + self.eps)", {"ddof": 1}),
            ("variance to a power", "x.var(-1, keepdim=True)", "(s + self.eps) ** 0.5", {"ddof": 1}),
            (
                "variance with a limit",
                "x.var(-1, keepdim=True)",
                "torch.sqrt(s.clamp(min=self.eps))",
                {"eps_placement": "max_inside", "ddof": 1},
            ),
        )
    },
    "variance and mean at once": (
        layer(
            "v, m = torch.var_mean(x, -1, keepdim=True)\nreturn self.weight * (x - m) / (v + self.eps).sqrt() + self.bias", BOTH
        ),
        (LayerNorm(eps=1e-6, ddof=1), Contract(output="promote", accumulation="merge"), ("weight", "bias"), False),
    ),
    "eps in the text": (
        layer(
            "n = x.float()\nreturn (n * torch.rsqrt(n.pow(2).mean(-1, keepdim=True) + 1e-4)).to(x.dtype)", "pass", arguments="dim"
        ),
        (RMSNorm(eps=1e-4), Contract(), (), False),
    ),
    "channels first": (
        layer(
            "x = x.permute(0, 2, 3, 1)\nx = super().forward(x)\nreturn x.permute(0, 3, 1, 2)",
            "super().__init__(dim, eps=eps)",
            "nn.LayerNorm",
        ),
        (LayerNorm(eps=1e-6), Contract(accumulation="merge"), ("weight", "bias"), True),
    ),
    "statistics over axis 1": (
        layer(CENTRED.replace("-1", "1").format("(x - m).pow(2).mean(1, keepdim=True)", "torch.sqrt(v + self.eps)"), BOTH),
        (LayerNorm(eps=1e-6), Contract(output="promote"), ("weight", "bias"), True),
    ),
    "fused, weight afterwards": (
        layer(
            "return F.layer_norm(x, self.normalized_shape, None, None, eps=1e-5) * self.weight + self.bias",
            "pass",
            "nn.LayerNorm",
        ),
        (LayerNorm(), Contract(cast="before_weight", output="promote", accumulation="merge"), ("weight", "bias"), False),
    ),
    "groups": (
        layer("return F.group_norm(x, 1, self.weight, self.bias, self.eps)", "super().__init__(1, n, eps=eps)", "nn.GroupNorm"),
        (GroupNorm(1, eps=1e-6), Contract(accumulation="merge"), ("weight", "bias"), False),
    ),
    "given statistics": (
        layer(
            "scale = self.weight * (self.running_var + 1e-5).rsqrt()\nreturn x * scale + (self.bias - self.running_mean * scale)",
            "self.weight = nn.Buffer(torch.ones(n))\nself.bias = nn.Buffer(torch.zeros(n))",
            arguments="n",
        ),
        (BatchNorm(), Contract(output="promote"), ("weight", "bias"), False),
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_is_read(name):
    """Norm, placement of eps, casts, parameters and axis are what the source says."""
    source, expected = FORMULAS[name]
    found = read(source)
    assert (found.norm, found.contract, found.parameters, found.channels_first) == expected


UNREADABLE = {
    "derives from Embedding, not from a plain layer": layer("return x", base="nn.Embedding"),
    "has no forward pass of its own": "class Layer(nn.Module):\n    pass\n",
    "a block with further layers (Conv2d, LayerNorm)": layer("return x", "self.a = nn.Conv2d(1, 1, 1)\nself.b = nn.LayerNorm(1)"),
    "wraps LayerNorm, judged where it comes from": layer("return self.norm(x)", "self.norm = nn.LayerNorm(dim)"),
    "its forward pass takes gate besides x": layer(WIDE + "return n * silu(gate)", given="x, gate=None"),
    "its forward pass takes residual besides x": layer(WIDE + "return n + residual", given="x, residual"),
    "returns more than y": layer(WIDE + "return n, x"),
    "no root of squares is found in its source": layer("return x * self.weight"),
    "takes no mean, sum or variance": layer("return x * torch.rsqrt(x + self.eps)"),
    "its statistics accumulate over time": layer("return x * torch.rsqrt(torch.cumsum(x.pow(2), 1) + self.eps)"),
    "returns the reciprocal root alone, not y": layer("return torch.rsqrt(x.pow(2).mean(-1) + self.eps).to(x.dtype)"),
    "divides x, not x - mean, by a deviation": layer("v = x.var(-1) + self.eps\nreturn x * (self.weight * torch.rsqrt(v))"),
    "its weight multiplies x before the statistics": layer("x = x * self.weight\n" + WIDE + "return n"),
    "it is no class": "x = 1\n",
    "its source cannot be parsed": "class Layer(:\n",
}


@pytest.mark.parametrize("reason", UNREADABLE)
def test_what_is_no_norm_of_ours_says_why(reason):
    """A block, a gate, another statistic or another result is refused with its reason."""
    with pytest.raises(UnreadableError, match=f"^{re.escape(reason)}$"):
        read(UNREADABLE[reason])


def test_a_derived_class_is_read_with_its_parents():
    """The forward pass of the derived class counts, and its parent's constructor; a call of the parent's pass is not followed."""
    parent = layer(WIDE + "return (self.weight * n).to(x.dtype)")
    text = "return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True))"
    child = f"class Child(Layer):\n    def forward(self, x):\n        {text}\n"
    found = read(child, parent)
    assert (found.norm, found.eps, found.parameters) == (RMSNorm(), "eps", ("weight",))
    with pytest.raises(UnreadableError, match="calls that of a class in between"):
        read("class Child(Layer):\n    def forward(self, x):\n        return super().forward(x)\n", parent)


def test_names_annotations_and_defaults_make_no_difference():
    """Two texts are one where names of the class, of variables and of arguments, annotations, docstrings and defaults differ."""
    one = layer(WIDE + "return n.type_as(x)")
    wide = WIDE.replace("n = ", "wide = ").replace("= n ", "= wide ").replace("(n.", "(wide.").replace("x.", "hidden.")
    other = layer(
        f'"""A norm."""\n{wide}return wide.type_as(hidden)', arguments="size: int, eps: float = 1e-5", given="hidden: Tensor"
    )
    other = other.replace("ones(dim)", "ones(size)").replace("class Layer", "class Other")
    assert canonical(one) == canonical(other)
    assert canonical(one) != canonical(one.replace("pow(2)", "pow(3)"))


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of the name transformers with three models, found before any other."""
    texts = {
        "one": layer(WIDE + "return (self.weight * n).to(x.dtype)").replace("Layer", "OneRMSNorm"),
        "two": layer(
            WIDE + "return (self.weight * n).to(x.dtype)",
            arguments="size, eps=1e-5",
            init=PLAIN.replace("dim", "size"),
        ).replace("Layer", "TwoRMSNorm"),
        "super_norm": layer(WIDE + "return n * silu(gate)", given="x, gate").replace("Layer", "SuperNormGatedNorm")
        + "\n\nclass SuperNormModel(nn.Module):\n    pass\n\n\nclass NormalOutput:\n    pass\n",
    }
    for model, text in texts.items():
        folder = tmp_path / "transformers" / "models" / model
        folder.mkdir(parents=True)
        (folder / f"modeling_{model}.py").write_text(f"import torch\nfrom torch import nn\n\n\n{text}")
        (folder / f"modular_{model}.py").write_text(text)
    (tmp_path / "transformers" / "__init__.py").touch()
    (tmp_path / "transformers-0.1.dist-info").mkdir()
    (tmp_path / "transformers-0.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 0.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    caches = (families, registry._installed)
    for cache in caches:
        cache.cache_clear()
    yield tmp_path
    for cache in caches:
        cache.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
        del sys.modules[name]


def test_equal_layers_share_a_row_and_others_are_named_with_a_reason(package):
    """One row stands for the layers of one text; a gated one has none, a model with norm in its name is no layer."""
    (row,) = builtins()
    assert (row.name, row.alike, row.requires) == ("transformers.OneRMSNorm", ("TwoRMSNorm",), "transformers")
    assert (row.dtypes, row.affine, row.variable) == (("float32", "float16", "bfloat16"), True, ("eps",))
    assert unjudged()["transformers.SuperNormGatedNorm"] == "its forward pass takes gate besides x"
    assert not {"transformers.SuperNormModel", "transformers.NormalOutput"} & set(unjudged())


def test_a_row_is_called_from_its_own_module(package):
    """The layer is imported when it is called, and made with its own names for width and eps."""
    (row,) = builtins()
    varied = row.with_norm(dataclasses.replace(row.norm, eps=3.0))
    x = np.array([[1.0, -1.0, 1.0, -1.0]])
    output = call(varied, Inputs(x, weight=np.array([2.0, 2.0, 4.0, 4.0]), dtype="bfloat16"))
    assert np.array_equal(output.y, [[1.0, -1.0, 2.0, -2.0]])


def test_without_the_package_one_row_says_what_is_missing(monkeypatch):
    """Where transformers is not installed its row is left out by name, with the line that installs it."""
    monkeypatch.setattr(transformers, "_found", lambda: iter(()))
    families.cache_clear()
    try:
        assert [row.requires for row in builtins()] == ["transformers"]
    finally:
        families.cache_clear()


def test_listing_imports_nothing_of_the_package():
    """Rows are found by reading: neither torch nor transformers is imported for them."""
    code = "import sys\nfrom normcheck.implementations import implementations\nimplementations('torch')\n"
    shown = subprocess.run(
        [sys.executable, "-c", code + "print(sorted({'torch', 'transformers'} & set(sys.modules)))"],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert shown.stdout.strip() == "[]"


def test_what_is_not_judged_is_in_the_audit_and_in_the_list(monkeypatch, tmp_path):
    """A class without a row is a skipped result with its reason, where its name is chosen, and a line of the list."""
    monkeypatch.setattr(transformers, "refused", lambda: {"torch.nn.LayerNobody": "a block", "torch.nn.Other": "a gate"})
    given = ["--implementation", "torch.nn.LayerN*", "--check", "output-form", "--profile", "quick", "--dtype", "float32"]
    done = CliRunner().invoke(main, ["audit", *given, "--workers", "1", "--output", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    stored = json.loads((tmp_path / "out" / "audit.json").read_text(encoding="utf-8"))
    outcomes = {result["implementation"]: (result["outcome"], result.get("message", "")) for result in stored["results"]}
    assert outcomes == {"torch.nn.LayerNorm": ("passed", ""), "torch.nn.LayerNobody": ("skipped", "a block")}
    assert "not judged: a gate" in CliRunner().invoke(main, ["list", "implementations"]).output


def test_a_report_says_what_a_row_stands_for(tmp_path):
    """Other classes of the same text are named in the report."""
    born = {"alike": {"transformers.LlamaRMSNorm": ["Qwen3RMSNorm", "Phi3RMSNorm"]}}
    audit = Audit((Result("accuracy", "transformers.LlamaRMSNorm", "RMSNorm", "float32", Outcome.PASSED),), born)
    page = audit.write(tmp_path / "report.md").read_text(encoding="utf-8")
    assert "- `transformers.LlamaRMSNorm` stands for Qwen3RMSNorm, Phi3RMSNorm" in page


INSTALLED = not any("transformers" in line for line in left_out("torch"))
needed = pytest.mark.skipif(not INSTALLED, reason="transformers is not installed")


@needed
def test_every_norm_class_of_the_package_is_accounted_for():
    """Each class whose name has Norm in it, in any modeling file, has a row, stands behind one, or is named with a reason."""
    import transformers as installed

    rows = [one for one in implementations("torch") if one.name.startswith("transformers.")]
    judged = {name.removeprefix("transformers.").partition("[")[0] for one in rows for name in (one.name, *one.alike)}
    told = judged | {name.removeprefix("transformers.") for name in unjudged()}
    missing = set()
    for path in Path(installed.__file__).parent.glob("models/*/modeling_*.py"):
        names = re.findall(r"^class (\w*Norm(?!al)\w*)\b", path.read_text(encoding="utf-8"), re.MULTILINE)
        missing |= {(path.parent.name, name) for name in names if name not in told}
    assert {model for model, _ in missing} <= {"roberta_prelayernorm"}
    assert len(judged) > 200


@needed
def test_the_claims_of_known_families():
    """Llama rounds before the weight, Gemma adds one, Cohere has no bias, T5 does not subtract the mean."""
    rows = {one.name.removeprefix("transformers."): one for one in implementations("torch")}
    claims = {name: (rows[name].norm, rows[name].contract.cast, rows[name].affine) for name in ("LlamaRMSNorm", "GemmaRMSNorm")}
    assert claims["LlamaRMSNorm"] == (RMSNorm(eps=1e-6), "before_weight", True)
    assert claims["GemmaRMSNorm"] == (RMSNorm(eps=1e-6, weight_offset=1.0), "once", True)
    assert (rows["CohereLayerNorm"].norm, rows["CohereLayerNorm"].affine) == (LayerNorm(eps=1e-5), "weight")
    assert rows["T5LayerNorm"].norm == RMSNorm(eps=1e-6)


@needed
@pytest.mark.parametrize("name", ["ConvNextLayerNorm[channels_first]", "CpmAntLayerNorm", "GemmaRMSNorm"])
def test_snippets_run_with_the_package_alone(name):
    """What moves channels, and an object that stands for a configuration, are written down so that they can be pasted."""
    row = next(one for one in implementations("torch") if one.name == f"transformers.{name}")
    shape = (2, 3, 2, 8) if row.ranks else (4, 8)
    x = np.random.default_rng(0).integers(-8, 9, shape) / 4.0
    inputs = Inputs(x, weight=np.ones(8), bias=np.zeros(8) if row.takes("bias") else None)
    y = call(row, inputs).y
    source = snippet(
        row, inputs, index=(1,) * (len(shape) - 1) + (3,), expected=float(y[(1,) * (len(shape) - 1) + (3,)]), tolerance=0.0
    )
    assert "normcheck" not in source
    subprocess.run([sys.executable, "-c", source], check=True, capture_output=True)
