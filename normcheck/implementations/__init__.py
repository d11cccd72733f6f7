"""Code under judgement: what it is, how it is called, which is discovered, and how a call is written down for pasting."""

from normcheck.implementations.arrays import LAYOUTS, VIEWS, LayoutError, decode, encode
from normcheck.implementations.base import CallError, Framework, Implementation, Inputs, MissingPackageError, Output
from normcheck.implementations.calls import Observation, call, natives, observe, user_code
from normcheck.implementations.companions import Block, Quantized
from normcheck.implementations.gradient_snippets import gradient_snippet
from normcheck.implementations.gradients import Gradients, backward, backward_twice, differentiable
from normcheck.implementations.registry import (
    RegistrationError,
    discovered,
    frameworks,
    implementations,
    left_out,
    missing,
    require,
    unjudged,
)
from normcheck.implementations.sessions import Session
from normcheck.implementations.snippets import snippet
from normcheck.implementations.targets import Named, TargetError, load

__all__ = [
    "LAYOUTS",
    "VIEWS",
    "Block",
    "CallError",
    "Framework",
    "Gradients",
    "Implementation",
    "Inputs",
    "LayoutError",
    "MissingPackageError",
    "Named",
    "Observation",
    "Output",
    "Quantized",
    "RegistrationError",
    "Session",
    "TargetError",
    "backward",
    "backward_twice",
    "call",
    "decode",
    "differentiable",
    "discovered",
    "encode",
    "frameworks",
    "gradient_snippet",
    "implementations",
    "left_out",
    "load",
    "missing",
    "natives",
    "observe",
    "require",
    "snippet",
    "unjudged",
    "user_code",
]
