"""Running the chains of a run: in this process when the work is small, in processes of their own when it pays.

Each chain has its own generator, split from the seed, and one BLAS thread, so the draws do not depend on the number of workers.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.errors import ConvergenceError, InputError
from intarsia.server.results.diagnostics import rhat_from_moments
from intarsia.server.results.draws import create
from intarsia.server.sampler.run import STOP, Run, opened

SMALL_SECONDS = 3.0  # of estimated work under which starting processes does not pay
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@dataclass(frozen=True)
class Progress:
    """Handed to the progress callback a few times per second."""

    sweeps: list[int]
    total: int
    warmup: int
    seconds: float
    seconds_left: float
    rhat: float  # largest over a fixed sample of entries of C and the noise levels; NaN before there are draws
    finite: bool = True


@dataclass(frozen=True)
class Way:
    """How chains are run: processes (None: as it pays), seconds between checkpoints, who is told, expected seconds per sweep."""

    workers: int | None
    every: float
    progress: Callable[[Progress], None] | None
    sweep_seconds: float


class Launcher:
    """Runs every chain of a folder to a target number of kept draws."""

    def __init__(self, where: Path, asked: dict[str, Any], way: Way) -> None:
        self.where, self.way = where, way
        self.chains, self.warmup, self.thin = asked["chains"], asked["warmup"], asked["thin"]
        self.together = asked["engine"] == "jax"  # one stepper makes all chains
        self._runs: dict[int, Run] = {}

    def run(self, draws: int) -> None:
        (self.where / STOP).unlink(missing_ok=True)
        total = self.warmup + draws * self.thin
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = self.way.workers if self.way.workers is not None else min(self.chains, cores)
        if workers < 1:
            raise InputError(f"workers is {workers}; expected at least 1.")
        small = self.way.workers is None and self.chains * total * self.way.sweep_seconds < SMALL_SECONDS
        with _stop_on_signal(self.where) as stopped:
            if self.together or small or workers == 1:
                self._here(draws, total)
            else:
                self._processes(draws, total, min(workers, self.chains))
            if stopped:
                raise KeyboardInterrupt
        self._tell(total)

    def runs(self) -> list[Run]:
        """What the chains left, as their checkpoints hold it; on an accelerator, one run for all."""
        return list(self._runs.values()) if self.together else [opened(self.where, k) for k in range(self.chains)]

    def _tell(self, total: int) -> None:
        if self.way.progress is not None:
            self.way.progress(self._progress(total))

    def _here(self, draws: int, total: int) -> None:
        for k in range(1 if self.together else self.chains):
            if self.together:  # compiled once, however often the run goes on
                self._runs[k] = run = self._runs.get(k) or opened(self.where, k)
            else:
                run = opened(self.where, k)
            if not run.go(draws, every=self.way.every, report=lambda: self._tell(total)):
                return

    def _processes(self, draws: int, total: int, workers: int) -> None:
        environment = os.environ | dict.fromkeys(THREADS, "1")
        command = [sys.executable, "-m", "intarsia.server.sampler.run", str(self.where)]
        waiting, running = list(range(self.chains)), dict[int, subprocess.Popen[bytes]]()
        failed: list[int] = []
        try:
            while waiting or running:
                while waiting and len(running) < workers and not failed:
                    k = waiting.pop(0)
                    own = [*command, str(k), str(draws), str(self.way.every)]
                    running[k] = subprocess.Popen(own, env=environment, stdin=subprocess.DEVNULL)
                time.sleep(0.05)
                for k, process in list(running.items()):
                    code = process.poll()
                    if code is None:
                        continue
                    del running[k]
                    if code == 75:
                        waiting.clear()
                    elif code != 0:
                        failed.append(k)
                        waiting.clear()
                        (self.where / STOP).touch()
                self._tell(total)
        finally:
            if running:  # an error of our own: let the chains write their checkpoints
                (self.where / STOP).touch()
                for process in running.values():
                    process.wait()
        if failed:
            text = self.where / f"error-{failed[0]}.txt"
            why = text.read_text(encoding="utf-8") if text.exists() else "its process died; the same call continues it"
            raise ConvergenceError(f"Chain {failed[0] + 1} stopped: {why}")

    def _progress(self, total: int) -> Progress:
        seen = []
        for k in range(self.chains):
            with contextlib.suppress(OSError, ValueError):
                seen.append(json.loads((self.where / f"progress-{k}.json").read_text(encoding="utf-8")))
        sweeps = [int(p["sweeps"]) for p in seen] + [0] * (self.chains - len(seen))
        seconds = max((float(p["seconds"]) for p in seen), default=0.0)
        rate = [p["seconds"] / p["sweeps"] for p in seen if p["sweeps"]]
        left = sum(total - s for s in sweeps) * (float(np.median(rate)) if rate else self.way.sweep_seconds)
        left /= max(1, min(self.chains, os.cpu_count() or 1))
        return Progress(sweeps, total, self.warmup, seconds, left, _rhat(seen))


def _rhat(seen: list[dict[str, Any]]) -> float:
    """Largest R̂ over the watched entries, from the chains' running moments."""
    started = [p for p in seen if p["kept"] >= 10]
    if len(started) < 2:
        return float("nan")
    count, mean, square = (np.array([p[name] for p in started], dtype=float) for name in ("kept", "mean", "square"))
    return float(np.nanmax(rhat_from_moments(count, mean, square)))


