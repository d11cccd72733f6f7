"""A-priori bounds on the error of a conforming forward pass, per element; `normcheck.cells` holds outputs against them.

Notation: u unit roundoff of the compute format, H the largest number of additions on a path of a summation tree, x a row of D
elements with mean mu, A = mean|x|, c = x - mu, s2 the reduced squares, sigma = sqrt(s2), S the denominator, r = 1/S, n = c*r.

**Statistics.** A sum in any order of height H has error at most H*u*sum|x| to first order, so the computed mean is mu + e with
|e| <= (H+1)*u*A. In units of the output that is ``tau = r*(A*(H+1)*u + eta*(H+1)/2)``, with eta the smallest subnormal for the
additions that underflow. Since sum c = 0, the mean of (x-mu-e)**2 is s2 + e**2 exactly: in two passes an error of the mean enters
the variance only in second order, while subtraction, square, sum and division cost (H+4)*u of s2, without a mean (H+2)*u.
Kernels that merge partial variances (Welford, Chan) add 2*sqrt(2)*e*sigma to s2 and, where a long part meets a short tail,
``3*u*r*max|x|`` to tau: that merge rounds the mean to u*max|x|, unweighted by the length of the tail.

**Denominator.** A relative error delta of s2 moves S by ``phi*delta/2`` with phi = s2/(s2+eps) for eps ``inside``,
sigma/(sigma+eps) ``outside``, 1 for ``none``, and for ``max`` and ``max_inside`` 1 where the spread is or can become the larger
of the two, else 0. An addition of e**2 to s2 moves S by at most ``tau**2/2`` where S**2 = s2 + ..., and by
``min(tau, tau**2/(2*sigma*r))`` where S = sigma + ... or max(sigma, ...), from sqrt(s2+e**2) - sigma <= min(e, e**2/(2*sigma)).
With ddof = 1 the added square is e**2*D/(D-1). A merge moves S by ``sqrt(2)*tau*phi/(sigma*r)``. Adding eps, root, reciprocal and
product cost 6u (5u without a mean); hardware reciprocal roots of 2 ulp make it 9u (8u).

**Application.** Instead of c*r a kernel may compute x*r - mu*r, which costs ``u*r*(|x|+|mu|)`` per element, and may fold the
affine bias into the same constant, ``u*|b|``. Weight and bias cost u each of their results. A weight with an offset costs one
addition more: u of the sum where offset and weight are added first, and u of the product where weight*n is added to offset*n.
With given statistics tau and delta vanish, and kernels prepare a scale s = w*r and a shift t = b - mu*r*w ahead. The two products
need not share their roundings: s costs u, x*s another, mu*r*w two, t one of |b| + |mu*r*w|, which without a fused multiply-add
makes ``u*r*(2|x|+3|mu|)``.

**Underflow.** Each product or quotient below the normal range loses up to eta, once for n, once times |w|, and once for y where
the output format is the compute format. A weight that multiplies c before the division loses eta there, which 1/S enlarges. Where
subnormal numbers are flushed, eta is the smallest normal value, and an input that is flushed loses |w|*eta/S.

Altogether, before the rounding to the output format::

    E = |w| * (tau + u*r*(|x|+|mu|) + |n| * (u*((H+4)*phi/2 + k) + quadratic + merge)) * (1 + 4u(H+8))
        + u*|w*n|*[weight] + u*max(|w|, |w-offset|)*|n|*[weight offset] + u*(|y|+|b|)*[bias] + underflow

with w the sum of offset and weight.

Sources: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., chapters 3 and 4 (sums); Chan, Golub and LeVeque 1983
(variances); the rest is derived above.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from normcheck.contract import Contract
from normcheck.formats import FORMATS, Array, Format, Mask
from normcheck.norms import Standardization
from normcheck.reference import Certified

ClassName = Literal["strict", "tree", "sequential"]
CLASS_NAMES: tuple[ClassName, ...] = ("strict", "tree", "sequential")


@dataclass(frozen=True)
class ErrorClass:
    """What a class of kernels is allowed.

    Attributes
    ----------
    height : H, additions on the longest path of a summation tree
    roundings : k, roundings from the variance to the standardized value, in u
    merges : whether partial variances may be merged
    """

    height: int
    roundings: int
    merges: bool


@functools.lru_cache(maxsize=1024)
def error_class(name: ClassName | int, count: int, center: bool) -> ErrorClass:
    """The allowance of a class for statistics over ``count`` elements.

    ``strict``: a bare binary tree, H = ceil(log2 D), correctly rounded roots. ``tree``: up to 32 serial additions in each lane
    below such a tree, 2-ulp reciprocal roots, merges. ``sequential``: one running sum, never less than ``tree``. An integer is a
    declared H and takes the place of the tree's.
    """
    levels = math.ceil(math.log2(max(count, 1)))
    if name == "strict":
        return ErrorClass(levels, 6 if center else 5, False)
    roundings = 9 if center else 8
    if isinstance(name, int):
        return ErrorClass(name, roundings, True)
    tree = 32 + levels
    return ErrorClass(tree if name == "tree" else max(count, tree), roundings, True)


@dataclass(frozen=True, eq=False)
class RowErrors:
    """The quantities of rows (R, D) from which the bound of any error class follows.

    Attributes
    ----------
    rows : the input rows, (R, D)
    certified : unrounded reference of y = w*n + b (of n itself for the cast ``before_weight``)
    standardization : what the norm does to a row
    compute : format of the arithmetic
    weight : offset + w, of a shape that broadcasts to the rows, or None
    bias : the bias, of a shape that broadcasts to the rows, or None
    offset : what was added to the weight, 0 if it is used as it is
    given : whether the statistics were given
    out_is_compute : whether the output format is the compute format
    flushes : whether every subnormal number, inputs included, may become zero
    through_float32 : whether the result may be rounded to float32 on its way to a narrower output, as frameworks cast float64
    """

    rows: Array
    certified: Certified
    standardization: Standardization
    compute: Format
    weight: Array | None = None
    bias: Array | None = None
    offset: float = 0.0
    given: bool = False
    out_is_compute: bool = True
    flushes: bool = False
    through_float32: bool = False

    def bound(self, allowed: ErrorClass) -> Array:
        """E of the module docstring, (R, D), with the reference's own err added; not finite where nothing can be promised."""
        return self.bounds(allowed)[0]

    def bounds(self, *classes: ErrorClass) -> list[Array]:
        """E of each class, made once."""
        new = [allowed for allowed in dict.fromkeys(classes) if allowed not in self._kept]
        if new:
            self._kept.update(zip(new, self._bounds(new), strict=True))
        return [self._kept[allowed] for allowed in classes]

    @functools.cached_property
    def _kept(self) -> dict[ErrorClass, Array]:
        return {}

    def _bounds(self, classes: Iterable[ErrorClass]) -> list[Array]:
        with np.errstate(all="ignore"):
            n, applied, parts = np.abs(self.normalized), self._applied(), self._other_errors()
            weight = None if self.weight is None else np.abs(self.weight)
            found = []
            for allowed in classes:
                bound = n * self.gain(allowed)[:, None]
                bound += applied + self.tau(allowed)[:, None]
                bound *= 1 + 4 * self.compute.u * (allowed.height + 8)
                if weight is not None:
                    bound *= weight
                for part in parts:
                    bound += part
                found.append(bound)
            return found

    def tau(self, allowed: ErrorClass) -> Array:
        """Error of the mean in units of the output, (R,): the common mode. Zero where no mean is computed."""
        if allowed not in self._taus:
            self._taus[allowed] = self._tau(allowed)
        return self._taus[allowed]

    def _tau(self, allowed: ErrorClass) -> Array:
        if self.given or not self.standardization.center:
            return np.zeros(len(self.rows))
        u, cert, adds = self.compute.u, self.certified, allowed.height + 1
        # quotients first: products with u of values near the float64 limits would underflow
        relative = cert.abs_mean / cert.scale * (adds * u) + cert.max_abs / cert.scale * (3 * u * allowed.merges)
        return relative + math.ceil(adds / 2) * self.eta / cert.scale

    def judged(self) -> Mask:
        """Which rows can be judged by the bound, (R,): finite, with sums of squares in the compute format's range (S**2 at least
        2**(emin+p), so that no underflow of the variance exceeds u).
        """
        return self._judged

    @functools.cached_property
    def _judged(self) -> Mask:
        count = self.standardization.count(self.rows.shape[1])
        top = math.sqrt(self.compute.max) * (1 - 2.0**-10)
        floor = math.sqrt(math.ldexp(1.0, self.compute.emin + self.compute.p))
        cert = self.certified
        with np.errstate(all="ignore"):
            spread = cert.sigma * math.sqrt(self.standardization.divisor(self.rows.shape[1]))
            total_fits = cert.abs_mean < self.compute.max / (2 * max(count, 1))
            fits = (spread < top) & total_fits if not self.given else np.ones(len(self.rows), bool)
            return fits & (cert.scale >= floor) & (cert.scale < np.inf)

    def gain(self, allowed: ErrorClass) -> Array:
        """Relative error of the factor r by which deviations become the standardized value, (R,), the roundings of n included."""
        if allowed not in self._gains:
            self._gains[allowed] = self._gain(allowed)
        return self._gains[allowed]

    def _gain(self, allowed: ErrorClass) -> Array:
        cert = self.certified
        with np.errstate(all="ignore"):
            share = cert.sigma / cert.scale
            tau = self.tau(allowed)
            phi = np.zeros_like(share) if self.given else self._phi(share)
            lost = 4 if self.standardization.center else 2
            gain = self.compute.u * (0.5 * (allowed.height + lost) * phi + allowed.roundings) + self._quadratic(tau, share)
            if allowed.merges:
                gain = gain + np.where(share > 0, math.sqrt(2) * tau * phi / np.where(share > 0, share, 1), 0)
            return np.asarray(gain)

    def standardized(self, allowed: ErrorClass) -> Array:
        """Error of the standardized value n, (R, D), to first order in u(H+8)."""
        error = np.abs(self.normalized)
        error *= self.gain(allowed)[:, None]
        error += self._applied() + self.tau(allowed)[:, None]
        return error

    def _applied(self) -> Array:
        """Error of the application as x*r - mu*r; (R, D), or 0 where no mean is subtracted."""
        if not self.standardization.center:
            return np.zeros(1)
        applied = np.abs(self.rows)
        if self.given:
            applied *= 2
        applied += (3 if self.given else 1) * np.abs(self.certified.mean)[:, None]
        applied /= self.certified.scale[:, None]
        applied *= self.compute.u
        return applied

    @functools.cached_property
    def _taus(self) -> dict[ErrorClass, Array]:
        return {}

    @functools.cached_property
    def _gains(self) -> dict[ErrorClass, Array]:
        return {}

    def _phi(self, share: Array) -> Array:
        std = self.standardization
        if std.placement == "inside":
            return np.square(share)
        if std.placement == "outside":
            return share
        if std.placement == "none":
            return np.ones_like(share)
        # max: at S >= 2 sigma no error below 100 % can make the spread the larger one
        return np.where(share >= 0.5, 1.0, 0.0)

    def _quadratic(self, tau: Array, share: Array) -> Array:
        width = self.rows.shape[1]
        square = tau * tau * (width / max(width - self.standardization.ddof, 1))
        if self.standardization.placement in ("inside", "max_inside", "none"):
            return np.asarray(0.5 * square)
        return np.asarray(np.minimum(np.sqrt(square), square / (2 * np.where(share > 0, share, 1e-300))))

    @functools.cached_property
    def normalized(self) -> Array:
        """n in float64, (R, D); for bounds, never for judging."""
        with np.errstate(all="ignore"):
            normalized = self.rows - self.certified.mean[:, None]
            normalized /= self.certified.scale[:, None]
            return np.asarray(normalized)

    @property
    def parted(self) -> Array:
        """Size of the larger of what a weight with an offset is made of, and the sum; 0 without an offset or a weight."""
        if self.weight is None or self.offset == 0:
            return np.zeros(1)
        return np.maximum(np.abs(self.weight), np.abs(self.weight - self.offset))

    def _other_errors(self) -> list[Array]:
        """What every class adds to |w| times the error of n, in this order: of weight, bias, reference, underflow and cast."""
        u, parts = self.compute.u, [self.certified.err, self._underflow()]
        if self.bias is not None:
            added = np.abs(self.certified.hi)
            added += np.abs(self.bias)
            added *= u
            parts.insert(0, added)
        if self.weight is not None:
            scaled = (np.abs(self.weight) + self.parted) * self.normalized
            np.abs(scaled, out=scaled)
            scaled *= u
            parts.insert(0, scaled)
        if self.through_float32:
            parts.append(FORMATS["float32"].u * np.abs(self.certified.hi))
        return parts

    def _underflow(self) -> Array:
        """Roundings below the normal range: of n, w*n and y; of w*c where a weight multiplies before the division; and of an
        input that is flushed.
        """
        eta, weight = self.eta, 0.0 if self.weight is None else np.abs(self.weight)
        early = 0.0 if self.weight is None else 1.0
        late = 1.0 if self.weight is None else weight
        before = eta / self.certified.scale[:, None] * (early + late * self.flushes)
        return np.asarray(eta * (1 + weight) + eta * self.out_is_compute + before)

    @property
    def eta(self) -> float:
        """What one underflow can lose: the smallest subnormal, or the smallest normal value where subnormals are flushed."""
        return self.compute.min_normal if self.flushes else self.compute.min_subnormal


def classes_of(contract: Contract, count: int, center: bool) -> dict[ClassName, ErrorClass]:
    """The three error classes for a contract; a declared height takes the place of the tree's."""
    declared = contract.accumulation
    tree: ClassName | int = declared if isinstance(declared, int) else "tree"
    return {
        "strict": error_class("strict", count, center),
        "tree": error_class(tree, count, center),
        "sequential": error_class("sequential", count, center),
    }
