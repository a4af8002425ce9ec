"""Draws from the posterior given sketches: checks, adaptive stopping, and what a finished run hands back."""

import hashlib
import os
import platform
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import intarsia
from intarsia.errors import InputError
from intarsia.server.results.draws import Draws
from intarsia.server.sampler import backends
from intarsia.server.sampler.gaps import patterns
from intarsia.server.sampler.launch import Launcher, Progress, Way, open_folder, run_folder
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.run import START, left
from intarsia.server.sampler.schedule import plan
from intarsia.server.sampler.sparse_start import sparse_start
from intarsia.server.sampler.state import check
from intarsia.server.sampler.stopping import Until
from intarsia.wire.defaults import CHAINS, DRAWS, THIN, WARMUP

IN_MEMORY_BYTES = 2 * 2**30  # draws of C above this stay on disk
CHECKPOINT_SECONDS = 20.0


def sample(
    X: Any,
    Y: Any,
    model: Model | None = None,
    *,
    draws: int = DRAWS,
    warmup: int = WARMUP,
    chains: int = CHAINS,
    thin: int = THIN,
    seed: int = 0,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    until: Until | None = None,
    mixing: bool = True,
    every: float = CHECKPOINT_SECONDS,
    memory: int = IN_MEMORY_BYTES,
    backend: str = "numpy",
    degrees: int | None = None,
    partly: bool = False,
) -> Draws:
    """Draw from the posterior given sketches (or raw, centred data) X (m×P) and Y (m×Q).

    `degrees` is how many rows the noise is counted over where X and Y are not those rows but a root of their Gram matrix: any
    other rows with the same products. The draws are the same as from the rows themselves.

    Each chain makes `warmup` sweeps, then `draws` × `thin`, of which every `thin`-th is kept; with a target `until` it ends
    before that, at the first look (100, 150, 200, 300, … draws) at which every coefficient meets it. `checkpoint` is a folder:
    an interrupted run with the same arguments goes on from there, bit for bit; so does a longer one. Ctrl-C and SIGTERM write
    a checkpoint first. Draws of more than `memory` bytes stay on disk and are mapped.

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
    asked = {
        "engine": backends.engine(backend), "model": asdict(model), "warmup": warmup, "thin": thin, "chains": chains,
        "seed": int(seed), "mixing": mixing, "backend": backend, "shape": [*X.shape, Y.shape[1]],
    }  # fmt: skip
    if degrees is not None:
        if degrees != int(degrees) or degrees < 2:
            raise InputError(f"degrees is {degrees!r}; expected a whole number of rows, at least 2.")
        asked["degrees"] = int(degrees)
    searches = plan(model, X, np.nan_to_num(Y), mixing=mixing, degrees=degrees).searches
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
    memory: int = IN_MEMORY_BYTES
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
    digest = hashlib.sha256()
    for array in job.arrays.values():
        digest.update(array.tobytes())
    asked = asked | {"digest": digest.hexdigest()}
    with run_folder(checkpoint) as where:
        open_folder(where, asked, job.arrays, job.draws)
        began = time.perf_counter()
        if job.searches and not (where / START).exists():
            # Responses that are missing count as none at all; the chains draw them.
            sparse_start(job.arrays["X"], np.nan_to_num(job.arrays["Y"]), asked.get("degrees")).save(where / START)
        target = Launcher(where, asked, way, job.until).run(job.draws)
        C = np.load(where / "C.npy", mmap_mode="r", allow_pickle=False)[:, :target]
        if C.nbytes <= job.memory:
            C = np.array(C)
        elif checkpoint is None:
            warnings.warn(
                f"The draws ({C.nbytes / 2**30:.1f} GiB) stay in a temporary file that goes with this process; "
                "pass checkpoint= to keep them.",
                stacklevel=3,
            )
        return _collect(where, C, asked, time.perf_counter() - began)


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


def _collect(where: Path, C: Any, asked: dict[str, Any], seconds: float) -> Draws:
    runs, chains, target = left(where), asked["chains"], C.shape[1]
    share, each = len(runs) / chains, chains // len(runs)  # chains that ran together took their share of the time each
    info = {
        **{k: asked[k] for k in ("model", "warmup", "thin", "seed", "mixing", "backend")},
        "device": runs[0].device,
        "seconds": seconds,
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
    return Draws(C, Sigma, tau, kappa, info)
