"""Simulation 2 of the paper, every cell, with the sampler's default settings on this machine's cores.

    make bench-default                          # 5 data sets per cell: about half an hour on two idle cores
    python -m benchmarks.sim2 --sets 1 --jobs 1  # a look, chains side by side

The data sets are those of `benchmarks.sim2_gpu`. A run goes on where an earlier one stopped: finished data sets are kept in
benchmarks/results/sim2_correlated.json (sim2_default.json has those of 0.1.0, with independent noise). `seconds` is the wall time
of `intarsia.server.sampler.sample.sample` with all its defaults and the estimator's target.
"""

import itertools
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import resumed  # before NumPy: it sets one thread for each process

import numpy as np  # isort: skip

from benchmarks.sim2_gpu import RHO, SPARSE, judge, make, table
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.sample import sample
from intarsia.server.sampler.settings import Settings
from intarsia.server.sampler.stopping import Until

RESULT = Path(__file__).parent / "results" / "sim2_correlated.json"


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
