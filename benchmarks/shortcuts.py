"""Two shortcuts for the product X diag(lam²) Xᵀ that the sampler does not take, measured: would they pay?

    python -m benchmarks.shortcuts                # P = 10,000, m = 300, Q = 5: two minutes on one core

In states of a settled chain, B is drawn once exactly and, with the same noise, by

- an active set (Johndrow, Orenstein & Bhattacharya 2020): the product over the features with the largest scales only, those that
  together hold all but a share of the trace of G; the error is that of C in posterior standard deviations;
- conjugate gradients on the m×m systems (as Nishimura & Suchard 2022 use them), the product never formed: iterations, and passes
  over the design, until the residual is small.

The last line is one JSON object, one row per shortcut; it goes to results/shortcuts.json.
"""

import argparse
import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.one_chain import OneChain
from benchmarks.sampler import sketched
from intarsia.lab.simulate import Scenario
from intarsia.server.sampler import backends, conditionals
from intarsia.server.sampler.conditionals import Given
from intarsia.server.sampler.model import Model

RESULT = Path(__file__).parent / "results" / "shortcuts.json"
SHARES, RESIDUALS = (1e-2, 1e-4, 1e-6), (1e-4, 1e-8)
BE = backends.get("numpy")


def clock(function: Any, rounds: int = 3) -> float:
    times = []
    for _ in range(rounds):
        begin = time.process_time()
        function()
        times.append(time.process_time() - begin)
    return 1e3 * median(times)


def gradients(X: np.ndarray, lam: np.ndarray, d: np.ndarray, rhs: np.ndarray, small: float) -> tuple[np.ndarray, int]:
    """(I + d_j² X diag(lam²) Xᵀ)⁻¹ rhs_j for all j side by side, by conjugate gradients; and how many steps they took."""
    x, r = np.zeros_like(rhs), rhs.copy()
    p, square = r.copy(), (r**2).sum(axis=0)
    first = square.copy()
    for steps in range(1, 2000):
        q = p + d**2 * BE.times(X, lam[:, None] ** 2 * BE.cross(X, p))
        step = square / (p * q).sum(axis=0)
        x, r = x + step * p, r - step * q
        square, before = (r**2).sum(axis=0), square
        if (square < small**2 * first).all():
            return x, steps
        p = r + square / before * p
    return x, steps


def judge(chain: Any, sd: np.ndarray, rng: np.random.Generator) -> dict[str, dict[str, float]]:
    """Both shortcuts in the chain's present state."""
    lam, tau, data, P, m = chain.state.lam, chain.state.tau, chain.data, chain.plan.P, chain.plan.rows
    rotation = chain.plan.covariance(data.noise_scale).rotation(BE, chain.state.Sigma)
    A, Y, s = rotation.U.T @ chain.state.A, data.Y @ rotation.U, np.sqrt(rotation.variances)
    Z, E = rng.standard_normal((P, A.shape[1])), rng.standard_normal((m, A.shape[1]))
    U, d, _ = conditionals.whiten(BE, A, tau, s)

    def draw(which: Any = slice(None)) -> np.ndarray:
        """C from the product over some features: the others' part of it is taken for zero."""
        G, _ = BE.weigh(data.X[:, which], lam[which], Z[which][:, :0])
        factor = BE.factor(G, data.X, lam, d[0] ** 2)
        return conditionals.draw_B_row(BE, data.X, Y, Given(A, lam, tau, s), Z, E, factor) @ A.T

    exact, product = draw(), clock(lambda: BE.weigh(data.X, lam, Z))
    weight = data.norm2 * lam**2
    order = np.argsort(-weight)
    held = np.cumsum(weight[order]) / weight.sum()
    found = {}
    for share in SHARES:
        which = np.sort(order[: int(np.searchsorted(held, 1 - share)) + 1])
        part = np.ascontiguousarray(data.X.T[which]).T
        took = clock(lambda which=which, part=part: BE.weigh(part, lam[which], Z[which]))
        error = np.abs(draw(which) - exact) / sd
        found[f"active set, all but {share:g} of the trace"] = {
            "features": which.size / P, "largest_error_sd": float(error.max()), "over_product": took / product
        }  # fmt: skip
    rhs = (Y / s) @ U - d * BE.times(data.X, lam[:, None] * Z) - E
    for small in RESIDUALS:
        begin = time.process_time()
        _, steps = gradients(data.X, lam, d, rhs, small)
        took = 1e3 * (time.process_time() - begin)
        found[f"conjugate gradients to {small:g}"] = {"iterations": steps, "over_product": took / product}
    return found


def trial(P: int, m: int, warm: int, states: int, apart: int) -> list[dict[str, Any]]:
    X, Y = sketched(Scenario(n=2 * m, P=P, Q=5, s=30, rho=0.5), m, seed=7)
    found, rng = [], np.random.default_rng(2)
    chain = OneChain(X, Y, Model(), warmup=warm)
    for _ in range(warm):
        chain.sweep()
    total, square, n = np.zeros((P, 5)), np.zeros((P, 5)), 0
    for number in range(states):
        for _ in range(apart):
            chain.sweep()
            C = chain.state.B @ chain.state.A.T
            total, square, n = total + C, square + C**2, n + 1
        found.append(judge(chain, np.sqrt(np.maximum(square / n - (total / n) ** 2, 1e-24)), rng))
        print(f"state {number + 1} of {states}", flush=True)
    rows = []
    for name in found[0]:
        middle = {key: round(float(np.median([part[name][key] for part in found])), 4) for key in found[0][name]}
        rows.append({"what": name, "P": P, "m": m, "Q": 5, "device": "cpu", "ms_per_sweep": None, "states": states} | middle)
        print(f"{name:44}", ", ".join(f"{key} {value:g}" for key, value in middle.items()), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--quick", action="store_true", help="a short chain: a look, nothing kept")
    args = parser.parse_args()
    with threadpool_limits(1):
        rows = trial(args.features, args.rows, *((40, 1, 10) if args.quick else (400, 5, 40)))
    if not args.quick:
        RESULT.write_text(json.dumps({"machine": f"{os.cpu_count()} cores", "rows": rows}, indent=1) + "\n")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
