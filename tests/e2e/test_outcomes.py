"""Responses of other kinds through a whole study: prepared at their owner, sketched, fitted, told in their own language."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from tests.federation import KEY, RUN, fingerprints

import intarsia
from intarsia.carriers.in_process import StudyResult, fit, study_for
from intarsia.cli import main
from intarsia.errors import InputError, IntarsiaError, MessageError, StudyError
from intarsia.report.gather import Beside, from_folder, gather
from intarsia.report.page import render
from intarsia.server.study.folder import StudyFolder, dump
from intarsia.site.prediction import SiteModel
from intarsia.site.site_folder import SiteFolder
from intarsia.wire.coefficients import Coefficients, bind
from intarsia.wire.log_odds import log_odds_ratio
from intarsia.wire.study import Study

N, FIT = 2000, {"draws": 100, "warmup": 80, "chains": 2, "thin": 1, "seed": 3}
SURVIVAL = {"kind": "time", "event": "died", "horizon": 24, "unit": "months"}
KINDS: dict[str, Any] = {"asthma": "binary", "months": SURVIVAL, "visits": "count", "stage": "ordinal"}
# What study.toml says; which column holds the event is the site's own matter.
SAID = {"asthma": "binary", "months": {k: v for k, v in SURVIVAL.items() if k != "event"}, "visits": "count", "stage": "ordinal"}
RESPONSES = ["asthma", "months", "visits", "stage", "fev1"]


def frames(n: int = N, seed: int = 0) -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(seed)
    ids = [f"S{i:05d}" for i in range(n)]
    X, G = rng.standard_normal((n, 4)), rng.standard_normal((n, 4))
    line = 0.8 * X[:, 0] - 0.6 * G[:, 1]
    died = rng.exponential(20 * np.exp(-line))
    seen = rng.uniform(5, 60, n)
    clinic = pd.DataFrame(X, columns=[f"x{j}" for j in range(4)])
    clinic.insert(0, "id", ids)
    clinic["x0"] = 50 + 10 * clinic["x0"]  # in units of its own
    clinic["asthma"] = np.where(rng.random(n) < expit(line - 1), "yes", "no")
    clinic["months"], clinic["died"] = np.minimum(died, seen), (died <= seen) * 1
    clinic["visits"] = rng.poisson(np.exp(0.3 * line + 1))
    clinic["stage"] = np.digitize(line + rng.standard_normal(n), [-1, 1]) + 1
    clinic["fev1"] = 3 + 0.5 * line + rng.standard_normal(n)
    lab = pd.DataFrame(G, columns=[f"g{j}" for j in range(4)])
    lab.insert(0, "id", ids)
    return {"clinic": clinic, "lab": lab.sample(frac=1.0, random_state=1).reset_index(drop=True)}


def parties(tables: dict[str, pd.DataFrame], **options: Any) -> list[intarsia.Site]:
    own = {"responses": RESPONSES, "kinds": KINDS, "ignore": ["died"]} | options
    shared: dict[str, Any] = {"id": "id", "key": KEY, "predict": {"one_column": "allow"}, "policy": {"attack_seconds": 0.5}}
    return [intarsia.Site("clinic", tables["clinic"], **shared, **own), intarsia.Site("lab", tables["lab"], **shared)]


def study(**tables: Any) -> Study:
    clinic = {"name": "clinic", "features": ["x*"], "responses": RESPONSES, "kinds": SAID}
    roster = [clinic, {"name": "lab", "features": ["g*"]}]
    return Study.from_dict({"id": "lungs", "run": RUN, "sketch": {"m": 200}, "fit": FIT, "site": roster} | tables)


@pytest.fixture(scope="module")
def result() -> StudyResult:
    return fit(parties(frames()), study())


def rows(model: SiteModel) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["feature"], row["response"]): row for row in model.rows()}


def test_the_owner_reads_each_response_in_its_own_language(result: StudyResult) -> None:
    found = rows(result.models["clinic"])
    asthma, months = found["x0", "asthma"], found["x0", "months"]
    # Per unit of the feature, whose standard deviation is 10: a log odds ratio of .08.
    assert asthma["lower"] < 0.08 < asthma["upper"]
    # The odds ratio is that of the effect without the sparse prior; `ratio` goes with `effect`. The table says which is which.
    for name, source in (("odds_ratio", "unshrunk"), ("or_lower", "unshrunk_lower"), ("or_upper", "unshrunk_upper")):
        assert asthma[name] == pytest.approx(np.exp(asthma[source]))
    assert asthma["ratio"] == pytest.approx(np.exp(asthma["effect"]))
    assert asthma["odds_ratio"] != asthma["ratio"]
    assert asthma["unit"] == "log odds ratio per unit of the feature"
    assert asthma["or_is"] == "odds ratio under a flat prior of its own"
    assert asthma["ratio_is"] == "odds ratio, drawn towards 1 by the sparse prior"
    assert asthma["or_lower"] < asthma["odds_ratio"] < asthma["or_upper"]
    # Under a flat prior of its own the effect is not drawn towards zero.
    assert asthma["unshrunk_lower"] < 0.08 < asthma["unshrunk_upper"]
    assert asthma["unshrunk"] > 0.95 * asthma["effect"]  # a feature that is surely in is hardly shrunk
    assert months["unshrunk_lower"] < months["effect"] < months["unshrunk_upper"] < 0
    assert months["unit"] == "months per unit of the feature"
    assert months["ratio"] is None
    assert months["upper"] < 0  # x0 brings the event earlier
    assert found["x0", "visits"]["ratio_is"] == "ratio at the mean count"
    assert 0.02 < found["x0", "visits"]["effect"] < 0.04
    assert found["x0", "stage"]["unit"] == "score per unit of the feature"
    assert (found["x0", "fev1"]["unit"], found["x0", "fev1"]["ratio"]) == ("units of the response per unit of the feature", None)
    # The laboratory knows no response's scale: standard deviations, as ever, and no column for ratios.
    assert {row["unit"] for row in result.models["lab"].rows()} == {"sd of the response per unit of the feature"}
    assert "odds_ratio" not in result.models["lab"].rows()[0]
    # Whoever runs all sites in one process knows all scales: odds ratios of the laboratory's columns too.
    whole = result.table().set_index(["feature", "response"]).loc[("g1", "asthma")]
    assert whole["or_upper"] < 1
    assert whole["lower"] < -0.6 < whole["upper"]
    said = "\n".join(result.models["clinic"].cautions())
    assert "asthma: from a linear model" in said
    assert "months: mean time without the event" in said


def test_other_sites_read_odds_ratios_where_the_scale_is_shared(result: StudyResult, tmp_path: Path) -> None:
    sites = parties(frames())
    for site in sites:
        site.folder = tmp_path / site.name
        site.folder.mkdir()
    told = fit(sites, study(deliver={"share_scales": True}), folder=tmp_path / "server")
    lab, clinic = told.models["lab"], told.models["clinic"]
    found, here = rows(lab), told.table().set_index(["feature", "response"])
    asthma = found["g1", "asthma"]
    # The noise variance is at its mean here, where the owner has its draws.
    c, j, k = lab.coefficients, lab.coefficients.features.index("g1"), lab.coefficients.responses.index("asthma")
    plain = log_odds_ratio(c.mean[j, k], c.response_scales[k], c.noise_variances["asthma"]) / lab.units.x_scale[j]
    assert asthma["effect"] == pytest.approx(plain, rel=1e-9)
    whole = here.loc[("g1", "asthma")]
    assert abs(asthma["effect"] - whole["effect"]) < whole["sd"] / 5
    assert asthma["odds_ratio"] == pytest.approx(np.exp(asthma["unshrunk"]))
    assert asthma["unit"] == "log odds ratio per unit of the feature"
    assert asthma["or_upper"] < 1
    assert found["g1", "months"]["unit"] == "months per unit of the feature"
    assert found["g1", "stage"]["unit"] == "score per unit of the feature"
    assert found["g1", "fev1"]["unit"] == "units of the response per unit of the feature"
    # A count needs its mean too: what its owner shares is both in one number, and others read the ratios that it reads itself.
    visits = here.loc[("g1", "visits")]
    assert found["g1", "visits"]["unit"] == visits["unit"] == "log ratio per unit of the feature"
    assert found["g1", "visits"]["ratio"] == pytest.approx(visits["ratio"], rel=1e-9)
    assert found["g1", "visits"]["ratio_is"] == "ratio at the mean count"
    # The report tells each response in its own language: here the odds ratio of the sparse posterior and the unshrunk one.
    material = from_folder(tmp_path / "server")
    page = render(material)
    p, at = material.features.index("x0"), material.responses.index("asthma")
    sparse = material.languages[at].told(float(material.mean[p, at]))
    assert f"{sparse} odds ratio" in page
    own = clinic.coefficients
    mean = own.mean[own.features.index("x0"), own.responses.index("asthma")]
    assert float(sparse) == pytest.approx(
        np.exp(log_odds_ratio(mean, c.response_scales[k], c.noise_variances["asthma"])), abs=0.006
    )  # at the mean of the noise variance, and rounded
    owner = here.loc[("x0", "asthma")]  # over the draws of the noise variance, of which there are few here
    assert abs(np.log(float(sparse)) / clinic.units.x_scale[0] - owner["effect"]) < owner["sd"] / 2
    assert "odds ratio, unshrunk [95 %]" in page
    assert re.search(r"−\d\.\d+ months", page)
    assert "log odds ratio per sd" in page  # the forest's axis
    assert "months per sd" in page
    assert "ratio at the mean count, unshrunk [95 %]" in page
    assert re.search(r"0\.\d\d \[0\.\d\d, 0\.\d\d\]</td>", page)  # the AUC to be expected
    # So does the server, per standard deviation of the features, whose scales it does not know.
    run("report", tmp_path / "server", "--table", tmp_path / "results.csv")
    table = pd.read_csv(tmp_path / "results.csv").set_index(["feature", "response"])
    row = table.loc[("g1", "asthma")]
    assert row["unit"] == "log odds ratio per sd of the feature"
    assert row["effect"] == pytest.approx(asthma["effect"] * lab.units.x_scale[j])
    assert row["odds_ratio"] == pytest.approx(np.exp(row["unshrunk"]))
    assert row["unshrunk"] == pytest.approx(asthma["unshrunk"] * lab.units.x_scale[j])
    assert table.loc[("g1", "months"), "unit"] == "months per sd of the feature"
    assert table.loc[("g1", "visits"), "unit"] == "log ratio per sd of the feature"
    assert set(lab.coefficients.noise_variances) == {"asthma"}
    q = clinic.coefficients.own_responses.index("asthma")
    assert lab.coefficients.noise_variances["asthma"] == pytest.approx(clinic.coefficients.sigma2_mean[q])
    assert result.models["lab"].coefficients.noise_variances == {}
    # A server that tells other variances than the study's is refused, as one that tells none.
    plan = told.study
    lies: list[dict[str, float]] = [{}, {"asthma": 0.5, "fev1": 0.5}]
    for lie in lies:
        parts = {name: replace(model.coefficients, noise_variances=lie, fit_parts={}) for name, model in told.models.items()}
        with pytest.raises(MessageError, match="noise variances of other responses"):
            sites[1].receive(plan, bind(parts)["lab"].to_bytes())
    with pytest.raises(MessageError, match="noise variances that cannot be"):
        Coefficients.from_bytes(replace(lab.coefficients, noise_variances={"asthma": -1.0}).to_bytes())


def test_intervals_of_log_odds_come_from_the_draws(result: StudyResult) -> None:
    """Draw by draw, with the noise variance of the same draw: not the interval of C, scaled."""
    model = result.models["clinic"]
    c, u = model.coefficients, model.units
    q, p = c.responses.index("asthma"), c.features.index("x0")
    assert c.draws is not None
    assert c.sigma2 is not None
    skewness, share = model.meaning.skewness["x0"], float(u.y_mean[q])
    draws = log_odds_ratio(c.draws[:, p, q], float(u.y_scale[q]), c.sigma2[:, q], skewness, share) / u.x_scale[p]
    row = rows(model)["x0", "asthma"]
    np.testing.assert_allclose([row["lower"], row["upper"]], np.quantile(draws, [0.025, 0.975]), rtol=1e-12)
    np.testing.assert_allclose(row["effect"], draws.mean(), rtol=1e-12)


def test_yes_no_predictions_are_probabilities_that_hold(result: StudyResult, tmp_path: Path) -> None:
    fresh = frames(2000, seed=9)
    new = {"clinic": fresh["clinic"].drop(columns=[*RESPONSES, "died"]), "lab": fresh["lab"]}
    found = result.predict(new, "next")["clinic"]
    q = found.responses.index("asthma")
    assert found.what[q] == "probability"
    assert found.lower is not None
    assert found.upper is not None
    assert ((found.lower[:, q] < found.mean[:, q]) & (found.mean[:, q] < found.upper[:, q])).all()
    came = (fresh["clinic"].set_index("id").loc[list(found.ids), "asthma"] == "yes").to_numpy() * 1.0
    scores = found.scores({"asthma": came})["asthma"]
    assert abs(scores["intercept"]) < 0.3
    assert 0.75 < scores["slope"] < 1.25
    assert scores["auc"] > 0.7
    assert scores["brier"] < came.var()
    # What rows left out made the owner expect.
    expected = next(row for row in result.models["clinic"].response_rows() if row["response"] == "asthma")
    for name in ("auc", "brier"):
        assert expected[f"{name}_lower"] < expected[name] < expected[f"{name}_upper"]
        assert expected[f"{name}_lower"] < scores[name] < expected[f"{name}_upper"]
    with pytest.raises(InputError, match="3 outcomes came for 2000 predicted subjects"):
        found.scores({"asthma": came[:3]})
    months = found.mean[:, found.responses.index("months")]
    assert 0 < np.median(months) < 24
    counts = found.mean[:, found.responses.index("visits")]
    assert counts.mean() == pytest.approx(fresh["clinic"]["visits"].mean(), rel=0.15)
    result.models["clinic"].save(tmp_path / "clinic.model")
    assert SiteModel.load(tmp_path / "clinic.model").rows() == result.models["clinic"].rows()


def run(*words: object) -> None:
    assert main([str(word) for word in words]) == 0


def test_by_files_the_same_to_the_last_bit(result: StudyResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study.toml").write_text(dump(study()))
    assert Study.load(tmp_path / "study.toml").hash == study().hash
    KEY.save(tmp_path / "study.key")
    kinds = 'kinds = { months = { kind = "time", event = "died" } }\nignore = ["died"]'
    for name, frame in frames().items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        own = ",".join(RESPONSES) if name == "clinic" else ""
        run(
            "site", "init", tmp_path / name, "--name", name, "--table", tmp_path / f"{name}.csv", "--id", "id", "--responses", own
        )
        toml = (tmp_path / name / "site.toml").read_text().replace('# key = "study.key"', 'key = "../study.key"')
        toml = toml.replace('one_column = "refuse"', 'one_column = "allow"')
        toml = toml.replace("ignore = []", kinds if name == "clinic" else "ignore = []")
        (tmp_path / name / "site.toml").write_text(toml)
        run("site", "accept", tmp_path / name, tmp_path / "study.toml",
            "--fingerprints", fingerprints(tmp_path / name, tmp_path / "study.toml"))  # fmt: skip
    said = capsys.readouterr()
    assert "Response asthma: yes or no; its effects are told as odds ratio" in said.err
    run("site", "check", tmp_path / "clinic")
    assert "asthma; categories no, yes; yes or no; its effects are told as odds ratio; yes is yes (say" in capsys.readouterr().out
    for name in frames(10):
        run("site", "sketch", tmp_path / name, "--yes", "-o", tmp_path / f"{name}.sketch")
    run("fit", tmp_path / "clinic.sketch", tmp_path / "lab.sketch", "--study", tmp_path / "study.toml", "-o", tmp_path / "server")
    for name in ("clinic", "lab"):
        run("site", "receive", tmp_path / name, StudyFolder.open(tmp_path / "server").file("coefficients", name),
            "-o", tmp_path / f"{name}.csv.out.csv")  # fmt: skip
        assert SiteFolder.load(tmp_path / name).site().model(study()).rows() == result.models[name].rows()
    assert "mind: asthma: from a linear model" in capsys.readouterr().out
    table = pd.read_csv(tmp_path / "clinic.csv.out.csv")
    assert set(table["ratio_is"].dropna()) == {"odds ratio, drawn towards 1 by the sparse prior", "ratio at the mean count"}
    # A prediction of subjects whose outcome is known says how well it held.
    fresh = frames(400, seed=5)
    for name, frame in fresh.items():
        frame.to_csv(tmp_path / f"new-{name}.csv", index=False)
        run("predict", "part", tmp_path / name, "june", tmp_path / f"new-{name}.csv", "-o", tmp_path / f"{name}.part")
    run("predict", "sum", tmp_path / "server", "june", tmp_path / "clinic.part", tmp_path / "lab.part", "-o", tmp_path / "sums")
    run("predict", "finish", tmp_path / "clinic", "june", tmp_path / "new-clinic.csv", tmp_path / "sums" / "clinic.sum",
        "-o", tmp_path / "june.csv", "--observed", tmp_path / "new-clinic.csv")  # fmt: skip
    assert "asthma: AUC 0." in capsys.readouterr().out
    assert set(pd.read_csv(tmp_path / "june.csv")["what"].dropna()) >= {"probability", "count", "score"}


def test_the_report_tells_each_kind(result: StudyResult) -> None:
    page = render(gather(result.posterior, Beside(study=study())))
    assert 'id="outcomes"' in page
    assert "The owner reads them in the response's own language" in page.replace("&#x27;", "'")
    assert "its owner reads it" in page  # AUC and Brier score: the share of yes is the owner's
    assert "Yes or no; its effects are told as odds ratio" in page
    assert "A time to an event up to 24 months; its effects are told as difference in mean survival time in months" in page
    assert "censoring is taken to be independent of the features" in page
    bare = study(site=[{"name": "clinic", "features": ["*"], "responses": RESPONSES}])
    plain = render(gather(result.posterior, Beside(study=bare)))
    assert 'id="outcomes"' not in plain


def test_a_study_made_in_python_carries_the_kinds() -> None:
    made = study_for(parties(frames(60)), m=10)
    assert made.kinds["asthma"] == {"kind": "binary"}
    assert made.site("clinic").responses == tuple(RESPONSES)
    assert made.hash != study_for(parties(frames(60), kinds={**KINDS, "stage": "continuous"}), m=10).again(made.run).hash


BAD: list[tuple[str, Any, str]] = [
    ("asthma", np.resize(["a", "b", "c"], 400), "'asthma' is called binary and has 3 levels"),
    ("stage", np.resize([1.0, 2.0, 3.0], 400), "'stage': A binary response has two levels; this one has 3"),
    ("months", np.resize([-1.0, 2.0], 400), "'months': 200 times are negative"),
    ("died", np.zeros(400), "'months': No event came: every subject is censored"),
    ("visits", np.full(400, np.nan), "'visits': This response has no value at all"),
    ("visits", np.resize([0.5, 1.0], 400), "200 values are not whole numbers"),
]


@pytest.mark.parametrize(("column", "values", "words"), BAD)
def test_bad_input_is_refused_before_anything_leaves(column: str, values: Any, words: str) -> None:
    tables = frames(400)
    tables["clinic"][column] = values
    kinds = {**KINDS, "stage": "binary"} if column == "stage" else KINDS
    sites = parties(tables, kinds=kinds)
    made = study_for(sites, m=30, fit=FIT, alignment={"mode": "intersect"})
    with pytest.raises(IntarsiaError, match=words):
        fit(sites, made)
    assert sites[0].run_store(made).log == []  # not even how many subjects there are
    values = [str(v) for v in pd.unique(tables["clinic"]["id"])[:3]]
    assert not any(v in words for v in values)


def test_a_site_that_says_another_kind_than_the_study_is_refused() -> None:
    sites = parties(frames(400), kinds={**KINDS, "asthma": {"kind": "binary", "yes": "no"}, "fev1": "skewed"})
    with pytest.raises(InputError, match=r"'fev1': the site says kind = 'skewed', study\.toml says 'continuous'"):
        fit(sites, study())
    with pytest.raises(InputError, match="a response has a kind, one of continuous, binary"):
        parties(frames(60), kinds={"asthma": "logistic"})


def test_a_study_file_with_wrong_kinds_is_refused_with_its_lines() -> None:
    text = dump(study())
    for old, new, words in (
        ('kind = "binary"', 'kind = "logit"', "response 'asthma': a response has a kind"),
        ("horizon = 24.0", "horizon = -1", "horizon of a response of kind 'time' must be a number above 0"),
        ("[site.kinds.asthma]", "[site.kinds.eczema]", "'eczema', which is no response of it"),
    ):
        assert old in text
        with pytest.raises(StudyError, match=words):
            Study.parse(text.replace(old, new))
    private = {"epsilon": 1.0, "delta": 1e-6, "row_bound": {"clinic": 3.0, "lab": 3.0}}
    with pytest.raises(StudyError, match="does not cover kinds of responses"):
        study(privacy=private, sketch={"m": 200, "kind": "gaussian"})
