"""A call written down as Python source that can be pasted and run, with nothing but the user's library and numpy."""

from __future__ import annotations

import base64
import textwrap
import zlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from normcheck.formats import Array
from normcheck.implementations.base import ARRAYS, Built, Framework, Implementation, Inputs
from normcheck.implementations.calls import state
from normcheck.implementations.registry import frameworks

LITERALS = 40
"""The largest number of literals by which an array is written."""


def snippet(
    implementation: Implementation,
    inputs: Inputs,
    *,
    index: tuple[int, ...] | None = None,
    expected: float | None = None,
    tolerance: float | None = None,
    form: tuple[tuple[int, ...], str] | None = None,
    expressions: Mapping[str, str] | None = None,
) -> str:
    """Python source that makes one call again, prints what came and what should have come, and fails if they are too far apart.

    Parameters
    ----------
    implementation, inputs : as for `call`
    index : of the element of y that is printed; None prints shape, dtype and all of y
    expected : its certified value
    tolerance : how far from it the element may be; without it nothing is asserted
    form : shape and dtype that y must have, where no index is given
    expressions : numpy expressions, by input name, that make the float64 array of that input in its shape, such as
        ``{"x": "np.random.default_rng(0).integers(-9, 9, (4, 256)) / 8"}``; other arrays are written as literals where at most
        40 of them are needed, else packed as text, exactly in either case
    """
    framework = frameworks()[implementation.framework]
    present = {name: getattr(inputs, name) for name in ARRAYS if getattr(inputs, name) is not None}
    imported, function = _imported(implementation)
    lines = []
    for name, array in present.items():
        lines += _array(framework, inputs, name, array, (expressions or {}).get(name))
    lines += _call(implementation, framework, inputs, present, function)
    lines += _form(form) if index is None else _compared(framework, f"y[{_place(index)}]", expected, tolerance)
    return "\n".join([*_imports(lines), *imported, *lines]) + "\n"


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
) -> str:
    """Python source that runs one backward pass again, as `snippet` does for a call, and looks at an element of a gradient.

    Parameters
    ----------
    implementation, inputs, dy, dtype, layout : as for `normcheck.implementations.backward`
    name : of the input whose gradient is shown
    index, expected, tolerance : of the element, its certified value, and how far from it it may be
    """
    framework = frameworks()[implementation.framework]
    present = {key: getattr(inputs, key) for key in ARRAYS if getattr(inputs, key) is not None}
    lines = []
    for key, array in present.items():
        lines += _array(framework, inputs, key, array, None)
    lines += _literals("dy", np.asarray(dy, np.float64))
    lines.append(framework.snippet_array("dy", dtype, inputs.device, layout, np.ndim(dy)))
    if callable(implementation.grad):
        imported, function = _imported(implementation, implementation.grad)
        names = ", ".join(f"{key}={key if key in present else None}" for key in ("x", "weight", "bias", "residual"))
        known = [key for key in ("eps", "normalized_shape", "num_groups", "fraction") if implementation.knows(key)]
        settings = "".join(f", {key}={implementation.setting(key, inputs.x.shape)!r}" for key in known)
        lines.append(f"grads = {function}(dict({names}{settings}), dict(y=dy))")
        shown = f'grads["{name}"]'
    else:
        imported, function = _imported(implementation)
        module = implementation.module is not None and name in ("weight", "bias") and name not in implementation.passes
        leaf = f"module.{name}" if module else name
        called = _call(implementation, framework, inputs, present, function)
        at = next(i for i, line in enumerate(called) if line.startswith("y = "))
        lines += [*called[:at], f"{leaf}.requires_grad_()", *called[at:], "y.backward(dy)"]
        shown = f"{leaf}.grad"
    lines += _compared(framework, f"{shown}[{_place(index)}]", expected, tolerance)
    return "\n".join([*_imports(lines), *imported, *lines]) + "\n"


def _array(framework: Framework, inputs: Inputs, name: str, array: Array, expression: str | None) -> list[str]:
    lines = [f"{name} = {expression}"] if expression is not None else _literals(name, np.asarray(array, np.float64))
    own = name in ("x", "residual")
    dtype = inputs.dtype if own else inputs.weight_dtype or inputs.dtype
    layout = inputs.layout if own else inputs.parameter_layout
    return [*lines, framework.snippet_array(name, dtype, inputs.device, layout, np.ndim(array))]


def _literals(name: str, array: Array) -> list[str]:
    if array.size <= LITERALS:
        return _wrapped(f"{name} = np.array([", map(_number, array.ravel()), f"]){_reshape(array)}")
    common, _ = Counter(array.ravel().tolist()).most_common(1)[0]
    others = np.flatnonzero(_bits(array.ravel()) != _bits(np.float64(common)))
    if len(others) <= LITERALS // 2:
        lines = [f"{name} = np.full({array.shape}, {_number(common)})"]
        if len(others):
            lines += _wrapped(f"{name}.flat[{others.tolist()}] = [", map(_number, array.flat[others]), "]")
        return lines
    return _packed(name, array)


