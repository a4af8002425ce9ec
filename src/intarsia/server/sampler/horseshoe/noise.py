"""The covariance Sigma of the responses' noise: its rotation to independent responses, its prior, its draw.

With Sigma = U D Uᵀ the rotated responses YU have independent noise with variances D, and UᵀA has the same iid N(0, 1) prior as A.
So every step given Sigma is the step for independent noise on (YU, UᵀA, D); only the draw of Sigma itself knows more.

Correlated: Sigma | a ~ IW(nu + Q - 1, 2 nu diag(1/a)), a_q ~ IG(1/2, 1/scale_q²) (Huang & Wand 2013). With nu = 2 every
correlation is uniform on (-1, 1), and each noise level is half-t with 2 degrees of freedom. Independent: each level on its own.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.server.sampler import compiled
from intarsia.server.sampler.horseshoe.model import HALF_CAUCHY, JEFFREYS, Law, draw_precision, gamma_shape, log_density

Array = NDArray[Any]

NU = 2.0  # degrees of freedom of the half-t law of each noise level; 2: every correlation is uniform
LEAST = 1e-24  # smallest noise variance, in units of a response's mean square
ROUNDING = 1e-15  # smallest eigenvalue that can be told from zero, in units of the largest


class NoisePrior(NamedTuple):
    """`correlated`, or the law of each level (`kind`, as in `model.Law`); `scale` (Q) are the responses' root mean squares."""

    correlated: bool
    kind: int
    scale: Array


class SigmaNumbers(NamedTuple):
    """Random numbers of one draw of Sigma: gamma variates of a, normal (Q²) and gamma variates of Bartlett's factor; independent
    noise: a gamma variate and two uniform ones for each level.
    """

    first: Array
    second: Array
    third: Array


def noise_prior(noise: str, scale: Array) -> NoisePrior:
    """The prior that a model names."""
    return NoisePrior(noise == "correlated" and scale.size > 1, JEFFREYS if noise == "jeffreys" else HALF_CAUCHY, scale)


def numbers_for(prior: NoisePrior, rows: float, rng: np.random.Generator) -> SigmaNumbers:
    """The random numbers of a draw of Sigma, whose residuals are counted over so many rows."""
    Q = prior.scale.size
    if not prior.correlated:
        return SigmaNumbers(rng.standard_gamma(gamma_shape(Law(prior.kind), rows), Q), 1.0 - rng.random(Q), 1.0 - rng.random(Q))
    degrees = NU + Q - 1 + rows
    return SigmaNumbers(
        rng.standard_gamma((NU + Q) / 2, Q), rng.standard_normal(Q * Q), rng.standard_gamma((degrees - np.arange(Q)) / 2)
    )


@compiled
def rotation(Sigma: Array, correlated: bool) -> tuple[Array, Array]:
    """U and D of Sigma = U diag(D) Uᵀ; each column of U has a sum ≥ 0, so that the same Sigma has the same U everywhere."""
    Q = Sigma.shape[0]
    if not correlated:
        return np.eye(Q), np.diag(Sigma).copy()
    D, V = np.linalg.eigh(Sigma)
    U = np.ascontiguousarray(V)
    for i in range(Q):
        D[i] = max(D[i], ROUNDING * D[Q - 1])
        if U[:, i].sum() < 0:
            U[:, i] = -U[:, i]
    return U, D


@compiled
def root(Sigma: Array, correlated: bool) -> tuple[Array, float]:
    """K with Sigma⁻¹ = KᵀK, and log det Sigma."""
    U, D = rotation(Sigma, correlated)
    return np.ascontiguousarray((U / np.sqrt(D)).T), np.log(D).sum()


@compiled
def from_root(K: Array, correlated: bool) -> Array:
    """Sigma again."""
    Q = K.shape[0]
    Sigma = np.zeros((Q, Q))
    if not correlated:
        for q in range(Q):
            Sigma[q, q] = 1 / K[q, q] ** 2
        return Sigma
    w, V = np.linalg.eigh(np.dot(K.T, K))
    half = V / np.sqrt(np.maximum(w, ROUNDING * w[Q - 1]))
    return np.dot(half, half.T)


@compiled
def log_prior(K: Array, log_det: float, prior: NoisePrior) -> float:
    """Log density of Sigma (Sigma⁻¹ = KᵀK, log det Sigma), a integrated out, up to a constant.

    Correlated: with respect to the measure |Sigma|^(-(Q+1)/2) dSigma, which no stretching R (I + (eˣ-1) v vᵀ) Rᵀ of Sigma = RRᵀ
    changes. Independent: of the logarithms of the levels.
    """
    Q, value = prior.scale.size, 0.0
    if not prior.correlated:
        for q in range(Q):
            value += log_density(Law(prior.kind, prior.scale[q]), -math.log(K[q, q]))
        return value
    for q in range(Q):
        inverse = 1 / prior.scale[q] ** 2
        for i in range(Q):
            inverse += NU * K[i, q] ** 2
        value -= (NU + Q) / 2 * math.log(inverse)
    return value + (1 - NU - Q) / 2 * log_det


@compiled
def draw_Sigma(Sigma: Array, scatter: Array, rows: float, prior: NoisePrior, numbers: SigmaNumbers) -> Array:
    """Sigma given the residuals' scatter over so many rows (paper, appendix A.3), and the present Sigma.

    Correlated: a given Sigma, then IW(nu + Q - 1 + rows, scatter + 2 nu diag(1/a)) by Bartlett's factor T of a standard Wishart
    matrix. The scatter is factored in units of its own diagonal, so that a response without noise, or a copy of another, does not
    stop the chain.
    """
    Q, scale = prior.scale.size, prior.scale
    new = np.zeros((Q, Q))
    if not prior.correlated:
        for q in range(Q):
            law, eta = Law(prior.kind, scale[q]), 1 / Sigma[q, q]
            eta = draw_precision(law, eta, rows, scatter[q, q], numbers.first[q], numbers.second[q], numbers.third[q])
            new[q, q] = max(1 / eta, LEAST * scale[q] ** 2)
        return new
    U, D = rotation(Sigma, True)
    size, whole, T = np.empty(Q), scatter.copy(), np.zeros((Q, Q))
    for q in range(Q):
        precision = (U[q] ** 2 / D).sum()
        whole[q, q] += 2 * NU * numbers.first[q] / (NU * precision + 1 / scale[q] ** 2)
        size[q] = math.sqrt(max(whole[q, q], LEAST * scale[q] ** 2))
        T[q, :q] = numbers.second[q * Q : q * Q + q]
        T[q, q] = math.sqrt(2 * numbers.third[q])
    L = np.linalg.cholesky(whole / np.outer(size, size) + 10 * ROUNDING * np.eye(Q))
    K = np.linalg.solve(T, np.ascontiguousarray(L.T)) * size
    return np.dot(K.T, K)
