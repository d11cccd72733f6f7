"""Checks of gradients: each fails on a backward pass that is broken in its way, and passes sound ones."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from normcheck import BatchNorm, Contract, GroupNorm, Implementation, LayerNorm, Norm, RMSNorm
from normcheck.checks import Context, checks, run_check
from normcheck.checks.gradient_cases import gradient_case, slopes
from normcheck.checks.second_order import second_order
from normcheck.faults import faults, sound
from normcheck.implementations import implementations
from normcheck.norms import EpsPlacement, PartialRMSNorm
from normcheck.results import Outcome, Result

torch = pytest.importorskip("torch")

FAULTS = {fault.name: fault for fault in faults()}
SOUND = {norm.name: norm for norm in sound()}
TORCH = {one.name: one for one in implementations("torch")}
CHECKS = (
    "gradient-flow",
    "gradient-accumulation",
    "gradient-layouts",
    "double-backward",
    "input-gradient",
    "parameter-gradients",
    "many-row-gradients",
    "zero-weight-gradients",
    "gradient-identities",
    "affine-gradients",
)
BITES = (
    ("result-without-history", "gradient-flow", "backward raised RuntimeError: element 0 .* but should give gradients"),
    ("contiguous-input-without-history", "gradient-flow", r"^dx=None, but should be an array of shape \(6, 64\)"),
    ("weight-without-gradient", "gradient-flow", r"^dweight=None, but should be an array of shape \(64,\)"),
    ("weight-gradient-per-row", "gradient-flow", r"^shape of dweight=\(6, 64\), but should be \(64,\)"),
    (
        "accumulation-ignored",
        "gradient-accumulation",
        r"^dweight\[.* after two backward passes, but should be .*, twice that of one",
    ),
    ("backward-in-the-memory-of-dy", "gradient-accumulation", r"^dy\[.* after the backward pass, but should be .* as before"),
    ("saved-statistics-without-history", "double-backward", r"^d\(dx\)/d\(x\)\[.* but should be .* within"),
    ("bias-forgotten-without-weight", "double-backward", r"^d\(dbias\)/d\(dy\)\[.* but should be .* weight=None\]"),
    ("weight-without-history-in-the-gradient", "double-backward", r"^d\(dx\)/d\(weight\)\[.* but should be"),
    ("variance-term-weighted-twice", "input-gradient", r"^dx\[\d+, \d+\]=.* but should be .* within"),
    ("backward-without-the-offset", "input-gradient", r"^dx\[.* but should be"),
    ("eps-left-out-of-the-projection", "input-gradient", r"^dx\[.* but should be"),
    ("gradient-averaged-over-rows", "parameter-gradients", r"^dweight\[\d+\]=.* but should be .* within"),
    ("bias-gradient-times-the-weight", "parameter-gradients", r"^dbias\[\d+\]=.* but should be"),
    ("last-partial-block-dropped", "many-row-gradients", r"^dweight\[.* but should be .*\[257, 8\].*dy: ones"),
    ("standardized-from-the-output", "zero-weight-gradients", r"^dx\[.*=nan, but should be .* weights are 0, 1e-6, -1 and 1"),
    ("standardized-from-the-output-by-a-clamped-weight", "zero-weight-gradients", r"^dx\[.* but should be"),
    (
        "backward-asks-the-absent-weight",
        "affine-gradients",
        r"^backward raised AttributeError.* but should give gradients \[weight=None\]",
    ),
    ("parameters-learn-only-together", "affine-gradients", r"^dweight=None, but should be an array of shape \(16,\)"),
    ("absent-weight-as-zeros-in-the-backward-pass", "affine-gradients", r"^dx\[.*=0.0, but should be .*; weight=None"),
    ("mean-of-the-gradient-subtracted-twice", "gradient-identities", r"^sum\(dx\) of row \d+=.* but should be 0.0 within"),
    ("last-tile-of-the-projection", "gradient-identities", r"^<dx, x> of row \d+=.* but should be .* within"),
)
WARNINGS = ("folded-apply", "t5")


def run(implementation: Implementation, check: str, dtype: str = "float32") -> list[Result]:
    """The results of a check in the quick profile."""
    return run_check(checks()[check], Context(implementation, dtype, profile="quick"))


def outcomes(results: list[Result]) -> set[Outcome]:
    """Which there are."""
    return {result.outcome for result in results}


@pytest.mark.parametrize(("name", "check", "message"), BITES)
def test_fault_is_found(name: str, check: str, message: str) -> None:
    """The check fails on the backward pass that has the fault, and says what came and what should have come."""
    found = [result for result in run(FAULTS[name].implementation, check) if result.outcome is Outcome.FAILED]
    assert any(re.search(message, result.message) for result in found), [result.message for result in found]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["parameter-gradients-summed-in-storage", "partial-sums-kept-in-storage"])
def test_sums_in_storage_are_found_over_many_rows(name: str, dtype: str) -> None:
    """A 16-bit accumulator of the weight's gradient fails where many rows of one sign are added."""
    found = run(FAULTS[name].implementation, "many-row-gradients", dtype)
    assert any(r.outcome is Outcome.FAILED and r.shape[0] > 8192 for r in found)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    "name", ["hand-written-backward", "folded-backward", "numpy-with-a-backward-function", "gemma-with-a-hand-written-backward"]
)
def test_sound_backward_passes(name: str, check: str, dtype: str) -> None:
    """Hand-written gradients in the forms of fused kernels, by autograd or a function, fail and warn nowhere."""
    assert outcomes(run(SOUND[name], check, dtype)) <= {Outcome.PASSED, Outcome.SKIPPED}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    "name", ["torch.nn.functional.rms_norm", "torch.nn.GroupNorm", "torch.nn.functional.batch_norm[eval]", "torch.nn.RMSNorm"]
)
def test_torch_in_float32_passes(name: str, check: str) -> None:
    """torch's kernels in float32 keep all bounds of first derivatives."""
    expected = {Outcome.PASSED, Outcome.SKIPPED} | ({Outcome.FAILED} if check == "double-backward" else set())
    assert outcomes(run(TORCH[name], check)) <= expected


