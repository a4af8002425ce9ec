"""Several chains: in this process when the work is small, in processes of their own when it pays.

Each chain has its own generator, split from the seed, and one BLAS thread, so the draws do not depend on the number of workers.
"""

import contextlib
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

import intarsia
from intarsia.errors import ConvergenceError, InputError
from intarsia.server.results.diagnostics import diagnose, rhat_from_moments
from intarsia.server.results.draws import Draws, create
from intarsia.server.sampler import backends
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.run import STOP, Chain, write_progress
from intarsia.server.sampler.state import check

IN_MEMORY = 2 * 2**30  # draws of C above this many bytes stay on disk
SMALL = 3.0  # seconds of estimated work under which starting processes does not pay


@dataclass(frozen=True)
class Progress:
    """Handed to the progress callback a few times a second."""

    sweeps: list[int]
    total: int
    warmup: int
    seconds: float
    seconds_left: float
    rhat: float  # largest over a fixed sample of entries of C and the noise levels; NaN before there are draws
    finite: bool = True


@dataclass(frozen=True)
class Until:
    """Adaptive stopping: go on in rounds until every coefficient has R̂ ≤ rhat and ESS ≥ ess, or the budget is spent."""

    rhat: float = 1.01
    ess: float = 400.0
    max_draws: int = 10_000
    max_seconds: float = float("inf")


def sample(
    X: Any,
    Y: Any,
    model: Model | None = None,
    *,
    draws: int = 1000,
    warmup: int = 500,
    chains: int = 4,
    thin: int = 10,
    seed: int = 0,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    until: Until | None = None,
    mixing: bool = True,
    every: float = 20.0,
    memory: int = IN_MEMORY,
    backend: str = "numpy",
) -> Draws:
    """Draw from the posterior given sketches (or raw, centred data) X (m×P) and Y (m×Q).

    Each chain makes `warmup` sweeps, then `draws` × `thin`, of which every `thin`-th is kept. `checkpoint` is a folder:
    an interrupted run with the same arguments goes on from there, bit for bit; so does a longer one. Ctrl-C and SIGTERM write a
    checkpoint first. Draws of more than `memory` bytes stay on disk and are mapped.

    `backend="jax"` runs every chain on an accelerator (or wherever JAX finds itself): the same sampler with random numbers of
    its own, so the same posterior and other draws; `workers` has no meaning there.
    """
    model = model or Model()
    backends.get(backend)
    for name, value, least in (("draws", draws, 4), ("warmup", warmup, 0), ("chains", chains, 1), ("thin", thin, 1)):
        if int(value) != value or value < least:
            raise InputError(f"{name} is {value!r}; expected a whole number of at least {least}.")
    X, Y = np.ascontiguousarray(X, dtype="<f8"), np.ascontiguousarray(Y, dtype="<f8")
    check(X, Y)
    model.rank_of(Y.shape[1])
    if model.noise == "jeffreys" and X.shape[1] >= X.shape[0]:
        warnings.warn(
            f"The Jeffreys prior with P = {X.shape[1]} ≥ m = {X.shape[0]} gives an improper posterior: "
            "noise levels can drift to zero. Use noise='correlated'.",
            stacklevel=2,
        )
    capacity = max(draws, until.max_draws) if until else draws
    asked = {
        "model": asdict(model), "warmup": warmup, "thin": thin, "chains": chains, "seed": int(seed), "mixing": mixing,
        "backend": backend,
        "shape": [*X.shape, Y.shape[1]], "digest": hashlib.sha256(X.tobytes() + Y.tobytes()).hexdigest(),
    }  # fmt: skip
    with _folder(checkpoint) as where:
        capacity = _open(where, asked, X, Y, capacity)
        began = time.perf_counter()
        runner = _Runner(where, chains, warmup, thin, X, Y, model, workers, progress, every, backend)
        target = draws
        runner.run(target)
        while until is not None and not _enough(where, chains, target, until):
            if target >= until.max_draws or time.perf_counter() - began > until.max_seconds:
                break
            target = min(2 * target, until.max_draws)
            runner.run(target)
        return _collect(runner, where, target, asked, checkpoint is None, memory, time.perf_counter() - began)


@contextlib.contextmanager
def _folder(checkpoint: str | os.PathLike[str] | None) -> Iterator[Path]:
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


def _open(where: Path, asked: dict[str, Any], X: Any, Y: Any, capacity: int) -> int:
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
    np.save(where / "X.npy", X, allow_pickle=False)
    np.save(where / "Y.npy", Y, allow_pickle=False)
    create(where, asked["chains"], capacity, X.shape[1], Y.shape[1]).flush()
    part = where / "run.part"
    part.write_text(json.dumps(asked, indent=1), encoding="utf-8")
    os.replace(part, header)
    return capacity


