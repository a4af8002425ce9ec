"""The scan among the features near, while the effects of all that act on all responses are open.

Given the others' effects a feature is held where it is: a neighbour that took a part of its effect leaves no need of it, and the
effects of twenty others have all made room for it. So the effects of E, the features that act on all responses, are integrated
out, and each feature chooses among the patterns of `scan` by what is left of its square and of its score. In coordinate q, with
R the residual that no effect of E has been taken from:

    A_q = X_E' W X_E + v_q I,   x_pq = X_p' W X_p − g' A_q⁻¹ g,   h_pq = X_p' W R_q − g' A_q⁻¹ X_E' W R_q,   g = X_E' W X_p

Where feature p comes into E, these change by t_iq = X_i' W X_p − g_i' A_q⁻¹ g_p:

    x_iq − t_iq² / (x_pq + v_q),   h_iq − t_iq h_pq / (x_pq + v_q)

and by as much the other way where it goes.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.server.sampler import compiled
from intarsia.server.sampler.sparse.scan import Among, Coordinates, into, pick, put, take_out
from intarsia.server.sampler.sparse.state import RATIO, Problem, State

Array = NDArray[np.float64]
ROOM = 8  # for so many more features in E at first


class Open(NamedTuple):
    """E, in the order of `member`, and what its open effects leave to the features that choose."""

    member: NDArray[np.int64]  # (room,): a feature each
    number: NDArray[np.int64]  # (1,): of them
    pull: Array  # (room, Q): X_E' W R
    inverse: Array  # (Q, room, room): A_q⁻¹
    shared: Array  # (room, K): X_E' W X of those that choose
    x: Array  # (K, Q), of those outside of E
    h: Array  # (K, Q)


@compiled
def opened(problem: Problem, state: State, at: Coordinates, R: Array, among: Among) -> Open:
    """Open the effects of E: they become 0 and R has them back."""
    features, columns, weight = among
    (m, Q), k, (K,) = R.shape, state.count[0], features.shape
    slots = np.empty(k, dtype=np.int64)
    n = 0
    for i in range(k):
        if state.acts[i].all():
            slots[n] = i
            n += 1
    room = n + ROOM
    member, pull = np.empty(room, dtype=np.int64), np.empty((room, Q))
    own, heavy = np.empty((n, m)), np.empty((n, m))
    for j in range(n):
        member[j] = state.feature[slots[j]]
        for i in range(m):
            own[j, i] = problem.X[member[j], i]
            heavy[j, i] = own[j, i] * weight[i]
    R += np.ascontiguousarray(own.T) @ (state.effect[slots[:n]] @ at.T)
    state.effect[slots[:n]] = 0.0
    G, inverse, shared = heavy @ np.ascontiguousarray(own.T), np.empty((Q, room, room)), np.empty((room, K))
    pull[:n] = heavy @ R
    shared[:n] = np.dot(heavy.astype(np.float32), np.ascontiguousarray(columns.T))
    h = np.dot(columns, (R * weight.reshape(m, 1)).astype(np.float32)).astype(np.float64)
    x = np.empty((K, Q))
    squares = problem.squares[int(state.scalars[RATIO])]
    for q in range(Q):
        A = np.linalg.inv(G + at.v[q] * np.eye(n))
        inverse[q, :n, :n] = A
        along = A @ shared[:n]
        h[:, q] -= pull[:n, q].copy() @ along
        for i in range(K):
            x[i, q] = squares[features[i]]
        for j in range(n):
            for i in range(K):
                x[i, q] -= along[j, i] * shared[j, i]
    return Open(member, np.array([n]), pull, inverse, shared, x, h)


@compiled
def wider(one: Open) -> Open:
    """The same with more room."""
    n, (Q, room, _), K = one.number[0], one.inverse.shape, one.x.shape[0]
    member, pull = np.empty(2 * room, dtype=np.int64), np.empty((2 * room, Q))
    inverse, shared = np.empty((Q, 2 * room, 2 * room)), np.empty((2 * room, K))
    member[:n], pull[:n], inverse[:, :n, :n], shared[:n] = one.member[:n], one.pull[:n], one.inverse[:, :n, :n], one.shared[:n]
    return Open(member, one.number, pull, inverse, shared, one.x, one.h)


@compiled
def left_to_member(one: Open, j: int, v: Array, x: Array, h: Array) -> None:
    """What number j of E would have were it outside, into x and h (Q,)."""
    for q in range(v.size):
        wide, mean = 1.0 / one.inverse[q, j, j], 0.0
        for a in range(one.number[0]):
            mean += one.inverse[q, j, a] * one.pull[a, q]
        x[q], h[q] = max(wide - v[q], 0.0), mean * wide


@compiled
def ties(one: Open, i: int, products: Any) -> tuple[Array, Array]:
    """A_q⁻¹ g (Q, n) of number i, outside of E, and t (Q, K) from the products (K,) of all columns with its own."""
    n, (K, Q) = one.number[0], one.x.shape
    along, t = np.zeros((Q, n)), np.empty((Q, K))
    for q in range(Q):
        t[q] = products
        for a in range(n):
            for b in range(n):
                along[q, a] += one.inverse[q, a, b] * one.shared[b, i]
            for j in range(K):
                t[q, j] -= along[q, a] * one.shared[a, j]
    return along, t


@compiled
def come(one: Open, p: int, i: int, v: Array, pull: Array, products: Any) -> None:
    """Feature p, number i, joins E; `pull` (Q,) is X_p' W R."""
    n, (K, Q) = one.number[0], one.x.shape
    along, t = ties(one, i, products)
    for q in range(Q):
        wide, h = max(one.x[i, q], 0.0) + v[q], one.h[i, q]
        for a in range(n):
            for b in range(n):
                one.inverse[q, a, b] += along[q, a] * along[q, b] / wide
            one.inverse[q, a, n] = -along[q, a] / wide
            one.inverse[q, n, a] = -along[q, a] / wide
        one.inverse[q, n, n] = 1.0 / wide
        one.pull[n, q] = pull[q]
        for j in range(K):
            one.x[j, q] -= t[q, j] * t[q, j] / wide
            one.h[j, q] -= t[q, j] * h / wide
    one.member[n] = p
    one.shared[n] = products
    one.number[0] = n + 1


