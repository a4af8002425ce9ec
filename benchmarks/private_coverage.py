"""Coverage and false discoveries of the sampler that knows the privacy noise, where the responses' own noise correlates.

    python -m benchmarks.private_coverage --jobs 16

P = 60 equicorrelated features (.3), eight of them with coefficients N(0, .6²), Q = 3 responses, m = 300 sketch rows; every column
carries privacy noise of a known variance (share of the column's own), the responses' own noise correlates by rho_e. Fitted
with the full Sigma and, for comparison, with independent noise. Rows go to benchmarks/results/private_coverage.json.
"""

from pathlib import Path

from benchmarks import resumed  # before NumPy: it sets one thread for each process

import numpy as np  # isort: skip

from intarsia.server.assess.convergence import diagnose
from intarsia.server.assess.findings import select
from intarsia.server.sampler.errors_in_variables import PrivacyNoise
from intarsia.server.sampler.horseshoe.model import Model
from intarsia.server.sampler.horseshoe.sample import sample_noisy
from intarsia.server.sampler.settings import Settings

RESULT = Path(__file__).parent / "results" / "private_coverage.json"
P, Q, SIGNALS, ROWS, SUBJECTS = 60, 3, 8, 300, 10**5
Task = tuple[float, float, str, int]  # rho_e, share, noise, seed


def key(task: Task) -> resumed.Row:
    return dict(zip(("rho_e", "share", "model", "seed"), task, strict=True))


def one(task: Task, draws: int = 600, warmup: int = 300) -> resumed.Row:
    rho, share, noise, seed = task
    rng = np.random.default_rng([seed, 23])
    X = np.sqrt(0.7) * rng.standard_normal((ROWS, P)) + np.sqrt(0.3) * rng.standard_normal((ROWS, 1))
    C = np.zeros((P, Q))
    C[rng.choice(P, SIGNALS, replace=False)] = rng.normal(0.0, 0.6, (SIGNALS, Q))
    E = np.sqrt(rho) * rng.standard_normal((ROWS, 1)) + np.sqrt(1 - rho) * rng.standard_normal((ROWS, Q))
    Y = X @ C + E
    width = Y.std(axis=0)
    Y, C, Sigma = Y / width, C / width, (rho + (1 - rho) * np.eye(Q)) / np.outer(width, width)
    Z = X + np.sqrt(share) * rng.standard_normal(X.shape)
    W = Y + np.sqrt(share) * rng.standard_normal(Y.shape)
    level = np.sqrt(share * SUBJECTS)
    known = PrivacyNoise(SUBJECTS, np.full(P, level), np.full(Q, level))
    run = sample_noisy(Z, W, known, Model(noise=noise), Settings(draws, warmup, 2, 1, seed, workers=1))
    flat = run.C.reshape(-1, P, Q)
    low, high = np.quantile(flat, [0.025, 0.975], axis=0)
    inside, nonzero, true = (low <= C) & (high >= C), C != 0, C.any(axis=1)
    found = select(run.C).selected
    off = np.triu_indices(Q, 1)
    return {
        "coverage_nz": float(inside[nonzero].mean()), "coverage_zero": float(inside[~nonzero].mean()),
        "mse_nz": float(np.square(flat.mean(axis=0) - C)[nonzero].mean()),
        "fdp": float((found & ~true).sum() / max(1, found.sum())), "power": float((found & true).sum() / true.sum()),
        "sigma2_ratio": float(np.mean(np.diag(run.Sigma.mean(axis=(0, 1))) / np.diag(Sigma))),
        "sigma_off": float(np.mean(run.Sigma.mean(axis=(0, 1))[off] - Sigma[off])),
        "rhat_max": float(np.nanmax(diagnose(run.C, workers=1).rhat)),
    }  # fmt: skip


def table(rows: list[resumed.Row]) -> str:
    lines = ["rho_e share model | sets coverage_nz coverage_zero MSE_nz FDR power noise variance/truth, covariance − truth, R̂"]
    for at in sorted({(row["rho_e"], row["share"], row["model"]) for row in rows}):
        mine = [row for row in rows if (row["rho_e"], row["share"], row["model"]) == at]
        names = ("coverage_nz", "coverage_zero", "mse_nz", "fdp", "power", "sigma2_ratio", "sigma_off")
        means = " ".join(f"{np.mean([row[name] for row in mine]):.4f}" for name in names)
        lines.append(f"{at} | {len(mine)} {means} {max(row['rhat_max'] for row in mine):.3f}")
    return "\n".join(lines)


def main() -> None:
    args = resumed.options(__doc__, RESULT, 20).parse_args()
    cells = [(rho, share, "correlated") for rho in (0.0, 0.6, 0.9) for share in (0.1, 0.3)]
    cells.append((0.6, 0.1, "independent"))
    tasks = [(*cell, seed) for cell in cells for seed in range(args.sets)]
    print(table(resumed.gather(tasks, key, one, args.out, args.jobs)))


if __name__ == "__main__":
    main()
