"""nc.reference: arrays in, correctly rounded arrays out, with the roundings of the contract and no others."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normcheck import norms as n
from normcheck.contract import Contract
from normcheck.formats import FORMATS, format_of
from normcheck.reference import correctly_rounded, reference, reference_grad, scalar
from normcheck.reference.affine import affine_rounded
from normcheck.reference.exact import round_fraction
from normcheck.reference.problem import problem

RNG = np.random.default_rng(0)
SHAPES = [
    (n.LayerNorm((3, 4)), (2, 3, 4), 1),
    (n.RMSNorm(weight_offset=1.0), (5, 6), 1),
    (n.L2Norm(), (5, 6), 1),
    (n.ScaleNorm(), (5, 6), 1),
    (n.PartialRMSNorm(fraction=0.5), (5, 6), 1),
    (n.BatchNorm(), (4, 3, 5), 1),
    (n.InstanceNorm(), (2, 5, 3), -1),
    (n.GroupNorm(2), (2, 4, 3), 1),
    (n.LayerNorm(eps_placement="outside", ddof=1), (4, 7), 1),
]


def values(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray:
    """Normal values of a dtype, rounded once."""
    fmt = format_of(dtype)
    return fmt.round(np.random.default_rng(seed).normal(size=shape)).astype(fmt.dtype)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(("norm", "shape", "axis"), SHAPES, ids=lambda v: getattr(v, "name", None))
def test_every_norm_in_every_dtype(norm: n.Norm, shape: tuple[int, ...], axis: int, dtype: str) -> None:
    """The array has x's shape and dtype and holds the slow twin's values of the folded rows."""
    fold = norm.fold(shape, axis)
    x, weight = values(shape, dtype), values((norm.parameter_size(fold),), dtype, 1)
    bias = values((norm.parameter_size(fold),), dtype, 2) if norm.has_bias else None
    got = reference(norm, x, weight, bias, channel_axis=axis)
    assert (got.shape, got.dtype) == (shape, format_of(dtype).dtype)
    expected = scalar.correctly_rounded(
        fold.fold(x).astype(float),
        norm.standardization,
        fold.affine(weight.astype(float)),
        None if bias is None else fold.affine(bias.astype(float)),
        weight_offset=norm.weight_offset,
        fmt=format_of(dtype),
    )
    assert np.array_equal(fold.fold(got).astype(float), expected)


@pytest.mark.parametrize("norm", [n.BatchNorm(), n.InstanceNorm(track_running_stats=True)], ids=lambda v: v.name)
def test_running_statistics(norm: n.Norm) -> None:
    """In evaluation the given statistics enter, in training they do not."""
    x = values((4, 3, 5), np.float32)
    mean, var = values((3,), np.float32, 1), np.abs(values((3,), np.float32, 2))
    got = reference(norm, x, running_mean=mean, running_var=var, training=False)
    exact = (x.astype(float) - mean[:, None]) / np.sqrt(var.astype(float)[:, None] + 1e-5)
    np.testing.assert_array_almost_equal_nulp(got, exact.astype(np.float32), 1)
    trained = reference(norm, x, running_mean=mean, running_var=var)
    assert np.array_equal(trained, reference(norm, x))
    assert not np.array_equal(trained, got)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_before_weight_rounds_twice_and_only_there(dtype: str) -> None:
    """cast="before_weight" rounds n to x's dtype; then w*n + b is exact until its one rounding, in the promoted dtype too."""
    fmt = format_of(dtype)
    x, weight, bias = values((6, 33), dtype), values((33,), np.float32, 1), values((33,), np.float32, 2)
    norm = n.LayerNorm()
    rounded = correctly_rounded(x.astype(float), norm.standardization, fmt=fmt)
    for output, out in (("x", fmt), ("promote", FORMATS["float32"])):
        got = reference(norm, x, weight, bias, contract=Contract(cast="before_weight", output=output))
        assert got.dtype == out.dtype
        for r, i in np.ndindex(x.shape):
            exact = Fraction(rounded[r, i]) * Fraction(float(weight[i])) + Fraction(float(bias[i]))
            assert float(got[r, i]) == round_fraction(exact, out)
    once = reference(norm, x, weight, bias)
    assert not np.array_equal(once, reference(norm, x, weight, bias, contract=Contract(cast="before_weight")))


