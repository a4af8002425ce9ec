"""Simulation 2 of the paper, every cell, with the sampler's default settings on this machine's cores.

    make bench-default                          # 5 data sets per cell: about half an hour on two idle cores
    python -m benchmarks.sim2 --sets 1 --jobs 1  # a look, chains side by side

n = P = 1000, Q = 5, m = 200, ρ ∈ {0, .5, .7}, s ∈ {10, 30, 50}; columns standardised and sketched with an orthonormal, centred
Gaussian sketch (here from NumPy's generator: a simulation has no secrets). Errors, coverage and selection are in the original
units. A run goes on where an earlier one stopped: finished data sets are kept in
benchmarks/results/sim2_correlated.json (sim2_default.json has those of 0.1.0, with independent noise). `seconds` is the wall time
of `intarsia.server.sampler.horseshoe.sample.sample` with all its defaults and the estimator's target.
"""

import itertools
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import resumed  # before NumPy: it sets one thread for each process

import numpy as np  # isort: skip

from intarsia.server.sampler.horseshoe.model import Model
from intarsia.server.sampler.horseshoe.sample import sample
from intarsia.server.sampler.settings import Settings, Until

RESULT = Path(__file__).parent / "results" / "sim2_correlated.json"

RHO, SPARSE = (0.0, 0.5, 0.7), (10, 30, 50)


def sketched(X: np.ndarray, m: int, G: np.ndarray) -> np.ndarray:
    """Φ X with Φ = L⁻¹ G_c, so that ΦΦᵀ = I and Φ1 = 0."""
    from scipy.linalg import solve_triangular

    centred = G - G.mean(axis=1, keepdims=True)
    return np.asarray(solve_triangular(np.linalg.cholesky(centred @ centred.T), centred @ X, lower=True))


def make(rho: float, s: int, seed: int, n: int, P: int, Q: int, m: int) -> dict[str, Any]:
    """One data set: sketches of standardised columns, the truth, and the factor back to the original units."""
    from intarsia.lab.simulate import Scenario, simulate

    rng = np.random.default_rng([seed, int(100 * rho), s])
    data = simulate(Scenario(n=n, P=P, Q=Q, s=s, rho=rho), rng)
    x, y = data.X.std(axis=0), data.Y.std(axis=0)
    both = np.hstack([(data.X - data.X.mean(axis=0)) / x, (data.Y - data.Y.mean(axis=0)) / y])
    sketch = sketched(both, m, rng.standard_normal((m, n)))
    return {"rho": rho, "s": s, "seed": seed, "X": sketch[:, :P], "Y": sketch[:, P:], "C": data.C, "back": y / x[:, None]}


def judge(job: tuple[str, int, int, dict[str, Any]]) -> dict[str, Any]:
    """Errors, intervals, selection and diagnostics of one data set's draws."""
    from intarsia.lab import metrics
    from intarsia.server.assess.convergence import diagnose
    from intarsia.server.assess.findings import select

    path, first, last, made = job
    C = np.array(np.load(path, mmap_mode="r")[first:last])
    truth, back = made["C"], made["back"]
    flat = C.reshape(-1, *C.shape[2:])
    lower, upper = np.quantile(flat, [0.025, 0.975], axis=0)
    selected = select(C).selected
    found = diagnose(C, workers=1)
    score = metrics.score(flat.mean(axis=0) * back, truth, (lower * back, upper * back), selected)
    return {
        **{key: made[key] for key in ("rho", "s", "seed")},
        **score,
        "rhat_max": float(np.nanmax(found.rhat)),
        "rhat_folded_max": float(np.nanmax(found.rhat_folded)),
        "rhat_over_1.01": int((found.rhat > 1.01).sum()),
        "ess_min": float(np.nanmin(found.ess_bulk)),
        "ess_tail_min": float(np.nanmin(found.ess_tail)),
    }


def table(rows: list[dict[str, Any]]) -> str:
    keys = ("mse_nz", "coverage_nz", "fdr", "power", "rhat_max", "rhat_folded_max", "ess_min")
    lines = ["rho   s  " + " ".join(f"{key:>15}" for key in keys)]
    for rho, s in sorted({(row["rho"], row["s"]) for row in rows}):
        cell = [row for row in rows if (row["rho"], row["s"]) == (rho, s)]
        lines.append(f"{rho:<4} {s:>3}  " + " ".join(f"{np.mean([row[key] for row in cell]):15.4f}" for key in keys))
    return "\n".join(lines)


Task = tuple[float, int, int, str, int | None]  # rho, s, seed, noise, workers of the chains


def key(task: Task) -> resumed.Row:
    return dict(zip(("rho", "s", "seed", "noise"), task, strict=False))


def one(task: Task, **length: Any) -> resumed.Row:
    """A default run on one data set, and what came of it."""
    rho, s, seed, noise, workers = task
    made = make(rho, s, seed, 1000, 1000, 5, 200)
    begin = time.perf_counter()
    run = sample(made["X"], made["Y"], Model(noise=noise), Settings(seed=seed, until=Until(), workers=workers, **length))
    seconds = time.perf_counter() - begin
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "C.npy")
        np.save(path, run.C)
        row = judge((path, 0, len(run.C), {k: v for k, v in made.items() if k not in "XY"}))
    load = round(os.getloadavg()[0], 1)
    chains, draws = run.C.shape[:2]
    sizes = {"n": 1000, "P": 1000, "m": 200, "Q": 5, "device": "cpu", "cores": os.cpu_count(), "load": load}
    done = {"chains": chains, "draws": draws, "warmup": run.info["warmup"], "thin": run.info["thin"]}
    return row | sizes | done | {"seconds": round(seconds, 1), "ms_per_sweep": float(np.mean(run.info["ms_per_sweep"]))}


def main() -> None:
    parser = resumed.options(__doc__, RESULT, 5)
    parser.add_argument("--noise", default="correlated", help="correlated, or independent (the paper's)")
    args = parser.parse_args()
    # One data set at a time has its chains side by side; several have one process each.
    workers = None if args.jobs == 1 else 1
    tasks = [(rho, s, seed, args.noise, workers) for seed, rho, s in itertools.product(range(args.sets), RHO, SPARSE)]
    print(table([row for row in resumed.gather(tasks, key, one, args.out, args.jobs) if row["noise"] == args.noise]))


if __name__ == "__main__":
    main()
