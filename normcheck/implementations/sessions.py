"""Several calls that share one state of running statistics, as in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from normcheck.formats import Array
from normcheck.implementations.base import Implementation, Inputs, Output
from normcheck.implementations.calls import Around, call
from normcheck.implementations.snippets import PLAIN, Script
from normcheck.norms import Norm


class Session:
    """Running statistics that live on from step to step.

    A module is made once, keeps what it counts and remembers, and is put into training or evaluation as each step says. A
    function is given the statistics that it left behind.

    Parameters
    ----------
    implementation : with running statistics

    Attributes
    ----------
    running_mean, running_var : after the last step; None before the first, unless they are set
    module : the module under judgement after the first step, None for functions
    """

    def __init__(
        self, implementation: Implementation, running_mean: Array | None = None, running_var: Array | None = None
    ) -> None:
        self.implementation = implementation
        self.running_mean, self.running_var = running_mean, running_var
        self.module: Any = None
        self._make, self._own = implementation.module, implementation
        self._told: list[tuple[Inputs, Sequence[str]] | str] = []
        if self._make is not None:
            self.implementation = replace(implementation, module=self._kept)

    def step(self, inputs: Inputs, around: Around | None = None, way: Sequence[str] = PLAIN) -> Output:
        """One call with the statistics as the last one left them; those of ``inputs`` are not used. Raises as `call` does.

        ``way`` is how a script makes the call, where ``around`` does.
        """
        kept = self.module is not None
        own = replace(
            inputs,
            running_mean=None if kept else self.running_mean,
            running_var=None if kept else self.running_var,
        )
        self._told.append((own, way))
        output = call(self.implementation, own, around)
        self.running_mean = self.running_mean if output.running_mean is None else output.running_mean
        self.running_var = self.running_var if output.running_var is None else output.running_var
        return output

    def note(self, line: str) -> None:
        """A line of Python that stands for what was done to the module between two steps."""
        self._told.append(line)

    @property
    def script(self) -> Script:
        """The steps until now, written down."""
        return self.steps(len(self._told))

    def steps(self, count: int, script: Script | None = None, start: int = 0) -> Script:
        """The steps from one to another, behind those of a script."""
        script = script or Script(self._own)
        for told in self._told[start:count]:
            if isinstance(told, str):
                script.add(told)
            else:
                script.arrays(told[0]).call(*told)
        return script

    def _kept(self, norm: Norm, *, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        if self.module is None and self._make is not None:
            self.module = self._make(norm, shape=shape, dtype=dtype, device=device)
        return self.module
