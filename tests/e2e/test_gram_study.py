"""A study of three sites that makes the exact Gram matrix: the fit of the pooled data, and all after it as for a sketch."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from tests.federation import NAMES, RESPONSES, frames, gram_sites, gram_study

from intarsia import ReducedRankHorseshoe, report
from intarsia.carriers.in_process import carrier, fit
from intarsia.errors import FederationError, PrivacyError
from intarsia.privacy.card import verify
from intarsia.server.assess.findings import select
from intarsia.server.sampler.horseshoe.sample import sample
from intarsia.server.sampler.settings import Settings
from intarsia.server.study import gram, protocol
from intarsia.server.study.check import check
from intarsia.server.study.fit import settings_of
from intarsia.server.study.folder import StudyFolder
from intarsia.server.study.protocol import Reply
from intarsia.server.study.status import status
from intarsia.site.gram.encode import FILE
from intarsia.site.site import Site
from intarsia.wire.gram_messages import GramProduct
from intarsia.wire.study import Study

pytestmark = pytest.mark.filterwarnings("ignore")


def in_folders(where: Path, tables=None) -> list[Site]:
    parties = gram_sites(tables or frames())
    for site in parties:
        site.folder = where / site.name
        site.folder.mkdir(parents=True, exist_ok=True)
    return parties


def pooled(tables) -> pd.DataFrame:
    """All columns of the same subjects, standardised, in the order of the joint matrix."""
    parts = []
    for name in NAMES:
        frame = tables[name].set_index("id").sort_index()
        parts.append(frame[[c for c in frame if c not in RESPONSES[name]] + RESPONSES[name]])
    whole = pd.concat(parts, axis=1)
    return (whole - whole.mean()) / whole.std(ddof=1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    where = tmp_path_factory.mktemp("gram")
    parties = in_folders(where)
    study = gram_study(parties)
    return fit(parties, study, folder=where / "server"), study, where


def test_the_joint_matrix_is_that_of_the_pooled_columns(finished):
    _result, _study, where = finished
    D = pooled(frames())
    found = gram.joint(StudyFolder.open(where / "server"))
    assert np.abs(found - D.T.to_numpy() @ D.to_numpy()).max() < 1e-7 * (len(D) - 1)


def test_draws_and_selection_are_those_of_the_pooled_rows(finished):
    result, study, where = finished
    D = pooled(frames())
    n, labels = len(D), [label for names in RESPONSES.values() for label in names]
    basis = np.linalg.qr(np.column_stack([np.ones(n), np.eye(n)[:, :-1]]))[0][:, 1:]
    rows = basis.T @ D.to_numpy()
    X, Y = rows[:, [c not in labels for c in D]], rows[:, [D.columns.get_loc(label) for label in labels]]
    assert list(result.posterior.features) == [c for c in D if c not in labels]
    # The same noise gives the same draws, until along a chain a decision that hangs on the last digits falls otherwise.
    joined = StudyFolder.open(where / "server").joined()
    short = Settings(draws=12, warmup=8, chains=2, thin=1, seed=1)
    assert joined.m == n - 1
    ours, theirs = sample(joined.X, joined.Y, settings=short, degrees=joined.m), sample(X, Y, settings=short)
    assert np.abs(ours.C - theirs.C).max() < 1e-6
    assert np.abs(ours.Sigma - theirs.Sigma).max() < 1e-6
    # So what is said is compared after enough draws; the study's own few are for the features that act.
    long = replace(settings_of(study), until=None, draws=400, warmup=200)
    ours, theirs = sample(joined.X, joined.Y, settings=long, degrees=joined.m), sample(X, Y, settings=long)
    chosen = [select(draws.C, X=data, max_local_fdr=0.5).selected for draws, data in ((ours, joined.X), (theirs, X))]
    np.testing.assert_array_equal(*chosen)
    named = {str(result.posterior.features[p]) for p in np.flatnonzero(chosen[0])}
    assert {"clinic_0", "mri_1", "lab_2"} <= named & set(result.selected)
    spread = theirs.C.std(axis=(0, 1))
    assert (np.abs(ours.mean() - theirs.mean()) < 0.3 * spread).all()
    np.testing.assert_allclose(ours.C.std(axis=(0, 1)), spread, rtol=0.3)


def test_the_estimator_fits_a_gram_matrix_as_the_rows_it_stands_for(finished):
    """The noise is counted over n − 1 rows, not over the root's few."""
    joined = StudyFolder.open(finished[2] / "server").joined()
    run = {"draws": 40, "warmup": 30, "chains": 2, "thin": 1, "until": None}
    model = ReducedRankHorseshoe(**run, folds=2, random_state=1).fit_sketch(joined)
    seed = int(np.random.RandomState(1).randint(2**31 - 1))
    settings = Settings(**run, seed=seed)
    draws = sample(joined.X, joined.Y, settings=settings, degrees=joined.m)
    np.testing.assert_array_equal(model.posterior_.C.values, draws.C)
    np.testing.assert_allclose(model.noise_covariance_, draws.Sigma.mean(axis=(0, 1)))
    few = sample(joined.X, joined.Y, settings=settings)
    assert np.median(few.Sigma[..., 0, 0]) > 1.5 * np.median(draws.Sigma[..., 0, 0])
    assert model.table()["unshrunk"].notna().all()
    assert {"clinic_0", "mri_1", "lab_2"} <= {name for name, on in zip(joined.features, model.selected_, strict=True) if on}


