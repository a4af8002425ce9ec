"""Running chains, whatever prior they sample: threads of one process, to a budget or to a target, with checkpoints.

A checkpoint is a folder with one file per chain, `chain-k.npz`, written whole or not at all and sealed with its digest. It holds
everything a continuation needs, the generator's state included, and what was asked. A continued chain gives the same bits as one
that was never stopped.
"""

import contextlib
import hashlib
import json
import math
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

import intarsia
from intarsia import files
from intarsia.errors import InputError
from intarsia.server.assess.diagnostics import rhat_from_moments
from intarsia.server.sampler.settings import Progress, Settings, Standing, looks

Array = NDArray[Any]

SLICE = 0.1  # seconds of sweeps after which a chain looks whether it is to stop
REPORT = 0.5  # seconds between two reports
SAVING = 30  # times as long as writing a checkpoint took passes before the next one
REMEDY = "Remove the checkpoint's folder and give the same command again: the chains then begin anew."


class Chain(Protocol):
    """What makes sweeps, of one chain or of several at once, and keeps draws."""

    k: int
    sweeps: int
    device: str

    @property
    def kept(self) -> int:
        """Draws kept so far, of each chain."""
        ...

    def advance(self, sweeps: int) -> None:
        """Make so many sweeps; the interpreter's lock is free most of that time."""
        ...

    def watched(self) -> Array:
        """Some numbers of every kept draw (chain, draw, number), for a live R̂."""
        ...

    def arrays(self) -> dict[str, Any]:
        """Everything a continuation needs."""
        ...

    def restore(self, arrays: dict[str, Any]) -> None: ...


