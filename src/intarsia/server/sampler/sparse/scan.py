"""The scan: every feature in turn, in or out, by its exact conditional.

In coordinates T that diagonalise noise and slab together (Σ⁻¹ = T Tᵀ, V⁻¹ = T diag(v) Tᵀ) the effects of feature p are judged by
its score h = X_pᵀ W R̃ + x_p B̃_p. R̃ = (Y − XB) T is what the other features leave, W the rows' weights and x_p = X_pᵀ W X_p:

    acts on all responses:      log BF = ½ Σ_q h_q² / (x_p + v_q) − ½ Σ_q log((x_p + v_q) / v_q)
    acts on response q alone:   log BF = ½ u_q² / (x_p Ω_qq + 1/V_qq) − ½ log(1 + x_p Ω_qq V_qq),   u = T h,  Ω = Σ⁻¹

A feature whose pattern is one of these, or that is out, chooses among all of them; one with another pattern keeps it here. Then
each response of a feature that is in has its spike drawn given the others (`draw_entries`).

All uniforms are drawn first. A feature that is out changes only if its uniform is below P(in | rest), so one product gives
the scores of a whole block, and only features that are in or come in cost more: a rank-one step on the rest of the block.
The order of the features never depends on the state.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.server.sampler import compiled
from intarsia.server.sampler.sparse.state import PI, RATIO, WORTH_LISTING, Problem, State, Trace

Array = NDArray[np.float64]


class Coordinates(NamedTuple):
    """Where noise is white and effects are independent, and the log prior weights of patterns."""

    T: Array  # (Q, Q): raw rows times T are rows in these coordinates
    back: Array  # (Q, Q): T⁻¹
    v: Array  # (Q,): precision of effects
    Omega: Array  # (Q, Q): precision of the noise, times the likelihood's power
    V: Array  # (Q, Q)
    log_out: float
    log_all: float
    log_alone: Array  # (Q,)
    log_odds: Array  # (Q,): log ρ_q / (1 − ρ_q)


class Score(NamedTuple):
    """What the data say of one feature, given the others."""

    h: Array  # (Q,): its score, in the coordinates of a `scan`
    u: Array  # (Q,): T h
    x: float  # its weighted square


class Among(NamedTuple):
    """Some of the features, or all."""

    features: NDArray[np.int64]  # (K,)
    columns: NDArray[np.float32]  # (K, m)
    weight: Array  # (m,): of the rows, under the present background


@compiled
def coordinates(problem: Problem, state: State) -> Coordinates:
    """Those of the present Σ, V, π and ρ."""
    Omega: Any = np.linalg.inv(state.Sigma) * problem.power
    L = np.linalg.cholesky((Omega + Omega.T) / 2)
    T, back, v = common_axes(L, state.V)
    pi, rho = state.scalars[PI], state.rho
    nowhere = np.log1p(-rho).sum()  # log probability that it acts nowhere, which is ruled out
    log_in = np.log(pi) - np.log(-np.expm1(nowhere))
    odds: Any = np.log(rho) - np.log1p(-rho)
    log_alone: Any = log_in + nowhere + odds
    return Coordinates(T, back, v, Omega, state.V, np.log1p(-pi), log_in + np.log(rho).sum(), log_alone, odds)


@compiled
def common_axes(L: Array, V: Array) -> tuple[Array, Array, Array]:
    """T, T⁻¹ and v with L Lᵀ = T Tᵀ and V⁻¹ = T diag(v) Tᵀ."""
    inverse = np.linalg.inv(L)
    M = inverse @ np.linalg.inv(V) @ inverse.T
    v, E = np.linalg.eigh((M + M.T) / 2)
    E = np.ascontiguousarray(E)
    return L @ E, np.ascontiguousarray(E.T) @ inverse, np.maximum(v, 1e-12)


@compiled
def pattern_chances(h: Array, u: Array, x: float, at: Coordinates, out: Array) -> float:
    """Relative chances of out, on all responses, and on each response alone, into `out` (Q + 2); returns P(in)."""
    Q = h.size
    fit, volume, product = 0.0, 0.0, 1.0
    for q in range(Q):
        wide = x + at.v[q]
        fit += h[q] * h[q] / wide
        product *= wide / at.v[q]
        if product > 1e200:
            volume += np.log(product)
            product = 1.0
    out[0] = at.log_out
    out[1] = at.log_all + 0.5 * (fit - volume - np.log(product))
    top = max(out[0], out[1])
    for q in range(Q):
        out[2 + q] = -np.inf
        if Q > 1:
            out[2 + q] = at.log_alone[q] + 0.5 * u[q] * u[q] * at.V[q, q] / (1.0 + x * at.Omega[q, q] * at.V[q, q])
            top = max(top, out[2 + q])
    out[0] = np.exp(out[0] - top)
    out[1] = np.exp(out[1] - top)
    inside = out[1]
    for q in range(Q):
        if Q > 1:
            out[2 + q] = np.exp(out[2 + q] - top) / np.sqrt(1.0 + x * at.Omega[q, q] * at.V[q, q])
            inside += out[2 + q]
        else:
            out[2 + q] = 0.0
    return inside / (out[0] + inside)


@compiled
def pick(chances: Array, uniform: float) -> int:
    """Which of some outcomes with these relative chances, by one uniform number."""
    left = uniform * chances.sum()
    for i in range(chances.size):
        left -= chances[i]
        if left < 0:
            return i
    return int(np.argmax(chances))


@compiled
def draw_effect(rng: Any, choice: int, score: Score, at: Coordinates, effect: Array, acts: Any) -> None:
    """The effect of a feature on all responses (choice 0) or on response choice − 1 alone."""
    h, u, x = score
    Q = h.size
    acts[:] = choice == 0
    effect[:] = 0.0
    if choice == 0:
        for r in range(Q):
            along = h[r] / (x + at.v[r]) + rng.standard_normal() / np.sqrt(x + at.v[r])
            for q in range(Q):
                effect[q] += along * at.back[r, q]
        return
    q = choice - 1
    acts[q] = True
    precision = x * at.Omega[q, q] + 1.0 / at.V[q, q]
    effect[q] = u[q] / precision + rng.standard_normal() / np.sqrt(precision)


@compiled
def draw_entries(rng: Any, u: Array, x: float, at: Coordinates, effect: Array, acts: Any, surely: Array) -> None:
    """Each response's spike and effect given the feature's others; one response at least stays.

    `surely` becomes the probability of each spike, at prior odds of at most one: what is reported of a response must not rest on
    the other features' acting everywhere.
    """
    Q = u.size
    given = at.V.copy()  # swept on the responses it acts on: how the slab goes on from these to the others
    for q in range(Q):
        if acts[q]:
            condition(given, q)
    for q in range(Q):
        if acts[q]:
            release(given, q)
        pull, mean, others = u[q], 0.0, 0
        for r in range(Q):
            if r != q and acts[r]:
                others += 1
                pull -= x * at.Omega[q, r] * effect[r]
                mean += given[q, r] * effect[r]
        gain, variance = x * at.Omega[q, q], given[q, q]
        wide = gain * variance + 1.0
        on, surely[q] = True, 1.0
        if others > 0:
            far = (pull * variance + mean) ** 2 / (variance * wide) - mean * mean / variance
            odds = 0.5 * (far - np.log(wide))
            on = rng.random() < logistic(odds + at.log_odds[q])
            surely[q] = logistic(odds + min(0.0, at.log_odds[q]))
        acts[q] = on
        effect[q] = 0.0
        if on:
            effect[q] = (pull * variance + mean) / wide + rng.standard_normal() * np.sqrt(variance / wide)
            condition(given, q)


@compiled
def logistic(odds: float) -> float:
    """The probability with these log odds."""
    return 1.0 / (1.0 + np.exp(-odds)) if odds > -700 else 0.0


@compiled
def condition(M: Array, k: int) -> None:
    """Sweep a covariance on variable k. Then M[i, k] is the regression of i on k given those swept, M[i, i] what is left."""
    pivot = M[k, k]
    Q = len(M)
    for j in range(Q):
        if j != k:
            M[k, j] /= pivot
    for i in range(Q):
        if i != k:
            along = M[i, k]
            for j in range(Q):
                if j != k:
                    M[i, j] -= along * M[k, j]
            M[i, k] = along / pivot
    M[k, k] = -1.0 / pivot


@compiled
def release(M: Array, k: int) -> None:
    """Undo `condition`."""
    pivot = -1.0 / M[k, k]
    Q = len(M)
    for i in range(Q):
        if i != k:
            along = M[i, k] * pivot
            for j in range(Q):
                if j != k:
                    M[i, j] += along * M[k, j]
            M[i, k] = along
    for j in range(Q):
        if j != k:
            M[k, j] *= pivot
    M[k, k] = pivot


@compiled
def put(state: State, p: int, acts: Any, effect: Array) -> None:
    """Feature p comes in, or changes where it is."""
    k = state.slot[p]
    if k < 0:
        k = state.count[0]
        state.count[0] += 1
        state.slot[p] = k
        state.feature[k] = p
    state.acts[k] = acts
    state.effect[k] = effect


@compiled
def take_out(state: State, p: int) -> None:
    """Feature p goes out; the last slot takes its place."""
    k, last = state.slot[p], state.count[0] - 1
    moved = state.feature[last]
    state.feature[k] = moved
    state.acts[k] = state.acts[last]
    state.effect[k] = state.effect[last]
    state.slot[moved] = k
    state.slot[p] = -1
    state.count[0] = last


@compiled
def into(M: Array, row: Array, out: Array) -> None:
    """out = row M."""
    for q in range(out.size):
        out[q] = 0.0
        for r in range(row.size):
            out[q] += row[r] * M[r, q]


@compiled
def scan(rng: Any, problem: Problem, state: State, at: Coordinates, R: Array, weight: Array, trace: Trace) -> None:
    """`scan_some` of all features."""
    scan_some(rng, problem, state, at, R, Among(np.arange(problem.X.shape[0]), problem.X, weight), trace)


@compiled
def scan_some(rng: Any, problem: Problem, state: State, at: Coordinates, R: Array, among: Among, trace: Trace) -> None:
    """One systematic pass over some features. R (m, Q) is the residual in the coordinates `at` and is kept current. `trace` is
    filled, by number among the features.
    """
    features, columns, weight = among
    squares = problem.squares[int(state.scalars[RATIO])]
    P, m = columns.shape
    Q = problem.Y.shape[1]
    uniforms = rng.random(P)
    size = block_size(P, Q, state.count[0])
    light, back_T = weight.astype(np.float32), np.ascontiguousarray(at.T.T)
    h, u, white, chances = np.empty(Q), np.empty(Q), np.empty(Q), np.zeros(Q + 2)
    new, old, acts, step = np.empty(Q), np.empty(Q), np.zeros(Q, dtype=np.bool_), np.empty(Q)
    expected, surely = np.empty(Q), np.empty(Q)
    trace.number[0] = 0
    for first in range(0, P, size):
        last = min(P, first + size)
        scores = np.dot(columns[first:last], (R * weight.reshape(m, 1)).astype(np.float32))
        for i in range(first, last):
            p = features[i]
            k = state.slot[p]
            x = float(squares[p])
            for q in range(Q):
                h[q] = scores[i - first, q]
            old[:] = 0.0
            if k >= 0:
                old[:] = state.effect[k]
                into(at.T, old, white)
                for q in range(Q):
                    h[q] += x * white[q]
            into(back_T, h, u)
            inside = pattern_chances(h, u, x, at, chances)
            other = False  # a pattern that is not among those of `chances`
            if k >= 0:
                number = state.acts[k].sum()
                other = 1 < number < Q
            trace.pip[i] = 1.0 if other else inside
            if inside > WORTH_LISTING or k >= 0 or uniforms[i] < inside:
                expect(expected, Score(h, u, x), at, chances, old, other)
            acts[:] = False
            new[:] = 0.0
            surely[:] = 0.0
            if other:
                acts[:] = state.acts[k]
                new[:] = old
            elif uniforms[i] < inside and (k >= 0 or state.count[0] < state.feature.size):  # else no room: the prior ends here
                draw_effect(rng, pick(chances[1:], uniforms[i] / inside), Score(h, u, x), at, new, acts)
            comes = acts.any()
            if comes:
                surely[:] = 1.0
                if Q > 1:
                    draw_entries(rng, u, x, at, new, acts, surely)
                put(state, p, acts, new)
            elif k >= 0:
                take_out(state, p)
            if inside > WORTH_LISTING or k >= 0 or comes:
                list_feature(trace, i, expected, surely)
            if k < 0 and not comes:
                continue
            into(at.T, new - old, step)
            column = columns[i]
            for r in range(m):
                for q in range(Q):
                    R[r, q] -= column[r] * step[q]
            if i + 1 < last:
                along = np.dot(columns[i + 1 : last], column * light)
                for j in range(along.size):
                    for q in range(Q):
                        scores[i + 1 - first + j, q] -= along[j] * step[q]


@compiled
def block_size(P: int, Q: int, count: int) -> int:
    """Features per block: few where many are in, each of which costs a product with the rest of its block."""
    return int(min(P, max(64, min(2048, 2 * P * Q // max(1, count)))))


@compiled
def expect(out: Array, score: Score, at: Coordinates, chances: Array, effect: Array, other: bool) -> None:
    """The mean of a feature's effect given the rest; of another pattern, which has no closed form, the effect itself."""
    if other:
        out[:] = effect
        return
    h, u, x = score
    Q, total = h.size, chances.sum()
    for q in range(Q):
        mean = 0.0
        for r in range(Q):
            mean += h[r] / (x + at.v[r]) * at.back[r, q]
        alone = u[q] / (x * at.Omega[q, q] + 1.0 / at.V[q, q])
        out[q] = (chances[1] * mean + chances[2 + q] * alone) / total


@compiled
def list_feature(trace: Trace, p: int, expected: Array, surely: Array) -> None:
    """Note a feature that is in or may well be."""
    i = trace.number[0]
    if i < trace.listed.size:
        trace.number[0] = i + 1
        trace.listed[i] = p
        trace.expected[i] = expected
        trace.acting[i] = surely