def _packed(name: str, array: Array) -> list[str]:
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32)
    dtype = "float32" if np.array_equal(narrow.astype(np.float64), array, equal_nan=True) else "float64"
    text = base64.b85encode(zlib.compress(array.astype(dtype).tobytes(), 9)).decode()
    parts = [f"    {text[i : i + 110]!r}" for i in range(0, len(text), 110)]
    unpack = f"np.frombuffer(zlib.decompress(base64.b85decode({name})), np.{dtype})"
    return [f"{name} = (", *parts, ")", f"{name} = {unpack}.astype(np.float64){_reshape(array)}"]


def _reshape(array: Array) -> str:
    return "" if array.ndim == 1 else f".reshape({', '.join(map(str, array.shape))})"


def _wrapped(head: str, items: Any, tail: str) -> list[str]:
    text = textwrap.wrap(", ".join(items), 110)
    if sum(map(len, text)) + len(head) + len(tail) <= 110:
        return [head + " ".join(text) + tail]
    return [head, *(f"    {line}" for line in text), tail]


def _number(value: float) -> str:
    return repr(float(value)) if np.isfinite(value) else f"np.{float(value)!r}".replace("np.-", "-np.")


def _bits(array: Any) -> Any:
    return np.asarray(array, np.float64).view(np.uint64)


def _call(
    implementation: Implementation, framework: Framework, inputs: Inputs, present: Mapping[str, Array], function: str
) -> list[str]:
    target = implementation.target
    passed = ", ".join(_argument(implementation, inputs, present, name) for name in implementation.passes)
    shape, norm = inputs.x.shape, implementation.norm
    if implementation.call is not None:
        return _result(implementation, f"{function}({passed})")
    if isinstance(target, Built):
        keywords = ", ".join(f"{name}={value!r}" for name, value in target.keywords(norm, shape).items())
    else:
        keywords = f"{norm!r}, shape={shape}, dtype={inputs.dtype!r}, device={inputs.device!r}"
    kind = "module" if implementation.module is not None else "call"
    lines = [f"{kind} = {function}({keywords})"]
    if kind == "module":
        names = state(implementation, {name: present.get(name) for name in ARRAYS})
        lines += framework.snippet_bind(names, inputs.training, inputs.weight_dtype or inputs.dtype, inputs.device)
    return [*lines, *_result(implementation, f"{kind}({passed})")]


def _argument(implementation: Implementation, inputs: Inputs, present: Mapping[str, Array], name: Any) -> str:
    if not isinstance(name, str):
        return repr(name)
    if name in ARRAYS:
        return name if name in present else "None"
    if name == "training":
        return repr(inputs.training)
    if name == "momentum":
        return repr(inputs.momentum if inputs.momentum is not None else getattr(implementation.norm, "momentum", None))
    return repr(implementation.setting(name, inputs.x.shape))


def _result(implementation: Implementation, expression: str) -> list[str]:
    writes = implementation.module is not None or bool(implementation.mutates)
    several = implementation.residual or bool(implementation.returns) or (implementation.norm.has_running and not writes)
    return [f"y = {expression}", *["y = y[0] if isinstance(y, tuple) else y"] * several]


def _imported(implementation: Implementation, function: Any = None) -> tuple[list[str], str]:
    """Lines that import the callable (or another function of it), and the expression that names it."""
    own = implementation.source or getattr(implementation.target, "target", "") or _importable(implementation.target)
    target = own if function is None else _importable(function)
    place, _, attribute = target.rpartition(":")
    first, *rest = attribute.split(".")
    claims = implementation.call is None and not isinstance(implementation.target, Built)
    lines = [f"from normcheck.norms import {implementation.norm.name}"] * claims
    if not place:
        return [*lines, f"# function = {implementation.name}: it cannot be imported, define it here"], "function"
    if place.endswith(".py"):
        return lines, ".".join([f"runpy.run_path({place!r})[{first!r}]", *rest])
    return [*lines, f"from {place} import {first}"], attribute


def _importable(function: Any) -> str:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "<")
    return "" if module in (None, "__main__") or "<" in name else f"{module}:{name}"


def _form(form: tuple[tuple[int, ...], str] | None) -> list[str]:
    """Lines that print y, and fail where its shape or dtype is another one."""
    lines = ["print(tuple(y.shape), y.dtype)", "print(y)"]
    if form is not None:
        lines.append(f'assert (tuple(y.shape), str(y.dtype).removeprefix("torch.")) == {form!r}')
    return lines


def _place(index: tuple[int, ...]) -> str:
    return ", ".join(str(int(i)) for i in index)


def _compared(framework: Framework, element: str, expected: float | None, tolerance: float | None) -> list[str]:
    """Lines that print an element and what it should be, and fail where they are too far apart."""
    lines = [f"got = float({framework.snippet_value(element)})", 'print("got     ", got.hex(), got)']
    if expected is not None:
        lines.append(f'print("expected {float(expected).hex()} {float(expected)!r}")')
    if expected is not None and tolerance is not None and np.isfinite([expected, tolerance]).all():
        lines.append(f"assert abs(got - {float(expected)!r}) <= {float(tolerance)!r}")
    return lines


def _imports(lines: list[str]) -> list[str]:
    """What the lines use, in the order in which import lines are sorted."""
    text = "\n".join(lines)
    names = ("base64", "runpy", "zlib", "ml_dtypes", "np", "torch")
    return [f"import {'numpy as np' if name == 'np' else name}" for name in names if f"{name}." in text]
