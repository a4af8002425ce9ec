"""The other conditionals of a sweep: effects of all features that are in together, the background's ratio and Σ, the slab, π, ρ.

Σ   inverse Wishart(Q + 2, .3 I), on responses of unit mean square; independent noise: inverse gamma each
w   one of a grid; half of the prior mass at none
V   inverse Wishart(2Q + 10, (Q + 9) s I) around a multiple s of I, s ~ Gamma(2, mean .1); or ΛΛᵀ + ψI with few columns
π   Beta(1, P*/κ): P* features were looked at, κ of them are expected
ρ   Beta(1, 1) for each response, or with probability .3 Beta(20, 1) for all of them: effects everywhere
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.server.sampler import compiled
from intarsia.server.sampler.sparse.scan import Coordinates, condition, logistic, pick
from intarsia.server.sampler.sparse.state import PI, RATIO, SPREAD, Problem, State

Array = NDArray[np.float64]

NOISE_DEGREES, NOISE_SCATTER = 2.0, 0.3  # the degrees beyond Q
SLAB_DEGREES, SPREAD_SHAPE, SPREAD_MEAN = 10.0, 2.0, 0.1  # the degrees beyond 2 Q
SPREAD_STEPS = 9
EVERYWHERE, MOSTLY = 0.3, 20.0
MOST_TOGETHER = 400  # effects, where features have different patterns, that are drawn in one go


@compiled
def inverse_wishart(rng: Any, degrees: float, scatter: Array) -> Array:
    """By Bartlett's factor of the Wishart matrix it is the inverse of."""
    Q = len(scatter)
    A = np.zeros((Q, Q))
    for i in range(Q):
        A[i, i] = np.sqrt(2.0 * rng.standard_gamma((degrees - i) / 2.0))
        for j in range(i):
            A[i, j] = rng.standard_normal()
    L = np.linalg.cholesky((scatter + scatter.T) / 2)  # (L A⁻ᵀ)(L A⁻ᵀ)ᵀ has the law
    half = L @ np.ascontiguousarray(np.linalg.inv(A).T)
    return half @ half.T


@compiled
def draw_noise(rng: Any, problem: Problem, state: State, raw: Array) -> None:
    """The background's ratio w given the residual rows, with Σ integrated out, then Σ given w."""
    m, Q = raw.shape
    scatters, logs = np.empty((problem.ratios.size, Q, Q)), problem.ratio_prior.copy()
    for g in range(logs.size):
        wide = 1.0 + problem.ratios[g] * problem.d
        scatters[g] = (problem.rest + raw.T @ (raw / wide.reshape(m, 1))) * problem.power + NOISE_SCATTER * np.eye(Q)
        logs[g] -= 0.5 * Q * problem.power * np.log(wide).sum()
        if problem.independent:
            for q in range(Q):
                logs[g] -= 0.5 * (1.0 + NOISE_DEGREES + problem.rows) * np.log(scatters[g, q, q])
        else:
            logs[g] -= 0.5 * (Q + NOISE_DEGREES + problem.rows) * np.linalg.slogdet(scatters[g])[1]
    g = pick(np.exp(logs - logs.max()), rng.random())
    state.scalars[RATIO] = g
    if problem.independent:
        for q in range(Q):
            state.Sigma[q, :] = 0.0
            state.Sigma[q, q] = 0.5 * scatters[g, q, q] / rng.standard_gamma((1.0 + NOISE_DEGREES + problem.rows) / 2)
    else:
        state.Sigma[:] = inverse_wishart(rng, Q + NOISE_DEGREES + problem.rows, scatters[g])


@compiled
def completed(rng: Any, state: State) -> Array:
    """Effects (count, Q) with what the slab would have put where a feature does not act, given where it does."""
    k, Q = state.count[0], state.rho.size
    out = state.effect[:k].copy()
    for i in range(k):
        off = np.flatnonzero(~state.acts[i])
        if off.size == 0:
            continue
        given = state.V.copy()
        for q in range(Q):
            if state.acts[i, q]:
                condition(given, q)
        left = np.empty((off.size, off.size))
        for a in range(off.size):
            for b in range(off.size):
                left[a, b] = (given[off[a], off[b]] + given[off[b], off[a]]) / 2
        L = np.linalg.cholesky(left)
        z = np.empty(off.size)
        for a in range(off.size):
            z[a] = rng.standard_normal()
        around = L @ z
        for a in range(off.size):
            for q in range(Q):
                if state.acts[i, q]:
                    around[a] += given[off[a], q] * state.effect[i, q]
            out[i, off[a]] = around[a]
    return out