def asked_of(kind: str, model: dict[str, Any], settings: Settings, arrays: Sequence[Array], **more: Any) -> dict[str, Any]:
    """What decides which draws are made; a folder holds one run of it."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    numbers = {name: int(getattr(settings, name)) for name in ("warmup", "thin", "chains", "seed")}
    chosen = {"backend": settings.backend, "mixing": settings.mixing, "shape": [list(array.shape) for array in arrays]}
    return {"kind": kind, "model": model, **numbers, **chosen, "digest": digest.hexdigest(), **more}


class Runner:
    """Runs chains to the end of their budget, or to the first look at which the target is met.

    `standing` says how far the first so many draws of all chains are from the target.
    """

    def __init__(
        self, chains: Sequence[Chain], settings: Settings, asked: dict[str, Any], standing: Callable[[int], Standing]
    ) -> None:
        self.chains, self.settings, self.asked, self._look = chains, settings, asked, standing
        self.folder = None if settings.checkpoint is None else Path(settings.checkpoint)
        self.warmup, self.thin = asked["warmup"], asked["thin"]
        self.made, self.wall, self.seconds = 0, 0.0, [0.0] * len(chains)
        self.standing: Standing | None = None
        self._stop = threading.Event()
        # Of each chain: when its checkpoint was written last, how long that took, and after how many sweeps.
        self._saved, self._writing, self._at = [time.perf_counter()] * len(chains), [0.0] * len(chains), [0] * len(chains)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.workers = min(len(chains), settings.workers or cores)

    def run(self) -> "Runner":
        began, until, budget = time.perf_counter(), self.settings.until, self.settings.draws
        assert budget is not None
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            files.sweep(self.folder)
            self._load()
        total = self.warmup + budget * self.thin
        self._tell(total)
        with threadpool_limits(1), _stopping(self._stop) as stopped, ThreadPoolExecutor(self.workers) as pool:
            for draws in looks(budget, until):
                self._advance(pool, draws, total)
                if self._stop.is_set():
                    break
                if until is not None and draws < budget:
                    self.standing = self._look(draws)
                    if self.standing.meets(until):
                        break
            for k in range(len(self.chains)):
                self._save(k)
        if stopped:
            if self.folder is not None:
                raise KeyboardInterrupt(f"Stopped; what was sampled is kept in {self.folder}. The same call goes on from there.")
            raise KeyboardInterrupt
        self.made, self.wall = draws, time.perf_counter() - began
        self._tell(self.warmup + draws * self.thin, final=True)
        return self

    def info(self, rows: float) -> dict[str, Any]:
        """How the run went."""
        seconds, sweeps = self.seconds, [chain.sweeps for chain in self.chains]
        return {
            **{name: self.asked[name] for name in ("model", "warmup", "thin", "seed", "mixing", "backend")},
            "device": self.chains[0].device,
            "seconds": max(self.wall, *seconds),  # of a run that was gone on with, what its chains took before counts too
            "chain_seconds": seconds,
            "ms_per_sweep": [1e3 * took / max(1, made) for took, made in zip(seconds, sweeps, strict=True)],
            "sweeps": self.warmup + self.made * self.thin,
            "m": int(rows),
            "expected_features": self.asked["model"]["expected_features"],
            "versions": {"intarsia": intarsia.__version__, "numpy": np.__version__, "python": platform.python_version()},
        }

    def _advance(self, pool: ThreadPoolExecutor, draws: int, total: int) -> None:
        """All chains to so many draws; their errors end all."""
        end = self.warmup + draws * self.thin
        waiting = {pool.submit(self._go, k, end) for k in range(len(self.chains))}
        try:
            while waiting:
                done, waiting = wait(waiting, REPORT, FIRST_EXCEPTION)
                for future in done:
                    future.result()
                self._tell(total)
        except BaseException:
            self._stop.set()
            raise

    def _go(self, k: int, end: int) -> None:
        chain, number = self.chains[k], 1
        while chain.sweeps < end and not self._stop.is_set():
            began = time.perf_counter()
            chain.advance(min(number, end - chain.sweeps))
            took = time.perf_counter() - began
            self.seconds[k] += took
            number = max(1, int(number * min(2.0, SLICE / max(took, 1e-6))))
            if time.perf_counter() - self._saved[k] > max(self.settings.checkpoint_seconds, SAVING * self._writing[k]):
                self._save(k)

    def _save(self, k: int) -> None:
        chain = self.chains[k]
        if self.folder is None or chain.sweeps == self._at[k]:
            return
        began = time.perf_counter()
        asked = np.frombuffer(json.dumps(self.asked, sort_keys=True).encode(), dtype=np.uint8)
        try:
            files.replace_arrays(
                self.folder / f"chain-{k}.npz", {"asked": asked, "seconds": np.array(self.seconds[k]), **chain.arrays()}
            )
        except OSError as error:
            raise InputError(
                f"The checkpoint of chain {k + 1} cannot be written to {self.folder}: {error.strerror or error}. Free some space "
                "or name another folder, and give the same command again: what was written before is kept."
            ) from error
        self._saved[k] = time.perf_counter()
        self._writing[k], self._at[k] = self._saved[k] - began, chain.sweeps

    def _load(self) -> None:
        assert self.folder is not None
        for k, chain in enumerate(self.chains):
            file = self.folder / f"chain-{k}.npz"
            if not file.exists():
                continue
            arrays = files.read_arrays(file, REMEDY)
            found = json.loads(arrays["asked"].tobytes().decode())
            asked = json.loads(json.dumps(self.asked))
            if found != asked:
                changed = ", ".join(sorted(name for name in asked if found.get(name) != asked[name]))
                raise InputError(
                    f"The checkpoint holds another run ({changed} differ). Use another folder, or remove it to start anew."
                )
            chain.restore(arrays)
            self.seconds[k], self._at[k] = float(arrays["seconds"]), chain.sweeps

    def _tell(self, total: int, final: bool = False) -> None:
        """Report to the callback, and to the monitor by files beside the checkpoint."""
        if self.settings.progress is None and self.folder is None:
            return
        seen = [one for chain in self.chains for one in _moments(chain.watched())]
        each = len(seen) // len(self.chains)  # chains that one stepper makes
        sweeps, until = [chain.sweeps for chain in self.chains for _ in range(each)], self.settings.until
        whole = likely = total
        if until is not None and not final:
            if self.standing is None:
                likely = min(total, self.warmup + self.settings.usual * self.thin)
            else:  # no more than the target asks for, as far as one can tell
                enough = self.standing.draws * self.standing.factor(until)  # no end in sight where chains stay apart
                likely = min(total, self.warmup + math.ceil(min(enough, total)) * self.thin)
                total = likely = max(likely, *sweeps)
        if self.folder is not None:
            for k, (count, mean, square) in enumerate(seen):
                files.replace_json(self.folder / f"progress-{k}.json", {
                    "chain": k, "sweeps": sweeps[k], "total": total, "warmup": self.warmup, "kept": count,
                    "seconds": self.seconds[k // each], "mean": mean.tolist(), "square": square.tolist(),
                })  # fmt: skip
        if self.settings.progress is None:
            return
        swept = [took / chain.sweeps for took, chain in zip(self.seconds, self.chains, strict=True) if chain.sweeps >= 10]
        per_sweep = float(np.median(swept)) / self.workers if swept else math.nan
        left, at_most = (per_sweep * sum(max(0, end - chain.sweeps) for chain in self.chains) for end in (likely, whole))
        self.settings.progress(Progress(
            [min(n, total) for n in sweeps], total, self.warmup, max(self.seconds), left, _rhat(seen),
            standing=self.standing, until=until, at_most=at_most,
        ))  # fmt: skip


def _moments(values: Array) -> list[tuple[int, Array, Array]]:
    """Of each chain's numbers (chain, draw, number): how many draws, their mean and sum of squared deviations."""
    out = []
    for x in values:
        mean = x.mean(axis=0) if len(x) else np.zeros(x.shape[1])
        out.append((len(x), mean, np.square(x - mean).sum(axis=0)))
    return out


def _rhat(seen: Sequence[tuple[int, Array, Array]]) -> float:
    """Largest R̂ over the watched entries."""
    started = [one for one in seen if one[0] >= 10]
    if len(started) < 2:
        return math.nan
    found = rhat_from_moments(*(np.array(values, dtype=float) for values in zip(*started, strict=True)))
    return float(np.nanmax(found)) if np.isfinite(found).any() else math.nan


@contextlib.contextmanager
def _stopping(stop: threading.Event) -> Iterator[list[int]]:
    """Ctrl-C or SIGTERM asks the chains to end at their next sweeps; the numbers of the signals that came. A second one is left
    to whoever was there before.
    """
    got: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield got
        return
    before: dict[signal.Signals, Any] = {}

    def handler(number: int, frame: Any) -> None:
        del frame
        got.append(number)
        stop.set()
        for s, old in before.items():
            signal.signal(s, old)

    for s in (signal.SIGINT, signal.SIGTERM):
        before[s] = signal.signal(s, handler)
    try:
        yield got
    finally:
        for s, old in before.items():
            signal.signal(s, old)
