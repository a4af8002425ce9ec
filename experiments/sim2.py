"""Simulation 2 of the paper, every cell, with the default prior and settings on this machine's cores.

    make bench-default                          # 5 data sets per cell: a minute or two on two idle cores
    python -m experiments.sim2 --sets 1          # a look

n = P = 1000, Q = 5, m = 200, ρ ∈ {0, .5, .7}, s ∈ {10, 30, 50}; columns standardised and sketched with an orthonormal, centred
Gaussian sketch (here from NumPy's generator: a simulation has no secrets). Errors, coverage and selection are in the original
units. Finished data sets are kept in experiments/results/sim2_default.json, and a run goes on where an earlier one stopped.
`seconds` is the wall time of `intarsia.server.sampler.sparse.sample.sample` with its defaults and the estimator's target, its
four chains on all cores, with compiled loops loaded.
"""

import itertools
import os
import time
from pathlib import Path
from typing import Any

from experiments import resumed  # before NumPy: it sets one thread for each process

import numpy as np  # isort: skip

from intarsia.server.sampler.settings import Settings, Until
from intarsia.server.sampler.sparse.sample import SparseModel, sample

RESULT = Path(__file__).parent / "results" / "sim2_default.json"

RHO, SPARSE = (0.0, 0.5, 0.7), (10, 30, 50)


def sketched(X: np.ndarray, m: int, G: np.ndarray) -> np.ndarray:
    """Φ X with Φ = L⁻¹ G_c, so that ΦΦᵀ = I and Φ1 = 0."""
    from scipy.linalg import solve_triangular

    centred = G - G.mean(axis=1, keepdims=True)
    return np.asarray(solve_triangular(np.linalg.cholesky(centred @ centred.T), centred @ X, lower=True))


def make(rho: float, s: int, seed: int, n: int, P: int, Q: int, m: int) -> dict[str, Any]:
    """One data set: sketches of standardised columns, the truth, and the factor back to the original units."""
    from experiments.paper.simulate import Scenario, simulate

    rng = np.random.default_rng([seed, int(100 * rho), s])
    data = simulate(Scenario(n=n, P=P, Q=Q, s=s, rho=rho), rng)
    x, y = data.X.std(axis=0), data.Y.std(axis=0)
    both = np.hstack([(data.X - data.X.mean(axis=0)) / x, (data.Y - data.Y.mean(axis=0)) / y])
    sketch = sketched(both, m, rng.standard_normal((m, n)))
    return {"rho": rho, "s": s, "seed": seed, "X": sketch[:, :P], "Y": sketch[:, P:], "C": data.C, "back": y / x[:, None]}


def table(rows: list[dict[str, Any]]) -> str:
    keys = ("mse_nz", "coverage_nz", "fdr", "power", "rhat_max", "ess_min", "seconds")
    lines = ["rho   s  " + " ".join(f"{key:>15}" for key in keys)]
    for rho, s in sorted({(row["rho"], row["s"]) for row in rows}):
        cell = [row for row in rows if (row["rho"], row["s"]) == (rho, s)]
        lines.append(f"{rho:<4} {s:>3}  " + " ".join(f"{np.mean([row[key] for row in cell]):15.4f}" for key in keys))
    return "\n".join(lines)


Task = tuple[float, int, int]  # rho, s, seed


def key(task: Task) -> resumed.Row:
    return dict(zip(("rho", "s", "seed"), task, strict=True))


def one(task: Task) -> resumed.Row:
    """A default run on one data set, and what came of it."""
    from experiments.paper import metrics
    from intarsia.server.assess.convergence import diagnose
    from intarsia.server.assess.findings import select

    made = make(*task, 1000, 1000, 5, 200)
    sample(made["X"][:, :100], made["Y"], SparseModel(compare=False), Settings(draws=8, warmup=8))  # loads what is compiled
    begin = time.perf_counter()
    run = sample(made["X"], made["Y"], SparseModel(compare=False), Settings(seed=task[2], until=Until()))
    seconds = time.perf_counter() - begin
    found = diagnose(run)
    lower, upper = run.quantile([0.025, 0.975]) * made["back"]
    score = metrics.score(run.mean() * made["back"], made["C"], (lower, upper), select(run, X=made["X"]).selected)
    return {**score, "n": 1000, "P": 1000, "m": 200, "Q": 5, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1),
            "draws": run.draws, "seconds": round(seconds, 2), "converged": found.converged,
            "rhat_max": float(np.nanmax(found.rhat)), "ess_min": float(np.nanmin(found.ess_bulk)),
            "ms_per_sweep": float(np.mean(run.info["ms_per_sweep"]))}  # fmt: skip


def main() -> None:
    parser = resumed.options(__doc__, RESULT, 5)
    parser.set_defaults(jobs=1)
    args = parser.parse_args()
    tasks = [(rho, s, seed) for seed, rho, s in itertools.product(range(args.sets), RHO, SPARSE)]
    print(table(resumed.gather(tasks, key, one, args.out, args.jobs)))


if __name__ == "__main__":
    main()
