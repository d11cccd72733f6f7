"""torch's own samples for its norms (OpInfo) agree with the certified values, every one of them, within derived bounds."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import normcheck as nc
from normcheck.checks.cases import make_case
from normcheck.implementations import Inputs, frameworks

pytest.importorskip("expecttest", reason="torch's samples need it: pip install expecttest")
OPERATORS = ("layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm")
ORDER = {
    "layer_norm": ("normalized_shape", "weight", "bias", "eps"),
    "rms_norm": ("normalized_shape", "weight", "eps"),
    "group_norm": ("num_groups", "weight", "bias", "eps"),
    "batch_norm": ("running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"),
    "instance_norm": ("running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps"),
}
SAMPLES = {"layer_norm": 6, "rms_norm": 6, "group_norm": 21, "batch_norm": 12, "instance_norm": 9}
"""How many there are in torch 2.13; fewer would mean that something is left out."""
DTYPES = ("float64", "float32", "float16", "bfloat16")
ARRAYS = ("weight", "bias", "running_mean", "running_var")


def samples(operator, dtype):
    """The samples of an operator, its arguments by name."""
    from torch.testing._internal.common_methods_invocations import op_db

    info = next(op for op in op_db if op.name == f"nn.functional.{operator}" and not op.variant_test_name)
    torch.manual_seed(0)
    for sample in info.sample_inputs("cpu", getattr(torch, dtype)):
        yield sample.input, {**dict(zip(ORDER[operator], sample.args, strict=False)), **sample.kwargs}


def norm_of(operator, given, dtype):
    """What the sample asks for. Its eps may be negative, which no norm has."""
    kinds = {"layer_norm": nc.LayerNorm, "rms_norm": nc.RMSNorm, "batch_norm": nc.BatchNorm, "instance_norm": nc.InstanceNorm}
    if operator == "group_norm":
        norm = nc.GroupNorm(given["num_groups"])
    else:
        shape = {"normalized_shape": given["normalized_shape"]} if "normalized_shape" in given else {}
        norm = kinds[operator](**shape)
    usual = torch.finfo(getattr(torch, dtype) if dtype == "float64" else torch.float32).eps if operator == "rms_norm" else 1e-5
    eps = given.get("eps", usual)
    spoiled = dataclasses.replace(norm)
    object.__setattr__(spoiled, "eps", eps)
    return spoiled


def values(tensor):
    """The exact values of a tensor, None as it is."""
    return None if tensor is None else frameworks()["torch"].to_values(tensor)[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_samples_of_torch_agree_with_the_reference(operator, dtype):
    """torch's result lies within the bound of the certified value, and nc.reference is the nearest number of the dtype.

    In 16 bit the parameters of norms with running statistics are float32 and never absent: else the statistics are rounded to
    16 bit, as the ledger says.
    """
    judged = 0
    for x, given in samples(operator, dtype):
        wide = dtype in DTYPES[2:] and operator in ("batch_norm", "instance_norm")
        given = widened(given, x.shape) if wide else given
        if x.ndim < 2 and operator == "batch_norm":
            assert x.numel() == 0, "without a channel axis there is nothing but the empty tensor"
            judged += 1
            continue
        y = getattr(torch.nn.functional, operator)(x.clone(), **given)
        norm, training = norm_of(operator, given, dtype), bool(given.get("training", operator != "batch_norm"))
        arrays = {name: values(given.get(name)) for name in ARRAYS}
        running = {name: arrays[name] for name in ARRAYS[2:]} if norm.has_running and not training else {}
        parameters = {name: arrays[name] for name in ARRAYS[:2]}
        exact = np.asarray(values(x), nc_dtype(dtype))
        expected = nc.reference(norm, exact, parameters["weight"], parameters["bias"], training=training, **running)
        assert expected.shape == tuple(y.shape)
        if x.numel():
            hold(norm, values(x), values(y), np.asarray(expected, np.float64), dtype, wide, training, {**parameters, **running})
        judged += 1
    assert judged >= SAMPLES[operator]


def widened(given, shape):
    """The arguments with parameters in float32, ones and zeros where there are none."""
    absent = {"weight": torch.ones(shape[1:2]), "bias": torch.zeros(shape[1:2])}
    wide = {name: given[name].float() for name in ARRAYS if given.get(name) is not None}
    return {**given, **absent, **wide}


def nc_dtype(dtype):
    """The numpy dtype of a name."""
    from normcheck.formats import format_of

    return format_of(dtype).dtype


def hold(norm, x, y, expected, dtype, wide, training, arrays):
    """Both results conform to the bound of a tree, the reference with nothing to spare."""
    fold = norm.fold(x.shape)
    flat = {name: None if array is None else array.reshape(-1) for name, array in arrays.items()}
    inputs = Inputs(x, **flat, dtype=dtype, weight_dtype="float32" if wide else None, training=training)
    case = make_case(norm, nc.Contract(accumulation="merge"), fold, fold.fold(x), inputs, level="double-double")
    for output, most in ((y, 1.0), (expected, 1e-12)):
        verdict = case.judge(fold.fold(output), "tree")
        assert verdict.worst_ratio <= most, (str(norm), x.shape, dtype, output, expected)
