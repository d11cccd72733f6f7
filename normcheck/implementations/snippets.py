"""Calls written down as Python source that can be pasted and run, with nothing but the user's library and numpy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from normcheck.formats import Array
from normcheck.implementations.base import ARRAYS, Built, Implementation, Inputs
from normcheck.implementations.calls import state
from normcheck.implementations.literals import number, written
from normcheck.implementations.registry import frameworks
from normcheck.implementations.targets import Named, Pasted

PLAIN = ("{to} = {function}({passed})",)
"""How a call is written where nothing is special about it: ``to`` stands for what takes the result."""

_RUNNING = ("running_mean", "running_var")


class Script:
    """Calls of one implementation, written down one after the other, and what must hold of what they left.

    A module is made by the first call and kept by the others, until `anew` is called.

    Parameters
    ----------
    implementation : whose calls they are
    """

    def __init__(self, implementation: Implementation) -> None:
        self.implementation = implementation
        self.framework = frameworks()[implementation.framework]
        self.lines: list[str] = []
        self._imported: list[list[str]] = []
        self._function = ""
        self._made = False

    @property
    def text(self) -> str:
        """The source: imports first."""
        imported = [line for block in self._imported for line in block]
        return "\n".join([*_imports([*imported, *self.lines]), *imported, *self.lines]) + "\n"

    def add(self, *lines: str) -> Script:
        """Lines as they are."""
        self.lines += lines
        return self

    def anew(self) -> Script:
        """The next call makes a new module."""
        self._made = False
        return self

    def imported(self, function: Any = None) -> str:
        """The expression that names the implementation's callable, or another function, which is then imported."""
        lines, expression = _imported(self.implementation, function)
        self._imported += [lines] * (lines not in self._imported)
        return expression

    def arrays(self, inputs: Inputs, expressions: Mapping[str, str] | None = None) -> Script:
        """The arrays of a call under their names."""
        for name in ARRAYS:
            if getattr(inputs, name) is not None:
                self.array(name, getattr(inputs, name), inputs, (expressions or {}).get(name))
        return self

    def array(self, name: str, values: Array, inputs: Inputs, expression: str | None = None, **given: str) -> Script:
        """One array in the framework, in dtype and layout of what ``inputs`` has under that name, or in those given."""
        values = np.asarray(values, np.float64)
        own = name in ("x", "residual")
        dtype = given.get("dtype") or (inputs.dtype if own else inputs.weight_dtype or inputs.dtype)
        layout = given.get("layout") or (inputs.layout if own else inputs.parameter_layout)
        self.lines += [f"{name} = {expression}"] if expression is not None else written(name, values)
        return self.add(self.framework.snippet_array(name, dtype, inputs.device, layout, np.ndim(values)))

    def call(self, inputs: Inputs, way: Sequence[str] = PLAIN, **replaced: str) -> Script:
        """One call, whose y is then ``y``; its arrays must be there.

        Parameters
        ----------
        way : lines of another way of making the call, with ``{to}``, ``{function}``, ``{passed}``, ``{x}``, ``{rest}`` and
            ``{count}`` (of what is passed beside x) in them
        replaced : expressions to pass in the place of arguments, by name
        """
        function = self._callee(inputs)
        passed = [replaced.get(str(name)) or self._argument(inputs, name) for name in self.implementation.passes]
        place = self.implementation.passes.index("x")
        rest = [*passed[:place], *passed[place + 1 :]]
        names = {"function": function, "passed": ", ".join(passed), "x": passed[place], "rest": ", ".join(rest)}
        several = self._several
        to = "returned" if several else "y"
        self.lines += [line.format(to=to, count=len(rest), **names) for line in way]
        return self.add("y = returned[0] if isinstance(returned, tuple) else returned") if several else self

    def of(self, name: str) -> str:
        """The expression of a result of the last call, of a statistic that it has written, or of an input after it."""
        returns = self.implementation.returns
        if name == "y":
            return name
        if name in _RUNNING and self.implementation.module is not None and name not in self.implementation.passes:
            return f"module.{name}"
        if returns and name in returns:
            return f"returned[{returns.index(name)}]"
        if name in _RUNNING and name not in self.implementation.mutates:
            several = "len(returned) > 2" if self.implementation.residual else "isinstance(returned, tuple)"
            return f"(returned[{1 + _RUNNING.index(name)}] if {several} else {name})"
        return "returned[-1]" if name == "new_residual" else name

    def element(
        self,
        array: str,
        index: tuple[int, ...],
        expected: float | None = None,
        tolerance: float | None = None,
        claim: str = "",
    ) -> Script:
        """Look at one element, and fail where it is too far from what is expected, or where a claim does not hold.

        Parameters
        ----------
        array : expression of the array
        tolerance : how far from the expected value it may be; None asserts nothing
        claim : a condition on the number ``got`` to assert instead, such as ``"np.isfinite(got)"``
        """
        place = f"[{', '.join(str(int(i)) for i in index)}]" if index else ""
        return self.figure(self.framework.snippet_value(array + place), expected, tolerance, claim)

    def figure(self, expression: str, expected: float | None = None, tolerance: float | None = None, claim: str = "") -> Script:
        """As `element`, for a number that an expression gives."""
        self.add(f"got = float({expression})", 'print("got     ", got.hex(), got)')
        if expected is not None:
            self.add(f'print("expected {float(expected).hex()} {float(expected)!r}")')
        if claim:
            return self.add(f"assert {claim}")
        if expected is not None and tolerance is not None and np.isfinite([expected, tolerance]).all():
            return self.add(f"assert abs(got - {float(expected)!r}) <= {float(tolerance)!r}")
        return self

    def dtype_among(self, names: Sequence[str]) -> Script:
        """Fail where y has none of these dtypes."""
        return self.add("print(y.dtype)", f'assert str(y.dtype).removeprefix("torch.") in {tuple(names)!r}')

    def form(self, form: tuple[tuple[int, ...], str] | None, of: str = "y") -> Script:
        """Print y, or another array, and fail where its shape or dtype is another one."""
        if form is None:
            return self.add(f"print(tuple({of}.shape), {of}.dtype)", f"print({of})")
        self.add(f"print({of})", f"assert {of} is not None")
        return self.add(f'assert (tuple({of}.shape), str({of}.dtype).removeprefix("torch.")) == {form!r}')

    @property
    def _several(self) -> bool:
        """Whether several results may come back."""
        own = self.implementation
        writes = own.module is not None or bool(own.mutates)
        return own.residual or bool(own.returns) or (own.norm.has_running and not writes)

    def _callee(self, inputs: Inputs) -> str:
        """The expression of what is called, after the lines that make it."""
        implementation, target, shape = self.implementation, self.implementation.target, inputs.x.shape
        self._function = self._function or self.imported()
        if implementation.call is not None:
            return self._function
        if isinstance(target, Built):
            keywords = ", ".join(f"{name}={value!r}" for name, value in target.keywords(implementation.norm, shape).items())
        else:
            keywords = f"{implementation.norm!r}, shape={shape}, dtype={inputs.dtype!r}, device={inputs.device!r}"
        kind = "module" if implementation.module is not None else "call"
        if not self._made or kind == "call":
            self.add(f"{kind} = {self._function}({keywords})", *getattr(target, "lines", ()))
        if kind == "module":
            present = {} if self._made else {name: getattr(inputs, name) for name in ARRAYS}
            names = state(implementation, {name: present.get(name) for name in ARRAYS})
            self.add(*self.framework.snippet_bind(names, inputs.training, inputs.weight_dtype or inputs.dtype, inputs.device))
        self._made = True
        return kind

    def _argument(self, inputs: Inputs, name: Any) -> str:
        if not isinstance(name, str):
            return number(name) if isinstance(name, float) else repr(name)
        if name in ARRAYS:
            return name if getattr(inputs, name) is not None else "None"
        if name == "training":
            return repr(inputs.training)
        if name == "momentum":
            return repr(inputs.momentum if inputs.momentum is not None else getattr(self.implementation.norm, "momentum", None))
        value = self.implementation.setting(name, inputs.x.shape)
        return number(value) if isinstance(value, float) else repr(value)


