"""A snippet, pasted into a fresh interpreter, prints what the call gave."""

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest

from normcheck.formats import FORMATS
from normcheck.implementations import Implementation, Inputs, Named, call, implementations, snippet
from normcheck.norms import LayerNorm, RMSNorm

RUN = """
import contextlib, io, json, sys
outputs = []
for source in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as text:
        exec(source, {"__name__": "__main__"})
    outputs.append(text.getvalue())
print(json.dumps(outputs))
"""


def run(sources, directory):
    """What each source prints, in one fresh interpreter."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-W", "error", "-c", RUN]
    given = json.dumps(sources)
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, env=env, cwd=directory)
    assert done.stderr == ""
    return json.loads(done.stdout)


def inputs_for(implementation, dtype, layout, width):
    """Random values of the dtypes, in the implementation's shape."""
    rng = np.random.default_rng(0)
    norm, axis = implementation.norm, implementation.channel_axis
    rank = {"channels_last": 4}.get(layout) or (min(implementation.ranks) if implementation.ranks else None)
    shape = norm.shape_of(4, width, rank, axis)
    wide = FORMATS[implementation.weight_dtype or dtype]
    size = norm.parameter_size(norm.fold(shape, axis))
    given = {"weight": wide.round(rng.normal(size=size))} if implementation.affine else {}
    if implementation.affine and norm.has_bias:
        given["bias"] = wide.round(rng.normal(size=size))
    if norm.has_running:
        given["running_mean"] = wide.round(rng.normal(size=shape[axis]))
        given["running_var"] = wide.round(rng.uniform(1, 2, shape[axis]))
    details = {"dtype": dtype, "weight_dtype": implementation.weight_dtype, "layout": layout}
    # whole numbers and their negatives: every sum is exact, so that no order of adding up, which memory may decide, shows
    fold = norm.fold(shape, axis)
    half = rng.integers(1, 9, (fold.rows, fold.width // 2))
    rows = rng.permuted(np.hstack([half, -half, np.zeros((fold.rows, fold.width % 2))]), axis=1)
    return Inputs(fold.unfold(rows), **given, **details, training=implementation.training is not False)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_snippets_of_every_built_in_give_the_same_bits(framework, tmp_path):
    """Each built-in in its first and last dtype (bfloat16 where it has it) and every layout, with short rows and long."""
    pytest.importorskip(framework)
    sources, expected = [], []
    for one in implementations(framework):
        for dtype in {one.dtypes[0], one.dtypes[-1]}:
            for layout in one.layouts:
                inputs = inputs_for(one, dtype, layout, 8 if dtype == "bfloat16" else 65)
                y = call(one, inputs).y
                index = tuple(n // 2 for n in y.shape)
                sources.append(snippet(one, inputs, index=index, expected=y[index]))
                expected.append(float(y[index]))
    for printed, value in zip(run(sources, tmp_path), expected, strict=True):
        assert printed == f"got      {value.hex()} {value!r}\nexpected {value.hex()} {value!r}\n"


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "transposed"])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_snippets_lay_arrays_out_as_the_call_did(framework, layout, tmp_path):
    """The strides of x in the snippet are those of the call."""
    pytest.importorskip(framework)
    seen = []

    def spy(x, weight, bias):
        seen.append([n // x.itemsize for n in x.strides] if framework == "numpy" else list(x.stride()))
        return x

    inputs = Inputs(np.arange(48.0).reshape(2, 3, 2, 4), dtype="bfloat16", layout=layout)
    call(Implementation(spy, LayerNorm(), framework=framework), inputs)
    source = snippet(Implementation(spy, LayerNorm(), framework=framework), inputs).partition("y = ")[0]
    strides = "[n // x.itemsize for n in x.strides]" if framework == "numpy" else "list(x.stride())"
    assert json.loads(run([f"{source}\nprint({strides})"], tmp_path)[0]) == seen[0]


MINE = """
class Norms:
    @staticmethod
    def add(x, weight, residual):
        return x * 2, x + residual

def make(norm, *, shape, dtype, device):
    return lambda x, weight: x * norm.eps

class Module:
    weight = None

    def __init__(self, norm, *, shape, dtype, device):
        self.eps = norm.eps

    def __call__(self, x):
        return x * self.weight * self.training
"""


def test_snippets_of_user_code(tmp_path, monkeypatch):
    """A file, a maker, a module and a source that is given are imported in the snippet as the user would."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    norm, options = RMSNorm(eps=0.5), {"framework": "numpy"}
    given = [
        Implementation(Named("mine.py:Norms.add"), norm, residual=True, **options),
        Implementation(norm=norm, make=Named("mine.py:make"), **options),
        Implementation(norm=norm, module=Named("mine.py:Module"), **options),
        Implementation(lambda x: -x, norm, source="operator:neg", arguments=("x",), **options),
    ]
    arrays = {"weight": np.array([4.0, 8.0]), "residual": np.ones((1, 2))}
    calls = [
        (one, Inputs(np.array([[1.0, 3.0]]), **{name: array for name, array in arrays.items() if one.takes(name)}))
        for one in given
    ]
    printed = run([snippet(*one, index=(0, 1)) for one in calls], tmp_path)
    values = [float(call(*one).y[0, 1]) for one in calls]
    assert values == [6.0, 1.5, 24.0, -3.0]
    assert printed == [f"got      {value.hex()} {value!r}\n" for value in values]


def test_code_that_cannot_be_imported_is_left_to_define():
    """A lambda is named in a comment; the rest of the snippet stands."""
    text = snippet(Implementation(lambda x, w, b: x, LayerNorm(), name="mine", framework="numpy"), Inputs(np.ones((1, 2))))
    assert "# function = mine: it cannot be imported, define it here\n" in text
    assert "\ny = function(x, None, None)\n" in text


@pytest.mark.parametrize(
    ("array", "lines"),
    [
        (np.array([1.5, -0.0, math.inf, -math.inf, math.nan]), ["x = np.array([1.5, -0.0, np.inf, -np.inf, np.nan])"]),
        (np.full((2, 50), 0.1), ["x = np.full((2, 50), 0.1)"]),
        (np.eye(1, 64, 3) - 0.0, ["x = np.full((1, 64), 0.0)", "x.flat[[3]] = [1.0]"]),
    ],
)
def test_arrays_are_written_with_few_literals(array, lines):
    """Literals where there are few, a constant with exceptions where most elements are equal; signed zeros count as different."""
    text = snippet(Implementation(abs, LayerNorm(), framework="numpy"), Inputs(array, dtype="float64"))
    assert text.splitlines()[2 : 2 + len(lines)] == lines


@pytest.mark.parametrize("scale", [1.0, 2.0**-300])
def test_long_arrays_are_packed_exactly(scale):
    """Arrays that need more than 40 literals are packed as text, in float32 where that holds them; every bit is kept."""
    array = np.random.default_rng(1).integers(-99, 99, (3, 64)) * scale
    array[0, 0] = -0.0
    text = snippet(Implementation(abs, LayerNorm(), framework="numpy"), Inputs(array, dtype="float64"))
    space = {}
    exec(text.partition("y = ")[0], space)  # noqa: S102 - made in the line before
    assert np.array_equal(space["x"].view(np.uint64), array.view(np.uint64))
    assert ("float32" in text) == (scale == 1.0)


def test_an_expression_stands_for_an_array():
    """A numpy expression that is handed in is used as it is, for that input only."""
    expression = "np.random.default_rng(7).integers(-9, 9, (2, 4096)) / 8"
    x = eval(expression, {"np": np})  # noqa: S307 - the constant above
    inputs = Inputs(x, weight=np.ones(4096))
    text = snippet(Implementation(abs, LayerNorm(), framework="numpy"), inputs, expressions={"x": expression})
    assert f"\nx = {expression}\n" in text
    assert "\nweight = np.full((4096,), 1.0)\n" in text


def test_a_snippet_imports_what_it_uses():
    """Nothing else than the user's library and numpy, where numpy has the dtype."""
    text = snippet(Implementation(abs, LayerNorm(), framework="numpy"), Inputs(np.ones((1, 2))))
    assert [line for line in text.splitlines() if "import" in line] == ["import numpy as np", "from builtins import abs"]
