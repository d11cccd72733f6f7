"""reference_grad: certified gradients of every norm, their rounding, their specials and what is refused."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from normcheck import norms as n
from normcheck.contract import Contract
from normcheck.formats import FORMATS, Array, format_of
from normcheck.reference import correctly_rounded, reference_grad, rungs, sums, threads
from normcheck.reference.exact import round_fraction

STORED = Contract(residual_rounding="storage")


def normal(*shape: int, seed: int = 0) -> Array:
    """Normal float64 values."""
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def jacobian(function: Any, x: Array) -> Array:
    """The derivative of a function of a row by central differences in 60-digit arithmetic, rounded to float64."""
    mpmath = pytest.importorskip("mpmath", reason="mpmath is missing: pip install normcheck[test]")
    with mpmath.workdps(60):
        step, columns = mpmath.mpf(10) ** -25, []
        exact = [mpmath.mpf(v) for v in x]
        for j in range(len(x)):
            moved = [[v + sign * step * (i == j) for i, v in enumerate(exact)] for sign in (1, -1)]
            up, down = (function(mpmath, row) for row in moved)
            columns.append([float((a - b) / (2 * step)) for a, b in zip(up, down, strict=True)])
    return np.array(columns).T


def formula(s: n.Standardization) -> Any:
    """The standardization of a row, written down again."""

    def standardize(m: Any, x: list[Any]) -> list[Any]:
        mean = m.fsum(x) / len(x) if s.center else m.mpf(0)
        c = [v - mean for v in x]
        spread = m.fsum(v * v for v in c[: s.count(len(x))]) / s.divisor(len(x))
        eps = m.mpf(s.eps)
        scale = {
            "inside": lambda: m.sqrt(spread + eps),
            "outside": lambda: m.sqrt(spread) + eps,
            "max": lambda: max(m.sqrt(spread), eps),
            "max_inside": lambda: m.sqrt(max(spread, eps)),
            "none": lambda: m.sqrt(spread),
        }[s.placement]()
        return [v / scale for v in c]

    return standardize


@pytest.mark.parametrize("eps", [1e-5, 0.9, 1.5])
@pytest.mark.parametrize("placement", n.PLACEMENTS)
@pytest.mark.parametrize(
    "norm", [n.LayerNorm(), n.LayerNorm(ddof=1), n.RMSNorm(), n.L2Norm(), n.PartialRMSNorm(fraction=0.4)], ids=lambda v: v.name
)
def test_dx_is_the_transposed_jacobian(norm: n.Norm, placement: str, eps: float) -> None:
    """dx = J^T (w dy), with J from differences in 60 digits; both sides of where max(., eps) turns are met."""
    changed = type(norm)(**{**vars(norm), "eps": eps, "eps_placement": placement})
    x, dy, weight = normal(1, 7), normal(1, 7, seed=1), normal(7, seed=2)
    got = reference_grad(changed, x, dy, weight)
    expected = (weight * dy[0]) @ jacobian(formula(changed.standardization), x[0])
    np.testing.assert_allclose(got.dx[0], expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", FORMATS)
def test_parameter_sums_are_rounded_once(name: str) -> None:
    """dbias is the rational sum of dy, dweight with rational n (rows of +-1) the rational sum of dy n, each rounded once."""
    fmt = FORMATS[name]
    x = np.tile([1.0, -1.0], (40, 4))
    dy = fmt.round(normal(40, 8, seed=3) * 2.0 ** np.random.default_rng(0).integers(-8, 4, (40, 8)))
    got = reference_grad(n.LayerNorm(eps=0.0), x.astype(fmt.dtype), dy.astype(fmt.dtype), x[0], x[0], dtype=name)
    for j in range(8):
        column = [Fraction(v) for v in dy[:, j]]
        assert float(got.dbias[j]) == round_fraction(sum(column), fmt)
        assert float(got.dweight[j]) == round_fraction(sum(v * Fraction(u) for v, u in zip(column, x[:, j], strict=True)), fmt)


CASES = [
    (n.LayerNorm((3, 4)), (5, 3, 4), 1, (3, 4)),
    (n.RMSNorm(weight_offset=1.0), (2, 3, 6), 1, (6,)),
    (n.ScaleNorm(), (5, 6), 1, (1,)),
    (n.BatchNorm(), (4, 3, 5), 1, (3,)),
    (n.InstanceNorm(), (2, 5, 3), -1, (3,)),
    (n.GroupNorm(2), (3, 4, 5), 1, (4,)),
    (n.GroupNorm(2), (3, 5, 4), -1, (4,)),
]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize(("norm", "shape", "axis", "parameter"), CASES, ids=lambda v: getattr(v, "name", None))
def test_parameters_of_every_norm(
    norm: n.Norm, shape: tuple[int, ...], axis: int, parameter: tuple[int, ...], dtype: str
) -> None:
    """dweight and dbias have the parameters' shapes and sum dy n and dy over all that meets each parameter."""
    fmt = format_of(dtype)
    x, dy = (fmt.round(normal(*shape, seed=seed)).astype(fmt.dtype) for seed in (0, 1))
    weight = fmt.round(normal(*parameter, seed=2)).astype(fmt.dtype)
    fold = norm.fold(shape, axis)
    got = reference_grad(norm, x, dy, weight, weight if norm.has_bias else None, channel_axis=axis)
    exact = fold.unfold(correctly_rounded(fold.fold(x), norm.standardization, fmt=FORMATS["float64"]))
    for result, terms in ((got.dweight, exact * dy.astype(float)), (got.dbias, dy.astype(float))):
        if result is not None:
            assert (result.shape, result.dtype) == (parameter, fmt.dtype)
            total = np.moveaxis(terms, axis, -1) if norm.per_channel else terms
            total = total.reshape(-1, int(np.prod(parameter))).sum(axis=0) if parameter != (1,) else np.array([total.sum()])
            np.testing.assert_allclose(result.astype(float).ravel(), total, rtol=1.01 * fmt.u + 1e-13, atol=1e-13)


