"""The table of results: the same columns for a study, a site and an estimator, in units where they are known; shared scales."""

import csv
import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.federation import KEY, RUN

from intarsia.carriers.in_process import StudyResult, fit, study_for
from intarsia.cli import main
from intarsia.errors import FederationError, InputError, MessageError
from intarsia.regression import NotConvergedWarning, ReducedRankHorseshoe
from intarsia.server.assess.assessment import kept
from intarsia.server.assess.effects import effects_of
from intarsia.server.study.folder import StudyFolder
from intarsia.site.site import Site
from intarsia.wire.coefficients import Coefficients
from intarsia.wire.messages import Sketch
from intarsia.wire.result_table import COLUMNS, table_columns, table_rows
from intarsia.wire.study import Study

FIT = {"draws": 60, "warmup": 60, "chains": 2, "thin": 1, "seed": 3}


def frames() -> dict[str, pd.DataFrame]:
    """The trial in small: every response at a clinic that has nothing else."""
    rng = np.random.default_rng(0)
    n = 300
    ids = [f"S{i}" for i in range(n)]
    X = rng.standard_normal((n, 4)) * [1.0, 5.0, 0.1, 2.0]
    weight = 70 + 3 * X[:, 0] - 1.2 * X[:, 1] + 2 * rng.standard_normal(n)
    height = 170 + 40 * X[:, 2] + 5 * rng.standard_normal(n)
    return {
        "clinic": pd.DataFrame({"id": ids, "weight": weight, "height": height}),
        "home": pd.DataFrame({"id": ids, **{f"x{j}": X[:, j] for j in range(4)}}),
    }


def run(where: Path, share: bool) -> tuple[StudyResult, dict[str, pd.DataFrame]]:
    tables = frames()
    sites = [
        Site("clinic", tables["clinic"], id="id", features=[], responses=["weight", "height"], key=KEY, folder=where / "clinic"),
        Site("home", tables["home"], id="id", key=KEY, folder=where / "home"),
    ]
    study = study_for(sites, m=60, id="trial", run=RUN, fit=FIT, deliver={"share_scales": share})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        return fit(sites, study, folder=where / "server"), tables


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    where = tmp_path_factory.mktemp("shared")
    return (*run(where, True), where)


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    where = tmp_path_factory.mktemp("secret")
    return (*run(where, False), where)


def test_the_table_has_every_coefficient_in_real_units(shared):
    result, tables, _where = shared
    table = result.table()
    assert tuple(table.columns) == tuple(COLUMNS)
    assert len(table) == 4 * 2
    assert (table["unit"] == "units of the response per unit of the feature").all()
    found = table.set_index(["feature", "response"])
    sd = tables["home"]["x1"].std(), tables["clinic"]["weight"].std()
    row = found.loc[("x1", "weight")]
    assert row["effect"] == pytest.approx(row["standardised"] * sd[1] / sd[0])
    assert row["lower"] < -1.2 < row["upper"]
    assert row["selected"]
    assert row["local_fdr"] < 0.05 < found.loc[("x3", "weight"), "local_fdr"]
    assert result.n == 300


def test_a_selected_feature_says_for_which_response(shared):
    """Its own local fdr explains a coefficient that is not selected beside one that is."""
    found = shared[0].table().set_index(["feature", "response"])
    assert found["stands"].isna().all()  # among four features no background can be told from their effects
    assert found.loc[("x2", "height"), "selected_here"]
    assert not found.loc[("x2", "weight"), "selected_here"]
    assert found.loc[("x2", "weight"), "local_fdr"] > 0.05 > found.loc[("x2", "height"), "local_fdr"]
    assert found.loc[("x2", "weight"), "selected"]


def test_with_shared_scales_a_site_has_real_units_without_them_it_says_so(shared, secret):
    result, tables, _where = shared
    home = result.models["home"].table()
    assert (home["unit"] == "units of the response per unit of the feature").all()
    assert home["effect"].tolist() == result.table()["effect"].tolist()
    alone = secret[0].models["home"].table()
    assert (alone["unit"] == "sd of the response per unit of the feature").all()
    sd = {label: tables["clinic"][label].std() for label in ("weight", "height")}
    x = tables["home"]["x0"].std()
    for row in alone[alone["feature"] == "x0"].itertuples():
        assert row.effect == pytest.approx(row.standardised / x)
        assert row.effect * sd[row.response] == pytest.approx(
            secret[0].table().set_index(["feature", "response"]).loc[("x0", row.response), "effect"]
        )


def test_the_server_knows_the_scales_that_are_shared_and_no_others(shared, secret):
    for (result, tables, _where), unit in ((shared, "units of the response"), (secret, "sd of the response")):
        posterior = result.posterior
        rows = table_rows(table_columns(effects_of(posterior, kept(posterior))))
        assert {row["unit"] for row in rows} == {f"{unit} per sd of the feature"}
        factor = tables["clinic"]["weight"].std() if result is shared[0] else 1.0
        first = next(row for row in rows if (row["feature"], row["response"]) == ("x0", "weight"))
        assert first["effect"] == pytest.approx(first["standardised"] * factor)
        assert first["site"] == "home"