@pytest.mark.parametrize("name", WARNINGS)
def test_several_casts_of_x_are_a_warning(name: str) -> None:
    """A gradient that autograd adds up in 16 bits from several casts of x warns, and says so."""
    found = [result for result in run(SOUND[name], "input-gradient", "bfloat16") if result.outcome is Outcome.WARNED]
    assert found
    assert any("x has several gradients, each rounded to storage" in result.message for result in found)


def test_sequential_contract_is_judged_as_such() -> None:
    """Running sums along rows pass where the contract says sequential."""
    norm = SOUND["sequential-sums-in-both-passes"]
    assert norm.contract.accumulation == "sequential"
    assert outcomes(run(norm, "input-gradient")) <= {Outcome.PASSED, Outcome.SKIPPED}


def test_code_that_refuses_second_derivatives_is_skipped() -> None:
    """Who raises for every second derivative is skipped, with what was raised."""
    (result,) = run(SOUND["differentiable-once"], "double-backward")
    assert result.outcome is Outcome.SKIPPED
    assert "second derivatives are refused: derivative of dx=RuntimeError: the backward pass cannot" in result.message


def test_second_derivatives_refused_for_some_parameters_only_fail() -> None:
    """Who has second derivatives with a weight and raises without one has forgotten a case."""

    def norm(x: Any, weight: Any, bias: Any) -> Any:
        y = torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias)
        return y if weight is not None else SOUND["differentiable-once"].target(x, weight, bias, 1e-5)

    found = run(Implementation(norm, LayerNorm(), name="partly"), "double-backward")
    refused = [result for result in found if "derivative of" in result.message]
    assert refused
    assert outcomes(refused) == {Outcome.FAILED}
    assert all("weight=None" in result.message for result in refused)


@pytest.mark.parametrize(
    ("grad", "check", "reason"),
    [
        (None, "input-gradient", "grad=None: gradients of mine are not judged; grad='autograd' (--autograd) asks for them"),
        ("autograd", "input-gradient", "numpy does not differentiate: give grad=backward"),
        (lambda inputs, grads: {}, "double-backward", "the backward pass is a function"),
    ],
)
def test_what_cannot_be_differentiated_is_skipped(grad: Any, check: str, reason: str) -> None:
    """The skip carries the reason."""
    norm = Implementation(lambda x, weight: x, RMSNorm(), name="mine", framework="numpy", grad=grad)
    (result,) = run(norm, check)
    assert (result.outcome, result.message) == (Outcome.SKIPPED, reason)


def test_wrong_dtype_of_a_gradient_is_found() -> None:
    """A backward function that returns float64 for float32 input fails."""

    def norm(x: Any, weight: Any) -> Any:
        return x * weight

    def grad(inputs: Any, grads: Any) -> dict[str, Any]:
        return {"x": (grads["y"] * inputs["weight"]).astype(np.float64), "weight": (grads["y"] * inputs["x"]).sum(0)}

    found = run(Implementation(norm, RMSNorm(), name="wide", framework="numpy", grad=grad), "gradient-flow")
    assert found[0].message.startswith("dtype of dx=float64, but should be float32")


