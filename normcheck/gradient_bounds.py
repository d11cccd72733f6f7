"""A-priori bounds on the error of a conforming backward pass, per element.

Notation of `normcheck.bounds`; g = (offset + w)*dy, bars are means over the D elements of a row, N' the divisor of s2, and T the
root under S: T = S for eps ``inside``, sigma for ``outside``. With k = S/T, p = D*k/N' (1 for an ordinary LayerNorm) and
q = p*mean(g*n),

    dx = r*(g - gbar - n*q),

without gbar where no mean is subtracted, and without n*q where S does not move with x: statistics that are given, elements
outside the statistic, a maximum that takes eps.

**Input.** To first order in u and with the second-order products of tau and rho written out:

* r is off by rho, the gain of the forward pass; n by |n|*rho + tau. Statistics that are saved for the backward pass in a
  narrower format of unit roundoff u_s add u_s to rho and u_s*r*|mu| to tau.
* g costs u (2u with an offset), gbar (H+2)*u*G with G = mean|g|, their difference u: in all u*(3|g| + (H+5)*G). With an offset
  g may be the sum of offset*dy and w*dy, and |g| in this and all that follows is max(|offset + w|, |w|)*|dy|.
* q is a sum of products: u*(H+7)*Q with Q = p*mean|g*n|; its factors n bring rho*|q| and, because their common error meets the
  sum of g, tau*p*|gbar|; k brings the relative error of T. A kernel may sum g*x and g apart and subtract mu times the second
  from the first: that costs (H+4)*u*p*r*(mean|g*x| + |mu|*G). Altogether this is dq.
* Differentiated step by step, c = x - mean(x) turns the gradient v of c into v - mean(v), where v already holds n*q: one more
  mean, (H+3)*u*|q|*mean|n| + tau*|q|.
* In place of n*q a kernel may form a*x + b with a = r*q, b = -a*mu: 4u*r*|q|*(|x|+|mu|).

::

    E_dx = |dx|*(rho+3u) + r*(1+rho)*( u*(3|g|+(H+5)*G) + 6u*|n*q| + |n|*dq + (|n|*rho+tau)*(|q|+dq)
           + (H+3)*u*|q|*mean|n| + tau*|q| + 4u*r*|q|*(|x|+|mu|) )

With given statistics E_dx = |dx|*(rho+3u). A second gradient that is added, as a residual's is, costs one rounding of the sum,
and one to storage of the part that came through the norm. With the cast ``before_weight`` g is formed in the storage format, of
unit roundoff u_x: u_x*(|g| + G + |n|*Q) more, in the brackets.

**Sum of a row.** sum(dx) = 0 where a mean is subtracted, and so what is a multiple of dx or of n drops out: of the brackets
remain D*r*(1+rho)*( u*(H+8)*G + 7u*mean|n|*|q| + tau*(2*|q|+dq) + (H+3)*u*mean|n|*|q| + 4u*r*|q|*mean(|x|+|mu|) ).

**Branches.** Code that converts x to the compute format at several places gives x several gradients, each of which autograd
rounds to storage before it adds them. They are as large as r*(|g| + |n*q| + G + mean|n|*|q|), and no more than four: 4*u_x times
this, and half a subnormal of the storage format each.

**Parameters.** dweight = sum(dy*n) and dbias = sum(dy) over the M elements that meet the parameter. With E_n the error of n and
H_M additions on a path,

::

    E_dw = sum |dy|*(E_n + (H_M+3)*u*|n|)           E_db = (H_M+1)*u*sum|dy|

A kernel for parameters that belong to channels may sum dy*x and dy apart: (H_M+4)*u*r*(|x|+|mu|) in place of (H_M+3)*u*|n|. With
the cast ``before_weight`` n is rounded to storage and so is the product: 2*u_x*|n| more. H_M = M passes: real kernels add rows
one after the other. H_M = 32 + ceil(log2 M) is what a tree needs, and is the better grade.

Sources: the exact formulas are those of `normcheck.reference.gradient`; errors of sums as in `normcheck.bounds`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from normcheck.bounds import ErrorClass, RowErrors
from normcheck.formats import Array, Format, Mask
from normcheck.norms import Fold

_BRANCHES = 4


def per_parameter(fold: Fold, rows: Array) -> Array:
    """Sum elements (R, D) over all that meet the same parameter, (parameters,): the transpose of ``fold.affine``."""
    periods = rows.reshape(-1, fold.period, fold.width).sum(axis=0)
    return np.asarray(periods.reshape(fold.period, -1, fold.repeat or fold.width).sum(axis=2).reshape(-1))


@dataclass(frozen=True, eq=False)
class GradientErrors:
    """The quantities of a backward pass from which the bound of any error class follows.

    Attributes
    ----------
    forward : those of the forward pass
    dy : gradient of the output, (R, D)
    fold : how parameters lie along the rows
    storage : format of x and of its gradient
    saved : format in which statistics are kept for the backward pass, None for the compute format
    inner : whether weight and gradient meet in the storage format, as with the cast ``before_weight``
    besides : whether another gradient is added to that of x
    """

    forward: RowErrors
    dy: Array
    fold: Fold
    storage: Format
    saved: Format | None = None
    inner: bool = False
    besides: bool = False

    def dx(self, allowed: ErrorClass, exact: Array) -> Array:
        """E_dx of the module docstring, (R, D); not finite where nothing can be promised.

        Parameters
        ----------
        exact : dx in float64, (R, D)
        """
        u, r = self.forward.compute.u, self._r
        with np.errstate(all="ignore"):
            rho = self._rho(allowed)[:, None]
            error = np.abs(exact)
            error *= rho + 3 * u
            if not self.forward.given:
                inside = self._brackets(allowed)
                inside *= r * (1 + rho)
                error += inside
            if self.besides:
                error = error + u * np.abs(exact) + self._stored(self._through_norm())
            error *= 1 + 4 * u * (allowed.height + 8)
            error += self._underflow(allowed)
            settled = self._settled(allowed)
            if not settled.all():
                error[~settled] = np.inf
            return error

    def branches(self) -> Array:
        """What autograd loses where x has several gradients, each rounded to storage, (R, D)."""
        with np.errstate(all="ignore"):
            n, q = self._abs_n, np.abs(self._q)
            size = self._r * (self._abs_g + n * q + self._mean_g + self._mean(n) * q)
            return _BRANCHES * self._stored(size)

    def dweight(self, allowed: ErrorClass, height: int) -> Array:
        """E_dw of the module docstring, (parameters,), for sums of this height."""
        forward, u = self.forward, self.forward.compute.u
        with np.errstate(all="ignore"):
            n = np.abs(forward.normalized)
            error = forward.standardized(allowed)
            if self.saved is not None:
                error = error + self.saved.u * (n + np.abs(forward.certified.mean)[:, None] * self._r)
            if self.inner:
                error = error + 2 * self.storage.u * n
            if self.fold.repeat != 1 and forward.standardization.center:
                error += (height + 4) * u * self._r * (np.abs(forward.rows) + np.abs(forward.certified.mean)[:, None])
            else:
                n *= (height + 3) * u
                error += n
            error *= np.abs(self.dy)
            total = per_parameter(self.fold, error) * (1 + 4 * u * (allowed.height + 8))
            return total + (height + 1) * forward.compute.min_subnormal

    def dbias(self, height: int) -> Array:
        """E_db of the module docstring, (parameters,), for sums of this height."""
        compute = self.forward.compute
        return (height + 1) * (compute.u * per_parameter(self.fold, np.abs(self.dy)) + compute.min_subnormal)

    @property
    def terms(self) -> int:
        """M, the number of elements that meet one parameter."""
        return self.dy.size // max(self.fold.period * (self.fold.width // self.fold.repeat if self.fold.repeat else 1), 1)

    def height(self, name: Literal["tree", "sequential"]) -> int:
        """H_M of a class of sums over rows."""
        tree = 32 + math.ceil(math.log2(max(self.terms, 1)))
        return tree if name == "tree" else max(self.terms, tree)

    def row_sum(self, allowed: ErrorClass) -> Array:
        """Bound on |sum of dx| over each row, (R,), where a mean is subtracted: see the module docstring."""
        u, h = self.forward.compute.u, allowed.height
        x, mu = np.abs(self.forward.rows), np.abs(self.forward.certified.mean)[:, None]
        with np.errstate(all="ignore"):
            rho, tau = self._rho(allowed)[:, None], self._tau(allowed)
            g, n, q = self._mean_g, self._mean(self._abs_n), np.abs(self._q)
            dq = self._dq(allowed, rho, tau)
            error = u * (h + 8) * g + 6 * u * n * q + tau * (q + dq) + ((h + 3) * u * n + tau) * q
            error = error + u * n * (q + dq) + 4 * u * self._r * q * self._mean(x + mu)
            error = self._r * (1 + rho) * error + self._mean(self._underflow(allowed))
            return np.asarray((self.fold.width * error * (1 + 4 * u * (h + 8)))[:, 0])

    def judged(self) -> Mask:
        """Which rows can be judged, (R,): those of the forward pass on which r**3 and its reciprocal are in range as well."""
        return self._judged

    @functools.cached_property
    def _judged(self) -> Mask:
        top = (self.forward.compute.emax + 1) / 3
        scale = self.forward.certified.scale
        with np.errstate(all="ignore"):
            return np.asarray(self.forward.judged() & (scale > 2.0**-top) & (scale < 2.0**top))

    @functools.cached_property
    def _r(self) -> Array:
        return (1.0 / self.forward.certified.scale)[:, None]

    @functools.cached_property
    def _g(self) -> Array:
        return self.dy if self.forward.weight is None else self.forward.weight * self.dy

    @functools.cached_property
    def _abs_g(self) -> Array:
        size = self.forward.parted
        return np.maximum(np.abs(self._g), size * np.abs(self.dy)) if size.any() else np.abs(self._g)

    @functools.cached_property
    def _mean_g(self) -> Array:
        """G, (R, 1)."""
        return self._mean(self._abs_g)

    @functools.cached_property
    def _n(self) -> Array:
        """n where it moves S, else 0."""
        n = self.forward.normalized
        return n if self._moves.all() else np.where(self._moves, n, 0.0)

    @functools.cached_property
    def _abs_n(self) -> Array:
        return np.abs(self._n)

    @functools.cached_property
    def _moves(self) -> Mask:
        """Which elements enter the statistic, (D,)."""
        return np.arange(self.fold.width) < self.forward.standardization.count(self.fold.width)

    @functools.cached_property
    def _p(self) -> Array:
        std, cert = self.forward.standardization, self.forward.certified
        if self.forward.given:
            return np.zeros((len(cert.scale), 1))
        k = np.ones_like(cert.scale)
        if std.placement == "outside":
            k = np.where(cert.sigma > 0, cert.scale / np.where(cert.sigma > 0, cert.sigma, 1.0), 0.0)
        if std.placement in ("max", "max_inside"):
            k = np.where(cert.sigma >= cert.scale * (1 - 2.0**-30), 1.0, 0.0)
        return (k * self.fold.width / std.divisor(self.fold.width))[:, None]

    @functools.cached_property
    def _q(self) -> Array:
        return self._p * self._mean(self._products)

    @functools.cached_property
    def _products(self) -> Array:
        return self._g * self.forward.normalized

    def _mean(self, values: Array) -> Array:
        return np.asarray(values.sum(axis=1, keepdims=True) / values.shape[1])

    def _rho(self, allowed: ErrorClass) -> Array:
        return self.forward.gain(allowed) + (0.0 if self.saved is None else self.saved.u)

    def _tau(self, allowed: ErrorClass) -> Array:
        tau = self.forward.tau(allowed)[:, None]
        if self.saved is not None:
            tau = tau + self.saved.u * self._r * np.abs(self.forward.certified.mean)[:, None]
        return tau

    def _root_error(self, allowed: ErrorClass) -> Array:
        """Relative error of T beside that of S, (R, 1)."""
        cert, std = self.forward.certified, self.forward.standardization
        if std.placement != "outside":
            return np.zeros((len(cert.scale), 1))
        return self._spread_error(allowed)

    def _spread_error(self, allowed: ErrorClass) -> Array:
        """Relative error of sigma, (R, 1)."""
        cert = self.forward.certified
        share = np.where(cert.sigma > 0, cert.sigma / cert.scale, np.nan)[:, None]
        tau = self.forward.tau(allowed)[:, None] / share
        merged = math.sqrt(2) * tau if allowed.merges else 0.0
        own = self.forward.compute.u * (0.5 * (allowed.height + 4) + allowed.roundings)
        return np.nan_to_num(own + tau * tau + merged, nan=0.0)

    def _settled(self, allowed: ErrorClass) -> Mask:
        """Rows on which it is certain which side a maximum takes, (R,)."""
        cert, std = self.forward.certified, self.forward.standardization
        if self.forward.given or std.placement not in ("max", "max_inside"):
            return np.ones(len(cert.scale), bool)
        eps = std.eps if std.placement == "max" else math.sqrt(std.eps)
        margin = 2 * self._spread_error(allowed)[:, 0] + 2.0**-30
        return np.asarray(np.abs(cert.sigma - eps) > margin * np.maximum(cert.sigma, eps))

    def _brackets(self, allowed: ErrorClass) -> Array:
        u, h, center = self.forward.compute.u, allowed.height, self.forward.standardization.center
        rho, tau = self._rho(allowed)[:, None], self._tau(allowed)
        g, n, q = self._abs_g, self._abs_n, np.abs(self._q)
        size = self._mean_g if center else 0.0
        dq = self._dq(allowed, rho, tau)
        error = 3 * g
        error += (h + 5) * size
        error *= u
        part = 6 * u * n
        part *= q
        error += part
        error += np.multiply(n, dq, out=part)
        moved = np.multiply(n, rho, out=part)
        moved += tau
        moved *= q + dq
        error += moved
        error += self._applied(4 * u * self._r * q)
        if center:
            error += ((h + 3) * u * self._mean(n) + tau) * q
        if self.inner:
            least = 0.5 * self.storage.min_subnormal
            products = n * self._sizes
            error = error + self.storage.u * (g + size + products) + least * (2 + n * self._p * self._mean(n))
        return error

    def _applied(self, factor: Array) -> Array:
        """A factor (R, 1) times |x| + |mu| where x moves S, else 0; (R, D)."""
        size = np.abs(self.forward.rows)
        size += np.abs(self.forward.certified.mean)[:, None]
        if not self._moves.all():
            size[:, ~self._moves] = 0.0
        size *= factor
        return size

    @functools.cached_property
    def _sizes(self) -> Array:
        """Q, (R, 1)."""
        return self._p * self._mean(self._abs_g * np.abs(self.forward.normalized))

    @functools.cached_property
    def _apart(self) -> Array:
        mu = np.abs(self.forward.certified.mean)[:, None]
        return self._p * self._r * (self._mean(self._abs_g * np.abs(self.forward.rows)) + mu * self._mean_g)

    def _dq(self, allowed: ErrorClass, rho: Array, tau: Array) -> Array:
        u, h = self.forward.compute.u, allowed.height
        own = u * ((h + 7) * self._sizes + (h + 4) * self._apart)
        return own + (rho + self._root_error(allowed)) * np.abs(self._q) + tau * self._p * np.abs(self._mean(self._g))

    def _stored(self, size: Array) -> Array:
        """The error of rounding values of this size to storage."""
        return np.asarray(self.storage.u * size + 0.5 * self.storage.min_subnormal)

    def _through_norm(self) -> Array:
        """Size of the part of dx that came through the norm."""
        if self.forward.given:
            return np.abs(self._r * self._g)
        centred = self._g - self._mean(self._g) if self.forward.standardization.center else self._g
        return np.abs(self._r * (centred - self._n * self._q))

    def _underflow(self, allowed: ErrorClass) -> Array:
        eta, h, r = self.forward.compute.min_subnormal, allowed.height, self._r
        lost = self._abs_n * (1 + r)
        lost *= np.abs(self._p)
        lost += 1
        lost *= (h + 4) * r
        lost += 2
        lost *= eta
        return lost
