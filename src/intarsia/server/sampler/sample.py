"""Draws from the posterior given sketches: checks, adaptive stopping, and what a finished run hands back."""

import hashlib
import platform
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import intarsia
from intarsia.errors import InputError
from intarsia.server.posterior.draws import Draws
from intarsia.server.sampler import backends
from intarsia.server.sampler.chain import generator
from intarsia.server.sampler.gaps import patterns
from intarsia.server.sampler.keeping import Size
from intarsia.server.sampler.launch import Launcher, Place, make_room, open_folder, run_folder
from intarsia.server.sampler.look_alikes import look_alikes
from intarsia.server.sampler.mapped import first_draws
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.run import START
from intarsia.server.sampler.schedule import Plan, expected_features, plan, starts_sparse
from intarsia.server.sampler.settings import Length, Settings
from intarsia.server.sampler.sparse_start import SparseStart, disperse, sparse_start
from intarsia.server.sampler.state import check


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

    `partly`: some rows lack some responses (NaN in Y); they are drawn in every sweep given the rest (`gaps`).
    """
    model, settings = model or Model(), settings or Settings()
    backends.get(settings.backend)
    engine = backends.engine(settings.backend)
    X, Y = np.ascontiguousarray(X, dtype="<f8"), np.ascontiguousarray(Y, dtype="<f8")
    if partly and np.isnan(Y).any():
        _check_gaps(Y, model, engine)
    check(X, np.where(np.isnan(Y), 0.0, Y) if partly else Y)
    model.rank_of(Y.shape[1])
    if model.noise == "jeffreys" and X.shape[1] >= X.shape[0]:
        warnings.warn(
            f"The Jeffreys prior with P = {X.shape[1]} ≥ m = {X.shape[0]} gives an improper posterior: "
            "noise levels can drift to zero. Use noise='correlated'.",
            stacklevel=2,
        )
    made = plan(model, X, np.nan_to_num(Y), mixing=settings.mixing, degrees=degrees)
    size = Length.MANY if made.wide else Length.SHARED if made.reshapes else Length.SMALL
    settings = settings.filled(size, 8 * made.P * made.Q)
    asked = asked_of(engine, model, settings, (*X.shape, Y.shape[1]))
    if degrees is not None:
        if degrees != int(degrees) or degrees < 2:
            raise InputError(f"degrees is {degrees!r}; expected a whole number of rows, at least 2.")
        asked["degrees"] = int(degrees)
    return carry_out(Job(asked, {"X": X, "Y": Y}, _sweep_seconds(made, engine), starts_sparse(model, made.P)), settings)


def asked_of(engine: str, model: Model, settings: Settings, shape: Sequence[int]) -> dict[str, Any]:
    """What decides which draws are made, besides the data; a folder holds one run of it. `shape` is (m, P, Q)."""
    numbers = {name: int(getattr(settings, name)) for name in ("warmup", "thin", "chains", "seed")}
    chosen = {"mixing": settings.mixing, "backend": settings.backend, "shape": [*shape]}
    return {"engine": engine, "model": asdict(model), **numbers, **chosen}


@dataclass(frozen=True)
class Job:
    """What is asked of a run, the arrays it works on, and how long a sweep is expected to take."""

    asked: dict[str, Any]
    arrays: dict[str, Any]
    sweep_seconds: float
    sparse: bool = False  # do chains start from a sparse solution?


def carry_out(job: Job, settings: Settings) -> Draws:
    """Run every chain, to the budget or to the target, and collect."""
    asked, checkpoint = job.asked, settings.checkpoint
    if checkpoint is not None:
        digest = hashlib.sha256()
        for array in job.arrays.values():
            digest.update(array)
        asked = asked | {"digest": digest.hexdigest()}
    draws = settings.draws
    assert draws is not None  # `Settings.filled`
    size = Size(asked["chains"], draws, *asked["shape"][1:])
    with run_folder(checkpoint) as where:
        open_folder(where, asked)
        began = time.perf_counter()
        if job.sparse and not (where / START).exists():
            # Responses that are missing count as none at all; the chains draw them.
            X, Y, rows = job.arrays["X"], np.nan_to_num(job.arrays["Y"]), asked.get("degrees")
            found = sparse_start(X, Y, rows)
            replace(found, alike=look_alikes(X, Y, found, rows)).save(where / START)
        make_room(where, (size.chains, size.draws, size.P, size.Q), lambda: None)
        launcher = Launcher(Place(where, checkpoint is None, job.arrays), asked, settings, job.sweep_seconds)
        return _collect(launcher, launcher.run(draws), asked, began)


def _start(where: Path) -> SparseStart | None:
    """The sparse solution of a run's folder, where its chains start from one."""
    return SparseStart.load(where / START) if (where / START).exists() else None


def _check_gaps(Y: Any, model: Model, engine: str) -> None:
    patterns(Y)
    if model.power != 1:
        raise InputError(f"Rows that lack responses are fitted with the likelihood's power 1; {model.power} came.")
    if engine != "cpu":
        raise InputError("Rows that lack responses are fitted on the CPU. Leave the backend at numpy.")


def _sweep_seconds(made: Plan, engine: str) -> float:
    """A guess, before any sweep is made: for a core of a CPU, or for all chains on a large GPU, with its compiler's minute."""
    if engine == "device" and not backends.on_device().device().startswith("cpu"):
        return 0.11 + 3e-10 * made.rows * made.P if made.wide else 0.03  # as an H200 took
    size = made.rows * made.Q if made.element else made.rows
    products = made.rows**2 * made.P * (made.Q if made.element else 1) + size**3
    # In single precision a product takes half the time, and what comes with it 20 ms.
    return 0.02 + products / 4.5e10 if made.wide else 1e-3 + products / 3e10


def _collect(launcher: Launcher, target: int, asked: dict[str, Any], began: float) -> Draws:
    runs, chains, where = launcher.left(), asked["chains"], launcher.where
    share, each = len(runs) / chains, chains // len(runs)  # chains that ran together took their share of the time each
    m, P, found = asked.get("degrees", asked["shape"][0]), asked["shape"][1], _start(where)
    info = {
        **{k: asked[k] for k in ("model", "warmup", "thin", "seed", "mixing", "backend")},
        "device": runs[0].device,
        # Of a run that was gone on with, what its chains took before counts too.
        "seconds": max(time.perf_counter() - began, *(run.seconds for run in runs)),
        "chain_seconds": [run.seconds * share for run in runs for _ in range(each)],
        "ms_per_sweep": [1e3 * run.seconds * share / max(1, run.sweeps) for run in runs for _ in range(each)],
        "sweeps": asked["warmup"] + target * asked["thin"],
        "m": m,
        "expected_features": expected_features(Model(**asked["model"]), m, P, found),
        "versions": {"intarsia": intarsia.__version__, "numpy": np.__version__, "python": platform.python_version()},
    }
    if found is not None and found.features.size:
        info["starts"] = [disperse(found, P, generator(asked["seed"], k)).features.tolist() for k in range(chains)]
    Sigma, tau = (np.concatenate([getattr(run, name)[:, :target] for run in runs]) for name in ("Sigma", "tau"))
    files = [where / f"shrinkage-{k}-{target}.npy" for k in range(chains)]
    if all(file.exists() for file in files):
        kappa = np.mean([np.load(file, allow_pickle=False) for file in files], axis=0)
    else:  # a longer run stands in the folder: over all its draws
        kappa = np.concatenate([run.kappa for run in runs]).mean(axis=0)
    return Draws(first_draws(where / "C.npy", target), Sigma, {"tau": tau}, kappa, info)
