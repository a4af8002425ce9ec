"""Draws from the posterior given sketches: checks, adaptive stopping, and what a finished run hands back."""

import hashlib
import os
import platform
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import intarsia
from intarsia.errors import InputError
from intarsia.server.results.draws import Draws
from intarsia.server.results.summaries import Summaries
from intarsia.server.sampler import backends
from intarsia.server.sampler.gaps import patterns
from intarsia.server.sampler.keeping import Keeping, Size, choose
from intarsia.server.sampler.launch import Launcher, Place, Progress, Way, make_room, open_folder, run_folder
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.run import START
from intarsia.server.sampler.running import convergence, moments
from intarsia.server.sampler.schedule import plan
from intarsia.server.sampler.sparse_start import SparseStart, sparse_start
from intarsia.server.sampler.state import check
from intarsia.server.sampler.stopping import Until
from intarsia.wire.defaults import CHAINS, DRAWS, MANY_THIN, MANY_WARMUP, MEMORY, THIN, WARMUP

CHECKPOINT_SECONDS = 20.0


def sample(
    X: Any,
    Y: Any,
    model: Model | None = None,
    *,
    draws: int = DRAWS,
    warmup: int | None = None,
    chains: int = CHAINS,
    thin: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    until: Until | None = None,
    mixing: bool = True,
    every: float = CHECKPOINT_SECONDS,
    memory: int = MEMORY,
    backend: str = "numpy",
    degrees: int | None = None,
    partly: bool = False,
) -> Draws:
    """Draw from the posterior given sketches (or raw, centred data) X (m×P) and Y (m×Q).

    `degrees` is how many rows the noise is counted over where X and Y are not those rows but a root of their Gram matrix: any
    other rows with the same products. The draws are the same as from the rows themselves.

    Each chain makes `warmup` sweeps, then `draws` × `thin`, of which every `thin`-th is kept (500 and 10 by default; with many
    features, whose sweeps cost more and mix faster, 120 and 1, on a device 240 and 2); with a target `until` it ends
    before that, at the first look (100, 150, 200, 300, … draws) at which every coefficient meets it. `checkpoint` is a folder:
    an interrupted run with the same arguments goes on from there, bit for bit; so does a longer one. Ctrl-C and SIGTERM write
    a checkpoint first.

    Where all draws of C would take more than `memory` bytes, those of up to 2,200 features are kept and some whole draws in
    single precision (both together about twice `memory` bytes at most), and moments and diagnostics of every coefficient
    (`Draws.summaries`): the memory then grows with P·Q and no longer with the draws.

    `backend="jax"` runs every chain on an accelerator (or wherever JAX finds itself): the same sampler with random numbers of
    its own, so the same posterior and other draws; `workers` has no meaning there.

    `partly`: some rows lack some responses (NaN in Y); they are drawn in every sweep given the rest (`gaps`).
    """
    model = model or Model()
    backends.get(backend)
    X, Y = np.ascontiguousarray(X, dtype="<f8"), np.ascontiguousarray(Y, dtype="<f8")
    if partly and np.isnan(Y).any():
        _check_gaps(Y, model, backend)
    check(X, np.where(np.isnan(Y), 0.0, Y) if partly else Y)
    model.rank_of(Y.shape[1])
    if model.noise == "jeffreys" and X.shape[1] >= X.shape[0]:
        warnings.warn(
            f"The Jeffreys prior with P = {X.shape[1]} ≥ m = {X.shape[0]} gives an improper posterior: "
            "noise levels can drift to zero. Use noise='correlated'.",
            stacklevel=2,
        )
    made = plan(model, X, np.nan_to_num(Y), mixing=mixing, degrees=degrees)
    searches, every = made.searches, replace(made, on_device=backends.engine(backend) != "cpu").every
    warmup = (MANY_WARMUP * every if searches else WARMUP) if warmup is None else warmup
    thin = (int(MANY_THIN * every) if searches else THIN) if thin is None else thin
    asked = {
        "engine": backends.engine(backend), "model": asdict(model), "warmup": warmup, "thin": thin, "chains": chains,
        "seed": int(seed), "mixing": mixing, "backend": backend, "shape": [*X.shape, Y.shape[1]],
    }  # fmt: skip
    if degrees is not None:
        if degrees != int(degrees) or degrees < 2:
            raise InputError(f"degrees is {degrees!r}; expected a whole number of rows, at least 2.")
        asked["degrees"] = int(degrees)
    way = Way(workers, every, progress, _sweep_seconds(X, Y, model))
    job = Job(asked, {"X": X, "Y": Y}, draws, until, memory, searches)
    return carry_out(job, way, checkpoint)


@dataclass(frozen=True)
class Job:
    """What is asked of a run, the arrays it works on, how many draws, and how many bytes of them may be in memory."""

    asked: dict[str, Any]
    arrays: dict[str, Any]
    draws: int
    until: Until | None = None
    memory: int = MEMORY
    searches: bool = False  # do chains start from a sparse solution?


