"""What an adapter offers: how one framework holds arrays, calls and is written down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from normcheck.formats import Array


class Framework(Protocol):
    """An adapter: how one framework holds arrays. One file each; nothing is imported before it is asked for.

    One whose arrays cannot be written into says so by an attribute ``immutable`` that is True. One that knows how many bytes are
    free on a device tells by a method ``free_memory(device)``: inputs that need more are not tried.
    """

    name: str

    def available(self) -> str | None:
        """None, or the line that installs the framework; where it is installed, what lets it run."""

    def version(self) -> str:
        """The framework's version."""

    def devices(self) -> tuple[str, ...]:
        """The devices that can be used now."""

    def pin_threads(self, count: int) -> None:
        """Set the number of threads inside one operation."""

    def threads(self) -> int:
        """The number of threads inside one operation, as `pin_threads` sets it."""

    def shares_memory(self, one: Any, other: Any) -> bool:
        """Whether writing into one native array can change the other."""

    def guard(self) -> AbstractContextManager[Any]:
        """A context in which user code is called: no gradients are recorded, no floating-point warning is raised."""

    def to_native(self, values: Array, dtype: str, device: str = "cpu", layout: str = "contiguous") -> Any:
        """An array of the framework with exactly these values; it shares no memory with ``values``."""

    def to_values(self, native: Any) -> tuple[Array, str]:
        """The values and dtype name of a native array. Raises TypeError for anything else."""

    def bind(self, module: Any, state: Mapping[str, Any], training: bool, dtype: str, device: str) -> Callable[..., Any]:
        """Put parameters and running statistics into a stateful module, set its mode, and return what calls it."""

    def snippet_array(self, name: str, dtype: str, device: str, layout: str, rank: int) -> str:
        """Source text that makes a native array of the float64 numpy array ``name``, under the same name."""

    def snippet_bind(self, state: Iterable[str], training: bool, dtype: str, device: str) -> list[str]:
        """Source text, by lines, that does to ``module`` what `bind` does."""

    def snippet_value(self, expression: str) -> str:
        """Source text that makes a number that ``float`` takes of one element."""
