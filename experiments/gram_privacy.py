"""Differential privacy of a Gram matrix beside that of a sketch, at the same ε and δ: how much of the coefficients is left?

    python -m experiments.gram_privacy            # kept in results/gram_privacy.json; a minute

Rows are clipped to a public norm B. A sketch of m rows has the noise that `intarsia.privacy.dp` asks for. A Gram matrix gets
symmetric Gaussian noise: setting one row x to zero changes it by xxᵀ, of Frobenius norm at most B², so noise of standard
deviation B²/μ on the diagonal and B²/(μ√2) elsewhere is μ-GDP, with μ by the exact accounting (the analytic Gaussian
mechanism). Both know their noise: it is taken off the sketch's squares; each gets the ridge penalty, and the sketch the m, that
serves it best, so that the comparison does not rest on how they are chosen. `kept` is 1 − squared error of the coefficients over
their squares, on average over data sets: 1 is perfect, 0 is as good as none.
"""

import argparse
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
from scipy.optimize import brentq  # noqa: E402

from experiments.kept import keep  # noqa: E402
from intarsia.privacy.dp import calibrate, gdp_epsilon  # noqa: E402

RESULT = Path(__file__).parent / "results" / "gram_privacy.json"
DELTA, TRUE, EFFECT, SETS = 1e-6, 5, 0.2, 4
PENALTIES = np.concatenate([[0.0], np.logspace(-4, 2, 25)])


def mu_of(epsilon: float) -> float:
    return float(brentq(lambda mu: gdp_epsilon(mu, DELTA) - epsilon, 1e-6, 50.0))


def cohort(rng: np.random.Generator, n: int, P: int, bound: float) -> tuple[np.ndarray, np.ndarray]:
    """Standardised columns, the response last, rows clipped to the bound; and the true coefficients."""
    beta = np.zeros(P)
    beta[rng.choice(P, TRUE, replace=False)] = EFFECT * rng.choice([-1, 1], TRUE)
    X = rng.standard_normal((n, P))
    y = X @ beta + np.sqrt(1 - TRUE * EFFECT**2) * rng.standard_normal(n)
    D = np.column_stack([X, y])
    return D * np.minimum(1.0, bound / np.linalg.norm(D, axis=1))[:, None], beta


def best(G: np.ndarray, beta: np.ndarray) -> float:
    """How much of the coefficients the best ridge leaves, from products per subject G; columns' directions without signal out."""
    P = len(beta)
    values, vectors = np.linalg.eigh(G[:P, :P])
    along = vectors.T @ G[:P, P]
    kept = []
    for penalty in PENALTIES:
        weight = np.where(values + penalty > 0.05, 1 / np.maximum(values + penalty, 0.05), 0.0)
        kept.append(1 - np.sum((vectors @ (weight * along) - beta) ** 2) / np.sum(beta**2))
    return max(0.0, *kept)


def measured(n: int, P: int, epsilon: float) -> dict[str, Any]:
    bound = 1.1 * np.sqrt(P + 1)
    mu = mu_of(epsilon)
    found: dict[str, list[float]] = {"pooled": [], "gram": [], "sketch": []}
    for seed in range(SETS):
        rng = np.random.default_rng([n, P, int(10 * epsilon), seed])
        D, beta = cohort(rng, n, P, bound)
        G = D.T @ D / n
        found["pooled"].append(best(G, beta))
        noise = rng.standard_normal(G.shape)
        found["gram"].append(best(G + (noise + noise.T) / 2 * bound**2 / mu / n, beta))
        root = np.linalg.cholesky(G).T
        tries = []
        for m in sorted({50, 100, 200, 400, 800, min(n // 4, 2000)}):
            if m > n // 4:
                continue
            w2 = bound**2 / calibrate(epsilon, DELTA, m) / n
            # Rows of a gaussian sketch are N(0, XᵀX/n) to whoever does not know Φ.
            rows = rng.standard_normal((m, P + 1)) @ root + np.sqrt(w2) * rng.standard_normal((m, P + 1))
            tries.append(best(rows.T @ rows / m - w2 * np.eye(P + 1), beta))
        found["sketch"].append(max(tries))
    return {"n": n, "columns": P + 1, "epsilon": epsilon, **{name: round(float(np.mean(v)), 3) for name, v in found.items()}}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    rows = []
    for P in (20, 100, 300):
        for epsilon in (1.0, 4.0):
            for n in (1_000, 10_000, 100_000):
                rows.append(measured(n, P, epsilon))
                print(json.dumps(rows[-1]), flush=True)
    made = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "command": "python -m experiments.gram_privacy", "delta": DELTA}
    keep(RESULT, made | {"rows": rows})


if __name__ == "__main__":
    main()
