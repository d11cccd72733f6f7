"""normcheck holds implementations of normalization layers against the mathematics that they claim to compute.

The public names below are loaded when they are first used, so that ``import normcheck`` imports neither numpy nor any framework.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from normcheck.audit import Audit as Audit
    from normcheck.audit import audit as audit
    from normcheck.audit import check as check
    from normcheck.contract import Contract as Contract
    from normcheck.faults import faults as faults
    from normcheck.implementations import Implementation as Implementation
    from normcheck.implementations import implementations as implementations
    from normcheck.norms import BatchNorm as BatchNorm
    from normcheck.norms import GroupNorm as GroupNorm
    from normcheck.norms import InstanceNorm as InstanceNorm
    from normcheck.norms import L2Norm as L2Norm
    from normcheck.norms import LayerNorm as LayerNorm
    from normcheck.norms import Norm as Norm
    from normcheck.norms import PartialRMSNorm as PartialRMSNorm
    from normcheck.norms import RMSNorm as RMSNorm
    from normcheck.norms import ScaleNorm as ScaleNorm
    from normcheck.reference import reference as reference
    from normcheck.reference import reference_grad as reference_grad
    from normcheck.reference import reference_hvp as reference_hvp
    from normcheck.reference import reference_jvp as reference_jvp
    from normcheck.results import Outcome as Outcome
    from normcheck.results import Result as Result
    from normcheck.results import Severity as Severity
    from normcheck.testing import parametrize as parametrize

_HOMES = {
    "audit": ("Audit", "audit", "check"),
    "contract": ("Contract",),
    "faults": ("faults",),
    "implementations": ("Implementation", "implementations"),
    "norms": ("BatchNorm", "GroupNorm", "InstanceNorm", "L2Norm", "LayerNorm", "Norm", "PartialRMSNorm", "RMSNorm", "ScaleNorm"),
    "reference": ("reference", "reference_grad", "reference_hvp", "reference_jvp"),
    "results": ("Outcome", "Result", "Severity"),
    "testing": ("parametrize",),
}
_HOME_OF = {name: f"{__name__}.{home}" for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    """Load a public name from the module that holds it."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})


class _Package(types.ModuleType):
    """The package's own type: keeps ``normcheck.audit`` the function when the import system would bind the submodule over it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME_OF and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
