"""Prediction on public data: out-of-fold R² beside a ridge tuned on the same sketch, and how much the 95 % intervals cover.

    INTARSIA_DATA=FOLDER make bench-real

Each set of `intarsia.lab.realdata` in five folds, with sketches of n/4 and n/2 rows and with all rows. The ridge takes one
penalty per response by leave-one-out over the rows of the sketch that intarsia gets. Results are kept in
benchmarks/results/real.json as they come; a run goes on where the last one stopped.
"""

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
from sklearn.linear_model import RidgeCV  # noqa: E402
from sklearn.model_selection import KFold  # noqa: E402
from sklearn.utils import check_random_state  # noqa: E402

from intarsia.lab.realdata import PUBLIC, load  # noqa: E402
from intarsia.prepared import Prepared  # noqa: E402
from intarsia.regression import ReducedRankHorseshoe  # noqa: E402

RESULT = Path(__file__).parent / "results" / "real.json"
FOLDS, RUN = 5, {"draws": 300, "warmup": 400, "chains": 2, "thin": 4}
ROWS = {"n/4": 4, "n/2": 2, "all": None}
Z95 = 1.959964


def one(task: tuple[str, str, int]) -> dict[str, Any]:
    """One set, number of rows and fold."""
    name, rows, fold = task
    data = load(name)
    train, test = list(KFold(FOLDS, shuffle=True, random_state=1).split(data.X))[fold]
    X, Y, new, truth = data.X[train], data.Y[train], data.X[test], data.Y[test]
    part = ROWS[rows]
    m = None if part is None else len(train) // part
    model = ReducedRankHorseshoe(sketch=m, random_state=fold, progress=False, n_jobs=1, **RUN).fit(X, Y)  # type: ignore[arg-type]
    mean, sd = model.predict(new, return_std=True)
    seed = int(check_random_state(fold).randint(2**31 - 1))  # the estimator's own, so that both see one sketch
    seen = Prepared.of(X, Y, np.empty((len(X), 0)), m, seed)
    # Rows of raw data are centred, so that a row left out follows from the others unless the intercept is left out with it.
    ridge = RidgeCV(np.logspace(-3, 6, 40) * len(seen.X) / 100, fit_intercept=m is None, alpha_per_target=True)
    ridge.fit(seen.X, seen.Y)
    penalised = seen.x.standardise(new) @ ridge.coef_.T * seen.y.scale + Y.mean(axis=0)

    def r2(predicted: Any) -> float:
        return float(1 - np.mean(np.square(truth - predicted).sum(axis=0) / np.square(truth - Y.mean(axis=0)).sum(axis=0)))

    return {
        "set": name,
        "rows": rows,
        "fold": fold,
        "r2": r2(mean),
        "r2_ridge": r2(penalised),
        "covered": float((np.abs(truth - mean) <= Z95 * sd).mean()),
        "weight": float(model.stacking_weight_),
    }


def table(kept: list[dict[str, Any]]) -> str:
    """Means over the folds."""
    lines = ["set               rows  folds  R²      ridge   covered  sparse weight"]
    for name in PUBLIC:
        for rows in ROWS:
            mine = [row for row in kept if (row["set"], row["rows"]) == (name, rows)]
            if mine:
                r2, ridge, covered, weight = (np.mean([row[k] for row in mine]) for k in ("r2", "r2_ridge", "covered", "weight"))
                lines.append(f"{name:17s} {rows:5s} {len(mine):5d} {r2:7.3f} {ridge:7.3f} {covered:8.3f} {weight:8.2f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=list(PUBLIC), choices=PUBLIC)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    kept = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() else []
    done = {(row["set"], row["rows"], row["fold"]) for row in kept}
    tasks = [(name, rows, fold) for name in args.sets for fold in range(FOLDS) for rows in ROWS if (name, rows, fold) not in done]
    with ProcessPoolExecutor(args.workers) as pool:
        for row in pool.map(one, tasks):
            kept.append(row)
            args.out.write_text("[\n" + ",\n".join(json.dumps(row) for row in kept) + "\n]\n", encoding="utf-8")
            print(json.dumps(row), flush=True)
    print(table(kept))


if __name__ == "__main__":
    main()
