"""Moves with B integrated out, for row scales: the noise's covariance, the global scale, borderline features.

After one factorisation of G = X diag(lam²) Xᵀ the marginal likelihood costs O(mR) per evaluation, and so do B's systems.
"""

import math
from typing import Any, NamedTuple

from intarsia.server.sampler.backends.protocol import Array, Backend, Factor
from intarsia.server.sampler.covariance import Covariance, Root
from intarsia.server.sampler.priors import HalfCauchy, Law
from intarsia.server.sampler.state import EXACT, Border

_PRIOR = HalfCauchy()
SHAPES = 0.15, 0.3, 0.6  # standard deviations of the logarithms by which A is stretched, in turn
LOG_HALF_PI = math.log(math.pi / 2)


def without_features(xp: Any, at: Root, rss0: Array, rows: float, power: float) -> Array:
    """What does not depend on the features in the log likelihood of Sigma: its normaliser, and the rows no feature reaches."""
    # The likelihood's power acts on its normaliser too.
    return -0.5 * power * (((at.K @ rss0) * at.K).sum() + rows * xp.log(at.volume).sum())


class Collapsed(NamedTuple):
    """The posterior density of Sigma and of tau's common scale, given A and lam, B integrated out."""

    be: Backend
    factor: Factor
    Yrot: Array  # the responses, rotated by the factor
    A: Array
    rss0: Array  # (Q, Q) scatter of the rows no feature reaches
    rows: float
    power: float
    tau: Array
    global_: Law
    covariance: Covariance

    def __call__(self, at: Root, log_t: Array) -> Array:
        """Log density at Sigma and t tau, up to a constant."""
        xp = self.be.xp
        K, tau = at.K * self.power**0.5, self.tau * xp.exp(log_t)
        value = -0.5 * self.factor.evidence(K @ self.A * tau, self.Yrot @ K.T)
        value = value + without_features(xp, at, self.rss0, self.rows, self.power)
        return value + self.covariance.log_density(self.be, at) + self.global_.log_density(xp, xp.log(tau)).sum()


def collapsed_scales(
    be: Backend, target: Collapsed, at: Root, directions: Array, steps: Array, u: Array
) -> tuple[Root, Array, Array]:
    """Metropolis updates of Sigma along each of the directions, then of tau's common scale.

    `steps` (Q + 1) are those of log variances along the directions, and of log tau. Returns Sigma, tau and what was accepted.
    """
    xp = be.xp
    Q, zero = directions.shape[0], xp.zeros(())
    last = xp.arange(Q + 1) == Q

    def one(carry: Any, x: Any) -> Any:
        at, log_t, current = carry
        v, step, more, log_u = x
        new = at.stretched(be, v, step)
        proposed = target(new, log_t + more)
        accept = log_u < proposed - current
        there, here = (*new, log_t + more, proposed), (*at, log_t, current)
        K, volume, log_t, current = (xp.where(accept, a, b) for a, b in zip(there, here, strict=True))
        return (Root(K, volume), log_t, current), accept

    v = xp.concatenate([directions, directions[:1]])  # the last step is tau's: Sigma is stretched by nought
    begin = at, zero, target(at, zero)
    (at, log_t, _), accepted = be.scan(one, begin, (v, xp.where(last, 0.0, steps), xp.where(last, steps, 0.0), xp.log(u)))
    return at, target.tau * xp.exp(log_t), accepted


def collapsed_A(target: Collapsed, at: Root, noise: dict[str, Array]) -> Array:
    """A, by Metropolis steps given Sigma, lam and tau, B integrated out.

    A and B together are pinned by the data, and given B so is A: alternating between them, the covariance V = A T² Aᵀ of a
    feature's coefficients, T = diag(tau), moves slowly. Here A T is stretched from the right along one direction w after the
    other, A T (I + (eˣ-1) w wᵀ) T⁻¹: in V's own units, so that a step means as much where V is small as where it is large.
    """
    be, xp, tau, Q = target.be, target.be.xp, target.tau, target.A.shape[0]
    zero = xp.zeros(())

    def density(A: Array) -> Array:
        return target._replace(A=A)(at, zero) - 0.5 * (A**2).sum()

    def one(carry: Any, x: Any) -> Any:
        A, current = carry
        w, step, log_u = x
        there = A + xp.outer((A * tau) @ w * xp.expm1(step), w / tau)
        proposed = density(there)
        accept = log_u < proposed - current + Q * step
        return (xp.where(accept, there, A), xp.where(accept, proposed, current)), accept

    w, z = noise["shape.w"], noise["shape.z"]
    directions = w / xp.sqrt((w**2).sum(axis=1))[:, None]
    steps = xp.asarray(SHAPES)[xp.arange(z.shape[0]) % len(SHAPES)] * z
    (A, _), _ = be.scan(one, (target.A, density(target.A)), (directions, steps, xp.log(noise["shape.u"])))
    return A


