"""The norm in a saved ONNX model: which it is, what the model says about it, and how it is refused."""

import re

import numpy as np
import pytest
from click.testing import CliRunner

import normcheck as nc
from normcheck.cli import main
from normcheck.implementations import Inputs, TargetError, call, snippet
from normcheck.implementations.onnx_files import implementation_in
from normcheck.norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RMSNorm
from normcheck.testing import assert_norm

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - behind the skip


def node(operator, inputs, output="y", name="norm", domain="", **attributes):
    """A node with one output."""
    return helper.make_node(operator, inputs, [output], name, domain=domain, **attributes)


@pytest.fixture
def saved(tmp_path):
    """A function that saves a model and gives its path."""

    def save(nodes, shape=("N", 8), kind=TensorProto.FLOAT, weights=None, opset=23, name="model.onnx", open_weight=None):
        values = [helper.make_tensor_value_info("x", kind, shape)]
        if open_weight is not None:
            values.append(helper.make_tensor_value_info("w", kind, open_weight))
        held = {} if weights is None else weights
        graph = helper.make_graph(
            nodes,
            "graph",
            values,
            [helper.make_tensor_value_info("y", kind, None)],
            [numpy_helper.from_array(array, key) for key, array in held.items()],
        )
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / name)
        return str(tmp_path / name)

    return save


def ones(*names, size=8, dtype=np.float32):
    """Initializers of ones."""
    return {name: np.ones(size, dtype) for name in names}


def test_a_norm_among_other_operators_is_found(saved):
    """eps, axis, weight's sizes and dtype come from the model; the axis is counted from the end."""
    layer = node("LayerNormalization", ["x", "w", "b"], "h", "ln", axis=2, epsilon=1e-6)
    path = saved([layer, node("Relu", ["h"], name="relu")], ("N", "S", 8), weights=ones("w", "b"))
    found = implementation_in(path)
    assert found.norm == LayerNorm(normalized_shape=(8,), eps=float(np.float32(1e-6)))
    assert (found.name, found.dtypes, found.takes("bias")) == (f"{path}:ln", ("float32",), True)
    y = call(found, Inputs(np.resize([1.0, -1.0], (3, 8)), weight=np.ones(8), bias=np.full(8, 2.0))).y
    assert np.array_equal(np.round(y), np.resize([3.0, 1.0], (3, 8)))


@pytest.mark.parametrize(
    ("operator", "names", "attributes", "norm", "shape"),
    [
        ("RMSNormalization", ["x", "w"], {"epsilon": 0.5}, RMSNorm(normalized_shape=(8,), eps=0.5), ("N", 8)),
        ("InstanceNormalization", ["x", "w", "b"], {"epsilon": 0.5}, InstanceNorm(eps=0.5), ("N", 8, "L")),
        ("GroupNormalization", ["x", "w", "b"], {"epsilon": 0.5, "num_groups": 2}, GroupNorm(2, eps=0.5), ("N", 8, "L")),
        ("BatchNormalization", ["x", "w", "b", "m", "v"], {"epsilon": 0.5, "momentum": 0.75}, BatchNorm(0.5, 0.75), ("N", 8)),
    ],
)
def test_every_operator_becomes_its_norm(saved, operator, names, attributes, norm, shape):
    """The attributes of the node are the settings of the norm."""
    found = implementation_in(saved([node(operator, names, **attributes)], shape, weights=ones(*names[1:])))
    assert found.norm.name == norm.name
    assert found.norm.eps == norm.eps
    assert getattr(found.norm, "num_groups", 0) == getattr(norm, "num_groups", 0)
    assert getattr(found.norm, "normalized_shape", None) == getattr(norm, "normalized_shape", None)
    assert found.training is (False if operator == "BatchNormalization" else None)


