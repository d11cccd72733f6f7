"""The assert helpers, held against sound norms, against the zoo, and against what cannot be judged."""

from __future__ import annotations

import inspect
import itertools
import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import normcheck as nc
from normcheck.checks import terms
from normcheck.checks.base import Context
from normcheck.checks.gradient_cases import gradient_case, slopes
from normcheck.faults import faults, sound
from normcheck.formats import FORMATS
from normcheck.implementations import Implementation
from normcheck.testing import arrays, assert_norm, assert_norm_grad, tolerance

torch = pytest.importorskip("torch")

LAYER_NORM = nc.LayerNorm(eps=1e-5)
RMS_NORM = nc.RMSNorm(eps=1e-6)
DOCUMENT = Path(__file__).parents[1] / "docs" / "testing.md"


def inputs(dtype: Any = None, shape: tuple[int, ...] = (4, 48)) -> tuple[Any, Any, Any]:
    """x, weight and bias of torch, normal."""
    generator = torch.Generator().manual_seed(0)
    sizes = (shape, shape[-1:], shape[-1:])
    x, weight, bias = (torch.randn(size, generator=generator).to(dtype or torch.float32) for size in sizes)
    return x, weight, bias


def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    """Torch's own."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_sound_results_pass_in_every_framework(dtype: str) -> None:
    """A tensor and the numpy array of its values are judged alike."""
    x, weight, bias = inputs(getattr(torch, dtype))
    y = layer_norm(x, weight, bias)
    assert_norm(y, x, LAYER_NORM, weight, bias)
    numpy = [t.double().numpy().astype(FORMATS[dtype].dtype) for t in (y, x, weight, bias)]
    assert_norm(numpy[0], numpy[1], LAYER_NORM, numpy[2], numpy[3])


def test_a_wrong_element_is_told_with_its_tolerance() -> None:
    """The message has the house grammar, the element's place in the array, its row and the terms of the tolerance."""
    x, weight, bias = inputs(shape=(2, 3, 48))
    y = layer_norm(x, weight, bias)
    y[1, 2, 7] += 0.125
    with pytest.raises(AssertionError) as caught:
        assert_norm(y, x, LAYER_NORM, weight, bias)
    text = str(caught.value)
    assert re.match(r"y\[1, 2, 7\]=\S+, but should be \S+ within \S+ \[x: float32\[2, 3, 48\], weight: float32, bias\]\n", text)
    assert "1 of 288 elements are beyond their tolerance; here the error is 0.125" in text
    assert re.search(r"row 5: mean \S+, standard deviation \S+, LayerNorm\(eps=1e-05\) divides by \S+", text)
    assert re.search(r"    \S+  rounding to float32", text)