def test_every_site_gets_its_own_rows_in_its_own_units(finished):
    result, _study, where = finished
    row = next(r for r in result.models["clinic"].rows() if (r["feature"], r["response"]) == ("clinic_0", "alt"))
    assert row["lower"] < 10.0 < row["upper"]  # 50 + 5·(2·clinic_0 …)
    assert all(row["done"] for row in status(StudyFolder.open(where / "server")))
    assert not list(where.glob(f"*/studies/*/{FILE}"))  # the encoded columns are gone


def test_prediction_and_report_work(finished, tmp_path):
    result, _study, where = finished
    tables = frames(n=60, seed=9)
    new = {name: frame.drop(columns=RESPONSES[name]) for name, frame in tables.items()}
    found = result.predict(new)["clinic"]
    observed = tables["clinic"].set_index("id").loc[found.ids, "alt"]
    assert np.corrcoef(found.mean[:, 0], observed)[0, 1] > 0.95
    page = report.write(where / "server", tmp_path / "r.html").read_text(encoding="utf-8")
    assert "the exact correlations over 400 subjects" in page
    assert "sketch rows" not in page
    assert check(StudyFolder.open(where / "server"), folds=2)["k_fold"]["r2"][0] == pytest.approx(
        result.summary["r2_loo"][0], abs=0.05
    )


def test_the_card_says_what_two_sites_together_have(finished):
    _result, study, where = finished
    folder = where / "mri" / "studies" / study.folder_name
    card = verify((folder / "card.json").read_text(encoding="utf-8"))
    assert card["sketch"]["kind"] == "gram"
    assert "any two sites that work together have the third one's values" in card["in_one_sentence"]
    assert any("mark single subjects" in line for line in card["not_claimed"])
    assert card["attacks"]["correlations_known_to"] == 0.0
    assert "Gram matrix" in (folder / "card.html").read_text(encoding="utf-8")


def test_carriers_and_keys_change_nothing(finished, tmp_path):
    """Another study key, another order of subjects, other masks: the same matrix to the last bit."""
    _result, study, where = finished
    parties = in_folders(tmp_path)
    folder = StudyFolder.create(tmp_path / "server", study)
    protocol.collect(folder, carrier(parties, study))
    before = StudyFolder.open(where / "server")
    assert folder.read("confirmation", "mri") != before.read("confirmation", "mri")
    assert np.array_equal(gram.joint(folder), gram.joint(before))


