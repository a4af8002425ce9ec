"""What each move of the sampler buys: effective samples a sweep and a second, with one move left out at a time.

    python -m benchmarks.mixing               # Simulation 2 (n=P=1000, Q=5, m=200, ρ=.5, s=30), about ten minutes on one core
    python -m benchmarks.mixing --sweeps 500  # a look

Every variant runs two chains on the same sketches, move by move (a whole compiled step has no move to leave out).
The last line is one JSON object, a row a variant.
"""

import argparse
import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.one_chain import one_chain, sweep
from benchmarks.sampler import SIM2, sketched
from intarsia.server.results.diagnostics import entries
from intarsia.server.sampler import gibbs, moves, plan

RESULT = Path(__file__).parent / "results" / "mixing.json"


def no_site(be: Any, blocks: Any, W: Any, delta: Any, log_prior: Any, u: Any, visited: Any) -> Any:
    return np.zeros(delta.shape[0], dtype=bool), W


def no_border(be: Any, factor: Any, d: Any, Yr: Any, rhs: Any, Xk: Any, Zk: Any, lam: Any, *rest: Any) -> Any:
    return lam, factor.solve(d, rhs.T[:, :, None])[:, :, 0].T


def no_steps(be: Any, target: Any, sigma2: Any, tau: Any, steps: Any, u: Any) -> Any:
    return sigma2, tau, np.zeros(len(steps))


def no_stretch(be: Any, A: Any, tau: Any, fit: Any, W: Any, *rest: Any) -> Any:
    return A, np.linalg.inv(A), fit, W, np.zeros(1)


def no_compensation(be: Any, *rest: Any) -> Any:
    return np.zeros(()), np.zeros(1)


def no_shift(be: Any, lam: Any, tau: Any, *rest: Any) -> Any:
    return lam, tau, np.zeros(())


def no_columns(be: Any, A: Any, B: Any, tau: Any, *rest: Any) -> Any:
    return A, B, tau


def every_full(plan: gibbs.Plan, sweep: int) -> gibbs.Kind:
    return gibbs.FULL


LEFT_OUT: dict[str, list[tuple[Any, str, Any]]] = {
    "everything": [],
    "every sweep full": [(gibbs.Plan, "kind", every_full)],
    "without over-relaxation": [(gibbs, "RELAX", 0.0)],
    "without sharing the factored system": [(plan, "COSTLY", np.inf)],
    "without single-site scales": [(moves, "single_site", no_site)],
    "without borderline features": [(gibbs, "_borderline", no_border)],
    "without noise and scale, B integrated out": [(moves, "collapsed_scales", no_steps)],
    "without stretching the rows' covariance": [(moves, "stretch_responses", no_stretch)],
    "without compensated scale": [(moves, "compensated_scale", no_compensation)],
    "without (lam/c, c tau)": [(moves, "shift_scales", no_shift)],
    "without (A/c, cB, c tau)": [(moves, "rescale_columns", no_columns)],
}


def chain(X: np.ndarray, Y: np.ndarray, warmup: int, sweeps: int, seed: int, mixing: bool = True) -> tuple[np.ndarray, float]:
    """Every sweep's C of one chain, and milliseconds a sweep of processor time."""
    kept, spent = [], 0.0
    with one_chain(X, Y, warmup=warmup, seed=seed, mixing=mixing) as run:
        for i in range(warmup + sweeps):
            begin = time.process_time()
            sweep(run)
            if i >= warmup:
                spent += time.process_time() - begin
                kept.append((run.state.B @ run.state.A.T).astype(np.float32))
    return np.array(kept), 1e3 * spent / sweeps


def measure(name: str, X: np.ndarray, Y: np.ndarray, warmup: int, sweeps: int, **options: Any) -> dict[str, Any]:
    runs = [chain(X, Y, warmup, sweeps, seed, **options) for seed in (1, 2)]
    C, ms = np.stack([run[0] for run in runs]), float(np.mean([run[1] for run in runs]))
    found = entries(C)
    ess = found["ess_bulk"] / (2 * sweeps)
    row = {
        "variant": name, "P": X.shape[1], "m": X.shape[0], "Q": Y.shape[1], "device": "cpu", "ms_per_sweep": round(ms, 2),
        "min_ess_per_sweep": round(float(ess.min()), 4), "median_ess_per_sweep": round(float(np.median(ess)), 3),
        "min_ess_per_s": round(float(ess.min()) / ms * 1e3, 2), "median_ess_per_s": round(float(np.median(ess)) / ms * 1e3, 1),
        "rhat_max": round(float(found["rhat"].max()), 3), "rhat_folded_max": round(float(found["rhat_folded"].max()), 3),
        "rhat_folded_median": round(float(np.median(found["rhat_folded"])), 4),
    }  # fmt: skip
    print(
        f"{name:44} {ms:6.2f} ms; ESS/sweep min {row['min_ess_per_sweep']:.4f} median {row['median_ess_per_sweep']:.3f}; "
        f"per s min {row['min_ess_per_s']:6.2f} median {row['median_ess_per_s']:6.1f}; R̂ {row['rhat_max']:.3f} "
        f"folded {row['rhat_folded_max']:.3f} (median {row['rhat_folded_median']:.4f})",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=2500, help="kept sweeps a chain")
    args = parser.parse_args()
    X, Y = sketched(SIM2, 200, seed=7)
    rows = []
    with threadpool_limits(1), patch.object(gibbs.Plan, "compiled", False):
        for name, patches in LEFT_OUT.items():
            with ExitStack() as stack:
                for module, attribute, replacement in patches:
                    stack.enter_context(patch.object(module, attribute, replacement))
                rows.append(measure(name, X, Y, 400, args.sweeps))
        rows.append(measure("plain Gibbs", X, Y, 400, args.sweeps, mixing=False))
    if args.sweeps >= 2000:
        RESULT.write_text(json.dumps(rows, indent=1) + "\n")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