class _Runner:
    """Runs every chain to a target number of kept draws."""

    def __init__(
        self,
        where: Path,
        chains: int,
        warmup: int,
        thin: int,
        X: Any,
        Y: Any,
        model: Model,
        workers: int | None,
        progress: Callable[[Progress], None] | None,
        every: float,
        backend: str,
    ) -> None:
        self.backend, self.batch = backend, cast(Any, None)
        self.where, self.chains, self.warmup, self.thin = where, chains, warmup, thin
        self.progress, self.every, self.workers = progress, every, workers
        rows, (P, Q) = min(X.shape), (X.shape[1], Y.shape[1])
        size = rows * Q if model.local == "element" else rows
        work = rows**2 * P * (Q if model.local == "element" else 1) + size**3
        self.sweep_seconds = 1e-3 + work / 3e10

    def run(self, draws: int) -> None:
        (self.where / STOP).unlink(missing_ok=True)
        total = self.warmup + draws * self.thin
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = self.workers if self.workers is not None else min(self.chains, cores)
        if workers < 1:
            raise InputError(f"workers is {workers}; expected at least 1.")
        small = self.workers is None and self.chains * total * self.sweep_seconds < SMALL
        with _stop_on_signal(self.where) as stopped:
            if self.backend == "jax":
                self._batch(draws, total)
            elif small or workers == 1:
                self._here(draws, total)
            else:
                self._processes(draws, total, min(workers, self.chains))
            if stopped:
                raise KeyboardInterrupt
        if self.progress is not None:
            self.progress(self._progress(total))

    def _here(self, draws: int, total: int) -> None:
        def report(chain: Chain, all_sweeps: int) -> None:
            write_progress(chain, all_sweeps)
            if self.progress is not None:
                self.progress(self._progress(total))

        for k in range(self.chains):
            if not Chain(self.where, k).run(draws, every=self.every, report=report):
                return

    def _batch(self, draws: int, total: int) -> None:
        from intarsia.server.sampler import batch

        def report(run: batch.Batch, all_sweeps: int) -> None:
            batch.write_progress(run, all_sweeps)
            if self.progress is not None:
                self.progress(self._progress(total))

        self.batch = self.batch or batch.Batch(self.where)  # compiled once, however often the run goes on
        self.batch.run(draws, every=self.every, report=report)

    def parts(self) -> tuple[list[Any], str]:
        """What each chain left, and the device it ran on."""
        if self.batch is not None:
            return self.batch.parts(), self.batch.device
        return [Chain(self.where, k) for k in range(self.chains)], "cpu"

    def _processes(self, draws: int, total: int, workers: int) -> None:
        environment = os.environ | dict.fromkeys(
            ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
        )
        waiting, running = list(range(self.chains)), dict[int, subprocess.Popen[bytes]]()
        failed: list[int] = []
        try:
            while waiting or running:
                while waiting and len(running) < workers and not failed:
                    k = waiting.pop(0)
                    running[k] = subprocess.Popen(
                        [
                            sys.executable,
                            "-m",
                            "intarsia.server.sampler.run",
                            str(self.where),
                            str(k),
                            str(draws),
                            str(self.every),
                        ],
                        env=environment,
                        stdin=subprocess.DEVNULL,
                    )
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
                if self.progress is not None:
                    self.progress(self._progress(total))
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
        left = sum(total - s for s in sweeps) * (float(np.median(rate)) if rate else self.sweep_seconds)
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


def _enough(where: Path, chains: int, target: int, until: Until) -> bool:
    C = np.load(where / "C.npy", mmap_mode="r", allow_pickle=False)[:, :target]
    diagnosis = diagnose(C)
    if diagnosis.not_finite.any():
        return False
    return bool(np.nanmax(diagnosis.rhat) <= until.rhat and np.nanmin(diagnosis.ess_bulk) >= until.ess)


def _collect(
    runner: _Runner, where: Path, target: int, asked: dict[str, Any], temporary: bool, memory: int, seconds: float
) -> Draws:
    parts, device = runner.parts()
    C = np.load(where / "C.npy", mmap_mode="r", allow_pickle=False)[:, :target]
    if C.nbytes <= memory:
        C = np.array(C)
    elif temporary:
        warnings.warn(
            f"The draws ({C.nbytes / 2**30:.1f} GiB) stay in a temporary file that goes with this process; "
            "pass checkpoint= to keep them.",
            stacklevel=3,
        )
    sweeps = asked["warmup"] + target * asked["thin"]
    info = {
        **{k: asked[k] for k in ("model", "warmup", "thin", "seed", "mixing", "backend")},
        "device": device,
        "seconds": seconds,
        "chain_seconds": [p.seconds for p in parts],
        "ms_per_sweep": [1e3 * p.seconds / max(1, p.sweeps) for p in parts],
        "sweeps": sweeps,
        "m": asked["shape"][0],
        "versions": {"intarsia": intarsia.__version__, "numpy": np.__version__, "python": platform.python_version()},
    }
    return Draws(
        C,
        np.stack([p.Sigma[:target] for p in parts]),
        np.stack([p.tau[:target] for p in parts]),
        np.mean([p.kappa for p in parts], axis=0),
        info,
    )
