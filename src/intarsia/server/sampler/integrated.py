"""Moves with B integrated out, for row scales: the noise's covariance, the global scale, borderline features.

After one factorisation of G = X diag(lam²) Xᵀ the marginal likelihood costs O(mR) per evaluation, and so do B's systems.
"""

from typing import Any, NamedTuple

from intarsia.server.sampler import candidates
from intarsia.server.sampler.backends.protocol import Array, Backend, Factor
from intarsia.server.sampler.covariance import Covariance, Root
from intarsia.server.sampler.priors import Law
from intarsia.server.sampler.state import EXACT, Border

SHAPES = 0.15, 0.3, 0.6  # standard deviations of the logarithms by which A is stretched, in turn
PANEL = 32  # borderline features after which the systems of all of them are brought up to date


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
    systems: tuple[Array, Array, Array, Array],
    lam: Array,
    border: Border,
    law: Law,
    uniform: dict[str, Array],
) -> tuple[Array, Array]:
    """New local scales of a few borderline features, one after the other, with all of B integrated out.

    `systems` are X_KᵀM_j⁻¹X_K (R, K, K), X_KᵀM_j⁻¹ of y_j and rhs_j (R, K, 2), d, and the features' rows of Z, for
    M_j = I + d_j² G; `lam` the present scales. Each feature picks among T fresh `candidates` and its present scale.

    Features are taken in panels: within one the systems of its own features alone are kept up to date, those of all after it.
    That is Gauss elimination by panels, and after it come the weights (R, K) with which M_j⁻¹X_K is to be taken from M_j⁻¹rhs_j
    to have the same with the new scales, in M and in rhs = … - d_j X diag(lam) Z. They are returned with the scales.
    """
    xp = be.xp
    inverse, projected, d, Zk = systems
    K, d2 = lam.shape[0], d**2
    fresh = candidates.Fresh.of(be, uniform["value"], uniform["mix"])
    of_each = lam, *fresh, uniform["pick"], border.taken, border.edge, border.out
    size = max(1, min(PANEL, K))
    whole = max(1, -(-K // size)) * size

    def filled(x: Array, axis: int = 0, by: float = 0.0) -> Array:
        """Up to whole panels, with features that are not taken."""
        more = xp.full((*x.shape[:axis], whole - K, *x.shape[axis + 1 :]), by, dtype=x.dtype)
        return xp.concatenate([x, more], axis=axis) if whole > K else x

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
        t, weight = candidates.weighed(be, law, da, zz, lam_i, candidates.Fresh(prior_i, logistic_i, mix_i))
        weight = weight + xp.where(xp.exp(t) > edge_i, 0.0, xp.log(out_i))
        new = xp.where(usable, candidates.picked(be, t, weight, lam_i, u_i), lam_i)
        change = d2 * (new**2 - lam_i**2)
        rho = change / (1 + change * a_ii)
        scaled = rho[:, None] * column
        a = a - scaled[:, :, None] * column[:, None, :]
        z = z - z[:, i, None] * scaled
        return (a, z, i + 1), new

    def panel(carry: Any, x: Any) -> Any:
        a, z = carry
        (at, *numbers), Zp = x[:-1], x[-1]
        columns = a[:, :, at]
        own, here, present = columns[:, at], z[:, at], numbers[0]
        _, new = be.scan(one, (own, here[:, :, 0], 0), tuple(numbers))
        moved = d[:, None] * ((new - present)[:, None] * Zp).T
        change = (d2[:, None] * (new**2 - present**2))[:, :, None]
        left = here[:, :, 1] - (own @ moved[:, :, None])[:, :, 0]  # of rhs, which holds these features' rows of Z
        right = xp.concatenate([xp.swapaxes(columns, 1, 2), here[:, :, :1], left[:, :, None]], axis=2)
        solved = xp.linalg.solve(xp.eye(own.shape[1]) + change * own, change * right)
        update = columns @ xp.concatenate([solved[:, :, :-1], solved[:, :, -1:] + moved[:, :, None]], axis=2)
        return (a - update[:, :, :-2], z - update[:, :, -2:]), (new, columns, own, change, moved, left)

    def back(weights: Array, x: Any) -> Any:
        at, columns, own, change, moved, left = x
        rest = change * (left[:, :, None] - xp.swapaxes(columns, 1, 2) @ weights[:, :, None])
        here = moved + xp.linalg.solve(xp.eye(own.shape[1]) + change * own, rest)[:, :, 0]
        return be.put(weights.T, at, here.T).T, None

    place = xp.arange(whole).reshape(-1, size)
    cut = tuple(filled(x, by=x is not border.taken).reshape(-1, size, *x.shape[1:]) for x in (*of_each, Zk))
    begin = filled(xp.swapaxes(filled(inverse, 1), 1, 2), 1), filled(projected, 1)
    _, (new, *kept) = be.scan(panel, begin, (place, *cut))
    weights, _ = be.scan(back, xp.zeros((d.shape[0], whole)), tuple(x[::-1] for x in (place, *kept)))
    return new.reshape(-1)[:K], weights[:, :K]


def borderline(
    be: Backend, systems: "Systems", taken: "Taken", border: Border, law: Law, uniform: dict[str, Array]
) -> tuple[Array, Array]:
    """New scales of the features, all of B integrated out, and (I + d_j² G)⁻¹ rhs_j (m×R) with G and rhs as they are then."""
    xp = be.xp
    Xk, Zk, lam = taken
    factor, d, Yr, rhs = systems
    R = d.shape[0]
    wanted = xp.stack([Yr.T, rhs.T], axis=2)
    solved = factor.solve(d, xp.concatenate([wanted, xp.broadcast_to(Xk, (R, *Xk.shape))], axis=2))
    products = Xk.T @ solved  # (R, K, 2 + K)
    new, weights = collapsed_local(be, (products[:, :, 2:], products[:, :, :2], d, Zk), lam, border, law, uniform)
    return new, (solved[:, :, 1] - (solved[:, :, 2:] @ weights[:, :, None])[:, :, 0]).T


def grown(be: Backend, X: Array, lam: Array, G: Array, moved: tuple[Array, Array], size: Array) -> Array:
    """X diag(lam²) Xᵀ from what it was, G, and the columns that `moved` with the change of their squared scales.

    `size` is the largest d²G; where rounding of the difference would show in the identity beside it, the product is made.
    """
    columns, change = moved
    nothing = be.xp.zeros((lam.shape[0], 0))
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
