"""Code under judgement: what it is, how it is called, which is discovered, and how a call is written down for pasting."""

from normcheck.implementations.arrays import LAYOUTS, decode, encode
from normcheck.implementations.base import CallError, Framework, Implementation, Inputs, MissingPackageError, Output
from normcheck.implementations.calls import call
from normcheck.implementations.registry import RegistrationError, frameworks, implementations, require
from normcheck.implementations.snippets import snippet
from normcheck.implementations.targets import Named, TargetError, load

__all__ = [
    "LAYOUTS",
    "CallError",
    "Framework",
    "Implementation",
    "Inputs",
    "MissingPackageError",
    "Named",
    "Output",
    "RegistrationError",
    "TargetError",
    "call",
    "decode",
    "encode",
    "frameworks",
    "implementations",
    "load",
    "require",
    "snippet",
]
