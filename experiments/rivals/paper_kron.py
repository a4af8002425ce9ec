"""The paper's Gibbs sampler as its authors coded it, in NumPy: the yardstick for speed and the exhibit for its slips.

Algorithm 2 with its matrices written out: X̃ = Σ̃^(−½)(X_Φ ⊗ A) of size mQ×PR, the product X̃ΛX̃ᵀ, a symmetric solve of
size mQ, and the last step through a dense PR×PR Λ. The Q²-sized system of A is explicit too, by its spectral
decomposition (appendix B). Only the scale draws are vectorised. None of this is how the server computes; the posterior
with `scales="corrected"` and `noise="half-cauchy"` is the one of the server's `element` model.

`scales` names which conditionals of λ and τ are drawn (η = 1/λ² or 1/τ², slice u ~ U(0, 1/(1+η)), η < (1−u)/u):
`corrected`  λ: Exp(rate μ/2);  τ: Gamma((P+1)/2, rate μ/2)      the right ones
`printed`    λ and τ: Exp(rate μ/2)                              appendix B: τ gets the law that only λ has
`coded`      λ and τ: Exp(rate 2/μ)                              the authors' code: the printed mean 2/μ used as a rate
"""

import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, special

from intarsia.errors import InputError

Array = NDArray[np.float64]
Scales = Literal["corrected", "printed", "coded"]
Noise = Literal["half-cauchy", "jeffreys"]

_TINY, _HUGE = 1e-250, 1e250


@dataclass(frozen=True)
class KronState:
    """B (P, R), A (Q, R), sigma2 (Q,), lam2 (P, R) and tau2 (R,) squared scales, xi (Q,) the noise prior's
    auxiliary."""

    B: Array
    A: Array
    sigma2: Array
    lam2: Array
    tau2: Array
    xi: Array

    @property
    def C(self) -> Array:
        return np.asarray(self.B @ self.A.T)


@dataclass(frozen=True)
class KronDraws:
    """C (draw, P, Q), sigma2 (draw, Q), tau (draw, R) and the seconds the kept sweeps took."""

    C: Array
    sigma2: Array
    tau: Array
    seconds: float

    @property
    def ms_per_sweep(self) -> float:
        return 1e3 * self.seconds / len(self.C)


@dataclass(frozen=True)
class Variant:
    """Which of the paper's samplers: the law of the scales and of the noise, the rank (None: Q), and the algebra.

    `structured` draws the same B without the Kronecker product.
    """

    scales: Scales = "corrected"
    noise: Noise = "half-cauchy"
    rank: int | None = None
    structured: bool = False

    def __post_init__(self) -> None:
        if self.scales not in ("corrected", "printed", "coded") or self.noise not in ("half-cauchy", "jeffreys"):
            raise InputError(f"Unknown scales={self.scales!r} or noise={self.noise!r}.")


PROPER = Variant()


def start(X: Array, Y: Array, rng: np.random.Generator, rank: int | None = None) -> KronState:
    """A random start: prior draws with the scales near one."""
    P, Q = X.shape[1], Y.shape[1]
    R = rank or Q
    return KronState(
        B=0.1 * rng.standard_normal((P, R)),
        A=rng.standard_normal((Q, R)),
        sigma2=Y.var(axis=0) * rng.uniform(0.5, 1.5, Q) + _TINY,
        lam2=rng.uniform(0.5, 1.5, (P, R)),
        tau2=rng.uniform(0.005, 0.05, R),
        xi=np.ones(Q),
    )


def draw_B(X: Array, Y: Array, state: KronState, z: Array, delta: Array) -> Array:
    """Algorithm 2: β = vec(Bᵀ) given the rest, from standard normals z (PR,) and delta (mQ,)."""
    m = len(X)
    weight = np.tile(1 / np.sqrt(state.sigma2), m)
    Xt = weight[:, None] * np.kron(X, state.A)
    yt = weight * Y.ravel()
    diagonal = (state.lam2 * state.tau2).ravel()
    u = np.sqrt(diagonal) * z
    v = Xt @ u + delta
    M = (Xt * diagonal) @ Xt.T
    M[np.diag_indices_from(M)] += 1.0
    w = linalg.solve(M, yt - v, assume_a="sym", overwrite_a=True, check_finite=False)
    return (u + np.diag(diagonal) @ (Xt.T @ w)).reshape(state.B.shape)


def draw_B_structured(X: Array, Y: Array, state: KronState, z: Array, delta: Array) -> Array:
    """The same draw, to rounding, without the Kronecker product: for running the paper's chain long enough to judge it.

    M = I + Σ_r (X Λ_r Xᵀ) ⊗ ã_r ã_rᵀ with ã_r the r-th column of Σ^(−½)A.
    """
    (m, P), (Q, R) = X.shape, state.A.shape
    At = state.A / np.sqrt(state.sigma2)[:, None]
    Lam = state.lam2 * state.tau2
    U = np.sqrt(Lam) * z.reshape(P, R)
    G = np.stack([(X * Lam[:, r]) @ X.T for r in range(R)])
    outer = (At[:, None, :] * At[None, :, :]).reshape(Q * Q, R)
    M = (outer @ G.reshape(R, m * m)).reshape(Q, Q, m, m).transpose(2, 0, 3, 1).reshape(m * Q, m * Q)
    M[np.diag_indices_from(M)] += 1.0
    right = Y / np.sqrt(state.sigma2) - (X @ U) @ At.T - delta.reshape(m, Q)
    W = linalg.solve(M, right.ravel(), assume_a="pos", overwrite_a=True, check_finite=False).reshape(m, Q)
    return np.asarray(U + Lam * (X.T @ (W @ At)))