def test_dy_that_is_read_by_the_strides_of_x_is_found() -> None:
    """A backward pass that walks dy as if it were contiguous fails on every other layout, of dy or of x, and names it."""

    class Strided(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any) -> Any:
            ctx.save_for_backward(x, weight)
            return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            x, weight = (saved.detach().requires_grad_() for saved in ctx.saved_tensors)
            if dy.stride(0) != 0:
                dy = dy.as_strided(x.shape, x.stride()).nan_to_num(0.0)
            with torch.enable_grad():
                y = torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)
            return torch.autograd.grad(y, (x, weight), dy)

    found = run(Implementation(lambda x, weight: Strided.apply(x, weight), RMSNorm(), name="strided"), "gradient-layouts")
    failed = {result.layout for result in found if result.outcome is Outcome.FAILED}
    assert failed == {"transposed", "strided", "sliced"}
    told = {result.message.partition("dy: ")[2].rstrip("]") for result in found if result.outcome is Outcome.FAILED}
    assert told == {"transposed", "strided", "sliced", "contiguous"}


def test_residual_gradients_reach_both_inputs() -> None:
    """Code that returns the sum as well gets the gradients of both outputs into x and residual; without the second it fails."""

    def norm(x: Any, weight: Any, residual: Any) -> Any:
        total = x + residual
        return torch.nn.functional.rms_norm(total, x.shape[-1:], weight, 1e-6), total

    def cut(x: Any, weight: Any, residual: Any) -> Any:
        y, total = norm(x, weight, residual)
        return y, total.detach() + 0 * y.sum()

    contract = Contract(residual_rounding="storage")
    good, bad = (
        Implementation(one, RMSNorm(), contract, name="fused", residual=True, arguments=("x", "weight", "residual"))
        for one in (norm, cut)
    )
    assert outcomes(run(good, "input-gradient")) == {Outcome.PASSED}
    failed = [result.message for result in run(bad, "input-gradient") if result.outcome is Outcome.FAILED]
    assert any(message.startswith("dx[") for message in failed)
    assert any(message.startswith("dresidual[") for message in failed)


def test_torch_sums_bfloat16_parameter_gradients_in_bfloat16() -> None:
    """torch's CPU LayerNorm adds 8193 ones to some hundreds: a true finding, here and wherever it is not mended."""
    found = run(TORCH["torch.nn.functional.layer_norm"], "many-row-gradients", "bfloat16")
    if outcomes(found) == {Outcome.PASSED}:
        pytest.skip("this torch sums in float32")
    failed = [result for result in found if result.message.startswith("dbias") and result.shape[0] == 8193]
    assert failed
    assert all(result.ratio is not None and result.ratio > 100 for result in failed)


def test_torch_saves_16_bit_statistics() -> None:
    """With bfloat16 parameters torch's LayerNorm misses the bound where the mean is large, with float32 ones it keeps it."""

    def norm(x: Any, weight: Any, bias: Any) -> Any:
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias)

    plain = run(TORCH["torch.nn.functional.layer_norm"], "input-gradient", "bfloat16")
    wide = Implementation(norm, LayerNorm(), name="wide", dtypes=("bfloat16",), weight_dtype="float32")
    assert {result.regime for result in plain if result.outcome is Outcome.FAILED} >= {"large-mean"}
    assert outcomes(run(wide, "input-gradient", "bfloat16")) <= {Outcome.PASSED, Outcome.SKIPPED}
    declared = Contract(accumulation="merge", saved_stats="bfloat16")
    honest = Implementation(norm, LayerNorm(), declared, name="honest", dtypes=("bfloat16",))
    assert outcomes(run(honest, "input-gradient", "bfloat16")) <= {Outcome.PASSED, Outcome.SKIPPED}


def test_torch_forgets_the_bias_without_a_weight() -> None:
    """torch's second derivative of LayerNorm with weight=None and a bias is 0 where it should be the direction."""
    failed = [r for r in run(TORCH["torch.nn.functional.layer_norm"], "double-backward") if r.outcome is Outcome.FAILED]
    if not failed and not torch.__version__.startswith("2.13."):
        pytest.skip("this torch has mended it")
    assert failed
    assert all("weight=None" in result.message and result.message.startswith("d(dbias)") for result in failed)