@compiled
def leave(one: Open, j: int, i: int, v: Array, products: Any) -> None:
    """Number j of E, number i of those that choose, leaves it; the last of E takes its place."""
    last, (K, Q) = one.number[0] - 1, one.x.shape
    x, h = np.empty(Q), np.empty(Q)
    left_to_member(one, j, v, x, h)
    for q in range(Q):
        for a in range(last + 1):
            if a == j:
                continue
            share = one.inverse[q, a, j] / one.inverse[q, j, j]
            for b in range(last + 1):
                if b != j:
                    one.inverse[q, a, b] -= share * one.inverse[q, j, b]
        for a in range(last + 1):
            one.inverse[q, a, j] = one.inverse[q, a, last]
        for b in range(last + 1):
            one.inverse[q, j, b] = one.inverse[q, last, b]
    one.member[j] = one.member[last]
    one.shared[j] = one.shared[last]
    one.pull[j] = one.pull[last]
    one.number[0] = last
    _along, t = ties(one, i, products)
    for q in range(Q):
        for a in range(K):
            one.x[a, q] += t[q, a] * t[q, a] / (x[q] + v[q])
            one.h[a, q] += t[q, a] * h[q] / (x[q] + v[q])
        one.x[i, q], one.h[i, q] = x[q], h[q]


@compiled
def take(one: Open, i: int, step: Array, products: Any) -> None:
    """The effect of number i, outside of E, grows by `step` (Q,), in the coordinates of the scan."""
    _along, t = ties(one, i, products)
    for q in range(step.size):
        for a in range(one.number[0]):
            one.pull[a, q] -= one.shared[a, i] * step[q]
        for a in range(one.x.shape[0]):
            one.h[a, q] -= t[q, a] * step[q]


@compiled
def chances_beside(h: Array, x: Array, at: Coordinates, out: Array) -> None:
    """Relative chances of out, on all responses, and on each response alone, where the square differs by coordinate."""
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
def draw_alone(rng: Any, q: int, h: Array, x: Array, at: Coordinates, effect: Array) -> None:
    """The effect of a feature that acts on response q alone."""
    pull, precision = 0.0, 1.0 / at.V[q, q]
    for k in range(h.size):
        pull += at.T[q, k] * h[k]
        precision += at.T[q, k] * at.T[q, k] * x[k]
    effect[:] = 0.0
    effect[q] = pull / precision + rng.standard_normal() / np.sqrt(precision)


@compiled
def number_in(one: Open, p: int) -> int:
    """Which of E feature p is, or -1."""
    for j in range(one.number[0]):
        if one.member[j] == p:
            return j
    return -1


@compiled
def scan_together(rng: Any, problem: Problem, state: State, at: Coordinates, R: Array, among: Among) -> None:
    """Each of some features chooses among the patterns of the scan, unless it has another one. E's effects are left at 0, R
    without them, for `laws.draw_effects` to draw.
    """
    features, columns, weight = among
    (K, m), Q = columns.shape, R.shape[1]
    one = opened(problem, state, at, R, among)
    light, uniforms = weight.astype(np.float32), rng.random(K)
    h, x, old, new = np.empty(Q), np.empty(Q), np.empty(Q), np.empty(Q)
    effect, step, pull = np.empty(Q), np.empty(Q), np.empty(Q)
    chances, acts = np.zeros(Q + 2), np.zeros(Q, dtype=np.bool_)
    for i in range(K):
        p = features[i]
        k = state.slot[p]
        was = -1  # out; 0: everywhere; q + 1: on response q alone
        if k >= 0:
            number = state.acts[k].sum()
            if 1 < number < Q:
                continue
            was = 0 if number == Q else 1 + int(np.argmax(state.acts[k]))
        elif state.count[0] >= state.feature.size:
            continue
        old[:] = 0.0
        j = number_in(one, p) if was == 0 else -1
        if was == 0:
            left_to_member(one, j, at.v, x, h)
        else:
            if was > 0:
                into(at.T, state.effect[k], old)
            for q in range(Q):
                x[q] = max(one.x[i, q], 0.0)
                h[q] = one.h[i, q] + x[q] * old[q]
        chances_beside(h, x, at, chances)
        choice = pick(chances, uniforms[i]) - 1
        if choice == was and choice <= 0:
            continue
        products = np.dot(columns, columns[i] * light)
        if was == 0:
            leave(one, j, i, at.v, products)
        effect[:] = 0.0
        step[:] = -old
        if choice > 0:
            draw_alone(rng, choice - 1, h, x, at, effect)
            into(at.T, effect, new)
            step += new
        if step.any():  # R has everything taken from it but the effects of E
            take(one, i, step, products)
            for r in range(m):
                for q in range(Q):
                    R[r, q] -= columns[i, r] * step[q]
        if choice < 0:
            take_out(state, p)
            continue
        for q in range(Q):
            acts[q] = choice == 0 or choice == q + 1
        put(state, p, acts, effect)
        if choice == 0:
            if one.number[0] == one.member.size:
                one = wider(one)
            pull[:] = 0.0
            for r in range(m):
                for q in range(Q):
                    pull[q] += columns[i, r] * weight[r] * R[r, q]
            come(one, p, i, at.v, pull, products)
