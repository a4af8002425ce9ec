"""Running the chains of a run: in this process when the work is small, in processes of their own when it pays.

Each chain has its own generator, split from the seed, and one BLAS thread, so the draws do not depend on the number of workers.
"""

import contextlib
import json
import math
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
from intarsia.server.assess.diagnostics import rhat_from_moments
from intarsia.server.sampler.keeping import Keeping
from intarsia.server.sampler.mapped import create
from intarsia.server.sampler.run import NO_SPACE, STOP, Asked, Left, left, opened, running_after
from intarsia.server.sampler.running import Running, together
from intarsia.server.sampler.settings import Progress, Settings
from intarsia.server.sampler.stopping import Look, Standing, looks, standing

EXPECTED = 700  # draws per chain after which most runs have met the default target, as said before the first look
SETTLED = 10  # sweeps after which their time says what the others will take; loops may be compiled in the first
SMALL_SECONDS = 3.0  # of estimated work under which starting processes does not pay
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@dataclass(frozen=True)
class Place:
    """A run's folder, whether it goes with this process, and the arrays the run works on."""

    folder: Path
    passing: bool
    arrays: dict[str, Any]


class Launcher:
    """Runs every chain of a folder to a budget of kept draws, or to the first look at which a target is met."""

    def __init__(self, place: Place, asked: dict[str, Any], settings: Settings, sweep_seconds: float) -> None:
        self.place, self.where, self.settings, self.until = place, place.folder, settings, settings.until
        self.sweep_seconds = sweep_seconds  # as expected before any sweep is made
        self.standing: Standing | None = None
        self._left: list[Left] | None = None  # by chains of this process
        self._beside = 1  # chains that run at the same time
        self.chains, self.warmup, self.thin = asked["chains"], asked["warmup"], asked["thin"]
        self.together = asked["engine"] == "device"  # one stepper makes all chains

    def run(self, draws: int) -> int:
        """Go on to `draws` draws of each chain, or fewer where the target is met; returns how many."""
        (self.where / STOP).unlink(missing_ok=True)
        total = self.warmup + draws * self.thin
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = self.settings.workers if self.settings.workers is not None else min(self.chains, cores)
        if workers < 1:
            raise InputError(f"workers is {workers}; expected at least 1.")
        small = self.settings.workers is None and self.chains * total * self.sweep_seconds < SMALL_SECONDS
        here = self.together or small or workers == 1
        self._beside = self.chains if self.together else 1 if here else min(workers, self.chains)
        self._tell(total)  # the budget, before anything is spent of it
        with _stop_on_signal(self.where) as stopped:
            if here:
                made = self._here(looks(draws, self.until), total)
            else:
                made = self._processes(looks(draws, self.until), total, self._beside)
            if stopped:
                raise KeyboardInterrupt
        (self.where / STOP).unlink(missing_ok=True)
        self._tell(self.warmup + made * self.thin, final=True)
        return made

    def _enough(self, draws: int) -> bool:
        """Is the target met by the first draws?"""
        look = None if self.until is None else self._look(draws)
        if look is None or self.until is None:
            return False
        self.standing = standing(look, self.until)
        met = self.standing.meets(self.until)
        if not met:
            for file in self.where.glob(f"running-*-{draws}.npz"):
                file.unlink()
        return met

    def left(self) -> list[Left]:
        """What every stepper has left, in the order of its chains."""
        return self._left if self._left is not None else left(self.where)

    def running(self, draws: int) -> Running | None:
        """What is known of every coefficient after so many draws, where that is kept."""
        found = self.left()
        exact = [each.running for each in found if each.running is not None and each.Sigma.shape[1] == draws]
        return together(exact) if len(exact) == len(found) else running_after(self.where, self.chains, draws)

    def _look(self, draws: int) -> Look | None:
        """What the first draws say; None where a run that keeps only some of them has gone past them unlooked at."""
        known = self.running(draws)
        if known is None and Keeping.load(self.where) is not None:
            return None
        C = np.load(self.where / "C.npy", mmap_mode="r", allow_pickle=False)[:, :draws]
        return Look(draws, C, np.concatenate([each.Sigma[:, :draws] for each in self.left()]), known)

    def _tell(self, total: int, final: bool = False) -> None:
        if self.settings.progress is not None:
            self.settings.progress(self._progress(total, final))

    def _here(self, at: list[int], total: int) -> int:
        asked = Asked(self.where, self.place.arrays)
        runs = [opened(asked, k, self.place.passing) for k in range(1 if self.together else self.chains)]
        every = self.settings.checkpoint_seconds
        for draws in at:
            self._left = None
            # What a look needs is here. With many features a checkpoint takes longer than the sweeps between two looks.
            if not all(run.go(draws, every=every, report=lambda: self._tell(total), then_save=False) for run in runs):
                break
            self._left = [run.left() for run in runs]
            if draws == at[-1] or self._enough(draws):
                break
        for run in runs:
            run.save()
        return draws

    def _processes(self, at: list[int], total: int, workers: int) -> int:
        """Each process makes some of the chains, all of them to one look before any to the next, and does not wait for it: what
        chains make beyond the look at which the run stops is not used.
        """
        for name, array in self.place.arrays.items():
            if not (self.where / f"{name}.npy").exists():
                np.save(self.where / f"{name}.npy", array, allow_pickle=False)
        environment = os.environ | dict.fromkeys(THREADS, "1")
        command = [sys.executable, "-m", "intarsia.server.sampler.run", str(self.where)]
        running, failed = dict[int, subprocess.Popen[bytes]](), list[tuple[int, int]]()
        looked, met = 0, 0
        try:
            for w in range(workers):
                chains = ",".join(str(k) for k in range(w, self.chains, workers))
                own = [*command, chains, ",".join(map(str, at)), str(self.settings.checkpoint_seconds)]
                running[w] = subprocess.Popen(own, env=environment, stdin=subprocess.DEVNULL)
            while running:
                time.sleep(0.05)
                for w, process in list(running.items()):
                    code = process.poll()
                    if code is None:
                        continue
                    del running[w]
                    if code not in (0, 75):
                        failed.append((w, code))
                        (self.where / STOP).touch()
                self._tell(total)
                if looked < len(at) - 1 and not (self.where / STOP).exists() and self._ready(at[looked]):
                    if self._enough(at[looked]):
                        met = at[looked]
                        (self.where / STOP).touch()
                    looked += 1
        finally:
            if running:  # an error of our own: let the chains write their checkpoints
                (self.where / STOP).touch()
                for process in running.values():
                    process.wait()
        if failed:
            w, code = failed[0]
            raise ConvergenceError(f"Chain {w + 1} stopped: {why_it_ended(self.where, w, code)}")
        return met or self._first_met(at[looked:])

    def _first_met(self, at: list[int]) -> int:
        """The look at which the run stops; the chains may all have come to their end before the last looks were taken."""
        made = min((each.Sigma.shape[1] for each in self.left()), default=0)
        return next((draws for draws in at[:-1] if made < draws or self._enough(draws)), at[-1])

    def _ready(self, draws: int) -> bool:
        """Has every chain written so many draws, and said so?"""
        return all((self.where / f"shrinkage-{k}-{draws}.npy").exists() for k in range(self.chains))

    def _progress(self, total: int, final: bool) -> Progress:
        seen = self._seen()
        sweeps = [int(p["sweeps"]) for p in seen] + [0] * (self.chains - len(seen))
        seconds = max((float(p["seconds"]) for p in seen), default=0.0)
        rate = [p["seconds"] / p["sweeps"] for p in seen if p["sweeps"] >= SETTLED]
        whole = likely = total
        if self.until is not None and not final:
            if self.standing is None:
                likely = min(total, self.warmup + EXPECTED * self.thin)
            else:  # no more than the target asks for, as far as one can tell
                enough = math.ceil(self.standing.draws * self.standing.factor(self.until))
                total = likely = max(min(total, self.warmup + enough * self.thin), *sweeps)
        per_sweep = (float(np.median(rate)) if rate else self.sweep_seconds) / self._beside
        left, at_most = (per_sweep * sum(max(0, end - s) for s in sweeps) for end in (likely, whole))
        sweeps = [min(s, total) for s in sweeps]
        return Progress(
            sweeps, total, self.warmup, seconds, left, _rhat(seen), standing=self.standing, until=self.until, at_most=at_most
        )

    def _seen(self) -> list[dict[str, Any]]:
        """What the chains last told."""
        seen = []
        for k in range(self.chains):
            with contextlib.suppress(OSError, ValueError):
                seen.append(json.loads((self.where / f"progress-{k}.json").read_text(encoding="utf-8")))
        return seen


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


