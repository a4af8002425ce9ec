"""Draws from the posterior given sketches: chains run by threads, to a budget or to a target, with checkpoints.

A checkpoint is a folder with one file per chain, `chain-k.npz`, written whole or not at all: everything a continuation needs, the
generator's state included, and a digest of what was asked. A continued chain gives the same bits as one that was never stopped.
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
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

import intarsia
from intarsia.errors import InputError
from intarsia.server.results.diagnostics import rhat_from_moments
from intarsia.server.results.draws import Draws
from intarsia.server.sampler.horseshoe import errors_in_variables as noisy
from intarsia.server.sampler.horseshoe.chain import Chain, GibbsChain
from intarsia.server.sampler.horseshoe.errors_in_variables import LatentChain, PrivacyNoise
from intarsia.server.sampler.horseshoe.missing import Missing
from intarsia.server.sampler.horseshoe.model import Model
from intarsia.server.sampler.horseshoe.settings import Progress, Settings, Standing, check_backend, looks, standing
from intarsia.server.sampler.horseshoe.sweep import check, prepare

Array = NDArray[Any]

SLICE = 0.1  # seconds of sweeps after which a chain looks whether it is to stop
REPORT = 0.5  # seconds between two reports
SAVING = 30  # times as long as writing a checkpoint took passes before the next one
WATCHED = 200  # entries of C that feed the live R̂
EXPECTED = 700  # draws per chain after which most runs have met the default target, as said before the first look


def sample(
    X: Any,
    Y: Any,
    model: Model | None = None,
    settings: Settings | None = None,
    *,
    degrees: int | None = None,
    partly: bool = False,
) -> Draws:
    """Draw from the posterior given sketches (or raw, centred data) X (m×P) and Y (m×Q).

    `degrees` is how many rows the noise is counted over where X and Y are not those rows but a root of their Gram matrix: any
    other rows with the same products. The draws are the same as from the rows themselves.

    `partly`: some rows lack some responses (NaN in Y); they are drawn in every sweep given the rest (`missing`).
    """
    model, settings = model or Model(), settings or Settings()
    X, Y = np.ascontiguousarray(X, dtype="<f8"), np.ascontiguousarray(Y, dtype="<f8")
    check(X, np.where(np.isnan(Y), 0.0, Y) if partly else Y)
    missing = Missing(X, Y) if partly and np.isnan(Y).any() else None
    if missing is not None and model.power != 1:
        raise InputError(f"Rows that lack responses are fitted with the likelihood's power 1; {model.power} came.")
    if degrees is not None and (degrees != int(degrees) or degrees < 2):
        raise InputError(f"degrees is {degrees!r}; expected a whole number of rows, at least 2.")
    problem = prepare(model, X, Y if missing is None else missing.level, mixing=settings.mixing, degrees=degrees)
    if model.noise == "jeffreys" and X.shape[1] >= X.shape[0]:
        warnings.warn(
            f"The Jeffreys prior with P = {X.shape[1]} ≥ m = {X.shape[0]} gives an improper posterior: "
            "noise levels can drift to zero. Use noise='correlated'.",
            stacklevel=2,
        )
    filled = settings.filled(problem.costly, 8 * X.shape[1] * Y.shape[1])
    asked = _asked("horseshoe", model, filled, (X, Y), degrees)
    chains = [GibbsChain(problem, filled, k, missing) for k in range(filled.chains)]
    return _draws(chains, Runner(chains, filled, asked).run(), asked, problem.rows)


def sample_noisy(X: Any, Y: Any, noise: PrivacyNoise, model: Model | None = None, settings: Settings | None = None) -> Draws:
    """Draws of C, Sigma and tau from the sketches of a differentially private study (`errors_in_variables`).

    Sigma is that of the responses without the privacy noise.
    """
    model, settings = model or Model(), settings or Settings()
    check_backend(settings.backend)
    s = noisy.setting(X, Y, np.square(np.asarray(noise.features, float)) / noise.n, model)
    seen = noisy.check_signal(s.Z, s.d, noise.n)
    filled = settings.filled(per_draw=8 * s.Z.shape[1] * s.Y.shape[1])
    asked = _asked("noisy", model, filled, (s.Z, s.Y, s.d), None)
    chains = [LatentChain(s, filled, k) for k in range(filled.chains)]
    found = _draws(chains, Runner(chains, filled, asked).run(), asked, float(len(s.Z)))
    dy = np.zeros(s.Y.shape[1]) if noise.responses is None else np.square(np.asarray(noise.responses, float)) / noise.n
    found.Sigma, found.shrinkage = noisy.without(found.Sigma, dy), None
    found.info |= {"errors_in_variables": True, "noise_ratio": seen.ratio, "noise_variance": seen.noise}
    return found


def _asked(kind: str, model: Model, settings: Settings, arrays: Sequence[Array], degrees: int | None) -> dict[str, Any]:
    """What decides which draws are made; a folder holds one run of it."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    numbers = {name: int(getattr(settings, name)) for name in ("warmup", "thin", "chains", "seed")}
    shape = [list(array.shape) for array in arrays]
    return {
        "kind": kind, "model": asdict(model), **numbers, "mixing": settings.mixing, "degrees": degrees, "shape": shape,
        "digest": digest.hexdigest(),
    }  # fmt: skip


