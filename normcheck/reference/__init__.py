"""Certified values of norms."""

from normcheck.reference.backward import Gradients, reference_grad
from normcheck.reference.forward import reference
from normcheck.reference.ladder import Certified, certify, correctly_rounded

__all__ = ["Certified", "Gradients", "certify", "correctly_rounded", "reference", "reference_grad"]
