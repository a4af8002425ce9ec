"""One sweep of the sampler, compiled as it stands here.

1. scan      every feature in or out, with its pattern and effects (`scan`)
2. place     where do some of the effects sit (`places`)
3. effects   of all features that are in, together
4. the background's ratio w and Σ, the slab, π and the shares of patterns (`laws`)
"""

from typing import Any

from intarsia.server.sampler import compiled
from intarsia.server.sampler.sparse.laws import draw_effects, draw_noise, draw_shares, draw_slab
from intarsia.server.sampler.sparse.places import MOVED_OVER, MOVES, place
from intarsia.server.sampler.sparse.scan import coordinates, scan
from intarsia.server.sampler.sparse.state import RATIO, Problem, State, Trace


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
    weight = 1.0 / (1.0 + problem.ratios[int(state.scalars[RATIO])] * problem.d)
    at = coordinates(problem, state)
    R = residual(problem, state) @ at.T
    scan(rng, problem, state, at, R, weight, trace)
    place(rng, problem, state, at, R, weight, max(MOVES, MOVED_OVER // problem.X.shape[0]))
    draw_effects(rng, problem, state, at, R, weight)
    draw_noise(rng, problem, state, residual(problem, state))
    draw_slab(rng, state)
    draw_shares(rng, problem, state)


@compiled
def sweeps(rng: Any, problem: Problem, state: State, trace: Trace, number: int) -> None:
    """Several, of which nothing is kept."""
    for _ in range(number):
        sweep(rng, problem, state, trace)