def test_batch_normalization_in_training_gives_its_statistics(saved):
    """With training_mode=1 the new statistics come back, with ONNX's momentum."""
    training = helper.make_node(
        "BatchNormalization", ["x", "w", "b", "m", "v"], ["y", "n", "u"], "bn", training_mode=1, momentum=0.75
    )
    found = implementation_in(saved([training], weights=ones("w", "b", "m", "v")))
    x = np.multiply.outer([3.0, 5.0], np.ones(8))
    output = call(found, Inputs(x, weight=np.ones(8), bias=np.zeros(8), running_mean=np.zeros(8), running_var=np.full(8, 2.0)))
    assert found.training is True
    assert output.running_mean.tolist() == [1.0] * 8
    assert output.running_var.tolist() == [1.75] * 8


def test_a_skip_norm_gives_the_sum(saved):
    """The residual is an argument, and the sum a result."""
    skip = node("SkipSimplifiedLayerNormalization", ["x", "r", "w"], domain="com.microsoft")
    found = implementation_in(saved([skip], weights={**ones("w"), "r": np.ones((2, 8), np.float32)}))
    x = np.resize([1.0, -1.0], (2, 8))
    output = call(found, Inputs(x, residual=x * 2, weight=np.ones(8)))
    assert found.residual
    assert np.array_equal(output.new_residual, x * 3)
    assert np.array_equal(call(found, Inputs(x, weight=np.ones(8))).new_residual, x)


def test_parameters_in_another_dtype_are_kept_there(saved):
    """float16 input with float32 parameters stays so."""
    batch = node("BatchNormalization", ["x", "w", "b", "m", "v"])
    found = implementation_in(saved([batch], kind=TensorProto.FLOAT16, weights=ones("w", "b", "m", "v")))
    assert (found.dtypes, found.weight_dtype) == (("float16",), "float32")


def test_sizes_that_the_model_leaves_open_are_left_open(saved):
    """With the last axis alone any width can be judged."""
    found = implementation_in(saved([node("RMSNormalization", ["x", "w"])], ("N", "D"), open_weight=("D",)))
    assert found.norm.normalized_shape is None
    assert call(found, Inputs(np.ones((2, 3)), weight=np.ones(3))).y.shape == (2, 3)


def test_one_of_several_is_chosen_by_name_or_by_output(saved):
    """--node takes the node's name, or its output's where it has none."""
    first = node("RMSNormalization", ["x", "w"], "h", "first")
    path = saved([first, node("LayerNormalization", ["h", "w"], "y", "")], weights=ones("w"))
    assert implementation_in(path, "first").norm.name == "RMSNorm"
    assert implementation_in(path, "y").norm.name == "LayerNorm"
    assert not implementation_in(path, "y").takes("bias")
    with pytest.raises(TargetError, match=r"has 2 norms, of which --node should choose one: 'first' \(RMSNormalization\), 'y'"):
        implementation_in(path)
    with pytest.raises(TargetError, match=r"node='z', but model .* has 'first'"):
        implementation_in(path, "z")


def test_a_name_that_several_norms_have_is_not_enough(saved):
    """They are told by their outputs, and chosen by them."""
    layers = [node("RMSNormalization", ["x", "w"], "h", "n"), node("RMSNormalization", ["h", "w"], "y", "n", epsilon=0.5)]
    path = saved(layers, weights=ones("w"))
    with pytest.raises(TargetError, match=r"should choose one: 'h' \(RMSNormalization\), 'y' \(RMSNormalization\)"):
        implementation_in(path)
    with pytest.raises(TargetError, match="node='n' is the name of 2 norms, but should be the output of one: 'h', 'y'"):
        implementation_in(path, "n")
    assert implementation_in(path, "y").norm.eps == 0.5