@pytest.mark.parametrize("name", FORMATS)
def test_affine_rounds_once_at_any_size(name: str) -> None:
    """Products and sums that over- and underflow, cancel or hit midpoints are rounded as rationals are."""
    fmt, width = FORMATS[name], 60
    rng = np.random.default_rng(4)
    sizes = [1.0, 0.0, 1e-300, 1e300, 1e-160, fmt.max, fmt.min_subnormal]
    rows, weight, bias = (rng.uniform(-1.0, 1.0, (3, width)) * rng.choice(sizes, (3, width)) for _ in range(3))
    rows[0, :20], weight[0, :20], bias[0, :20] = 1.0, 1.0, np.arange(20) * fmt.u
    rows = fmt.round(np.clip(rows, -fmt.max, fmt.max))
    for offset in (0.0, 1.0):
        got = affine_rounded(rows, problem(rows, n.RMSNorm().standardization, weight, bias, offset, None, None), fmt)
        for r, i in np.ndindex(rows.shape):
            exact = Fraction(rows[r, i]) * (Fraction(offset) + Fraction(weight[r, i])) + Fraction(bias[r, i])
            expected = round_fraction(exact, fmt)
            assert got[r, i] == expected or (np.isnan(got[r, i]) and np.isnan(expected))


def test_residual_storage_and_compute() -> None:
    """The norm sees x + residual rounded to x's dtype or to the compute dtype, as the contract says."""
    x, residual = values((8, 64), "bfloat16"), values((8, 64), "bfloat16", 1)
    exact = x.astype(float) + residual.astype(float)
    for rounding, fmt in (("storage", FORMATS["bfloat16"]), ("compute", FORMATS["float32"])):
        got = reference(n.RMSNorm(), x, residual=residual, contract=Contract(residual_rounding=rounding))
        expected = correctly_rounded(fmt.round(exact), n.RMSNorm().standardization, fmt=FORMATS["bfloat16"])
        assert np.array_equal(got.astype(float), expected)


def test_float64_residual_is_rounded_once() -> None:
    """In float64 the rounded sum is the norm's input, infinities included."""
    x, residual = np.array([[1.0, 2.0, 1e308]]), np.array([[2.0**-60, 1.0, 1e308]])
    got = reference(n.LayerNorm(), x[:, :2], residual=residual[:, :2], contract=STORED)
    assert np.array_equal(got, reference(n.LayerNorm(), x[:, :2] + residual[:, :2]))
    assert np.isnan(reference(n.LayerNorm(), x, residual=residual, contract=STORED)).all()


def test_eps_dtype_and_weight_offset() -> None:
    """eps is rounded as the contract says; the offset is added exactly, not in the weight's dtype."""
    x = values((4, 16), np.float32) * np.float32(1e-3)
    got = reference(n.RMSNorm(eps=1e-5), x, contract=Contract(eps_dtype="float16"))
    assert np.array_equal(got, reference(n.RMSNorm(eps=float(np.float16(1e-5))), x))
    assert not np.array_equal(got, reference(n.RMSNorm(eps=1e-5), x))
    tiny = np.full(16, 2.0**-12).astype(ml_dtypes.bfloat16)
    offset = reference(n.RMSNorm(weight_offset=1.0), x, tiny)
    assert np.array_equal(offset, reference(n.RMSNorm(), x, np.full(16, np.float32(1 + 2.0**-12))))


def test_output_dtype() -> None:
    """dtype= names the format to round to; a bfloat16 value from float32 input is rounded once."""
    x = values((4, 100), np.float32)
    got = reference(n.LayerNorm(), x, dtype="bfloat16")
    assert got.dtype == ml_dtypes.bfloat16
    assert np.array_equal(got.astype(float), correctly_rounded(x, n.LayerNorm().standardization, fmt=FORMATS["bfloat16"]))


def test_empty_arrays() -> None:
    """An empty batch gives an empty result of the right dtype."""
    assert reference(n.LayerNorm(), np.empty((0, 4), np.float32)).shape == (0, 4)
    assert reference(n.BatchNorm(), np.empty((0, 4), np.float32)).shape == (0, 4)


X = np.ones((2, 4), np.float32)
STORED = Contract(residual_rounding="storage")


