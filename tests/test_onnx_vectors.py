"""ONNX's own test vectors of its norms agree with the certified references, within what float32 arithmetic can lose."""

import warnings
from collections import Counter

import numpy as np
import pytest

import normcheck as nc
from normcheck.norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RMSNorm
from normcheck.reference.running import running
from normcheck.testing import tolerance
from normcheck.testing.arrays import case_of

onnx = pytest.importorskip("onnx")

OPERATORS = ("LayerNormalization", "RMSNormalization", "GroupNormalization", "InstanceNormalization", "BatchNormalization")
CONTRACT = nc.Contract(eps_dtype="float32", running_ddof=0, momentum_convention="keras")
U = 2.0**-24


def collected():
    """Every vector of the backend tests of the five operators, and the models that are expanded from them."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [case for case in collect_testcases() if case.name.startswith(PREFIXES)]


PREFIXES = tuple(
    f"test_{name}_" for name in ("layer_normalization", "rms_normalization", "group_normalization", "instancenorm", "batchnorm")
)
CASES = {case.name: case for case in collected()}
VECTORS = [name for name in CASES if "_expanded" not in name]


def attributes(case):
    """The attributes of the one node, with what ONNX says where they are absent."""
    (node,) = case.model.graph.node
    given = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    return {"axis": -1, "epsilon": 1e-5, "momentum": 0.9, "training_mode": 0, "num_groups": None, **given}


def norm_of(case):
    """The norm of the one node."""
    found, x = attributes(case), case.data_sets[0][0][0]
    eps, operator = found["epsilon"], case.model.graph.node[0].op_type
    if operator in ("LayerNormalization", "RMSNormalization"):
        kind = LayerNorm if operator == "LayerNormalization" else RMSNorm
        return kind(normalized_shape=x.shape[found["axis"] :], eps=eps)
    if operator == "GroupNormalization":
        return GroupNorm(found["num_groups"], eps=eps)
    return InstanceNorm(eps=eps) if operator == "InstanceNormalization" else BatchNorm(eps=eps, momentum=found["momentum"])


def arguments(case):
    """Arguments of `nc.reference` by name."""
    names = ("x", "weight", "bias", "running_mean", "running_var")
    given = dict(zip(names, case.data_sets[0][0], strict=False))
    return {"norm": norm_of(case), **given, "training": bool(attributes(case)["training_mode"]), "contract": CONTRACT}


def test_no_vector_is_left_out():
    """All five operators have their vectors, at least as many as in onnx 1.23, and each belongs to one of them."""
    counted = Counter(CASES[name].model.graph.node[0].op_type for name in VECTORS)
    assert set(counted) == set(OPERATORS)
    least = {"LayerNormalization": 19, "RMSNormalization": 19, "GroupNormalization": 2, "InstanceNormalization": 2}
    assert counted >= Counter({**least, "BatchNormalization": 4})
    assert all(len(CASES[name].data_sets) == 1 for name in VECTORS)


@pytest.mark.parametrize("name", [name for name in CASES if "_expanded" in name])
def test_expanded_models_have_the_same_vectors(name):
    """A model that is made of other operators carries the vector of the one that it is expanded from."""
    expanded, whole = CASES[name], CASES[name.partition("_expanded")[0]]
    for one, other in zip(expanded.data_sets[0], whole.data_sets[0], strict=True):
        assert len(one) == len(other)
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_agree_with_the_reference(name):
    """y is the certified value within the bound of float32 arithmetic on that very input."""
    case = CASES[name]
    given = arguments(case)
    y = case.data_sets[0][1][0]
    allowed = tolerance(**given)
    assert y.dtype == np.float32
    assert np.isfinite(allowed).all()
    assert (np.abs(y - nc.reference(**given, dtype="float64")) <= allowed).all()


@pytest.mark.parametrize("name", [name for name in VECTORS if name.startswith("test_layer")])
def test_mean_and_inverse_deviation_agree(name):
    """The two other outputs of LayerNormalization are the row's mean and 1/S, within the bounds of their parts."""
    _, mean, rstd = CASES[name].data_sets[0][1]
    case = case_of(**arguments(CASES[name]))
    exact, tree = case.certified, case.classes["tree"]
    allowed = case.errors.tau(tree) * exact.scale
    assert (np.abs(mean.ravel() - exact.mean) <= allowed + U * np.abs(exact.mean)).all()
    assert (np.abs(rstd.ravel() * exact.scale - 1) <= case.errors.gain(tree) + U).all()


@pytest.mark.parametrize("name", [name for name in VECTORS if name.endswith("training_mode")])
def test_running_statistics_agree(name):
    """New statistics are m*old + (1-m)*batch with the biased variance, within the bound of the check ``running-update``."""
    given = arguments(CASES[name])
    norm, old = given["norm"], [given["running_mean"], given["running_var"]]
    case = case_of(**given)
    rows, height = case.rows, max(case.rows.shape[1], 32)
    settings = {"convention": "keras", "ddof": 0}
    exact = running(rows, *old, momentum=norm.momentum, **settings)
    batch = running(rows, *old, momentum=0.0, **settings)
    share = 1 - norm.momentum
    error = (height + 1) * U * np.abs(rows).mean(1) + 3 * U * np.abs(rows).max(1)
    lost = (error, error**2 + U * (height + 5) * batch[1] + 2 * np.sqrt(2) * error * np.sqrt(batch[1]))
    for new, value, before, now, own in zip(CASES[name].data_sets[0][1][1:], exact, old, batch, lost, strict=True):
        assert (np.abs(new - value) <= share * own + 4 * U * (np.abs(before) + np.abs(now)) + U * np.abs(value)).all()
