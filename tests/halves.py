"""What any adapter must get right to the bit: values pass unchanged, and signs with eps = 3 are exactly halved."""

from __future__ import annotations

import dataclasses

import numpy as np

from normcheck.formats import FORMATS
from normcheck.implementations import Framework, Implementation, Inputs, call

EPS = 3.0


def signs(rows: int, width: int) -> np.ndarray:
    """Rows of as many +1 as -1, each in its own order: mean 0, variance 1, mean square 1."""
    row = np.resize([1.0, -1.0], width)
    return np.stack([np.random.default_rng(seed).permutation(row) for seed in range(rows)])


def inputs_for(implementation: Implementation, dtype: str) -> Inputs:
    """Signs in the implementation's shape, small integers as parameters, given statistics of mean 0 and variance 1."""
    norm, axis = implementation.norm, implementation.channel_axis
    shape = norm.shape_of(8, 16, min(implementation.ranks) if implementation.ranks else None, axis)
    fold = norm.fold(shape, axis)
    parameters = np.arange(norm.parameter_size(fold)) % 5 - 2.0
    given = {name: parameters for name in ("weight", "bias") if implementation.takes(name)}
    if norm.has_running:
        given |= {"running_mean": np.zeros(fold.period), "running_var": np.ones(fold.period)}
    if implementation.residual:
        given["residual"] = np.zeros(shape)
    details = {"dtype": dtype, "weight_dtype": implementation.weight_dtype, "training": implementation.training is not False}
    return Inputs(fold.unfold(signs(8, 16)), **given, **details)


def assert_halves(implementation: Implementation, dtype: str) -> None:
    """Weight, bias, groups, statistics and eps arrive where they belong, and the output has the dtype that is promised."""
    varied = implementation.with_norm(dataclasses.replace(implementation.norm, eps=EPS))
    assert varied is not None
    inputs = inputs_for(implementation, dtype)
    fold = implementation.norm.fold(inputs.x.shape, implementation.channel_axis)
    exact, of_row = fold.fold(inputs.x) / 2, np.arange(fold.rows) % fold.period
    if inputs.weight is not None:
        exact = exact * (fold.affine(inputs.weight)[of_row] + implementation.norm.weight_offset)
    exact = exact if inputs.bias is None else exact + fold.affine(inputs.bias)[of_row]
    output = call(varied, inputs)
    assert np.array_equal(output.y, fold.unfold(exact))
    parameters = FORMATS[implementation.weight_dtype or dtype]
    assert output.dtype == implementation.contract.output_format(FORMATS[dtype], parameters).name


def assert_values_pass(adapter: Framework, dtype: str) -> None:
    """Subnormal, extreme and infinite values arrive and return unchanged; no write to one array reaches another."""
    fmt = FORMATS[dtype]
    values = np.array([0.0, fmt.min_subnormal, fmt.min_normal, 1.0 + 2 * fmt.u, fmt.max, np.inf, -1.0])
    native = adapter.to_native(values, dtype)
    found, name = adapter.to_values(native)
    assert np.array_equal(found, values)
    assert name == dtype
    assert adapter.shares_memory(native, native) is not getattr(adapter, "immutable", False)
    assert not adapter.shares_memory(native, adapter.to_native(values, dtype))
