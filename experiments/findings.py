"""What a stated false discovery rate is worth where features stand in for each other: `python -m experiments.findings`.

Twins: two features correlated at r, one of them true with an effect of 1.3 noise sd; triplets: three. A finding (a feature or a
set) that holds the true one counts as found. AR(1): neighbours correlated at .9. Confounded: a feature that acts only through
a covariate. Rows go to experiments/results/findings.json, one per case; a case with as many data sets is not run again.
"""

import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from experiments import resumed  # before NumPy: it sets one thread for each process
from experiments.kept import keep

import numpy as np  # isort: skip

from intarsia.server.assess.findings import select
from intarsia.server.covariates import Covariates, sample_adjusted
from intarsia.server.sampler.horseshoe.sample import sample
from intarsia.server.sampler.settings import Settings

TARGET = Path(__file__).parent / "results" / "findings.json"
m, P, Q, DATA_SETS = 200, 100, 3, 60
RUN = Settings(draws=400, warmup=300, chains=2, thin=2, workers=1)


Problem = tuple[np.ndarray, np.ndarray, np.ndarray]


def twins(r: float, copies: int, rng: np.random.Generator) -> Problem:
    """Rows, responses and coefficients; the first features are twins of feature 0, which is true, as are six others."""
    X = rng.standard_normal((m, P))
    for p in range(1, copies):
        X[:, p] = r * X[:, 0] + np.sqrt(1 - r * r) * rng.standard_normal(m)
    C = np.zeros((P, Q))
    direction = rng.standard_normal(Q)
    C[0] = 1.3 * direction / np.linalg.norm(direction)
    C[10:16] = 0.5 * rng.standard_normal((6, Q))
    return X, X @ C + rng.standard_normal((m, Q)), C


def neighbours(rng: np.random.Generator) -> Problem:
    X = rng.standard_normal((m, P))
    for p in range(1, P):
        X[:, p] = 0.9 * X[:, p - 1] + np.sqrt(1 - 0.81) * X[:, p]
    C = np.zeros((P, Q))
    C[5::12] = 0.5 * rng.standard_normal((len(range(5, P, 12)), Q))
    return X, X @ C + rng.standard_normal((m, Q)), C


def judge(make: Callable[[np.random.Generator], Problem], seed: int, number: int) -> dict[str, int]:
    """One data set: is the first true feature found, and alone; how many findings are there, and how many false ones."""
    warnings.simplefilter("ignore")
    X, Y, C = make(np.random.default_rng([seed, number]))
    draws = sample(X / X.std(axis=0), Y / Y.std(axis=0), settings=replace(RUN, seed=number))
    true, chosen = C.any(axis=1), select(draws, X=X)
    first = int(np.flatnonzero(true)[0])
    named = np.concatenate([*chosen.findings, np.empty(0, dtype=int)]).astype(int)
    return {
        "found": int(any(first in finding for finding in chosen.findings)), "alone": int(chosen.selected[first]),
        "findings": len(chosen.findings), "false": sum(not true[finding].any() for finding in chosen.findings),
        "true": int(true.sum()), "hit": int(true[named].sum()),
    }  # fmt: skip


def confounded(seed: int, number: int) -> dict[str, int]:
    """A feature correlated at .8 with a covariate that acts on every response."""
    warnings.simplefilter("ignore")
    rng = np.random.default_rng([seed, number])
    z, X = rng.standard_normal((m, 1)), rng.standard_normal((m, P))
    X[:, 0] = 0.8 * z[:, 0] + 0.6 * X[:, 0]
    C = np.zeros((P, Q))
    C[10:16] = 0.5 * rng.standard_normal((6, Q))
    Y = X @ C + z + rng.standard_normal((m, Q))

    def run(X: np.ndarray, Y: np.ndarray) -> Any:
        return sample(X, Y, settings=replace(RUN, seed=number))

    plain = any(0 in finding for finding in select(run(X, Y), X=X).findings)
    fitted = sample_adjusted(run, X, Y, Covariates(z, ("age",)), number)
    adjusted = any(0 in finding for finding in select(fitted.draws, X=fitted.X).findings)
    return {"found_without_adjusting": int(plain), "found_adjusted": int(adjusted)}


CASES: dict[str, Callable[[int], dict[str, int]]] = {
    "twins .97": partial(judge, partial(twins, 0.97, 2), 7),
    "twins .995": partial(judge, partial(twins, 0.995, 2), 8),
    "triplets .97": partial(judge, partial(twins, 0.97, 3), 11),
    "triplets .995": partial(judge, partial(twins, 0.995, 3), 12),
    "ar1 .9": partial(judge, neighbours, 9),
    "confounded": partial(confounded, 10),
}


def together(name: str, parts: list[dict[str, int]], seconds: float) -> resumed.Row:
    """One row per case: sums over its data sets."""
    total = {key: sum(part[key] for part in parts) for key in parts[0]}
    if "hit" in total:
        hit, true = total.pop("hit"), total.pop("true")
        total["power"] = round(hit / true, 3)  # type: ignore[assignment]
    return {"case": name, "data_sets": len(parts), **total, "seconds": round(seconds, 1)}


def main() -> None:
    parser = resumed.options(__doc__, TARGET, DATA_SETS)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    args = parser.parse_args()
    rows = {row["case"]: row for row in resumed.kept(args.out)}
    wanted = [name for name in args.cases if rows.get(name, {}).get("data_sets", 0) < args.sets]
    with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
        began = time.perf_counter()
        waiting = {name: [pool.submit(CASES[name], number) for number in range(args.sets)] for name in wanted}
        for name, parts in waiting.items():
            rows[name] = together(name, [part.result() for part in parts], time.perf_counter() - began)
            print(rows[name], flush=True)
            keep(args.out, [rows[key] for key in CASES if key in rows])


if __name__ == "__main__":
    main()
