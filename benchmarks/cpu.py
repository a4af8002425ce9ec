"""One full sweep on the CPU beside a bare DSYRK of the same product.

    make bench-cpu

Row scales, P = 100,000 features, m = 500 sketch rows, Q = 5 responses by default, on two cores, in the two ways they can be
used: a chain on each core (as the sampler does), and one chain with two BLAS threads. Sweep and DSYRK are timed in turn in one
run. `ratio` is that of the average sweep (the median over rounds of one full sweep and the light ones that follow it) to the
median DSYRK, `ratio_full` that of the median full sweep, with every move; those ending in `_cpu` are in processor time. Prints a
JSON object a way and writes benchmarks/results/cpu.json.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.linalg import blas
from threadpoolctl import threadpool_info, threadpool_limits

from benchmarks.one_chain import OneChain, period
from intarsia.server.sampler import conditionals
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.schedule import draw_noise, part

RESULT = Path(__file__).parent / "results" / "cpu.json"


def problem(P: int, m: int, Q: int, signals: int = 50) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((P, m)).T
    signals = min(signals, P)
    C = rng.standard_normal((signals, Q)) / 5
    return X, X[:, :signals] @ C + rng.standard_normal((m, Q))


def timed(function: Callable[[], object]) -> np.ndarray:
    """Seconds by the clock, and of processor time."""
    begin = np.array([time.perf_counter(), time.process_time()])
    function()
    return np.array([time.perf_counter(), time.process_time()]) - begin


def measure(P: int, m: int, Q: int, threads: int, repeats: int) -> dict[str, Any]:
    bare: list[np.ndarray] = []
    rounds: list[list[np.ndarray]] = []  # seconds of each sweep; the first of a round is full
    with threadpool_limits(threads):
        chain = OneChain(*problem(P, m, Q), Model(), warmup=1)
        plan = chain.plan
        every = period(plan)
        warm = -(-10 // every)
        chain.warmup = warm * every
        for i in range(warm + repeats):
            rounds.append([timed(chain.sweep) for _ in range(every)])
            if i >= warm:
                bare.append(timed(lambda: blas.dsyrk(1.0, chain.data.X, lower=1)))
        state, noise = chain.state, part(draw_noise(plan, chain.rng), "lam")
        draw = conditionals.draw_lam
        lam = [timed(lambda: draw(chain.be, state.lam, state.B, state.tau, plan.laws.local, noise)) for _ in range(5)]
        pools = [p for p in threadpool_info() if p["user_api"] == "blas"]
        pool = [f"{p['internal_api']} {p['version']}, {p['num_threads']} threads" for p in pools]
    del rounds[:warm]
    each, cpu = np.median([np.mean(r, axis=0) for r in rounds], axis=0)
    full, full_cpu = np.median([r[0] for r in rounds], axis=0)
    dsyrk, dsyrk_cpu = np.median(bare, axis=0)
    scales = float(np.median(lam, axis=0)[0])
    return {
        "P": P, "m": m, "Q": Q, "device": f"cpu: {threads} threads", "ms_per_sweep": 1e3 * each, "ms_full_sweep": 1e3 * full,
        "ms_dsyrk": 1e3 * dsyrk, "ratio": each / dsyrk, "ratio_full": full / dsyrk, "every": every,
        "ratio_cpu": cpu / dsyrk_cpu, "ratio_full_cpu": full_cpu / dsyrk_cpu,
        "ms_local_scales": 1e3 * scales, "ms_million_local_scales": 1e9 * scales / P,
        "blocks_visited": plan.visits or -(-P // plan.block), "repeats": repeats, "blas": pool,
    }  # fmt: skip


def together(P: int, m: int, Q: int, processes: int, repeats: int) -> dict[str, Any]:
    """A chain with one BLAS thread in each of several processes, at the same time."""
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        rows = list(pool.map(measure, *zip(*[(P, m, Q, 1, repeats)] * processes, strict=True)))
    row = rows[0] | {"device": f"cpu: {processes} processes of 1 thread", "chains": processes}
    for key in (k for k in row if k.startswith(("ms_", "ratio"))):
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
