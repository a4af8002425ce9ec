"""One sweep of the sampler, compiled as it stands here.

1. scan      every feature in or out, with its pattern and effects (`scan`)
2. place     where do some of the effects sit (`places`)
   near      both again, among the features that came nearest to being in during the warm-up (`State.near`). They stay the
             same from then on, are nearly all that matter, and a pass over them costs next to nothing.
3. effects   of all features that are in, together; before, those near choose once more, with these effects open (`together`)
4. the background's ratio w and Σ, the slab, π and the shares of patterns (`laws`)
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.server.sampler import compiled
from intarsia.server.sampler.sparse.laws import draw_effects, draw_noise, draw_shares, draw_slab
from intarsia.server.sampler.sparse.places import place
from intarsia.server.sampler.sparse.scan import Among, Coordinates, coordinates, scan, scan_some
from intarsia.server.sampler.sparse.state import RATIO, Problem, State, Trace
from intarsia.server.sampler.sparse.together import scan_together

Array = NDArray[np.float64]

MOVES, NEAR_MOVES = 3, 12  # effects placed anew: among all features while those near are not known; among those near
FAR = 0.25  # how often one is placed anew among all features once those near are known
MOST_MOVES = 64  # effects placed anew at the end of the warm-up, to find those near
MOST_ROUNDS, EACH_ROUND = 4, 2_500  # rounds among those near: one for so many features


@compiled
def residual(problem: Problem, state: State) -> Any:
    """Y − XB (m, Q)."""
    out = problem.Y.copy()
    m, Q = out.shape
    for k in range(state.count[0]):
        for i in range(m):
            for q in range(Q):
                out[i, q] -= problem.X[state.feature[k], i] * state.effect[k, q]
    return out


@compiled
def sweep(rng: Any, problem: Problem, state: State, trace: Trace) -> None:
    """Everything once; `trace` tells of the scan."""
    P = problem.X.shape[0]
    weight = 1.0 / (1.0 + problem.ratios[int(state.scalars[RATIO])] * problem.d)
    at = coordinates(problem, state)
    R = residual(problem, state) @ at.T
    scan(rng, problem, state, at, R, weight, trace)
    everything = Among(np.arange(P), problem.X, weight)
    if state.near.size == 0:
        place(rng, problem, state, at, R, everything, MOVES)
    else:
        if state.near.size < P and rng.random() < FAR:
            place(rng, problem, state, at, R, everything, 1)
        near(rng, problem, state, at, R, weight, min(MOST_ROUNDS, P // EACH_ROUND))
    draw_effects(rng, problem, state, at, R, weight)
    draw_noise(rng, problem, state, residual(problem, state))
    draw_slab(rng, state)
    draw_shares(rng, problem, state)


@compiled
def likely_places(rng: Any, problem: Problem, state: State) -> Any:
    """Place many of the effects anew, and tell how likely each feature was as a place."""
    weight = 1.0 / (1.0 + problem.ratios[int(state.scalars[RATIO])] * problem.d)
    at = coordinates(problem, state)
    R = residual(problem, state) @ at.T
    return place(rng, problem, state, at, R, Among(np.arange(problem.X.shape[0]), problem.X, weight), MOST_MOVES)


@compiled
def near(rng: Any, problem: Problem, state: State, at: Coordinates, R: Array, weight: Array, rounds: int) -> None:
    """Place effects, and put in and out, among the features of `State.near`, and again so many times: more often where a pass
    over all costs more. The effects of features on all responses are left open (`scan_together`).
    """
    (K,), Q = state.near.shape, problem.Y.shape[1]
    among = Among(state.near, problem.X[state.near], weight)
    wide = np.zeros((K, Q), dtype=np.float32)
    trace = Trace(np.zeros(K, dtype=np.float32), np.zeros(K, dtype=np.int32), wide, wide.copy(), np.zeros(1, dtype=np.int64))
    for i in range(1 + rounds):
        if i > 0:
            draw_effects(rng, problem, state, at, R, weight)
            scan_some(rng, problem, state, at, R, among, trace)
        place(rng, problem, state, at, R, among, NEAR_MOVES)
        scan_together(rng, problem, state, at, R, among)


@compiled
def sweeps(rng: Any, problem: Problem, state: State, trace: Trace, number: int) -> None:
    """Several, of which nothing is kept."""
    for _ in range(number):
        sweep(rng, problem, state, trace)
