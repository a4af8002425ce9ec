"""Moves that make the sampler mix, given B (docs/mixing.md has what each one buys; `integrated` has those without B).

Plain Gibbs crawls for three reasons: k coefficients pin their common scale (a funnel in every null feature), the null
coefficients and the noise trade off, and a borderline feature seldom jumps between "in" and "out". Each move leaves the
posterior invariant and takes its randomness as arguments. All are for independent noise: `covariance` has the rotation that
makes it so.
"""

from typing import Any, NamedTuple

from intarsia.server.sampler import candidates
from intarsia.server.sampler.backends.protocol import Array, Backend
from intarsia.server.sampler.priors import HalfCauchy, Law
from intarsia.server.sampler.state import Blocks

_PRIOR = HalfCauchy()


class Laws(NamedTuple):
    """Of the local and of the global scales."""

    local: Law
    global_: Law


def rescale_columns(be: Backend, A: Array, B: Array, tau: Array, law: Law, g: Array, u: Array) -> tuple[Array, Array, Array]:
    """(A_r, B_r, tau_r) → (A_r/c, c B_r, c tau_r), C unchanged: a = 1/c² is nearly Gamma((Q-1)/2, ‖A_r‖²/2).

    `g` are standard gamma variates of shape `rescale_shape(Q)`.
    """
    xp = be.xp
    Q = A.shape[0]
    k0 = rescale_shape(Q)
    a = xp.clip(2 * g / xp.maximum((A**2).sum(axis=0), 1e-30), 1e-20, 1e20)
    t = xp.log(tau)
    log_ratio = law.log_density(xp, t - xp.log(a) / 2) - law.log_density(xp, t) + (Q / 2 - k0) * xp.log(a)
    c = xp.where(xp.log(u) < log_ratio, 1 / xp.sqrt(a), 1.0)
    return A / c, B * c, tau * c


def rescale_shape(Q: int) -> float:
    return (Q - 1) / 2 if Q > 1 else 0.5


def single_site(
    be: Backend, blocks: Blocks, W: Array, delta: Array, log_prior: Array, u: Array, visited: Array | None = None
) -> tuple[Array, Array]:
    """Accept or reject a change delta_p (Q) of every feature's coefficients, one feature after the other.

    W is the whitened residual. Within a block the sequential decisions a_p = [log u_p < g_p - Σ_{q<p} H_pq a_q], with
    H = (X_bᵀX_b) ∘ (δδᵀ), solve a triangular fixed-point problem, so they are found in a few vector steps. `visited`: indices of
    the blocks that are looked at, all of them by default; elsewhere nothing is accepted.
    """
    xp = be.xp
    nb, k = blocks.Xt.shape[0], blocks.Xt.shape[1]
    P, Q = delta.shape
    pad = nb * k - P
    D = xp.concatenate([delta, xp.zeros((pad, Q))]).reshape(nb, k, Q)
    slack = xp.concatenate([log_prior - xp.log(u), xp.zeros(pad)]).reshape(nb, k)

    below = xp.tril(xp.ones((k, k)), -1)

    def one(W: Any, x: Any) -> Any:
        (b,) = x
        Xt, db = blocks.Xt[b], D[b]
        H = (Xt @ Xt.T if blocks.gram is None else blocks.gram[b]) * (db @ db.T)
        g = ((Xt @ W) * db).sum(axis=1) - 0.5 * xp.diagonal(H) + slack[b]
        L = H * below
        accept = be.settle(lambda a: g - L @ a > 0, g > 0)
        return W - Xt.T @ (db * accept[:, None]), accept

    which = xp.arange(nb) if visited is None else visited
    W, accepted = be.scan(one, W, (which,))
    if visited is not None:
        accepted = be.put(xp.zeros((nb, k), dtype=bool), which, accepted)
    return accepted.reshape(nb * k)[:P], W


class Bound(NamedTuple):
    """Of the features X_b of a block: omega I ≥ X_bᵀX_b, and K (m×m) with (I − X_bᵀK X_b)² = I − X_bᵀX_b/omega."""

    omega: Array
    K: Array


def bound(be: Backend, Xt: Array) -> Bound:
    """For one block Xᵀ (k, m)."""
    xp = be.xp
    w, U = xp.linalg.eigh(Xt.T @ Xt)
    omega = (1 + 1e-9) * xp.maximum(w[-1], 1e-300)
    share = xp.clip(w / omega, 0.0, 1.0)
    # (1 − √(1 − s))/s, s → 0 included.
    return Bound(omega, (U / (1 + xp.sqrt(1 - share)) / omega) @ U.T)


class Refreshed(NamedTuple):
    """Random numbers of `refresh`: uniform ones (P×T) that candidates are made of and (P) to pick one, and standard normal ones
    (P×R).
    """

    value: Array
    pick: Array
    xi: Array
    e: Array


class Scaled(NamedTuple):
    """Coefficients w (P×R), scales lam (P), and the law of the scales."""

    w: Array
    lam: Array
    law: Law


