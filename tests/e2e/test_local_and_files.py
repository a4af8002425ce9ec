"""A whole study in one process and by files: the same result, and predictions equal to pooled ones."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.federation import FIT, KEY, NAMES, NOT_ROUNDED, RESPONSES, RUN, fingerprints, frames, predicts_with, sites, study

from intarsia.carriers.files import fit_files
from intarsia.carriers.in_process import fit, study_for
from intarsia.cli import main
from intarsia.errors import FederationError, InputError, MessageError, StudyError
from intarsia.server.study.folder import StudyFolder, dump
from intarsia.site.identity import Identity
from intarsia.site.predict_rules import PredictRules
from intarsia.site.prediction import SiteModel
from intarsia.site.site import Site
from intarsia.site.site_folder import SiteFolder
from intarsia.wire.coefficients import Coefficients


@pytest.fixture(scope="module")
def result():  # type: ignore[no-untyped-def]
    return fit(sites(frames()), study())


def pooled(result, new) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[no-untyped-def]
    """What is predicted, and draws of the linear predictor, in original units, from everything in one place."""
    tables = frames()
    features = [f for name in NAMES for f in tables[name].columns if f.startswith(f"{name}_")]
    whole = tables["clinic"].merge(tables["mri"], on="id").merge(tables["lab"], on="id")
    fresh = new["clinic"].merge(new["mri"], on="id").merge(new["lab"], on="id").set_index("id")
    fresh = fresh.loc[new["clinic"]["id"]]
    C = result.posterior.C.sel(feature=features)
    Z = (fresh[features].to_numpy() - whole[features].mean().to_numpy()) / whole[features].std().to_numpy()
    y = [str(q) for q in C.coords["response"].values]
    order = [result.posterior.features.index(f) for f in features]
    used = predicts_with(result.posterior)[order]
    mean = whole[y].mean().to_numpy() + whole[y].std().to_numpy() * (Z @ used)
    draws = np.stack([Z @ c for c in C.values.reshape(-1, *C.shape[2:])])
    return mean, whole[y].mean().to_numpy() + whole[y].std().to_numpy() * draws


def test_three_lines() -> None:
    import intarsia

    tables = frames()
    parties = [intarsia.Site(name, tables[name], id="id", responses=RESPONSES[name]) for name in NAMES]
    result = intarsia.fit(parties, study_for(parties, m=60, fit=FIT))
    assert result.posterior.C.sizes["feature"] == 18
    assert {row["site"] for row in result.rows()} == set(NAMES)


def test_the_strong_features_are_found(result) -> None:  # type: ignore[no-untyped-def]
    mean = abs(result.posterior.mean().sel(response="alt"))
    assert set(mean.sortby(mean).feature.values[-3:]) == {"clinic_0", "mri_1", "lab_2"}


def test_each_site_gets_its_own_rows_in_its_own_units(result) -> None:  # type: ignore[no-untyped-def]
    tables = frames()
    C = result.posterior.mean()
    for name, model in result.models.items():
        assert all(f.startswith(f"{name}_") for f in model.coefficients.features)
        for row in model.rows():
            factor = 1 / tables[name][row["feature"]].std()
            if row["response"] in RESPONSES[name]:
                factor *= tables[name][row["response"]].std()
            expected = float(C.sel(feature=row["feature"], response=row["response"])) * factor
            assert row["effect"] == pytest.approx(expected, rel=1e-9)
            assert row["lower"] <= row["upper"]
            # A mean over draws that are nearly all zero is above or below all but a few of them.
            assert row["lower"] <= row["effect"] <= row["upper"] or not row["selected_here"]
    assert result.models["clinic"].coefficients.own_responses == ("alt", "ast")
    assert result.models["mri"].coefficients.sigma2_mean.shape == (0,)


@pytest.mark.parametrize(("rules", "apart"), [(NOT_ROUNDED, 0.0), ({"one_column": "allow"}, 2 * 0.005)])
def test_joint_prediction_equals_pooled_prediction(result, monkeypatch, rules, apart) -> None:  # type: ignore[no-untyped-def]
    """To 1e-9 where nothing is rounded; by default off by at most half a hundredth of an sd for each other site."""
    for site in result.sites:
        monkeypatch.setattr(site, "predict_rules", PredictRules.of(rules))
    new = {name: frame.head(25) if name == "clinic" else frame for name, frame in frames(60, seed=5).items()}
    ids = set(new["clinic"]["id"])
    new = {name: frame[frame["id"].isin(ids)].drop(columns=RESPONSES[name]) for name, frame in new.items()}
    predicted = result.predict(new, f"june{len(rules)}")
    mean, _ = pooled(result, new)
    responses = [str(q) for q in result.posterior.C.coords["response"].values]
    order = {i: k for k, i in enumerate(new["clinic"]["id"])}
    assert set(predicted) == {"clinic", "lab"}
    for prediction in predicted.values():
        at = [order[i] for i in prediction.ids]
        for q, label in enumerate(prediction.responses):
            off = np.abs(prediction.mean[:, q] - mean[at, responses.index(label)]).max()
            sd = pd.concat(frames()[name][label] for name in NAMES if label in RESPONSES[name]).std()
            assert off <= 1e-9 + apart * sd
            assert off > 0.2 * apart * sd
            assert (prediction.lower[:, q] < prediction.mean[:, q]).all()


@pytest.mark.parametrize("rules", [NOT_ROUNDED, {"one_column": "allow"}])
def test_the_spread_of_a_prediction_is_at_least_the_pooled_one(result, monkeypatch, rules) -> None:  # type: ignore[no-untyped-def]
    """The sum of the sites' standard deviations bounds that of their sum, and not by more than the number of sites allows and a
    step of the rounding for each."""
    for site in result.sites:
        monkeypatch.setattr(site, "predict_rules", PredictRules.of(rules))
    new = {name: frame.drop(columns=RESPONSES[name]) for name, frame in frames(30, seed=6).items()}
    prediction = result.predict(new, f"spread{len(rules)}")["clinic"]
    _, draws = pooled(result, new)
    responses = [str(q) for q in result.posterior.C.coords["response"].values]
    order = {i: k for k, i in enumerate(new["clinic"]["id"])}
    at = [order[i] for i in prediction.ids]
    sigma2, spread = (getattr(result.models["clinic"].coefficients, name) for name in ("sigma2_mean", "spread"))
    scale = result.models["clinic"].units.y_scale
    for q, label in enumerate(prediction.responses):
        exact = draws[:, at, responses.index(label)].var(axis=0, ddof=1)
        noise = sigma2[q] * scale[q] ** 2
        ours = prediction.sd[:, q] ** 2 / spread[q] - noise
        assert (ours >= exact * (1 - 1e-9)).all()
        most = 3 * np.sqrt(exact) + (0.0 if "digits" in rules else 2 * 0.01 * scale[q])
        assert (ours <= most**2 * (1 + 1e-9)).all()
        assert prediction.upper[:, q] - prediction.lower[:, q] == pytest.approx(2 * 1.959964 * prediction.sd[:, q], rel=1e-6)


def test_covariates_take_part_in_rows_and_predictions() -> None:
    """A confounder at one site, a centre with three levels at another: adjusted for, reported in own units, predicted with."""
    tables = frames(600, seed=3)
    rng = np.random.default_rng(3)
    order = tables["clinic"]["id"].sort_values().to_numpy()
    age = dict(zip(order, 50 + 10 * rng.standard_normal(600), strict=True))
    centre = dict(zip(order, rng.choice(["a", "b", "c"], 600), strict=True))
    tables["clinic"]["age"] = tables["clinic"]["id"].map(age)
    tables["mri"]["centre"] = tables["mri"]["id"].map(centre)
    lift = {"a": 0.0, "b": 5.0, "c": -5.0}
    tables["clinic"]["alt"] += 0.8 * tables["clinic"]["age"] + tables["clinic"]["id"].map(centre).map(lift)
    roles = {"clinic": ["age"], "mri": ["centre"], "lab": []}
    parties = [
        Site(
            name,
            tables[name],
            id="id",
            responses=RESPONSES[name],
            covariates=roles[name],
            key=KEY,
            predict={"one_column": "allow"},
        )
        for name in NAMES
    ]
    result = fit(parties, study_for(parties, m=100, fit=FIT, run=RUN))
    rows = {(r["feature"], r["response"]): r for r in result.models["clinic"].rows() if r["role"] == "covariate"}
    assert set(rows) == {("age", q) for q in ("alt", "ast", "hdl")}
    found = rows["age", "alt"]
    assert found["lower"] < 0.8 < found["upper"]
    assert found["selected"] is False
    mri = {r["feature"] for r in result.models["mri"].rows() if r["role"] == "covariate"}
    assert mri == {"centre=b", "centre=c"}
    new = {name: frame.drop(columns=RESPONSES[name]).head(600) for name, frame in tables.items()}
    ours = result.predict(new, "all")["clinic"]
    truth = tables["clinic"].set_index("id").loc[list(ours.ids), "alt"].to_numpy()
    assert np.corrcoef(ours.mean[:, 0], truth)[0, 1] > 0.97
    # Without its covariates a subject's prediction is refused, not made from what is there.
    with pytest.raises(InputError, match="age"):
        parties[0].predict_part(result.study, "less", new["clinic"].drop(columns="age"))


def test_masks_are_used_once(result) -> None:  # type: ignore[no-untyped-def]
    new = {name: frame.drop(columns=RESPONSES[name]) for name, frame in frames(25, seed=7).items()}
    site = result.sites[1]
    first = site.predict_part(result.study, "once", new["mri"])
    assert site.predict_part(result.study, "once", new["mri"]) == first
    moved = new["mri"].assign(mri_0=new["mri"]["mri_0"] + 1)
    with pytest.raises(FederationError, match="Masks are used once"):
        site.predict_part(result.study, "once", moved)


def test_a_saved_model_loads(result, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    result.models["clinic"].save(tmp_path / "clinic.model")
    assert (tmp_path / "clinic.model").stat().st_mode & 0o777 == 0o600
    loaded = SiteModel.load(tmp_path / "clinic.model")
    assert loaded.rows() == result.models["clinic"].rows()
    with pytest.raises(MessageError):
        Coefficients.from_bytes((tmp_path / "clinic.model").read_bytes())


def test_a_roster_that_does_not_fit_is_refused() -> None:
    with pytest.raises(StudyError, match="the sites given are clinic, mri"):
        fit(sites(frames())[:2], study())


def test_intersecting_subjects() -> None:
    tables = frames()
    tables["mri"] = tables["mri"].iloc[:380]
    tables["lab"] = tables["lab"].iloc[20:]
    with pytest.raises(Exception, match="do not hold the same subjects"):
        fit(sites(tables), study())
    common = set(tables["mri"]["id"]) & set(tables["lab"]["id"])
    result = fit(sites(tables), study(alignment={"mode": "intersect"}))
    assert result.posterior.tree.attrs["n"] == len(common) < 400


def run(*words: object) -> None:
    assert main([str(word) for word in words]) == 0


def accept(folder: Path, source: Path) -> None:
    """As an operator who has asked every peer for its words."""
    run("site", "accept", folder, source, "--fingerprints", fingerprints(folder, source))


def test_a_study_by_files_gives_the_same_result(result, tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    """The commands of docs/tutorial-files.md, with a key exchanged by file."""
    (tmp_path / "study.toml").write_text(dump(study()))
    KEY.save(tmp_path / "study.key")
    for name, frame in frames().items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        site_folder = tmp_path / name
        run("site", "init", site_folder, "--name", name, "--table", tmp_path / f"{name}.csv", "--id", "id",
            "--responses", ",".join(RESPONSES[name]))  # fmt: skip
        toml = (site_folder / "site.toml").read_text().replace("# key =", "key =").replace('"study.key"', '"../study.key"')
        toml = toml.replace('one_column = "refuse"', 'one_column = "allow"').replace("digits = 2", "digits = 12")
        toml = toml.replace("max_bits = 100", "max_bits = 1000")
        (site_folder / "site.toml").write_text(toml)
        accept(site_folder, tmp_path / "study.toml")
        run("site", "sketch", site_folder, "--yes", "-o", tmp_path / f"{name}.sketch")
    out = tmp_path / "server"
    # Not all sites yet: refused by name, kept, and completed by the same command.
    with pytest.raises(FederationError, match="lacks the sketch of lab"):
        main(["--debug", "fit", str(tmp_path / "clinic.sketch"), str(tmp_path / "mri.sketch"),
              "--study", str(tmp_path / "study.toml"), "-o", str(out)])  # fmt: skip
    capsys.readouterr()
    run("study", "status", out)  # what the sites did among themselves is not waited for
    assert "next: sketch" in capsys.readouterr().out
    run("fit", tmp_path / "lab.sketch", "-o", out)
    for name in NAMES:
        run("site", "receive", tmp_path / name, StudyFolder.open(out).file("coefficients", name),
            "-o", tmp_path / f"{name}-coefficients.csv")  # fmt: skip
        model = SiteFolder.load(tmp_path / name).site().model(study())
        for theirs, ours in zip(model.rows(), result.models[name].rows(), strict=True):
            assert theirs == ours
    capsys.readouterr()
    run("study", "status", out, "--json")
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert {s["step"]: s["done"] for s in steps} == {"sketch": True, "fit": True, "deliver": False}
    with pytest.raises(FederationError, match="lacks the receipt of mri, lab"):
        main(["--debug", "deliver", "receipts", str(out), str(tmp_path / "clinic.receipt")])
    run("deliver", "receipts", out, tmp_path / "mri.receipt", tmp_path / "lab.receipt")
    capsys.readouterr()
    run("study", "status", out)
    assert "complete" in capsys.readouterr().out

    # Predictions by files.
    new = {name: frame.drop(columns=RESPONSES[name]) for name, frame in frames(20, seed=8).items()}
    for name, frame in new.items():
        frame.to_csv(tmp_path / f"new-{name}.csv", index=False)
        run("predict", "part", tmp_path / name, "june", tmp_path / f"new-{name}.csv", "-o", tmp_path / f"{name}.part")
    run("predict", "sum", out, "june", *(tmp_path / f"{n}.part" for n in NAMES), "-o", tmp_path / "sums")
    run("predict", "part", tmp_path / "mri", "july", tmp_path / "new-mri.csv", "-o", tmp_path / "july.part")
    with pytest.raises(InputError, match=r"july.part belongs to prediction 'july'; expected parts of 'june'"):
        main(["--debug", "predict", "sum", str(out), "june", str(tmp_path / "july.part"), "-o", str(tmp_path / "mixed")])
    run("predict", "finish", tmp_path / "lab", "june", tmp_path / "new-lab.csv", tmp_path / "sums" / "lab.sum",
        "-o", tmp_path / "june.csv")  # fmt: skip
    assert (tmp_path / "june.csv").stat().st_mode & 0o777 == 0o600  # it names people
    table = pd.read_csv(tmp_path / "june.csv").set_index("subject")
    mean, _ = pooled(result, new)
    responses = [str(q) for q in result.posterior.C.coords["response"].values]
    expected = pd.Series(mean[:, responses.index("hdl")], index=new["clinic"]["id"])
    np.testing.assert_allclose(table["mean"], expected.loc[table.index], rtol=0, atol=1e-9)


def test_key_agreement_by_files(tmp_path: Path) -> None:
    public = []
    for name, frame in frames().items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        brings = ["--responses", ",".join(RESPONSES[name])] if RESPONSES[name] else []
        run("site", "init", tmp_path / name, "--name", name, "--table", tmp_path / f"{name}.csv", "--id", "id", *brings)
        public.append(tmp_path / name / f"{name}.toml")
    named = [word for path in public for word in ("--site", path)]
    run("study", "new", tmp_path / "study.toml", "--id", "liver", "--m", 60, *named,
        "--responses", "clinic=alt,ast", "--responses", "lab=hdl")  # fmt: skip
    run("study", "check", tmp_path / "study.toml")
    for name in NAMES:
        accept(tmp_path / name, tmp_path / "study.toml")
        run("site", "offer", tmp_path / name, "-o", tmp_path / f"{name}.offer")
    offers = [tmp_path / f"{name}.offer" for name in NAMES]
    for name in NAMES:
        run("site", "share", tmp_path / name, *offers, "-o", tmp_path / f"{name}.share")
    shares = [tmp_path / f"{name}.share" for name in NAMES]
    for name in NAMES:
        run("site", "combine", tmp_path / name, *shares, "-o", tmp_path / f"{name}.confirmation")
    for name in NAMES:
        run("site", "seal", tmp_path / name, *(tmp_path / f"{n}.confirmation" for n in NAMES))
    folders = [SiteFolder.load(tmp_path / name) for name in NAMES]
    from intarsia.wire.study import Study

    s = Study.load(tmp_path / "study.toml")
    assert len({site_folder.site().key(s).fingerprint for site_folder in folders}) == 1
    for name in NAMES:
        responses = json.dumps(RESPONSES[name])
        site_toml = tmp_path / name / "site.toml"
        site_toml.write_text(site_toml.read_text().replace("responses = []", f"responses = {responses}"))
        run("site", "sketch", tmp_path / name, "--yes", "-o", tmp_path / f"{name}.sketch")
    # Whoever poses as the laboratory with a file, or changes one, is refused by the pinned key.
    genuine = (tmp_path / "lab.sketch.sig").read_bytes()
    poser = Site("lab", identity=Identity.new("lab"))
    forged = poser.signature(s, (tmp_path / "lab.sketch").read_bytes())
    assert forged is not None
    for signature, words in ((None, "without its signature"), (forged, "not signed by site 'lab'")):
        (tmp_path / "lab.sketch.sig").unlink(missing_ok=True)
        if signature is not None:
            (tmp_path / "lab.sketch.sig").write_bytes(signature)
        with pytest.raises(FederationError, match=words):
            fit_files([tmp_path / "lab.sketch"], tmp_path / "study.toml", tmp_path / "server")
    (tmp_path / "lab.sketch.sig").write_bytes(genuine)
    with pytest.raises(FederationError, match="lacks the sketch of clinic, mri"):
        fit_files([tmp_path / "lab.sketch"], tmp_path / "study.toml", tmp_path / "server")
    run("study", "again", tmp_path / "study.toml", "-o", tmp_path / "second.toml")
    assert Study.load(tmp_path / "second.toml").hash != s.hash


def test_a_changed_study_file_is_noticed_at_the_site(tmp_path: Path) -> None:
    site_folder = SiteFolder.create(tmp_path / "clinic", "clinic")
    (tmp_path / "study.toml").write_text(dump(study()))
    site_folder.accept(tmp_path / "study.toml")
    tampered = study(m=300)
    with pytest.raises(StudyError, match=r"has not accepted that study\. The study file was changed, or not accepted"):
        site_folder.accepted(tampered.hash)
    assert site_folder.accepted(study().hash).sketch.m == 60
    assert isinstance(site_folder.site(), Site)
