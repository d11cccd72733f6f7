"""Triton: the adapter of kernels on torch's tensors, compiled on a GPU, or in Triton's interpreter where TRITON_INTERPRET=1.

The interpreter holds bfloat16 as integers: it truncates where it should round, and computes nonsense where a kernel does not
widen first. So nothing is concluded in bfloat16 there; a GPU judges it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normcheck.contract import Contract
from normcheck.implementations.base import Implementation
from normcheck.implementations.targets import Pasted
from normcheck.implementations.torch import Torch
from normcheck.norms import Norm

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
FLOATS = ("float32", "float16") if INTERPRETED else ("float32", "float16", "bfloat16")
_DRIVERS = ("/dev/nvidiactl", "/dev/kfd")


class Triton(Torch):
    """The adapter. Arrays are torch's."""

    name = "triton"

    def available(self) -> str | None:
        """None, or what installs torch and triton, or lets kernels run."""
        if not all(map(importlib.util.find_spec, ("torch", "triton"))):
            return "pip install 'normcheck[triton]', and set TRITON_INTERPRET=1 where there is no GPU"
        found = INTERPRETED or any(Path(driver).exists() for driver in _DRIVERS)
        return None if found else "set TRITON_INTERPRET=1, since there is no GPU"

    def version(self) -> str:
        """Triton's version."""
        return importlib.metadata.version("triton")

    def devices(self) -> tuple[str, ...]:
        """The CPU in the interpreter, else what torch finds beside it."""
        return ("cpu",) if INTERPRETED else tuple(name for name in super().devices() if name != "cpu")


ADAPTER = Triton()


def interpretable() -> None:
    """Mend Triton's interpreter, where it is on: it leaves numbers with a point as Python's, which have no ``to``.

    As in a compiled kernel they become float32. ``libdevice.rsqrt``, which does nothing there, becomes ``tl.rsqrt``.
    """
    import os

    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    import numpy as np
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime import interpreter

    libdevice.rsqrt = lambda x: tl.rsqrt(x)
    plain = interpreter._implicit_cvt
    if plain.__name__ == "_implicit_cvt":

        def converted(arg: Any) -> Any:
            if not isinstance(arg, float):
                return plain(arg)
            return tl.tensor(interpreter.TensorHandle(np.array([arg], np.float32), tl.float32), tl.float32)

        interpreter._implicit_cvt = converted


@dataclass(frozen=True)
class Kernel(Pasted):
    """A function that launches kernels of a library, in the interpreter or compiled."""

    def __call__(self, *passed: Any) -> Any:
        """Mend the interpreter and call the function."""
        interpretable()
        return super().__call__(*passed)

    @property
    def source(self) -> str:
        """The function, after what mends the interpreter."""
        switch = ["import os", 'os.environ["TRITON_INTERPRET"] = "1"'] * INTERPRETED
        return "\n".join([*switch, Pasted(f"{__name__}:interpretable").source, "interpretable()", super().source])


def row(library: str, name: str, norm: Norm, place: str, arguments: Sequence[Any], **options: Any) -> Implementation:
    """A kernel of a library. Rows are of one block: of 65536 elements at most.

    Parameters
    ----------
    library : that has it, by the name under which pip installs it
    place : target of the function that launches it
    options : any of `Implementation`
    """
    return Implementation(
        Kernel(place),
        norm,
        name=name,
        framework="triton",
        arguments=tuple(arguments),
        requires=library,
        **{
            "contract": Contract(eps_dtype="float32"),
            "dtypes": FLOATS,
            "devices": ("cpu",) if INTERPRETED else ("cuda", "xpu"),
            "widths": range(1, 2**16 + 1),
            "validates": False,
            "static": True,
            **options,
        },
    )
