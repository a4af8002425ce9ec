"""Steps of a sweep in which the card and the host take turns: the scan of a window, and effects placed anew.

A window of features is scanned so:

1. The card scores all its features. Those that are in, and those whose uniform says that they likely come in, may change.
2. The host lets these take their turns, in order.
3. The card goes through the window with the steps they took. Does a feature come in at its turn that was thought to stay out,
   it may change too, and the turns are taken again from the beginning, with the same random numbers. Else the window is done.

So features take their turns in their order, by their exact conditionals, as on a CPU: guessing who may change only saves time.

Effects are placed anew by the law of `places`: each among its neighbours, all of a window in one call, and one of each chain
among all features.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from intarsia.server.sampler.sparse import card_device as card
from intarsia.server.sampler.sparse.card_chain import Chain
from intarsia.server.sampler.sparse.card_problem import CardProblem
from intarsia.server.sampler.sparse.places import Axes, pattern_axes

LISTED = 256  # features per chain and window, beside those that take turns; more where that is too few
SLOTS = (32, 48, 64, 96, 128, 192, 256, 384, 512)  # features of a window that may change; beyond, powers of two


@dataclass
class Together:
    """The chains of a card in one sweep."""

    made: CardProblem
    chains: list[Chain]
    threads: ThreadPoolExecutor
    room: int  # features that may be in
    keys: NDArray[np.uint32]
    sweep: int
    listed: int  # room for listed features

    def begin(self) -> None:
        self.each(lambda _c, chain: chain.begin())
        self.ratios = np.array([chain.ratio for chain in self.chains], np.int32)
        sent = jax.device_put((self._at(), self.stack(lambda chain: chain.weight), self.ratios, self.keys))
        self.at, self.weight, self.ratio, self.keys_ = sent

    def numbers(self, w: int) -> NDArray[np.int32]:
        """What the card's programs ask for."""
        return np.array([self.sweep, self.made.span(w)[0], self.made.features], np.int32)

    def each(self, work: Callable[[int, Chain], Any]) -> list[Any]:
        """In every chain, side by side."""
        return list(self.threads.map(work, range(len(self.chains)), self.chains))

    def stack(self, of: Callable[[Chain], Any]) -> NDArray[np.float32]:
        return np.stack([of(chain) for chain in self.chains]).astype(np.float32)

    def _at(self) -> Any:
        def of_chain(chain: Chain) -> tuple[Any, ...]:
            at = chain.at
            V = np.diagonal(at.V)
            return at.T, at.v, np.diagonal(at.Omega) * V, V, at.log_all - at.log_out, at.log_alone - at.log_out

        parts = zip(*(of_chain(chain) for chain in self.chains), strict=True)
        return card.At._make(np.stack(part).astype(np.float32) for part in parts)


def scan(all_: Together, w: int, X: Any, sums: Any, keep: bool) -> Any:
    """All features of window w, whose design on the card is X, in turn; then effects move to neighbours.

    Returns the sums of P(in | rest) over sweeps, and over those without a background, added to if `keep`.
    """
    first, last = all_.made.span(w)
    known = [chain.ids[chain.within(first, last)] - first for chain in all_.chains]
    slots = enough(max(len(ids) for ids in known) + 2 * card.AHEAD)
    while True:
        of_window = WindowScan(all_, w, X, known, slots)
        done, sums = of_window.run(sums, keep)
        if done:
            place_near(all_, w, X, of_window.window.x)
            return sums
        slots = enough(slots + 1)


