"""Chains on an accelerator: whole stretches of sweeps compiled, chains side by side, draws taken off as they are kept.

The sweep is the readable one of `sweep`, the warm-up that of `adapt`; here they only become the body of a compiled loop.
Random numbers are made on the device, from a generator for each chain, so nothing but kept draws crosses back.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from intarsia.errors import ConvergenceError
from intarsia.server.sampler import adapt, backends
from intarsia.server.sampler.backends.protocol import Array, DeviceBackend
from intarsia.server.sampler.schedule import Kind, Plan, Sweep
from intarsia.server.sampler.sparse_start import SparseStart
from intarsia.server.sampler.start import initial, initial_tuning
from intarsia.server.sampler.state import Blocks, Data, State, Tuning
from intarsia.server.sampler.sweep import shrinkage, strength, sweep

STRETCH_BYTES = 2**28  # of kept draws that a compiled stretch may hold on the device
WARMUP_SWEEPS = 50  # per compiled stretch


class Chains(NamedTuple):
    """Everything a continuation needs, the chains along the first axis."""

    state: State
    tuning: Tuning
    memory: adapt.Memory
    words: Array  # the generators


class Summary(NamedTuple):
    """Running moments of the kept draws, accumulated on the device."""

    count: Array
    mean: Array  # of C
    square: Array  # sum of squared deviations of C
    kappa: Array  # mean shrinkage of each feature


class Kept(NamedTuple):
    """A stretch of kept draws (chain, draw, …), on the host. C is None when only summaries are wanted."""

    C: Array
    Sigma: Array
    tau: Array


class Runner:
    """Compiled chains of one plan. `data` may have a leading axis too: one data set per chain (`own_data`)."""

    def __init__(
        self, plan: Plan, data: Data, *, own_data: bool = False, keep_C: bool = True, be: DeviceBackend | None = None
    ) -> None:
        self.be = be or backends.on_device()
        self.plan, self.data, self.keep_C = plan, data, keep_C
        self._axis = _data_axes(own_data)
        self._compiled: dict[Any, Callable[..., Any]] = {}

    def start(self, seed: int, chains: int, scale: Array | None = None, found: SparseStart | None = None) -> Chains:
        """Overdispersed starts, drawn on the host as the CPU sampler draws them, about a sparse solution where one was `found`.

        `scale`: noise scales (Q) or (chain, Q).
        """
        be = self.be
        scale = np.asarray(self.data.noise_scale if scale is None else scale)
        states = []
        for k in range(chains):
            rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(k,))))
            own = self.data._replace(noise_scale=scale[k] if scale.ndim == 2 else scale)
            states.append(initial(self.plan, own, rng, found))
        with be.precision():
            stacked = State(*(be.xp.asarray(np.stack(values)) for values in zip(*states, strict=True)))
            tuning, memory = initial_tuning(self.plan), adapt.start(self.plan)
            repeat = lambda x: be.xp.repeat(be.xp.asarray(x)[None], chains, axis=0)  # noqa: E731
            return Chains(stacked, be.tree_map(repeat, tuning), be.tree_map(repeat, memory), be.keys(seed, chains))

    def blank(self, chains: int) -> Summary:
        xp, P, Q = self.be.xp, self.plan.P, self.plan.Q
        with self.be.precision():
            return Summary(xp.zeros(chains), xp.zeros((chains, P, Q)), xp.zeros((chains, P, Q)), xp.zeros((chains, P)))

    def warm_up(self, chains: Chains, first: int, last: int, warmup: int) -> Chains:
        """Warm-up sweeps number first … last-1 of `warmup`."""
        with self.be.precision():
            chains = self._get("warm", last - first, warmup)(self.data, chains, self.be.xp.asarray(first))
            return self._checked(chains)

    def draw(self, chains: Chains, summary: Summary, draws: int, thin: int, first: int = 0) -> tuple[Chains, Summary, Kept]:
        """Keep `draws` draws, one in `thin` sweeps, from sweep number `first` on."""
        with self.be.precision():
            chains, summary, kept = self._get("draw", draws, thin)(self.data, chains, summary, self.be.xp.asarray(first))
            chains = self._checked(chains)
            return chains, summary, Kept(*(None if x is None else np.asarray(x) for x in kept))

    def _checked(self, chains: Chains) -> Chains:
        if not (np.isfinite(np.asarray(chains.state.Sigma)).all() and np.isfinite(np.asarray(chains.state.tau)).all()):
            raise ConvergenceError(
                "A chain left the range of double precision. Standardise the columns, or use noise='correlated'."
            )
        return chains

    def _get(self, kind: str, length: int, other: int) -> Callable[..., Any]:
        key = kind, length, other
        if key not in self._compiled:
            one = self._warm(length, other) if kind == "warm" else self._draw(length, other)
            axes = (self._axis, 0, None) if kind == "warm" else (self._axis, 0, 0, None)
            # The chains are given up to the call: their memory is used for the result.
            self._compiled[key] = self.be.jit(self.be.vmap(one, in_axes=axes), donate_argnums=(1,) if kind == "warm" else (1, 2))
        return self._compiled[key]

    def _stepper(self, data: Data, warmup: int | None) -> tuple[Array, Callable[..., tuple[Chains, Array]]]:
        """One sweep of the schedule `Plan.kind`, for a compiled loop: step(chains, G, number, begins) -> (chains, G).

        G = X diag(lam²) Xᵀ is carried along and made anew when the local scales have moved; also where a stretch `begins`, so
        that it need not outlive one. The kinds of sweep are branches of one program, chosen by the sweep's number.
        """
        be, xp, plan = self.be, self.be.xp, self.plan
        data = data._replace(m=float(plan.m))  # a shape of gamma variates: known when compiling
        if data.X is None:
            data = data._replace(X=data.blocks.Xt.reshape(plan.P, plan.rows).T)
        cycle = [plan.kind(i) for i in range(plan.every)]
        kinds = list(dict.fromkeys(cycle))
        uses = [plan.searches or (not plan.element and plan.mixing and not kind.collapse) for kind in cycle]

        def one_sweep(kind: Kind, chains: Chains, G: Array, number: Array) -> tuple[Chains, Array]:
            state, tuning, memory, words = chains
            words, noise = be.draw_noise(plan, words, kind)
            factor = be.factor(G, data.X, state.lam, None) if any(uses) and not kind.collapse else None
            gram = G if plan.searches else None
            state, stats = sweep(Sweep(be, plan, data, tuning, noise, kind, factor, gram), state)
            if warmup is not None:
                seen = adapt.Seen(number, warmup, kind, stats, strength(be, plan, data, state))
                tuning, memory = adapt.adapt(be, plan, tuning, memory, seen)
            return Chains(state, tuning, memory, words), G if stats.gram is None else stats.gram

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
        be, xp = self.be, self.be.xp

        def run(data: Data, chains: Chains, summary: Summary, first: Array) -> Any:
            G, step = self._stepper(data, None)

            def keep(carry: Any, x: Any) -> Any:
                chains, G, summary = carry
                done = x[0] * thin

                def next_sweep(carry: tuple[Chains, Array], y: Any) -> tuple[tuple[Chains, Array], None]:
                    return step(*carry, first + done + y[0], done + y[0] == 0), None

                (chains, G), _ = be.scan(next_sweep, (chains, G), (xp.arange(thin),))
                state = chains.state
                C = state.B @ state.A.T
                kappa = shrinkage(be, self.plan, data, state)
                n = summary.count + 1
                mean = summary.mean + (C - summary.mean) / n
                square = summary.square + (C - summary.mean) * (C - mean)
                summary = Summary(n, mean, square, summary.kappa + (kappa - summary.kappa) / n)
                return (chains, G, summary), Kept(C if self.keep_C else None, state.Sigma, state.tau)

            (chains, _, summary), kept = be.scan(keep, (chains, G, summary), (xp.arange(draws),))
            return chains, summary, kept

        return run


def on_device(plan: Plan, device: str) -> Plan:
    """The plan with the block sizes that suit a device: it waits for each block, so blocks are few and large."""
    # Borderline features are taken one after the other, which a device does slowly: fewer.
    few = min(128 if plan.searches else 16, plan.P)
    if device.startswith("cpu"):
        return replace(plan, borderline=min(few, plan.borderline), compiled=False)
    block = next((k for k in range(1024, 499, -1) if plan.P % k == 0), 1024) if plan.P > 1024 else min(plan.P, 512)
    number = -(-plan.P // block)
    # A block takes about 0.2 ms, the product over all features m²P at 25 TFLOP/s: a twentieth of that is for the blocks.
    visits = max(8, int(plan.rows**2 * plan.P / 25e12 / 20 / 2e-4))
    return replace(plan, block=block, visits=0 if visits >= number else visits, borderline=few, compiled=False)


def _data_axes(own_data: bool) -> Any:
    if not own_data:
        return None
    return Data(0, 0, 0, None, 0, 0, Blocks(0, 0))  # type: ignore[arg-type]


def stretches(total: int, size: int) -> Iterator[tuple[int, int]]:
    """(first, last) of stretches of at most `size`."""
    for first in range(0, total, size):
        yield first, min(total, first + size)


def stretch_length(plan: Plan, chains: int, draws: int) -> int:
    """Kept draws per stretch, so that those on the device stay within bounds."""
    return even(draws, max(1, min(50, STRETCH_BYTES // (8 * chains * plan.P * plan.Q))))


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
    for first, last in stretches(draws, stretch_length(runner.plan, number, draws)):
        chains, summary, kept = runner.draw(chains, summary, last - first, thin, warmup + first * thin)
        take(first, kept)
        if report is not None:
            report(warmup + last * thin, total)
    return chains, summary, time.perf_counter() - began