def test_evaluation_has_no_statistics_terms() -> None:
    """With running statistics dx is w dy / S, element by element."""
    x, dy, weight = normal(4, 3, 5), normal(4, 3, 5, seed=1), normal(3, seed=2)
    mean, var = normal(3, seed=3), normal(3, seed=4) ** 2
    got = reference_grad(n.BatchNorm(), x, dy, weight, running_mean=mean, running_var=var, training=False)
    np.testing.assert_allclose(got.dx, dy * (weight / np.sqrt(var + 1e-5))[:, None], rtol=4e-16)
    expected = (dy * (x - mean[:, None]) / np.sqrt(var + 1e-5)[:, None]).sum(axis=(0, 2))
    np.testing.assert_allclose(got.dweight, expected, rtol=1e-13)


def test_residual_gradient() -> None:
    """x and residual share the gradient through the norm at their rounded sum, plus that of the second output, rounded once."""
    x, residual, dy, besides = (normal(4, 9, seed=seed).astype(np.float32) for seed in range(4))
    got = reference_grad(n.LayerNorm(), x, dy, residual=residual, dresidual=besides, contract=STORED)
    assert np.array_equal(got.dx, got.dresidual)
    through = reference_grad(n.LayerNorm(), x + residual, dy, dtype="float64").dx
    assert np.array_equal(got.dx, (through + besides).astype(np.float32))
    assert reference_grad(n.LayerNorm(), x, dy).dresidual is None


def test_before_weight_sums_the_rounded_value() -> None:
    """Where the weight meets the rounded n, its gradient sums dy times the rounded n."""
    fmt = FORMATS["bfloat16"]
    x, dy = (fmt.round(normal(16, 8, seed=seed)).astype(fmt.dtype) for seed in (0, 1))
    weight = np.ones(8, np.float32)
    got = reference_grad(n.RMSNorm(), x, dy, weight, contract=Contract(cast="before_weight"))
    rounded = correctly_rounded(x, n.RMSNorm().standardization, fmt=fmt)
    for j in range(8):
        exact = sum(Fraction(a) * Fraction(b) for a, b in zip(rounded[:, j], dy[:, j].astype(float), strict=True))
        assert float(got.dweight[j]) == round_fraction(exact, FORMATS["float32"])
    assert not np.array_equal(got.dweight, reference_grad(n.RMSNorm(), x, dy, weight).dweight)


def test_constant_rows() -> None:
    """On a constant row dx is (g - mean g)/sqrt(eps) inside and (g - mean g)/eps outside; without eps NaN."""
    x, dy = np.full((1, 4), 3.0), np.array([[1.0, 2.0, 3.0, 6.0]])
    for placement, scale in (("inside", 0.5), ("outside", 0.25), ("max", 0.25), ("max_inside", 0.5)):
        got = reference_grad(n.LayerNorm(eps=0.25, eps_placement=placement), x, dy)
        assert np.array_equal(got.dx, (dy - 3.0) / scale)
    assert np.isnan(reference_grad(n.LayerNorm(eps=0.0), x, dy).dx).all()


def test_max_turns_at_equality() -> None:
    """Where sigma equals eps exactly, max takes sigma's side: the row scales with x, so dx is orthogonal to it."""
    x, dy = np.array([[3.0, 4.0]]), np.array([[1.0, 0.0]])
    at, below = (reference_grad(n.L2Norm(eps=eps), x, dy).dx[0] for eps in (5.0, np.nextafter(5.0, 6.0)))
    assert np.array_equal(at, [16 / 125, -12 / 125])
    assert np.array_equal(below, [1 / np.nextafter(5.0, 6.0), 0.0])