class Foreign:
    """Stands for a tensor of another library that numpy cannot hold."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        """As torch says it of bfloat16."""
        raise TypeError("Got unsupported ScalarType BFloat16")


REFUSED: list[tuple[n.Norm, dict[str, Any], str]] = [
    (n.LayerNorm(), {"x": X, "weight": np.ones(3)}, r"weight has 3 elements \(shape \(3,\)\), but should have 4"),
    (n.LayerNorm(), {"x": X, "bias": np.ones(5)}, r"bias has 5 elements \(shape \(5,\)\), but should have 4"),
    (n.BatchNorm(), {"x": X, "weight": np.ones(2)}, r"weight has 2 elements \(shape \(2,\)\), but should have 4"),
    (n.LayerNorm(), {"x": X.astype(int)}, r"x: dtype=dtype\('int64'\), but should be one of float64, float32"),
    (n.LayerNorm(), {"x": X * 1j}, r"x: dtype=dtype\('complex64'\), but should be one of"),
    (n.LayerNorm(), {"x": X, "weight": np.ones(4, int)}, r"weight: dtype=dtype\('int64'\), but should be one of"),
    (n.LayerNorm(), {"x": X, "contract": "once"}, r"contract='once', but should be a Contract such as"),
    (n.LayerNorm(), {"x": Foreign()}, r"x is Foreign, but should be a numpy array; 16 and 8 bit in a dtype of ml_dtypes"),
    (n.LayerNorm(), {"x": np.ma.masked_less(X, 2)}, r"x has 8 masked elements, but should have none: a norm takes all that"),
    (n.LayerNorm(), {"x": X, "weight": np.ma.masked_less(X[0], 2)}, r"weight has 4 masked elements, but should have none"),
    (n.LayerNorm(), {"x": X, "dtype": "float7"}, r"dtype='float7', but should be one of"),
    (n.LayerNorm(5), {"x": X}, r"shape=\(2, 4\), but should end in normalized_shape=\(5,\)"),
    (n.BatchNorm(), {"x": X, "training": False}, r"running_mean=None, but should be given where training=False"),
    (n.BatchNorm(), {"x": X, "training": False, "running_mean": np.ones(4)}, r"running_var=None, but should be given"),
    (
        n.BatchNorm(),
        {"x": X, "training": False, "running_mean": np.ones(3), "running_var": np.ones(4)},
        r"running_mean has 3 elements, but should have 4",
    ),
    (n.LayerNorm(), {"x": X, "running_mean": np.ones(4)}, r"running_mean is given, but should be None: LayerNorm keeps no"),
    (n.RMSNorm(), {"x": X, "bias": np.ones(4)}, r"bias is given, but should be None: RMSNorm has none"),
    (n.LayerNorm(), {"x": X, "residual": X}, r"residual is given, but contract.residual_rounding=None should then be"),
    (n.LayerNorm(), {"x": X, "residual": X[:1], "contract": STORED}, r"residual has shape \(1, 4\), but should have that of x"),
    (n.LayerNorm(), {"x": X, "residual": X.astype(int), "contract": STORED}, r"residual: dtype=dtype\('int64'\), but should be"),
]


@pytest.mark.parametrize(("norm", "arguments", "message"), REFUSED)
def test_refuses_what_does_not_fit(norm: n.Norm, arguments: dict[str, Any], message: str) -> None:
    """Arguments that do not fit the norm raise ValueError that names the value and what was expected."""
    with pytest.raises(ValueError, match=message):
        reference(norm, **arguments)


def test_an_array_without_masked_elements_is_taken() -> None:
    """A masked array of which nothing is masked is what its data are."""
    assert np.array_equal(reference(n.RMSNorm(), np.ma.array(X)), reference(n.RMSNorm(), X))


@pytest.mark.parametrize("fmt", FORMATS)
def test_tensors_of_torch_are_taken(fmt: str) -> None:
    """Tensors of every format, also those that autograd records, give what the numpy arrays of their values give."""
    torch = pytest.importorskip("torch")
    x, weight = (FORMATS[fmt].round(RNG.normal(size=shape)) for shape in ((3, 8), (8,)))
    dy = FORMATS[fmt].round(RNG.normal(size=(3, 8)))
    arrays = [values.astype(FORMATS[fmt].dtype) for values in (x, dy, weight)]
    tensors = [torch.tensor(values, dtype=getattr(torch, fmt)).requires_grad_() for values in (x, dy, weight)]
    expected = reference(n.RMSNorm(), arrays[0], arrays[2])
    got = reference(n.RMSNorm(), tensors[0], tensors[2])
    assert got.dtype == expected.dtype
    assert np.array_equal(got.astype(float), expected.astype(float))
    wanted, found = (reference_grad(n.RMSNorm(), *given) for given in (arrays, tensors))
    assert np.array_equal(found.dx.astype(float), wanted.dx.astype(float))
    assert found.dweight.dtype == wanted.dweight.dtype
    with pytest.raises(ValueError, match="x: dtype=dtype"):
        reference(n.RMSNorm(), tensors[0].detach().int())


def test_an_offset_and_a_weight_may_overflow_together() -> None:
    """offset + w beyond float64 is exact as well where the cast stands before the weight, as it is without."""
    x, weight = np.array([[1e-10, -1e-10, 2e-10]]), np.full(3, 1.7e308)
    norm = n.LayerNorm(eps=1.0, weight_offset=1.5e308)
    y = reference(norm, x, weight, contract=Contract(cast="before_weight"))
    assert np.isfinite(y).all()
    assert (np.abs(y - reference(norm, x, weight)) <= np.spacing(np.abs(y))).all()
