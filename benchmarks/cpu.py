"""One full sweep on the CPU beside a bare DSYRK of the same product.

    make bench-cpu

Row scales, P = 100,000 features, m = 500 sketch rows, Q = 5 responses by default, on two cores, in the two ways they can be
used: a chain on each core (as the sampler does), and one chain with two BLAS threads. Sweep and DSYRK are timed in turn in one
run; the figure is the ratio of their medians. Prints a JSON object a way and writes benchmarks/results/cpu.json.
"""

import argparse
import json
import os
import platform
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.linalg import blas
from threadpoolctl import threadpool_info, threadpool_limits

from intarsia.server import adapt, backend, gibbs

RESULT = Path(__file__).parent / "results" / "cpu.json"


def problem(P: int, m: int, Q: int, signals: int = 50) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((P, m)).T
    signals = min(signals, P)
    C = rng.standard_normal((signals, Q)) / 5
    return X, X[:, :signals] @ C + rng.standard_normal((m, Q))


def measure(P: int, m: int, Q: int, threads: int, repeats: int) -> dict[str, Any]:
    be = backend.get("numpy")
    X, Y = problem(P, m, Q)
    plan, rng = gibbs.plan(gibbs.Model(), X, Y), np.random.default_rng(1)
    data = gibbs.prepare(be, X, Y)
    state, tuning, memory = gibbs.initial(plan, data, rng), gibbs.initial_tuning(plan), adapt.start(plan)
    del X
    bare: list[float] = []
    sweeps: list[float] = []
    warmup = 10
    with threadpool_limits(threads), np.errstate(all="ignore"):
        for i in range(warmup + repeats):
            begin = time.perf_counter()
            noise = gibbs.draw_noise(plan, rng)
            state, stats = gibbs.sweep(be, plan, data, state, tuning, noise)
            sweeps.append(time.perf_counter() - begin)
            if i < warmup:
                tuning, memory = adapt.adapt(plan, tuning, memory, stats, i, warmup)
                continue
            begin = time.perf_counter()
            blas.dsyrk(1.0, data.X, lower=1)
            bare.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        gibbs.conditionals.draw_lam(be, state.lam, state.B, state.tau, plan.local, gibbs.part(noise, "lam"))
        lam = time.perf_counter() - begin
        pools = [p for p in threadpool_info() if p["user_api"] == "blas"]
        pool = [f"{p['internal_api']} {p['version']}, {p['num_threads']} threads" for p in pools]
    sweeps = sweeps[warmup:]
    return {
        "P": P, "m": m, "Q": Q, "device": f"cpu: {threads} threads", "ms_per_sweep": 1e3 * median(sweeps),
        "ms_dsyrk": 1e3 * median(bare), "ratio": median(sweeps) / median(bare), "ms_local_scales": 1e3 * lam,
        "blocks_visited": plan.visits or -(-P // plan.block), "repeats": repeats, "blas": pool,
    }  # fmt: skip


def together(P: int, m: int, Q: int, processes: int, repeats: int) -> dict[str, Any]:
    """A chain with one BLAS thread in each of several processes, at the same time."""
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        rows = list(pool.map(measure, *zip(*[(P, m, Q, 1, repeats)] * processes, strict=True)))
    row = rows[0] | {"device": f"cpu: {processes} processes of 1 thread", "chains": processes}
    for key in ("ms_per_sweep", "ms_dsyrk", "ratio", "ms_local_scales"):
        row[key] = median(one[key] for one in rows)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("P", 100_000), ("m", 500), ("Q", 5), ("cores", 2), ("repeats", 9)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "numpy": np.__version__}
    rows = []
    for way in (together, measure):
        rows.append(way(args.P, args.m, args.Q, args.cores, args.repeats) | {"machine": machine})
        print(json.dumps(rows[-1]), flush=True)
    if (args.P, args.m, args.Q) == (100_000, 500, 5):
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
