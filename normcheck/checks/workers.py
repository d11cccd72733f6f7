"""A batch over several workers as one call, for the checks that hold it against the unsplit batch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from normcheck.checks.base import Context
from normcheck.formats import Array
from normcheck.implementations import Implementation, require
from normcheck.implementations.processes import Processes
from normcheck.implementations.snippets import target_of

CUTS = (13, 14, 20)


class Workers:
    """The workers as one call on the whole batch, which remembers the running statistics of all of them."""

    def __init__(self, implementation: Implementation) -> None:
        self._implementation = implementation
        self._left: list[tuple[Any, Any]] = []

    def joined(self) -> Implementation:
        """The implementation whose call spreads its batch; its running statistics are those of the first worker."""
        running = ("running_mean", "running_var", "momentum") if self._implementation.norm.has_running else ()
        parameters = ("weight", "bias") if self._implementation.norm.has_bias else ("weight",)
        plain: dict[str, Any] = {"make": None, "module": None, "returns": None, "mutates": (), "training": None}
        source = target_of(self._implementation.workers)
        return replace(self._implementation, call=self._call, arguments=("x", *parameters, *running), source=source, **plain)

    def statistics(self, context: Context) -> list[tuple[Array, Array]]:
        """Running mean and variance of every worker after the last call."""
        framework = require(self._implementation, context.device)
        return [(framework.to_values(mean)[0], framework.to_values(var)[0]) for mean, var in self._left]

    def _call(self, x: Any, *rest: Any) -> Any:
        framework = self._implementation.framework
        cuts = [c for c in CUTS if c < len(x)]
        shards = [x[a:b] for a, b in zip([0, *cuts], [*cuts, len(x)], strict=True)]
        returned = cast("Callable[..., Any]", self._implementation.workers)(shards, *rest)
        concatenate = importlib.import_module({"jax": "jax.numpy"}.get(framework, framework)).concatenate
        if not self._implementation.norm.has_running:
            return concatenate(list(returned))
        parts, means, variances = returned
        self._left = list(zip(means, variances, strict=True))
        return (concatenate(list(parts)), *self._left[0])


def split_text(implementation: Implementation) -> tuple[str, ...] | None:
    """How a snippet calls the workers; None where they cannot be imported."""
    if isinstance(implementation.workers, Processes) or not target_of(implementation.workers):
        return None
    joined = f"{ {'numpy': 'np', 'jax': 'jnp'}.get(implementation.framework, implementation.framework) }.concatenate(list({{0}}))"
    running = implementation.norm.has_running
    return (
        f"cuts = [0, *(c for c in {CUTS} if c < len(x)), len(x)]",
        "parts = {function}([x[a:b] for a, b in zip(cuts, cuts[1:])], {rest})",
        "{to} = " + (f"({joined.format('parts[0]')}, parts[1][0], parts[2][0])" if running else joined.format("parts")),
    )