class WindowScan:
    """The scan of one window, with so many slots for features that may change."""

    def __init__(self, all_: Together, w: int, X: Any, known: Sequence[NDArray[np.int64]], slots: int) -> None:
        """`known`: places in the window of features that are in."""
        self.all, self.X, self.slots = all_, X, slots
        self.first, self.last = all_.made.span(w)
        self.numbers = all_.numbers(w)
        C, self.width = len(known), all_.made.width
        self.filled = np.array([len(ids) for ids in known], np.int32)
        ids = np.full((C, slots), self.width, np.int32)
        for c, of_chain in enumerate(known):
            ids[c, : self.filled[c]] = of_chain
        R = all_.stack(lambda chain: chain.weighted())
        squares = all_.made.squares[w]
        self.window, opened = card.open_window(
            X, squares, all_.ratio, all_.weight, R, all_.at, all_.keys_, self.numbers, ids, self.filled
        )
        self.seen: card.Seen = jax.device_get(opened)
        self.before = [chain.rng.bit_generator.state for chain in all_.chains]
        self.again = np.ones(C, bool)
        self.rows: list[dict[int, Any]] = [{} for _ in known]
        self.turns: list[Any] = [None] * C

    def run(self, sums: Any, keep: bool) -> tuple[bool, Any]:
        """False where the slots are too few; then nothing has changed."""
        while True:
            self.all.each(self._turns)
            sums = self._check(sums, keep)
            self.again = np.asarray(self.checked.missed)
            if not self.again.any():
                self.all.each(self._settle)
                return True, sums
            added = np.where(self.again[:, None], np.asarray(self.checked.added), self.width)
            self.filled = np.asarray((self.seen.ids < self.width).sum(axis=1), np.int32)
            if (self.filled + (added < self.width).sum(axis=1)).max() > self.slots:
                for chain, state in zip(self.all.chains, self.before, strict=True):
                    chain.rng.bit_generator.state = state
                return False, sums
            self.window, opened = card.extend(self.X, self.window, self.all.weight, self.seen.ids, self.filled, added)
            self.seen = jax.device_get(opened)

    def _turns(self, c: int, chain: Chain) -> None:
        """The features that may change in one chain."""
        seen, filled = self.seen, self.filled[c]
        for row, p in zip(seen.rows[c], seen.ids[c, filled : filled + card.AHEAD], strict=False):
            self.rows[c].setdefault(self.first + int(p), row)
        if not self.again[c]:
            return
        chain.rng.bit_generator.state = self.before[c]
        order = np.argsort(seen.ids[c], kind="stable")[: int((seen.ids[c] < self.width).sum())]
        ids, products = seen.ids[c, order].astype(np.int64) + self.first, seen.products[c][np.ix_(order, order)]
        self.turns[c] = order, ids, chain.turns(
            ids, seen.h[c, order], seen.x[c, order], seen.uniforms[c, order], products, self.all.room
        )  # fmt: skip

    def _check(self, sums: Any, keep: bool) -> Any:
        """Where the turns lead, with room for all that are to be listed."""
        ids, Q = self.seen.ids, self.seen.h.shape[2]
        steps, chances = np.zeros((*ids.shape, Q), np.float32), np.zeros(ids.shape, np.float32)
        for c, (order, _ids, turns) in enumerate(self.turns):
            steps[c, order], chances[c, order] = turns.step, turns.chance
        kept = keep * np.stack([np.ones(len(ids)), self.all.ratios == 0]).astype(np.float32)
        while True:
            sums, checked = card.check(
                self.window, self.all.at, ids, steps, chances, kept, sums, self.numbers, most=self.all.listed
            )
            self.checked: card.Checked = jax.device_get(checked)
            number = int(self.checked.number.max())
            if self.checked.missed.any() or number <= self.all.listed:
                return sums
            kept, self.all.listed = np.zeros_like(kept), 1 << number.bit_length()  # they are summed up already

    def _settle(self, c: int, chain: Chain) -> None:
        checked = self.checked
        _order, ids, turns = self.turns[c]
        chain.settle(self.first, self.last, ids, turns, self.rows[c])
        n = int(checked.number[c])
        listed = checked.listed[c, :n].astype(np.int64) + self.first
        chain.note(ids, turns, listed, checked.chance[c, :n], checked.h[c, :n], checked.x[c, :n])