def _draws(chains: Sequence[Chain], run: "Runner", asked: dict[str, Any], rows: float) -> Draws:
    """What a finished run hands back."""
    made, sweeps = run.made, asked["warmup"] + run.made * asked["thin"]
    info = {
        **{name: asked[name] for name in ("model", "warmup", "thin", "seed", "mixing")},
        "backend": "numpy",
        "device": "cpu",
        "seconds": max(run.wall, *run.seconds),  # of a run that was gone on with, what its chains took before counts too
        "chain_seconds": run.seconds,
        "ms_per_sweep": [1e3 * seconds / max(1, chain.sweeps) for seconds, chain in zip(run.seconds, chains, strict=True)],
        "sweeps": sweeps,
        "m": int(rows),
        "expected_features": asked["model"]["expected_features"],
        "versions": {"intarsia": intarsia.__version__, "numpy": np.__version__, "python": platform.python_version()},
    }
    C, Sigma, tau = (np.stack([getattr(chain, name)[:made] for chain in chains]) for name in ("C", "Sigma", "tau"))
    kappa = np.mean([chain.kappa[:made].mean(axis=0) for chain in chains], axis=0)
    return Draws(C, Sigma, tau, kappa, info)


class Runner:
    """Runs chains to the end of their budget, or to the first look at which the target is met."""

    def __init__(self, chains: Sequence[Chain], settings: Settings, asked: dict[str, Any]) -> None:
        self.chains, self.settings, self.asked = chains, settings, json.dumps(asked, sort_keys=True)
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
            self._load()
        total = self.warmup + budget * self.thin
        self._tell(total)
        with threadpool_limits(1), _stopping(self._stop) as stopped, ThreadPoolExecutor(self.workers) as pool:
            for draws in looks(budget, until):
                self._advance(pool, draws, total)
                if self._stop.is_set():
                    break
                if until is not None and draws < budget:
                    C, Sigma = (np.stack([getattr(chain, name)[:draws] for chain in self.chains]) for name in ("C", "Sigma"))
                    self.standing = standing(C, Sigma, until)
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
        """Write the chain's file whole or not at all."""
        chain = self.chains[k]
        if self.folder is None or chain.sweeps == self._at[k]:
            return
        began, file = time.perf_counter(), self.folder / f"chain-{k}.npz"
        part = file.with_suffix(".part")
        try:
            with open(part, "wb") as out:
                np.savez(out, asked=np.array(self.asked), seconds=np.array(self.seconds[k]), **chain.arrays())
                out.flush()
                os.fsync(out.fileno())
            os.replace(part, file)
        except OSError as error:
            part.unlink(missing_ok=True)
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
            with np.load(file, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            found, asked = json.loads(str(arrays["asked"])), json.loads(self.asked)
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
        sweeps, until = [chain.sweeps for chain in self.chains], self.settings.until
        seen = [_watched(chain) for chain in self.chains]
        whole = likely = total
        if until is not None and not final:
            if self.standing is None:
                likely = min(total, self.warmup + EXPECTED * self.thin)
            else:  # no more than the target asks for, as far as one can tell
                enough = math.ceil(self.standing.draws * self.standing.factor(until))
                total = likely = max(min(total, self.warmup + enough * self.thin), *sweeps)
        if self.folder is not None:
            for k, (count, mean, square) in enumerate(seen):
                told = {
                    "chain": k, "sweeps": sweeps[k], "total": total, "warmup": self.warmup, "kept": count,
                    "seconds": self.seconds[k], "mean": mean.tolist(), "square": square.tolist(),
                }  # fmt: skip
                part = self.folder / f"progress-{k}.part"
                part.write_text(json.dumps(told), encoding="utf-8")
                os.replace(part, self.folder / f"progress-{k}.json")
        if self.settings.progress is None:
            return
        swept = [seconds / n for seconds, n in zip(self.seconds, sweeps, strict=True) if n >= 10]
        per_sweep = float(np.median(swept)) / self.workers if swept else math.nan
        left, at_most = (per_sweep * sum(max(0, end - n) for n in sweeps) for end in (likely, whole))
        self.settings.progress(Progress(
            [min(n, total) for n in sweeps], total, self.warmup, max(self.seconds), left, _rhat(seen),
            standing=self.standing, until=until, at_most=at_most,
        ))  # fmt: skip


def _watched(chain: Chain) -> tuple[int, Array, Array]:
    """Of some entries of C and the log noise levels: how many draws, their mean and sum of squared deviations."""
    kept = chain.kept
    flat = chain.C.reshape(len(chain.C), -1)[:kept]
    some = flat[:, np.unique(np.linspace(0, chain.C[0].size - 1, min(WATCHED, chain.C[0].size)).astype(int))]
    with np.errstate(all="ignore"):
        x = np.concatenate([some, np.log(np.diagonal(chain.Sigma[:kept], axis1=1, axis2=2))], axis=1)
    mean = x.mean(axis=0) if kept else np.zeros(x.shape[1])
    return kept, mean, np.square(x - mean).sum(axis=0)


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
