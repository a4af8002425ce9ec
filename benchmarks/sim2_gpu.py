"""Simulation 2 of the paper, every cell, all data sets and chains side by side on an accelerator.

    PYTHONPATH=src python -m benchmarks.sim2_gpu --out sim2.json

n = P = 1000, Q = 5, m = 200, ρ ∈ {0, .5, .7}, s ∈ {10, 30, 50}; columns standardised and sketched with an orthonormal, centred
Gaussian sketch (here from NumPy's generator: a simulation has no secrets). Errors, coverage and selection are in the original
units. Needs NumPy, SciPy and JAX alone.
"""

import argparse
import itertools
import json
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

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


def fit(sets: list[dict[str, Any]], args: argparse.Namespace) -> tuple[np.ndarray, dict[str, float]]:
    """Draws (data set × chain, draw, P, Q), all chains of all data sets in one compiled run."""
    from intarsia.server.sampler import backends, device
    from intarsia.server.sampler.model import Model
    from intarsia.server.sampler.schedule import plan as make_plan
    from intarsia.server.sampler.state import prepare

    be = backends.on_device()
    plan = device.on_device(make_plan(Model(), sets[0]["X"], sets[0]["Y"]), be.device())
    with be.precision():
        each = [prepare(be, one["X"], one["Y"], block=plan.block) for one in sets]
        data = be.tree_map(lambda *x: be.xp.repeat(be.xp.stack(x), args.chains, axis=0), *each)
    number = len(sets) * args.chains
    runner = device.Runner(plan, data, own_data=True, be=be)
    C = np.empty((number, args.draws, plan.P, plan.Q))

    def take(first: int, kept: Any) -> None:
        C[:, first : first + kept.C.shape[1]] = kept.C

    marks: list[tuple[int, float]] = []

    def report(done: int, total: int) -> None:
        marks.append((done + offset, time.perf_counter()))
        if len(marks) in (1, 2, 3) or len(marks) % 20 == 0 or done == total:
            print(f"  {done}/{total} sweeps, {marks[-1][1] - began:.1f} s", flush=True)

    offset = 0
    began = time.perf_counter()
    chains = runner.start(args.seed, number)
    chains, _, _ = device.run(runner, chains, warmup=args.warmup, draws=0, thin=1, take=take, report=report)
    steady = marks[1:] if len(marks) > 2 else marks
    pace = (steady[-1][1] - steady[0][1]) / max(1, steady[-1][0] - steady[0][0])
    thin = max(1, min(args.thin, int(args.limit / max(1e-9, pace) / args.draws)))
    print(f"  warm-up at {1e3 * pace:.2f} ms per sweep; thinning by {thin}", flush=True)
    offset = args.warmup
    chains, _, _ = device.run(runner, chains, warmup=0, draws=args.draws, thin=thin, take=take, report=report)
    kept = [mark for mark in marks if mark[0] > args.warmup]
    steps = np.diff([t for _, t in kept]) / np.diff([k for k, _ in kept]) if len(kept) > 1 else [np.nan]
    seconds = time.perf_counter() - began
    return C, {"seconds": seconds, "ms_per_sweep": 1e3 * float(np.median(steps)), "chains_together": number, "thin": thin}


def table(rows: list[dict[str, Any]]) -> str:
    keys = ("mse_nz", "coverage_nz", "fdr", "power", "rhat_max", "rhat_folded_max", "ess_min")
    lines = ["rho   s  " + " ".join(f"{key:>15}" for key in keys)]
    for rho, s in sorted({(row["rho"], row["s"]) for row in rows}):
        cell = [row for row in rows if (row["rho"], row["s"]) == (rho, s)]
        lines.append(f"{rho:<4} {s:>3}  " + " ".join(f"{np.mean([row[key] for row in cell]):15.4f}" for key in keys))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("sim2.json"))
    parser.add_argument("--sets", type=int, default=5, help="data sets per cell")
    parser.add_argument("--cells", type=int, default=9, help="how many of the nine cells")
    parser.add_argument("--together", type=int, default=45, help="data sets in one compiled run")
    for name, value in (("chains", 4), ("warmup", 500), ("draws", 1000), ("thin", 5), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, value in (("n", 1000), ("P", 1000), ("Q", 5), ("m", 200)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--limit", type=float, default=1e9, help="seconds for the kept sweeps; thins less when they would not do")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    args = parser.parse_args()
    cells = list(itertools.product(RHO, SPARSE))[: args.cells]
    jobs = [make(rho, min(s, args.P), seed, args.n, args.P, args.Q, args.m) for rho, s in cells for seed in range(args.sets)]
    from intarsia.server.sampler import backends

    machine = backends.on_device().device()
    print(f"{len(jobs)} data sets, {machine}", flush=True)
    rows: list[dict[str, Any]] = []
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[name] = "1"  # for the judging processes
    os.environ["JAX_PLATFORMS"] = "cpu"
    with ProcessPoolExecutor(args.workers, get_context("spawn")) as pool, tempfile.TemporaryDirectory() as folder:
        for at in range(0, len(jobs), args.together):
            part = jobs[at : at + args.together]
            C, pace = fit(part, args)
            path = str(Path(folder) / "C.npy")
            np.save(path, C)
            del C
            few = args.chains
            asked = []
            for i, one in enumerate(part):
                asked.append((path, i * few, (i + 1) * few, {k: v for k, v in one.items() if k not in "XY"}))
            rows += [row | pace for row in pool.map(judge, asked)]
            shape = {"n": args.n, "P": args.P, "m": args.m, "Q": args.Q, "device": machine, "warmup": args.warmup}
            shape |= {"chains": args.chains, "draws": args.draws}
            args.out.write_text(json.dumps([row | shape for row in rows], indent=1) + "\n")
            pace_text = f"{pace['ms_per_sweep']:.2f} ms per sweep of {pace['chains_together']} chains"
            print(f"{len(rows)}/{len(jobs)} data sets, {pace_text}", flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
