"""Effective samples per second: our sampler against the paper's algorithm as its authors coded it.

    make bench-sampler                        # the four sizes of the paper, about five minutes on an idle core
    python -m experiments.sampler --quick      # shorter chains: a look, not a measurement

Sizes: Simulation 1 (n=500, P=300, Q=5) at m = 50, 100, 250 and Simulation 2 (n=P=1000, Q=5) at m = 200, ρ = .5, s = 30.
The paper's side (`intarsia.lab.baselines.paper_kron`, corrected conditionals and a proper noise prior, so that there is
a posterior to sample) is timed with its Kronecker products for a bounded number of sweeps. Its effective samples per
draw come from longer chains of the same Markov kernel whose B step is computed by cheaper algebra (the same noise gives
the same B; a test shows it): 2 chains of 400 to 1,000 draws. Ours are 4 chains at the default model but for the
noise, which is independent as the paper's. Bulk effective sample sizes of every entry of C, over the processor time of
the sweeps, one process, one BLAS thread, on both sides.

The last line is one JSON object: `ess_per_s_ratio` (sum over the entries of C) and `min_ess_per_s_ratio` (smallest),
each with keys sim1_m50, sim1_m100, sim1_m250, sim2_m200; then the parts they are made of.
"""

import argparse
import json
import os
import platform
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from experiments.kept import keep
from experiments.paper.simulate import Scenario, simulate
from experiments.rivals import paper_kron
from intarsia.server.assess.diagnostics import entries
from intarsia.server.sampler.horseshoe.model import Model
from intarsia.server.sampler.horseshoe.sample import sample
from intarsia.server.sampler.settings import Settings
from intarsia.site.data.table import Table
from intarsia.site.data.table_rules import TableRules
from intarsia.site.key import SketchKey
from intarsia.site.sketch.sketch import SketchTerms, sketch

RESULT = Path(__file__).parent / "results" / "sampler.json"
KEY = SketchKey(bytes(range(32)))  # a benchmark has no secrets

SIM1 = Scenario(n=500, P=300, Q=5, s=30, rho=0.5)
SIM2 = Scenario(n=1000, P=1000, Q=5, s=30, rho=0.5)
# name -> (scenario, m, timed Kronecker sweeps, draws per chain of the paper's kernel)
SIZES: dict[str, tuple[Scenario, int, int, int]] = {
    "sim1_m50": (SIM1, 50, 40, 1000),
    "sim1_m100": (SIM1, 100, 25, 1000),
    "sim1_m250": (SIM1, 250, 9, 400),
    "sim2_m200": (SIM2, 200, 7, 400),
}