@compiled
def draw_slab(rng: Any, state: State) -> None:
    """V and its scale given the effects, completed to all responses."""
    k, Q = state.count[0], state.rho.size
    effects = completed(rng, state)
    if state.loadings.shape[1] > 0:
        draw_loadings(rng, state, effects)
        return
    degrees, scatter = 2.0 * Q + SLAB_DEGREES, effects.T @ effects
    spread = draw_spread(rng, state.scalars[SPREAD], np.linalg.eigvalsh(scatter), degrees, k)
    state.scalars[SPREAD] = spread
    state.V[:] = inverse_wishart(rng, degrees + k, scatter + (Q + 9.0) * spread * np.eye(Q))


@compiled
def draw_spread(rng: Any, spread: float, squares: Array, degrees: float, k: int) -> float:
    """The slab's scale s given k effects, V integrated out: Metropolis steps on log s; `squares`: their scatter's eigenvalues."""
    now, height = math.log(spread), spread_density(math.log(spread), squares, degrees, k)
    for i in range(SPREAD_STEPS):
        new = now + (2.0, 0.7, 0.25)[i % 3] * rng.standard_normal()
        there = spread_density(new, squares, degrees, k)
        if math.log(1.0 - rng.random()) < there - height:
            now, height = new, there
    return math.exp(now)


@compiled
def spread_density(log_s: float, squares: Array, degrees: float, k: int) -> float:
    """Log density of log s, up to a constant."""
    Q = squares.size
    s = math.exp(log_s)
    out = SPREAD_SHAPE * log_s - SPREAD_SHAPE / SPREAD_MEAN * s + 0.5 * degrees * Q * log_s
    for q in range(Q):
        out -= 0.5 * (degrees + k) * math.log((Q + 9.0) * s + max(squares[q], 0.0))
    return out


@compiled
def draw_loadings(rng: Any, state: State, effects: Array) -> None:
    """V = ΛΛᵀ + ψI by its factors: Λ_qr ~ N(0, .1/R), ψ ~ inverse gamma(2, .02)."""
    k, Q = effects.shape
    R = state.loadings.shape[1]
    psi = state.scalars[SPREAD]
    factors = np.zeros((k, R))
    if k > 0:
        L = np.linalg.cholesky(state.loadings.T @ state.loadings / psi + np.eye(R))
        for i in range(k):
            z = np.linalg.solve(L, state.loadings.T @ effects[i] / psi)
            for r in range(R):
                z[r] += rng.standard_normal()
            factors[i] = np.linalg.solve(L.T, z)
    L = np.linalg.cholesky(factors.T @ factors / psi + np.eye(R) * R / SPREAD_MEAN)
    for q in range(Q):
        z = np.linalg.solve(L, factors.T @ np.ascontiguousarray(effects[:, q]) / psi)
        for r in range(R):
            z[r] += rng.standard_normal()
        state.loadings[q] = np.linalg.solve(L.T, z)
    left = effects - factors @ np.ascontiguousarray(state.loadings.T)
    psi = (0.02 + 0.5 * (left * left).sum()) / rng.standard_gamma(2.0 + 0.5 * k * Q)
    state.scalars[SPREAD] = psi
    state.V[:] = state.loadings @ np.ascontiguousarray(state.loadings.T) + psi * np.eye(Q)


@compiled
def draw_shares(rng: Any, problem: Problem, state: State) -> None:
    """π, and how often features act on each response."""
    k, Q = state.count[0], state.rho.size
    state.scalars[PI] = rng.beta(1.0 + k, problem.looked_at / problem.expected + problem.looked_at - k)
    if Q == 1:
        return
    # A feature that is in acts somewhere: its pattern is the first of repeated tries that does. The tries before it are drawn.
    tries, nowhere = float(k), np.exp(np.log1p(-state.rho).sum())
    if nowhere > 0:
        for _ in range(k):
            tries += np.floor(np.log(1.0 - rng.random()) / np.log(nowhere))
    odds = np.log(EVERYWHERE / (1 - EVERYWHERE))
    for q in range(Q):
        odds += log_evidence(MOSTLY, state.acts[:k, q].sum(), tries) - log_evidence(1.0, state.acts[:k, q].sum(), tries)
    a = MOSTLY if rng.random() < logistic(odds) else 1.0
    for q in range(Q):
        on = state.acts[:k, q].sum()
        state.rho[q] = min(max(rng.beta(a + on, 1.0 + tries - on), 1e-6), 1 - 1e-6)