def test_torch_has_no_group_norm_with_a_bias_alone() -> None:
    """torch's group_norm without a weight and with a bias raises in its backward pass."""
    failed = [r for r in run(TORCH["torch.nn.functional.group_norm"], "affine-gradients") if r.outcome is Outcome.FAILED]
    if not failed and not torch.__version__.startswith("2.13."):
        pytest.skip("this torch has mended it")
    assert failed
    assert all(re.search(r"^backward raised RuntimeError.* \[weight=None\]", result.message) for result in failed)


def test_failure_has_a_witness_that_runs() -> None:
    """The snippet of a failing gradient shows what came and what should have come, and stops there."""
    found = [r for r in run(TORCH["torch.nn.functional.layer_norm"], "input-gradient", "bfloat16") if r.witness is not None]
    assert found
    witness = found[0].witness
    assert witness is not None
    assert witness.expected is not None
    assert witness.expected in witness.snippet
    scope: dict[str, Any] = {}
    with pytest.raises(AssertionError):
        exec(compile(witness.snippet, "<witness>", "exec"), scope)  # noqa: S102 - our own text
    assert scope["got"].hex() == witness.got


PLACEMENTS: tuple[tuple[Norm, tuple[int, ...]], ...] = (
    (LayerNorm(eps=0.1), (5, 9)),
    (LayerNorm(eps=0.1, ddof=1), (5, 9)),
    (LayerNorm(eps=0.1, eps_placement="outside"), (5, 9)),
    (LayerNorm(eps=0.01, eps_placement="max"), (5, 9)),
    (RMSNorm(eps=0.1), (5, 9)),
    (PartialRMSNorm(fraction=0.5, eps=0.1), (5, 9)),
    (GroupNorm(2, eps=0.1), (3, 4, 5)),
    (BatchNorm(eps=0.1), (7, 3)),
)


def composed(norm: Norm, x: Any, weight: Any, bias: Any) -> Any:
    """The norm in torch operations on float64."""
    fold = norm.fold(tuple(x.shape))
    rows = x.permute(fold.order).reshape(fold.rows, fold.width)
    std = norm.standardization
    c = rows - rows.mean(1, keepdim=True) if std.center else rows
    square = (c[:, : std.count(fold.width)] ** 2).sum(1, keepdim=True) / std.divisor(fold.width)
    placement: EpsPlacement = std.placement
    root = square.sqrt()
    scale = {"inside": (square + std.eps).sqrt(), "outside": root + std.eps, "max": root.clamp(min=std.eps)}[placement]
    back = (c / scale).reshape([fold.shape[axis] for axis in fold.order]).permute(tuple(np.argsort(fold.order)))
    if not norm.per_channel:
        return back * weight + (0 if bias is None else bias)
    place = (1, -1, *[1] * (x.dim() - 2))
    return back * weight.reshape(place) + bias.reshape(place)


@pytest.mark.parametrize(("norm", "shape"), PLACEMENTS, ids=lambda value: str(value))
def test_closed_form_of_the_second_derivative(norm: Norm, shape: tuple[int, ...]) -> None:
    """It agrees with automatic differentiation of the composed formula in float64, far within its own tolerance."""
    arguments = ("x", "weight", "bias") if norm.has_bias else ("x", "weight")
    context = Context(Implementation(lambda *a: a[0], norm, name="any", arguments=arguments), "float32")
    case = context.case("standard", shape)
    gradient = gradient_case(context, case, slopes(context, case))
    rng = np.random.default_rng(2)
    along = {name: rng.standard_normal(getattr(case.inputs, name).shape) for name in gradient.differentiated}
    leaves = [torch.tensor(getattr(case.inputs, name), requires_grad=True) for name in along]
    dy = torch.tensor(np.ascontiguousarray(case.fold.unfold(gradient.dy)), requires_grad=True)
    y = composed(norm, leaves[0], leaves[1], leaves[2] if norm.has_bias else None)
    first = torch.autograd.grad(y, leaves, dy, create_graph=True)
    second = torch.autograd.grad(first, [*leaves, dy], [torch.tensor(t) for t in along.values()], allow_unused=True)
    for (name, (exact, bound)), got in zip(second_order(gradient, along).items(), _ordered(second, along), strict=True):
        value = np.zeros(exact.shape) if got is None else got.numpy()
        value = case.fold.fold(value) if name in ("x", "y") else value.reshape(exact.shape)
        assert (np.abs(value - exact) <= 1e-6 * bound).all(), name


def _ordered(second: Any, along: Any) -> list[Any]:
    """x and dy first, then the parameters, as the closed form has them."""
    return [second[0], second[-1], *second[1 : len(along)]]