def test_a_killed_party_goes_on_and_a_repeated_step_sends_the_same_bytes(tmp_path):
    """Every step once with a site lost after it, every message twice; sites are opened anew each time, as after a crash."""
    study = gram_study(in_folders(tmp_path))
    folder = StudyFolder.create(tmp_path / "server", study)
    lost: set[tuple[str, str]] = set()

    def ask(step, payloads):
        replies = {}
        for name, payload in payloads.items():
            number = payload.get("block.number", b"")
            answers = [
                carrier(in_folders(tmp_path), study)(step, {name: payload})[name].message for _ in range(2)
            ]  # fresh objects: nothing is remembered but what is on disk
            assert answers[0] == answers[1], (name, step)
            if name == "lab" and (step, number) not in lost:
                lost.add((step, number))
                replies[name] = Reply(error="killed")
            else:
                replies[name] = Reply(answers[0])
        return replies

    for _ in range(40):
        with contextlib.suppress(FederationError):  # "killed"; anything else comes again and leaves the study unfinished
            protocol.collect(folder, ask)
    assert folder.collected
    assert {number for step, number in lost if step == "multiply"} == {b"0", b"1", b"2", b"3"}
    D = pooled(frames())
    assert np.abs(gram.joint(folder) - D.T.to_numpy() @ D.to_numpy()).max() < 1e-7 * (len(D) - 1)
    assert not list((tmp_path / "server").glob("deal-*/*"))  # what was multiplied is not kept
    assert GramProduct.from_bytes(folder.read("product", "mri")).final


def test_covariates_and_intersection(tmp_path):
    """Covariates at one site; the sites share 300 of 400 subjects."""
    tables = frames(seed=4)
    tables["mri"]["age"] = np.random.default_rng(0).normal(50, 10, 400)
    tables["lab"] = tables["lab"][tables["lab"]["id"] < "S0300"].reset_index(drop=True)
    parties = in_folders(tmp_path, tables)
    parties[1].roles["covariates"] = ["age"]
    content = gram_study(parties, alignment={"mode": "intersect"}, deliver={"share_scales": True}).to_dict()
    content["site"][1]["covariates"] = ["age"]
    result = fit(parties, Study.from_dict(content))
    assert result.posterior.covariates == ["age"]
    (age,) = [row for row in result.models["mri"].rows() if (row["feature"], row["response"]) == ("age", "alt")]
    assert age["lower"] < 0 < age["upper"]
    scales = dict(zip(("alt", "ast", "hdl"), result.models["mri"].coefficients.response_scales, strict=True))
    together = tables["clinic"]["id"] < "S0300"
    assert scales["alt"] == pytest.approx(tables["clinic"].loc[together, "alt"].std(), rel=1e-9)
    assert {"clinic_0", "mri_1", "lab_2"} <= set(result.selected)


def test_a_yes_no_response_and_normal_scores(tmp_path):
    """What a site makes of its columns before they leave is made before they are multiplied too."""
    tables = frames()
    tables["lab"]["hdl"] = np.where(tables["lab"]["hdl"] > 120, "high", "low")
    parties = gram_sites(tables)
    content = gram_study(parties).to_dict()
    content["site"][0]["transform"] = "rank-normal"
    content["site"][2]["kinds"] = {"hdl": {"kind": "binary", "yes": "high"}}
    study = Study.from_dict(content)
    folder = StudyFolder.create(tmp_path, study)
    protocol.collect(folder, carrier(parties, study))
    whole = pd.concat([tables[name].set_index("id").sort_index() for name in NAMES], axis=1)
    scores = norm.ppf((whole["clinic_0"].rank() - 0.375) / (len(whole) + 0.25))
    found = gram.joint(folder)[0] / (len(whole) - 1)  # clinic_0 with everything
    assert found[-1] == pytest.approx(np.corrcoef(scores, whole["hdl"] == "high")[0, 1], abs=1e-7)
    assert found[9] == pytest.approx(np.corrcoef(scores, whole["mri_1"])[0, 1], abs=1e-7)


def test_too_many_columns_are_refused_before_anything_is_shared(tmp_path):
    parties = in_folders(tmp_path, frames(n=60))
    with pytest.raises(PrivacyError, match=r"21 columns for 60 subjects is more than a third.*Use a sketch"):
        fit(parties, gram_study(parties))
    log = [json.loads(line) for line in next(tmp_path.glob("clinic/studies/*/sent.jsonl")).read_text().splitlines()]
    assert {entry["step"] for entry in log} <= {"offer", "share", "confirmation", "announcement", "alignment"}
