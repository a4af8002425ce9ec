"""Moves that make the sampler mix (docs/mixing.md has what each one buys).

Plain Gibbs crawls for four reasons: k coefficients pin their common scale (a funnel in every null feature), the null
coefficients and the noise trade off, the overall scale of the nulls is pinned by the signals' scales, and a borderline
feature seldom jumps between "in" and "out". Each move leaves the posterior invariant and takes its randomness as arguments.
"""

import math
from typing import Any

from intarsia.server.sampler.priors import HalfCauchy, Law

Array = Any

_PRIOR = HalfCauchy()
LOG_HALF_PI = math.log(math.pi / 2)


def rescale_columns(be: Any, A: Array, B: Array, tau: Array, law: Law, g: Array, u: Array) -> tuple[Array, Array, Array]:
    """(A_r, B_r, tau_r) → (A_r/c, c B_r, c tau_r), C unchanged: a = 1/c² is nearly Gamma((Q-1)/2, ‖A_r‖²/2).

    `g` are standard gamma variates of shape `rescale_shape(Q)`.
    """
    xp = be.xp
    Q = A.shape[0]
    k0 = rescale_shape(Q)
    if be.kernels is not None and isinstance(law, HalfCauchy):
        return be.kernels.rescale_columns(A, B, tau, k0, g, u)
    a = xp.clip(2 * g / xp.maximum((A**2).sum(axis=0), 1e-30), 1e-20, 1e20)
    t = xp.log(tau)
    log_ratio = law.log_density(xp, t - xp.log(a) / 2) - law.log_density(xp, t) + (Q / 2 - k0) * xp.log(a)
    c = xp.where(xp.log(u) < log_ratio, 1 / xp.sqrt(a), 1.0)
    return A / c, B * c, tau * c


def rescale_shape(Q: int) -> float:
    return (Q - 1) / 2 if Q > 1 else 0.5


def shift_scales(be: Any, lam: Array, tau: Array, local: Law, global_: Law, step: Array, u: Array) -> tuple[Array, Array, Array]:
    """(lam, tau) → (lam/c, c tau), B unchanged; element scales: one c for each column. `step` proposes log c."""
    xp = be.xp
    if be.kernels is not None and lam.ndim == 1 and isinstance(global_, HalfCauchy):
        return be.kernels.shift_scales(lam, tau, local, step, u)

    def target(x: Array) -> Array:
        inner = local.log_density(xp, xp.log(lam) - x)
        outer = global_.log_density(xp, xp.log(tau) + x)
        return inner.sum(axis=0) + (outer if lam.ndim == 2 else outer.sum())

    accept = xp.log(u) < target(step) - target(xp.zeros_like(step))
    c = xp.where(accept, xp.exp(step), 1.0)
    return lam / c, tau * c, accept


class Collapsed:
    """The posterior density of (sigma, tau) given A and lam, B integrated out: O(mR) an evaluation once G is factored."""

    def __init__(
        self,
        be: Any,
        factor: Any,
        Yrot: Array,
        A: Array,
        rss0: Array,
        m: float,
        alpha: float,
        global_: Law,
        noise_law: Law,
    ) -> None:
        self.be, self.factor, self.Yrot, self.A, self.rss0 = be, factor, Yrot, A, rss0
        self.m, self.alpha, self.global_, self.noise_law = m, alpha, global_, noise_law

    def numbers(self) -> tuple[Any, ...]:
        """The target as the compiled loops take it."""
        noise = (0, self.noise_law.s) if isinstance(self.noise_law, HalfCauchy) else (3, self.rss0)
        Yrot = self.be.xp.ascontiguousarray(self.Yrot)
        return self.factor.diag, self.factor.off, Yrot, self.A, self.rss0, self.m, self.alpha, *noise

    def __call__(self, log_sigma: Array, log_tau: Array) -> Array:
        if self.be.kernels is not None:
            return self.be.kernels.collapsed(self.numbers(), log_sigma, log_tau)
        xp = self.be.xp
        s = xp.exp(log_sigma) / self.alpha**0.5
        value = -0.5 * self.factor.evidence(self.A / s[:, None] * xp.exp(log_tau), self.Yrot / s)
        # rss0: what no feature can reach of Y. alpha·m: the likelihood's power acts on its normaliser too.
        value = value - self.alpha * self.m * xp.log(s).sum() - 0.5 * (self.rss0 / s**2).sum()
        return value + self.noise_law.log_density(xp, log_sigma).sum() + self.global_.log_density(xp, log_tau).sum()


