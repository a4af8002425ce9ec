"""Which features are in, how likely each is to be, and whom the borderline move looks at where there are many features.

A feature is *in* when its scale lets the data speak (log lam ‖x‖ above a limit that is fixed after the warm-up), else *out*.
Among many features one that is needed but out is seldom looked at if all are looked at equally often. So in the warm-up each
feature that is out is scored on what the present state leaves unexplained, X_pᵀM⁻¹y with M = I + d²G: one pass over X. The mean
of what the scores say is how often a feature that is out is taken for the borderline move; those that are in are taken (nearly)
always.

Being taken then depends on the scale itself, which `state.Border` corrects: scales λ and the set S of features taken have the
joint law p(λ | data) p(S | λ), and the move keeps that law given S.
"""

from typing import NamedTuple

from intarsia.server.sampler import conditionals
from intarsia.server.sampler.backends.protocol import Array, Backend, Factor
from intarsia.server.sampler.priors import Law
from intarsia.server.sampler.schedule import Plan
from intarsia.server.sampler.state import Border, Data, State, Tuning

_GRID, _BELOW, _ABOVE = 0.6, 8, 14  # step of log lam, and steps below and above log lam ‖x‖ = -log d
_HIGHER = 1  # steps by which the limit lies above that where sweeps share a system: the borderline move has few places there
_LEAST, _STEPS = -12.0, 64  # log lam below which the law has nearly no mass, and steps from there to the grid


def choose(be: Backend, plan: Plan, data: Data, tuning: Tuning, lam: Array, u: Array) -> Border:
    """By `u` (P): K features without replacement, weighted by doubt (Gumbel keys), or among many features each on its own."""
    xp, K = be.xp, plan.borderline
    if not plan.searches:
        features = be.largest(tuning.doubt - xp.log(-xp.log(u)), K)
        return Border(features, xp.ones(K, dtype=bool), xp.zeros(K), xp.ones(K))
    edge = xp.exp(tuning.limit) / xp.sqrt(xp.maximum(data.norm2, 1e-300))
    taken = xp.log(u) < xp.where(lam > edge, tuning.rate, tuning.doubt)
    features = be.members(taken, K)
    fits = taken.sum() <= K  # else none moves; that depends on who was taken alone
    return Border(features, taken[features] & fits, edge[features], xp.exp((tuning.doubt - tuning.rate)[features]))


class Scored(NamedTuple):
    """How likely each feature is to be in (P), 1 for those that are, and the limit of log lam ‖x‖."""

    likely: Array
    limit: Array


def scored(be: Backend, plan: Plan, data: Data, state: State, factor: Factor) -> Scored:
    """Scores of all features; `factor` is that of X diag(lam²) Xᵀ."""
    xp = be.xp
    rotation = plan.covariance(data.noise_scale).rotation(be, state.Sigma)
    s = (rotation.variances / plan.model.power) ** 0.5
    U, d, _ = conditionals.whiten(be, rotation.U.T @ state.A, state.tau, s)
    Yr = factor.rotate((data.Y @ rotation.U / s) @ U)
    V = factor.unrotate(factor.solve(d, Yr.T[:, :, None])[:, :, 0].T)
    higher = 0 if plan.wide else _HIGHER
    limit = higher * _GRID - xp.log(xp.maximum(d.max(), 1e-300))
    inside = xp.log(state.lam) + 0.5 * xp.log(xp.maximum(data.norm2, 1e-300)) > limit
    mean = data.norm2.mean()
    T = be.cross(data.X, V) * xp.sqrt(mean / xp.maximum(data.norm2, 1e-3 * mean))[:, None]  # of a column of the mean length
    likely = inclusion(be, plan.laws.local, d, mean, T, (V**2).mean(axis=0), higher)
    return Scored(xp.where(inside, 1.0, likely), limit)


def inclusion(be: Backend, law: Law, d: Array, norm2: Array, T: Array, level: Array, higher: int = 0) -> Array:
    """(P) how likely each feature that is out is to be in, by its scores T = XᵀM⁻¹y, with all columns taken to be as long.

    `level` is about the mean of the diagonal of each M⁻¹. The conditional of t = log lam is summed on a grid above and below the
    limit, which lies `higher` steps of the grid above the scale that the data resolve. It only says how often to look, so it may
    be rough.
    """
    xp, d2 = be.xp, d**2
    length, level = xp.maximum(norm2, 1e-300), xp.maximum(level, 1e-300)
    limit = -0.5 * xp.log(xp.maximum(length * d2.max(), 1e-300))
    t = limit + _GRID * (xp.arange(-_BELOW, _ABOVE) + 0.5)
    x2 = (d2 * level)[:, None] * length * xp.exp(2 * t)
    prior = law.log_density(xp, t)
    shape = prior - 0.5 * xp.log1p(x2).sum(axis=0)
    density = xp.exp(xp.minimum(0.5 * ((T**2 / (level * length)) @ (x2 / (1 + x2))) + shape - shape.max(), 600.0))
    # Below the grid the data say nothing: the law's mass there, in steps of the grid.
    width = xp.maximum(t[0] - 0.5 * _GRID - _LEAST, 0.0) / _STEPS
    below = (xp.exp(law.log_density(xp, _LEAST + width * (xp.arange(_STEPS) + 0.5)) - shape.max()) * width / _GRID).sum()
    at = _BELOW + higher
    out, inside = density[:, :at].sum(axis=1) + below, density[:, at:].sum(axis=1)
    return inside / (out + inside)
