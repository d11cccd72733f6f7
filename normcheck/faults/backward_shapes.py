"""K18, K22 to K24: backward passes that are right for the usual shapes and gradients, and wrong for others."""

from __future__ import annotations

from dataclasses import replace

from normcheck.faults.catalogue import fault
from normcheck.faults.hand_written import Backward, Step, hand_written, over_rows, projected, sound_pull
from normcheck.faults.parts import LAYER_NORM, RMS_NORM, Tensor, mean

_SHAPES = ("gradient-shapes",)
_SIZES = ("gradient-linearity",)
_SUBSETS = ("gradient-subsets",)
_PLACES = ("gradient-layouts",)


def _first_axis_only(step: Step) -> Backward:
    right = sound_pull(step)
    if step.dy.dim() < 3:
        return right
    return right._replace(dweight=over_rows(step.dy[0] * step.n[0]), dbias=over_rows(step.dy[0]))


@fault("K23", "after NVIDIA/TransformerEngine#435", norm=LAYER_NORM, expected=_SHAPES)
def parameter_gradients_of_the_first_sequence(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Of a batch of sequences the gradients of weight and bias are those of the first."""
    return hand_written(_first_axis_only, x, weight, bias, eps)


def _rank_four(step: Step) -> Backward:
    right = sound_pull(step)
    return right._replace(dx=step.r * (step.g - step.n * mean(step.g * step.n))) if step.dy.dim() == 4 else right


@fault("K22", "after tenstorrent/tt-metal#53204", norm=LAYER_NORM, expected=_SHAPES)
def mean_forgotten_with_four_axes(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The backward kernel for four axes does not subtract the mean of g."""
    return hand_written(_rank_four, x, weight, bias, eps)


def _last_columns(step: Step) -> Backward:
    right, width = sound_pull(step), step.dy.shape[-1]
    if width != 768:
        return right
    tile = (step.g * step.n)[..., :512].sum(-1, keepdim=True) / width
    return right._replace(dx=step.r * (step.g - step.n * tile))


@fault("K22", "after tenstorrent/tt-metal#34760", norm=RMS_NORM, expected=_SHAPES)
def half_a_block_more_than_one(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Of rows of 768, one block and a half, the projection is that of the first block."""
    return hand_written(_last_columns, x, weight, None, eps, center=False)


def _cut_parameters(step: Step) -> Backward:
    right = sound_pull(step)
    right.dweight[4500:] = 0
    return right


@fault("K23", "after NVIDIA/apex#1715", norm=RMS_NORM, expected=_SHAPES)
def parameters_beyond_the_shared_memory(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Gradients of the weights beyond the 4500th are left at zero."""
    return hand_written(_cut_parameters, x, weight, None, eps, center=False)


def _one_stage(step: Step) -> Backward:
    right = sound_pull(step)
    rows, width = step.dy.numel() // step.dy.shape[-1], step.dy.shape[-1]
    if rows <= 2048 or width < 64:
        return right
    dy, n = (part.reshape(rows, width)[:2048] for part in (step.dy, step.n))
    return right._replace(dweight=over_rows(dy * n), dbias=over_rows(dy))


@fault("K23", "after karpathy/llm.c#428", norm=LAYER_NORM, expected=_SHAPES)
def second_stage_of_the_sum_left_out(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """For wide rows the sums over rows are made in two stages of 2048, of which the first is returned."""
    return hand_written(_one_stage, x, weight, bias, eps)


def _clipped(step: Step) -> Backward:
    return sound_pull(replace(step, dy=step.dy.clamp(-64, 64)))


@fault("K22", "after NVIDIA/TransformerEngine#67", norm=LAYER_NORM, expected=_SIZES)
def gradient_clipped_inside(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """dy is clipped to -64..64, with a scaled loss in mind."""
    return hand_written(_clipped, x, weight, bias, eps)


def _flushed(step: Step) -> Backward:
    return sound_pull(replace(step, dy=step.dy.where(step.dy.abs() >= 2e-4, 0 * step.dy)))


@fault("K22", "after tenstorrent/tt-metal#53204", norm=RMS_NORM, expected=_SIZES)
def small_gradients_flushed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Elements of dy below 2e-4 are taken for noise."""
    return hand_written(_flushed, x, weight, None, eps, center=False)


def _tiny_batch(step: Step) -> Backward:
    right = sound_pull(step)
    return right._replace(dweight=right.dweight * 0) if float(step.dy.abs().max()) < 1e-3 else right


@fault("K23", "after EleutherAI/gpt-neox#1259", norm=LAYER_NORM, expected=_SIZES)
def step_skipped_where_the_gradient_is_small(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """A batch whose gradients are all below 1e-3 adds nothing to the gradient of the weight."""
    return hand_written(_tiny_batch, x, weight, bias, eps)


def _frozen_input(step: Step) -> Backward:
    right = sound_pull(step)
    return right if step.needs[0] else right._replace(dweight=right.dbias if step.bias is not None else right.dweight * 2)


@fault("K24", "after unslothai/unsloth#4533", norm=LAYER_NORM, expected=_SUBSETS)
def weight_gradient_behind_a_frozen_input(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Where x needs no gradient n is not made again, and the gradient of the weight is that of the bias."""
    return hand_written(_frozen_input, x, weight, bias, eps)


def _frozen_weight(step: Step) -> Backward:
    right = sound_pull(step)
    return right if step.needs[1] else right._replace(dx=projected(step.dy, step.n, step.r, step.center))


@fault("K24", "after unslothai/unsloth#4533", norm=RMS_NORM, expected=_SUBSETS)
def frozen_weight_taken_for_none(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Where the weight needs no gradient it is not saved, and dx is that for weights of 1."""
    return hand_written(_frozen_weight, x, weight, None, eps, center=False)


def _as_it_lies(step: Step) -> Backward:
    slope = step.slope
    if slope.is_contiguous():
        return sound_pull(step)
    # what lies from the first element on, and the first again and again where the storage ends
    flat = slope.as_strided((slope.untyped_storage().nbytes() // slope.element_size() - slope.storage_offset(),), (1,))
    taken = flat.repeat(-(-slope.numel() // len(flat)))[: slope.numel()].reshape(slope.shape).float()
    return sound_pull(replace(step, dy=taken))


@fault("K18", "flagos-ai/FlagGems#1068", norm=RMS_NORM, expected=_PLACES)
def gradient_taken_for_contiguous(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """dy is read as if it were contiguous, also where it is expanded or transposed."""
    return hand_written(_as_it_lies, x, weight, None, eps, center=False)


@fault("K18", "after pytorch/pytorch#82493", norm=LAYER_NORM, expected=_PLACES)
def expanded_gradient_counted_once(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Where dy is one sample for all, the sums over rows take it for a single row."""

    def pull(step: Step) -> Backward:
        right = sound_pull(step)
        if step.slope.stride(0) != 0 or len(step.slope) == 1:
            return right
        return right._replace(dweight=right.dweight / len(step.slope), dbias=right.dbias / len(step.slope))

    return hand_written(pull, x, weight, bias, eps)
