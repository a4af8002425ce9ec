"""Simulation 2 of the paper, every cell, with the sampler's default settings on this machine's cores.

    make bench-default                           # 5 data sets per cell: about half an hour on two idle cores
    python -m benchmarks.sim2 --sets 1        # a look

The data sets are those of `benchmarks.sim2_gpu`. A run goes on where an earlier one stopped: finished data sets are kept in
benchmarks/results/sim2_default.json. `seconds` is the wall time of `intarsia.server.sampler.sample.sample` with all its defaults
and the estimator's target.
"""

import argparse
import itertools
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sim2_gpu import RHO, SPARSE, judge, make, table
from intarsia.server.sampler.sample import sample
from intarsia.server.sampler.settings import Settings
from intarsia.server.sampler.stopping import Until

RESULT = Path(__file__).parent / "results" / "sim2_default.json"


def one(rho: float, s: int, seed: int, **length: Any) -> dict[str, Any]:
    made = make(rho, s, seed, 1000, 1000, 5, 200)
    begin = time.perf_counter()
    run = sample(made["X"], made["Y"], settings=Settings(seed=seed, until=Until(), **length))
    seconds = time.perf_counter() - begin
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "C.npy")
        np.save(path, run.C)
        row = judge((path, 0, len(run.C), {k: v for k, v in made.items() if k not in "XY"}))
    load = round(os.getloadavg()[0], 1)
    chains, draws = run.C.shape[:2]
    sizes = {"n": 1000, "P": 1000, "m": 200, "Q": 5, "device": "cpu", "cores": os.cpu_count(), "load": load}
    length = {"chains": chains, "draws": draws, "warmup": run.info["warmup"], "thin": run.info["thin"]}
    return row | sizes | length | {"seconds": round(seconds, 1), "ms_per_sweep": float(np.mean(run.info["ms_per_sweep"]))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=5, help="data sets per cell")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    rows = json.loads(args.out.read_text()) if args.out.exists() else []
    done = {(row["rho"], row["s"], row["seed"]) for row in rows}
    for seed, rho, s in itertools.product(range(args.sets), RHO, SPARSE):
        if (rho, s, seed) in done:
            continue
        rows.append(one(rho, s, seed))
        args.out.write_text(json.dumps(rows, indent=1) + "\n")
        last = rows[-1]
        print(
            f"rho {rho} s {s} data set {seed}: {last['seconds']:.0f} s (load {last['load']}), MSE_nz {last['mse_nz']:.4f}, "
            f"coverage {last['coverage_nz']:.3f}, FDR {last['fdr']:.3f}, power {last['power']:.3f}, R̂ {last['rhat_max']:.4f} "
            f"({last['rhat_over_1.01']} over 1.01), folded {last['rhat_folded_max']:.4f}, smallest ESS {last['ess_min']:.0f}",
            flush=True,
        )
    print(table(rows))


if __name__ == "__main__":
    main()
