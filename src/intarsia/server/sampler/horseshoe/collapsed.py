"""Moves with B integrated out, for row scales: A, the noise's covariance, tau's common scale, borderline features.

Given B, null coefficients and noise trade off slowly, A is pinned by B, and a feature seldom jumps between "in" and "out". After
one reduction of G = X diag(lam²) Xᵀ (`systems`) the likelihood without B costs O(mR) per evaluation. B is drawn afterwards.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.server.sampler import compiled
from intarsia.server.sampler.horseshoe.model import HALF_CAUCHY, Law, log_density
from intarsia.server.sampler.horseshoe.noise import NoisePrior, log_prior
from intarsia.server.sampler.horseshoe.systems import columns_products, log_marginal

Array = NDArray[Any]

SHAPES = 0.15, 0.3, 0.6  # standard deviations of the logarithms by which A is stretched, in turn
CANDIDATES = 12  # scales that a borderline feature chooses among
LARGEST = 1e8  # lam² times its precision beyond which a feature cannot be taken out again: outside the support of that move


class Target(NamedTuple):
    """What the density of A, Sigma and tau given lam is made of."""

    diag: Array  # of the reduced G
    off: Array
    Y: Array  # the responses, rotated by the factor
    rss0: Array  # (Q, Q) scatter of the rows no feature reaches
    rows: float
    power: float
    noise: NoisePrior
    tau: Law


class Place(NamedTuple):
    """A, tau, and Sigma by K (Sigma⁻¹ = KᵀK) and log det Sigma."""

    A: Array
    tau: Array
    K: Array
    log_det: float


class Steps(NamedTuple):
    """Random numbers of Metropolis steps: directions (steps, Q or R) of any length, sizes, and logs of uniform numbers."""

    directions: Array
    sizes: Array
    log_u: Array


class Candidates(NamedTuple):
    """Random numbers of the borderline move: K features, T candidates each."""

    value: Array  # (K, T)
    mix: Array  # (K, T) which law each comes from
    pick: Array  # (K)


@compiled
def log_posterior(target: Target, at: Place) -> float:
    """Log density of A, Sigma (`noise.log_prior` says of which measure) and log tau, B integrated out, up to a constant."""
    K = at.K * math.sqrt(target.power)
    U, d, _ = np.linalg.svd(np.dot(K, at.A) * at.tau, False)
    Yw = np.dot(target.Y, K.T)
    Yr = np.dot(Yw, U)
    value = -0.5 * (log_marginal(target.diag, target.off, d, Yr) + (np.dot(K, target.rss0) * K).sum())
    if U.shape[1] < U.shape[0]:  # responses' directions that no coefficients reach
        value -= 0.5 * ((Yw**2).sum() - (Yr**2).sum())
    for r in range(at.tau.size):
        value += log_density(target.tau, math.log(at.tau[r]))
    # The likelihood's power acts on its normaliser too.
    value -= 0.5 * target.power * target.rows * at.log_det + 0.5 * (at.A**2).sum()
    return value + log_prior(at.K, at.log_det, target.noise)


@compiled
def stretch_A(target: Target, at: Place, steps: Steps) -> Place:
    """A, by Metropolis steps given Sigma and tau.

    A T, T = diag(tau), is stretched from the right along one direction w after the other, A T (I + (eˣ-1) w wᵀ) T⁻¹: in units of
    the coefficients' covariance A T² Aᵀ, so that a step means as much where that is small as where it is large.
    """
    Q, value = at.A.shape[0], log_posterior(target, at)
    for k in range(steps.sizes.size):
        w = steps.directions[k] / math.sqrt((steps.directions[k] ** 2).sum())
        there = at.A + np.outer(np.dot(at.A * at.tau, w) * math.expm1(steps.sizes[k]), w / at.tau)
        new = Place(there, at.tau, at.K, at.log_det)
        proposed = log_posterior(target, new)
        if steps.log_u[k] < proposed - value + Q * steps.sizes[k]:
            at, value = new, proposed
    return at


@compiled
def move_scales(target: Target, at: Place, steps: Steps) -> tuple[Place, Array]:
    """Sigma along each of the directions (independent noise: along each response), then tau's common scale; what was accepted.

    Sigma = RRᵀ becomes R (I + (eˣ-1) v vᵀ) Rᵀ. The last step is tau's.
    """
    number, Q = steps.sizes.size, at.A.shape[0]
    accepted, value = np.zeros(number), log_posterior(target, at)
    for k in range(number):
        x = steps.sizes[k]
        if k == number - 1:
            new = Place(at.A, at.tau * math.exp(x), at.K, at.log_det)
        else:
            v = np.zeros(Q)
            if target.noise.correlated:
                v[:] = steps.directions[k] / math.sqrt((steps.directions[k] ** 2).sum())
            else:
                v[k] = 1.0
            new = Place(at.A, at.tau, at.K + np.outer(math.expm1(-x / 2) * v, np.dot(v, at.K)), at.log_det + x)
        proposed = log_posterior(target, new)
        if steps.log_u[k] < proposed - value:
            at, value = new, proposed
            accepted[k] = 1.0
    return at, accepted


@compiled
def borderline(target: Target, at: Place, X: Array, lam: Array, law: Law, candidates: Candidates) -> Array:
    """New local scales of a few features, one after the other; X (m, K) are their columns, rotated. NaN where that cannot be.

    Each new scale changes the systems I + d_j² G by a matrix of rank one: Gauss elimination with Xᵀ (I + d_j² G)⁻¹ [X, y_j].
    """
    K = at.K * math.sqrt(target.power)
    U, d, _ = np.linalg.svd(np.dot(K, at.A) * at.tau, False)
    Yr = np.dot(np.dot(target.Y, K.T), U)
    number, R = lam.size, d.size
    a = np.empty((R, number, number + 1))
    if not columns_products((target.diag, target.off, d), Yr, X, a):
        return np.full(number, np.nan)
    new, precision, z2 = lam.copy(), np.empty(R), np.empty(R)
    for i in range(number):
        least = np.inf
        for r in range(R):
            own, z = a[r, i, i], a[r, i, number]
            keep = 1 - d[r] ** 2 * lam[i] ** 2 * own  # with the feature itself taken out
            least = min(least, keep)
            keep = max(keep, 1e-8)
            precision[r] = d[r] ** 2 * own / keep
            z2[r] = z**2 / max(own * keep, 1e-300)
        if least > 1e-8:
            new[i] = _pick(precision, z2, lam[i], law, (candidates.value[i], candidates.mix[i], candidates.pick[i]))
        for r in range(R):
            change = d[r] ** 2 * (new[i] ** 2 - lam[i] ** 2)
            if change == 0.0:
                continue
            row = a[r, i]
            rho = change / (1 + change * row[i])
            for j in range(i + 1, number):
                c, other = rho * row[j], a[r, j]
                for k in range(j, number + 1):
                    other[k] -= c * row[k]
    return new


@compiled
def _pick(precision: Array, z2: Array, lam: float, law: Law, numbers: tuple[Array, Array, float]) -> float:
    """One local scale among fresh candidates and the present one, by importance weight (iterated sampling importance resampling:
    it leaves the scale's conditional as it is).

    The data say of a feature with scale x that its z scores in R directions are N(0, 1 + precision x²); `z2` are their squares.
    Candidates come half from C⁺(0, 1), half from a logistic law of log x about the scale that the data resolve, so that both
    "out" and "in" are on offer whatever the present state. With c that law's middle both proposals' densities are rational in x.
    """
    value, mix, u = numbers
    T, prior = value.size, Law(HALF_CAUCHY, 1.0)
    c = math.e / math.sqrt(max(precision.max(), 1e-300))
    x, weight, log_weight, top = np.empty(T + 1), np.zeros(T + 1), np.full(T + 1, -np.inf), -np.inf
    for k in range(T + 1):
        if k == T:
            x[k] = lam
        elif mix[k] < 0.5:
            x[k] = math.tan(math.pi / 2 * value[k])
        else:
            x[k] = c * (value[k] / (1 - value[k]))
        square, fit, largest, product = x[k] * x[k], 0.0, 0.0, 1.0
        for r in range(precision.size):
            x2 = precision[r] * square
            largest = max(largest, x2)
            fit += z2[r] * (x2 / (1 + x2))
            product *= 1 + x2
            if product > 1e100:  # its logarithm is taken before it overflows
                fit -= math.log(product)
                product = 1.0
        if not (largest < LARGEST and 0 < square < 1e300):
            continue
        weight[k] = 1 / (math.sqrt(product) * (2 / math.pi + (1 + square) / (c * (1 + x[k] / c) ** 2)))
        log_weight[k] = 0.5 * fit
        if law.kind != prior.kind:
            t = math.log(x[k])
            log_weight[k] += log_density(law, t) - log_density(prior, t)
        top = max(top, log_weight[k])
    total = 0.0
    for k in range(T + 1):
        total += weight[k] * math.exp(log_weight[k] - top)
        weight[k] = total
    chosen = 0
    while chosen < T and weight[chosen] < u * total:
        chosen += 1
    return x[chosen]
