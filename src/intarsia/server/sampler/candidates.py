"""Scales to choose among: fresh candidates and the present one, with the weights by which one of them is picked.

To pick by importance weight among independent candidates and the present scale leaves the scale's conditional invariant (iterated
sampling importance resampling). Candidates come half from C⁺(0,1), half from a logistic law of log lam about the scale that the
data resolve, so that among many features both "out" and "in" are on offer whatever the present state.
"""

import math
from typing import NamedTuple

from intarsia.server.sampler.backends.protocol import Array, Backend
from intarsia.server.sampler.priors import HalfCauchy, Law

_PRIOR = HalfCauchy()
LOG_HALF_PI = math.log(math.pi / 2)
LARGEST = 1e8  # lam² times its precision beyond which a feature cannot be taken out again: outside the support of this move


class Fresh(NamedTuple):
    """Numbers (…, T) that candidates are made of: log lam from C⁺(0,1), a logistic variate, and whether the first counts."""

    prior: Array
    logistic: Array
    mix: Array

    @classmethod
    def of(cls, be: Backend, value: Array, mix: Array) -> "Fresh":
        """From uniform variates."""
        xp = be.xp
        return cls(xp.log(xp.tan(xp.pi / 2 * value)), xp.log(value) - xp.log1p(-value), mix < 0.5)


def weighed(be: Backend, law: Law, precision: Array, z2: Array, lam: Array, fresh: Fresh) -> tuple[Array, Array]:
    """Logarithms of the scales (…, T + 1), the present `lam` (…) last, and of their weights.

    The data say of a feature with scale lam that its z scores in R directions are N(0, 1 + precision lam²); `z2` are their
    squares, both (…, R).
    """
    xp = be.xp
    centre = 1.0 - 0.5 * xp.log(xp.maximum(precision.max(axis=-1), 1e-300))[..., None]
    t = xp.concatenate([xp.where(fresh.mix, fresh.prior, centre + fresh.logistic), xp.log(lam)[..., None]], axis=-1)
    x2 = xp.minimum(precision[..., None, :] * xp.exp(2 * t)[..., None], 1e300)
    fit = 0.5 * (z2[..., None, :] * (x2 / (1 + x2)) - xp.log1p(x2)).sum(axis=-1)
    v = xp.abs(t - centre)
    base = _PRIOR.log_density(xp, t)
    proposal = xp.logaddexp(base - LOG_HALF_PI, -v - 2 * xp.log1p(xp.exp(-v)))
    weight = fit + (base if isinstance(law, HalfCauchy) else law.log_density(xp, t)) - proposal
    return t, xp.where(x2.max(axis=-1) < LARGEST, weight, -xp.inf)


def picked(be: Backend, t: Array, weight: Array, lam: Array, u: Array) -> Array:
    """One of the scales by weight, with uniform `u` (…): `lam` itself where the last, the present one, is picked."""
    xp, last = be.xp, t.shape[-1] - 1
    best = weight.max(axis=-1, keepdims=True)
    share = xp.exp(weight - xp.where(xp.isfinite(best), best, 0.0))
    # The first up to which the shares add up to u times all; not by a running sum, which takes a device many small steps.
    up_to = xp.tril(xp.ones((last + 1, last + 1)))
    at = ((share[..., None, :] * (up_to - u[..., None, None])).sum(axis=-1) < 0).sum(axis=-1)
    new = xp.exp(xp.take_along_axis(t, xp.minimum(at, last)[..., None], axis=-1)[..., 0])
    return xp.where(at < last, new, lam)