def in_blocks(xp: Any, x: Array, blocks: tuple[int, int], lanes: int, fill: float = 0.0) -> Array:
    """Rows of x, one per feature, in blocks (number, size) that are filled up; each has as many from every one of `lanes` equal
    parts of the features, so that devices which hold a part each work on every block together.
    """
    nb, k = blocks
    more = xp.full((nb * k - x.shape[0], *x.shape[1:]), fill, dtype=x.dtype)
    cut = xp.concatenate([x, more]).reshape(lanes, nb, k // lanes, *x.shape[1:])
    return xp.swapaxes(cut, 0, 1).reshape(nb, k, *x.shape[1:])


def out_of_blocks(xp: Any, x: Array, lanes: int, P: int) -> Array:
    """The same the other way round."""
    nb, k = x.shape[:2]
    return xp.swapaxes(x.reshape(nb, lanes, k // lanes, *x.shape[2:]), 0, 1).reshape(nb * k, *x.shape[2:])[:P]


def refresh(be: Backend, blocks: Blocks, W: Array, d: Array, now: Scaled, noise: Refreshed, lanes: int = 1) -> tuple[Array, ...]:
    """New scales and coefficients of all features, block by block (`in_blocks`), those of a block side by side.

    In the rotated, whitened coordinates of `conditionals.whiten` feature p adds x_p w_p d, w_p = lam_p u_p, to the fitted values,
    u standard normal; `now` has them, and W (m×R) is the residual. With omega I ≥ XᵀX over a block, numbers
    h = omega w d + XᵀW + N(0, omega I − XᵀX) make its features independent: given h the likelihood of w_p d is N(h_p/omega,
    1/omega), as if each had data of its own. So every lam_p is picked among `candidates` with u integrated out, and then u is
    drawn. What does not depend on h is the posterior itself.
    """
    xp = be.xp
    w, lam, law = now

    def cut(x: Array, fill: float = 0.0) -> Array:
        return in_blocks(xp, x, blocks.Xt.shape[:2], lanes, fill)

    def one(now: tuple[Array, Array], bound: tuple[Array, Array], of_block: tuple[Array, ...]) -> Any:
        (W, d), (omega, K) = now, bound
        Xt, w, lam, value, pick, xi, e = of_block
        root = xp.sqrt(omega)
        h = omega * w * d + Xt @ (W - root * (K @ be.together(Xt.T @ xi))) + root * xi
        # One uniform number says which law a candidate comes from, and what it is.
        twice = 2 * value
        fresh = candidates.Fresh.of(be, xp.clip(xp.where(twice < 1, twice, twice - 1), 1e-16, 1 - 1e-16), value)
        t, weight = candidates.weighed(be, law, xp.broadcast_to(omega * d**2, h.shape), h**2 / omega, lam, fresh)
        new = xp.where(xp.isfinite(weight[:, -1]), candidates.picked(be, t, weight, lam, pick), lam)
        accept, lam = new != lam, new
        more = 1 + omega * lam[:, None] ** 2 * d**2
        there = lam[:, None] * (lam[:, None] * d * h + xp.sqrt(more) * e) / more
        return (W - be.together(Xt.T @ ((there - w) * d)), d), (there, lam, accept)

    of_blocks = (blocks.Xt, cut(w), cut(lam, 1.0), cut(noise.value, 0.5), cut(noise.pick), cut(noise.xi), cut(noise.e))
    (W, _), parts = be.over_blocks(one, (W, d), tuple(blocks.bound), of_blocks)
    return (W, *(out_of_blocks(xp, part, lanes, lam.shape[0]) for part in parts))


def propose_lam(be: Backend, lam: Array, theta: Array, normal: Array, law: Law) -> tuple[Array, Array]:
    """A proposal of each local scale that is reversible for C⁺(0,1): a rotation by theta of its normal score.

    Returns the new scales and the log density ratio that other laws than the half-Cauchy owe.
    """
    xp = be.xp
    half = be.ndtri(xp.arctan(xp.minimum(lam, 1 / lam)) * (2 / xp.pi))
    w = xp.where(lam < 1, half, -half)
    w = xp.cos(theta) * w + xp.sin(theta) * normal
    tail = xp.tan(xp.pi / 2 * be.ndtr(-xp.abs(w)))
    new = xp.clip(xp.where(w < 0, tail, 1 / tail), 1e-15, 1e15)
    if isinstance(law, HalfCauchy):
        return new, xp.zeros_like(lam)
    t, t_new = xp.log(lam), xp.log(new)
    ratio = law.log_density(xp, t_new) - _PRIOR.log_density(xp, t_new)
    return new, ratio - law.log_density(xp, t) + _PRIOR.log_density(xp, t)


def non_centred(A: Array, B: Array, lam: Array, new: Array, s: Array) -> tuple[Array, Array]:
    """B/lam, and the change of B Aᵀ/s when lam becomes new."""
    unit = B / lam[:, None]
    return unit, (new - lam)[:, None] * (unit @ (A / s[:, None]).T)
