"""Time from sketches to a converged, right answer: `make bench-answer`, or `python -m experiments.answer CASE … --seeds 1 2`.

Coefficients N(0, .5²), noise 1; features independent, or correlated with their neighbours (AR(1) .9), or in blocks of ten at .9.
The clock runs from the joined sketches in memory to the selection: start, sampling to the stopping rule, R̂, findings. One JSON
object per row, kept in experiments/results/answer.json. A finding is right when it holds a true feature. The first fit is not
counted: it loads the compiled loops. `--beside` names a program with a function `chain`, timed on the same data.
"""

import argparse
import importlib
import json
import platform
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.child import high_mb
from experiments.kept import keep

RESULT = Path(__file__).parent / "results" / "answer.json"


@dataclass(frozen=True)
class Case:
    P: int
    m: int
    Q: int
    s: int
    design: str = "independent"
    backend: str = "numpy"


CASES = {
    "300": Case(300, 100, 5, 10),
    "1000": Case(1_000, 200, 5, 15),
    "5000": Case(5_000, 250, 5, 20),
    "20000": Case(20_000, 300, 5, 25),
    "20000-ar1": Case(20_000, 300, 5, 25, "ar1"),
    "20000-blocks": Case(20_000, 300, 5, 25, "blocks"),
    "100000": Case(100_000, 500, 5, 40),
    "100000-gpu": Case(100_000, 500, 5, 40, backend="jax"),
    "1000000-gpu": Case(1_000_000, 1000, 10, 100, backend="jax"),
}

TWO_CORES = ("300", "1000", "5000", "20000", "20000-ar1", "20000-blocks", "100000")
LARGEST_FOR_LASSO = 20_000  # features


def data(case: Case, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """X, Y, C, centred."""
    rng = np.random.default_rng([seed, case.P])
    X = rng.standard_normal((case.m, case.P))
    if case.design == "ar1":
        for p in range(1, case.P):
            X[:, p] = 0.9 * X[:, p - 1] + np.sqrt(1 - 0.81) * X[:, p]
    if case.design == "blocks":
        X = np.sqrt(0.9) * np.repeat(rng.standard_normal((case.m, case.P // 10)), 10, axis=1) + np.sqrt(0.1) * X
    C = np.zeros((case.P, case.Q))
    C[rng.choice(case.P, case.s, replace=False)] = 0.5 * rng.standard_normal((case.s, case.Q))
    Y = X @ C + rng.standard_normal((case.m, case.Q))
    X -= X.mean(axis=0)
    return X, Y - Y.mean(axis=0), C


def lasso(X: np.ndarray, Y: np.ndarray, true: np.ndarray) -> dict[str, Any]:
    """What a multi-task lasso takes and finds, its penalty by three folds: a point estimate without intervals or error rate."""
    from sklearn.linear_model import MultiTaskLassoCV

    began = time.perf_counter()
    chosen = np.flatnonzero(MultiTaskLassoCV(cv=3, alphas=20, n_jobs=2).fit(X, Y).coef_.any(axis=0))
    seconds = time.perf_counter() - began
    hit = np.isin(true, chosen).sum()
    return {"lasso_seconds": round(seconds, 2), "lasso_power": round(hit / len(true), 3), "lasso_false": int(len(chosen) - hit)}


def prototype(file: str, X: np.ndarray, Y: np.ndarray, true: np.ndarray, sweeps: int) -> dict[str, Any]:
    """What a program with a function `chain` (X, Y, sweeps, warm-up, seed, background, wrong features at the start) takes for as
    many sweeps of two chains on one core, and finds at an inclusion probability of a half.
    """
    sys.path.insert(0, str(Path(file).parent))  # its compiled loops are kept by the module's name
    module = importlib.import_module(Path(file).stem)
    module.chain(X[:, :50], Y, 8, 2, 0, True)  # compiles
    began = time.perf_counter()
    pip = np.mean(
        [module.chain(X, Y, sweeps, min(100, sweeps // 2), seed, True, wrong)[0] for seed, wrong in ((1, 0), (2, 50))], axis=0
    )
    seconds = time.perf_counter() - began
    chosen = np.flatnonzero(pip >= 0.5)
    hit = int(np.isin(true, chosen).sum())
    return {"beside_core_seconds": round(2 * seconds, 1), "beside_hit": hit, "beside_false": int(len(chosen) - hit)}


def answer(case: Case, seed: int, workers: int, budget: int | None, beside: str | None = None) -> dict[str, Any]:
    from intarsia.server.assess.convergence import diagnose
    from intarsia.server.assess.findings import select
    from intarsia.server.sampler.settings import Settings, Until
    from intarsia.server.sampler.sparse.sample import SparseModel, sample

    X, Y, C = data(case, seed)
    before = high_mb()
    began = time.perf_counter()
    settings = Settings(budget, seed=seed, workers=workers, backend=case.backend, until=Until())
    draws = sample(X, Y, SparseModel(compare=False), settings)
    sampled = time.perf_counter() - began
    found = diagnose(draws, workers=workers)
    chosen = select(draws, X=X)
    seconds = time.perf_counter() - began
    true = np.flatnonzero(C.any(axis=1))
    lower, upper = draws.quantile([0.025, 0.975], true)
    hit = {int(p) for finding in chosen.findings for p in finding}
    false = sum(not set(map(int, finding)) & set(map(int, true)) for finding in chosen.findings)
    out = {
        "P": case.P, "m": case.m, "Q": case.Q, "s": case.s, "design": case.design, "seed": seed,
        "device": draws.info["device"], "machine": platform.machine(), "workers": workers,
        "seconds_to_answer": round(seconds, 1), "core_seconds": round(sum(draws.info["chain_seconds"]), 1),
        "seconds_sampling": round(sampled, 1), "draws": draws.draws, "sweeps": draws.info["sweeps"],
        "ms_per_sweep": round(float(np.mean(draws.info["ms_per_sweep"])), 1), "converged": found.converged,
        "rhat_max": round(float(np.nanmax(found.rhat)), 4), "ess_min": round(float(np.nanmin(found.ess_bulk))),
        "pip_gap": round(float(found.pip_gap or 0.0), 3),
        "power": round(len(hit & set(map(int, true))) / len(true), 3), "false": false, "findings": len(chosen.findings),
        "coverage_nz": round(float(((lower <= C[true]) & (C[true] <= upper)).mean()), 3),
        "peak_host_gb": round((high_mb() - before) / 1024, 2),
    }  # fmt: skip
    if case.P <= LARGEST_FOR_LASSO and case.design == "independent":
        out |= lasso(X, Y, true)
    return out if beside is None else out | prototype(beside, X, Y, true, draws.info["sweeps"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(TWO_CORES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--seeds", nargs="*", type=int, default=[1])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--draws", type=int, help="per chain at most (default: the sampler's)")
    parser.add_argument("--beside", help="a Python file with the function chain")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    rows = json.loads(args.out.read_text()) if args.out.exists() else []
    answer(CASES["300"], 0, args.workers, None)
    for case in args.cases:
        for seed in args.seeds:
            row = {"case": case, **answer(CASES[case], seed, args.workers, args.draws, args.beside)}
            rows = [old for old in rows if (old["case"], old["seed"]) != (case, seed)] + [row]
            keep(args.out, rows)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
