"""What each move of the sampler buys: effective samples per sweep and per second, with one move left out at a time.

    python -m benchmarks.mixing               # four kinds of data, about twenty minutes on one core
    python -m benchmarks.mixing --sweeps 300  # a look

Four kinds of data: Simulation 1 (n=500, P=300, Q=5, m=100) and 2 (n=P=1000, Q=5, m=200), both ρ=.5, s=30; low rank (30 features,
rank 2, Q=8, noise correlated at .6); dense (every one of 200 features has a small effect). Every variant runs three chains of the
sweep that users run; a move is left out by giving it random numbers with which nothing is accepted. The last line is one JSON
object, one row per kind of data and variant.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.one_chain import OneChain, period
from benchmarks.sampler import SIM1, SIM2, sketched
from intarsia.server.assess.diagnostics import entries
from intarsia.server.sampler import compiled, schedule, sweep
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.schedule import Plan
from intarsia.server.sampler.schedule import plan as make_plan

RESULT = Path(__file__).parent / "results" / "mixing.json"
SEEDS = 1, 2, 3

Problem = tuple[np.ndarray, np.ndarray]


def low_rank() -> Problem:
    rng, m, P, Q = np.random.default_rng(11), 150, 300, 8
    X, C = rng.standard_normal((m, P)), np.zeros((P, Q))
    C[:30] = 0.4 * rng.standard_normal((30, 2)) @ rng.standard_normal((2, Q))
    return X, X @ C + np.sqrt(0.4) * rng.standard_normal((m, Q)) + np.sqrt(0.6) * rng.standard_normal((m, 1))


def dense() -> Problem:
    rng, m, P, Q = np.random.default_rng(12), 150, 200, 5
    X = rng.standard_normal((m, P))
    return X, X @ (0.1 * rng.standard_normal((P, Q))) + rng.standard_normal((m, Q))


KINDS: dict[str, Callable[[], Problem]] = {
    "Simulation 1": lambda: sketched(SIM1, 100, seed=7), "Simulation 2": lambda: sketched(SIM2, 200, seed=7),
    "low rank": low_rank, "dense": dense,
}  # fmt: skip
# variant -> the random numbers that decide about the move
LEFT_OUT = {
    "everything": "",
    "without single-site scales": "single.u",
    "without borderline features": "border.pick",
    "without noise and scale, B integrated out": "steps.u",
    "without (A/c, cB, c tau)": "columns.u",
    "without A, B integrated out": "shape.u",
}


def random_numbers(plan: Plan) -> set[str]:
    """The names of all that the plan's sweeps draw."""
    return {name for i in range(period(plan)) for name in plan.noise(plan.kind(i))}


def chain(
    problem: Problem, warmup: int, sweeps: int, noise: str = "correlated", **options: Any
) -> tuple[np.ndarray, np.ndarray, float]:
    """Every sweep's C and log noise variances of one chain, and milliseconds of processor time per sweep."""
    run = OneChain(*problem, Model(noise=noise), warmup=warmup, **options)
    C, variances, spent = [], [], 0.0
    for i in range(warmup + sweeps):
        begin = time.process_time()
        run.sweep()
        if i >= warmup:
            spent += time.process_time() - begin
            C.append((run.state.B @ run.state.A.T).astype(np.float32))
            variances.append(np.log(np.diag(run.state.Sigma)))
    return np.array(C), np.array(variances), 1e3 * spent / sweeps


def measure(kind: str, name: str, problem: Problem, warmup: int, sweeps: int, **options: Any) -> dict[str, Any]:
    runs = [chain(problem, warmup, sweeps, seed=seed, **options) for seed in SEEDS]
    ms, number = float(np.mean([run[2] for run in runs])), len(SEEDS) * sweeps
    found, noise = entries(np.stack([run[0] for run in runs])), entries(np.stack([run[1] for run in runs])[..., None])
    ess = found["ess_bulk"] / number
    row = {
        "data": kind, "variant": name, "ms_per_sweep": round(ms, 2), "min_ess_per_sweep": round(float(ess.min()), 4),
        "low_ess_per_sweep": round(float(np.quantile(ess, 0.01)), 4), "median_ess_per_sweep": round(float(np.median(ess)), 3),
        "noise_ess_per_sweep": round(float(noise["ess_bulk"].min()) / number, 4),
        "median_ess_per_s": round(float(np.median(ess)) / ms * 1e3, 1), "rhat_max": round(float(found["rhat"].max()), 3),
        "rhat_folded_max": round(float(found["rhat_folded"].max()), 3),
    }  # fmt: skip
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=1200, help="kept sweeps per chain")
    parser.add_argument("--only", choices=list(KINDS), help="one kind of data")
    args = parser.parse_args()
    rows = []
    with threadpool_limits(1):
        for kind in [args.only] if args.only else list(KINDS):
            problem = KINDS[kind]()
            asked = random_numbers(make_plan(Model(), *problem))
            for name, numbers in LEFT_OUT.items():
                if not numbers or numbers in asked:  # where factoring is cheap, nothing is traded
                    rows.append(measure(kind, name, problem, 300, args.sweeps, left_out=numbers))
            with patch.object(sweep, "RELAX", 0.0), patch.object(compiled, "RELAX", 0.0):
                rows.append(measure(kind, "without over-relaxation", problem, 300, args.sweeps))
            with patch.object(schedule, "COSTLY", np.inf):
                rows.append(measure(kind, "without sharing the factored system", problem, 300, args.sweeps))
            rows.append(measure(kind, "plain Gibbs", problem, 300, args.sweeps, mixing=False))
            rows.append(measure(kind, "independent noise", problem, 300, args.sweeps, noise="independent"))
    if args.sweeps >= 1000 and not args.only:
        RESULT.write_text(json.dumps(rows, indent=1) + "\n")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
