"""Where features act, while the effects of all features that are in are open.

Whether a feature acts on one response is held where it is by its other effects and by those of the others, as its being in is
(`together`). So all effects are integrated out, and single entries, a feature and a response, are switched on or off by
Metropolis steps. With u = X' W R Ω for all features that are in, entries e = (p, q) and f = (r, s):

    precision_ef = X_p' W X_r Ω_qs + (V_on⁻¹)_qs where p = r
    log evidence = ½ u' precision⁻¹ u − ½ log |precision| − ½ Σ_p log |V_on|

It takes a Cholesky factor for each, so there are few steps, and none where more than MOST_OPEN entries are on.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.server.sampler import compiled
from intarsia.server.sampler.sparse.scan import Coordinates, put, take_out
from intarsia.server.sampler.sparse.state import Problem, State

Array = NDArray[np.float64]
MOST_OPEN = 100  # entries
WITHIN, ANYWHERE = 4, 4  # steps: entries of features that are in, which stay in; entries of any of those near
FEW = 64  # features near with four times the steps


@compiled
def slab_of(V: Array, acts: Any, block: Array) -> float:
    """The inverse of V where a feature acts, into `block` (Q, Q), 0 elsewhere; returns −½ log of the determinant of V there."""
    on = np.flatnonzero(acts)
    part = np.empty((on.size, on.size))
    for a in range(on.size):
        for b in range(on.size):
            part[a, b] = V[on[a], on[b]]
    block[:] = 0.0
    if on.size == 0:
        return 0.0
    inverse = np.linalg.inv(part)
    for a in range(on.size):
        for b in range(on.size):
            block[on[a], on[b]] = inverse[a, b]
    return -0.5 * np.linalg.slogdet(part)[1]


@compiled
def entries_of(acts: Any, k: int) -> Any:
    """Feature and response (n, 2) of all entries that are on among the first k features."""
    out = np.empty((acts[:k].sum(), 2), dtype=np.int64)
    e = 0
    for i in range(k):
        for q in range(acts.shape[1]):
            if acts[i, q]:
                out[e, 0], out[e, 1] = i, q
                e += 1
    return out


@compiled
def factor(acts: Any, k: int, G: Array, blocks: Array, at: Coordinates) -> Any:
    """Cholesky factor of the precision of all entries that are on."""
    on = entries_of(acts, k)
    n = len(on)
    precision = np.empty((n, n))
    for a in range(n):
        i, q = on[a]
        for b in range(a + 1):
            j, r = on[b]
            value = G[i, j] * at.Omega[q, r]
            if i == j:
                value += blocks[i, q, r]
            precision[a, b] = value
            precision[b, a] = value
    L: Any = np.linalg.cholesky(precision)
    return L


@compiled
def log_evidence(acts: Any, k: int, G: Array, u: Array, blocks: Array, at: Coordinates) -> float:
    """But for the slab's determinants."""
    if not acts[:k].any():
        return 0.0
    L, on = factor(acts, k, G, blocks, at), entries_of(acts, k)
    z, out = np.empty(len(on)), 0.0
    for a in range(len(on)):
        z[a] = u[on[a, 0], on[a, 1]]
        for b in range(a):
            z[a] -= L[a, b] * z[b]
        z[a] /= L[a, a]
        out += 0.5 * z[a] * z[a] - np.log(L[a, a])
    return out


@compiled
def log_prior(acts: Any, at: Coordinates) -> float:
    """Of a feature's pattern, but for a constant."""
    Q = acts.size
    if not acts.any():
        return at.log_out
    if Q == 1:
        return at.log_all
    out = at.log_all  # π and every response on
    for q in range(Q):
        if not acts[q]:
            out -= at.log_odds[q]
    return out