def draw_A(X: Array, Y: Array, state: KronState, B: Array, z: Array) -> Array:
    """Appendix B: the Q·R entries of A at once, through the eigenvectors of their covariance; z (QR,) standard
    normal."""
    Q, R = state.A.shape
    m = len(X)
    Xs = np.kron(X @ B, np.eye(Q))  # y_iq = Σ_r (XB)_ir A_qr, with the entries of A in the order (r, q)
    weight = np.tile(1 / state.sigma2, m)
    covariance = np.linalg.inv((Xs.T * weight) @ Xs + np.eye(Q * R))
    size, U = np.linalg.eigh((covariance + covariance.T) / 2)
    a = covariance @ (Xs.T @ (weight * Y.ravel())) + U @ (np.sqrt(np.maximum(size, 0)) * z)
    return a.reshape(R, Q).T


def draw_eta(eta: Array, mu: Array, count: int, scales: Scales, level: Array, share: Array) -> Array:
    """One slice step for inverse squared scales, each the scale of `count` coefficients with Σ(b/other)² = mu.

    `level` and `share` are uniform: the slice and the place in the truncated law. `count` matters only where it should:
    the corrected law is Gamma((count+1)/2, rate mu/2), for one coefficient the exponential.
    """
    top = 1 / np.maximum(level / (1 + eta), _TINY) - 1
    mu = np.clip(mu, _TINY, _HUGE)
    rate = np.clip(2 / mu if scales == "coded" else mu / 2, _TINY, _HUGE)
    shape = (count + 1) / 2 if scales == "corrected" else 1.0
    edge = np.minimum(rate, _HUGE / np.maximum(top, 1.0)) * top
    if shape == 1.0:
        with np.errstate(under="ignore"):
            drawn = np.where(edge < 1e-10, share * top, -np.log1p(share * np.expm1(-edge)) / rate)
    else:
        mass = special.gammainc(shape, edge)
        with np.errstate(under="ignore"):
            drawn = np.where(mass > 1e-280, special.gammaincinv(shape, share * mass) / rate, top * share ** (1 / shape))
    return np.clip(drawn, _TINY, _HUGE)


def sweep(
    X: Array,
    Y: Array,
    state: KronState,
    rng: np.random.Generator,
    variant: Variant = PROPER,
) -> KronState:
    """One pass of Algorithm 1."""
    scales, noise = variant.scales, variant.noise
    (m, P), (Q, R) = X.shape, state.A.shape
    step = draw_B_structured if variant.structured else draw_B
    B = step(X, Y, state, rng.standard_normal(P * R), rng.standard_normal(m * Q))
    A = draw_A(X, Y, state, B, rng.standard_normal(Q * R))
    square = ((Y - X @ B @ A.T) ** 2).sum(axis=0) / 2
    xi = state.xi
    if noise == "jeffreys":
        sigma2 = square / rng.standard_gamma(m / 2, Q)
    else:
        sigma2 = (square + 1 / xi) / rng.standard_gamma((m + 1) / 2, Q)
        scale2 = np.maximum((Y**2).mean(axis=0), _TINY)
        xi = (1 / scale2 + 1 / sigma2) / rng.standard_exponential(Q)
    sigma2 = np.clip(sigma2, 1e-30, None)  # below this the solve is only noise
    uniform = rng.uniform(size=(2, P, R))
    lam2 = 1 / draw_eta(1 / state.lam2, B**2 / state.tau2, 1, scales, uniform[0], uniform[1])
    uniform_tau = rng.uniform(size=(2, R))
    mu = (B**2 / lam2).sum(axis=0)
    tau2 = 1 / draw_eta(1 / state.tau2, mu, P, scales, uniform_tau[0], uniform_tau[1])
    return KronState(B, A, sigma2, lam2, tau2, xi)


def run(
    X: Array,
    Y: Array,
    rng: np.random.Generator,
    *,
    draws: int = 1000,
    warmup: int = 200,
    seconds: float | None = None,
    variant: Variant = PROPER,
) -> KronDraws:
    """One chain; with `seconds` it keeps fewer draws rather than run longer."""
    state = start(X, Y, rng, variant.rank)
    for _ in range(warmup):
        state = sweep(X, Y, state, rng, variant)
    kept: list[tuple[Array, Array, Array]] = []
    begin = time.perf_counter()
    spent = 0.0
    while len(kept) < draws and (seconds is None or spent < seconds or not kept):
        state = sweep(X, Y, state, rng, variant)
        kept.append((state.C, state.sigma2, np.sqrt(state.tau2)))
        spent = time.perf_counter() - begin
    C, sigma2, tau = (np.stack(part) for part in zip(*kept))
    return KronDraws(C, sigma2, tau, spent)
