"""Arrays written as Python source, exactly: by literals where few are needed, else packed as text."""

from __future__ import annotations

import base64
import textwrap
import zlib
from collections import Counter
from typing import Any

import numpy as np

from normcheck.formats import Array

LITERALS = 40
"""The largest number of literals by which an array is written."""


def written(name: str, array: Array) -> list[str]:
    """Lines that make a float64 numpy array of this name with these values."""
    if array.size <= LITERALS:
        return _wrapped(f"{name} = np.array([", map(number, array.ravel()), f"]){_reshape(array)}")
    common, _ = Counter(array.ravel().tolist()).most_common(1)[0]
    others = np.flatnonzero(_bits(array.ravel()) != _bits(np.float64(common)))
    if len(others) <= LITERALS // 2:
        lines = [f"{name} = np.full({array.shape}, {number(common)})"]
        if len(others):
            lines += _wrapped(f"{name}.flat[{others.tolist()}] = [", map(number, array.flat[others]), "]")
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
    return "" if array.ndim == 1 else f".reshape({', '.join(map(str, array.shape)) or '()'})"


def _wrapped(head: str, items: Any, tail: str) -> list[str]:
    text = textwrap.wrap(", ".join(items), 110)
    if sum(map(len, text)) + len(head) + len(tail) <= 110:
        return [head + " ".join(text) + tail]
    return [head, *(f"    {line}" for line in text), tail]


def number(value: float) -> str:
    """A float as an expression."""
    return repr(float(value)) if np.isfinite(value) else f"np.{float(value)!r}".replace("np.-", "-np.")


def _bits(array: Any) -> Any:
    return np.asarray(array, np.float64).view(np.uint64)
