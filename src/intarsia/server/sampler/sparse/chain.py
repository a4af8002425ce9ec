"""One chain: its sweeps, and what it keeps of each.

A draw is the list of features that are in, with their effects: a few kilobytes, however many features there are. Beside it lie
what the sweep knew of every feature that was in or might have been (`Trace`), and sums over sweeps of P(in | rest) of all.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import ConvergenceError
from intarsia.server.sampler.sparse.problem import start
from intarsia.server.sampler.sparse.state import NEAR, PI, RATIO, Problem, State, Trace
from intarsia.server.sampler.sparse.sweep import likely_places, residual, sweep

Array = NDArray[Any]

MOST_LISTED = 50_000  # features that one sweep may list
SUMS = ("pip", "pip_without", "number_without", "pull", "warm")  # of what a chain adds up over its draws
WRONG = 50  # features that every other chain starts with, chosen at random: chains that agree have forgotten them


class Draw(NamedTuple):
    """What is kept of one sweep; every list of features ascends."""

    features: Array  # (k,): those that are in
    effects: Array  # (k, Q)
    listed: Array  # (l,): those that are in or might have been
    probability: Array  # (l,): P(in | rest)
    expected: Array  # (l, Q): E[effect | rest]
    acting: Array  # (l, Q): probability of acting on each response
    Sigma: Array
    V: Array
    rho: Array
    scalars: Array  # number in, π, background ratio


class Made(NamedTuple):
    """What a chain has made: its draws, and sums over them."""

    draws: list[Draw]
    pip: Array  # (P,): of P(in | rest)
    pip_without: Array  # (P,): of those without a background
    number_without: int  # how many those are
    pull: Array  # (m, Q)


class SparseChain:
    """Chain number `k` of a run with this seed (a `run.Chain`)."""

    device = "cpu"

    def __init__(self, problem: Problem, k: int, seed: int, warmup: int, *, thin: int = 1, rank: int = 0) -> None:
        self.problem, self.k, self.warmup, self.thin, self.sweeps = problem, k, warmup, thin, 0
        self.rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(k,))))
        P, Q = problem.X.shape[0], problem.Y.shape[1]
        rows = int(problem.rows / problem.power)  # not those of Y, which is shorter where a root of a Gram matrix came
        wrong = 0 if k % 2 == 0 else min(WRONG, min(P, rows) // 3)
        self.state = start(problem, self.rng, wrong, rank)
        L = min(P, MOST_LISTED)
        wide = np.zeros((L, Q), np.float32)
        self._trace = Trace(np.zeros(P, np.float32), np.zeros(L, np.int32), wide, wide.copy(), np.zeros(1, np.int64))
        self.draws: list[Draw] = []
        # Sums over kept draws, over those without a background, and how many those are.
        self.pip, self.pip_without, self.number_without = np.zeros(P), np.zeros(P), np.array(0)
        self.warm = np.zeros(P)  # sum of P(in | rest) over the second half of the warm-up
        self.pull = np.zeros_like(problem.Y)  # sum of w (I + w K)⁻¹ (Y − XB): the background's mean is made of it

    @property
    def kept(self) -> int:
        """Draws kept so far."""
        return max(0, self.sweeps - self.warmup) // self.thin

    def advance(self, sweeps: int) -> None:
        """Make so many sweeps."""
        for _ in range(sweeps):
            self.before()
            without = self.problem.ratios[int(self.state.scalars[RATIO])] == 0  # as the scan will see it
            sweep(self.rng, self.problem, self.state, self._trace)
            past = self.sweeps + 1 - self.warmup
            if past > 0 and past % self.thin == 0:
                self._keep(without)
            if 2 * past > -self.warmup and past <= 0 and not len(self.state.near):
                self.warm += self._trace.pip
                if past == 0:
                    self._find_near()
            self.sweeps += 1  # last: another thread may look at what is kept

    def _find_near(self) -> None:
        """Those likeliest to be in, or to be where one that is in could sit instead."""
        likely = likely_places(self.rng, self.problem, self.state) + self.warm / max(1, self.warmup // 2)
        self.state = self.state._replace(near=np.sort(np.argpartition(-likely, NEAR)[:NEAR]))

    def before(self) -> None:
        """What the data of the next sweep ask for: nothing, where they are complete and exact."""

    def _keep(self, without: bool) -> None:
        state, trace, problem = self.state, self._trace, self.problem
        k, L = int(state.count[0]), int(trace.number[0])
        order = np.argsort(state.feature[:k])
        listed = trace.listed[:L].copy()
        w = problem.ratios[int(state.scalars[RATIO])]
        self.draws.append(Draw(
            state.feature[:k][order].astype(np.int64), state.effect[:k][order], listed, trace.pip[listed],
            trace.expected[:L].copy(), trace.acting[:L].copy(), state.Sigma.copy(), state.V.copy(), state.rho.copy(),
            np.array([k, state.scalars[PI], w]),
        ))  # fmt: skip
        self.pip += trace.pip
        if without:
            self.pip_without += trace.pip
            self.number_without += 1
        if problem.ratios.size > 1:
            self.pull += (w / (1 + w * problem.d))[:, None] * residual(problem, state)
        if not (np.isfinite(state.effect[:k]).all() and np.isfinite(state.Sigma).all()):
            raise ConvergenceError(f"Chain {self.k + 1}, sweep {self.sweeps + 1}: it left the range of double precision.")

    def made(self) -> list[Made]:
        """One for each chain that this makes."""
        return [Made(self.draws[: self.kept], self.pip, self.pip_without, int(self.number_without), self.pull)]

    def watched(self) -> Array:
        """(1, draw, 1 + Q): the number of features that are in and the log noise levels, for a live R̂."""
        return watched(self.made(), self.problem.Y.shape[1])

    def arrays(self) -> dict[str, Any]:
        """Everything a continuation needs."""
        words = np.frombuffer(json.dumps(self.rng.bit_generator.state).encode(), dtype=np.uint8)
        own = {"sweeps": np.array(self.sweeps), "generator": words} | {name: getattr(self, name) for name in SUMS}
        own |= {f"state.{name}": value for name, value in self.state._asdict().items()}
        return own | {f"draws.{name}": value for name, value in packed(self.draws)._asdict().items()}

    def restore(self, arrays: dict[str, Any]) -> None:
        self.sweeps = int(arrays["sweeps"])
        self.rng.bit_generator.state = json.loads(arrays["generator"].tobytes().decode())
        for name in SUMS:
            setattr(self, name, arrays[name].copy())
        self.state = State(**{name: arrays[f"state.{name}"].copy() for name in State._fields})
        self.draws = unpacked(Packed(**{name: arrays[f"draws.{name}"] for name in Packed._fields}))


def watched(made: Sequence[Made], Q: int) -> Array:
    """(chain, draw, 1 + Q): the number of features that are in and the log noise levels."""
    rows = [[np.append(d.scalars[0], np.log(np.diagonal(d.Sigma))) for d in one.draws] for one in made]
    return np.array(rows).reshape(len(made), min(map(len, rows)), 1 + Q)


class Packed(NamedTuple):
    """Draws end to end: entries of number t lie from offsets[t] to offsets[t + 1]."""

    offsets: Array
    features: Array
    effects: Array
    listed_offsets: Array
    listed: Array
    probability: Array
    expected: Array
    acting: Array
    Sigma: Array
    V: Array
    rho: Array
    scalars: Array


def packed(draws: Sequence[Draw]) -> Packed:
    """Draws, perhaps of several chains one after the other, end to end."""
    if not draws:
        return Packed(*(np.zeros(0) for _ in Packed._fields))
    parts = {name: [getattr(draw, name) for draw in draws] for name in Draw._fields}
    joined = {name: np.concatenate(parts[name]) for name in Draw._fields[:6]}
    stacked = {name: np.stack(parts[name]) for name in Draw._fields[6:]}
    ends = (np.concatenate([[0], np.cumsum([len(one) for one in parts[name]])]) for name in ("features", "listed"))
    offsets, listed_offsets = ends
    return Packed(offsets=offsets, listed_offsets=listed_offsets, **joined, **stacked)


def unpacked(all_of: Packed) -> list[Draw]:
    """The draws one by one."""
    out = []
    for t in range(len(all_of.Sigma) if all_of.Sigma.ndim == 3 else 0):
        a, b = (slice(ends[t], ends[t + 1]) for ends in (all_of.offsets, all_of.listed_offsets))
        own = all_of.features[a], all_of.effects[a]
        listed = all_of.listed[b], all_of.probability[b], all_of.expected[b], all_of.acting[b]
        out.append(Draw(*own, *listed, all_of.Sigma[t], all_of.V[t], all_of.rho[t], all_of.scalars[t]))
    return out
