"""Certified values of norms."""

from normcheck.reference.forward import reference
from normcheck.reference.ladder import Certified, certify, correctly_rounded

__all__ = ["Certified", "certify", "correctly_rounded", "reference"]
