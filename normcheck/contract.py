"""The arithmetic in which a norm is promised: what an implementation may round, where, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from normcheck.formats import FORMATS, Format, format_of

Cast = Literal["once", "before_weight"]
ResidualRounding = Literal["storage", "compute"]
Accumulation = Literal["tree", "sequential", "merge"]
MomentumConvention = Literal["torch", "keras"]
Overflow = Literal["inf", "saturate", "nan"]

_CHOICES: dict[str, tuple[object, ...]] = {
    "cast": ("once", "before_weight"),
    "residual_rounding": (None, "storage", "compute"),
    "running_ddof": (0, 1),
    "momentum_convention": ("torch", "keras"),
    "overflow": ("inf", "saturate", "nan"),
}


@dataclass(frozen=True)
class Contract:
    """The arithmetic that an implementation promises. The defaults describe the usual fused kernel: float32 inside, one rounding.

    Parameters
    ----------
    compute : dtype of the arithmetic. The wider of it and the input's dtype is used, so float64 input is judged in float64
    stats : dtype that holds mean and variance or rstd in the forward pass; None means ``compute``
    saved_stats : dtype in which statistics are kept for the backward pass; None means ``compute``
    eps_dtype : dtype to which eps is rounded before use; None means exactly the number given
    cast : ``"once"``, the result is rounded to the output dtype at the end; ``"before_weight"``, the standardized value is
        rounded to the input's dtype before it meets the weight
    output : ``"x"``, the output has the input's dtype; ``"promote"``, that of input and weight promoted; or a dtype's name
    residual_rounding : ``"storage"``, the norm sees the sum x + residual rounded to the input's dtype; ``"compute"``, rounded
        only to the compute dtype; None where there is no residual
    accumulation : ``"tree"``; ``"sequential"``; ``"merge"`` for kernels that merge partial variances (Welford, Chan); or an
        integer, the largest number of additions on a path of the summation tree
    running_ddof : 1 if the running variance is updated with the unbiased batch variance, 0 with the biased one
    momentum_convention : ``"torch"``: new = (1-m)*old + m*batch; ``"keras"``: new = m*old + (1-m)*batch
    overflow : what an output beyond the largest finite value becomes: ``"inf"``, ``"saturate"`` (that value) or ``"nan"``
    subnormals : promises that subnormal numbers are not flushed to zero
    deterministic, batch_invariant : promise equal bits from run to run, and whatever else is in the batch
    full_range : promises right results for every finite row, also where squares overflow the compute dtype

    Raises
    ------
    ValueError : for a value outside the choices above, naming it
    """

    compute: str = "float32"
    stats: str | None = None
    saved_stats: str | None = None
    eps_dtype: str | None = None
    cast: Cast = "once"
    output: str = "x"
    residual_rounding: ResidualRounding | None = None
    accumulation: Accumulation | int = "tree"
    running_ddof: int = 1
    momentum_convention: MomentumConvention = "torch"
    overflow: Overflow = "inf"
    subnormals: bool = False
    deterministic: bool = True
    batch_invariant: bool = False
    full_range: bool = False

    def __post_init__(self) -> None:
        """Refuse values outside the documented choices."""
        for name in ("compute", "stats", "saved_stats", "eps_dtype"):
            value = getattr(self, name)
            if value is not None and value not in FORMATS:
                raise ValueError(f"{name}={value!r}, but should be one of {', '.join(FORMATS)}")
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"{name}={value!r}, but should be one of {', '.join(map(repr, allowed))}")
        if self.output not in ("x", "promote", *FORMATS):
            raise ValueError(f"output={self.output!r}, but should be 'x', 'promote' or one of {', '.join(FORMATS)}")
        self._check_accumulation()

    def _check_accumulation(self) -> None:
        value = self.accumulation
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not (value in ("tree", "sequential", "merge") or (whole and int(value) >= 0)):
            raise ValueError(f"accumulation={value!r}, but should be 'tree', 'sequential', 'merge' or an integer height >= 0")

    def compute_format(self, x: Format) -> Format:
        """The format of the arithmetic for an input of format x: the wider of the two."""
        compute = format_of(self.compute)
        return x if x.p > compute.p else compute

    def output_format(self, x: Format, weight: Format | None) -> Format:
        """The format that the output must have, for an input and a weight of these formats."""
        if self.output == "x":
            return x
        if self.output == "promote":
            return promote(x, weight) if weight is not None else x
        return format_of(self.output)

    def round_eps(self, eps: float) -> float:
        """eps as the arithmetic sees it."""
        return eps if self.eps_dtype is None else float(format_of(self.eps_dtype).round(eps))


def promote(a: Format, b: Format) -> Format:
    """The format that holds both: the wider one; float32 for float16 with bfloat16, as the frameworks have it."""
    if {a.name, b.name} == {"float16", "bfloat16"}:
        return FORMATS["float32"]
    return a if a.p >= b.p else b