@pytest.mark.parametrize(
    ("norm", "shape", "axis"),
    [(LAYER_NORM, (3, 16), 1), (nc.GroupNorm(2), (2, 4, 5), 1), (nc.InstanceNorm(), (2, 9, 3), -1), (nc.BatchNorm(), (6, 3), 1)],
)
def test_terms_add_up_to_the_tolerance(norm: nc.Norm, shape: tuple[int, ...], axis: int) -> None:
    """Nothing of the tolerance is left unexplained, with and without a cast before the weight."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float16)
    size = norm.parameter_size(norm.fold(shape, axis))
    weight = rng.standard_normal(size).astype(np.float16)
    for cast in ("once", "before_weight"):
        case = arrays.case_of(norm, x, weight, contract=nc.Contract(cast=cast), channel_axis=axis)
        output = case.out_format.round(case.exact)
        verdict = case.judge(output, terms.widest(case))
        for at in ((0, 0), (case.fold.rows - 1, case.fold.width - 1)):
            assert sum(terms.terms(case, output, at).values()) == pytest.approx(verdict.tolerance[at], rel=1e-9)


@pytest.mark.parametrize("contract", [nc.Contract(), nc.Contract(cast="before_weight"), nc.Contract(saved_stats="float16")])
@pytest.mark.parametrize("norm", [LAYER_NORM, RMS_NORM, nc.GroupNorm(2)])
def test_terms_add_up_to_the_tolerance_of_a_gradient(norm: nc.Norm, contract: nc.Contract) -> None:
    """For dx, dweight and dbias in every class nothing of the tolerance is left unexplained, and each has a name."""
    implementation = Implementation(torch.nn.functional.layer_norm, norm, contract, dtypes=("float16",))
    context = Context(implementation, "float16", "cpu", "quick")
    case = context.case("standard", context.shape(6, 16))
    gradient = gradient_case(context, case, slopes(context, case))
    for name, allowed in itertools.product(gradient.differentiated, ("tree", "sequential", "branches", "rows")):
        output = gradient.format_of(name).round(gradient.exact[name].hi)
        verdict = gradient.judge(name, output, allowed)
        at = (0, output.shape[1] - 1)
        found = terms.gradient_terms(gradient, name, output, at, allowed)
        assert sum(found.values()) == pytest.approx(verdict.tolerance[at], rel=1e-9)
        assert min(found.values()) > 0
        assert len(found) >= 2


def test_other_shape_or_dtype() -> None:
    """They are refused before any value is looked at."""
    x, weight, _ = inputs(torch.bfloat16)
    y = torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)
    with pytest.raises(AssertionError, match=r"shape=\(4, 47\), but should be \(4, 48\)"):
        assert_norm(y[:, 1:], x, RMS_NORM, weight)
    with pytest.raises(AssertionError, match="dtype=float32, but should be bfloat16"):
        assert_norm(y.float(), x, RMS_NORM, weight)
    with pytest.raises(AssertionError, match="dtype=bfloat16, but should be float32"):
        assert_norm(y, x, RMS_NORM, weight.float(), contract=nc.Contract(output="promote"))


def test_nan_for_a_number_and_a_number_for_nan() -> None:
    """Neither passes, wherever the bound cannot be used."""
    x, weight, bias = inputs()
    y = layer_norm(x, weight, bias)
    y[2, 3] = torch.nan
    with pytest.raises(AssertionError, match=r"y\[2, 3\]=nan, but should be"):
        assert_norm(y, x, LAYER_NORM, weight, bias)
    huge = x * 1e30
    with pytest.raises(AssertionError, match=r"y\[0, 0\]=nan, but should be"):
        assert_norm(torch.full_like(x, torch.nan), huge, LAYER_NORM, weight, bias)
    x[1, 1] = torch.inf
    assert_norm(layer_norm(x, weight, bias), x, LAYER_NORM, weight, bias)
    with pytest.raises(AssertionError, match=r"y\[1, 0\]=0.0, but should be nan"):
        assert_norm(torch.nan_to_num(layer_norm(x, weight, bias)), x, LAYER_NORM, weight, bias)


def test_what_proves_nothing_does_not_pass() -> None:
    """Where every tolerance is as large as the value, and where squares overflow, an output of zeros is no evidence."""
    x, weight, _ = inputs()
    flat = x * 0.02 + 1e5
    with pytest.raises(AssertionError, match=r"nothing can be told from this input: the tolerance is above \|y\|/10"):
        assert_norm(torch.zeros_like(flat), flat, LAYER_NORM)
    with pytest.raises(AssertionError, match="nothing can be told from this input: its squares leave the range of float32"):
        assert_norm(torch.zeros_like(x), x * 1e25, RMS_NORM, weight)


def test_rows_of_zeros() -> None:
    """They are judged: the bias, exactly, or a wrong value."""
    x, _, bias = inputs()
    zeros = torch.zeros_like(x)
    assert_norm(layer_norm(zeros, None, bias), zeros, LAYER_NORM, None, bias)
    assert_norm(zeros, zeros, RMS_NORM)
    with pytest.raises(AssertionError, match=r"but should be 0\.0 within"):
        assert_norm(zeros + 1e-3, zeros, RMS_NORM)


def test_flushed_subnormals_pass_unless_promised() -> None:
    """A zero for a subnormal output is no error of a kernel that promises nothing else."""
    x = torch.full((1, 8), 2.0**-140)
    y = torch.zeros_like(x)
    norm, whole = nc.RMSNorm(eps=1.0), nc.Contract(subnormals=True)
    assert_norm(torch.cat([y, y + 1]), torch.cat([x, x * 0 + 2.0**60]), norm)
    with pytest.raises(AssertionError, match="but should be"):
        assert_norm(torch.cat([y, y + 1]), torch.cat([x, x * 0 + 2.0**60]), norm, contract=whole)


def test_given_statistics() -> None:
    """A batch norm in evaluation is judged by its running statistics, in training by those of the batch."""
    x = torch.randn(6, 3, 5, generator=torch.Generator().manual_seed(0))
    mean, variance = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([1.0, 4.0, 0.25])
    norm = nc.BatchNorm(eps=1e-5)
    y = torch.nn.functional.batch_norm(x, mean, variance, eps=1e-5)
    assert_norm(y, x, norm, running_mean=mean, running_var=variance, training=False)
    with pytest.raises(AssertionError, match="but should be"):
        assert_norm(y, x, norm)
    with pytest.raises(ValueError, match="running_mean=None, but should be given where training=False"):
        assert_norm(y, x, norm, training=False)
    with pytest.raises(ValueError, match="running_var has 2 elements, but should have 3"):
        assert_norm(y, x, norm, running_mean=mean, running_var=variance[:2], training=False)


def test_residual() -> None:
    """The norm sees the sum, rounded as the contract says."""
    x, weight, _ = inputs(torch.bfloat16)
    residual = x.flip(0) * 3
    y = torch.nn.functional.rms_norm(x + residual, x.shape[-1:], weight, 1e-6)
    stored = nc.Contract(residual_rounding="storage")
    assert_norm(y, x, RMS_NORM, weight, residual=residual, contract=stored)
    with pytest.raises(AssertionError, match="but should be"):
        assert_norm(y, x, RMS_NORM, weight)
    with pytest.raises(ValueError, match=r"contract\.residual_rounding=None should then be"):
        assert_norm(y, x, RMS_NORM, weight, residual=residual)
    with pytest.raises(ValueError, match="residual has shape"):
        assert_norm(y, x, RMS_NORM, weight, residual=residual[:1], contract=stored)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1.0], RMS_NORM), TypeError, "x is a list, but should be an array of one of these: .*numpy.*torch"),
        ((torch.ones(2, 4, dtype=torch.int32), RMS_NORM), ValueError, "x: dtype='int32', but should be one of float64"),
        ((np.ma.masked_less(np.eye(4), 1), RMS_NORM), ValueError, "x has 12 masked elements, but should have none"),
        ((torch.ones(2, 4), RMS_NORM, torch.ones(3)), ValueError, "weight has 3 elements .*but should have 4"),
        ((torch.ones(2, 4), RMS_NORM, None, torch.ones(4)), ValueError, "bias is given, but should be None: RMSNorm has none"),
        ((torch.ones(2, 4), nc.LayerNorm(normalized_shape=(5,))), ValueError, "5"),
    ],
)
def test_arguments_that_do_not_fit(arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    """They are refused by name."""
    x, norm, *parameters = arguments
    with pytest.raises(error, match=message):
        assert_norm(x, x, norm, *parameters)


def test_statistics_for_a_norm_that_has_none() -> None:
    """They are refused."""
    x = torch.ones(2, 4)
    with pytest.raises(ValueError, match="running_mean is given, but RMSNorm keeps no running statistics"):
        assert_norm(x, x, RMS_NORM, running_mean=x[0])


def test_tolerance_is_what_decides() -> None:
    """An output at the exact value plus a little less than the tolerance passes, plus twice the tolerance fails."""
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((3, 32)).astype(np.float32), rng.standard_normal(32).astype(np.float32)
    allowed = tolerance(LAYER_NORM, x, weight)
    exact = nc.reference(LAYER_NORM, x, weight, dtype="float64")
    assert (allowed.shape, allowed.dtype) == (x.shape, np.float64)
    ulp = FORMATS["float32"].ulp(exact)
    assert_norm((exact + (allowed - ulp)).astype(np.float32), x, LAYER_NORM, weight)
    with pytest.raises(AssertionError, match="96 of 96 elements"):
        assert_norm((exact + 2 * allowed + ulp).astype(np.float32), x, LAYER_NORM, weight)


def test_tolerance_follows_the_input() -> None:
    """It grows with mean over deviation, is that of float64 for float64, and is infinite where squares overflow."""
    x = np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32)
    assert (tolerance(LAYER_NORM, x) < tolerance(LAYER_NORM, x + np.float32(64)) / 8).all()
    assert (tolerance(LAYER_NORM, x.astype(np.float64)) < tolerance(LAYER_NORM, x) * 2.0**-28).all()
    assert np.isinf(tolerance(LAYER_NORM, x * np.float32(1e25))).all()


def test_tolerance_of_a_declared_height() -> None:
    """A contract that names the height of its sums is held to it."""
    x = np.random.default_rng(0).standard_normal((1, 4096)).astype(np.float32)
    assert (tolerance(RMS_NORM, x, contract=nc.Contract(accumulation=12)) < tolerance(RMS_NORM, x)).all()


def backward(norm: Callable[..., Any], x: Any, weight: Any, bias: Any, dy: Any) -> tuple[Any, Any, Any]:
    """The gradients by torch's tape."""
    leaves = [t.detach().clone().requires_grad_() for t in (x, weight, bias)]
    norm(*leaves).backward(dy)
    return tuple(leaf.grad for leaf in leaves)  # type: ignore[return-value]


