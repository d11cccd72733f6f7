"""Checks: one property each, one module per family; the docstring of a check is its page."""

from normcheck.checks.base import HEADINGS, Check, Context, FormError, SkipCaseError, checks, register, run_check

__all__ = ["HEADINGS", "Check", "Context", "FormError", "SkipCaseError", "checks", "register", "run_check"]
