"""Moves that make the sampler mix, given B (docs/mixing.md has what each one buys; `integrated` has those without B).

Plain Gibbs crawls for four reasons: k coefficients pin their common scale (a funnel in every null feature), the null
coefficients and the noise trade off, the overall scale of the nulls is pinned by the signals' scales, and a borderline
feature seldom jumps between "in" and "out". Each move leaves the posterior invariant and takes its randomness as arguments.
All are for independent noise: `covariance` has the rotation that makes it so.
"""

from typing import Any, NamedTuple

from intarsia.server.sampler.backends.protocol import Array, Backend
from intarsia.server.sampler.priors import HalfCauchy, Law
from intarsia.server.sampler.state import Blocks

_PRIOR = HalfCauchy()


class Laws(NamedTuple):
    """Of the local and of the global scales."""

    local: Law
    global_: Law


class Nulls(NamedTuple):
    """Contribution of the null rows to the responses (m×Q), the residual in units of the noise, and which rows are no nulls (P)."""

    fit: Array
    W: Array
    signal: Array


class Walk(NamedTuple):
    """Steps that a move proposes, one after the other, and the uniform numbers that decide."""

    steps: Array
    u: Array


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


def shift_scales(be: Backend, lam: Array, tau: Array, laws: Laws, walk: Walk) -> tuple[Array, Array, Array]:
    """(lam, tau) → (lam/c, c tau), B unchanged; element scales: one c for each column. The step proposes log c."""
    xp, step = be.xp, walk.steps

    def target(x: Array) -> Array:
        inner = laws.local.log_density(xp, xp.log(lam) - x)
        outer = laws.global_.log_density(xp, xp.log(tau) + x)
        return inner.sum(axis=0) + (outer if lam.ndim == 2 else outer.sum())

    accept = xp.log(walk.u) < target(step) - target(xp.zeros_like(step))
    c = xp.where(accept, xp.exp(step), 1.0)
    return lam / c, tau * c, accept


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


def non_centred(A: Array, B: Array, lam: Array, new: Array, s: Array) -> tuple[Array, Array, Array]:
    """B/lam, its rows in whitened responses, and the change of B Aᵀ/s when lam becomes new."""
    unit = B / lam[:, None]
    D = unit @ (A / s[:, None]).T
    return unit, D, (new - lam)[:, None] * D


def compensated_scale(
    be: Backend, nulls: Nulls, lam: Array, tau: Array, laws: Laws, walk: Walk
) -> tuple[Array, Array]:
    """tau → c tau with the null coefficients scaled along and the signals' lam divided by c, their coefficients unchanged.

    `nulls.fit` is in units of the noise. Returns log c (0: rejected) and the acceptances. Which rows are signals is fixed after
    the warm-up.
    """
    xp = be.xp
    quad, lin = (nulls.fit**2).sum(), (nulls.fit * nulls.W).sum()
    log_lam, log_tau = xp.log(lam), xp.log(tau)

    def target(x: Array) -> Array:
        c1 = xp.expm1(x)
        local_part = xp.where(nulls.signal, laws.local.log_density(xp, log_lam - x), 0.0).sum()
        return c1 * lin - 0.5 * c1**2 * quad + local_part + laws.global_.log_density(xp, log_tau + x).sum()

    def one(carry: Any, x: Any) -> Any:
        at, value = carry
        proposed = target(at + x[0])
        accept = x[1] < proposed - value
        return (xp.where(accept, at + x[0], at), xp.where(accept, proposed, value)), accept

    zero = xp.zeros(())
    (log_c, _), accepted = be.scan(one, (zero, target(zero)), (walk.steps, xp.log(walk.u)))
    return log_c, accepted


class Signals(NamedTuple):
    """Σ c cᵀ/lam² over the signals' rows of C (Q×Q), and how many they are."""

    scatter: Array
    number: Array


def stretch_responses(
    be: Backend, A: Array, tau: Array, nulls: Nulls, signals: Signals, s: Array, directions: Array, walk: Walk
) -> tuple[Array, Array, Nulls, Array]:
    """A → (I + (eˣ-1) v vᵀ) A along response directions v; null rows of C follow, the signals' rows stay.

    The rows' covariance V = A T² Aᵀ is pinned by every null row when C is held, and by every signal when B is held; here each
    row is held in the way that pins less. For a direction the target is a closed form in x, so steps cost next to nothing.
    `nulls.fit` is in the responses' units. Needs R = Q. `directions` (D, Q) are normal, `walk` has (D, N) steps. Returns A, A⁻¹,
    the nulls and what was accepted.
    """
    xp = be.xp
    Q = A.shape[0]

    def one(carry: Any, x: Any) -> Any:
        A, inverse, fit, W = carry
        v, step, log_u = x
        v = v / xp.sqrt((v**2).sum())
        av = A.T @ v
        f, vs = fit @ v, v / s
        lin, quad = f @ (W @ vs), (f @ f) * (vs @ vs)
        iv = inverse @ v
        Vv = inverse.T @ (iv / tau**2)
        Sv = signals.scatter @ v
        cross, own = Sv @ Vv, (v @ Sv) * (v @ Vv)
        aa = av @ av

        def target(y: Array) -> Array:
            g, h = xp.expm1(y), xp.expm1(-y)
            likelihood = g * lin - 0.5 * g**2 * quad
            return (Q - signals.number) * y - 0.5 * (2 * g + g**2) * aa + likelihood - h * cross - 0.5 * h**2 * own

        at, value, accepted = xp.zeros(()), xp.zeros(()), []
        for i in range(step.shape[0]):
            proposed = target(at + step[i])
            accept = log_u[i] < proposed - value
            at, value = xp.where(accept, at + step[i], at), xp.where(accept, proposed, value)
            accepted.append(accept)
        g = xp.expm1(at)
        change = xp.outer(f, g * v)
        inverse = inverse + xp.outer(xp.expm1(-at) * iv, v)
        return (A + xp.outer(v, g * av), inverse, fit + change, W - change / s), xp.stack(accepted)

    begin = A, xp.linalg.inv(A), nulls.fit, nulls.W
    (A, inverse, fit, W), accepted = be.scan(one, begin, (directions, walk.steps, xp.log(walk.u)))
    return A, inverse, Nulls(fit, W, nulls.signal), accepted