def composed(x: Any, weight: Any, bias: Any) -> Any:
    """A layer norm in elementary operations, in float32 or better; torch's own sums bfloat16 gradients in bfloat16."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    centred = wide - wide.mean(-1, keepdim=True)
    return (centred * (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight + bias).to(x.dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_gradients(dtype: str) -> None:
    """Sound ones pass; each is told by name if it is wrong, missing or of another form."""
    x, weight, bias = inputs(getattr(torch, dtype))
    dy = x.flip(1).roll(1, 0)
    dx, dweight, dbias = backward(composed, x, weight, bias, dy)
    assert_norm_grad(dx, x, dy, LAYER_NORM, weight, bias, dweight=dweight, dbias=dbias)
    assert_norm_grad(None, x, dy, LAYER_NORM, weight, bias, dbias=dbias)
    with pytest.raises(AssertionError, match=r"dx\[\d, \d+\]=\S+, but should be \S+ within \S+ \[x: "):
        assert_norm_grad(dx * 2, x, dy, LAYER_NORM, weight, bias)
    with pytest.raises(AssertionError, match=r"dweight\[\d+\]=\S+, but should be"):
        assert_norm_grad(dx, x, dy, LAYER_NORM, weight, bias, dweight=dweight + 1)
    with pytest.raises(AssertionError, match="shape of dbias="):
        assert_norm_grad(dx, x, dy, LAYER_NORM, weight, bias, dbias=dbias[:-1])


def test_gradients_that_cannot_be_judged() -> None:
    """There must be one, its parameter, and a slope of the output's shape."""
    x, weight, bias = inputs()
    with pytest.raises(ValueError, match="dx=None, but should be a gradient"):
        assert_norm_grad(None, x, x, LAYER_NORM, weight, bias)
    with pytest.raises(ValueError, match="dweight is given, but weight=None"):
        assert_norm_grad(x, x, x, LAYER_NORM, dweight=weight)
    with pytest.raises(ValueError, match=r"dy has shape \(1, 48\), but should have that of x"):
        assert_norm_grad(x, x, x[:1], LAYER_NORM)


