"""Where does this effect sit: a feature that is in is taken out, and its pattern is placed anew among all that are out.

The pattern (on which responses it acts) stays, its effects are integrated out. A place has the log Bayes factor that `scan` has
for that pattern. The place is drawn from these, normalised, and the effects given the place. Exact, and what makes copies and
close neighbours take turns.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.server.sampler import compiled
from intarsia.server.sampler.sparse.scan import Coordinates, common_axes, into, put, take_out
from intarsia.server.sampler.sparse.state import RATIO, Problem, State

Array = NDArray[np.float64]
MOVES, MOVED_OVER = 3, 6_000  # effects placed anew per sweep: at least three, and 6,000 over the number of features


class Axes(NamedTuple):
    """Directions along which the effects of a pattern are independent of each other."""

    of_score: Array  # (Q, k): a score times this is the pull along each axis
    v: Array  # (k,): the prior's precision, where the likelihood's is x
    to_effect: Array  # (k, Q)


@compiled
def pattern_axes(acts: Any, at: Coordinates) -> Axes:
    """Axes of the effects on some responses, given scores in the coordinates `at`."""
    Q = at.v.size
    on = np.flatnonzero(acts)
    if on.size == Q:
        return Axes(np.eye(Q), at.v.copy(), at.back.copy())
    k = on.size
    precision, V = np.empty((k, k)), np.empty((k, k))
    for i in range(k):
        for j in range(k):
            precision[i, j] = at.Omega[on[i], on[j]]
            V[i, j] = at.V[on[i], on[j]]
    _T, back, v = common_axes(np.linalg.cholesky(precision), V)
    of_score, to_effect = np.zeros((Q, k)), np.zeros((k, Q))
    for j in range(k):
        for i in range(k):
            to_effect[j, on[i]] = back[j, i]
            for q in range(Q):
                of_score[q, j] += at.T[on[i], q] * back[j, i]
    return Axes(of_score, v, to_effect)


@compiled
def log_factors(pulls: Any, x: Any, axes: Axes, out: Array) -> None:
    """Log Bayes factor of the pattern at every feature, given the pulls (P, k) of its score along the axes."""
    for p in range(pulls.shape[0]):
        fit, product, volume = 0.0, 1.0, 0.0
        for j in range(axes.v.size):
            wide = x[p] + axes.v[j]
            fit += pulls[p, j] * pulls[p, j] / wide
            product *= wide / axes.v[j]
            if product > 1e200:
                volume += np.log(product)
                product = 1.0
        out[p] = 0.5 * (fit - volume - np.log(product))


@compiled
def place(rng: Any, problem: Problem, state: State, at: Coordinates, R: Array, weight: Array, moves: int) -> int:
    """Place some of the effects anew, R kept current; returns how many went elsewhere."""
    P, m = problem.X.shape
    Q = problem.Y.shape[1]
    count = state.count[0]
    moves = min(moves, count)
    if moves == 0 or count == P:
        return 0
    chosen = np.empty(moves, dtype=np.int64)
    order = rng.permutation(count)
    for i in range(moves):
        chosen[i] = state.feature[order[i]]
    # One product: the scores of all features, and what each chosen one shares with them.
    right = np.empty((m, Q + moves), dtype=np.float32)
    for i in range(m):
        for q in range(Q):
            right[i, q] = R[i, q] * weight[i]
        for j in range(moves):
            right[i, Q + j] = problem.X[chosen[j], i] * weight[i]
    shared = np.dot(problem.X, right)
    scores = shared[:, :Q].astype(np.float64)
    logs = np.empty(P)
    x = problem.squares[int(state.scalars[RATIO])]
    moved = 0
    b, new, step = np.empty(Q), np.empty(Q), np.empty(Q)
    for j in range(moves):
        p = chosen[j]
        k = state.slot[p]
        acts, old = state.acts[k].copy(), state.effect[k].copy()
        into(at.T, old, b)
        for i in range(P):
            for q in range(Q):
                scores[i, q] += shared[i, Q + j] * b[q]
        axes = pattern_axes(acts, at)
        pulls = scores if axes.v.size == Q else np.dot(scores, axes.of_score)
        log_factors(pulls, x, axes, logs)
        for i in range(state.count[0]):
            if state.feature[i] != p:
                logs[state.feature[i]] = -np.inf
        to = draw_log(rng, logs)
        new[:] = 0.0
        for a in range(axes.v.size):
            wide = x[to] + axes.v[a]
            along = pulls[to, a] / wide + rng.standard_normal() / np.sqrt(wide)
            for q in range(Q):
                new[q] += along * axes.to_effect[a, q]
        into(at.T, new, step)
        if to != p:
            take_out(state, p)
            moved += 1
        put(state, to, acts, new)
        for i in range(m):
            for q in range(Q):
                R[i, q] += problem.X[p, i] * b[q] - problem.X[to, i] * step[q]
        if j + 1 < moves:
            along_all = shared[:, Q + j].copy() if to == p else np.dot(problem.X, problem.X[to] * weight.astype(np.float32))
            for i in range(P):
                for q in range(Q):
                    scores[i, q] -= along_all[i] * step[q]
    return moved


@compiled
def draw_log(rng: Any, logs: Array) -> int:
    """Which feature, with log chances `logs`."""
    top = logs.max()
    total = 0.0
    for value in logs:
        total += np.exp(value - top)
    left = rng.random() * total
    for i in range(logs.size):
        left -= np.exp(logs[i] - top)
        if left < 0:
            return i
    return int(np.argmax(logs))
