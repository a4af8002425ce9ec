"""A study with covariates at two sites, and a set of interchangeable features across sites, from tables to predictions."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.federation import KEY, RUN

import intarsia
from intarsia.carriers.in_process import study_for
from intarsia.server.study.check import check
from intarsia.server.study.folder import StudyFolder

pytestmark = pytest.mark.filterwarnings("ignore")

n = 700
FIT = {"draws": 150, "warmup": 150, "chains": 2, "thin": 1, "seed": 3}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Age acts on the response, x3 follows age; x0 (laboratory) and its twin (scanner) cannot be told apart, one is true."""
    rng = np.random.default_rng(4)
    people = [f"P{i}" for i in range(n)]
    age = rng.normal(50, 10, n)
    centre = rng.choice(["north", "south"], n)
    X = rng.standard_normal((n, 6))
    X[:, 3] += 0.2 * (age - 50)
    twin = X[:, 0] + 0.05 * rng.standard_normal(n)
    y = 0.1 * age + 1.5 * (centre == "south") + 1.3 * X[:, 0] + rng.standard_normal(n)
    lab = {"id": people, **{f"x{j}": X[:, j] for j in range(6)}}
    tables = {
        "ward": pd.DataFrame({"id": people, "age": age, "y": y}),
        "registry": pd.DataFrame({"id": people, "centre": centre}),
        "lab": pd.DataFrame(lab),
        "scanner": pd.DataFrame({"id": people, "twin": twin}),
    }
    # A part that is nearly one column needs the site to say so. The key is fixed: what is found rests on chance.
    agreed: dict[str, Any] = {"predict": {"one_column": "allow"}, "key": KEY}
    sites = [
        intarsia.Site("ward", tables["ward"], id="id", responses=["y"], covariates=["age"], **agreed),
        intarsia.Site("registry", tables["registry"], id="id", covariates=["centre"], **agreed),
        intarsia.Site("lab", tables["lab"], id="id", **agreed),
        intarsia.Site("scanner", tables["scanner"], id="id", **agreed),
    ]
    where = tmp_path_factory.mktemp("server") / "trial"
    result = intarsia.fit(sites, study_for(sites, m=150, id="trial", run=RUN, fit=FIT), folder=where)
    return result, tables, where


def of_covariates(model):
    return [row for row in model.rows() if row["role"] == "covariate"]


def test_covariates_are_adjusted_for_and_delivered_to_their_sites(study):
    result, _tables, _where = study
    assert result.posterior.covariates == ["age", "centre=south"]
    assert "x3" not in result.selected
    (age,) = of_covariates(result.models["ward"])
    assert (age["feature"], age["selected"], age["local_fdr"]) == ("age", False, None)
    assert age["lower"] < 0.1 < age["upper"]
    assert age["unit"] == "units of the response per unit of the covariate"
    (south,) = of_covariates(result.models["registry"])
    assert south["unit"] == "sd of the response per unit of the covariate"
    assert south["lower"] > 0
    assert of_covariates(result.models["lab"]) == []


def test_a_set_across_sites_tells_each_site_its_part(study):
    result, _tables, _where = study
    assert result.selected == []
    assert result.groups == [["x0", "twin"]]
    (here,) = result.models["lab"].coefficients.sets
    assert (here.members, here.elsewhere) == (("x0",), 1)
    (there,) = result.models["scanner"].coefficients.sets
    assert (there.members, there.elsewhere) == (("twin",), 1)
    assert here.number == there.number == 1
    table = result.table().set_index("feature")
    assert table.loc[["x0", "twin"], "set"].tolist() == [1, 1]
    assert table.loc["x1", "set"] != table.loc["x1", "set"]  # none
    assert "\nNOT CONVERGED, what follows is provisional: " in repr(result)


def test_predictions_use_covariates(study):
    result, tables, _where = study
    new = {name: table.drop(columns=["y"], errors="ignore").head(60) for name, table in tables.items()}
    prediction = result.predict(new)["ward"]
    observed = tables["ward"]["y"].to_numpy()[:60]
    assert np.corrcoef(prediction.mean[:, 0], observed)[0, 1] > 0.75


def test_checks_on_request_are_kept_and_reported(study, tmp_path, capsys):
    from intarsia import report
    from intarsia.cli import main

    result, _tables, where = study
    found = check(StudyFolder.open(where), folds=2)
    assert found["k_fold"]["r2"][0] == pytest.approx(result.summary["r2_loo"][0], abs=0.15)
    assert main(["check", str(where), "--halves"]) == 0
    assert "1 of 1 findings replicate in both halves" in capsys.readouterr().out
    assert main(["check", str(where)]) == 2
    page = report.write(where, tmp_path / "r.html").read_text(encoding="utf-8")
    assert "Everything on this page is adjusted for age, centre=south" in page
    assert "out-of-sample R² (2-fold)" in page
    assert "Replication in two halves" in page
    assert "Sets of interchangeable features" in page
    assert "out-of-sample R² (rows left out)" in page  # of the refits that weigh predictions, not leave-one-out
    assert "for each of the 10 columns" in page  # seven features, a response, two covariates: as the sites' gates count them
    assert main(["report", str(where), "--methods"]) == 0
    text = capsys.readouterr().out
    assert "left out a fifth of the rows in turn" in text
    assert "2-fold cross-validation" in text
    assert "1 of 1 finding had the same sign" in text