def test_helpers_show_no_frame_of_their_own() -> None:
    """Pytest hides them, so that the failing line is the user's."""
    for helper in (assert_norm, assert_norm_grad):
        assert "__tracebackhide__ = True" in inspect.getsource(helper)


def test_values_of_half_precision_are_read_exactly() -> None:
    """bfloat16 of torch and of ml_dtypes are the same numbers."""
    values = np.array([1.0, 1.0078125, -3.0], ml_dtypes.bfloat16)
    read = arrays.read("x", torch.tensor([1.0, 1.0078125, -3.0], dtype=torch.bfloat16))
    assert (read.dtype, read.values.tolist()) == ("bfloat16", arrays.read("x", values).values.tolist())


def document(implementation: Implementation, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The tests of the document, run on this code."""
    blocks = re.findall(r"(?ms)^```python\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"))
    kernels = types.ModuleType("kernels")
    kernels.layer_norm = as_called(implementation)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kernels", kernels)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)  # noqa: S102 (our own document)
    return names


def as_called(implementation: Implementation) -> Callable[..., Any]:
    """Code of the zoo as ``layer_norm(x, weight, bias)``."""

    def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
        arrays = {"x": x, "weight": weight, "bias": bias}
        passed = [arrays.get(name, name) if isinstance(name, str) else name for name in implementation.passes]
        settings = [implementation.setting(p, x.shape) if isinstance(p, str) else p for p in passed]
        assert implementation.call is not None
        return implementation.call(*settings)

    return layer_norm


def claims_layer_norm(implementation: Implementation) -> bool:
    """Whether it is a plain function of torch that claims what the document's test is about."""
    plain = implementation.call is not None and implementation.framework == "torch" and not implementation.residual
    usual = implementation.contract == nc.Contract(accumulation=implementation.contract.accumulation)
    return plain and usual and implementation.norm == LAYER_NORM and implementation.returns is None and implementation.affine


def verdicts(implementation: Implementation, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Whether each case of the document's test fails, in the dtypes that the code takes."""
    names = document(implementation, monkeypatch)
    for kind, width, dtype in itertools.product(names["KINDS"], (33, 2049), implementation.dtypes):
        if implementation.refuses((8, width)) is None:
            try:
                names["test_layer_norm"](kind, width, getattr(torch, dtype))
                yield False
            except AssertionError as error:
                # nothing can be told of 16-bit rows with a mean of 300 and a spread of 1
                yield "nothing can be told" not in str(error)


SOUND = [one for one in sound() if claims_layer_norm(one)]
FAULTY = [
    fault.implementation
    for fault in faults()
    if claims_layer_norm(fault.implementation)
    and "accuracy" in fault.expected
    and fault.profile == "quick"
    and fault.implementation.layouts == ("contiguous",)
    and "float32" in fault.dtypes
]


@pytest.mark.parametrize("implementation", FAULTY, ids=lambda one: one.name)
def test_a_kernel_test_catches_forward_faults(implementation: Implementation, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of the document fails for every faulty LayerNorm whose fault shows in one call with contiguous arrays."""
    assert any(verdicts(implementation, monkeypatch))


@pytest.mark.parametrize("implementation", SOUND, ids=lambda one: one.name)
def test_a_kernel_test_passes_sound_norms(implementation: Implementation, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of the document passes for every sound LayerNorm."""
    assert not any(verdicts(implementation, monkeypatch))


def test_gradients_of_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of gradients passes for torch's norm."""
    names = document(Implementation(layer_norm, LAYER_NORM), monkeypatch)
    names["test_layer_norm_gradients"]()