def place_near(all_: Together, w: int, X: Any, x: Any) -> None:
    """Every effect of window w is placed anew in its neighbourhood."""
    chains, (first, last), width = all_.chains, all_.made.span(w), all_.made.width
    parts = [chain.within(first, last) for chain in chains]
    counts = [part.stop - part.start for part in parts]
    if not max(counts):
        return
    (_m, Q), C, slots = chains[0].R.shape, len(chains), enough(max(counts))
    ids, steps = np.full((C, slots), width, np.int32), np.zeros((C, slots, Q), np.float32)
    axes, back = blank_axes(C, slots, Q), np.zeros((C, slots, Q, Q), np.float32)
    uniforms, normals = np.zeros((C, slots), np.float32), np.zeros((C, slots, Q), np.float32)
    for c, (chain, part, count) in enumerate(zip(chains, parts, counts, strict=True)):
        ids[c, :count], steps[c, :count] = chain.ids[part] - first, chain.effect[part] @ chain.at.T
        uniforms[c, :count], normals[c, :count] = chain.rng.random(count), chain.rng.standard_normal((count, Q))
        for pattern in np.unique(chain.acts[part], axis=0):
            of_pattern, like = pattern_axes(pattern, chain.at), np.flatnonzero((chain.acts[part] == pattern).all(axis=1))
            fill_axes(axes, (c, like), of_pattern)
            back[c, like, : of_pattern.v.size] = of_pattern.to_effect @ chain.at.T
    R = all_.stack(lambda chain: chain.R.T)
    shift = np.int32(card.NEAR // 2 * (all_.sweep % 2))
    moved, steps_, rows_ = card.place_near(
        X, x, all_.weight, R, ids, steps, axes, back, uniforms, normals, shift, all_.numbers(w)
    )  # fmt: skip
    to, steps = jax.device_get((moved, steps_))
    rows = np.asarray(rows_) if (to != ids).any() else None
    for c, (chain, part, count) in enumerate(zip(chains, parts, counts, strict=True)):
        chain.go(part, to[c, :count] + first, None if rows is None else rows[c, :count], steps[c, :count])


def place(all_: Together, windows: list[int], designs: list[Any]) -> None:
    """One effect of each chain is placed anew among all features of these windows that are out."""
    chains, made = all_.chains, all_.made
    low, high = made.span(windows[0])[0], made.span(windows[-1])[1]
    parts = [chain.within(low, high) for chain in chains]
    total = min(high, made.features) - low
    (m, Q), C = chains[0].R.shape, len(chains)
    R, axes, chosen = np.zeros((C, Q, m), np.float32), blank_axes(C, 0, Q), {}
    taken, uniforms = (
        np.full((C, enough(max(len(chain.ids) for chain in chains))), -1),
        np.zeros((C, len(windows), 2), np.float32),
    )
    for c, (chain, part) in enumerate(zip(chains, parts, strict=True)):
        if 0 < part.stop - part.start < total:
            slot = int(chain.rng.integers(part.start, part.stop))
            chosen[c] = slot, pattern_axes(chain.acts[slot], chain.at)
            fill_axes(axes, (c,), chosen[c][1])
            R[c] = chain.without(slot)
            taken[c, : len(chain.ids) - 1] = np.delete(chain.ids, slot)
            uniforms[c] = chain.rng.random((len(windows), 2))
    drawn_ = []
    for i, (w, X) in enumerate(zip(windows, designs, strict=True) if chosen else ()):
        first, last = made.span(w)
        inside = np.where((taken >= first) & (taken < last), taken - first, made.width).astype(np.int32)
        drawn_.append(card.draw_place(X, made.squares[w], all_.ratio, R, axes, inside, uniforms[:, i], all_.numbers(w)))
    drawn: list[card.Placed] = jax.device_get(drawn_)
    for c, (slot, of_chain) in chosen.items():
        i = pick(np.array([of_window.mass[c] for of_window in drawn], dtype=float), chains[c].rng.random())
        to = int(drawn[i].feature[c]) + made.span(windows[i])[0]
        chains[c].move(slot, to, drawn[i].row[c], of_chain, drawn[i].h[c], float(drawn[i].x[c]))


def likely_places(all_: Together, moves: int, most: int) -> list[dict[int, float]]:
    """Of each chain: features where one of its effects could sit, and how likely that is, summed over some effects."""
    chains, made, C = all_.chains, all_.made, len(all_.chains)
    (m, Q), found = chains[0].R.shape, [dict[int, float]() for _ in chains]
    chosen = [chain.rng.permutation(len(chain.ids))[:moves] for chain in chains]
    width = enough(max(len(chain.ids) for chain in chains))
    for j in range(max(map(len, chosen))):
        R, axes, taken = np.zeros((C, Q, m), np.float32), blank_axes(C, 0, Q), np.full((C, width), -1)
        for c, (chain, slots) in enumerate(zip(chains, chosen, strict=True)):
            if j < len(slots):
                fill_axes(axes, (c,), pattern_axes(chain.acts[slots[j]], chain.at))
                R[c] = chain.without(slots[j])
                taken[c, : len(chain.ids) - 1] = np.delete(chain.ids, slots[j])
        parts = []
        for w, X in enumerate(made.sent()):
            first, last = made.span(w)
            inside = np.where((taken >= first) & (taken < last), taken - first, made.width).astype(np.int32)
            places, logs, total = jax.device_get(
                card.likely_places(X, made.squares[w], all_.ratio, R, axes, inside, all_.numbers(w), most=most)
            )
            parts.append((places.astype(np.int64) + first, logs.astype(float), total.astype(float)))
        places, logs = (np.concatenate([part[i] for part in parts], axis=1) for i in range(2))
        shares = np.exp(logs - np.logaddexp.reduce([part[2] for part in parts], axis=0)[:, None])
        for c, slots in enumerate(chosen):
            for p, share in zip(places[c], shares[c], strict=True) if j < len(slots) else ():
                found[c][int(p)] = found[c].get(int(p), 0.0) + float(share)
    return found


def blank_axes(C: int, slots: int, Q: int) -> Any:
    shape = (C, slots) if slots else (C,)
    return card.Axes._make(np.full((*shape, *more), value, np.float32) for value, more in ((0, (Q, Q)), (1, (Q,)), (0, (Q,))))


def fill_axes(axes: Any, where: tuple[Any, ...], of_pattern: Axes) -> None:
    k = of_pattern.v.size
    axes.of_score[(*where, slice(None), slice(k))] = of_pattern.of_score
    axes.v[(*where, slice(k))], axes.live[(*where, slice(k))] = of_pattern.v, 1.0


def pick(masses: NDArray[np.float64], uniform: float) -> int:
    """One of some by their log masses."""
    sums = np.cumsum(np.exp(masses - masses.max()))
    return min(int(np.searchsorted(sums, uniform * sums[-1], side="right")), len(masses) - 1)


def enough(number: int) -> int:
    """Slots for so many: one of few numbers, for each of which the card's program is compiled anew."""
    return next((n for n in SLOTS if n >= number), 1 << int(number - 1).bit_length())
