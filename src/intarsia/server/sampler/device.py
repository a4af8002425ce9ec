"""Chains on an accelerator: whole stretches of sweeps compiled, chains side by side, draws taken off as they are kept.

The sweep is the readable one of `sweep`, the warm-up that of `adapt`; here they only become the body of a compiled loop.
Random numbers are made on the device, from a generator for each chain, so nothing but kept draws crosses back.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import Any, NamedTuple

import numpy as np

from intarsia.errors import ConvergenceError
from intarsia.server.sampler import adapt, backends
from intarsia.server.sampler.backends.protocol import Array, DeviceBackend
from intarsia.server.sampler.integrated import PANEL
from intarsia.server.sampler.moves import out_of_blocks
from intarsia.server.sampler.running import Mark, Running, add, blank
from intarsia.server.sampler.schedule import Kind, Plan, Sweep
from intarsia.server.sampler.sparse_start import SparseStart
from intarsia.server.sampler.start import initial, initial_tuning
from intarsia.server.sampler.state import Blocks, Data, State, Tuning, has_gram, prepare
from intarsia.server.sampler.sweep import shrinkage, strength, sweep

STRETCH_BYTES = 2**28  # of kept draws that a compiled stretch may hold on the device
SENT_BYTES = 2**26  # of the design at once
WARMUP_SWEEPS = 50  # per compiled stretch
BLOCK_ROWS = 4  # features per row in a block whose scales are drawn at once: more would move them less, fewer take longer
ALIKE = 4.0  # times the bound of independent features, above which scales are drawn one after the other,
VISITED = 8  # in one of so many blocks per sweep; 0 blocks: all
CANDIDATES = 64  # scales that each borderline feature chooses among: a device takes no longer over many
LONGEST_STRETCH = 50  # kept draws


class Chains(NamedTuple):
    """Everything a continuation needs, the chains along the first axis."""

    state: State
    tuning: Tuning
    memory: adapt.Memory
    words: Array  # the generators


class Summary(NamedTuple):
    """What is summed up over the kept draws on the device."""

    count: Array
    kappa: Array  # mean shrinkage of each feature
    running: Running | None  # of every coefficient, where not all draws are kept


class Kept(NamedTuple):
    """A stretch of kept draws (chain, draw, …), on the host. C is None when only summaries are wanted; `whole`, still on the
    device, are the draws of all of C that the stretch was asked for, (chain, slot, P, Q) in single precision, in order.
    """

    C: Array
    Sigma: Array
    tau: Array
    whole: Array = None


class Part(NamedTuple):
    """What of C leaves the device where not all does: the draws of these features, and up to `slots` whole draws per stretch."""

    features: Array
    slots: int


class Runner:
    """Compiled chains of one plan. `data` may have a leading axis too: one data set per chain (`own_data`)."""

    def __init__(
        self,
        plan: Plan,
        data: Data,
        *,
        own_data: bool = False,
        keep_C: bool | Part = True,
        be: DeviceBackend | None = None,
    ) -> None:
        self.be = be or backends.on_device()
        self.plan, self.data, self.keep_C = plan, data, keep_C
        self._axis = _data_axes(own_data)
        self._compiled: dict[Any, Callable[..., Any]] = {}
        self._beside: Thread | None = None

    def start(self, seed: int, chains: int, scale: Array | None = None, found: SparseStart | None = None) -> Chains:
        """Overdispersed starts, drawn on the host as the CPU sampler draws them, about a sparse solution where one was `found`.

        `scale`: noise scales (Q) or (chain, Q).
        """
        be = self.be
        scale = np.asarray(self.data.noise_scale if scale is None else scale)
        states = []
        with be.precision():
            for k in range(chains):  # one after the other: the host has room for one
                rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(k,))))
                own = self.data._replace(noise_scale=scale[k] if scale.ndim == 2 else scale, norm2=np.asarray(self.data.norm2))
                states.append([be.xp.asarray(value) for value in initial(self.plan, own, rng, found)])
            stacked = State(*(be.xp.stack(values) for values in zip(*states, strict=True)))
            tuning, memory = initial_tuning(self.plan), adapt.start(self.plan)
            repeat = lambda x: be.xp.repeat(be.xp.asarray(x)[None], chains, axis=0)  # noqa: E731
            return Chains(stacked, be.tree_map(repeat, tuning), be.tree_map(repeat, memory), be.keys(seed, chains))

    def blank(self, chains: int) -> Summary:
        be, xp, P, Q = self.be, self.be.xp, self.plan.P, self.plan.Q
        with be.precision():
            running = None
            if isinstance(self.keep_C, Part):
                running = be.tree_map(lambda x: xp.zeros((chains, *x.shape), x.dtype), blank(xp, (P, Q)))
            return Summary(xp.zeros(chains), xp.zeros((chains, P)), running)

    def warm_up(self, chains: Chains, first: int, last: int, warmup: int) -> Chains:
        """Warm-up sweeps number first … last-1 of `warmup`."""
        with self.be.precision():
            chains = self._get("warm", last - first, warmup)(self.data, chains, self.be.xp.asarray(first))
            return self._checked(chains)

    def compile_beside(self, chains: Chains, summary: Summary, draws: int, thin: int, notes: Any = None) -> None:
        """Compile what `draw` will run, in a thread beside the warm-up: both take a compiler as long."""

        def compile_() -> None:
            with self.be.precision():
                made = self._jitted("draw", draws, thin)
                first, noted = self.be.xp.asarray(0), self.be.tree_map(self.be.xp.asarray, notes)
                self._compiled["draw", draws, thin] = made.lower(self.data, *shapes, first, noted).compile()

        shapes = self.be.shapes((chains, summary))  # the chains themselves are given up to the warm-up
        self._beside = Thread(target=compile_, daemon=True)
        self._beside.start()

    def draw(
        self, chains: Chains, summary: Summary, draws: int, thin: int, first: int = 0, notes: tuple[Mark, Array] | None = None
    ) -> tuple[Chains, Summary, Kept]:
        """Keep `draws` draws, one in `thin` sweeps, from sweep number `first` on.

        `notes` say of each draw what `running` must know, and into which slot of `whole` it goes (the last one is thrown away).
        """
        with self.be.precision():
            notes = self.be.tree_map(self.be.xp.asarray, notes)
            if self._beside is not None:
                self._beside.join()
                self._beside = None
            run = self._get("draw", draws, thin)
            chains, summary, kept = run(self.data, chains, summary, self.be.xp.asarray(first), notes)
            chains = self._checked(chains)
            host = {name: np.asarray(x) for name, x in kept._asdict().items() if x is not None and name != "whole"}
            return chains, summary, kept._replace(**host)

    def _checked(self, chains: Chains) -> Chains:
        if not (np.isfinite(np.asarray(chains.state.Sigma)).all() and np.isfinite(np.asarray(chains.state.tau)).all()):
            raise ConvergenceError(
                "A chain left the range of double precision. Standardise the columns, or use noise='correlated'."
            )
        return chains

    def _get(self, kind: str, length: int, other: int) -> Callable[..., Any]:
        key = kind, length, other
        if key not in self._compiled:
            self._compiled[key] = self._jitted(*key)
        return self._compiled[key]

    def _jitted(self, kind: str, length: int, other: int) -> Any:
        one = self._warm(length, other) if kind == "warm" else self._draw(length, other)
        axes = (self._axis, 0, None) if kind == "warm" else (self._axis, 0, 0, None, None)
        # The chains are given up to the call: their memory is used for the result.
        return self.be.jit(self.be.vmap(one, in_axes=axes), donate_argnums=(1,) if kind == "warm" else (1, 2))

    def _stepper(self, data: Data, warmup: int | None) -> tuple[Array, Callable[..., tuple[Chains, Array]]]:
        """One sweep of the schedule `Plan.kind`, for a compiled loop: step(chains, G, number, begins) -> (chains, G).

        G = X diag(lam²) Xᵀ is carried along and made anew when the local scales have moved; also where a stretch `begins`, so
        that it need not outlive one. The kinds of sweep are branches of one program, chosen by the sweep's number.
        """
        be, xp, plan = self.be, self.be.xp, self.plan
        data = data._replace(m=float(plan.m))  # a shape of gamma variates: known when compiling
        if data.X is None:
            data = data._replace(X=be.design(data.blocks.Xt, plan.P))
        cycle = [plan.kind(i, 0 if warmup is None else None) for i in range(plan.every)]
        kinds = list(dict.fromkeys(cycle))
        uses = [not plan.element and plan.mixing and not kind.collapse for kind in cycle]

        def one_sweep(kind: Kind, chains: Chains, G: Array, number: Array) -> tuple[Chains, Array]:
            state, tuning, memory, words = chains
            words, noise = be.draw_noise(plan, words, kind)
            factor = be.factor(G, data.X, state.lam, None) if any(uses) and not kind.collapse else None
            state, stats = sweep(Sweep(be, plan, data, tuning, noise, kind, factor), state)
            if warmup is not None:
                seen = adapt.Seen(number, warmup, kind, stats, strength(be, plan, data, state))
                tuning, memory = adapt.adapt(be, plan, tuning, memory, seen)
            return Chains(state, tuning, memory, words), G

        which = xp.asarray([kinds.index(kind) for kind in cycle])
        branches = [partial(one_sweep, kind) for kind in kinds]
        if not any(uses):

            def alone(chains: Chains, G: Array, number: Array, begins: Array) -> tuple[Chains, Array]:
                done: tuple[Chains, Array] = be.switch(which[number % plan.every], branches, chains, G, number)
                return done

            return xp.zeros(()), alone
        wants = xp.asarray(uses)
        moved = xp.asarray([wanted and cycle[i - 1].scales for i, wanted in enumerate(uses)])
        nothing = xp.zeros((plan.P, 0))

        def step(chains: Chains, G: Array, number: Array, begins: Array) -> tuple[Chains, Array]:
            place = number % plan.every
            anew = moved[place] | (wants[place] & begins)
            G = be.branch(anew, lambda G: be.weigh(data.X, chains.state.lam, nothing)[0], lambda G: G, G)
            done: tuple[Chains, Array] = be.switch(which[place], branches, chains, G, number)
            return done

        return xp.zeros((plan.rows, plan.rows)), step

    def _warm(self, length: int, warmup: int) -> Callable[..., Chains]:
        be = self.be

        def run(data: Data, chains: Chains, first: Array) -> Chains:
            G, step = self._stepper(data, warmup)

            def one(carry: tuple[Chains, Array], x: Any) -> tuple[tuple[Chains, Array], None]:
                return step(*carry, first + x[0], x[0] == 0), None

            return be.scan(one, (chains, G), (be.xp.arange(length),))[0][0]

        return run

    def _draw(self, draws: int, thin: int) -> Callable[..., Any]:
        be, xp, part = self.be, self.be.xp, self.keep_C

        def run(data: Data, chains: Chains, summary: Summary, first: Array, notes: Any) -> Any:
            G, step = self._stepper(data, None)
            whole = None
            if isinstance(part, Part):
                whole = xp.zeros((part.slots + 1, self.plan.P, self.plan.Q), dtype=xp.float32)

            def keep(carry: Any, x: Any) -> Any:
                chains, G, summary, whole = carry
                done = x[0] * thin

                def next_sweep(carry: tuple[Chains, Array], y: Any) -> tuple[tuple[Chains, Array], None]:
                    return step(*carry, first + done + y[0], done + y[0] == 0), None

                (chains, G), _ = be.scan(next_sweep, (chains, G), (xp.arange(thin),))
                state = chains.state
                C = state.B @ state.A.T
                kappa = shrinkage(be, self.plan, data, state)
                n, running = summary.count + 1, summary.running
                if isinstance(part, Part):
                    mark, slot = x[1]
                    running = add(be, running, C, mark)
                    whole = be.put(whole, slot, C.astype(xp.float32))
                    C = C[part.features]
                summary = Summary(n, summary.kappa + (kappa - summary.kappa) / n, running)
                return (chains, G, summary, whole), Kept(C if self.keep_C else None, state.Sigma, state.tau)

            carry, kept = be.scan(keep, (chains, G, summary, whole), (xp.arange(draws), notes))
            chains, _, summary, whole = carry
            return chains, summary, kept._replace(whole=None if whole is None else whole[:-1])

        return run


def on_device(plan: Plan, device: str, lanes: int = 1) -> Plan:
    """The plan with the block sizes that suit a device: it waits for each block, so blocks are few and large.

    `lanes` is the number of devices that many features are spread over.
    """
    plan = replace(plan, compiled=False)
    if plan.wide:
        # A look costs as much as a sweep here: to diagonalise a matrix of size m takes most of both.
        block = _block(plan.P, BLOCK_ROWS * plan.rows, lanes)
        # Without looks a sweep has more places for borderline features: whole panels, about one place per row.
        places = min(plan.P, max(plan.borderline, -(-plan.rows // PANEL) * PANEL))
        sizes = replace(plan, block=block, borderline=places, candidates=CANDIDATES, lanes=lanes)
        return replace(sizes, looks=0, visits=0, refreshes=True)
    # Borderline features are taken one after the other, which a device does slowly: fewer, where there are few.
    few = plan.borderline if plan.searches else min(16, plan.P)
    if device.startswith("cpu"):
        return replace(plan, borderline=min(few, plan.borderline))
    block = _block(plan.P, 1024) if plan.P > 1024 else min(plan.P, 512)
    number = -(-plan.P // block)
    # A block takes about 0.2 ms, the product over all features m²P at 25 TFLOP/s: a twentieth of that is for the blocks.
    visits = max(8, int(plan.rows**2 * plan.P / 25e12 / 20 / 2e-4))
    return replace(plan, block=block, visits=0 if visits >= number else visits, borderline=few)


def _block(P: int, most: int, lanes: int = 1) -> int:
    """Features per block, a multiple of `lanes`: as few blocks as `most` allows, as even as they can be."""
    even = -(-P // max(1, -(-P // most)))
    return -(-even // lanes) * lanes


def with_bounds(be: DeviceBackend, plan: Plan, data: Data) -> tuple[Plan, Data]:
    """The data with what it takes to draw all scales of a block at once, or the plan without it where the features of a block are
    so alike that they would hardly move: then they are drawn one after the other, in some blocks per sweep.
    """
    if not plan.refreshes:
        return plan, data
    bounds = be.bounds(data.blocks.Xt)
    # Of independent features the bound is (√k + √m)² times their mean square.
    usual = (math.sqrt(plan.block) + math.sqrt(plan.rows)) ** 2 * float(data.norm2.mean()) / plan.rows
    if plan.lanes > 1 or float(np.median(np.asarray(bounds.omega))) <= ALIKE * usual:
        return plan, data._replace(blocks=data.blocks._replace(bound=bounds))
    return replace(plan, refreshes=False, visits=-(-plan.P // plan.block) // VISITED), data


def prepare_on_device(be: DeviceBackend, plan: Plan, X: Any, Y: Any, degrees: int | None = None) -> Data:
    """`state.prepare`, but a large design is sent part by part and is there once: the host needs no second copy of it.

    Over several devices (`Plan.lanes`) each has an equal part of the features.
    """
    P, k, rows = plan.P, plan.block, len(X)
    if plan.rows < rows or (has_gram(P, k) and plan.lanes == 1):
        return prepare(be, X, Y, block=k, degrees=degrees)
    few = min(P, -(-rows // k) * k)  # at least as many features as rows, so that nothing is rotated
    small = prepare(be, X[:, :few], Y, block=k, degrees=degrees)  # for all but the design
    nb = -(-P // k)

    def part(lane: int, first: int, last: int) -> Any:
        """The columns of blocks number first … last − 1 of one lane."""
        own = k // plan.lanes
        begin = lane * nb * own
        columns = X[:, begin + first * own : begin + last * own]
        out = np.zeros((rows, (last - first) * own))
        out[:, : columns.shape[1]] = columns
        return out

    Xt = be.sent((nb, k, rows), part, max(1, SENT_BYTES // (8 * k * rows)))
    norm2 = out_of_blocks(be.xp, (Xt**2).sum(axis=2), plan.lanes, P)
    return small._replace(X=None, norm2=norm2, blocks=Blocks(Xt, None))


def _data_axes(own_data: bool) -> Any:
    if not own_data:
        return None
    return Data(0, 0, 0, None, 0, 0, Blocks(0, 0))  # type: ignore[arg-type]


def stretches(total: int, size: int) -> Iterator[tuple[int, int]]:
    """(first, last) of stretches of at most `size`."""
    for first in range(0, total, size):
        yield first, min(total, first + size)


def stretch_length(numbers: int) -> int:
    """Kept draws per stretch, of so many numbers each, so that those on the device stay within bounds."""
    return max(1, min(LONGEST_STRETCH, STRETCH_BYTES // (8 * numbers)))


def even(total: int, limit: int) -> int:
    """A length up to `limit` that divides the total where one is near: an odd last stretch is compiled for itself."""
    return next((n for n in range(min(total, limit), limit // 2, -1) if total % n == 0), max(1, min(total, limit)))


def run(
    runner: Runner,
    chains: Chains,
    *,
    warmup: int,
    draws: int,
    thin: int,
    take: Callable[[int, Kept], None],
    report: Callable[[int, int], None] | None = None,
) -> tuple[Chains, Summary, float]:
    """Warm up, then keep `draws` draws, handing each stretch to `take(first, kept)`; returns also the seconds this took."""
    number = chains.words.shape[0]
    total = warmup + draws * thin
    for first, last in stretches(warmup, even(warmup, WARMUP_SWEEPS)):
        chains = runner.warm_up(chains, first, last, warmup)
        if report is not None:
            report(last, total)
    summary = runner.blank(number)
    began = time.perf_counter()
    for first, last in stretches(draws, even(draws, stretch_length(number * runner.plan.P * runner.plan.Q))):
        chains, summary, kept = runner.draw(chains, summary, last - first, thin, warmup + first * thin)
        take(first, kept)
        if report is not None:
            report(warmup + last * thin, total)
    return chains, summary, time.perf_counter() - began
