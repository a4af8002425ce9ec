"""The lab's simulated connectome, where a model whose noise may correlate takes signal for noise, fitted in several ways.

    python -m experiments.connectome    # about eight minutes of one core

All rows of each training fold of the lab's. `sparse`: the default model; `independent`: the same with independent noise;
`weighed`: what the product predicts with; `ridge`: one penalty per response, by leave-one-out. Results are kept in
experiments/results/connectome.json as they come.
"""

from pathlib import Path

from experiments import resumed  # before NumPy: it sets one thread for each process

import numpy as np  # isort: skip
from sklearn.model_selection import KFold

from experiments.local_fit import LocalFit, local_fit
from experiments.real import Z95, tuned_ridge
from intarsia.demo.connectome import simulate_connectome
from intarsia.server.assess.stacking import FOLDS as PARTS
from intarsia.server.sampler.horseshoe.model import Model
from intarsia.server.sampler.settings import Settings

RESULT = Path(__file__).parent / "results" / "connectome.json"
FOLDS, SPLIT = 5, 0  # the lab's
RUN = {"draws": 150, "warmup": 120, "chains": 2, "thin": 1}
WAYS = ("sparse", "independent", "weighed", "ridge")


def key(fold: int) -> resumed.Row:
    return {"fold": fold}


def one(fold: int) -> resumed.Row:
    """Squared errors of one fold's held-out rows in each way, and what the overall mean leaves of them, for each response."""
    study = simulate_connectome()
    train, test = list(KFold(FOLDS, shuffle=True, random_state=SPLIT).split(study.X))[fold]
    new, truth = study.X[test], study.Y[test]

    def fitted(noise: str, folds: int) -> LocalFit:
        run = Settings(**RUN, seed=fold, workers=1)  # type: ignore[arg-type]
        return local_fit(study.X[train], study.Y[train], run, Model(noise=noise), folds=folds)

    model, independent = fitted("correlated", PARTS), fitted("independent", 0)
    weighed = model.weighed
    assert weighed is not None
    mean, sd = model.predict(new)
    predicted = {
        "sparse": model.predict_with(model.fitted.draws.mean(), new),
        "independent": independent.predict_with(independent.fitted.draws.mean(), new),
        "weighed": mean,
        "ridge": tuned_ridge(model, new, raw=True),
    }
    return {
        "error": {way: np.square(truth - values).sum(axis=0).tolist() for way, values in predicted.items()},
        "total": np.square(truth - study.Y.mean(axis=0)).sum(axis=0).tolist(),
        "covered": float((np.abs(truth - mean) <= Z95 * sd).mean()),
        "weights": [weighed.weight, weighed.weight_independent],
    }


def explained(rows: list[resumed.Row], way: str) -> float:
    """Out-of-fold R², the mean over the responses, as the lab counts it."""
    error, total = (np.sum(values, axis=0) for values in ([row["error"][way] for row in rows], [row["total"] for row in rows]))
    return float(np.mean(1 - error / total))


def main() -> None:
    args = resumed.options(__doc__, RESULT, FOLDS).parse_args()
    rows = resumed.gather(list(range(args.sets)), key, one, args.out, args.jobs)
    for way in WAYS:
        print(f"{way:14s} {explained(rows, way):6.3f}")
    print(f"covered        {np.mean([row['covered'] for row in rows]):6.3f}")


if __name__ == "__main__":
    main()
