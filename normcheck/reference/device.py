"""The float64 level in torch, on the device where a tensor lives: only rows that the rounding test leaves open come to the host.

The heavy loops of `normcheck.reference.loops` are written once more on tensors, operation for operation, so that they give the
same bits; what is one number per row is computed on the host by the same code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from normcheck.contract import Contract
from normcheck.formats import Array, Format, format_of
from normcheck.norms import Norm
from normcheck.reference import forward
from normcheck.reference.arithmetic import U, height
from normcheck.reference.float64 import rounded0
from normcheck.reference.ladder import FORWARD
from normcheck.reference.loops import FAR, TINY, Centred
from normcheck.reference.places import fastest
from normcheck.reference.problem import row_blocks
from normcheck.reference.rungs import climb, new_counts

if TYPE_CHECKING:
    import torch

_BLOCK = 1 << 24


def reference_on_device(
    norm: Norm,
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None,
    training: bool = True,
    contract: Contract | None = None,
    dtype: Any = None,
    channel_axis: int = 1,
) -> torch.Tensor:
    """What `reference` returns, as a tensor on x's device, computed there but for the rows that need more than float64.

    Parameters are those of `reference`, as tensors. float64 results, and contracts with ``cast="before_weight"``, are computed on
    the host altogether.

    Raises
    ------
    ValueError : as `reference`, and for a device without float64 (Apple's mps)
    """
    import torch

    if x.device.type == "mps":
        raise ValueError("x is on device mps, which has no float64; move it to the cpu")
    shown = np.broadcast_to(np.zeros((), _format(x).dtype), tuple(x.shape))
    w, b, mean, var = (None if part is None else to_numpy(part) for part in (weight, bias, running_mean, running_var))
    call = forward.prepare(norm, shown, w, b, None, mean, var, training, contract, channel_axis)
    fmt = format_of(dtype) if dtype is not None else call.contract.output_format(call.x, call.weight)
    if fmt.p == 53 or call.contract.cast != "once":
        given: dict[str, Any] = {"running_mean": mean, "running_var": var, "training": training}
        options: dict[str, Any] = {"contract": contract, "dtype": dtype, "channel_axis": channel_axis}
        return to_tensor(forward.reference(norm, to_numpy(x), w, b, **given, **options)).to(x.device)
    rows = x.permute(*call.fold.order).reshape(call.fold.rows, call.fold.width)
    out = torch.empty(rows.shape, dtype=getattr(torch, fmt.name), device=x.device)
    for chosen in row_blocks(*call.problem.shape, _BLOCK) if x.numel() else ():
        out[chosen] = _round(rows[chosen], call, chosen, fmt)
    moved = out.reshape([call.fold.shape[axis] for axis in call.fold.order])
    return moved.permute(*np.argsort(call.fold.order).tolist())


def _round(rows: torch.Tensor, call: forward.Call, chosen: slice, fmt: Format) -> torch.Tensor:
    x = rows.double()
    value: torch.Tensor
    settled: torch.Tensor
    with np.errstate(all="ignore"):
        value, settled = cast(Any, rounded0)(call.problem.at(x, chosen), TensorLoops(x), fmt)
        open_rows = (~settled).any(dim=1).nonzero()[:, 0]
        if len(open_rows):
            index = open_rows.cpu().numpy()
            hard = call.problem.at(x[open_rows].cpu().numpy(), np.arange(chosen.start, chosen.stop)[index])
            value[open_rows] = x.new_tensor(climb(hard, FORWARD, fastest(hard.x.size), fmt, new_counts()))
    return value


class TensorLoops:
    """`Loops` on tensors like one given."""

    def __init__(self, like: torch.Tensor) -> None:
        self._like = like

    def _up(self, a: Array) -> torch.Tensor:
        return self._like.new_tensor(a)

    def centred(self, x: torch.Tensor) -> Centred:
        """Rows less their mean."""
        width = float(x.shape[1])
        mean = _tree_sum(x) / width
        c = x - mean[:, None]
        total = _tree_sum(c * c)
        reference, shift = mean * mean + total / width, mean.new_zeros(len(mean))
        far = (mean * mean > FAR * total / width).nonzero()[:, 0]
        if len(far):
            chosen = x[far]
            first = chosen[:, 0].where((chosen == chosen[:, :1]).all(dim=1), mean[far])
            again = chosen - first[:, None]
            shift[far] = _tree_sum(again) / width
            c[far] = again - shift[far][:, None]
            total[far] = _tree_sum(c[far] * c[far])
            reference[far] = total[far] / width + shift[far] * shift[far]
            mean[far] = first + shift[far]
        host = (part.cpu().numpy() for part in (total, reference, shift))
        return Centred(mean.cpu().numpy(), c, *host)

    def squares(self, x: torch.Tensor) -> Array:
        """Sums of squares of rows."""
        return to_numpy(_tree_sum(x * x))

    def less(self, x: torch.Tensor, mean: Array) -> torch.Tensor:
        """Rows less a given mean."""
        return x - self._up(mean)[:, None]

    def within(self, x: torch.Tensor, limit: float) -> npt.NDArray[Any]:
        """Rows whose elements are all 0 or of a modulus between 1/limit and limit."""
        a = x.abs()
        return to_numpy(((a <= limit) & ((a >= 1 / limit) | (a == 0.0))).all(dim=1))

    def rounded(
        self,
        c: torch.Tensor,
        reciprocal: Array,
        gain: Array,
        shift: Array,
        weight: Array | None,
        bias: Array | None,
        fmt: Format,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rounded values, and which of them are settled."""
        y = c * self._up(reciprocal)[:, None]
        err = y.abs() * self._up(gain)[:, None] + self._up(shift)[:, None]
        if weight is not None:
            w = self._up(weight)
            y = y * w
            err = err * w.abs() + TINY
        if bias is not None:
            y = y + self._up(bias)
            err = err + 1.01 * U * y.abs()
        wide = err + 1.01 * U * y.abs()
        value, lower, upper = (_rounded(part, fmt) for part in (y, y - wide, y + wide))
        settled = wide.isfinite() & (lower == upper)
        return value if fmt.has_inf else value.where(value.isfinite(), value * float("nan")), settled


def _tree_sum(x: torch.Tensor) -> torch.Tensor:
    width = x.shape[1]
    keep = 1 << (height(width) - 1) if width > 1 else 1
    total = x[:, :keep].clone()
    total[:, : width - keep] += x[:, keep:]
    while keep > 1:
        keep //= 2
        total = total[:, :keep] + total[:, keep:]
    return total[:, 0]


def _rounded(y: torch.Tensor, fmt: Format) -> torch.Tensor:
    """y rounded to the format, inf beyond its largest value."""
    import torch

    if fmt.p == 24:
        return y.float().double()
    a, drop = y.abs(), 53 - fmt.p
    anchor = 1.5 * 2.0**52 * fmt.min_subnormal
    bits = a.view(torch.int64)
    bits = ((bits + ((1 << (drop - 1)) - 1) + ((bits >> drop) & 1)) >> drop) << drop
    v = torch.where(a < fmt.min_normal, (a + anchor) - anchor, bits.view(torch.float64))
    return torch.where(v > fmt.max, float("inf"), v).copysign(y)


def _format(x: torch.Tensor) -> Format:
    return format_of(str(x.dtype).removeprefix("torch."))


def to_numpy(x: torch.Tensor) -> npt.NDArray[Any]:
    """A tensor's values on the host, in numpy's or ml_dtypes' dtype of the same name, bit for bit."""
    import torch

    here = x.detach().cpu().contiguous()
    if here.dtype in (torch.float64, torch.float32, torch.float16, torch.bool):
        plain: npt.NDArray[Any] = here.numpy()
        return plain
    whole = here.view(torch.int16 if here.element_size() == 2 else torch.uint8)
    bits: npt.NDArray[Any] = whole.numpy().view(_format(x).dtype)
    return bits


def to_tensor(a: npt.NDArray[Any]) -> torch.Tensor:
    """The inverse of `to_numpy`."""
    import torch

    if a.dtype.kind == "f" and a.dtype.itemsize > 1 and a.dtype.type.__module__ == "numpy":
        return torch.from_numpy(np.ascontiguousarray(a))
    whole = np.ascontiguousarray(a).view(np.int16 if a.dtype.itemsize == 2 else np.uint8)
    tensor: torch.Tensor = torch.from_numpy(whole).view(getattr(torch, a.dtype.name))
    return tensor
