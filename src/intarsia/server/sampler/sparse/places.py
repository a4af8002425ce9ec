"""Where does this effect sit: a feature that is in is taken out, and its pattern is placed anew among some that are out.

The pattern (on which responses it acts) stays, its effects are integrated out. A place has the log Bayes factor that `scan` has
for that pattern. The place is drawn from these, normalised, and the effects given the place. Exact, and what makes copies and
close neighbours take turns.

The places are all features, which costs a pass over X, or the few of `State.near`, which costs next to nothing.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.server.sampler import compiled
from intarsia.server.sampler.sparse.scan import Among, Coordinates, common_axes, into, pick, put, take_out
from intarsia.server.sampler.sparse.state import RATIO, Problem, State

Array = NDArray[np.float64]


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
def place(rng: Any, problem: Problem, state: State, at: Coordinates, R: Array, among: Among, moves: int) -> Array:
    """Place the effects of some of those that are in, `among` features, anew among these; R is kept current.

    Returns how likely each place was, summed over the effects.
    """
    places, columns, weight = among
    K, m = columns.shape
    Q = problem.Y.shape[1]
    taken = np.flatnonzero(state.slot[places] >= 0)
    moves, likely = min(moves, taken.size), np.zeros(K)
    if moves == 0 or taken.size == K:
        return likely
    chosen = rng.permutation(taken)[:moves]  # numbers among the places, as all below
    # One product: the scores of all places, and what each chosen one shares with them.
    right = np.empty((m, Q + moves), dtype=np.float32)
    for i in range(m):
        for q in range(Q):
            right[i, q] = R[i, q] * weight[i]
        for j in range(moves):
            right[i, Q + j] = columns[chosen[j], i] * weight[i]
    shared = np.dot(columns, right)
    scores = shared[:, :Q].astype(np.float64)
    logs = np.empty(K)
    x = problem.squares[int(state.scalars[RATIO])][places]
    light = weight.astype(np.float32)
    b, new, step = np.empty(Q), np.empty(Q), np.empty(Q)
    for j in range(moves):
        here = chosen[j]
        k = state.slot[places[here]]
        acts, old = state.acts[k].copy(), state.effect[k].copy()
        into(at.T, old, b)
        for i in range(K):
            for q in range(Q):
                scores[i, q] += shared[i, Q + j] * b[q]
        axes = pattern_axes(acts, at)
        pulls = scores if axes.v.size == Q else np.dot(scores, axes.of_score)
        log_factors(pulls, x, axes, logs)
        for i in range(K):
            if i != here and state.slot[places[i]] >= 0:
                logs[i] = -np.inf
        top, total = logs.max(), 0.0
        for i in range(K):
            logs[i] = np.exp(logs[i] - top)
            total += logs[i]
        for i in range(K):
            likely[i] += logs[i] / total
        to = pick(logs, rng.random())
        new[:] = 0.0
        for a in range(axes.v.size):
            wide = x[to] + axes.v[a]
            along = pulls[to, a] / wide + rng.standard_normal() / np.sqrt(wide)
            for q in range(Q):
                new[q] += along * axes.to_effect[a, q]
        into(at.T, new, step)
        if to != here:
            take_out(state, places[here])
        put(state, places[to], acts, new)
        for i in range(m):
            for q in range(Q):
                R[i, q] += columns[here, i] * b[q] - columns[to, i] * step[q]
        if j + 1 < moves:
            along_all = shared[:, Q + j].copy() if to == here else np.dot(columns, columns[to] * light)
            for i in range(K):
                for q in range(Q):
                    scores[i, q] -= along_all[i] * step[q]
    return likely
