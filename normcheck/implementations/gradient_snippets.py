"""Backward passes written down as Python source that can be pasted and run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from normcheck.formats import Array
from normcheck.implementations.base import Implementation, Inputs
from normcheck.implementations.snippets import PLAIN, Script


@runtime_checkable
class PullsBack(Protocol):
    """An adapter that writes a backward pass in its own way; others are written as torch has it."""

    def snippet_pull_back(self, called: Sequence[str], leaf: str) -> tuple[list[str], str]:
        """Lines that pull ``dy`` back through the lines of a call, and the expression of the leaf's gradient."""


def gradient_snippet(
    implementation: Implementation,
    inputs: Inputs,
    dy: Array,
    name: str,
    index: tuple[int, ...],
    expected: float,
    *,
    dtype: str,
    layout: str = "contiguous",
    tolerance: float | None = None,
    dresidual: Array | None = None,
    passes: int = 1,
    claim: str = "",
    way: Sequence[str] = PLAIN,
    form: tuple[tuple[int, ...], str] | None = None,
    figure: str = "",
    unused: bool = False,
) -> str:
    """Python source that runs one backward pass again, as `snippet` does for a call, and looks at an element of a gradient.

    Parameters
    ----------
    implementation, inputs, dy, dtype, layout, dresidual, passes, unused : as for `normcheck.implementations.backward`
    name : of the input whose gradient is shown; y for dy itself, as it is after the pass
    index, expected, tolerance : of the element, its certified value, and how far from it it may be
    claim, way : see `Script.element` and `Script.call`
    form : shape and dtype that the gradient must have; then no element is looked at
    figure : expression of a number, with ``{gradient}`` in it, to look at instead of an element
    """
    script = Script(implementation).arrays(inputs)
    slopes = ["dy", *["dresidual"] * (dresidual is not None)]
    script.array("dy", dy, inputs, dtype=dtype, layout=layout)
    if dresidual is not None:
        script.array("dresidual", dresidual, inputs, dtype=dtype)
    if callable(implementation.grad):
        shown = _by_function(script, inputs, slopes, name)
    else:
        shown = _by_tape(script, inputs, slopes, name, passes, way, unused)
    if form is not None:
        return script.add(f"gradient = {shown}").form(form, "gradient").text
    if figure:
        return script.figure(figure.format(gradient=shown), expected, tolerance, claim).text
    return script.element("dy" if name == "y" else shown, index, expected, tolerance, claim).text


def second_snippet(
    implementation: Implementation,
    inputs: Inputs,
    dy: Array,
    along: Mapping[str, Array],
    name: str,
    index: tuple[int, ...],
    expected: float,
    *,
    dtype: str,
    tolerance: float | None = None,
    claim: str = "",
) -> str:
    """Torch source that differentiates the backward pass once more, as `gradient_snippet` for the first derivative.

    Parameters
    ----------
    along : one direction, by the name of what is differentiated first
    name : of what the second derivative is taken by: an input, or y for dy
    """
    ((first, direction),) = along.items()
    script = Script(implementation).arrays(inputs).array("dy", dy, inputs, dtype=dtype)
    own = inputs.dtype if first in ("x", "residual") else inputs.weight_dtype or inputs.dtype
    script.array("direction", direction, inputs, dtype=own)
    leaves = [key for key in ("x", "weight", "bias") if getattr(inputs, key) is not None]
    leaves = [f"module.{key}" if key != "x" and key not in implementation.passes else key for key in leaves]
    leaf = first if first == "x" or first in implementation.passes else f"module.{first}"
    by = "dy" if name == "y" else name if name == "x" or name in implementation.passes else f"module.{name}"
    script.call(inputs, (*(f"{one}.requires_grad_()" for one in (*leaves, "dy")), *PLAIN))
    script.add(f"first = torch.autograd.grad([y], [{leaf}], [dy], create_graph=True)")
    script.add(f"second = torch.autograd.grad(first, [{by}], [direction], allow_unused=True)[0]", "assert second is not None")
    return script.element("second", index, expected, tolerance, claim).text


def _by_function(script: Script, inputs: Inputs, slopes: Sequence[str], name: str) -> str:
    """Lines of a backward pass by the implementation's own function, and the expression of the gradient."""
    implementation = script.implementation
    function = script.imported(implementation.grad)
    names = [f"{key}={key if getattr(inputs, key) is not None else None}" for key in ("x", "weight", "bias", "residual")]
    known = [key for key in ("eps", "normalized_shape", "num_groups", "fraction") if implementation.knows(key)]
    names += [f"{key}={implementation.setting(key, inputs.x.shape)!r}" for key in known]
    grads = ", ".join(f"{key}={slope}" for key, slope in zip(("y", "residual"), slopes, strict=False))
    script.add(f"grads = {function}(dict({', '.join(names)}), dict({grads}))")
    return f'grads["{name}"]'


def _by_tape(
    script: Script, inputs: Inputs, slopes: Sequence[str], name: str, passes: int, way: Sequence[str], unused: bool
) -> str:
    """Lines of a backward pass by torch's tape, and the expression of the gradient."""
    implementation = script.implementation
    module = implementation.module is not None and name in ("weight", "bias") and name not in implementation.passes
    leaf = "x" if name == "y" else f"module.{name}" if module else name
    # an input that the code writes into cannot be a leaf
    own = {leaf: f"{leaf}.clone()"} if leaf in implementation.mutates else {}
    if isinstance(script.framework, PullsBack):
        before = len(script.lines)
        called = script.call(inputs, way).lines[before:]
        lines, shown = script.framework.snippet_pull_back(called, leaf)
        script.lines[before:] = lines
        return shown
    script.call(inputs, (f"{leaf}.requires_grad_()", *way), **own)
    ends, slopes = ["y", script.of("new_residual")][unused : len(slopes)], slopes[unused:]
    for left in range(passes, 0, -1):
        kept = ", retain_graph=True" * (left > 1)
        script.add(f"torch.autograd.backward([{', '.join(ends)}], [{', '.join(slopes)}]{kept})")
    return f"{leaf}.grad"