def test_scales_are_on_the_card_and_in_the_hash(shared, secret):
    for (result, _tables, where), share in ((shared, True), (secret, False)):
        path = next((where / "clinic" / "studies").glob("*/card.json"))
        parties = json.loads(path.read_text(encoding="utf-8"))["card"]["parties"]
        assert parties["response_scales_shared"] is share
        assert ("standard deviations of the responses" in parties["server_receives"]) is share
        content = result.study.to_dict()
        assert content["deliver"]["share_scales"] is share
        content["deliver"]["share_scales"] = not share
        assert Study.from_dict(content).hash != result.study.hash


def test_a_sketch_that_does_not_keep_to_the_study_is_refused(shared, secret, tmp_path):
    for (result, _tables, where), change in ((shared, ()), (secret, (1.0, 2.0))):
        sent = Sketch.load(where / "server" / "sketch" / "clinic.sketch")
        folder = StudyFolder.create(tmp_path / result.study.hash[:8], result.study)
        with pytest.raises(FederationError, match="share_scales"):
            folder.accept("sketch", "clinic", replace(sent, response_scales=change).to_bytes())
        assert folder.accept("sketch", "clinic", sent.to_bytes())
    with pytest.raises(MessageError, match="positive"):
        replace(sent, response_scales=(1.0, -2.0))


def test_a_site_refuses_scales_it_did_not_send(shared, secret):
    result, _tables, _where = shared
    clinic = result.models["clinic"]
    with pytest.raises(MessageError, match="other scales"):
        replace(clinic, coefficients=replace(clinic.coefficients, response_scales=(1.0, 2.0)))
    site = next(site for site in secret[0].sites if site.name == "home")
    sent = secret[0].models["home"].coefficients
    forged = replace(sent, response_scales=(1.0, 2.0), fit_parts={})
    forged = replace(forged, fit_parts=dict(sent.fit_parts) | {"home": forged.own_digest()})
    with pytest.raises(MessageError, match="share_scales"):
        site.receive(secret[0].study, Coefficients.from_bytes(forged.to_bytes()).to_bytes())


def test_a_site_refuses_coefficients_that_are_not_those_of_the_fit_all_sites_are_told_of(secret):
    site = next(site for site in secret[0].sites if site.name == "home")
    sent = secret[0].models["home"].coefficients
    for forged in (replace(sent, mean=2 * sent.mean), replace(sent, fit_parts={"home": sent.own_digest()})):
        with pytest.raises(MessageError, match="digests of one fit"):
            site.receive(secret[0].study, forged.to_bytes())


def test_a_site_with_responses_alone_gets_a_table_of_them(shared, tmp_path, capsys):
    result, tables, _where = shared
    out = tmp_path / "clinic.csv"
    from intarsia.cli.site import write_results

    told, lines = write_results(out, result.models["clinic"])
    with out.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["response"] for row in rows] == ["weight", "height"]
    assert told["responses"] == str(out)
    sd = tables["clinic"]["weight"].std()
    assert float(rows[0]["sd"]) == pytest.approx(sd)
    assert float(rows[0]["residual_sd"]) == pytest.approx(sd * np.sqrt(1 - float(rows[0]["explained"])))
    assert 0 < float(rows[0]["explained_out_of_sample"]) < 1
    assert int(rows[0]["features_selected"]) == sum(row["selected_here"] for row in result.rows() if row["response"] == "weight")
    assert any("brings no features" in line for line in lines)


def test_a_site_with_covariates_and_no_features_is_not_told_that_none_is_selected(shared, tmp_path):
    from intarsia.cli.site import write_results

    model = shared[0].models["clinic"]
    row = {"feature": "age", "role": "covariate", "selected": False}

    class Adjusted(type(model)):
        def rows(self):
            return [row]

    lines = write_results(tmp_path / "clinic.csv", Adjusted(model.coefficients, model.units, model.meaning))[1]
    assert any(line.endswith("1 coefficient in " + str(tmp_path / "clinic.csv") + ", of covariates: this site brings no features")
               for line in lines)  # fmt: skip
    assert not any("of selected features" in line for line in lines)


@pytest.mark.parametrize("suffix", ["csv", "xlsx", "tex", "md"])
def test_the_study_table_by_command(shared, tmp_path, suffix, capsys):
    path = tmp_path / f"results.{suffix}"
    assert main(["report", str(shared[2] / "server"), "--table", str(path)]) == 0
    assert "8 coefficients" in capsys.readouterr().out
    assert path.stat().st_size > 300
    assert not (tmp_path / "report.html").exists()
    if suffix == "csv":
        table = pd.read_csv(path)
        assert tuple(table.columns) == tuple(COLUMNS)
        assert (table["interval"] == 0.95).all()
    if suffix == "md":  # for a page: nothing empty, nothing that only a program reads
        head = [name.strip() for name in path.read_text(encoding="utf-8").splitlines()[0].strip("|").split("|")]
        # Every row is of a feature, which needs no column.
        assert head[:3] == ["Feature", "Site", "Response"]
        assert head[3].startswith("Effect")
        assert head[3].endswith("(95% interval)")
        assert [name for name in head[4:] if name != "Unit"] == ["PIP", "Sign rate", "Selected here", "Selected"]


