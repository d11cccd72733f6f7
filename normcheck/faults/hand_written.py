"""A norm over the last axis whose backward pass is a function of its own, as fused kernels have it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from normcheck.faults.parts import Tensor, centred, finish, mean, mean_square


class Backward(NamedTuple):
    """Gradients in float32; None for one that the backward pass does not return."""

    dx: Tensor
    dweight: Tensor
    dbias: Tensor


@dataclass(frozen=True, eq=False)
class Step:
    """What a backward pass has at hand, widened to float32.

    Attributes
    ----------
    x, weight, bias, dy : of the forward pass and of its output's gradient; parameters may be None
    y, slope : output and its gradient as they are stored
    n, r : the standardized value and the factor 1/S
    leaf : the weight itself
    needs : whether x, weight and bias need a gradient
    center : whether a mean is subtracted
    """

    x: Tensor
    weight: Tensor
    bias: Tensor
    dy: Tensor
    y: Tensor
    slope: Tensor
    n: Tensor
    r: Tensor
    leaf: Tensor
    needs: tuple[bool, ...]
    center: bool

    @property
    def g(self) -> Tensor:
        """Gradient of n."""
        return self.dy if self.weight is None else self.dy * self.weight

    @property
    def dtype(self) -> Any:
        """Of storage."""
        return self.slope.dtype

    def constant(self) -> Step:
        """With n and r that have no history."""
        return replace(self, n=self.n.detach(), r=self.r.detach())

    def with_n(self, n: Tensor) -> Step:
        """With another standardized value."""
        return replace(self, n=n)


Pull = Callable[[Step], Backward]


def projected(g: Tensor, n: Tensor, r: Tensor, center: bool) -> Tensor:
    """dx = r*(g - mean(g) - n*mean(g*n)), without mean(g) where none is subtracted."""
    return r * ((g - mean(g) if center else g) - n * mean(g * n))


def over_rows(terms: Tensor) -> Tensor:
    """The sum over all axes but the last."""
    return terms.reshape(-1, terms.shape[-1]).sum(0)


def sound_pull(step: Step) -> Backward:
    """The gradients as they should be."""
    dx = projected(step.g, step.n, step.r, step.center)
    return Backward(dx, over_rows(step.dy * step.n), over_rows(step.dy))


def hand_written(pull: Pull, x: Tensor, weight: Tensor, bias: Tensor, eps: float, *, center: bool = True) -> Tensor:
    """The norm, differentiated by ``pull``."""
    import torch

    class Norm(torch.autograd.Function):  # type: ignore[misc]
        """One call."""

        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            n, _ = _standardized(x, eps, center)
            y = finish(x, n, weight, bias)
            ctx.save_for_backward(x, weight, bias, y)
            ctx.leaf = weight
            return y

        @staticmethod
        def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, ...]:
            x, weight, bias, y = ctx.saved_tensors
            n, r = _standardized(x, eps, center)
            wide, shift = (None if parameter is None else parameter.float() for parameter in (weight, bias))
            made = pull(Step(x.float(), wide, shift, slope.float(), y, slope, n, r, ctx.leaf, ctx.needs_input_grad, center))
            found = zip(made, (x, weight, bias), strict=True)
            return tuple(None if of is None or value is None else value.to(of.dtype) for value, of in found)

    return Norm.apply(x, weight, bias)


def _standardized(x: Tensor, eps: float, center: bool) -> tuple[Tensor, Tensor]:
    c, square = centred(x) if center else mean_square(x)
    r = (square + eps).rsqrt()
    return c * r, r
