"""For people's own tests: `parametrize` audits an implementation in pytest, the assert helpers judge single results."""

from normcheck.testing.asserts import assert_norm, assert_norm_grad, tolerance
from normcheck.testing.items import parametrize

__all__ = ["assert_norm", "assert_norm_grad", "parametrize", "tolerance"]
