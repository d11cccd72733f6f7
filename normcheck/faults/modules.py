"""Stateful modules for faults and sound norms: what `Implementation` asks of ``module``, in a few lines and without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from normcheck.norms import Norm


class Module:
    """Base: weight, bias, a mode, and a state that can be stored and loaded."""

    def __init__(self, norm: Norm) -> None:
        self.norm = norm
        self.weight: Any = None
        self.bias: Any = None
        self.training = True

    def to(self, **_: Any) -> Module:
        """Itself: tensors are put in as they are."""
        return self

    def train(self, mode: bool = True) -> Module:
        """Set the mode."""
        self.training = mode
        return self

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"weight": self.weight, "bias": self.bias}

    def state_dict(self) -> dict[str, Any]:
        """A copy of the state."""
        return {name: value.clone() if hasattr(value, "clone") else value for name, value in self.state().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state."""
        for name, value in state.items():
            setattr(self, name, value)


class Factory:
    """Makes modules of one class, under its name."""

    def __init__(self, make: Callable[..., Any], of: Callable[..., Any]) -> None:
        self._make = make
        self.__name__ = of.__name__
        self.__doc__ = of.__doc__

    def __call__(self, norm: Norm, *, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        """A new module for this norm and an x of this shape."""
        return self._make(norm, shape)


def as_module(make: Callable[..., Any], of: Callable[..., Any]) -> dict[str, Any]:
    """The fields of `Implementation` that hold a module, made by ``make(norm, shape)``."""
    return {"module": Factory(make, of)}
