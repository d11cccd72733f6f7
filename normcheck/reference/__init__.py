"""Certified values of norms and of their derivatives."""

from normcheck.reference.backward import Gradients, reference_grad
from normcheck.reference.device import reference_on_device
from normcheck.reference.forward import reference
from normcheck.reference.ladder import Certified, certify, correctly_rounded
from normcheck.reference.products import reference_hvp, reference_jvp

__all__ = [
    "Certified",
    "Gradients",
    "certify",
    "correctly_rounded",
    "reference",
    "reference_grad",
    "reference_hvp",
    "reference_jvp",
    "reference_on_device",
]
