"""locus: variational Bayes with spike-and-slab selection (Ruffieux, Davison, Hager & Irincheeva 2017).

y_t = X β_t + ε_t, ε_t ~ N(0, 1/τ_t);  β_st | γ_st ~ γ_st N(0, σ²/τ_t) + (1 − γ_st) δ₀;  γ_st ~ Bernoulli(ω_s);
ω_s ~ Beta(a, b);  τ_t ~ Gamma(η, κ);  σ⁻² ~ Gamma(λ, ν).
Mean field over the pairs (β_st, γ_st), ω, τ, σ⁻²; one feature at a time, all responses at once, so every step raises
the ELBO.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln, digamma, expit, gammaln, xlog1py, xlogy
from scipy.stats import norm

from experiments.rivals.baseline import Array, Baseline

LOG_2PI = float(np.log(2 * np.pi))


@dataclass(frozen=True)
class Hyper:
    """Prior parameters; `b` sets how many features are expected to be active for each response."""

    a: float
    b: float
    eta: float
    kappa: Array
    lam: float = 0.01
    nu: float = 0.01


@dataclass
class Variational:
    """The variational law: g = P(γ=1), mu = E(β|γ=1), v = var(β|γ=1) by response, and Gamma / Beta parameters."""

    g: Array
    mu: Array
    v: Array
    eta: Array
    kappa: Array
    lam: float
    nu: float
    a: Array
    b: Array
    elbo: list[float] = field(default_factory=list)

    @property
    def mean(self) -> Array:
        return self.g * self.mu

    @property
    def second(self) -> Array:
        """E β² of each coefficient."""
        return self.g * (self.mu**2 + self.v)


def elbo(q: Variational, h: Hyper, rss: Array, n: int) -> float:
    """Evidence lower bound; rss is E‖y_t − Xβ_t‖² under q."""
    P = len(q.g)
    e_tau, log_tau = q.eta / q.kappa, digamma(q.eta) - np.log(q.kappa)
    e_s, log_s = q.lam / q.nu, digamma(q.lam) - np.log(q.nu)
    log_w = digamma(q.a) - digamma(q.a + q.b)
    log_1w = digamma(q.b) - digamma(q.a + q.b)
    likelihood = (n / 2 * (log_tau - LOG_2PI) - e_tau * rss / 2).sum()
    slab = (q.g * (log_tau + log_s - LOG_2PI) / 2).sum() - (e_tau * e_s * q.second).sum() / 2
    labels = (q.g * log_w[:, None] + (1 - q.g) * log_1w[:, None]).sum()
    entropy = -(xlogy(q.g, q.g) + xlog1py(1 - q.g, -q.g)).sum() + (q.g * (LOG_2PI + 1 + np.log(q.v)) / 2).sum()
    tau = (_gamma_prior(h.eta, h.kappa, e_tau, log_tau) - _gamma_prior(q.eta, q.kappa, e_tau, log_tau)).sum()
    sigma = _gamma_prior(h.lam, h.nu, e_s, log_s) - _gamma_prior(q.lam, q.nu, e_s, log_s)
    omega = P * -betaln(h.a, h.b) + (betaln(q.a, q.b) + (h.a - q.a) * log_w + (h.b - q.b) * log_1w).sum()
    return float(likelihood + slab + labels + entropy + tau + sigma + omega)


def _gamma_prior(shape, rate, mean, log_mean):  # type: ignore[no-untyped-def]
    return shape * np.log(rate) - gammaln(shape) + (shape - 1) * log_mean - rate * mean


class _Fixed(NamedTuple):
    """What stays fixed while the rows are updated: μ_s = gain·(x_sᵀr + norm2·m_s), logit γ_s = base + half·μ_s²."""

    base: Array
    gain: Array
    half: Array
    norm2: float


def _sweep(gram: Array, cross: Array, g: Array, mu: Array, fixed: _Fixed) -> None:
    """Update (β_s, γ_s) for the rows in turn, in place. Arrays are those rows' own; cross is Xᵀ(Y − Xm)."""
    m = g * mu
    for s in range(len(g)):
        old = m[s]
        mu_s = fixed.gain * (cross[s] + fixed.norm2 * old)
        g_s = expit(fixed.base[s] + fixed.half * mu_s * mu_s)
        new = g_s * mu_s
        change = old - new
        mu[s], g[s], m[s] = mu_s, g_s, new
        # Null features move by less than rounding after a few sweeps: skip their update of the rest.
        if np.abs(change).max() > 1e-14:
            cross += gram[s][:, None] * change


