"""MBSP: multivariate Bayesian model with shrinkage priors (Bai & Ghosh 2018), written from the mathematics, on pooled data.

    Y = XB + E,  rows of E ~ N(0, Σ),  row p of B ~ N(0, ψ_p Σ),  Σ ~ IW(d, k I)
    ψ_p ~ three-parameter beta: density ∝ ψ^(u−1) (τ + ψ)^−(a+u);  u = a = ½ is the horseshoe, ψ_p = τ ξ_p

As in the R package of that name: τ = 1/(P √(n log n)) is fixed, the estimate is the posterior median, and a feature is chosen
when any of its 95 % intervals leaves zero out. The authors draw ψ_p with a further scale ζ_p beside it; here ζ_p is summed out
and ψ_p drawn by a slice, which has the same law. Our choices: columns are standardised first, since τ is in their units; the
prior of Σ has the weight of a few rows about the noise that a ridge leaves (d = Q + 2, k its mean variance), since a k in the
units of Y would be noise added where the signal is strong.
"""

import time
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.special import gammainc, gammaincinv
from sklearn.linear_model import RidgeCV

from experiments.paper.sketching import Sketched
from experiments.rivals.baseline import Array, Mask
from experiments.rivals.horseshoe import Posterior


class Prior(NamedTuple):
    """τ, u and a of the local scales; d and k of Σ ~ IW(d, k I)."""

    tau: float
    d: float
    k: float
    u: float = 0.5
    a: float = 0.5


def draw_B(gram: Array, cross: Array, psi: Array, Sigma: Array, noise: Array) -> Array:
    """B given the rest: matrix normal, mean (XᵀX + Ψ⁻¹)⁻¹XᵀY, rows' covariance (XᵀX + Ψ⁻¹)⁻¹, columns' Σ; `noise` is P×Q.

    With D = Ψ^½: (XᵀX + Ψ⁻¹)⁻¹ = D (D XᵀX D + I)⁻¹ D, whose middle is well conditioned however small a ψ_p is.
    """
    D = np.sqrt(psi)[:, None]
    middle = D * gram * D[:, 0]
    middle[np.diag_indices_from(middle)] += 1.0
    L = cholesky(middle, lower=True, check_finite=False, overwrite_a=True)
    mean = solve_triangular(L, D * cross, lower=True, check_finite=False)
    coloured = noise @ np.linalg.cholesky(Sigma).T
    return np.asarray(D * solve_triangular(L, mean + coloured, lower=True, trans="T", check_finite=False))


def sigma_terms(residual: Array, B: Array, psi: Array, prior: Prior) -> tuple[float, Array]:
    """Σ given the rest: inverse Wishart with n + P + d degrees and scale EᵀE + BᵀΨ⁻¹B + kI."""
    scale = residual.T @ residual + (B / psi[:, None]).T @ B
    return len(residual) + len(B) + prior.d, scale + prior.k * np.eye(B.shape[1])


def draw_inverse_wishart(degrees: float, scale: Array, rng: np.random.Generator) -> Array:
    """Σ ~ IW(degrees, scale), by Bartlett's factor of its inverse's Wishart law."""
    Q = len(scale)
    T = np.tril(rng.standard_normal((Q, Q)), -1)
    T[np.diag_indices(Q)] = np.sqrt(rng.chisquare(degrees - np.arange(Q)))
    # Σ⁻¹ = (L⁻ᵀT)(L⁻ᵀT)ᵀ where LLᵀ = scale, so Σ = (L T⁻ᵀ)(L T⁻ᵀ)ᵀ.
    half = solve_triangular(T, np.linalg.cholesky(scale).T, lower=True)
    return np.asarray(half.T @ half)


def draw_psi(psi: Array, distance: Array, Q: int, prior: Prior, uniform: Array) -> Array:
    """ψ given b Σ⁻¹ bᵀ = distance, one slice step; `uniform` is 2×P.

    In η = 1/ψ the law is η^(Q/2+a−1) exp(−η distance/2) (1 + τη)^−(a+u): under a level of the last factor, a gamma law cut off.
    """
    level = uniform[0] ** (-1 / (prior.a + prior.u)) * (1 + prior.tau / psi)
    end = (level - 1) / prior.tau
    shape, rate = Q / 2 + prior.a, distance / 2
    below = gammainc(shape, rate * end)
    # So near zero that exp(−rate η) is 1, the law is a power of η.
    flat = rate * end < 1e-12
    eta = np.where(flat, end * uniform[1] ** (1 / shape), gammaincinv(shape, uniform[1] * below) / np.where(flat, 1.0, rate))
    return np.asarray(1 / np.clip(eta, 1e-150, 1e150))


class MBSPState(NamedTuple):
    """One point of the chain."""

    B: Array
    Sigma: Array
    psi: Array


def sweep(X: Array, Y: Array, gram: Array, cross: Array, state: MBSPState, prior: Prior, rng: np.random.Generator) -> MBSPState:
    """Every parameter once, given the others."""
    P, Q = state.B.shape
    B = draw_B(gram, cross, state.psi, state.Sigma, rng.standard_normal((P, Q)))
    Sigma = draw_inverse_wishart(*sigma_terms(Y - X @ B, B, state.psi, prior), rng)
    distance = np.square(solve_triangular(np.linalg.cholesky(Sigma), B.T, lower=True)).sum(axis=0)
    return MBSPState(B, Sigma, draw_psi(state.psi, distance, Q, prior, rng.random((2, P))))


class MBSP(Posterior):
    """On all the rows, never on a sketch. Chains start from a ridge estimate."""

    name = "MBSP"

    def __init__(self, draws: int = 500, warmup: int = 500, chains: int = 2, thin: int = 1, seed: int = 0, **_: Any) -> None:
        super().__init__(None, draws, warmup, chains, thin, seed)

    def _sample(self, data: Sketched) -> None:
        start = time.process_time()
        X, Y = data.X, data.Y
        (n, P), Q = X.shape, Y.shape[1]
        gram, cross = X.T @ X, X.T @ Y
        B = RidgeCV(np.logspace(-3, 6, 28), fit_intercept=True).fit(X, Y).coef_.reshape(Q, P).T
        Sigma = (Y - X @ B).T @ (Y - X @ B) / n + 1e-9 * np.eye(Q)
        prior = Prior(1 / (P * np.sqrt(n * np.log(n))), d=Q + 2.0, k=float(np.diag(Sigma).mean()))
        first = MBSPState(B, Sigma, np.square(B).mean(axis=1) / prior.k)
        kept, noise = np.empty((self.chains, self.draws, P, Q)), np.empty((self.chains, self.draws, Q))
        for chain, seed in enumerate(np.random.SeedSequence(self.seed).spawn(self.chains)):
            rng, state = np.random.default_rng(seed), first
            for step in range(self.warmup + self.draws * self.thin):
                state = sweep(X, Y, gram, cross, state, prior, rng)
                at, left = divmod(step - self.warmup, self.thin)
                if at >= 0 and not left:
                    kept[chain, at], noise[chain, at] = state.B, np.diag(state.Sigma)
        self.seconds_ = time.process_time() - start
        self.take(kept, noise, data)
        self.coef_ = np.median(self.C_, axis=(0, 1)).T

    def _select(self) -> Mask:
        lower, upper = self.interval(0.95)
        return np.asarray(((lower > 0) | (upper < 0)).any(axis=0))