def test_a_norm_in_a_branch_is_found(saved):
    """Graphs inside nodes are walked as well."""
    none = helper.make_tensor_value_info
    branch = [node("RMSNormalization", ["x", "w"], "b", "inner", epsilon=0.5)]
    then = helper.make_graph(branch, "then", [], [none("b", TensorProto.FLOAT, None)])
    other = helper.make_graph([node("Identity", ["x"], "c")], "else", [], [none("c", TensorProto.FLOAT, None)])
    chooses = node("If", ["c"], then_branch=then, else_branch=other)
    found = implementation_in(saved([chooses], weights={**ones("w"), "c": np.array(True)}))
    assert (found.norm, found.dtypes) == (RMSNorm(eps=0.5, normalized_shape=(8,)), ("float32",))


@pytest.mark.parametrize(
    ("axis", "weight", "shape", "sizes"),
    [
        (1, (4, 8), ("N", 4, 8), (4, 8)),
        (-2, (8,), ("N", 4, 8), (4, 8)),
        (-1, (1,), ("N", 8), (8,)),
        (-2, (4, 8), ("N", "S", "D"), (4, 8)),
    ],
)
def test_the_axis_says_what_is_normalized(saved, axis, weight, shape, sizes):
    """Not the weight, which may be spread over more; where x is open the weight tells the sizes."""
    held = {"w": np.ones(weight, np.float32)}
    found = implementation_in(saved([node("LayerNormalization", ["x", "w"], axis=axis)], shape, weights=held))
    assert found.norm.normalized_shape == sizes
    x, w = np.arange(2.0 * np.prod(sizes)).reshape(2, *sizes) ** 2, np.arange(1.0 * np.prod(sizes)).reshape(sizes)
    y = call(found, Inputs(x, weight=w)).y
    assert_norm(y.astype(np.float32), x.astype(np.float32), found.norm, w.astype(np.float32))


def test_eps_that_a_node_leaves_out_is_that_of_its_operator(saved):
    """ONNX's operators take 1e-5, ONNX Runtime's own Skip norms 1e-12."""
    skip = node("SkipSimplifiedLayerNormalization", ["x", "r", "w"], domain="com.microsoft")
    found = implementation_in(saved([skip], weights={**ones("w"), "r": np.ones((2, 8), np.float32)}))
    assert found.norm.eps == float(np.float32(1e-12))
    x = np.full((2, 8), 2.0**-20)
    assert_norm(call(found, Inputs(x, weight=np.ones(8))).y.astype(np.float32), x.astype(np.float32), found.norm)
    assert implementation_in(saved([node("RMSNormalization", ["x", "w"])], weights=ones("w"))).norm.eps == float(np.float32(1e-5))


def test_models_without_a_norm_and_files_without_a_model_are_refused(saved, tmp_path):
    """What stands there instead is told."""
    with pytest.raises(TargetError, match="has no norm among its operators Relu; known are LayerNormalization"):
        implementation_in(saved([node("Relu", ["x"])]))
    (tmp_path / "text.onnx").write_text("no model", encoding="utf-8")
    with pytest.raises(TargetError, match="cannot be read: "):
        implementation_in(str(tmp_path / "text.onnx"))
    with pytest.raises(TargetError, match="cannot be read: FileNotFoundError"):
        implementation_in(str(tmp_path / "none.onnx"))


@pytest.mark.parametrize(
    ("built", "options", "message"),
    [
        (
            node("GroupNormalization", ["x", "w", "b"], num_groups=2),
            {"opset": 18, "shape": ("N", 8, 4), "weights": ones("w", "b", size=2)},
            "opset=18, but GroupNormalization has a weight for each channel from opset 21",
        ),
        (
            node("SkipSimplifiedLayerNormalization", ["x", "r", "w", "b"], domain="com.microsoft"),
            {"weights": {**ones("w", "b"), "r": np.ones((2, 8), np.float32)}},
            "adds 'b' before the norm",
        ),
        (
            node("LayerNormalization", ["x", "w"], axis=1),
            {"shape": ("N", "S", "D"), "open_weight": ("S", "D")},
            "has axis=1, but the model says neither",
        ),
        (
            node("BatchNormalization", ["x", "w", "b", "m", "v"], spatial=0),
            {"opset": 7, "shape": ("N", 8, 4), "weights": ones("w", "b", "m", "v")},
            "has spatial=0, but statistics should be those of channels",
        ),
        (node("RMSNormalization", ["x", "w"]), {"kind": TensorProto.INT32, "weights": ones("w")}, "has x in INT32, but should"),
    ],
)
def test_a_norm_that_is_not_fully_described_is_refused(saved, built, options, message):
    """The reason names what is missing or not as any norm has it."""
    with pytest.raises(TargetError, match=message):
        implementation_in(saved([built], **options))