def carry_out(job: Job, way: Way, checkpoint: str | os.PathLike[str] | None) -> Draws:
    """Run every chain, to the budget or to the target, and collect."""
    asked = job.asked
    for name, value, least in (
        ("draws", job.draws, 4),
        *((n, asked[n], m) for n, m in (("warmup", 0), ("chains", 1), ("thin", 1))),
    ):
        if int(value) != value or value < least:
            raise InputError(f"{name} is {value!r}; expected a whole number of at least {least}.")
    if checkpoint is not None:
        digest = hashlib.sha256()
        for array in job.arrays.values():
            digest.update(array)
        asked = asked | {"digest": digest.hexdigest()}
    size = Size(asked["chains"], job.draws, *asked["shape"][1:])
    with run_folder(checkpoint) as where:
        open_folder(where, asked)
        began = time.perf_counter()
        if job.searches and not (where / START).exists():
            # Responses that are missing count as none at all; the chains draw them.
            sparse_start(job.arrays["X"], np.nan_to_num(job.arrays["Y"]), asked.get("degrees")).save(where / START)
        make_room(where, (size.chains, size.draws, size.P, size.Q), lambda: _keeping(where, job, size))
        launcher = Launcher(Place(where, checkpoint is None, job.arrays), asked, way, job.until)
        return _collect(launcher, launcher.run(job.draws), asked, began)


def _keeping(where: Path, job: Job, size: Size) -> Keeping | None:
    """What is kept of a run's draws of C; None: all of it."""
    if size.bytes <= job.memory:
        return None
    found = SparseStart.load(where / START) if (where / START).exists() else None
    return choose(job.arrays["X"], job.arrays["Y"], found, size, job.memory)


def _check_gaps(Y: Any, model: Model, backend: str) -> None:
    patterns(Y)
    if model.power != 1:
        raise InputError(f"Rows that lack responses are fitted with the likelihood's power 1; {model.power} came.")
    if backends.engine(backend) != "cpu":
        raise InputError("Rows that lack responses are fitted on the CPU. Leave the backend at numpy.")


def _sweep_seconds(X: Any, Y: Any, model: Model) -> float:
    """A guess, before any sweep is made."""
    rows, P, Q = min(X.shape), X.shape[1], Y.shape[1]
    size = rows * Q if model.local == "element" else rows
    return 1e-3 + (rows**2 * P * (Q if model.local == "element" else 1) + size**3) / 3e10


def _collect(launcher: Launcher, target: int, asked: dict[str, Any], began: float) -> Draws:
    runs, chains, where = launcher.left(), asked["chains"], launcher.where
    share, each = len(runs) / chains, chains // len(runs)  # chains that ran together took their share of the time each
    info = {
        **{k: asked[k] for k in ("model", "warmup", "thin", "seed", "mixing", "backend")},
        "device": runs[0].device,
        "seconds": time.perf_counter() - began,
        "chain_seconds": [run.seconds * share for run in runs for _ in range(each)],
        "ms_per_sweep": [1e3 * run.seconds * share / max(1, run.sweeps) for run in runs for _ in range(each)],
        "sweeps": asked["warmup"] + target * asked["thin"],
        "m": asked.get("degrees", asked["shape"][0]),
        "versions": {"intarsia": intarsia.__version__, "numpy": np.__version__, "python": platform.python_version()},
    }
    Sigma, tau = (np.concatenate([getattr(run, name)[:, :target] for run in runs]) for name in ("Sigma", "tau"))
    files = [where / f"shrinkage-{k}-{target}.npy" for k in range(chains)]
    if all(file.exists() for file in files):
        kappa = np.mean([np.load(file, allow_pickle=False) for file in files], axis=0)
    else:  # a longer run stands in the folder: over all its draws
        kappa = np.concatenate([run.kappa for run in runs]).mean(axis=0)
    C = np.array(np.load(where / "C.npy", mmap_mode="r", allow_pickle=False)[:, :target])
    return Draws(C, Sigma, tau, kappa, info, _summaries(launcher, target))


def _summaries(launcher: Launcher, target: int) -> Summaries | None:
    """What is known of every coefficient, where the draws of some features alone were kept."""
    keeping = Keeping.load(launcher.where)
    if keeping is None:
        return None
    known = launcher.running(target)
    if known is None:
        made = min(run.Sigma.shape[1] for run in launcher.left())
        raise InputError(
            f"The checkpoint holds {made:,} draws per chain, more than the {target:,} asked for, and a run of this size knows "
            f"most coefficients over all of them only. Ask for {made:,} draws, or use another folder."
        )
    at = keeping.until(target)
    whole = np.array(np.load(launcher.where / "whole.npy", mmap_mode="r", allow_pickle=False)[:, : len(at)])
    mean, sd = moments(known, target)
    # A common shift gives the whole draws the mean of all: what is linear in C then comes out right on average.
    whole += (mean - whole.mean(axis=(0, 1), dtype=np.float64)).astype(whole.dtype)
    found = convergence(known, target)
    total = len(known.mean) * target
    return Summaries(keeping.features, mean, sd, known.positive.sum(axis=0), **found, whole=whole, at=at, total=total)
