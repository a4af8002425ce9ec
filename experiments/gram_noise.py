"""A noisy Gram matrix with its noise known to the fit: are intervals of coefficients calibrated?

    python -m experiments.gram_noise              # kept in results/gram_noise.json; minutes
    python -m experiments.gram_noise --sets 2     # a look, nothing kept

Rows of normal columns are clipped to norm B = 1.1·√columns, the noise is that of the analytic Gaussian mechanism at ε, δ = 1e-6
(s = B²/(μ√2) beside the diagonal, s√2 on it). Two fits under a flat prior: `drawn` draws the exact matrix G given the noisy
one and the covariance Ω of the rows, then Ω given G; `taken` takes the noisy matrix as exact (negative eigenvalues out). G given
Ω is drawn with the Wishart law taken as normal: in the eigenvectors of Ω its entries are independent. `coverage` is the share of
95 % intervals with the clipped law's coefficient in them, `rmse` the root mean squared error of the mean.
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
from scipy.stats import invwishart  # noqa: E402

from experiments.gram_privacy import mu_of  # noqa: E402
from experiments.kept import keep  # noqa: E402

RESULT = Path(__file__).parent / "results" / "gram_noise.json"
TRUE, EFFECT = 5, 0.2
SWEEPS, FIRST = 450, 150
LAW_ROWS = 2_000_000  # rows from which the clipped law's coefficients are computed, in blocks


def rows(rng: np.random.Generator, n: int, P: int) -> np.ndarray:
    """Features, then the response; clipped."""
    X = rng.standard_normal((n, P))
    y = EFFECT * X[:, :TRUE].sum(axis=1) + np.sqrt(1 - TRUE * EFFECT**2) * rng.standard_normal(n)
    D = np.column_stack([X, y])
    return D * np.minimum(1.0, 1.1 * np.sqrt(P + 1) / np.linalg.norm(D, axis=1))[:, None]


def law(P: int) -> np.ndarray:
    """Coefficients of the clipped law: by symmetry one for the features that matter, and none for the rest."""
    rng, G = np.random.default_rng([P, 7]), np.zeros((P + 1, P + 1))
    for _ in range(LAW_ROWS // 50_000):
        D = rows(rng, 50_000, P)
        G += D.T @ D
    return np.where(np.arange(P) < TRUE, np.linalg.solve(G[:P, :P], G[:P, P])[:TRUE].mean(), 0.0)


def drawn_matrix(rng: np.random.Generator, noisy: np.ndarray, Omega: np.ndarray, n: int, s: float) -> np.ndarray:
    """G given the noisy matrix and the rows' covariance, the Wishart law taken as normal; drawn again until it is positive."""
    values, V = np.linalg.eigh(Omega)
    before = n * np.outer(values, values)
    weight = before / (before + s**2)
    mean = np.diag(n * values) * (1 - weight) + weight * (V.T @ noisy @ V)
    for _ in range(100):
        E = rng.standard_normal(noisy.shape)
        G = mean + np.sqrt(before * s**2 / (before + s**2)) * (E + E.T) / np.sqrt(2)
        if np.linalg.eigvalsh(G)[0] > 0:
            break
    return V @ G @ V.T


def measured(n: int, P: int, epsilon: float, truth: np.ndarray, seed: int) -> dict[str, tuple[float, float]]:
    rng, c = np.random.default_rng([n, P, int(epsilon), seed]), P + 1
    s = 1.21 * c / mu_of(epsilon) / np.sqrt(2)
    D, N = rows(rng, n, P), rng.standard_normal((c, c))
    noisy = D.T @ D + s * (N + N.T) / np.sqrt(2)
    values, V = np.linalg.eigh(noisy)
    out = {}
    for way, floor in (("drawn", 0.1), ("taken", 1e-3)):
        start = (V * np.maximum(values, floor * n)) @ V.T
        Omega, kept = start / n, []
        for sweep in range(SWEEPS):
            G = drawn_matrix(rng, noisy, Omega, n, s) if way == "drawn" else start
            Omega = invwishart.rvs(n + c + 1, G + np.eye(c), random_state=rng)
            if sweep >= FIRST:
                kept.append(np.linalg.solve(Omega[:P, :P], Omega[:P, P]))
        low, high = np.quantile(kept, [0.025, 0.975], axis=0)
        covered = float(((low <= truth) & (truth <= high)).mean())
        out[way] = (covered, float(np.sqrt(np.mean((np.mean(kept, axis=0) - truth) ** 2))))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=10, help="data sets per size")
    args = parser.parse_args()
    table: list[dict[str, Any]] = []
    for P in (20, 60):
        truth = law(P)
        for epsilon in (1.0, 3.0, 10.0):
            for n in (1_000, 10_000, 100_000):
                found = [measured(n, P, epsilon, truth, seed) for seed in range(args.sets)]
                row: dict[str, Any] = {"columns": P + 1, "epsilon": epsilon, "n": n}
                for way in ("drawn", "taken"):
                    coverage, rmse = np.mean([one[way] for one in found], axis=0)
                    row[way] = {"coverage": round(float(coverage), 3), "rmse": float(f"{rmse:.3g}")}
                table.append(row)
                print(json.dumps(row), flush=True)
    if args.sets == parser.get_default("sets"):
        made = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "command": "python -m experiments.gram_noise", "sets": args.sets}
        keep(RESULT, made | {"rows": table})


if __name__ == "__main__":
    main()