def test_a_statistic_that_vanishes_beside_eps() -> None:
    """Statistic of 1e-200 beside elements of 1e200, eps outside: the derivative of sigma still counts, and is huge."""
    norm = n.PartialRMSNorm(fraction=0.3, eps=1e-6, eps_placement="outside")
    x, dy = np.array([[1e-200, 1e200, 1e200]]), np.array([[1.0, 2.0, 3.0]])
    got = reference_grad(norm, x, dy).dx
    # dx_0 = g_0/S - c_0 Q/(N' S^2 sigma) with c_0 = sigma = 1e-200, so Q/S^2 = 5e200 * 1e12
    np.testing.assert_allclose(got, [[-5e212, 2e6, 3e6]], rtol=1e-13)


@pytest.mark.parametrize("factor", [1e-320, 1e-300, 1e300])
def test_extreme_sizes(factor: float) -> None:
    """Rows at the ends of the range have the gradient of the scaled row, divided by the scale."""
    x, dy = normal(2, 6), normal(2, 6, seed=1)
    norm = n.LayerNorm(eps=0.0)
    scaled = (x * factor) / factor
    with np.errstate(over="ignore"):
        expected = reference_grad(norm, scaled, dy).dx / factor
    got = reference_grad(norm, x * factor, dy).dx
    finite = np.isfinite(expected) & (np.abs(expected) > 1e-290)
    np.testing.assert_allclose(got[finite], expected[finite], rtol=1e-3 if factor == 1e-320 else 1e-13)
    assert np.array_equal(np.isinf(got), np.isinf(expected))


def test_specials() -> None:
    """One NaN or Inf in x, dy or weight makes a row with own statistics NaN and leaves the other rows alone."""
    clean_x, clean_dy = normal(3, 4), normal(3, 4, seed=1)
    clean = reference_grad(n.LayerNorm(), clean_x, clean_dy).dx
    for bad in (np.nan, np.inf):
        for which in range(2):
            arrays = [clean_x.copy(), clean_dy.copy()]
            arrays[which][1, 2] = bad
            got = reference_grad(n.LayerNorm(), *arrays, np.ones(4), np.ones(4))
            assert np.isnan(got.dx[1]).all()
            assert np.array_equal(got.dx[[0, 2]], clean[[0, 2]])
            assert np.array_equal(np.isfinite(got.dbias), [True, True, which == 0, True])
            assert np.array_equal(np.isfinite(got.dweight), [False] * 4 if which == 0 else [True, True, False, True])


def test_evaluation_specials_stay_where_they_are() -> None:
    """With given statistics an infinite dy touches its own element; weights that are not finite touch their channel."""
    dy = np.ones((2, 2))
    dy[0, 0] = np.inf
    given = {"running_mean": np.zeros(2), "running_var": np.ones(2), "training": False}
    got = reference_grad(n.BatchNorm(eps=0.0), normal(2, 2), dy, np.array([1.0, np.nan]), **given)
    assert np.array_equal(got.dx, [[np.inf, np.nan], [1.0, np.nan]], equal_nan=True)


@pytest.mark.parametrize("name", ["float64", "float32"])
def test_nothing_depends_on_threads_or_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread or three, blocks of any size: the same bits."""
    fmt = format_of(name)
    x, dy = (fmt.round(normal(50, 6, 4, seed=seed) + 3).astype(fmt.dtype) for seed in (0, 1))
    weight = fmt.round(normal(6, seed=2)).astype(fmt.dtype)
    results = []
    for count, block in (("1", 1 << 16), ("3", 1 << 16), ("3", 40), ("1", 1)):
        monkeypatch.setenv("NORMCHECK_THREADS", count)
        for module in (sums, rungs):
            monkeypatch.setattr(module, "BLOCK", block)
        assert threads.workers() == int(count)
        both = (reference_grad(norm, x, dy, weight, weight)[:3] for norm in (n.GroupNorm(2), n.BatchNorm()))
        results.append([part.tobytes() for parts in both for part in parts])
    assert all(result == results[0] for result in results)


def test_cancelling_roots_are_exact() -> None:
    """Two rows that are each other's negative cancel in dweight exactly, though each term is irrational."""
    x = normal(1, 5)
    got = reference_grad(n.RMSNorm(), np.concatenate([x, -x]), np.ones((2, 5)), np.ones(5))
    assert np.array_equal(got.dweight, np.zeros(5))
    assert got.uncertified == 0