def test_a_table_of_selected_features_alone(shared, tmp_path, capsys):
    whole, picked = tmp_path / "all.csv", tmp_path / "selected.csv"
    assert main(["report", str(shared[2] / "server"), "--table", str(whole)]) == 0
    assert main(["report", str(shared[2] / "server"), "--table", str(picked), "--selected"]) == 0
    table, some = pd.read_csv(whole), pd.read_csv(picked)
    wanted = table[table["selected"].eq(True)].reset_index(drop=True)
    assert 0 < len(some) < len(table)
    pd.testing.assert_frame_equal(some, wanted, check_dtype=False)
    capsys.readouterr()
    assert main(["report", str(shared[2] / "server"), "--selected"]) == InputError.exit_code
    assert "give --table FILE too" in capsys.readouterr().err


def test_an_unknown_suffix_of_a_table_is_refused(shared, tmp_path, capsys):
    assert main(["report", str(shared[2] / "server"), "--table", str(tmp_path / "results.docx")]) != 0
    assert ".xlsx" in capsys.readouterr().err
    assert not (tmp_path / "results.docx").exists()


def test_a_result_fits_a_screen(shared):
    lines = repr(shared[0]).splitlines()
    assert 4 <= len(lines) <= 20
    assert max(map(len, lines)) <= 160
    assert "300 subjects" in lines[0]
    assert len(repr(shared[0].models["home"]).splitlines()) == 1


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    X = pd.DataFrame(rng.standard_normal((120, 5)) * [1, 10, 0.1, 1, 1], columns=list("abcde"))
    X["constant"] = 1.0
    y = pd.DataFrame({"u": 3 * X["a"] - 0.4 * X["b"] + rng.standard_normal(120), "v": rng.standard_normal(120)})
    return X, y


def test_the_estimator_has_the_same_table_in_its_data_units(data):
    X, y = data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        model = ReducedRankHorseshoe(
            covariates=["e"], draws=60, warmup=60, chains=2, thin=1, random_state=0, folds=0, progress=False
        ).fit(X, y)
    table = model.table().set_index(["feature", "response"])
    assert list(model.table().columns) == list(COLUMNS)
    np.testing.assert_allclose(table.loc[("b", "u"), "effect"], model.coef_[0, 1])
    lower, _upper = model.interval(0.95)
    np.testing.assert_allclose(table.loc[("b", "u"), "lower"], lower[0, 1])
    np.testing.assert_allclose(table.loc[("b", "u"), "standardised"], model.coef_[0, 1] * X["b"].std(ddof=0) / y["u"].std(ddof=0))
    assert table.loc[("e", "u"), "role"] == "covariate"
    np.testing.assert_allclose(table.loc[("e", "u"), "effect"], model.covariate_coef_[0, 0])
    assert table.loc[("constant", "u"), "effect"] == 0.0
    assert table.loc[("a", "u"), "selected"]
    assert table["unit"].str.startswith("units of the response per unit of the").all()


def test_a_study_that_has_not_converged_warns_and_shows_its_progress(tmp_path, capsys, monkeypatch):
    import intarsia.progress

    monkeypatch.setattr(intarsia.progress, "EVERY_SECONDS", 0.0)
    tables = frames()
    sites = [
        Site("clinic", tables["clinic"], id="id", features=[], responses=["weight", "height"]),
        Site("home", tables["home"], id="id"),
    ]
    study = study_for(sites, m=60, fit={**FIT, "draws": 4, "warmup": 0})
    with pytest.warns(NotConvergedWarning) as caught:
        fit(sites, study)
    assert caught[0].filename == __file__
    assert "sampling" in capsys.readouterr().err
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        fit(sites, study.again(), progress=False)
    assert capsys.readouterr().err == ""


def test_a_site_with_responses_alone_predicts_from_ids_alone(tmp_path):
    """No dummy column: its table of new subjects is a list of ids, in one process and by a file."""
    tables = frames()
    sites = [
        Site("clinic", tables["clinic"], id="id", features=[], responses=["weight", "height"], key=KEY),
        Site("home", tables["home"], id="id", key=KEY, predict={"one_column": "allow"}),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        result = fit(sites, study_for(sites, m=60, id="trial", run=RUN, fit=FIT), progress=False)
    ids = [f"N{i}" for i in range(20)]
    new = {"id": ids, **{f"x{j}": np.linspace(-1.0, 1.0, 20) for j in range(4)}}
    pd.DataFrame({"id": ids}).to_csv(tmp_path / "new.csv", index=False)
    first, second = (
        result.predict({"clinic": own, "home": new}, name)["clinic"]
        for own, name in (({"id": ids}, "june"), (str(tmp_path / "new.csv"), "july"))
    )
    assert first.mean.shape == (20, 2)
    np.testing.assert_allclose(first.mean, second.mean, atol=1e-9)


def test_a_callback_that_is_given_is_called(shared):
    from intarsia.progress import shown

    seen = []
    with shown(seen.append) as progress:
        progress("here")
    assert seen == ["here"]
