"""Prediction on public data: out-of-fold R² beside a ridge tuned on the same sketch, and how much the 95 % intervals cover.

    INTARSIA_DATA=FOLDER make bench-real

Each set of `experiments.paper.realdata` in five folds, with sketches of n/4 and n/2 rows and with all rows. The ridge takes one
penalty per response by leave-one-out over the rows of the sketch that intarsia gets. Results are kept in
experiments/results/real.json as they come; a run goes on where the last one stopped. FOLDER may hold NAME.npz (arrays X and Y)
in place of a set's own folder, for machines without pandas: `--convert FOLDER` writes them.
"""

import os
import time
from pathlib import Path

from experiments import resumed  # before NumPy: it sets one thread for each process

import numpy as np  # isort: skip
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold

from experiments.local_fit import LocalFit, local_fit
from intarsia.server.assess.stacking import FOLDS as PARTS
from intarsia.server.sampler.settings import Settings

RESULT = Path(__file__).parent / "results" / "real.json"
FOLDS, RUN = 5, {"draws": 300, "warmup": 400, "chains": 2, "thin": 4}
ROWS = {"n/4": 4, "n/2": 2, "all": None}
Z95 = 1.959964
# The sets of `experiments.paper.realdata`, the dearest first.
COST = {"devfmri_basc64": 4, "wheat_cimmyt": 3, "yeast_cellcycle": 2, "fate_motor_hetero": 1}
PUBLIC = tuple(COST)
Array = np.ndarray


def arrays(name: str) -> tuple[Array, Array]:
    """X and Y of a set."""
    path = Path(os.environ.get("INTARSIA_DATA", "")) / f"{name}.npz"
    if path.exists():
        kept = np.load(path, allow_pickle=False)
        return kept["X"], kept["Y"]
    from experiments.paper.realdata import load

    data = load(name)
    return data.X, data.Y


def key(task: tuple[str, str, int]) -> resumed.Row:
    return dict(zip(("set", "rows", "fold"), task, strict=True))


def parts(task: tuple[str, str, int]) -> tuple[Array, Array, Array, Array, int | None]:
    """Training and held-out rows, and the rows of the sketch."""
    name, rows, fold = task
    X, Y = arrays(name)
    train, test = list(KFold(FOLDS, shuffle=True, random_state=1).split(X))[fold]
    part = ROWS[rows]
    return X[train], Y[train], X[test], Y[test], None if part is None else len(train) // part


def r2(truth: Array, predicted: Array, centre: Array) -> float:
    return float(1 - np.mean(np.square(truth - predicted).sum(axis=0) / np.square(truth - centre).sum(axis=0)))


def tuned_ridge(model: LocalFit, new: Array, raw: bool) -> Array:
    """What a ridge predicts, with one penalty per response by leave-one-out over the rows that the fit saw."""
    seen = model.data
    # Rows of raw data are centred, so that a row left out follows from the others unless the intercept is left out with it.
    ridge = RidgeCV(np.logspace(-3, 6, 40) * len(seen.X) / 100, fit_intercept=raw, alpha_per_target=True)
    return model.predict_with(ridge.fit(seen.X, seen.Y).coef_.T, new)


def one(task: tuple[str, str, int]) -> resumed.Row:
    """One set, number of rows and fold."""
    X, Y, new, truth, m = parts(task)
    began = time.process_time()
    model = local_fit(X, Y, Settings(**RUN, seed=task[2], workers=1), m=m, folds=PARTS)  # type: ignore[arg-type]
    mean, sd = model.predict(new)
    seconds = time.process_time() - began
    assert model.weighed is not None
    return {
        "r2": r2(truth, mean, Y.mean(axis=0)),
        "r2_ridge": r2(truth, tuned_ridge(model, new, m is None), Y.mean(axis=0)),
        "covered": float((np.abs(truth - mean) <= Z95 * sd).mean()),
        "weight": model.weighed.weight,
        "weight_independent": model.weighed.weight_independent,
        "seconds": round(seconds, 1),
    }


def table(kept: list[resumed.Row]) -> str:
    """Means over the folds."""
    lines = ["set               rows  folds  R²      ridge   covered  sparse weight"]
    for name in PUBLIC:
        for rows in ROWS:
            mine = [row for row in kept if (row["set"], row["rows"]) == (name, rows)]
            if mine:
                mean = [float(np.mean([row[k] for row in mine])) for k in ("r2", "r2_ridge", "covered", "weight")]
                lines.append(f"{name:17s} {rows:5s} {len(mine):5d} {mean[0]:7.3f} {mean[1]:7.3f} {mean[2]:8.3f} {mean[3]:8.2f}")
    return "\n".join(lines)


def convert(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in PUBLIC:
        X, Y = arrays(name)
        np.savez_compressed(folder / f"{name}.npz", X=X, Y=Y)


def main() -> None:
    parser = resumed.options(__doc__, RESULT, FOLDS)
    parser.add_argument("--names", nargs="+", default=list(PUBLIC), choices=PUBLIC, help="which data sets")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS)
    parser.add_argument("--convert", type=Path, help="write the sets as NAME.npz into this folder, and stop")
    args = parser.parse_args()
    if args.convert:
        return convert(args.convert)
    tasks = [(name, rows, fold) for name in args.names for rows in args.rows for fold in range(args.sets)]
    tasks.sort(key=lambda task: -COST[task[0]])
    resumed.gather(tasks, key, one, args.out, args.jobs)
    print(table(resumed.kept(args.out)))
    return None


if __name__ == "__main__":
    main()
