"""False discoveries, power, coverage and error where the responses' noise correlates: the promise on users' ground.

    make bench-correlated                       # 20 data sets per cell, every core
    python -m benchmarks.correlated --sets 2    # a look

n = 1000 subjects, P = 300 features, 15 of them with coefficients N(0, .6²), m = 200 sketch rows; noise of variance 1 that
correlates by rho_e between any two responses, or is Student t (4 degrees of freedom); features independent, AR(1) or in blocks;
coefficients in every response or in one response of three. Results are kept in benchmarks/results/correlated.json as they come; a
run goes on where the last one stopped.
"""

from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import resumed  # before NumPy: it sets one thread for each process

import numpy as np  # isort: skip

from intarsia.server.assess.convergence import diagnose
from intarsia.server.assess.findings import select
from intarsia.server.sampler.horseshoe.model import Model
from intarsia.server.sampler.horseshoe.sample import sample
from intarsia.server.sampler.settings import Settings

RESULT = Path(__file__).parent / "results" / "correlated.json"
N, P, SIGNALS, ROWS = 1000, 300, 15, 200


class Cell(NamedTuple):
    """One kind of data."""

    Q: int
    rho_e: float
    features: str = "independent"  # or "ar1", "blocks"
    noise: str = "normal"  # or "t4"
    size: float = 0.6
    entry: float = 1.0  # share of a feature's coefficients that are not nought


CELLS = [Cell(Q, rho) for Q in (5, 18) for rho in (0.0, 0.3, 0.6, 0.9)]
HARDER = [
    Cell(5, 0.6, noise="t4"),
    Cell(5, 0.6, features="ar1"),
    Cell(5, 0.6, features="blocks"),
    Cell(5, 0.6, entry=1 / 3),
    Cell(5, 0.6, size=0.2),
]


def make(cell: Cell, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sketches (m×P), (m×Q) and the truth."""
    rng = np.random.default_rng([seed, 7])
    X = rng.standard_normal((N, P))
    if cell.features == "ar1":
        for p in range(1, P):
            X[:, p] = 0.9 * X[:, p - 1] + np.sqrt(1 - 0.81) * X[:, p]
    elif cell.features == "blocks":
        X = np.sqrt(0.5) * X + np.sqrt(0.5) * np.repeat(rng.standard_normal((N, P // 10)), 10, axis=1)
    C = np.zeros((P, cell.Q))
    chosen = rng.choice(P, SIGNALS, replace=False)
    C[chosen] = rng.normal(0.0, cell.size, (SIGNALS, cell.Q)) * (rng.random((SIGNALS, cell.Q)) < cell.entry)
    common, own = rng.standard_normal((N, 1)), rng.standard_normal((N, cell.Q))
    E = np.sqrt(cell.rho_e) * common + np.sqrt(1 - cell.rho_e) * own
    if cell.noise == "t4":
        E *= np.sqrt(2 / rng.chisquare(4, (N, 1)) * 2) / np.sqrt(2)
    Y = X @ C + E
    G = rng.standard_normal((ROWS, N))
    Phi = np.linalg.qr((G - G.mean(axis=1, keepdims=True)).T)[0].T
    return Phi @ X, Phi @ Y, C


def key(task: tuple[Cell, int, str]) -> resumed.Row:
    cell, seed, noise = task
    return cell._asdict() | {"seed": seed, "model": noise}


def one(task: tuple[Cell, int, str]) -> resumed.Row:
    """Errors, coverage and selection on one data set."""
    cell, seed, noise = task
    X, Y, C = make(cell, seed)
    draws = sample(X, Y, Model(noise=noise), Settings(draws=500, warmup=400, chains=2, thin=4, seed=seed, workers=1))
    found = select(draws.C, fdr=0.05).selected
    true, nonzero = np.any(C != 0, axis=1), C != 0
    flat = draws.C.reshape(-1, *C.shape)
    low, high = np.quantile(flat, [0.025, 0.975], axis=0)
    mean = flat.mean(axis=0)
    covered = (low <= C) & (high >= C)
    return {
        "fdp": float((found & ~true).sum() / max(1, found.sum())),
        "power": float((found & true).sum() / true.sum()),
        "coverage_nz": float(covered[nonzero].mean()),
        "coverage_zero": float(covered[~nonzero].mean()),
        "mse_nz": float(np.square(mean - C)[nonzero].mean()),
        "mse_zero": float(np.square(mean - C)[~nonzero].mean()),
        "noise_variance": float(np.diagonal(draws.Sigma, axis1=2, axis2=3).mean()),  # truth: 1
        "rhat_max": float(np.nanmax(diagnose(draws.C, workers=1).rhat)),
        "ms_per_sweep": float(np.mean(draws.info["ms_per_sweep"])),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Means per cell."""
    lines = ["Q  rho_e features noise size entry model | sets FDR power coverage_nz MSE_nz MSE_zero R̂ ms/sweep"]
    keys = [tuple(row[name] for name in (*Cell._fields, "model")) for row in rows]
    for key in sorted(set(keys), key=str):
        mine = [row for row, k in zip(rows, keys, strict=True) if k == key]

        def mean(name: str, mine: list[dict[str, Any]] = mine) -> float:
            return float(np.mean([row[name] for row in mine]))

        lines.append(
            " ".join(str(part if not isinstance(part, float) else round(part, 2)) for part in key)
            + f" | {len(mine)} {mean('fdp'):.3f} {mean('power'):.3f} {mean('coverage_nz'):.3f} {mean('mse_nz'):.4f} "
            f"{mean('mse_zero'):.5f} {max(row['rhat_max'] for row in mine):.3f} {mean('ms_per_sweep'):.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = resumed.options(__doc__, RESULT, 20)
    parser.add_argument("--first", type=int, default=0, help="seed of the first data set")
    parser.add_argument("--noise", nargs="+", default=["correlated"], help="models to fit: correlated, independent")
    parser.add_argument("--responses", type=int, nargs="+", default=[5, 18], help="cells with so many responses")
    parser.add_argument("--plain", action="store_true", help="the cells of correlated noise alone, without the harder ones")
    args = parser.parse_args()
    cells = [cell for cell in CELLS + ([] if args.plain else HARDER) if cell.Q in args.responses]
    seeds = range(args.first, args.first + args.sets)
    tasks = [(cell, seed, noise) for noise in args.noise for cell in cells for seed in seeds]
    tasks.sort(key=lambda task: -task[0].Q)
    print(table(resumed.gather(tasks, key, one, args.out, args.jobs)))


if __name__ == "__main__":
    main()