def collapsed_local(
    be: Backend,
    systems: tuple[Array, Array, Array],
    lam: Array,
    border: Border,
    law: Law,
    candidates: dict[str, Array],
) -> Array:
    """New local scales of a few borderline features, one after the other, with all of B integrated out.

    `systems` are X_KᵀM_j⁻¹X_K (R, K, K), X_KᵀM_j⁻¹y_j (R, K) for M_j = I + d_j² G, and d. Each feature picks
    among T fresh candidates and its present scale by importance weight, which leaves its conditional invariant (iterated sampling
    importance resampling). Candidates come half from C⁺(0,1), half from a logistic law about the scale the data resolve.
    """
    xp = be.xp
    inverse, projected, d = systems
    d2 = d**2
    value = candidates["value"]
    prior_t = xp.log(xp.tan(xp.pi / 2 * value))
    logistic = xp.log(value) - xp.log1p(-value)
    from_prior = candidates["mix"] < 0.5

    def one(carry: Any, x: Any) -> Any:
        a, z, i = carry
        lam_i, prior_i, logistic_i, mix_i, u_i, taken_i, edge_i, out_i = x
        column = a[:, :, i]
        a_ii = column[:, i]
        keep = 1 - d2 * lam_i**2 * a_ii
        usable = (keep.min() > 1e-8) & taken_i
        keep = xp.maximum(keep, 1e-8)
        da = d2 * a_ii / keep  # with the feature itself taken out
        zz = z[:, i] ** 2 / xp.maximum(a_ii * keep, 1e-300)
        centre = 1.0 - 0.5 * xp.log(xp.maximum(da.max(), 1e-300))
        t = xp.concatenate([xp.where(mix_i, prior_i, centre + logistic_i), xp.log(lam_i)[None]])
        x2 = xp.minimum(da[:, None] * xp.exp(2 * t), 1e300)
        fit = 0.5 * (zz @ (x2 / (1 + x2)) - xp.log1p(x2).sum(axis=0))
        v = xp.abs(t - centre)
        base = _PRIOR.log_density(xp, t)
        proposal = xp.logaddexp(base - LOG_HALF_PI, -v - 2 * xp.log1p(xp.exp(-v)))
        weight = fit + (base if isinstance(law, HalfCauchy) else law.log_density(xp, t)) - proposal
        weight = weight + xp.where(xp.exp(t) > edge_i, 0.0, xp.log(out_i))
        # Scales beyond what can be taken out again are outside the support here, for candidates and state alike.
        weight = xp.where(x2.max(axis=0) < 1e8, weight, -xp.inf)
        total = xp.cumsum(xp.exp(weight - xp.where(usable, weight.max(), 0.0)))
        pick = xp.minimum((total < u_i * total[-1]).sum(), t.shape[0] - 1)
        new = xp.where(usable, xp.exp(t[pick]), lam_i)
        change = d2 * (new**2 - lam_i**2)
        rho = change / (1 + change * a_ii)
        scaled = rho[:, None] * column
        a = a - scaled[:, :, None] * column[:, None, :]
        z = z - z[:, i, None] * scaled
        return (a, z, i + 1), new

    _, new = be.scan(
        one,
        (inverse, projected, 0),
        (lam, prior_t, logistic, from_prior, candidates["pick"], border.taken, border.edge, border.out),
    )
    return new


def borderline(
    be: Backend, systems: "Systems", taken: "Taken", border: Border, law: Law, candidates: dict[str, Array]
) -> tuple[Array, Array]:
    """New scales of the features, all of B integrated out, and (I + d_j² G)⁻¹ rhs_j (m×R) with G and rhs as they are then."""
    xp = be.xp
    Xk, Zk, lam = taken
    factor, d, Yr, rhs = systems
    K, R = Xk.shape[1], d.shape[0]
    wanted = xp.stack([rhs.T, Yr.T], axis=2)
    solved = factor.solve(d, xp.concatenate([wanted, xp.broadcast_to(Xk, (R, *Xk.shape))], axis=2))
    W, S = solved[:, :, 0], solved[:, :, 2:]  # (R, m) and (R, m, K)
    inverse = Xk.T @ S
    new = collapsed_local(be, (inverse, solved[:, :, 1] @ Xk, d), lam, border, law, candidates)
    # The same systems after the scales have moved (Woodbury, size K).
    W = W - d[:, None] * (S @ ((new - lam)[:, None] * Zk).T[:, :, None])[:, :, 0]
    change = d[:, None] ** 2 * (new**2 - lam**2)
    small = xp.linalg.solve(xp.eye(K) + change[:, :, None] * inverse, (change * (W @ Xk))[:, :, None])
    return new, (W - (S @ small)[:, :, 0]).T


def grown(be: Backend, X: Array, lam: Array, G: Array, moved: tuple[Array, Array], size: Array) -> Array:
    """X diag(lam²) Xᵀ from what it was, G, and the columns that `moved` with the change of their squared scales.

    `size` is the largest d²G; where rounding of the difference would show in the identity beside it, the product is made.
    """
    columns, change = moved
    nothing = be.xp.zeros((X.shape[1], 0))
    return be.branch(size < EXACT, lambda G: G + (columns * change) @ columns.T, lambda G: be.weigh(X, lam, nothing)[0], G)


class Taken(NamedTuple):
    """Columns of the borderline features, rotated, their rows of the noise Z (rhs holds - d_j X diag(lam) Z) and their scales."""

    Xk: Array
    Zk: Array
    lam: Array


class Systems(NamedTuple):
    """The systems I + d_j² G, rotated: responses Yr (m×R) and right-hand sides (m×R) of B's draw."""

    factor: Factor
    d: Array
    Yr: Array
    rhs: Array