def sketched(scenario: Scenario, m: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """X_Φ and Y_Φ of one simulated data set."""
    data = simulate(scenario, np.random.default_rng(seed))
    names = [f"x{j}" for j in range(scenario.P)] + [f"y{q}" for q in range(scenario.Q)]
    table = Table.open(np.hstack([data.X, data.Y]), responses=names[scenario.P :], rules=TableRules(names=names))
    message = sketch(table, KEY, SketchTerms("bench", f"{seed}", m)).message
    return np.asarray(message.X, dtype=float), np.asarray(message.Y, dtype=float)


def spread(C: np.ndarray, sweeps: int) -> dict[str, float]:
    """Effective samples of the entries of C per sweep that made them."""
    found = entries(C)
    ess = found["ess_bulk"]
    return {
        "total_per_sweep": float(ess.sum() / sweeps),
        "median_per_sweep": float(np.median(ess) / sweeps),
        "min_per_sweep": float(ess.min() / sweeps),
        "rhat_max": float(found["rhat"].max()),
        "rhat_folded_max": float(found["rhat_folded"].max()),
    }


def paper(X: np.ndarray, Y: np.ndarray, sweeps: int, draws: int, warmup: int) -> dict[str, float]:
    """The paper's algorithm: time of its Kronecker sweeps, effective samples of its kernel."""
    rng = np.random.default_rng(1)
    fast = paper_kron.Variant(structured=True)
    chains = [paper_kron.run(X, Y, rng, draws=draws, warmup=warmup, variant=fast) for _ in range(2)]
    C = np.stack([chain.C for chain in chains])
    state = paper_kron.start(X, Y, rng)
    times = []
    for _ in range(sweeps + 1):
        begin = time.process_time()
        state = paper_kron.sweep(X, Y, state, rng)
        times.append(time.process_time() - begin)
    return {"ms_per_sweep": 1e3 * median(times[1:]), **spread(C, 2 * draws)}


def ours(X: np.ndarray, Y: np.ndarray, local: str, draws: int, warmup: int, chains: int = 4) -> dict[str, float]:
    """Our sampler in one process, every sweep kept. The time is per sweep, warm-up and checkpoints included."""
    model = Model(local=local, noise="independent")  # the paper's: both sides sample the same kind of posterior
    sample(X, Y, model, Settings(draws=8, warmup=8, chains=1, thin=1, seed=1, workers=1))  # loads what is compiled
    begin = time.process_time()
    run = sample(X, Y, model, Settings(draws=draws, warmup=warmup, chains=chains, thin=1, seed=1, workers=1))
    seconds = time.process_time() - begin
    return {"ms_per_sweep": 1e3 * seconds / (chains * run.info["sweeps"]), **spread(run.C, chains * draws)}


def rate(side: dict[str, float], which: str) -> float:
    """Effective samples per second."""
    return side[f"{which}_per_sweep"] / side["ms_per_sweep"] * 1e3


def tell(name: str, side: str, part: dict[str, float]) -> None:
    print(
        f"{name:10} {side:8} {part['ms_per_sweep']:8.2f} ms/sweep, effective samples per sweep: "
        f"median {part['median_per_sweep']:.3f}, min {part['min_per_sweep']:.4f}; "
        f"largest R̂ {part['rhat_max']:.3f}, folded {part['rhat_folded_max']:.3f}",
        flush=True,
    )


def compare(name: str, quick: bool) -> dict[str, Any]:
    scenario, m, sweeps, draws = SIZES[name]
    X, Y = sketched(scenario, m, seed=7)
    short = 10 if quick else 1
    found: dict[str, Any] = {}
    found["paper"] = paper(X, Y, max(2, sweeps // short), draws // short, 200 // short)
    tell(name, "paper", found["paper"])
    found["row"] = ours(X, Y, "row", 2000 // short, 300 // short)
    tell(name, "row", found["row"])
    found["element"] = ours(X, Y, "element", max(50, draws // 4) // (2 if quick else 1), 100 // short, chains=2)
    tell(name, "element", found["element"])
    base = found["paper"]
    for key, side, which in (("ratio", "row", "total"), ("min_ratio", "row", "min"), ("element_ratio", "element", "total")):
        found[key] = rate(found[side], which) / rate(base, which)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the sweeps")
    parser.add_argument("--only", choices=list(SIZES), help="one size")
    args = parser.parse_args()
    table: dict[str, dict[str, Any]] = {}
    with threadpool_limits(1):
        for name in [args.only] if args.only else list(SIZES):
            begin = time.perf_counter()
            table[name] = found = compare(name, args.quick)
            print(
                f"{name:10} ratio {found['ratio']:.0f} (all entries), {found['min_ratio']:.0f} (the smallest), "
                f"element {found['element_ratio']:.0f}; {time.perf_counter() - begin:.0f} s",
                flush=True,
            )
        blas = [f"{pool['internal_api']} {pool['version']}" for pool in threadpool_info() if pool["user_api"] == "blas"]
    result = {
        "ess_per_s_ratio": {name: round(found["ratio"], 1) for name, found in table.items()},
        "min_ess_per_s_ratio": {name: round(found["min_ratio"], 1) for name, found in table.items()},
        "ms_per_sweep": {
            name: {side: round(found[side]["ms_per_sweep"], 3) for side in ("paper", "row", "element")}
            for name, found in table.items()
        },
    }
    if not args.quick and not args.only:
        RESULT.parent.mkdir(exist_ok=True)
        machine = {"cores": os.cpu_count(), "machine": platform.machine(), "numpy": np.__version__, "blas": blas}
        keep(RESULT, {**result, "parts": table, "machine": machine})
    print(json.dumps(result))


if __name__ == "__main__":
    main()
