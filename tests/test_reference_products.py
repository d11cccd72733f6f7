"""Jacobian- and Hessian-vector products against differences in 60 digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from normcheck import norms as n
from normcheck.formats import Array
from normcheck.reference import reference_grad
from normcheck.reference.products import reference_hvp, reference_jvp

mpmath = pytest.importorskip("mpmath", reason="mpmath is missing: pip install normcheck[test]")
NORMS = [n.LayerNorm(), n.LayerNorm(ddof=1), n.RMSNorm(), n.L2Norm(), n.PartialRMSNorm(fraction=0.4)]


def normal(seed: int, *shape: int) -> Array:
    """Normal values."""
    return np.random.default_rng(seed).normal(size=shape)


def values(s: n.Standardization, x: list[Any]) -> list[Any]:
    """The standardization of a row in mpmath."""
    mean = mpmath.fsum(x) / len(x) if s.center else mpmath.mpf(0)
    c = [v - mean for v in x]
    spread, eps = mpmath.fsum(v * v for v in c[: s.count(len(x))]) / s.divisor(len(x)), mpmath.mpf(s.eps)
    scale = {
        "inside": lambda: mpmath.sqrt(spread + eps),
        "outside": lambda: mpmath.sqrt(spread) + eps,
        "max": lambda: max(mpmath.sqrt(spread), eps),
        "max_inside": lambda: mpmath.sqrt(max(spread, eps)),
        "none": lambda: mpmath.sqrt(spread),
    }[s.placement]()
    return [v / scale for v in c]


def along(s: n.Standardization, x: Array, direction: Array, step: Any) -> list[Any]:
    """The standardization at x + step * direction."""
    return values(s, [mpmath.mpf(a) + step * mpmath.mpf(b) for a, b in zip(x, direction, strict=True)])


@pytest.mark.parametrize("eps", [1e-5, 0.9, 1.5])
@pytest.mark.parametrize("placement", n.PLACEMENTS)
@pytest.mark.parametrize("norm", NORMS, ids=lambda v: v.name)
def test_jvp_is_the_directional_derivative(norm: n.Norm, placement: str, eps: float) -> None:
    """The change of w n along the tangent, to 13 digits of its difference quotient in 60."""
    changed = type(norm)(**{**vars(norm), "eps": eps, "eps_placement": placement})
    x, tangent, weight = normal(0, 7), normal(1, 7), normal(2, 7)
    with mpmath.workdps(60):
        h = mpmath.mpf(10) ** -25
        up, down = (along(changed.standardization, x, tangent, sign * h) for sign in (1, -1))
        expected = [float(w * (a - b) / (2 * h)) for w, a, b in zip(weight, up, down, strict=True)]
    np.testing.assert_allclose(reference_jvp(changed, x, tangent, weight), expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("eps", [1e-5, 0.9, 1.5])
@pytest.mark.parametrize("placement", n.PLACEMENTS)
@pytest.mark.parametrize("norm", NORMS, ids=lambda v: v.name)
def test_hvp_is_the_second_derivative(norm: n.Norm, placement: str, eps: float) -> None:
    """Its component along e_j is the mixed second difference of sum(dy w n) along the tangent and e_j."""
    changed = type(norm)(**{**vars(norm), "eps": eps, "eps_placement": placement})
    x, dy, tangent, weight = (normal(seed, 5) for seed in range(4))
    expected = []
    with mpmath.workdps(60):
        h = mpmath.mpf(10) ** -15
        for j in range(5):
            total = mpmath.mpf(0)
            for first, second in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
                moved = [
                    mpmath.mpf(v) + h * (first * mpmath.mpf(t) + second * (i == j))
                    for i, (v, t) in enumerate(zip(x, tangent, strict=True))
                ]
                n_moved = values(changed.standardization, moved)
                total += first * second * mpmath.fsum(mpmath.mpf(a) * b * v for a, b, v in zip(dy, weight, n_moved, strict=True))
            expected.append(float(total / (4 * h * h)))
    np.testing.assert_allclose(reference_hvp(changed, x, dy, tangent, weight), expected, rtol=1e-12, atol=1e-13)


def test_layer_norm_hessian_has_its_closed_form() -> None:
    """-r^2 (g' q_t + t' q_g + n(mean(g't') - 3 q_g q_t)) for eps inside the root."""
    x, g, t = normal(0, 9), normal(1, 9), normal(2, 9)
    r = 1 / np.sqrt(x.var() + 1e-5)
    v, g_, t_ = (x - x.mean()) * r, g - g.mean(), t - t.mean()
    q_g, q_t = (g * v).mean(), (t * v).mean()
    expected = -(r**2) * (g_ * q_t + t_ * q_g + v * ((g_ * t_).mean() - 3 * q_g * q_t))
    np.testing.assert_allclose(reference_hvp(n.LayerNorm(), x, g, t), expected, rtol=1e-12, atol=1e-14)


def test_products_are_linear_and_symmetric() -> None:
    """J is symmetric for norms with a whole statistic, so jvp and dx agree where there is no weight; H is symmetric always."""
    x, dy, t, s = (normal(seed, 6) for seed in range(4))
    for norm in NORMS[:4]:
        np.testing.assert_allclose(reference_jvp(norm, x, dy), reference_grad(norm, x, dy).dx, rtol=1e-15, atol=1e-16)
    for norm in NORMS:
        assert np.isclose(reference_hvp(norm, x, dy, t) @ s, reference_hvp(norm, x, dy, s) @ t, rtol=1e-12)


def test_evaluation_is_linear() -> None:
    """With given statistics the derivative is w t/S and the second derivative 0."""
    x, t, dy = (normal(seed, 4, 3) for seed in range(3))
    given = {"running_mean": normal(5, 3), "running_var": normal(6, 3) ** 2, "training": False}
    expected = t / np.sqrt(given["running_var"] + 1e-5)
    np.testing.assert_allclose(reference_jvp(n.BatchNorm(), x, t, **given), expected, rtol=4e-16)
    assert np.array_equal(reference_hvp(n.BatchNorm(), x, dy, t, **given), np.zeros((4, 3)))


def test_special_rows_are_nan() -> None:
    """NaN or Inf anywhere in the row, S = 0, and the missing second derivative of a constant row with eps outside."""
    x, t = np.array([[1.0, 2.0, np.inf], [1.0, 1.0, 1.0], [1.0, 2.0, 4.0]]), np.ones((3, 3))
    assert np.isnan(reference_jvp(n.LayerNorm(), x, t)).all(axis=1).tolist() == [True, False, False]
    assert np.isnan(reference_jvp(n.LayerNorm(eps=0.0), x, t)).all(axis=1).tolist() == [True, True, False]
    outside = n.LayerNorm(eps_placement="outside")
    assert np.isnan(reference_hvp(outside, x, t, t)).all(axis=1).tolist() == [True, True, False]
    assert np.array_equal(reference_hvp(n.LayerNorm(), x, t, t)[1], np.zeros(3))


def test_shapes_are_checked() -> None:
    """A tangent of another shape is refused."""
    with pytest.raises(ValueError, match=r"tangent has shape \(2,\), but should have that of x, \(3,\)"):
        reference_jvp(n.RMSNorm(), np.ones(3), np.ones(2))