def test_the_contract_can_be_given(saved):
    """Fields of the contract take the place of the operator's own."""
    path = saved([node("RMSNormalization", ["x", "w"])], weights=ones("w"))
    found = implementation_in(path, accumulation="sequential")
    assert (found.contract.accumulation, found.contract.eps_dtype) == ("sequential", "float32")


def test_its_snippet_needs_no_normcheck(saved):
    """The node is written down with its attributes."""
    found = implementation_in(saved([node("RMSNormalization", ["x", "w"], epsilon=0.5)], weights=ones("w")))
    source = snippet(found, Inputs(np.ones((1, 8)), weight=np.ones(8)))
    assert "normcheck" not in source
    assert "'RMSNormalization'" in source
    assert "('epsilon', 0.5)" in source


class TestCommand:
    """normcheck check model.onnx."""

    def run(self, *arguments):
        """Exit code and output."""
        done = CliRunner().invoke(main, ["check", *arguments, "--profile", "quick", "--check", "accuracy", "--no-isolation"])
        return done.exit_code, done.output

    def test_a_sound_norm_passes(self, saved):
        """It is judged with its own eps and dtype, without any option."""
        code, output = self.run(saved([node("RMSNormalization", ["x", "w"])], weights=ones("w")))
        assert code == 0, output
        assert "passes" in output

    def test_what_the_ledger_knows_of_the_operator_is_expected(self, saved):
        """A known fault of ONNX Runtime is one in a saved model as well."""
        group = node("GroupNormalization", ["x", "w", "b"], num_groups=2)
        code, output = self.run(saved([group], ("N", 8, 4), weights=ones("w", "b")))
        assert code == 0, output
        assert "xfailed accuracy" in output

    def test_a_norm_that_breaks_its_promise_fails(self, saved):
        """float32 inside is not float64 inside: the contract that is given is the one that is judged."""
        code, output = self.run(saved([node("RMSNormalization", ["x", "w"])], weights=ones("w")), "--compute", "float64")
        assert code == 1, output

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--eps", "1e-3"), "--eps=0.001, but .*model.onnx says that itself"),
            (("--norm", "rms_norm"), "--norm='rms_norm', but"),
            (("--node", "other"), "node='other', but model"),
        ],
    )
    def test_what_the_model_says_itself_cannot_be_given(self, saved, arguments, message):
        """Wrong usage exits with 2 and says why in one line."""
        code, output = self.run(saved([node("RMSNormalization", ["x", "w"])], weights=ones("w")), *arguments)
        assert code == 2
        assert re.search(message, output), output

    def test_a_node_is_for_models_alone(self):
        """Functions have none."""
        code, output = self.run("operator:neg", "--norm", "rms_norm", "--node", "a")
        assert code == 2
        assert "--node='a', but operator:neg is no ONNX model" in output


def test_python_judges_it_as_well(saved):
    """What is found is an implementation like any other."""
    found = implementation_in(saved([node("LayerNormalization", ["x", "w"])], weights=ones("w")))
    done = nc.audit([found], profile="quick", checks=["output-form", "accuracy"], isolation=False)
    assert done.passed
    assert set(done.grades) == {(found.name, "float32")}
