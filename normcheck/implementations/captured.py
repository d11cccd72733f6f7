"""What a real model gave to one of its layers, and what came back."""

from __future__ import annotations

from dataclasses import dataclass

from normcheck.formats import Array
from normcheck.implementations.base import Inputs


@dataclass(frozen=True, eq=False)
class Captured:
    """One call that a model made.

    Attributes
    ----------
    inputs : x, parameters and statistics as they were
    y : float64 values of the result, in x's shape
    dtype : of y
    samples, of : how many samples along the first axis were kept, and how many there were
    calls : how often the layer was called in the forward pass; this is the first of them
    """

    inputs: Inputs
    y: Array
    dtype: str
    samples: int = 0
    of: int = 0
    calls: int = 1
