"""Prediction on simulated sets that look like public ones: R² in new subjects beside a tuned ridge, and how much intervals cover.

    make bench-look-alikes
    python -m experiments.look_alikes --sets 1 --names exposome --jobs 2    # a look

Each kind of `experiments.look_alikes_data`, with sketches of n/4 and n/2 rows and with all rows; a thousand new subjects are
predicted. The ridge takes one penalty per response by leave-one-out over the rows that intarsia gets. Results are kept in
experiments/results/look_alikes.json as they come; a run goes on where the last one stopped. NumPy, SciPy, numba and scikit-learn
are all it needs.
"""

import time
from pathlib import Path

from experiments import resumed  # before NumPy: it sets one thread for each process

import numpy as np  # isort: skip

from experiments.local_fit import local_fit
from experiments.look_alikes_data import SETS, simulate
from experiments.real import ROWS, RUN, Z95, r2, tuned_ridge
from intarsia.server.assess.stacking import FOLDS
from intarsia.server.sampler.settings import Settings

RESULT = Path(__file__).parent / "results" / "look_alikes.json"
Task = tuple[str, str, int]


def key(task: Task) -> resumed.Row:
    return dict(zip(("set", "rows", "seed"), task, strict=True))


def one(task: Task) -> resumed.Row:
    """One kind of data, number of rows and seed."""
    name, rows, seed = task
    X, Y, new, truth = simulate(name, seed)
    part, began = ROWS[rows], time.process_time()
    m = None if part is None else len(X) // part
    model = local_fit(X, Y, Settings(**RUN, seed=seed, workers=1), m=m, folds=FOLDS)  # type: ignore[arg-type]
    mean, sd = model.predict(new)
    seconds = time.process_time() - began
    assert model.weighed is not None
    centre = Y.mean(axis=0)
    return {
        "r2": r2(truth, mean, centre),
        "r2_ridge": r2(truth, tuned_ridge(model, new, m is None), centre),
        "r2_sparse": r2(truth, model.predict_with(model.fitted.draws.mean(), new), centre),
        "covered": float((np.abs(truth - mean) <= Z95 * sd).mean()),
        "weight": model.weighed.weight,
        "weight_independent": model.weighed.weight_independent,
        "seconds": round(seconds, 1),
    }


def table(kept: list[resumed.Row]) -> str:
    """Means over the data sets."""
    lines = [f"{'set':28s} rows  sets  R²      ridge   sparse alone  covered  weights: sparse, independent  seconds"]
    for name in SETS:
        for rows in ROWS:
            mine = [row for row in kept if (row["set"], row["rows"]) == (name, rows)]
            if mine:
                names = ("r2", "r2_ridge", "r2_sparse", "covered", "weight", "weight_independent", "seconds")
                r2_, ridge, sparse, covered, weight, other, seconds = (np.mean([row[k] for row in mine]) for k in names)
                lines.append(
                    f"{name:28s} {rows:5s} {len(mine):4d} {r2_:7.3f} {ridge:7.3f} {sparse:9.3f} {covered:12.3f} {weight:9.2f} "
                    f"{other:9.2f} {seconds:22.0f}"
                )
    return "\n".join(lines)


def main() -> None:
    parser = resumed.options(__doc__, RESULT, 5)
    parser.add_argument("--names", nargs="+", default=list(SETS), choices=SETS, help="which kinds of data")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS)
    args = parser.parse_args()
    # The dearest first: many features, all rows.
    tasks = [(name, rows, seed) for rows in reversed(args.rows) for name in reversed(args.names) for seed in range(args.sets)]
    resumed.gather(tasks, key, one, args.out, args.jobs)
    print(table(resumed.kept(args.out)))


if __name__ == "__main__":
    main()