def test_what_no_enclosure_decides_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements left open when the enclosures end are counted and keep their double-double value; wider ones decide them."""
    x, dy = np.array([[1.0, 2.0], [1.0, 3.0], [-1.0, -2.0], [-1.0, -3.0]]), np.ones((4, 2))
    dy[3, 1] -= 2.0**-50  # the terms of the second weight cancel but for this
    decided = reference_grad(n.RMSNorm(), x, dy, np.ones(2))
    monkeypatch.setattr(sums, "_MOST_BITS", 0)
    left = reference_grad(n.RMSNorm(), x, dy, np.ones(2))
    assert (decided.uncertified, left.uncertified) == (0, 1)
    assert np.array_equal(decided.dweight, left.dweight)


X = np.ones((2, 4))
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"dy": X[:1]}, r"dy has shape \(1, 4\), but should have that of x, \(2, 4\)"),
    ({"dy": X.astype(int)}, r"dy: dtype=dtype\('int64'\), but should be one of"),
    ({"dy": X, "weight": np.ones(3)}, r"weight has 3 elements"),
    ({"dy": X, "dresidual": X}, r"dresidual is given, but residual=None has no second output"),
    ({"dy": X, "residual": X, "dresidual": X[0], "contract": STORED}, r"dresidual has shape \(4,\), but should have that of x"),
    ({"dy": X, "dtype": "int8"}, r"dtype='int8', but should be one of"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_refuses_what_does_not_fit(arguments: dict[str, Any], message: str) -> None:
    """Arguments that do not fit raise ValueError that names the value and what was expected."""
    with pytest.raises(ValueError, match=message):
        reference_grad(n.LayerNorm(), X, **arguments)


@pytest.mark.parametrize("numba", ["0", "1"])
def test_sums_of_zero_are_positive(monkeypatch: pytest.MonkeyPatch, numba: str) -> None:
    """Mirrored rows cancel to +0, and so does what underflows, whichever loops add up."""
    monkeypatch.setenv("NORMCHECK_NUMBA", numba)
    rng = np.random.default_rng(0)
    x, dy = (rng.normal(size=(5, 16)).astype(np.float16) for _ in range(2))
    mirrored = reference_grad(n.LayerNorm(), np.vstack([x, x]), np.vstack([dy, -dy]), np.ones(16, np.float16))
    assert mirrored.dweight is not None
    assert not mirrored.dweight.view(np.uint16).any()
    tiny = np.array([[1.0], [-1.0], [-(2.0**-60)]])
    under = reference_grad(n.LayerNorm(), np.ones((3, 1)), tiny, None, np.zeros(1, np.float16))
    assert under.dbias is not None
    assert not under.dbias.view(np.uint16).any()


@pytest.mark.parametrize("numba", ["0", "1"])
@pytest.mark.parametrize(
    ("row", "at", "expected"),
    [
        ([1.4, -1.3, 4.1], 0, np.inf),  # the mean lies 7e-17 below the element
        ([-6.2, -9.5, 0.0, -9.1], 0, -np.inf),
        ([1.0, 2.0, 3.0], 1, np.nan),  # inf times exactly nothing
        ([1.0, 2.0, 3.0], 0, -np.inf),
    ],
)
def test_an_infinite_dy_meets_the_exact_sign(
    monkeypatch: pytest.MonkeyPatch, numba: str, row: list[float], at: int, expected: float
) -> None:
    """The gradient of the weight is an infinity of the exact sign of n, however near the element lies to the mean."""
    monkeypatch.setenv("NORMCHECK_NUMBA", numba)
    dy = np.zeros((1, len(row)))
    dy[0, at] = np.inf
    found = reference_grad(n.LayerNorm(), np.array([row]), dy, np.ones(len(row)))
    assert found.dweight is not None
    assert np.array_equal(found.dweight[at], expected, equal_nan=True)
    assert found.uncertified == 0


@pytest.mark.parametrize(
    ("norm", "shape", "parameters"),
    [
        (n.LayerNorm(), (4, 0), 0),
        (n.RMSNorm(), (0,), 0),
        (n.GroupNorm(1), (2, 0, 3), 0),
        (n.LayerNorm(), (0, 4), 4),
        (n.BatchNorm(), (0, 4), 4),
    ],
)
def test_nothing_has_gradients_of_zero(norm: n.Norm, shape: tuple[int, ...], parameters: int) -> None:
    """Empty rows and empty batches give an empty dx, and zeros for the parameters that there are."""
    nothing = np.zeros(shape, np.float32)
    found = reference_grad(norm, nothing, nothing, np.ones(parameters, np.float32))
    assert found.dx.shape == shape
    assert found.dweight is not None
    assert found.dweight.tolist() == [0.0] * parameters
