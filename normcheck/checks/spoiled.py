"""Implementations with settings that no norm has, such as a negative eps, to see what the code does with them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from normcheck.implementations import Implementation


def spoiled(implementation: Implementation, **settings: Any) -> Implementation:
    """The same code, given these settings of its norm as they are; the norm itself would refuse them."""
    norm = copy.copy(implementation.norm)
    for name, value in settings.items():
        # norms are frozen so that nobody changes them by mistake
        object.__setattr__(norm, name, value)
    return replace(implementation, norm=norm)
