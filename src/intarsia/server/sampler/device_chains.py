"""All chains of a run at once, on an accelerator, as many side by side as its memory holds.

A continued run makes the same draws on the same device as one that was never stopped.
"""

from typing import Any

import numpy as np

from intarsia.server.sampler import adapt, backends, device
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.run import Asked
from intarsia.server.sampler.schedule import plan, with_start
from intarsia.server.sampler.state import State, Tuning, prepare

DEVICE_SHARE = 0.6  # of its memory that the chains may take


class DeviceChains:
    """Every chain of a run (a `run.Stepper`); one step is one compiled stretch of sweeps."""

    name = "device"

    def __init__(self, asked: Asked) -> None:
        self.asked, self.chains, self.sweeps = asked, range(asked.chains), 0
        X, Y = asked.array("X"), asked.array("Y")
        self.be = be = backends.on_device()
        self.device = be.device()
        found = asked.start()
        whole = plan(Model(**asked.model), X, Y, mixing=asked.mixing, compiled=False, degrees=asked.degrees)
        self.plan = device.on_device(whole if found is None else with_start(whole, X, Y, found), self.device)
        with be.precision():
            self.runner = device.Runner(self.plan, prepare(be, X, Y, block=self.plan.block, degrees=asked.degrees), be=be)
        self.record = asked.record(self.chains, self.plan.R)
        self.groups = self._groups(X.size)
        every, blank = self.runner.start(asked.seed, asked.chains, found=found), self.runner.blank(asked.chains)
        self.states = [self._part(every, group) for group in self.groups]
        self.summaries = [self._part(blank, group) for group in self.groups]

    def _groups(self, size: int) -> list[slice]:
        """Chains that fit on the device together: a scaled copy of the design, twice over, and some thirty arrays like B."""
        p, number = self.plan, self.asked.chains
        need = 16.0 * p.rows * p.P + 240.0 * p.P * p.Q
        if p.element:
            need += 8.0 * (3 * (p.rows * p.Q) ** 2 + p.R * p.rows**2)
        together = int(max(1, min(number, (self.be.memory() * DEVICE_SHARE - 8.0 * size) // need)))
        return [slice(i, min(number, i + together)) for i in range(0, number, together)]

    def _part(self, tree: Any, group: slice) -> Any:
        with self.be.precision():
            return self.be.tree_map(lambda x: x[group], tree)

    def _joined(self, trees: list[Any]) -> Any:
        return self.be.tree_map(lambda *x: np.concatenate([np.asarray(a) for a in x]), *trees)

    def advance(self, total: int) -> None:
        """One stretch: warm-up sweeps, or a few kept draws."""
        warmup, thin = self.asked.warmup, self.asked.thin
        if self.sweeps < warmup:
            last = min(warmup, self.sweeps + device.even(warmup, device.WARMUP_SWEEPS))
            self.states = [self.runner.warm_up(states, self.sweeps, last, warmup) for states in self.states]
            self.sweeps = last
            return
        draws, at = (total - warmup) // thin, self.asked.kept(self.sweeps)
        length = min(draws - at, device.stretch_length(self.plan, self.groups[0].stop, draws))
        parts = []
        for i in range(len(self.groups)):
            self.states[i], self.summaries[i], kept = self.runner.draw(
                self.states[i], self.summaries[i], length, thin, self.sweeps
            )
            parts.append(kept)
        self.record.add(at, *(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
        self.record.kappa = np.asarray(self._joined(self.summaries).kappa)
        self.sweeps += length * thin

    def arrays(self) -> dict[str, Any]:
        chains, summary = self._joined(self.states), self._joined(self.summaries)
        out: dict[str, Any] = {"words": chains.words}
        for part in ("state", "tuning", "memory"):
            out |= {f"{part}.{key}": value for key, value in getattr(chains, part)._asdict().items()}
        return out | {f"summary.{key}": value for key, value in summary._asdict().items()}

    def restore(self, stored: dict[str, Any]) -> None:
        def tree(kind: Any, name: str) -> Any:
            return kind(**{key: self.be.xp.asarray(stored[f"{name}.{key}"]) for key in kind._fields})

        with self.be.precision():
            parts = tree(State, "state"), tree(Tuning, "tuning"), tree(adapt.Memory, "memory")
            chains = device.Chains(*parts, self.be.xp.asarray(stored["words"]))
            summary = tree(device.Summary, "summary")
        self.states = [self._part(chains, group) for group in self.groups]
        self.summaries = [self._part(summary, group) for group in self.groups]
