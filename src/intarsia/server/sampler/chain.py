"""One chain on the CPU: its sweeps, warm-up and kept draws."""

import json
import math
from typing import Any, NamedTuple

import numpy as np

from intarsia.errors import ConvergenceError
from intarsia.server.sampler import adapt, backends
from intarsia.server.sampler.gaps import Gaps
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.run import LEFT_RANGE, Asked
from intarsia.server.sampler.schedule import Plan, Sweep, draw_noise, plan, with_start
from intarsia.server.sampler.sparse_start import SparseStart
from intarsia.server.sampler.start import initial, initial_tuning
from intarsia.server.sampler.state import Data, State, Tuning, prepare
from intarsia.server.sampler.sweep import factored, shrinkage, strength, sweep


def generator(seed: int, k: int) -> np.random.Generator:
    """Chain k's own generator, split from the seed."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(k,))))


def words(rng: np.random.Generator) -> Any:
    """A generator's state as an array."""
    return np.frombuffer(json.dumps(rng.bit_generator.state).encode(), dtype=np.uint8)


def from_words(rng: np.random.Generator, stored: Any) -> None:
    rng.bit_generator.state = json.loads(stored.tobytes().decode())


class Problem(NamedTuple):
    """What all chains of a process share: plan, data, the sparse solution they start from."""

    plan: Plan
    data: Data
    gaps: Gaps | None
    found: SparseStart | None


def problem(asked: Asked) -> Problem:
    X, Y, model = asked.array("X"), asked.array("Y"), Model(**asked.model)
    gaps, found = Gaps.of(X, Y), asked.start()
    level, Y = (Y, Y) if gaps is None else (gaps.level, gaps.blank)
    made = plan(model, X, level, mixing=asked.mixing, degrees=asked.degrees)
    data = prepare(backends.get("numpy"), X, level, degrees=asked.degrees, single=made.single)
    if found is not None:
        made, data = with_start(made, found), data._replace(alike=found.alike)
    return Problem(made, data, gaps, found)


class Chain:
    """The chain numbered `k` of a run (a `run.Stepper`)."""

    device = "cpu"

    def __init__(self, asked: Asked, k: int) -> None:
        self.asked, self.name, self.chains, self.sweeps = asked, str(k), range(k, k + 1), 0
        self.be = backends.get("numpy")
        self.plan, self.data, self.gaps, found = asked.shared(problem)
        self.record = asked.record(self.chains, self.plan.R)
        self.rng = generator(asked.seed, k)
        self.state = initial(self.plan, self.data, self.rng, found)
        self.memory, self.tuning = adapt.start(self.plan), initial_tuning(self.plan)
        self.factor: Any = None
        self.top = math.nan  # what a stored chain's factor was made for

    def advance(self, total: int) -> None:
        """One sweep."""
        del total
        warmup = self.asked.warmup
        kind = self.plan.kind(self.sweeps, warmup)
        if self.gaps is not None:
            self.data = self.gaps.fill(self.data, self.state.B @ self.state.A.T, self.state.Sigma, self.rng)
        noise = draw_noise(self.plan, self.rng, kind)
        factor = self._factor()
        state, stats = sweep(Sweep(self.be, self.plan, self.data, self.tuning, noise, kind, factor), self.state)
        if not math.isfinite(state.B.sum() + state.Sigma.sum()):
            raise ConvergenceError(f"Chain {self.chains.start + 1}, sweep {self.sweeps + 1}: it {LEFT_RANGE}")
        self.state = state
        if self.sweeps < warmup:
            seen = adapt.Seen(self.sweeps, warmup, kind, stats, strength(self.be, self.plan, self.data, state))
            self.tuning, self.memory = adapt.adapt(self.be, self.plan, self.tuning, self.memory, seen)
        self.sweeps += 1
        past = self.sweeps - warmup
        if past > 0 and past % self.asked.thin == 0:
            self._keep(past // self.asked.thin - 1)

    def _factor(self) -> Any:
        """The system of B, made anew when the local scales have moved; None where a sweep makes its own."""
        if self.plan.element or self.plan.hold == 1:
            return None
        self.factor = factored(self.be, self.plan, self.data, self.state, self.factor, self.top)
        self.top = math.nan
        return self.factor

    def _keep(self, at: int) -> None:
        state, kappa = self.state, self.record.kappa
        self.record.keep(at, state.B @ state.A.T, state.Sigma, state.tau)
        kappa += (shrinkage(self.be, self.plan, self.data, state) - kappa) / (at + 1)

    def settle(self) -> None:
        """Everything is in the record."""

    def arrays(self) -> dict[str, Any]:
        out: dict[str, Any] = {"generator": words(self.rng)}
        for part in ("state", "tuning", "memory"):
            out |= {f"{part}.{name}": value for name, value in getattr(self, part)._asdict().items()}
        held = self.factor is not None and self.factor.lam is self.state.lam
        return out | {"top": np.array(self.factor.top if held else math.nan)}

    def restore(self, stored: dict[str, Any]) -> None:
        def part(kind: Any, name: str) -> Any:
            return kind(**{field: stored[f"{name}.{field}"] for field in kind._fields})

        self.state, self.tuning, self.memory = part(State, "state"), part(Tuning, "tuning"), part(adapt.Memory, "memory")
        self.top = float(stored["top"])
        from_words(self.rng, stored["generator"])
