"""Births and deaths of features, with B integrated out: what the responses ask for and the present state leaves out.

Among many features one that is needed but has a small scale is seldom looked at. Here a feature is *in* when its scale lets the
data speak (lam_p² d² ‖x_p‖² > 1 for the largest d), else *out*. A birth takes one of those that are out with a probability that
grows with its score on what the present state leaves unexplained, X_pᵀM⁻¹y with M = I + d²G, and proposes a scale about the one
the data resolve; a death takes one of those that are in, all equally likely, and proposes a scale from the prior below the limit.
Either is accepted with the Metropolis–Hastings ratio. The score is always that of the state in which the feature is out, so both
directions know their probabilities exactly, and each attempt costs one pass over X.

The factored systems are those of the sweep before, which has left the local scales alone; B is drawn anew right after.
"""

import math
from typing import Any, NamedTuple

from intarsia.server.sampler.backends.protocol import Array, Backend, Factor
from intarsia.server.sampler.priors import HalfCauchy, Law

ATTEMPTS = 4  # births or deaths per full sweep
_PRIOR = HalfCauchy()
_LOG_TWO_OVER_PI = math.log(2 / math.pi)
_LEAST_LEFT = 1e-7  # share of a feature's variance below which it cannot be taken out of the systems to double precision


class Systems(NamedTuple):
    """M_j = I + d_j² G at the scales `lam`, the responses rotated and whitened, and the local law."""

    factor: Factor
    X: Array
    norm2: Array
    d: Array
    Yr: Array  # (rows, R)
    law: Law


class Numbers(NamedTuple):
    """Uniform variates of the attempts, (ATTEMPTS) each."""

    which: Array  # birth or death
    take: Array  # which feature
    value: Array  # its new scale
    accept: Array


def needs() -> dict[str, tuple[str, tuple[int, ...], float]]:
    """The random numbers of one call."""
    return {f"search.{name}": ("uniform", (ATTEMPTS,), 0.0) for name in Numbers._fields}


class _Feature(NamedTuple):
    """One feature's conditional: t = log lam enters through x² = da·lam² and zz alone."""

    da: Array
    zz: Array
    a: Array
    solved: Array  # M⁻¹x (rows, R)
    usable: Array

    def log_density(self, be: Backend, law: Law, t: Array) -> Array:
        xp = be.xp
        x2 = xp.minimum(self.da * xp.exp(2 * t), 1e300)
        return 0.5 * (self.zz * (x2 / (1 + x2)) - xp.log1p(x2)).sum() + law.log_density(xp, t)

    def centre(self, be: Backend) -> Array:
        return 1.0 - 0.5 * be.xp.log(be.xp.maximum(self.da.max(), 1e-300))


def search(be: Backend, systems: Systems, lam: Array, numbers: Numbers) -> tuple[Array, Array]:
    """New local scales, and which attempts were accepted."""
    xp = be.xp
    factor, X, norm2, d, Yr, law = systems
    P, d2 = lam.shape[0], d**2
    log_limit = -0.5 * xp.log(xp.maximum(norm2 * d2.max(), 1e-300))  # log lam above which a feature is in
    V = _solve(factor, d, Yr.T[:, :, None])
    moved: list[tuple[Array, Array]] = []  # M⁻¹x of the features that moved, and the factor of their rank-one change
    accepted = []
    for i in range(ATTEMPTS):
        death = numbers.which[i] < 0.5
        inside = xp.log(lam) > log_limit
        count = inside.sum()
        p_death = _choose(xp, 1.0 * inside, numbers.take[i])
        leaving = _feature(be, systems, lam, V, p_death, moved)
        t_death = xp.log(xp.tan(xp.maximum(numbers.value[i], 1e-12) * xp.arctan(xp.exp(log_limit[p_death]))))
        without = V - _change(d2, leaving, lam[p_death], xp.exp(t_death)) * leaving.solved * (X[:, p_death] @ V)
        weight = _weights(xp, X, norm2, be.cross(X, xp.where(death, without, V)), xp.where(death, without, V))
        weight = xp.where(inside & ~(death & (xp.arange(P) == p_death)), 0.0, weight)
        total = weight.sum()
        p_birth = _choose(xp, weight, numbers.take[i])
        coming = _feature(be, systems, lam, V, p_birth, moved)
        p = xp.where(death, p_death, p_birth)
        one = _Feature(*(xp.where(death, x, y) for x, y in zip(leaving, coming, strict=True)))
        now, low = xp.log(lam[p]), log_limit[p]
        centre = one.centre(be)
        below = 1 / (1 + xp.exp(centre - low))  # the logistic law's mass below the limit
        t_birth = centre + _logit(xp, below + (1 - below) * xp.clip(numbers.value[i], 1e-12, 1 - 1e-12))
        new = xp.where(death, t_death, t_birth)
        inner, outer = xp.where(death, now, new), xp.where(death, new, now)  # the scale when in, and when out
        log_birth = (
            xp.log(xp.maximum(weight[p], 1e-300) / xp.maximum(total, 1e-300)) + _logistic(xp, inner - centre) - xp.log1p(-below)
        )
        log_inside = xp.log(xp.maximum(xp.where(death, count, count + 1.0), 1.0))
        log_death = -log_inside + _log_prior_below(xp, outer, low)
        gain = one.log_density(be, law, new) - one.log_density(be, law, now)
        ratio = gain + xp.where(death, log_birth - log_death, log_death - log_birth)
        possible = one.usable & (xp.where(death, count, P - count) > 0) & (new > -34.0) & (new < 34.0)
        accept = possible & (xp.log(numbers.accept[i]) < ratio)
        rho = xp.where(accept, _change(d2, one, lam[p], xp.exp(new)), 0.0)
        V = V - rho * one.solved * (X[:, p] @ V)
        moved.append((one.solved, rho))
        lam = be.put(lam, p, xp.where(accept, xp.exp(new), lam[p]))
        accepted.append(accept)
    return lam, xp.stack(accepted)


