"""Out-of-sample prediction on real data: the connectome over m (§4, Figure 5), and the public sets."""

import time
from collections.abc import Collection
from typing import Any

import numpy as np

from experiments.paper.designs.design import Cell, Experiment
from experiments.paper.designs.simulations import FULL_WIDE, QUICK, SMOKE
from experiments.paper.methods import POSTERIORS, Effort, Row, make
from experiments.paper.realdata import RealData, available, load

BRAIN_M = (20, 30, 50, 75, 100)
FOLDS = 5


def cross_validate(
    data: RealData, wanted: Collection[tuple[str, int | None]], settings: Effort, split: int, seed: int
) -> list[Row]:
    """Pooled out-of-fold error of each method over the same five folds; columns standardised on the training fold.

    mse_y is in units of each response's variance, averaged over responses; r2 is 1 − SSE/SST about the overall mean.
    """
    from sklearn.model_selection import KFold

    squared = {pair: np.zeros(data.Y.shape[1]) for pair in wanted}
    seconds = dict.fromkeys(wanted, 0.0)
    for train, test in KFold(FOLDS, shuffle=True, random_state=split).split(data.X):
        x_mean, x_sd = data.X[train].mean(axis=0), data.X[train].std(axis=0)
        y_mean, y_sd = data.Y[train].mean(axis=0), data.Y[train].std(axis=0)
        x_sd[x_sd == 0] = 1.0
        X, X_new = (data.X[train] - x_mean) / x_sd, (data.X[test] - x_mean) / x_sd
        Y = (data.Y[train] - y_mean) / y_sd
        for method, m in wanted:
            # An orthonormal sketch has fewer rows than subjects; the paper's largest m meets the training fold's size.
            rows = None if m is None else min(m, len(train) - 2)
            extra = {"response_sites": data.response_sites} if method in POSTERIORS else {}
            start = time.process_time()
            model = make(method, settings, rows, seed, **extra).fit(X, Y, sites=data.feature_sites)
            seconds[method, m] += time.process_time() - start
            squared[method, m] += ((data.Y[test] - y_mean - y_sd * model.predict(X_new)) ** 2).sum(axis=0)
    total = ((data.Y - data.Y.mean(axis=0)) ** 2).sum(axis=0)
    return [
        {
            "method": method, "m": m, "seconds": seconds[method, m],
            "mse_y": float((squared[method, m] / total).mean()),
            "r2": float((1 - squared[method, m] / total).mean()),
            "sweeps": settings.sweeps if method in (*POSTERIORS, "centralized") else None,
        }
        for method, m in wanted
    ]  # fmt: skip


def _run(
    cell: Cell, seed: int, wanted: Collection[tuple[str, int | None]], settings: Effort, options: dict[str, Any]
) -> list[Row]:
    name = cell.label.split()[0]
    if name not in available(options.get("data")):
        return []  # absent sets leave no rows; the command line says which
    return cross_validate(load(name, options.get("data")), wanted, settings, options.get("replicate", 0), seed)


_COMPETITORS = ("dRidge", "locus", "srrr", "ridge", "elasticnet")

BRAIN = Experiment(
    name="brain",
    title="Neuroimaging (§4): out-of-sample error over m, simulated connectome and developmental fMRI",
    cells={
        "smoke": (Cell("connectome-small", None, (20, 50)),),
        "quick": (Cell("connectome", None, BRAIN_M), Cell("devfmri_basc64", None, BRAIN_M)),
        "full": (Cell("connectome", None, BRAIN_M), Cell("devfmri_basc64", None, BRAIN_M)),
    },
    methods=("horseshoe", "BayesVFLReg", "centralized", *_COMPETITORS),
    replicates={"smoke": 1, "quick": 1, "full": 10},
    settings={"smoke": SMOKE, "quick": QUICK, "full": QUICK},
    run=_run,
)

REAL = Experiment(
    name="real",
    title="Public data sets: out-of-fold R² at m = n/4 and n/2 and on pooled data",
    cells={
        size: (
            Cell("devfmri_basc64", None, (24, 48)),
            Cell("yeast_cellcycle", None, (108, 217)),
            Cell("wheat_cimmyt", None, (120, 240)),
            Cell("fate_motor_hetero", None, (160, 320)),
        )
        for size in ("smoke", "quick", "full")
    },
    methods=("horseshoe", "BayesVFLReg", "sketched-ridge", "centralized", *_COMPETITORS),
    replicates={"smoke": 1, "quick": 1, "full": 5},
    settings={"smoke": SMOKE, "quick": QUICK, "full": FULL_WIDE},
    run=_run,
)
