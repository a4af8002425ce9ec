"""One chain of the sampler for noisy sketches: its sweeps and kept draws (`errors_in_variables` has the mathematics)."""

from dataclasses import asdict
from typing import Any

import numpy as np

from intarsia.server.sampler import errors_in_variables as ev
from intarsia.server.sampler.chain import from_words, generator, words
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.run import Asked

LEARN = 5  # one sweep in so many draws how far S may stray: an eigenvalue problem


class LatentChain:
    """The chain numbered `k` of a run (a `run.Stepper`)."""

    device = "cpu"

    def __init__(self, asked: Asked, k: int) -> None:
        self.asked, self.name, self.chains, self.sweeps = asked, str(k), range(k, k + 1), 0
        self.setting = ev.setting(asked.array("X"), asked.array("Y"), asked.array("d"), Model(**asked.model))
        self.record = asked.record(self.chains, self.setting.rank)
        self.rng = generator(asked.seed, k)
        self.state = ev.start(self.setting, self.rng)

    def advance(self, total: int) -> None:
        """One sweep."""
        del total
        self.state = state = ev.sweep(self.setting, self.state, self.rng, learn=self.sweeps % LEARN == 0)
        self.sweeps += 1
        past = self.sweeps - self.asked.warmup
        if past > 0 and past % self.asked.thin == 0:
            at = past // self.asked.thin - 1
            self.record.keep(at, state.C, state.Sigma, state.tau)

    def settle(self) -> None:
        """Everything is in the record."""

    def arrays(self) -> dict[str, Any]:
        return {"generator": words(self.rng)} | {f"state.{name}": np.asarray(value) for name, value in asdict(self.state).items()}

    def restore(self, stored: dict[str, Any]) -> None:
        values = {name.removeprefix("state."): value for name, value in stored.items() if name.startswith("state.")}
        self.state = ev.State(**values | {"strength": float(values["strength"])})
        from_words(self.rng, stored["generator"])