@compiled
def log_evidence(a: float, on: float, tries: float) -> float:
    """Log probability of acting so often in so many tries, ρ ~ Beta(a, 1) integrated out."""
    return math.log(a) + math.lgamma(a + on) + math.lgamma(1.0 + tries - on) - math.lgamma(a + 1.0 + tries)


@compiled
def columns_of(problem: Problem, state: State, slots: Any) -> Array:
    """The features in some slots as columns (m, n)."""
    m = problem.X.shape[1]
    out = np.empty((m, slots.size))
    for j in range(slots.size):
        for i in range(m):
            out[i, j] = problem.X[state.feature[slots[j]], i]
    return out


@compiled
def draw_effects(rng: Any, problem: Problem, state: State, at: Coordinates, R: Array, weight: Array) -> None:
    """The effects of the features that are in, together, given where they act; R is kept current.

    Features on all responses fall apart into Q systems; the others make one system of all their effects.
    """
    k, Q = state.count[0], R.shape[1]
    entries = 0
    everywhere = np.zeros(k, dtype=np.bool_)
    for i in range(k):
        on = state.acts[i].sum()
        everywhere[i] = on == Q
        entries += 0 if on == Q else on
    if everywhere.any():
        draw_everywhere(rng, problem, state, at, R, weight, np.flatnonzero(everywhere))
    if 1 < entries <= MOST_TOGETHER:
        draw_somewhere(rng, problem, state, at, R, weight, np.flatnonzero(~everywhere))


@compiled
def draw_everywhere(rng: Any, problem: Problem, state: State, at: Coordinates, R: Array, weight: Array, slots: Any) -> None:
    """Of features that act on all responses."""
    n, Q = slots.size, R.shape[1]
    columns = columns_of(problem, state, slots)
    heavy = columns * weight.reshape(-1, 1)
    R += columns @ (state.effect[slots] @ at.T)
    G, pull = heavy.T @ columns, heavy.T @ R
    new = np.empty((n, Q))
    for q in range(Q):
        L = np.linalg.cholesky(G + at.v[q] * np.eye(n))
        z = np.linalg.solve(L, pull[:, q].copy())
        for j in range(n):
            z[j] += rng.standard_normal()
        new[:, q] = np.linalg.solve(L.T, z)
    R -= columns @ new
    raw = new @ at.back
    for j in range(n):
        state.effect[slots[j]] = raw[j]


@compiled
def draw_somewhere(rng: Any, problem: Problem, state: State, at: Coordinates, R: Array, weight: Array, slots: Any) -> None:
    """Of features that act on some responses."""
    n, Q = slots.size, R.shape[1]
    columns = columns_of(problem, state, slots)
    heavy = columns * weight.reshape(-1, 1)
    R += columns @ (state.effect[slots] @ at.T)
    G, pull = heavy.T @ columns, (heavy.T @ R) @ np.ascontiguousarray(at.T.T)
    size = 0
    for j in range(n):
        size += state.acts[slots[j]].sum()
    row, response = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    precision, right = np.zeros((size, size)), np.empty(size)
    e = 0
    for j in range(n):
        on = np.flatnonzero(state.acts[slots[j]])
        V = np.empty((on.size, on.size))
        for a in range(on.size):
            for b in range(on.size):
                V[a, b] = at.V[on[a], on[b]]
        precision[e : e + on.size, e : e + on.size] = np.linalg.inv(V)
        for a in range(on.size):
            row[e + a], response[e + a], right[e + a] = j, on[a], pull[j, on[a]]
        e += on.size
    for a in range(size):
        for b in range(size):
            precision[a, b] += G[row[a], row[b]] * at.Omega[response[a], response[b]]
    L = np.linalg.cholesky(precision)
    z = np.linalg.solve(L, right)
    for a in range(size):
        z[a] += rng.standard_normal()
    effects = np.linalg.solve(L.T, z)
    new = np.zeros((n, Q))
    for a in range(size):
        new[row[a], response[a]] = effects[a]
    R -= columns @ (new @ at.T)
    for j in range(n):
        state.effect[slots[j]] = new[j]