@compiled
def switch(rng: Any, problem: Problem, state: State, at: Coordinates, R: Array, weight: Array) -> bool:
    """Switch entries, then draw the effects of all features that are in. False where there are too many: nothing is done."""
    (m, Q), k = R.shape, state.count[0]
    if state.acts[:k].sum() > MOST_OPEN:
        return False
    within, anywhere = (4 * WITHIN, 4 * ANYWHERE) if state.near.size <= FEW else (WITHIN, ANYWHERE)
    room = min(state.feature.size, k + anywhere)
    columns, G, u = np.empty((room, m)), np.empty((room, room)), np.empty((room, Q))
    blocks, slabs, trial = np.zeros((room, Q, Q)), np.zeros(room), np.zeros((room, Q), dtype=np.bool_)
    for i in range(k):
        for r in range(m):
            columns[i, r] = problem.X[state.feature[i], r]
        slabs[i] = slab_of(at.V, state.acts[i], blocks[i])
    R += np.ascontiguousarray(columns[:k].T) @ (state.effect[:k] @ at.T)
    heavy = columns[:k] * weight
    G[:k, :k] = heavy @ np.ascontiguousarray(columns[:k].T)
    u[:k] = (heavy @ R) @ np.ascontiguousarray(at.T.T)
    now, block = log_evidence(state.acts, k, G, u, blocks, at), np.empty((Q, Q))
    for step in range(within + anywhere):
        q, uniform = rng.integers(0, Q), rng.random()
        if step < within:
            p = state.feature[rng.integers(0, k)] if k > 0 else -1
        else:
            p = state.near[rng.integers(0, state.near.size)] if state.near.size > 0 else -1
        if p < 0:
            continue
        i = state.slot[p]
        came = i < 0
        if came:
            if k == room:
                continue
            i = k
        trial[:k] = state.acts[:k]
        if came:
            trial[i] = False
        before = log_prior(trial[i], at) + (0.0 if came else slabs[i])
        trial[i, q] = not trial[i, q]
        stays = trial[i].any()
        if (step < within and not stays) or trial[: k + came].sum() > MOST_OPEN:
            continue
        if came:
            for r in range(m):
                columns[i, r] = problem.X[p, r]
            along = columns[: k + 1] @ (columns[i] * weight)
            G[i, : k + 1] = along
            G[: k + 1, i] = along
            u[i] = at.T @ ((columns[i] * weight) @ R)
        block[:] = blocks[i]
        slab = slab_of(at.V, trial[i], blocks[i])
        there = log_evidence(trial, k + came, G, u, blocks, at)
        if np.log(1.0 - uniform) < there - now + slab + log_prior(trial[i], at) - before:
            now, slabs[i] = there, slab
            if stays:
                put(state, p, trial[i], np.zeros(Q))
                k += came
            else:
                take_out(state, p)
                k -= 1
                for a in range(k + 1):  # the last one takes its place, here as there
                    G[i, a] = G[k, a]
                for a in range(k + 1):
                    G[a, i] = G[a, k]
                columns[i], u[i], blocks[i], slabs[i] = columns[k], u[k], blocks[k], slabs[k]
        else:
            blocks[i] = block
    if k > 0:
        effects = draw_open(rng, state.acts, G[:k, :k], u[:k], blocks, at)
        state.effect[:k] = effects
        R -= np.ascontiguousarray(columns[:k].T) @ (effects @ at.T)
    return True


@compiled
def draw_open(rng: Any, acts: Any, G: Array, u: Array, blocks: Array, at: Coordinates) -> Array:
    """The effects (k, Q) of all entries that are on, together."""
    k, Q = u.shape
    L, on = factor(acts, k, G, blocks, at), entries_of(acts, k)
    right = np.empty(len(on))
    for a in range(len(on)):
        right[a] = u[on[a, 0], on[a, 1]]
    z = np.linalg.solve(L, right)
    for a in range(len(on)):
        z[a] += rng.standard_normal()
    effects, out = np.linalg.solve(L.T, z), np.zeros((k, Q))
    for a in range(len(on)):
        out[on[a, 0], on[a, 1]] = effects[a]
    return out
