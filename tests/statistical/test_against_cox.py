"""Times to event beside a Cox model on pooled data (lifelines): the same features are selected."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from lifelines import CoxPHFitter
from lifelines.datasets import load_gbsg2

from intarsia import SparseRegression
from intarsia.site.data.kinds import prepare

RUN: dict[str, Any] = {"draws": 200, "warmup": 150, "chains": 2, "thin": 1, "folds": 2, "until": None, "random_state": 1}
WAYS = [{"horizon": 60.0, "unit": "months"}, {"method": "martingale"}]


def ours(X: pd.DataFrame, months: np.ndarray, event: np.ndarray, way: dict[str, object]) -> set[str]:
    response = prepare((months, event), "time", way)
    model = SparseRegression(**RUN).fit(X, response.values)
    return {name for name, selected in zip(X.columns, model.selected_, strict=True) if selected}


def cox(X: pd.DataFrame, months: np.ndarray, event: np.ndarray) -> set[str]:
    """Features whose hazard ratio differs from 1, p below .05 over the number of features (Bonferroni)."""
    fitted = CoxPHFitter().fit(X.assign(months=months, event=event), "months", "event")
    return set(fitted.summary.index[fitted.summary["p"] < 0.05 / X.shape[1]])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS, ids=["mean survival time", "martingale"])
def test_simulated_survival_selects_what_cox_selects(way: dict[str, object]) -> None:
    rng = np.random.default_rng(3)
    X = pd.DataFrame(rng.standard_normal((1500, 20)), columns=[f"x{j}" for j in range(20)])
    died = rng.exponential(30 * np.exp(-(0.5 * X["x0"] - 0.4 * X["x7"] + 0.3 * X["x13"])))
    end = rng.uniform(10, 100, len(X))
    months, event = np.minimum(died, end), (died <= end) * 1.0
    assert ours(X, months, event, way) == cox(X, months, event) == {"x0", "x7", "x13"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS, ids=["mean survival time", "martingale"])
def test_breast_cancer_recurrence_selects_what_cox_selects(way: dict[str, object]) -> None:
    """686 women of the German Breast Cancer Study Group, public with lifelines."""
    g = load_gbsg2()
    X = pd.DataFrame({
        "hormones": g["horTh"] == "yes", "age": g["age"], "postmenopausal": g["menostat"] == "Post", "size": g["tsize"],
        "grade": g["tgrade"].map({"I": 1, "II": 2, "III": 3}), "nodes": np.log(g["pnodes"]),
        "progesterone": np.log1p(g["progrec"]), "oestrogen": np.log1p(g["estrec"]),
    }).astype(float)  # fmt: skip
    months, event = g["time"].to_numpy() / 30.4, g["cens"].to_numpy(dtype=float)
    assert ours(X, months, event, way) == cox(X, months, event) == {"hormones", "nodes", "progesterone"}
