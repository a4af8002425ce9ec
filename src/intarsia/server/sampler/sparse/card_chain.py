"""One chain of an accelerator, as the host holds it: the features that are in, with their columns, and the chain's parameters.

The features that may change in a window take their turns here, in double precision and by the functions of `scan`; so do the laws
of everything but inclusion, by the functions of `laws`, on a problem whose features are those that are in.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.compilation import compiled
from intarsia.server.sampler.sparse.chain import Draw
from intarsia.server.sampler.sparse.laws import draw_effects, draw_noise, draw_shares, draw_slab
from intarsia.server.sampler.sparse.places import Axes
from intarsia.server.sampler.sparse.scan import (
    Coordinates,
    Score,
    coordinates,
    draw_effect,
    draw_entries,
    expect,
    into,
    pattern_chances,
    pick,
)
from intarsia.server.sampler.sparse.state import PI, RATIO, WORTH_LISTING, Problem, State
from intarsia.server.sampler.sparse.sweep import near

Array = NDArray[np.float64]


ROUNDS = 1  # beyond the first, among the features near: the card's sweeps are quick


class Turns(NamedTuple):
    """What the features that may change did in turn. First axis: features, in their order."""

    acts: NDArray[np.bool_]  # (n, Q), after
    effect: Array  # (n, Q), after
    step: Array  # (n, Q): by how much the effect changed, in the coordinates of the scan
    chance: Array  # (n,): P(in | rest)
    expected: Array  # (n, Q)
    acting: Array  # (n, Q)
    listed: NDArray[np.bool_]  # (n,)


class Listing(NamedTuple):
    """What a sweep tells of the features that are in or may well be, ascending."""

    feature: NDArray[np.int64]  # (n,)
    chance: NDArray[np.float32]  # (n,): P(in | rest)
    expected: NDArray[np.float32]  # (n, Q): E[effect | rest]
    acting: NDArray[np.float32]  # (n, Q): probability that it acts on a response; 0 where it is out


@compiled(nogil=True)
def take_turns(
    rng: Any, h: Array, x: Any, uniforms: Any, products: Any, at: Coordinates, acts: Any, effect: Array, room: int
) -> tuple[Any, Array, Array, Array, Array, Array, Any]:
    """The scan of `scan.scan` over these features alone: scores h (n, Q), squares x, and products (n, n) of their columns.

    No more than `room` come in beyond those that are.
    """
    n, Q = h.shape
    h, acts, effect = h.copy(), acts.copy(), effect.copy()
    back_T = np.ascontiguousarray(at.T.T)
    step, expected, acting = np.zeros((n, Q)), np.zeros((n, Q)), np.zeros((n, Q))
    chance, listed = np.empty(n), np.zeros(n, dtype=np.bool_)
    u, white, chances, old = np.empty(Q), np.empty(Q), np.zeros(Q + 2), np.empty(Q)
    for p in range(n):
        was, square = acts[p].any(), float(x[p])
        old[:] = effect[p]
        into(at.T, old, white)
        for q in range(Q):
            h[p, q] += square * white[q]
        into(back_T, h[p], u)
        inside = pattern_chances(h[p], u, square, at, chances)
        other = 1 < acts[p].sum() < Q
        chance[p] = 1.0 if other else inside
        expect(expected[p], Score(h[p], u, square), at, chances, old, other)
        if not other:
            acts[p] = False
            effect[p] = 0.0
            if uniforms[p] < inside and (was or room > 0):
                draw_effect(rng, pick(chances[1:], uniforms[p] / inside), Score(h[p], u, square), at, effect[p], acts[p])
        comes = acts[p].any()
        if comes:
            acting[p] = 1.0
            if Q > 1:
                draw_entries(rng, u, square, at, effect[p], acts[p], acting[p])
        room += int(was) - int(comes)
        listed[p] = inside > WORTH_LISTING or was or comes
        if was or comes:
            into(at.T, effect[p] - old, step[p])
            for j in range(p + 1, n):
                for q in range(Q):
                    h[j, q] -= products[p, j] * step[p, q]
    return acts, effect, step, chance, expected, acting, listed


@compiled(nogil=True)
def expectations(h: Array, x: Any, at: Coordinates) -> Array:
    """E[effect | rest] (n, Q) of features that are out, by their scores."""
    n, Q = h.shape
    out, u, chances, old = np.zeros((n, Q)), np.empty(Q), np.zeros(Q + 2), np.zeros(Q)
    back_T = np.ascontiguousarray(at.T.T)
    for p in range(n):
        into(back_T, h[p], u)
        pattern_chances(h[p], u, float(x[p]), at, chances)
        expect(out[p], Score(h[p], u, float(x[p])), at, chances, old, False)
    return out


class Chain:
    """A chain's position. `problem` is the whole one, but for X and squares, which are not read here."""

    def __init__(self, problem: Problem, rng: np.random.Generator, state: State, rows: NDArray[np.float32]) -> None:
        """`rows` (k, m): the columns of the features that are in, in the order of the state's slots."""
        k = int(state.count[0])
        order = np.argsort(state.feature[:k])
        self.problem, self.rng = problem, rng
        self.ids, self.rows = state.feature[:k][order].astype(np.int64), np.ascontiguousarray(rows[order], dtype=np.float32)
        self.acts, self.effect = state.acts[:k][order], state.effect[:k][order]
        self.Sigma, self.V, self.loadings, self.rho, self.scalars = (
            value.copy() for value in (state.Sigma, state.V, state.loadings, state.rho, state.scalars)
        )
        self.pull = np.zeros_like(problem.Y)  # as in `chain.SparseChain`
        self.know(np.zeros(0, np.int64), self.rows[:0])

    @property
    def ratio(self) -> int:
        return int(self.scalars[RATIO])

    def state(self) -> State:
        """The position among the features that are in alone, which share its arrays."""
        k = len(self.ids)
        slots = np.arange(k, dtype=np.int32)
        parameters = self.Sigma, self.V, self.loadings, self.rho, self.scalars
        return State(slots, slots.copy(), self.acts, self.effect, np.array([k]), *parameters, np.arange(0))

    def know(self, near: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
        """From now on these features (K,), ascending, with columns `rows` (K, m), are near (`state.State.near`)."""
        self.near, self.near_rows = near, np.ascontiguousarray(rows, dtype=np.float32)

    def among(self) -> Problem:
        return self.problem._replace(X=self.rows)

    def residual(self) -> Array:
        """Y − XB (m, Q)."""
        return np.ascontiguousarray(self.problem.Y - self.rows.T @ self.effect)

    def begin(self) -> None:
        """Coordinates, weights and residuals of a sweep."""
        self.at = coordinates(self.problem, self.state())
        self.weight = 1.0 / (1.0 + self.problem.ratios[self.ratio] * self.problem.d)
        self.R = self.residual() @ self.at.T
        self.found: list[Listing] = []

    def weighted(self) -> NDArray[np.float32]:
        """R (Q, m), times the rows' weights."""
        return (self.R * self.weight[:, None]).T.astype(np.float32)

    def within(self, first: int, last: int) -> slice:
        """The slots of the features first … last − 1."""
        return slice(*np.searchsorted(self.ids, [first, last]))

    def turns(self, ids: Any, h: Any, x: Any, uniforms: Any, products: Any, room: int) -> Turns:
        """What the features `ids` (ascending) do. Nothing is changed but the generator."""
        acts, effect = np.zeros((len(ids), self.rho.size), dtype=np.bool_), np.zeros((len(ids), self.rho.size))
        part = self.within(ids[0], ids[-1] + 1) if len(ids) else slice(0, 0)
        places = np.searchsorted(ids, self.ids[part])
        acts[places], effect[places] = self.acts[part], self.effect[part]
        left = max(0, room - len(self.ids))
        x, uniforms, products = np.ascontiguousarray(x), np.ascontiguousarray(uniforms), np.ascontiguousarray(products)
        return Turns(
            *take_turns(self.rng, np.ascontiguousarray(h, dtype=float), x, uniforms, products, self.at, acts, effect, left)
        )

    def settle(self, first: int, last: int, ids: NDArray[np.int64], turns: Turns, rows: dict[int, Any]) -> None:
        """The window first … last − 1 is done: R, and which features are in. `rows` has columns of those that were out."""
        part = self.within(first, last)
        rows = rows | dict(zip(self.ids[part].tolist(), self.rows[part], strict=True))
        changed = np.flatnonzero(turns.step.any(axis=1))
        if changed.size:
            self.R -= np.stack([rows[int(p)] for p in ids[changed]]).T @ turns.step[changed]
        now = np.flatnonzero(turns.acts.any(axis=1))
        columns = np.stack([rows[int(p)] for p in ids[now]]) if now.size else self.rows[:0]
        self._replace(part, ids[now], columns, turns.acts[now], turns.effect[now])

    def _replace(self, part: slice, *new: Any) -> None:
        for name, value in zip(("ids", "rows", "acts", "effect"), new, strict=True):
            old = getattr(self, name)
            setattr(self, name, np.ascontiguousarray(np.concatenate([old[: part.start], value, old[part.stop :]])))

    def note(self, ids: Any, turns: Turns, listed: Any, chance: Any, h: Any, x: Any) -> None:
        """List those that took turns, and others (`listed`) by their scores."""
        here = turns.listed
        expected = expectations(np.ascontiguousarray(h, dtype=np.float64), np.ascontiguousarray(x), self.at)
        feature = np.concatenate([ids[here], listed])
        order = np.argsort(feature)
        values = (
            np.concatenate([turns.chance[here], chance]),
            np.concatenate([turns.expected[here], expected]),
            np.concatenate([turns.acting[here], np.zeros_like(expected)]),
        )
        self.found.append(Listing(feature[order], *(value[order].astype(np.float32) for value in values)))

    def without(self, slot: int) -> NDArray[np.float32]:
        """`weighted`, had the feature in this slot no effect."""
        R = self.R + np.outer(self.rows[slot].astype(np.float64), self.effect[slot] @ self.at.T)
        return (R * self.weight[:, None]).T.astype(np.float32)

    def move(self, slot: int, to: int, row: Any, axes: Axes, h: Any, x: float) -> None:
        """The effect in a slot goes to feature `to`, whose score without it is h."""
        wide = x + axes.v
        along = np.asarray(h, dtype=np.float64) @ axes.of_score / wide + self.rng.standard_normal(wide.size) / np.sqrt(wide)
        self.go(slice(slot, slot + 1), np.array([to]), row[None], (along @ axes.to_effect)[None] @ self.at.T)

    def go(self, part: slice, to: Any, rows: Any | None, steps: Any) -> None:
        """The effects in these slots go to features `to` with columns `rows` (none: they stay), as `steps` in the scan's
        coordinates.
        """
        self.R += self.rows[part].T @ (self.effect[part] @ self.at.T)
        self.effect[part] = np.where(self.acts[part], np.asarray(steps, dtype=np.float64) @ self.at.back, 0.0)
        if rows is not None:
            self.ids[part], self.rows[part] = to, rows
        self.R -= self.rows[part].T @ (self.effect[part] @ self.at.T)
        if rows is not None:
            order = np.argsort(self.ids)
            self.ids, self.rows, self.acts, self.effect = self.ids[order], self.rows[order], self.acts[order], self.effect[order]

    def reconsider(self, room: int) -> None:
        """The features near, placed and put in and out once more as on a CPU (`sweep.near`); then all effects, together."""
        ids = np.union1d(self.near, self.ids)
        n, Q, k = len(ids), self.rho.size, len(self.ids)
        inside, places = np.searchsorted(ids, self.ids), np.searchsorted(ids, self.near)
        rows = np.empty((n, self.rows.shape[1]), np.float32)
        rows[inside], rows[places] = self.rows, self.near_rows
        squares = np.zeros((len(self.problem.ratios), n), np.float32)
        squares[self.ratio] = np.einsum("pi,pi,i->p", rows, rows, self.weight)
        slot, feature = np.full(n, -1, np.int32), np.zeros(max(k, min(n, room)), np.int32)
        slot[inside], feature[:k] = np.arange(k), inside
        acts, effect = np.zeros((len(feature), Q), np.bool_), np.zeros((len(feature), Q))
        acts[:k], effect[:k] = self.acts, self.effect
        parameters = self.Sigma, self.V, self.loadings, self.rho, self.scalars
        state = State(slot, feature, acts, effect, np.array([k]), *parameters, places)
        problem = self.problem._replace(X=rows, squares=squares)
        near(self.rng, problem, state, self.at, self.R, self.weight, ROUNDS)
        draw_effects(self.rng, problem, state, self.at, self.R, self.weight)
        slots = np.argsort(feature[: int(state.count[0])])
        self.ids, self.rows = ids[feature[slots]], np.ascontiguousarray(rows[feature[slots]])
        self.acts, self.effect = acts[slots], effect[slots]

    def laws(self, room: int) -> None:
        """Everything but which features are in, and where they act; that too of the features near."""
        if len(self.near):
            self.reconsider(room)
        else:
            draw_effects(self.rng, self.among(), self.state(), self.at, self.R, self.weight)
        problem, state = self.among(), self.state()
        draw_noise(self.rng, problem, state, self.residual())
        draw_slab(self.rng, state)
        draw_shares(self.rng, problem, state)

    def draw(self, keep: bool) -> Draw:
        """What is kept of the sweep. `keep`: it counts in the background's mean."""
        w = self.problem.ratios[self.ratio]
        if keep and w > 0:
            self.pull += (w / (1 + w * self.problem.d))[:, None] * self.residual()
        listed, probability, expected, acting = (np.concatenate(parts) for parts in zip(*self.found, strict=True))
        return Draw(
            features=self.ids.copy(), effects=self.effect.copy(), listed=listed, probability=probability, expected=expected,
            acting=acting, Sigma=self.Sigma.copy(), V=self.V.copy(), rho=self.rho.copy(),
            scalars=np.array([len(self.ids), self.scalars[PI], w]),
        )  # fmt: skip
