"""Sound norms in a few lines of numpy, and how tests of checks run a check on a function and look at what it found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from normcheck import Implementation, LayerNorm, Norm, RMSNorm
from normcheck.checks import Context, checks, run_check
from normcheck.faults import faults, sound
from normcheck.results import Result

Call = Callable[..., Any]
FAULTS = {fault.name: fault for fault in faults()}
SOUND = {implementation.name: implementation for implementation in sound()}
LN, RMS = LayerNorm(eps=1e-5), RMSNorm(eps=1e-6)


def run(check: str, function: Call, norm: Norm, dtype: str = "float32", profile: str = "quick", **options: Any) -> list[Result]:
    """The results of a check on a numpy function."""
    implementation = Implementation(function, norm, framework="numpy", grad=None, dtypes=(dtype,), **options)
    return run_check(checks()[check], Context(implementation, dtype, profile=profile))


def findings(results: list[Result]) -> list[Result]:
    """Those that a reader should look at."""
    return [result for result in results if result.outcome.finding]


def layer_norm(x: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    """A sound two-pass LayerNorm in float32."""
    c = x.astype(np.float32) - x.astype(np.float32).mean(-1, keepdims=True)
    n = c / np.sqrt((c * c).mean(-1, keepdims=True) + np.float32(eps))
    n = n if weight is None else n * weight.astype(np.float32)
    return (n if bias is None else n + bias.astype(np.float32)).astype(x.dtype)


def rms_norm(x: Any, weight: Any) -> Any:
    """A sound RMSNorm in float32."""
    h = x.astype(np.float32)
    n = h / np.sqrt((h * h).mean(-1, keepdims=True) + np.float32(1e-6))
    return (n if weight is None else n * weight.astype(np.float32)).astype(x.dtype)