def fit_locus(X: Array, Y: Array, h: Hyper, iterations: int = 2000, tol: float = 0.1) -> Variational:
    """Coordinate ascent on standardised features (XᵀX has n−1 on its diagonal) and centred responses.

    A full sweep is followed by sweeps over the features in play alone, which cost little; the end is a full sweep
    that gains less than tol. Any order of coordinates raises the ELBO.
    """
    (n, P), Q = X.shape, Y.shape[1]
    gram, norm2, residual = X.T @ X, float(n - 1), Y
    everything = np.arange(P)
    e_tau = 1.0 / np.maximum(Y.var(axis=0), 1e-12)
    log_tau, e_s, log_s = np.log(e_tau), 1.0, 0.0
    q = Variational(
        np.zeros((P, Q)),
        np.zeros((P, Q)),
        np.ones(Q),
        np.full(Q, h.eta + n / 2),
        (h.eta + n / 2) / e_tau,
        h.lam + 1.0,
        h.nu + 1.0,
        np.full(P, h.a),
        np.full(P, h.b + Q),
    )
    rows, full = everything, True
    for _ in range(iterations):
        q.v = 1.0 / (e_tau * (norm2 + e_s))
        base = (digamma(q.a) - digamma(q.b))[rows, None] + (log_tau + log_s + np.log(q.v)) / 2
        cross = X[:, rows].T @ residual
        small = gram if full else gram[np.ix_(rows, rows)]
        g, mu = q.g[rows], q.mu[rows]
        _sweep(small, cross, g, mu, _Fixed(base, q.v * e_tau, 0.5 / q.v, norm2))
        q.g[rows], q.mu[rows] = g, mu
        count, m, second = q.g.sum(axis=1), q.mean, q.second
        q.a, q.b = h.a + count, h.b + Q - count
        residual = Y - X @ m
        rss = (residual**2).sum(axis=0) + norm2 * (second - m**2).sum(axis=0)
        q.eta = h.eta + n / 2 + q.g.sum(axis=0) / 2
        q.kappa = h.kappa + rss / 2 + e_s * second.sum(axis=0) / 2
        e_tau, log_tau = q.eta / q.kappa, digamma(q.eta) - np.log(q.kappa)
        q.lam = h.lam + q.g.sum() / 2
        q.nu = h.nu + float((e_tau * second).sum()) / 2
        e_s, log_s = q.lam / q.nu, float(digamma(q.lam) - np.log(q.nu))
        q.elbo.append(elbo(q, h, rss, n))
        still = len(q.elbo) > 1 and q.elbo[-1] - q.elbo[-2] < tol
        if full and still:
            break
        full = still
        rows = everything if full else np.flatnonzero(q.g.max(axis=1) > 1e-3)
        if len(rows) == 0:
            rows, full = everything, True
    return q


def spike_slab_interval(g: Array, mu: Array, sd: Array, p: float) -> tuple[Array, Array]:
    """Equal-tailed interval of g N(mu, sd²) + (1 − g) δ₀, exactly."""

    def quantile(level: float) -> Array:
        below = g * norm.cdf(0.0, mu, sd)
        spike_end = below + (1 - g)
        with np.errstate(divide="ignore", invalid="ignore"):
            left = mu + sd * norm.ppf(np.clip(level / g, 0, 1))
            right = mu + sd * norm.ppf(np.clip((level - (1 - g)) / g, 0, 1))
        return np.where(level < below, left, np.where(level > spike_end, right, 0.0))

    return quantile((1 - p) / 2), quantile((1 + p) / 2)


class Locus(Baseline):
    """locus with the expected number of active features `active` (default: a twentieth of them)."""

    name = "locus"

    def __init__(self, active: float | None = None, tol: float = 0.1, iterations: int = 2000, alpha: float = 0.05) -> None:
        self.active, self.tol, self.iterations, self.alpha = active, tol, iterations, alpha

    def _fit(self, X: Array, Y: Array, sites: NDArray[np.int64] | None) -> None:
        P, Q = X.shape[1], Y.shape[1]
        scale = X.std(axis=0, ddof=1)
        scale[scale == 0] = 1.0
        active = min(max(1.0, P / 20) if self.active is None else self.active, P - 0.5)
        kappa = np.maximum(Y.var(axis=0), 1e-12)
        h = Hyper(a=1.0, b=Q * (P - active) / active, eta=1.0, kappa=kappa)
        q = fit_locus(X / scale, Y, h, self.iterations, self.tol)
        self.q_, self.hyper_ = q, h
        self.elbo_ = np.array(q.elbo)
        self._scale = scale
        self.coef_ = (q.mean / scale[:, None]).T
        self.inclusion_ = q.g.T
        # Bayesian FDR on "acts on any response": the responses are independent under q.
        null = np.prod(1 - q.g, axis=1)
        order = np.argsort(null)
        keep = np.cumsum(null[order]) / np.arange(1, P + 1) <= self.alpha
        self.selected_ = np.zeros(P, dtype=bool)
        self.selected_[order[keep]] = True

    def interval(self, p: float) -> tuple[Array, Array]:
        sd = np.broadcast_to(np.sqrt(self.q_.v), self.q_.mu.shape)
        lower, upper = spike_slab_interval(self.q_.g, self.q_.mu, sd, p)
        return (lower / self._scale[:, None]).T, (upper / self._scale[:, None]).T
