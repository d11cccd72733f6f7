"""K18, K21 to K24: backward passes that are right for one call, one thread, contiguous input, and all gradients present."""

from __future__ import annotations

from typing import Any

from normcheck.contract import Contract
from normcheck.faults.catalogue import HALF, fault
from normcheck.faults.hand_written import Backward, Step, hand_written, over_rows, projected, sound_pull
from normcheck.faults.parts import (
    LAYER_NORM,
    RMS_NORM,
    Tensor,
    centred,
    finish,
    finish_channels,
    grouped,
    mean,
    mean_square,
    per_channel,
)
from normcheck.norms import GroupNorm

_CALLS = ("gradient-accumulation",)
_PLACES = ("gradient-layouts",)
_SIZES = ("gradient-linearity",)
_KEPT: dict[Any, Tensor] = {}


@fault("K21", "after linkedin/Liger-Kernel#376", norm=LAYER_NORM, expected=_CALLS)
def statistics_of_the_last_call(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The factor 1/S is kept in one buffer for each shape, so that a backward pass finds that of the last call."""
    import torch

    class Norm(torch.autograd.Function):  # type: ignore[misc]
        """One call."""

        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            c, variance = centred(x)
            r = (variance + eps).rsqrt()
            ctx.r = _KEPT.setdefault((r.shape, r.device), torch.empty_like(r)).copy_(r)
            ctx.save_for_backward(x, weight, bias)
            return finish(x, c * r, weight, bias)

        @staticmethod
        @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, ...]:
            x, weight, bias = ctx.saved_tensors
            dy, n = slope.float(), centred(x)[0] * ctx.r
            dx = projected(dy if weight is None else dy * weight.float(), n, ctx.r, True)
            sums = zip((over_rows(dy * n), over_rows(dy)), (weight, bias), strict=True)
            return dx.to(x.dtype), *(None if of is None else value.to(of.dtype) for value, of in sums)

    return Norm.apply(x, weight, bias)


def _saved_as_it_lies(step: Step) -> Backward:
    x = step.x
    if x.is_contiguous() or x.untyped_storage().nbytes() < x.numel() * x.element_size():
        return sound_pull(step)
    return sound_pull(step.with_n(x.as_strided((x.numel(),), (1,), 0).reshape(x.shape) * step.r))


@fault("K18", "after flagos-ai/FlagGems#1068", norm=RMS_NORM, expected=_PLACES)
def saved_input_taken_for_contiguous(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The forward kernel looks at strides, and the backward kernel reads what was saved as if it were contiguous."""
    return hand_written(_saved_as_it_lies, x, weight, None, eps, center=False)


@fault("K18", "after pytorch/pytorch#82493", norm=GroupNorm(2), expected=_PLACES)
def mean_forgotten_where_channels_come_last(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Tensor:
    """The backward kernel for channels-last memory does not subtract the mean of g."""
    import torch

    class Norm(torch.autograd.Function):  # type: ignore[misc]
        """One call."""

        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            c, variance = centred(grouped(x, num_groups))
            r = (variance + eps).rsqrt()
            ctx.save_for_backward(x, weight, bias, c, r)
            return finish_channels(x, (c * r).reshape(x.shape), weight, bias)

        @staticmethod
        @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, ...]:
            x, weight, bias, c, r = ctx.saved_tensors
            dy, n = slope.float(), c * r
            g = grouped(dy if weight is None else dy * per_channel(weight.float(), x), num_groups)
            dx = r * ((g - mean(g) if x.is_contiguous() else g) - n * mean(g * n))
            axes = (0, *range(2, x.dim()))
            sums = zip(((dy * n.reshape(x.shape)).sum(axes), dy.sum(axes)), (weight, bias), strict=True)
            return dx.reshape(x.shape).to(x.dtype), *(None if of is None else value.to(of.dtype) for value, of in sums)

    return Norm.apply(x, weight, bias)


def _nothing_for_zeros(step: Step) -> Backward:
    return sound_pull(step) if bool(step.dy.any()) else Backward(None, None, None)


@fault("K24", "after pytorch/pytorch#175754", norm=RMS_NORM, expected=_SIZES)
def no_gradient_for_a_gradient_of_zeros(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Where dy is zero everywhere the backward pass returns early, with no gradients at all."""
    return hand_written(_nothing_for_zeros, x, weight, None, eps, center=False)


def _masked_rows_left(step: Step) -> Backward:
    right = sound_pull(step)
    masked = (step.dy == 0).all(-1, keepdim=True)
    # what an allocator hands out holds anything
    return right._replace(dx=right.dx.where(~masked, right.dx * 0 + 7))


@fault("K22", "after tenstorrent/tt-metal#53204", norm=LAYER_NORM, expected=_SIZES)
def rows_without_gradient_left_unwritten(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Rows whose dy is zero are skipped, and their dx is what its memory held."""
    return hand_written(_masked_rows_left, x, weight, bias, eps)


def _lost_in_threads(step: Step) -> Backward:
    import torch

    right, threads = sound_pull(step), torch.get_num_threads()
    terms = (step.dy * step.n).reshape(-1, step.dy.shape[-1])
    whole = len(terms) // threads * threads
    return right._replace(dweight=terms[:whole].sum(0)) if whole else right


@fault("K23", "after karpathy/llm.c#428", norm=LAYER_NORM, expected=("gradient-shapes",))
def weight_gradient_of_whole_shares(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Each thread sums rows // threads rows of the weight's gradient, and nobody those that are left."""
    return hand_written(_lost_in_threads, x, weight, bias, eps)


def _through_16_bits(step: Step) -> Backward:
    right = sound_pull(step)
    return right._replace(dweight=right.dweight.to(step.dtype).float())


@fault("K23", "after NVIDIA/TransformerEngine#371", norm=RMS_NORM, dtypes=HALF, expected=("mixed-dtypes",))
def weight_gradient_in_the_dtype_of_x(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The gradient of a float32 weight goes through the 16 bits of x."""
    return hand_written(_through_16_bits, x, weight, None, eps, center=False)


@fault(
    "K21",
    "after linkedin/Liger-Kernel#376",
    norm=RMS_NORM,
    contract=Contract(residual_rounding="storage"),
    residual=True,
    expected=("gradient-subsets",),
)
def residual_without_gradient_where_y_is_unused(x: Tensor, weight: Tensor, residual: Tensor, eps: float) -> Tensor:
    """Where nobody looks at y the backward pass returns early, and what flows through the residual is lost."""
    import torch

    class Norm(torch.autograd.Function):  # type: ignore[misc]
        """One call."""

        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
            ctx.set_materialize_grads(False)
            total = x if residual is None else x + residual
            wide, square = mean_square(total)
            ctx.r, ctx.has = (square + eps).rsqrt(), residual is not None
            ctx.save_for_backward(wide * ctx.r, weight)
            return finish(x, wide * ctx.r, weight), total.clone()

        @staticmethod
        @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, slope: Tensor, besides: Tensor) -> tuple[Tensor, ...]:
            if slope is None:
                return None, None, None
            n, weight = ctx.saved_tensors
            dy = slope.float()
            dx = projected(dy if weight is None else dy * weight.float(), n, ctx.r, False)
            dx = (dx if besides is None else dx + besides.float()).to(slope.dtype)
            return dx, None if weight is None else over_rows(dy * n).to(weight.dtype), dx if ctx.has else None

    return Norm.apply(x, weight, residual)