def open_folder(where: Path, asked: dict[str, Any]) -> None:
    """Start the folder, or check that it holds the same run."""
    header = where / "run.json"
    if not header.exists():
        part = where / "run.part"
        part.write_text(json.dumps(asked, indent=1), encoding="utf-8")
        os.replace(part, header)
        return
    try:
        found = json.loads(header.read_text(encoding="utf-8"))
    except ValueError:
        raise InputError(f"{header} cannot be read; remove the checkpoint folder to start anew.") from None
    if {k: found.get(k) for k in asked} != asked:
        changed = ", ".join(sorted(k for k in asked if found.get(k) != asked[k]))
        raise InputError(f"The checkpoint holds another run ({changed} differ). Use another folder, or remove it to start anew.")


def why_it_ended(where: Path, w: int, code: int) -> str:
    """Why the process of chain w ended, by what it wrote and its exit code."""
    text = where / f"error-{w}.txt"
    told = text.read_text(encoding="utf-8") if text.exists() else ""
    if told:
        return told
    # Draws are written through a map of their file: on a full disk that ends a process by SIGBUS.
    if code in (NO_SPACE, -signal.SIGBUS):
        return "the disk of the run's folder is full. Free some space and give the same command again: what was finished is kept"
    return "its process died; the same call continues it"


