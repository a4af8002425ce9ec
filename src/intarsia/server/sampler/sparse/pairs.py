"""Is this neighbour needed beside that feature: one is put in or out anew while the effects of both are open.

Given the other's effect, a neighbour that took a part of it is seldom let go of, for the other has lost that part. So a feature
r that acts on all responses stays in, its effects are integrated out, and a partner p, drawn by its correlation with r, chooses
among the patterns of the scan. Integrating r out leaves p with less of its square and of its score, along each axis k:

    x_k = x_p − g² / (x_r + v_k),   h_k = h_p − g h_r / (x_r + v_k),   g = X_pᵀ W X_r
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.server.sampler import compiled
from intarsia.server.sampler.sparse.scan import Among, Coordinates, into, pick, put, take_out
from intarsia.server.sampler.sparse.state import RATIO, Problem, State

Array = NDArray[np.float64]
VISITED = 0.5  # how often a feature is given a partner
POWER = 8  # of the correlation by which partners are chosen


@compiled
def chances_beside(h: Array, x: Array, at: Coordinates, out: Array) -> None:
    """Relative chances of out, on all responses, and on each response alone, where the square differs by axis."""
    Q = h.size
    out[0] = at.log_out
    out[1] = at.log_all
    for k in range(Q):
        out[1] += 0.5 * (h[k] * h[k] / (x[k] + at.v[k]) - np.log((x[k] + at.v[k]) / at.v[k]))
    for q in range(Q):
        out[2 + q] = -np.inf
        if Q > 1:
            pull, gain = 0.0, 0.0
            for k in range(Q):
                pull += at.T[q, k] * h[k]
                gain += at.T[q, k] * at.T[q, k] * x[k]
            wide = 1.0 + gain * at.V[q, q]
            out[2 + q] = at.log_alone[q] + 0.5 * (pull * pull * at.V[q, q] / wide - np.log(wide))
    top = out.max()
    for i in range(out.size):
        out[i] = np.exp(out[i] - top)


@compiled
def draw_beside(rng: Any, choice: int, h: Array, x: Array, at: Coordinates, effect: Array, acts: Any) -> None:
    """The effect on all responses (choice 0) or on response choice − 1 alone."""
    Q = h.size
    acts[:] = choice == 0
    effect[:] = 0.0
    if choice == 0:
        for k in range(Q):
            wide = x[k] + at.v[k]
            along = h[k] / wide + rng.standard_normal() / np.sqrt(wide)
            for q in range(Q):
                effect[q] += along * at.back[k, q]
        return
    q = choice - 1
    acts[q] = True
    pull, precision = 0.0, 1.0 / at.V[q, q]
    for k in range(Q):
        pull += at.T[q, k] * h[k]
        precision += at.T[q, k] * at.T[q, k] * x[k]
    effect[q] = pull / precision + rng.standard_normal() / np.sqrt(precision)


@compiled
def pair_up(rng: Any, problem: Problem, state: State, at: Coordinates, R: Array, among: Among) -> None:
    """Give some of those that act on all responses, `among` features, a partner among these; R is kept current."""
    features, columns, weight = among
    (K, m), Q = columns.shape, R.shape[1]
    squares = problem.squares[int(state.scalars[RATIO])]
    light, everywhere = weight.astype(np.float32), np.ones(Q, dtype=np.bool_)
    likely, chances = np.empty(K), np.zeros(Q + 2)
    h, x, scores = np.empty(Q), np.empty(Q), np.zeros((2, Q))
    of_r, of_p, new_r, new_p = np.empty(Q), np.empty(Q), np.empty(Q), np.empty(Q)
    effect, acts = np.empty(Q), np.zeros(Q, dtype=np.bool_)
    for i in range(K):
        r = features[i]
        if state.slot[r] < 0 or not state.acts[state.slot[r]].all() or rng.random() >= VISITED:
            continue
        shared = np.dot(columns, columns[i] * light)
        for j in range(K):
            size = squares[features[j]] * squares[r]
            likely[j] = 0.0 if j == i or size <= 0 else (shared[j] * shared[j] / size) ** (POWER // 2)
        if likely.sum() <= 0:
            continue
        j = pick(likely, rng.random())
        p, g = features[j], float(shared[j])
        k = state.slot[p]
        x_r, x_p = float(squares[r]), float(squares[p])
        of_p[:] = 0.0
        if k >= 0:
            number = state.acts[k].sum()
            if 1 < number < Q:
                continue
            into(at.T, state.effect[k], of_p)
        elif state.count[0] >= state.feature.size:
            continue
        into(at.T, state.effect[state.slot[r]], of_r)
        for q in range(Q):
            scores[0, q] = x_r * of_r[q] + g * of_p[q]
            scores[1, q] = x_p * of_p[q] + g * of_r[q]
        for row in range(m):
            for q in range(Q):
                seen = R[row, q] * weight[row]
                scores[0, q] += columns[i, row] * seen
                scores[1, q] += columns[j, row] * seen
        for q in range(Q):
            share = g / (x_r + at.v[q])
            h[q] = scores[1, q] - share * scores[0, q]
            x[q] = max(x_p - share * g, 0.0)
        chances_beside(h, x, at, chances)
        choice = pick(chances, rng.random())
        new_p[:] = 0.0
        if choice > 0:
            draw_beside(rng, choice - 1, h, x, at, effect, acts)
            put(state, p, acts, effect)
            into(at.T, effect, new_p)
        elif k >= 0:
            take_out(state, p)
        effect[:] = 0.0
        for a in range(Q):
            wide = x_r + at.v[a]
            new_r[a] = (scores[0, a] - g * new_p[a]) / wide + rng.standard_normal() / np.sqrt(wide)
            for q in range(Q):
                effect[q] += new_r[a] * at.back[a, q]
        put(state, r, everywhere, effect)
        for row in range(m):
            for q in range(Q):
                R[row, q] += columns[i, row] * (of_r[q] - new_r[q]) + columns[j, row] * (of_p[q] - new_p[q])
