"""The paper's Simulations 1 and 2 with the present default, data set by data set beside the rows that the lab kept of 0.1.0.

    python -m benchmarks.simulations --jobs 16               # Simulation 1 (20 data sets per cell) and 2 (10 per cell)
    python -m benchmarks.simulations --only sim1 --sets 2    # a look

The data sets are the lab's (`intarsia lab run sim1 --size full`), standardised and sketched with another orthonormal sketch; the
chains have the lab's length. The kept rows (benchmarks/results/sim1/full.csv, sim2/full.csv; method intarsia) had independent
noise. Rows go to benchmarks/results/simulations.json; the table has the mean of both, and the ratio of errors over the same data
sets with its standard error.
"""

import csv
import hashlib
import time
from pathlib import Path
from typing import Any

from benchmarks import resumed  # before NumPy: it sets one thread for each process

import numpy as np  # isort: skip

from benchmarks.local_fit import local_fit
from intarsia.lab import metrics
from intarsia.lab.simulate import Scenario, simulate
from intarsia.server.assess.findings import select
from intarsia.server.sampler.settings import Settings

FOLDER = Path(__file__).parent / "results"
RESULT = FOLDER / "simulations.json"
Task = tuple[str, str, int, int]  # experiment, cell, m, replicate
# As `intarsia.lab.experiments.simulations` has them; the experiments themselves need packages that a bare machine lacks.
CELLS = {
    "sim1": {f"s={s}": Scenario(n=500, P=300, Q=5, rho=0.5, K=1, s=s) for s in (10, 30, 50)},
    "sim2": {f"stated rho={rho} s={s}": Scenario(design="stated", rho=rho, s=s) for rho in (0.0, 0.5, 0.7) for s in (10, 30, 50)},
}
ROWS = {"sim1": (50, 100, 250), "sim2": (200,)}
LENGTH = {"sim1": (1000, 300, 2, 1), "sim2": (500, 300, 2, 2)}  # draws, warm-up, chains, thin
SETS = {"sim2": 10, "sim1": 20}


def key(task: Task) -> resumed.Row:
    return dict(zip(("experiment", "cell", "m", "replicate"), task, strict=True))


def one(task: Task) -> resumed.Row:
    """Error, coverage and selection of the default on one data set."""
    name, label, m, replicate = task
    seed = int.from_bytes(hashlib.sha256(f"{name}|{label}|{replicate}".encode()).digest()[:4], "big")  # the lab's
    data = simulate(CELLS[name][label], np.random.default_rng(seed))
    run = Settings(*LENGTH[name], seed, workers=1)
    began = time.process_time()
    fit = local_fit(data.X, data.Y, run, m=m)
    seconds = time.process_time() - began
    C = fit.draws()
    lower, upper = np.quantile(C, [0.025, 0.975], axis=0)
    selected = select(fit.fitted.draws).selected  # as the lab did, without sets of interchangeable features
    found = metrics.score(C.mean(axis=0), data.C, (lower, upper), selected)
    noise = float(np.diagonal(fit.noise()).mean())
    return {name: round(value, 6) for name, value in found.items()} | {"sigma2": round(noise, 4), "seconds": round(seconds, 1)}


def lab_rows(name: str) -> dict[tuple[str, int, int], dict[str, float]]:
    """Kept rows of the lab by cell, m and replicate."""
    wanted = ("mse_nz", "coverage_nz", "fdr", "power", "sigma2")
    with (FOLDER / name / "full.csv").open(encoding="utf-8", newline="") as file:
        return {
            (row["cell"], int(row["m"]), int(row["replicate"])): {key: float(row[key]) for key in wanted}
            for row in csv.DictReader(file)
            if row["method"] == "intarsia"
        }


def table(rows: list[resumed.Row]) -> str:
    lines = ["experiment cell m | sets MSE_nz (kept) ratio ± se, coverage_nz (kept), FDR (kept), power (kept), noise (kept)"]
    for name in ("sim1", "sim2"):
        before = lab_rows(name)
        groups: dict[tuple[str, int], list[tuple[Any, Any]]] = {}
        for row in rows:
            at = row["cell"], row["m"], row["replicate"]
            if row["experiment"] == name and at in before:
                groups.setdefault(at[:2], []).append((row, before[at]))
        for (cell, m), pairs in groups.items():
            told = f"{name} {cell} m={m} | {len(pairs)}"
            ratio = np.log([now["mse_nz"] / then["mse_nz"] for now, then in pairs])
            for measure in ("mse_nz", "coverage_nz", "fdr", "power", "sigma2"):
                now, then = (float(np.mean([pair[i][measure] for pair in pairs])) for i in (0, 1))
                told += f" {now:.4f} ({then:.4f})"
                if measure == "mse_nz":
                    told += f" {np.exp(ratio.mean()):.2f} ± {np.exp(ratio.mean()) * ratio.std() / np.sqrt(len(pairs)):.2f}"
            lines.append(told)
    return "\n".join(lines)


def main() -> None:
    parser = resumed.options(__doc__, RESULT, 0)
    parser.add_argument("--only", choices=("sim1", "sim2"), help="one of the two")
    args = parser.parse_args()
    tasks: list[Task] = []
    for name, sets in SETS.items():
        if args.only in (None, name):
            tasks += [(name, cell, m, k) for cell in CELLS[name] for m in ROWS[name] for k in range(args.sets or sets)]
    print(table(resumed.gather(tasks, key, one, args.out, args.jobs)))


if __name__ == "__main__":
    main()
