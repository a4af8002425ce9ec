"""One chain of the sampler, sweep by sweep, for the benchmarks."""

from typing import Any

import numpy as np

from intarsia.server.sampler import adapt, backends
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.schedule import Plan, Sweep, draw_noise
from intarsia.server.sampler.schedule import plan as make_plan
from intarsia.server.sampler.start import initial, initial_tuning
from intarsia.server.sampler.state import prepare
from intarsia.server.sampler.sweep import factored, strength, sweep

NEVER = float("inf")  # a uniform number above every acceptance probability


class OneChain:
    """A chain on the CPU; `left_out` names random numbers (`Plan.noise`) that are set so that their move is never accepted."""

    def __init__(
        self, X: Any, Y: Any, model: Model, *, warmup: int, seed: int = 1, mixing: bool = True, left_out: str = ""
    ) -> None:
        self.be = backends.get("numpy")
        self.plan = make_plan(model, X, Y, mixing=mixing)
        self.data, self.rng = prepare(self.be, X, Y), np.random.default_rng(seed)
        self.state, self.tuning = initial(self.plan, self.data, self.rng), initial_tuning(self.plan)
        self.memory, self.factor = adapt.start(self.plan), None
        self.sweeps, self.warmup, self.left_out = 0, warmup, left_out

    def sweep(self) -> None:
        be, plan, kind = self.be, self.plan, self.plan.kind(self.sweeps)
        noise = draw_noise(plan, self.rng, kind)
        if self.left_out in noise:
            noise[self.left_out] = np.full_like(noise[self.left_out], NEVER)
        if plan.element or plan.hold == 1 or (kind.collapse and plan.searches):
            factor = None
        else:
            factor = self.factor = factored(be, plan, self.data, self.state, self.factor)
        with np.errstate(all="ignore"):
            self.state, stats = sweep(Sweep(be, plan, self.data, self.tuning, noise, kind, factor), self.state)
            if self.sweeps < self.warmup:
                seen = adapt.Seen(self.sweeps, self.warmup, kind, stats, strength(be, plan, self.data, self.state))
                self.tuning, self.memory = adapt.adapt(be, plan, self.tuning, self.memory, seen)
        self.sweeps += 1


def period(plan: Plan, longest: int = 64) -> int:
    """Sweeps after which the sequence of full and light sweeps comes round."""
    kinds = [plan.kind(i) for i in range(2 * longest)]
    return next(p for p in range(1, longest + 1) if all(kinds[i] == kinds[i % p] for i in range(2 * longest)))
