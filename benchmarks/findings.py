"""What a stated false discovery rate is worth where features stand in for each other: `python -m benchmarks.findings`.

Twins: two features correlated at r, one of them true with an effect of 1.3 noise sd; a finding (a feature or a set) that holds
the true one counts as found. AR(1): neighbours correlated at .9. Confounded: a feature that acts only through a covariate.
Rows go to benchmarks/results/findings.json.
"""

import json
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.server.covariates import Covariates, sample_adjusted
from intarsia.server.results.selection import select
from intarsia.server.sampler.sample import sample
from intarsia.server.sampler.settings import Settings

TARGET = Path(__file__).parent / "results" / "findings.json"
m, P, Q, DATA_SETS = 200, 100, 3, 20
RUN = Settings(draws=400, warmup=300, chains=2, thin=2, workers=1)


def twins(r: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, responses and coefficients; features 0 and 1 are the twins, 0 is true, six others are true as well."""
    X = rng.standard_normal((m, P))
    X[:, 1] = r * X[:, 0] + np.sqrt(1 - r * r) * rng.standard_normal(m)
    C = np.zeros((P, Q))
    direction = rng.standard_normal(Q)
    C[0] = 1.3 * direction / np.linalg.norm(direction)
    C[10:16] = 0.5 * rng.standard_normal((6, Q))
    return X, X @ C + rng.standard_normal((m, Q)), C


def neighbours(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X = rng.standard_normal((m, P))
    for p in range(1, P):
        X[:, p] = 0.9 * X[:, p - 1] + np.sqrt(1 - 0.81) * X[:, p]
    C = np.zeros((P, Q))
    C[5::12] = 0.5 * rng.standard_normal((len(range(5, P, 12)), Q))
    return X, X @ C + rng.standard_normal((m, Q)), C


def judge(name: str, seed: int, make: Any) -> dict[str, Any]:
    """One row: how often the first true feature is found at all and alone, and the false discovery rate over findings."""
    total = dict.fromkeys(("found", "alone", "findings", "false", "true", "hit"), 0)
    began = time.perf_counter()
    for number in range(DATA_SETS):
        X, Y, C = make(np.random.default_rng([seed, number]))
        draws = sample(X / X.std(axis=0), Y / Y.std(axis=0), settings=replace(RUN, seed=number))
        true = C.any(axis=1)
        chosen = select(draws, X=X)
        first = int(np.flatnonzero(true)[0])
        total["found"] += any(first in finding for finding in chosen.findings)
        total["alone"] += bool(chosen.selected[first])
        total["findings"] += len(chosen.findings)
        total["false"] += sum(not true[finding].any() for finding in chosen.findings)
        total["true"] += int(true.sum())
        total["hit"] += int(true[np.concatenate([*chosen.findings, np.empty(0, dtype=int)]).astype(int)].sum())
    return {
        "case": name, "data_sets": DATA_SETS, "found": total["found"], "alone": total["alone"], "findings": total["findings"],
        "false": total["false"], "power": round(total["hit"] / total["true"], 3),
        "seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip


def confounded(seed: int) -> dict[str, Any]:
    """A feature correlated at .8 with a covariate that acts on every response."""
    plain = adjusted = 0
    began = time.perf_counter()
    for number in range(DATA_SETS):
        rng = np.random.default_rng([seed, number])
        z, X = rng.standard_normal((m, 1)), rng.standard_normal((m, P))
        X[:, 0] = 0.8 * z[:, 0] + 0.6 * X[:, 0]
        C = np.zeros((P, Q))
        C[10:16] = 0.5 * rng.standard_normal((6, Q))
        Y = X @ C + z + rng.standard_normal((m, Q))

        def run(X: np.ndarray, Y: np.ndarray, number: int = number) -> Any:
            return sample(X, Y, settings=replace(RUN, seed=number))

        plain += any(0 in finding for finding in select(run(X, Y), X=X).findings)
        fitted = sample_adjusted(run, X, Y, Covariates(z, ("age",)), number)
        adjusted += any(0 in finding for finding in select(fitted.draws, X=fitted.X).findings)
    return {
        "case": "confounded", "data_sets": DATA_SETS, "found_without_adjusting": plain, "found_adjusted": adjusted,
        "seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip


def main() -> None:
    warnings.simplefilter("ignore")
    wanted = sys.argv[1:]
    cases: dict[str, Any] = {
        "twins .97": lambda: judge("twins .97", 7, lambda rng: twins(0.97, rng)),
        "twins .995": lambda: judge("twins .995", 8, lambda rng: twins(0.995, rng)),
        "ar1 .9": lambda: judge("ar1 .9", 9, neighbours),
        "confounded": lambda: confounded(10),
    }
    rows = {row["case"]: row for row in json.loads(TARGET.read_text())} if TARGET.exists() else {}
    for name, case in cases.items():
        if not wanted or name in wanted:
            rows[name] = case()
            print(json.dumps(rows[name]), flush=True)
            TARGET.write_text("[\n" + ",\n".join(json.dumps(rows[key]) for key in cases if key in rows) + "\n]\n")


if __name__ == "__main__":
    main()
