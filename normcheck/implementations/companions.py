"""What stands beside a norm: the block that it is part of, and the fused kernel that quantizes its output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Wiring = Literal["pre", "post", "deep"]
WIRINGS: tuple[Wiring, ...] = ("pre", "post", "deep")
INTERMEDIATE = (None, "float32", "float16", "bfloat16")
QUANTIZED = ("float8_e4m3fn", "float8_e5m2", "int8")


@dataclass(frozen=True, eq=False)
class Block:
    """How a norm is wired around a sublayer f.

    Parameters
    ----------
    call : ``call(x, weight, bias, f)``, without bias where the norm has none; for the wiring ``deep`` one more argument, alpha
    wiring : ``"pre"``: x + f(norm(x)); ``"post"``: norm(x + f(x)); ``"deep"``: norm(alpha*x + f(x))

    Raises
    ------
    ValueError : for another wiring
    """

    call: Callable[..., Any]
    wiring: Wiring = "pre"

    def __post_init__(self) -> None:
        """Refuse a wiring that is not known."""
        if self.wiring not in WIRINGS:
            raise ValueError(f"wiring={self.wiring!r}, but should be one of {', '.join(WIRINGS)}")


@dataclass(frozen=True, eq=False)
class Quantized:
    """A fused kernel: norm, then quantization.

    Parameters
    ----------
    call : with a given scale ``call(x, weight, bias, scale)``, which returns q, where y is about q*scale; with ``per_row`` it is
        ``call(x, weight, bias)`` and returns (q, scale), one scale for each row; without bias where the norm has none
    dtype : of q: float8_e4m3fn, float8_e5m2 or int8
    intermediate : dtype to which y is rounded before it is quantized, as in the unfused path; None where it is not
    per_row : whether each row's scale is max|y| over the largest q

    Raises
    ------
    ValueError : for another dtype or intermediate
    """

    call: Callable[..., Any]
    dtype: str = "float8_e4m3fn"
    intermediate: str | None = None
    per_row: bool = False

    def __post_init__(self) -> None:
        """Refuse dtypes that are not known."""
        if self.dtype not in QUANTIZED:
            raise ValueError(f"dtype={self.dtype!r}, but should be one of {', '.join(QUANTIZED)}")
        if self.intermediate not in INTERMEDIATE:
            raise ValueError(f"intermediate={self.intermediate!r}, but should be None, 'float32', 'float16' or 'bfloat16'")