def check_space(where: Path, shape: tuple[int, ...], size: int) -> None:
    """Refuse draws that the disk cannot take, before the first is made."""
    asked, free = math.prod(shape) * size, shutil.disk_usage(where).free
    if asked > free:
        raise InputError(
            f"The draws asked for take up to {asked / 1e6:,.0f} MB, the disk of the run's folder has {free / 1e6:,.0f} MB free. "
            "Free some space, or ask for fewer draws."
        )


def make_room(where: Path, shape: tuple[int, int, int, int], keep: Callable[[], Keeping | None]) -> None:
    """Files for the draws of C (chain, draw, P, Q), or longer ones where a longer run is asked for; `keep` says what is kept."""
    chains, draws, P, Q = shape
    file = where / "C.npy"
    if not file.exists():
        keeping = keep()
        if keeping is not None:
            keeping.save(where)
            whole = chains, len(keeping.whole), P, Q
            check_space(where, whole, 4)
            np.lib.format.open_memmap(where / "whole.npy", mode="w+", dtype="<f4", shape=whole).flush()
        kept = P if keeping is None else len(keeping.features)
        check_space(where, (chains, draws, kept, Q), 8)
        create(where, chains, draws, kept, Q).flush()
        return
    if np.load(file, mmap_mode="r", allow_pickle=False).shape[1] >= draws:
        return
    keeping = Keeping.load(where)
    if keeping is not None:
        keeping = keeping.longer(draws)
        _grow(where / "whole.npy", len(keeping.whole))
        keeping.save(where)
    _grow(file, draws)


def _grow(file: Path, length: int) -> None:
    """The same array with a longer second axis."""
    old = np.load(file, mmap_mode="r", allow_pickle=False)
    if old.shape[1] >= length:
        return
    part = file.with_suffix(".part")
    new = np.lib.format.open_memmap(part, mode="w+", dtype=old.dtype, shape=(old.shape[0], length, *old.shape[2:]))
    for k in range(old.shape[0]):
        new[k, : old.shape[1]] = old[k]
    new.flush()
    del new, old
    os.replace(part, file)