def snippet(
    implementation: Implementation,
    inputs: Inputs,
    *,
    index: tuple[int, ...] | None = None,
    expected: float | None = None,
    tolerance: float | None = None,
    form: tuple[tuple[int, ...], str] | None = None,
    expressions: Mapping[str, str] | None = None,
    of: str = "y",
    claim: str = "",
    way: Sequence[str] = PLAIN,
) -> str:
    """Python source that makes one call again, prints what came and what should have come, and fails if they are too far apart.

    Parameters
    ----------
    implementation, inputs : as for `call`
    index : of the element that is printed; None prints shape, dtype and all of y
    expected : its certified value
    tolerance : how far from it the element may be; without it, and without a claim, nothing is asserted
    form : shape and dtype that y must have, where no index is given
    expressions : numpy expressions, by input name, that make the float64 array of that input in its shape, such as
        ``{"x": "np.random.default_rng(0).integers(-9, 9, (4, 256)) / 8"}``; other arrays are written as literals where at most
        40 of them are needed, else packed as text, exactly in either case
    of : what the element is one of: y, another result, a running statistic, or an input as it is after the call
    claim, way : see `Script.element` and `Script.call`
    """
    script = Script(implementation).arrays(inputs, expressions).call(inputs, way)
    if index is None:
        return script.form(form).text
    return script.element(script.of(of), index, expected, tolerance, claim).text


def _imported(implementation: Implementation, function: Any = None) -> tuple[list[str], str]:
    """Lines that import the callable (or another function of it), and the expression that names it."""
    if function is None and isinstance(implementation.target, Pasted):
        return implementation.target.source.splitlines(), implementation.target.target.rpartition(":")[2]
    own = implementation.source or getattr(implementation.target, "target", "") or target_of(implementation.target)
    target = own if function is None else target_of(function)
    place, _, attribute = target.rpartition(":")
    first, *_ = attribute.split(".")
    claims = function is None and implementation.call is None and not isinstance(implementation.target, Built)
    lines = [f"from normcheck.norms import {implementation.norm.name}"] * claims
    if not place:
        return [*lines, f"# function = {implementation.name}: it cannot be imported, define it here"], "function"
    if place.endswith(".py"):
        rest = attribute.split(".")[1:]
        return lines, ".".join([f"runpy.run_path({place!r})[{first!r}]", *rest])
    return [*lines, f"from {place} import {first}"], attribute


def target_of(function: Any) -> str:
    """The target by which a snippet imports a function; ``""`` where it cannot."""
    if isinstance(function, Named):
        return function.target
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "<")
    return "" if module in (None, "__main__") or "<" in name else f"{module}:{name}"


def _imports(lines: Sequence[str]) -> list[str]:
    """What the lines use, in the order in which import lines are sorted."""
    text = "\n".join(lines)
    spelled = {"np": "numpy as np", "jnp": "jax.numpy as jnp", "mx": "mlx.core as mx"}
    names = ("base64", "runpy", "zlib", "jax", "jnp", "keras", "ml_dtypes", "mx", "np", "paddle", "tinygrad", "torch")
    return [f"import {spelled.get(name, name)}" for name in names if re.search(rf"\b{name}\.", text)]