def collapsed_scales(be: Any, target: Collapsed, sigma2: Array, tau: Array, steps: Array, u: Array) -> tuple[Array, Array, Array]:
    """Metropolis updates of each log sigma_q and of the common log scale of tau with B integrated out.

    `steps` (Q+1) proposes additions: to each log sigma_q, then to log tau.
    """
    xp = be.xp
    if be.kernels is not None:
        return be.kernels.collapsed_scales(target.numbers(), sigma2, tau, steps, xp.log(u))
    Q = sigma2.shape[0]

    def one(carry: Any, x: Any) -> Any:
        log_sigma, log_tau, current = carry
        direction, log_u = x
        new_sigma, new_tau = log_sigma + direction[:Q], log_tau + direction[Q]
        proposed = target(new_sigma, new_tau)
        accept = log_u < proposed - current
        return (
            xp.where(accept, new_sigma, log_sigma),
            xp.where(accept, new_tau, log_tau),
            xp.where(accept, proposed, current),
        ), accept

    start = xp.log(sigma2) / 2, xp.log(tau)
    (log_sigma, log_tau, _), accepted = be.scan(one, (*start, target(*start)), (xp.diag(steps), xp.log(u)))
    return xp.exp(2 * log_sigma), xp.exp(log_tau), accepted


def collapsed_local(
    be: Any, inverse: Array, projected: Array, d: Array, lam: Array, law: Law, candidates: dict[str, Array]
) -> Array:
    """New local scales of a few borderline features, one after the other, with all of B integrated out.

    `inverse` (R, K, K) holds X_KᵀM_j⁻¹X_K and `projected` (R, K) X_KᵀM_j⁻¹y_j for M_j = I + d_j² G. Each feature picks
    among T fresh candidates and its present scale by importance weight, which leaves its conditional invariant (iterated sampling
    importance resampling). Candidates come half from C⁺(0,1), half from a logistic law about the scale the data resolve.
    """
    xp = be.xp
    d2 = d**2
    value = candidates["value"]
    prior_t = xp.log(xp.tan(xp.pi / 2 * value))
    logistic = xp.log(value) - xp.log1p(-value)
    from_prior = candidates["mix"] < 0.5

    def one(carry: Any, x: Any) -> Any:
        a, z, i = carry
        lam_i, prior_i, logistic_i, mix_i, u_i = x
        column = a[:, :, i]
        a_ii = column[:, i]
        keep = 1 - d2 * lam_i**2 * a_ii
        usable = keep.min() > 1e-8
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

    _, new = be.scan(one, (inverse, projected, 0), (lam, prior_t, logistic, from_prior, candidates["pick"]))
    return new


def single_site(
    be: Any, blocks: Any, W: Array, delta: Array, log_prior: Array, u: Array, visited: Array | None = None
) -> tuple[Array, Array]:
    """Accept or reject a change delta_p (Q) of every feature's coefficients, one feature after the other.

    W is the whitened residual. Within a block the sequential decisions a_p = [log u_p < g_p - Σ_{q<p} H_pq a_q], with
    H = (X_bᵀX_b) ∘ (δδᵀ), solve a triangular fixed-point problem, so they are found in a few vector steps. `visited`: indices of
    the blocks that are looked at, all of them by default; elsewhere nothing is accepted.
    """
    xp = be.xp
    nb, k = blocks.Xt.shape[0], blocks.Xt.shape[1]
    P, Q = delta.shape
    if be.kernels is not None:
        gram = xp.zeros((0, k, k)) if blocks.gram is None else blocks.gram
        which = xp.arange(nb) if visited is None else visited
        return be.kernels.single_site(blocks.Xt, gram, W, delta, log_prior - xp.log(u), which)
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


def propose_lam(be: Any, lam: Array, theta: Array, normal: Array, law: Law) -> tuple[Array, Array]:
    """A proposal of each local scale that is reversible for C⁺(0,1): a rotation by theta of its normal score.

    Returns the new scales and the log density ratio that other laws than the half-Cauchy owe.
    """
    xp = be.xp
    if be.kernels is not None and lam.ndim == 1 and isinstance(law, HalfCauchy):
        return be.kernels.propose_lam(lam, theta, normal), xp.zeros(lam.shape)
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


