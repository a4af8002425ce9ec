"""The paper's Simulation 1, every cell: the fit to three sites' Gram matrix beside the fit to the pooled rows.

    python -m experiments.gram_simulation              # kept in results/gram_simulation.json; minutes
    python -m experiments.gram_simulation --sets 1     # a look, nothing kept

n = 500, P = 300, Q = 5, s = 10, 30, 50 features that matter. The columns are standardised, encoded and multiplied modulo 2⁶⁴
as the sites do; a root of the decoded matrix goes to the sampler. (A study would be refused: more than one column per three
subjects. The mathematics is what is measured.) `draws_apart` is the largest difference between the first draws of both fits,
from the same random numbers; over a whole run the last digits part the chains, so error and coverage are compared as they
come out.
"""

import argparse
import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402

from experiments.kept import keep  # noqa: E402
from experiments.paper import metrics  # noqa: E402
from experiments.paper.designs.simulations import SIM1  # noqa: E402
from experiments.paper.simulate import simulate  # noqa: E402
from intarsia.server.pseudo_rows import root  # noqa: E402
from intarsia.server.sampler.horseshoe.sample import sample  # noqa: E402
from intarsia.server.sampler.settings import Settings  # noqa: E402
from intarsia.wire.ring import decode, encode, fraction_bits, product  # noqa: E402

RESULT = Path(__file__).parent / "results" / "gram_simulation.json"
RUN = Settings(draws=300, warmup=250, chains=2, thin=1, workers=1)
FIRST = Settings(draws=4, warmup=4, chains=1, thin=1, workers=1)


def matrix(D: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The Gram matrix of standardised columns as the sites' whole numbers give it."""
    bits = fraction_bits(len(D))
    code = encode(D, bits, rng.random(D.shape))
    return decode(product(code, code), bits)


def measured(cell: Any, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    data = simulate(cell.scenario, rng)
    D = np.column_stack([data.X, data.Y])
    n, P = len(D), data.X.shape[1]
    scale = D.std(axis=0, ddof=1)
    D = (D - D.mean(axis=0)) / scale
    basis = np.linalg.qr(np.column_stack([np.ones(n), np.eye(n)[:, :-1]]))[0][:, 1:]
    W, rows = root(matrix(D, rng)), basis.T @ D
    ways = {"gram": (W, n - 1), "pooled": (rows, None)}
    first = [sample(R[:, :P], R[:, P:], settings=replace(FIRST, seed=seed), degrees=k).C for R, k in ways.values()]
    out: dict[str, Any] = {"cell": cell.label, "seed": seed, "draws_apart": float(np.abs(first[0] - first[1]).max())}
    for name, (R, degrees) in ways.items():
        draws = sample(R[:, :P], R[:, P:], settings=replace(RUN, seed=seed), degrees=degrees)
        C = draws.C.reshape(-1, *draws.C.shape[2:]) * scale[P:] / scale[:P, None]
        low, high = np.quantile(C, [0.025, 0.975], axis=0)
        out[name] = {
            "mse_nz": metrics.mse_nonzero(C.mean(axis=0), data.C), "coverage": metrics.coverage(low, high, data.C),
            "coverage_nz": metrics.coverage(low, high, data.C, data.C != 0),
        }  # fmt: skip
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=3, help="data sets per cell")
    args = parser.parse_args()
    rows = []
    for cell in SIM1.cells["full"]:
        for seed in range(args.sets):
            rows.append(measured(cell, seed))
            print(json.dumps(rows[-1]), flush=True)
    if args.sets == parser.get_default("sets"):
        made = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "command": "python -m experiments.gram_simulation", "rows": rows}
        keep(RESULT, made)


if __name__ == "__main__":
    main()
