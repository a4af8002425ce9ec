"""All chains of a run at once, on an accelerator, as many side by side as its memory holds.

A continued run makes the same draws on the same device as one that was never stopped.
"""

from typing import Any

import numpy as np

from intarsia.server.sampler import adapt, backends, device
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.record import BoundedRecord
from intarsia.server.sampler.run import Asked
from intarsia.server.sampler.running import Elsewhere, Running, marks
from intarsia.server.sampler.schedule import plan, with_start
from intarsia.server.sampler.state import State, Tuning

DEVICE_SHARE = 0.85  # of the memory JAX may take, for the chains


class DeviceChains:
    """Every chain of a run (a `run.Stepper`); one step is one compiled stretch of sweeps."""

    name = "device"

    def __init__(self, asked: Asked) -> None:
        self.asked, self.chains, self.sweeps = asked, range(asked.chains), 0
        X, Y = asked.array("X"), asked.array("Y")
        be = backends.on_device()
        self.device = be.device()
        found = asked.start()
        whole = plan(Model(**asked.model), X, Y, mixing=asked.mixing, compiled=False, degrees=asked.degrees)
        self.plan = device.on_device(whole if found is None else with_start(whole, found), self.device, be.lanes())
        self.be = be = be.over(self.plan.P) if self.plan.lanes > 1 else be
        self.record = asked.record(self.chains, self.plan.R)
        keep_C: bool | device.Part = True
        if isinstance(self.record, BoundedRecord):
            slots = max(1, device.STRETCH_BYTES // (4 * asked.chains * self.plan.P * self.plan.Q))
            keep_C = device.Part(self.record.keeping.features, min(slots, device.LONGEST_STRETCH))
        with be.precision():
            data = device.prepare_on_device(be, self.plan, X, Y, asked.degrees)
            self.plan, data = device.with_bounds(be, self.plan, data)
            if self.plan.exchanges and found is not None and found.alike is not None:
                data = data._replace(alike=be.tree_map(be.xp.asarray, found.alike))
            self.runner = device.Runner(self.plan, be.everywhere(data), keep_C=keep_C, be=be)
        self.groups = self._groups(X.size)
        every, blank = self.runner.start(asked.seed, asked.chains, found=found), self.runner.blank(asked.chains)
        self.states = [self._part(every, group) for group in self.groups]
        self.summaries = [self._part(blank, group) for group in self.groups]

    def _groups(self, size: int) -> list[slice]:
        """Chains that fit on the device together: a scaled copy of its part of the design, twice over, and some thirty arrays
        like B, which each device has whole.
        """
        p, number = self.plan, self.asked.chains
        need = 16.0 * p.rows * p.P / p.lanes + 240.0 * p.P * p.Q
        if isinstance(self.runner.keep_C, device.Part):
            need += (60.0 + 4.0 * self.runner.keep_C.slots) * p.P * p.Q
        if p.element:
            need += 8.0 * (3 * (p.rows * p.Q) ** 2 + p.R * p.rows**2)
        together = int(max(1, min(number, (self.be.memory() * DEVICE_SHARE - 8.0 * size / p.lanes) // need)))
        return [slice(i, min(number, i + together)) for i in range(0, number, together)]

    def _part(self, tree: Any, group: slice) -> Any:
        with self.be.precision():
            return self.be.everywhere(self.be.tree_map(lambda x: x[group], tree))

    def _joined(self, trees: list[Any]) -> Any:
        if len(trees) == 1:  # no second copy of what may take gigabytes
            return self.be.tree_map(np.asarray, trees[0])
        return self.be.tree_map(lambda *x: np.concatenate([np.asarray(a) for a in x]), *trees)

    def advance(self, total: int) -> None:
        """One stretch: warm-up sweeps, or a few kept draws."""
        warmup, thin = self.asked.warmup, self.asked.thin
        if self.sweeps == 0 and warmup and len(self.groups) == 1 and total > warmup:
            length = self._length(total)
            self.runner.compile_beside(self.states[0], self.summaries[0], length, thin, self._notes(0, length)[0])
        if self.sweeps < warmup:
            last = min(warmup, self.sweeps + device.even(warmup, device.WARMUP_SWEEPS))
            self.states = [self.runner.warm_up(states, self.sweeps, last, warmup) for states in self.states]
            self.sweeps = last
            return
        at, length = self.asked.kept(self.sweeps), self._length(total)
        notes, slots = self._notes(at, at + length)
        parts = []
        for i in range(len(self.groups)):
            self.states[i], self.summaries[i], kept = self.runner.draw(
                self.states[i], self.summaries[i], length, thin, self.sweeps, notes
            )
            parts.append(kept)
        C, Sigma, tau = (np.concatenate([getattr(kept, name) for kept in parts]) for name in ("C", "Sigma", "tau"))
        self.record.add(at, C, Sigma, tau)
        if isinstance(self.record, BoundedRecord):
            for i, slot in enumerate(slots):
                self.record.store_whole(slot, np.concatenate([np.asarray(kept.whole[:, i]) for kept in parts]))
        self.sweeps += length * thin

    def _length(self, total: int) -> int:
        """Draws of the next stretch, of a run of so many sweeps."""
        draws, at = (total - self.asked.warmup) // self.asked.thin, self.asked.kept(self.sweeps)
        # A length that all looks are multiples of: each other one is compiled for itself.
        whole = device.LONGEST_STRETCH if draws % device.LONGEST_STRETCH == 0 else draws
        return min(draws - at, device.even(whole, self._longest()))

    def _longest(self) -> int:
        """Draws per stretch, so that those that leave the device stay within bounds."""
        of_one = self.groups[0].stop * self.plan.Q
        if not isinstance(self.record, BoundedRecord):
            return device.stretch_length(of_one * self.plan.P)
        assert isinstance(self.runner.keep_C, device.Part)
        longest = device.stretch_length(of_one * len(self.record.keeping.features))
        return next(n for n in range(longest, 0, -1) if self.record.keeping.most_within(n) <= self.runner.keep_C.slots)

    def _notes(self, first: int, last: int) -> tuple[Any, Any]:
        """What the loop must know of draws number first … last − 1 where not all are kept, and the whole draws among them."""
        if not isinstance(self.record, BoundedRecord):
            return None, ()
        slots, part = self.record.slots(first, last), self.runner.keep_C
        assert isinstance(part, device.Part)
        where = np.full(last - first, part.slots)
        where[self.record.keeping.whole[slots] - first] = np.arange(len(slots))
        return (marks(first, last), where), slots

    def settle(self) -> None:
        """Let the record know what was summed up on the device: the sums of all coefficients stay there until they are read."""
        self.record.kappa = self._joined([summary.kappa for summary in self.summaries])
        if isinstance(self.record, BoundedRecord):
            fields = zip(*(summary.running for summary in self.summaries), strict=True)
            self.record.running = Running(*(Elsewhere(parts, self.be.rows) for parts in fields))

    def arrays(self) -> dict[str, Any]:
        chains = self._joined(self.states)
        out: dict[str, Any] = {"words": chains.words, "count": np.concatenate([np.asarray(s.count) for s in self.summaries])}
        for part in ("state", "tuning", "memory"):
            out |= {f"{part}.{key}": value for key, value in getattr(chains, part)._asdict().items()}
        return out

    def restore(self, stored: dict[str, Any]) -> None:
        def tree(kind: Any, name: str) -> Any:
            return kind(**{key: self.be.xp.asarray(stored[f"{name}.{key}"]) for key in kind._fields})

        with self.be.precision():
            parts = tree(State, "state"), tree(Tuning, "tuning"), tree(adapt.Memory, "memory")
            chains = device.Chains(*parts, self.be.xp.asarray(stored["words"]))
            count, kappa = self.be.xp.asarray(stored["count"]), self.be.xp.asarray(self.record.kappa)
            summary = device.Summary(count, kappa, self.be.tree_map(self.be.xp.asarray, self.record.running))
        self.states = [self._part(chains, group) for group in self.groups]
        self.summaries = [self._part(summary, group) for group in self.groups]
