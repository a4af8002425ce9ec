"""All chains of a run folder at once, on an accelerator: the counterpart of `chain` for `backend="jax"`.

The folder is the same: `run.json`, X.npy, Y.npy and C.npy; the state of every chain lies in `state-jax.npz`, written between
compiled stretches. A continued run makes the same draws on the same device as one that was never stopped.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from intarsia.server.sampler import adapt, backends, device
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.run import STOP, WATCHED
from intarsia.server.sampler.schedule import plan as make_plan
from intarsia.server.sampler.state import State, Tuning, prepare

STATE = "state-jax.npz"


class Batch:
    """Every chain of a run folder; as many side by side as the device's memory holds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        self.warmup, self.thin, self.number = int(run["warmup"]), int(run["thin"]), int(run["chains"])
        X, Y = (np.load(folder / f"{name}.npy", allow_pickle=False) for name in "XY")
        self.be = be = backends.on_device()
        self.device = be.device()
        plan = make_plan(Model(**run["model"]), X, Y, mixing=run["mixing"])
        self.plan = plan = device.on_device(plan, self.device)
        with be.precision():
            self.runner = device.Runner(plan, prepare(be, X, Y, block=plan.block), be=be)
        # A scaled copy of the design in double precision, twice over, and some thirty arrays as large as B.
        need = 16.0 * plan.rows * plan.P + 240.0 * plan.P * plan.Q
        if plan.element:
            need += 8.0 * (3 * (plan.rows * plan.Q) ** 2 + plan.R * plan.rows**2)
        together = int(max(1, min(self.number, (be.memory() * 0.6 - 8.0 * X.size) // need)))
        self.groups = [slice(i, min(self.number, i + together)) for i in range(0, self.number, together)]
        self.C = np.load(folder / "C.npy", mmap_mode="r+", allow_pickle=False)
        capacity = self.C.shape[1]
        self.Sigma = np.zeros((self.number, capacity, plan.Q, plan.Q))
        self.tau = np.zeros((self.number, capacity, plan.R))
        self.sweeps, self.seconds = 0, 0.0
        every = self.runner.start(int(run["seed"]), self.number)
        blank = self.runner.blank(self.number)
        self.chains = [self._part(every, group) for group in self.groups]
        self.summaries = [self._part(blank, group) for group in self.groups]
        if (folder / STATE).exists():
            self._load()

    def _part(self, tree: Any, group: slice) -> Any:
        with self.be.precision():
            return self.be.tree_map(lambda x: x[group], tree)

    @property
    def kept(self) -> int:
        return max(0, self.sweeps - self.warmup) // self.thin

    def run(self, draws: int, *, every: float, report: Callable[["Batch", int], None] | None = None) -> bool:
        """Go on until `draws` draws of each chain are kept; False when asked to stop before."""
        total = self.warmup + draws * self.thin
        began, saved = time.perf_counter() - self.seconds, time.perf_counter()
        warm = device.even(self.warmup, device.WARM)
        length = device.stretch_length(self.plan, self.groups[0].stop, draws)
        while self.sweeps < total:
            if self.sweeps < self.warmup:
                self._warm(min(self.warmup, self.sweeps + warm))
            else:
                self._draw(min(draws - self.kept, length))
            now = time.perf_counter()
            self.seconds = now - began
            if report is not None:
                report(self, total)
            if (self.folder / STOP).exists() and self.sweeps < total:
                self.save()
                return False
            if now - saved > every:
                self.save()
                saved = time.perf_counter()
        self.save()
        return True

    def _warm(self, last: int) -> None:
        self.chains = [self.runner.warm_up(chains, self.sweeps, last, self.warmup) for chains in self.chains]
        self.sweeps = last

    def _draw(self, length: int) -> None:
        at = slice(self.kept, self.kept + length)
        for i, group in enumerate(self.groups):
            self.chains[i], self.summaries[i], kept = self.runner.draw(
                self.chains[i], self.summaries[i], length, self.thin, self.sweeps
            )
            self.C[group, at], self.Sigma[group, at], self.tau[group, at] = kept
        self.sweeps += length * self.thin

    def _joined(self, trees: list[Any]) -> Any:
        return self.be.tree_map(lambda *x: np.concatenate([np.asarray(a) for a in x]), *trees)

    def save(self) -> None:
        """Write the checkpoint whole or not at all."""
        if isinstance(self.C, np.memmap):
            self.C.flush()
        chains, summary = self._joined(self.chains), self._joined(self.summaries)
        arrays: dict[str, Any] = {"words": chains.words}
        for name in ("state", "tuning", "memory"):
            arrays |= {f"{name}.{key}": value for key, value in getattr(chains, name)._asdict().items()}
        arrays |= {f"summary.{key}": value for key, value in summary._asdict().items()}
        arrays |= {"Sigma": self.Sigma[:, : self.kept], "tau": self.tau[:, : self.kept]}
        part = self.folder / "state-jax.part"
        with open(part, "wb") as file:
            np.savez(file, sweeps=self.sweeps, seconds=self.seconds, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, self.folder / STATE)

    def _load(self) -> None:
        with np.load(self.folder / STATE, allow_pickle=False) as file:
            stored = {name: file[name] for name in file.files}

        def tree(kind: Any, name: str) -> Any:
            return kind(**{key: self.be.xp.asarray(stored[f"{name}.{key}"]) for key in kind._fields})

        with self.be.precision():
            chains = device.Chains(
                tree(State, "state"),
                tree(Tuning, "tuning"),
                tree(adapt.Memory, "memory"),
                self.be.xp.asarray(stored["words"]),
            )
            summary = tree(device.Summary, "summary")
        self.chains = [self._part(chains, group) for group in self.groups]
        self.summaries = [self._part(summary, group) for group in self.groups]
        self.sweeps, self.seconds = int(stored["sweeps"]), float(stored["seconds"])
        kept = stored["Sigma"].shape[1]
        self.Sigma[:, :kept], self.tau[:, :kept] = stored["Sigma"], stored["tau"]

    def parts(self) -> list[Any]:
        """What `chains.sample` collects of each chain. A chain's seconds are its share of the whole."""
        kappa = self._joined(self.summaries).kappa
        share = self.seconds / self.number
        return [
            SimpleNamespace(Sigma=self.Sigma[k], tau=self.tau[k], kappa=kappa[k], seconds=share, sweeps=self.sweeps)
            for k in range(self.number)
        ]


def write_progress(batch: Batch, total: int) -> None:
    """One progress file a chain, as the chains of the CPU write them."""
    summary = batch._joined(batch.summaries)
    watched = np.unique(np.linspace(0, batch.plan.P * batch.plan.Q - 1, WATCHED).astype(int))
    for k in range(batch.number):
        text = json.dumps(
            {
                "chain": k,
                "sweeps": batch.sweeps,
                "total": total,
                "warmup": batch.warmup,
                "kept": batch.kept,
                "seconds": batch.seconds,
                "mean": summary.mean[k].reshape(-1)[watched].tolist(),
                "square": summary.square[k].reshape(-1)[watched].tolist(),
            }
        )
        part = batch.folder / f"progress-{k}.part"
        part.write_text(text, encoding="utf-8")
        os.replace(part, batch.folder / f"progress-{k}.json")