def non_centred(be: Any, A: Array, B: Array, lam: Array, new: Array, s: Array) -> tuple[Array, Array, Array]:
    """B/lam, its rows in whitened responses, and the change of B Aᵀ/s when lam becomes new."""
    if be.kernels is not None:
        return be.kernels.non_centred(A, B, lam, new, s)
    unit = B / lam[:, None]
    D = unit @ (A / s[:, None]).T
    return unit, D, (new - lam)[:, None] * D


def compensated_scale(
    be: Any,
    fit: Array,
    residual: Array,
    lam: Array,
    tau: Array,
    signal: Array,
    local: Law,
    global_: Law,
    steps: Array,
    u: Array,
) -> tuple[Array, Array]:
    """tau → c tau with the null coefficients scaled along and the signals' lam divided by c, their coefficients unchanged.

    `fit` and `residual` are the whitened contribution of the nulls and the whitened residual. Returns log c (0: rejected) and the
    acceptances. `signal` (P) is fixed after the warm-up.
    """
    if be.kernels is not None and isinstance(global_, HalfCauchy):
        return be.kernels.compensated_scale(fit, residual, lam, tau, signal, local, steps, u)
    xp = be.xp
    quad, lin = (fit**2).sum(), (fit * residual).sum()
    log_lam, log_tau = xp.log(lam), xp.log(tau)

    def target(x: Array) -> Array:
        c1 = xp.expm1(x)
        local_part = xp.where(signal, local.log_density(xp, log_lam - x), 0.0).sum()
        return c1 * lin - 0.5 * c1**2 * quad + local_part + global_.log_density(xp, log_tau + x).sum()

    def one(carry: Any, x: Any) -> Any:
        at, value = carry
        proposed = target(at + x[0])
        accept = x[1] < proposed - value
        return (xp.where(accept, at + x[0], at), xp.where(accept, proposed, value)), accept

    zero = xp.zeros(())
    (log_c, _), accepted = be.scan(one, (zero, target(zero)), (steps, xp.log(u)))
    return log_c, accepted


def stretch_responses(
    be: Any,
    A: Array,
    tau: Array,
    fit: Array,
    W: Array,
    scatter: Array,
    signals: Array,
    s: Array,
    directions: Array,
    steps: Array,
    u: Array,
) -> tuple[Array, Array, Array, Array, Array]:
    """A → (I + (eˣ-1) v vᵀ) A along response directions v; null rows of C follow, the signals' rows stay.

    The rows' covariance V = A T² Aᵀ is pinned by every null row when C is held, and by every signal when B is held; here each
    row is held in the way that pins less. For a direction the target is a closed form in x, so steps cost next to nothing.
    `fit` (m×Q) is the nulls' contribution, `W` the whitened residual, `scatter` Σ c cᵀ/lam² over the `signals` signals.
    Needs R = Q. `directions` (D, Q) are normal, `steps` and `u` (D, N). Returns A⁻¹ too.
    """
    xp = be.xp
    Q = A.shape[0]
    if be.kernels is not None:
        return be.kernels.stretch_responses(A, tau, fit, W, scatter, float(signals), s, directions, steps, xp.log(u))

    def one(carry: Any, x: Any) -> Any:
        A, inverse, fit, W = carry
        v, step, log_u = x
        v = v / xp.sqrt((v**2).sum())
        av = A.T @ v
        f, vs = fit @ v, v / s
        lin, quad = f @ (W @ vs), (f @ f) * (vs @ vs)
        iv = inverse @ v
        Vv = inverse.T @ (iv / tau**2)
        Sv = scatter @ v
        cross, own = Sv @ Vv, (v @ Sv) * (v @ Vv)
        aa = av @ av

        def target(y: Array) -> Array:
            g, h = xp.expm1(y), xp.expm1(-y)
            return (Q - signals) * y - 0.5 * (2 * g + g**2) * aa + g * lin - 0.5 * g**2 * quad - h * cross - 0.5 * h**2 * own

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

    (A, inverse, fit, W), accepted = be.scan(one, (A, xp.linalg.inv(A), fit, W), (directions, steps, xp.log(u)))
    return A, inverse, fit, W, accepted