@contextlib.contextmanager
def _stop_on_signal(where: Path) -> Iterator[list[int]]:
    """Ctrl-C or SIGTERM asks the chains to write their checkpoints instead of killing them."""
    got: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield got
        return

    def handler(number: int, frame: Any) -> None:
        del frame
        got.append(number)
        (where / STOP).touch()

    before = {s: signal.signal(s, handler) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield got
    finally:
        for s, old in before.items():
            signal.signal(s, old)


@contextlib.contextmanager
def run_folder(checkpoint: str | os.PathLike[str] | None) -> Iterator[Path]:
    if checkpoint is not None:
        where = Path(checkpoint)
        where.mkdir(parents=True, exist_ok=True)
        yield where
        return
    where = Path(tempfile.mkdtemp(prefix="intarsia-"))
    try:
        yield where
    finally:
        shutil.rmtree(where, ignore_errors=True)  # mapped draws live on until they are closed


def open_folder(where: Path, asked: dict[str, Any], arrays: dict[str, Any], capacity: int) -> int:
    """Start the folder, or check that it holds the same run."""
    header = where / "run.json"
    if header.exists():
        try:
            found = json.loads(header.read_text(encoding="utf-8"))
        except ValueError:
            raise InputError(f"{header} cannot be read; remove the checkpoint folder to start anew.") from None
        if {k: found.get(k) for k in asked} != asked:
            changed = ", ".join(sorted(k for k in asked if found.get(k) != asked[k]))
            raise InputError(
                f"The checkpoint holds another run ({changed} differ). Use another folder, or remove it to start anew."
            )
        old = np.load(where / "C.npy", mmap_mode="r", allow_pickle=False)
        if old.shape[1] >= capacity:
            return int(old.shape[1])
        grown = create(where / "grown", old.shape[0], capacity, *old.shape[2:])
        for k in range(old.shape[0]):
            grown[k, : old.shape[1]] = old[k]
        grown.flush()
        del grown, old
        os.replace(where / "grown" / "C.npy", where / "C.npy")
        (where / "grown").rmdir()
        return capacity
    for name, array in arrays.items():
        np.save(where / f"{name}.npy", array, allow_pickle=False)
    create(where, asked["chains"], capacity, *asked["shape"][1:]).flush()
    part = where / "run.part"
    part.write_text(json.dumps(asked, indent=1), encoding="utf-8")
    os.replace(part, header)
    return capacity