def _solve(factor: Factor, d: Array, rhs: Array) -> Array:
    """M_j⁻¹ of one column per system, rhs (R, rows, 1) rotated already; the answer (rows, R) is not."""
    return factor.unrotate(factor.solve(d, rhs)[:, :, 0].T)


def _feature(be: Backend, systems: Systems, lam: Array, V: Array, p: Array, moved: list[tuple[Array, Array]]) -> _Feature:
    """The conditional of feature p's scale, the other scales as they are, B integrated out."""
    xp, d2 = be.xp, systems.d**2
    x = systems.X[:, p]
    column = systems.factor.rotate(x[:, None])
    solved = _solve(systems.factor, systems.d, xp.broadcast_to(column, (d2.shape[0], *column.shape)))
    for other, rho in moved:
        solved = solved - rho * other * (x @ other)
    a, z = x @ solved, x @ V
    left = 1 - d2 * lam[p] ** 2 * a
    usable = left.min() > _LEAST_LEFT
    left = xp.maximum(left, _LEAST_LEFT)
    a = xp.maximum(a, 1e-300)
    return _Feature(d2 * a / left, z**2 / (a * left), a, solved, usable)


def _change(d2: Array, feature: _Feature, old: Array, new: Array) -> Array:
    """The factor of the rank-one change of each M_j⁻¹ when a scale moves."""
    change = d2 * (new**2 - old**2)
    return change / (1 + change * feature.a)


def _weights(xp: Any, X: Array, norm2: Array, T: Array, V: Array) -> Array:
    """How readily each feature is taken: one, and more where its score passes what chance gives the best of P."""
    level = xp.maximum((V**2).mean(axis=0), 1e-300)  # about the mean of the diagonal of each M⁻¹
    score = (T**2 / level).sum(axis=1) / xp.maximum(norm2, 1e-300)
    log_P = math.log(X.shape[1])
    return xp.exp(xp.clip(0.5 * score - log_P, 0.0, log_P))


def _choose(xp: Any, weight: Array, u: Array) -> Array:
    total = xp.cumsum(weight)
    return xp.minimum((total < u * total[-1]).sum(), weight.shape[0] - 1)


def _logit(xp: Any, u: Array) -> Array:
    return xp.log(u) - xp.log1p(-u)


def _logistic(xp: Any, x: Array) -> Array:
    """Log density of the logistic law."""
    v = xp.abs(x)
    return -v - 2 * xp.log1p(xp.exp(-v))


def _log_prior_below(xp: Any, t: Array, limit: Array) -> Array:
    """Log density of t = log lam under C⁺(0,1) truncated to t < limit."""
    return _PRIOR.log_density(xp, t) + _LOG_TWO_OVER_PI - xp.log(xp.arctan(xp.exp(limit)) * (2 / math.pi))
