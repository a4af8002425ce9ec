"""One chain, in whatever process: sweeps, warm-up, kept draws, checkpoint.

A run lives in a folder: `run.json` (what is asked), X.npy and Y.npy (the sketches), one C.npy for all chains, and per chain
`state-k.npz` (everything a continuation needs, the generator's state included) and `progress-k.json`. A continued chain gives the
same bits as one that was never stopped: draws after the last checkpoint are simply made again.
"""

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from intarsia.errors import ConvergenceError
from intarsia.server.sampler import adapt, backends
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.schedule import Kind, draw_noise, plan
from intarsia.server.sampler.start import initial, initial_tuning
from intarsia.server.sampler.state import State, Tuning, prepare
from intarsia.server.sampler.sweep import factored, shrinkage, strength, sweep

STOP = "stop"  # a file of this name asks every chain to write its checkpoint and end
WATCHED = 200  # entries of C whose running moments feed the live R̂


class Chain:
    """The chain numbered `k` of a run folder."""

    def __init__(self, folder: Path, k: int) -> None:
        self.folder, self.k = folder, k
        run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        self.warmup, self.thin = int(run["warmup"]), int(run["thin"])
        X, Y = (np.load(folder / f"{name}.npy", allow_pickle=False) for name in "XY")
        self.be = backends.get("numpy")
        self.plan = plan(Model(**run["model"]), X, Y, mixing=run["mixing"])
        self.data = prepare(self.be, X, Y)
        self.C = np.load(folder / "C.npy", mmap_mode="r+", allow_pickle=False)[k]
        self._C = np.asarray(self.C)  # the file's own memory as a plain array: indexing a map costs more than a small draw
        capacity = self.C.shape[0]
        self.rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(run["seed"], spawn_key=(k,))))
        self.state = initial(self.plan, self.data, self.rng)
        self.tuning, self.memory = initial_tuning(self.plan), adapt.start(self.plan)
        self.sweeps, self.seconds = 0, 0.0
        self.Sigma, self.tau = np.zeros((capacity, self.plan.Q, self.plan.Q)), np.zeros((capacity, self.plan.R))
        self.kappa = np.zeros(self.plan.P)
        self.factor: Any = None
        self.top = math.nan  # what a stored chain's factor was made for
        watched = np.linspace(0, self.plan.P * self.plan.Q - 1, min(WATCHED, self.plan.P * self.plan.Q))
        self.watched = np.unique(watched.astype(int))
        self.moments = np.zeros((2, self.watched.size + self.plan.Q))
        if self._state_file.exists():
            self._load()

    @property
    def _state_file(self) -> Path:
        return self.folder / f"state-{self.k}.npz"

    @property
    def kept(self) -> int:
        return max(0, self.sweeps - self.warmup) // self.thin

    def run(self, draws: int, *, every: float, report: Callable[["Chain", int], None] | None = None) -> bool:
        """Go on until `draws` draws are kept; False when asked to stop before."""
        total = self.warmup + draws * self.thin
        began, saved, told = time.perf_counter() - self.seconds, time.perf_counter(), 0.0
        stop = self.folder / STOP
        with threadpool_limits(limits=1), np.errstate(all="ignore"):
            while self.sweeps < total:
                self._sweep()
                now = time.perf_counter()
                self.seconds = now - began
                if now - told > 0.3 or self.sweeps == total:
                    told = now
                    if report is not None:
                        report(self, total)
                    if stop.exists():
                        self.save()
                        return False
                if now - saved > every:
                    self.save()
                    saved = time.perf_counter()
        self.save()
        return True

    def _sweep(self) -> None:
        kind = self.plan.kind(self.sweeps)
        noise = draw_noise(self.plan, self.rng, kind)
        state, stats = sweep(self.be, self.plan, self.data, self.state, self.tuning, noise, kind, self._factor(kind))
        if not math.isfinite(state.B.sum() + state.Sigma.sum()):
            raise ConvergenceError(
                f"Chain {self.k + 1} left the range of double precision at sweep {self.sweeps + 1}. "
                "Standardise the columns, or use noise='correlated'."
            )
        self.state = state
        if self.sweeps < self.warmup:
            sizes = strength(self.be, self.plan, self.data, state)
            seen = adapt.Seen(self.sweeps, self.warmup, kind, stats, sizes)
            self.tuning, self.memory = adapt.adapt(self.be, self.plan, self.tuning, self.memory, seen)
        self.sweeps += 1
        past = self.sweeps - self.warmup
        if past > 0 and past % self.thin == 0:
            self._keep(past // self.thin - 1)

    def _factor(self, kind: Kind) -> Any:
        """The system of B for a light sweep, made anew when the local scales have moved."""
        if (kind.collapse and not kind.search) or self.plan.element or self.plan.hold == 1:
            return None
        self.factor = factored(self.be, self.plan, self.data, self.state, self.factor, self.top)
        self.top = math.nan
        return self.factor

    def _keep(self, i: int) -> None:
        state = self.state
        C = state.B @ state.A.T
        self._C[i], self.Sigma[i], self.tau[i] = C, state.Sigma, state.tau
        self.kappa += (shrinkage(self.be, self.plan, self.data, state) - self.kappa) / (i + 1)
        x = np.concatenate([C.reshape(-1)[self.watched], np.log(np.diagonal(state.Sigma))])
        delta = x - self.moments[0]
        self.moments[0] += delta / (i + 1)
        self.moments[1] += delta * (x - self.moments[0])

    def save(self) -> None:
        """Write the checkpoint whole or not at all."""
        if isinstance(self.C, np.memmap):
            self.C.flush()
        arrays = {f"state.{name}": value for name, value in self.state._asdict().items()}
        arrays |= {f"tuning.{name}": value for name, value in self.tuning._asdict().items()}
        arrays |= {f"memory.{name}": value for name, value in self.memory._asdict().items()}
        held = self.factor is not None and self.factor.lam is self.state.lam
        arrays["top"] = np.array(self.factor.top if held else math.nan)
        kept = self.kept
        arrays |= {"Sigma": self.Sigma[:kept], "tau": self.tau[:kept], "kappa": self.kappa, "moments": self.moments}
        words = np.frombuffer(json.dumps(self.rng.bit_generator.state).encode(), dtype=np.uint8)
        part = self._state_file.with_suffix(".part")
        with open(part, "wb") as file:
            np.savez(file, sweeps=self.sweeps, seconds=self.seconds, generator=words, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, self._state_file)

    def _load(self) -> None:
        with np.load(self._state_file, allow_pickle=False) as file:
            stored = {name: file[name] for name in file.files}
        self.state = State(**{n: stored[f"state.{n}"] for n in State._fields})
        self.tuning = Tuning(**{n: stored[f"tuning.{n}"] for n in Tuning._fields})
        self.memory = adapt.Memory(**{n: stored[f"memory.{n}"] for n in adapt.Memory._fields})
        self.top = float(stored["top"])
        self.sweeps, self.seconds = int(stored["sweeps"]), float(stored["seconds"])
        self.rng.bit_generator.state = json.loads(stored["generator"].tobytes().decode())
        kept = len(stored["Sigma"])
        self.Sigma[:kept], self.tau[:kept] = stored["Sigma"], stored["tau"]
        self.kappa, self.moments = stored["kappa"], stored["moments"]


def write_progress(chain: Chain, total: int) -> None:
    """What the parent (and the monitor) may know while a chain runs."""
    text = json.dumps(
        {
            "chain": chain.k,
            "sweeps": chain.sweeps,
            "total": total,
            "warmup": chain.warmup,
            "kept": chain.kept,
            "seconds": chain.seconds,
            "mean": chain.moments[0].tolist(),
            "square": chain.moments[1].tolist(),
        }
    )
    part = chain.folder / f"progress-{chain.k}.part"
    part.write_text(text, encoding="utf-8")
    os.replace(part, chain.folder / f"progress-{chain.k}.json")


def main(arguments: list[str]) -> int:
    """`python -m intarsia.server.sampler.run FOLDER CHAIN DRAWS EVERY`: run one chain; exit code 75 when asked to stop."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides; Ctrl-C reaches the whole group
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    folder, k, draws, every = Path(arguments[0]), int(arguments[1]), int(arguments[2]), float(arguments[3])
    try:
        done = Chain(folder, k).run(draws, every=every, report=write_progress)
    except ConvergenceError as error:
        (folder / f"error-{k}.txt").write_text(str(error), encoding="utf-8")
        return 8
    return 0 if done else 75


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))
