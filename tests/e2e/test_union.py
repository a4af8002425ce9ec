"""Cohorts that overlap in part: groups by the responses that subjects have, a sketch for each, the rest drawn at the server."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.federation import KEY, RUN, fingerprints

import intarsia
from intarsia.carriers.in_process import StudyResult, carrier, fit, study_for
from intarsia.cli import main
from intarsia.errors import AlignmentError, FederationError, InputError, MessageError, StudyError
from intarsia.report.gather import from_folder
from intarsia.report.page import render
from intarsia.server.study import protocol
from intarsia.server.study.fit import posterior_of, settings_of
from intarsia.server.study.folder import StudyFolder, dump
from intarsia.site.align import tokenise
from intarsia.site.identity import Identity
from intarsia.site.site_folder import SiteFolder
from intarsia.site.union import Has, settle_groups
from intarsia.wire.alignment import AlignmentReport
from intarsia.wire.cohort_groups import GroupedSketch, UnionCohort, join_groups, rows_of, unite
from intarsia.wire.study import Study

N, M = 1200, 120
FIT = {"draws": 30, "warmup": 30, "chains": 2, "thin": 1, "seed": 3}


def frames(n: int = N, missing: bool = True) -> dict[str, pd.DataFrame]:
    """Features at two sites; a response at the clinic that some missed, two at a registry that knows only some."""
    rng = np.random.default_rng(0)
    ids = np.array([f"S{i:05d}" for i in range(n)])
    X, G = rng.standard_normal((n, 4)), 5 + 2 * rng.standard_normal((n, 4))
    line = X[:, 0] - (G[:, 1] - 5) / 2
    clinic = pd.DataFrame(X, columns=[f"x{j}" for j in range(4)]).assign(id=ids, fev1=3 + 0.5 * line + rng.standard_normal(n))
    lab = pd.DataFrame(G, columns=[f"g{j}" for j in range(4)]).assign(id=ids)
    registry = pd.DataFrame({"id": ids, "cost": 100 + 20 * line + 10 * rng.standard_normal(n)})
    registry["days"] = registry["cost"] / 10 + rng.standard_normal(n)
    if missing:
        clinic.loc[: n // 4 - 1, "fev1"] = np.nan
        registry = registry.iloc[n // 10 :]  # a tenth is not in the registry: these have no response at all, or fev1 alone
        registry = pd.concat([registry.iloc[: n // 2], registry.iloc[n // 2 + 30 :]])
        lab = pd.concat([lab, lab.head(1).assign(id="S99999")])
    return {"clinic": clinic, "lab": lab.sample(frac=1.0, random_state=1), "registry": registry.sample(frac=1.0, random_state=2)}


def parties(tables: dict[str, pd.DataFrame]) -> list[intarsia.Site]:
    responses: dict[str, list[str]] = {"clinic": ["fev1"], "lab": [], "registry": ["cost", "days"]}
    return [
        intarsia.Site(name, frame, id="id", responses=responses[name], key=KEY, policy={"attack_seconds": 0.5})
        for name, frame in tables.items()
    ]


def study(mode: str = "union", **tables: Any) -> Study:
    roster: list[dict[str, Any]] = [
        {"name": "clinic", "features": ["x*"], "responses": ["fev1"]},
        {"name": "lab", "features": ["g*"]},
        {"name": "registry", "responses": ["cost", "days"]},
    ]
    content = {"id": "lungs", "run": RUN, "sketch": {"m": M}, "fit": FIT, "site": roster, "alignment": {"mode": mode}}
    return Study.from_dict(content | tables)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyResult, StudyFolder]:
    where = tmp_path_factory.mktemp("union")
    return fit(parties(frames()), study(), folder=where, workers=1), StudyFolder.open(where)


def test_subjects_are_grouped_by_what_they_have(done: tuple[StudyResult, StudyFolder]) -> None:
    """fev1 is missing for 300, of whom 120 are not in the registry either; 30 have fev1 alone."""
    groups, dropped = done[1].groups()
    found = {group.responses: group.n for group in groups}
    assert found == {("fev1", "cost", "days"): 870, ("cost", "days"): 180}
    assert dropped == 30 + 120
    assert [group.m for group in groups] == rows_of([870, 180], M) == [99, 20]
    joined = done[1].joined()
    assert (joined.n, joined.m, joined.X.shape) == (1050, 119, (119, 8))
    assert np.isnan(joined.Y[99:, 0]).all()
    assert np.isfinite(joined.Y[:99]).all()
    assert np.isfinite(joined.Y[:, 1:]).all()


def test_the_report_says_who_contributes_to_what(done: tuple[StudyResult, StudyFolder]) -> None:
    page = render(from_folder(done[1].path))
    assert 'id="groups"' in page
    assert "150 subjects left out" in page
    assert "870" in page
    assert "1,050" in page


def test_predictions_are_weighed_by_the_rows_that_have_the_response(done: tuple[StudyResult, StudyFolder]) -> None:
    coefficients = {name: model.coefficients for name, model in done[0].models.items()}
    assert all(np.any(found.to_predict) for found in coefficients.values() if found.features)
    whole, kept = from_folder(done[1].path).assessment, coefficients["clinic"]
    rows = ~np.isnan(done[1].joined().Y)
    assert whole.weighed is not None
    assert whole.weighed.rows.tolist() == rows.sum(axis=0).tolist()
    assert len(set(whole.weighed.rows.tolist())) > 1  # some lack one response, others another
    (low,), (r2,), (high,) = kept.r2_expected_lower, kept.r2_expected, kept.r2_expected_upper
    assert 0 < low < r2 < high < 1


def test_every_column_is_in_its_scale_over_all_groups(done: tuple[StudyResult, StudyFolder]) -> None:
    """Else a coefficient would be per another standard deviation in every group."""
    tables = frames()
    clinic, registry = tables["clinic"].set_index("id"), tables["registry"].set_index("id")
    here = clinic.index.intersection(registry.index)
    units = done[0].models["clinic"].units
    np.testing.assert_allclose(units.x_scale, clinic.loc[here, [f"x{j}" for j in range(4)]].std(), rtol=1e-10)
    np.testing.assert_allclose(units.x_mean, clinic.loc[here, [f"x{j}" for j in range(4)]].mean(), atol=1e-12)
    np.testing.assert_allclose(units.y_scale, [clinic.loc[here, "fev1"].std()], rtol=1e-10)
    np.testing.assert_allclose(done[0].models["registry"].units.y_scale, registry.loc[here].std(), rtol=1e-10)
    rows = {(r["feature"], r["response"]): r for r in done[0].rows()}
    assert rows["x0", "cost"]["lower"] < 20 < rows["x0", "cost"]["upper"]
    assert rows["x0", "fev1"]["lower"] < 0.5 < rows["x0", "fev1"]["upper"]
    assert set(done[0].selected) >= {"x0", "g1"}


def test_nothing_missing_gives_the_draws_of_an_intersection(tmp_path: Path) -> None:
    tables = frames(missing=False)
    draws = []
    for mode in ("union", "intersect"):
        s = study(mode)
        folder = StudyFolder.create(tmp_path / mode, s)
        protocol.collect(folder, carrier(parties(tables), s))
        draws.append(posterior_of(s, folder.joined(), settings_of(s))[1].draws)
    np.testing.assert_array_equal(draws[0].effects.dense(), draws[1].effects.dense())
    np.testing.assert_array_equal(draws[0].Sigma, draws[1].Sigma)


def test_a_key_that_the_sites_agree_on_serves_every_group(tmp_path: Path) -> None:
    """A group's run is a name in the ledger; the key belongs to the study's."""
    found = parties(frames())
    for site in found:
        site.identity = Identity.new(site.name)
    plan = study_for(found, M, fit=FIT, alignment={"mode": "union"})
    assert plan.agrees
    folder = StudyFolder.create(tmp_path, plan)
    protocol.collect(folder, carrier(found, plan))
    assert len(folder.groups()[0]) > 1
    assert folder.joined().responses == ("fev1", "cost", "days")


def test_the_ledger_counts_each_group_for_its_own_subjects(tmp_path: Path) -> None:
    sites = parties(frames())
    for site in sites:
        site.folder = tmp_path / site.name
        site.folder.mkdir()
    protocol.collect(StudyFolder.create(tmp_path / "server", study()), carrier(sites, study()))
    lines = [json.loads(line) for line in next((tmp_path / "clinic").rglob("ledger.jsonl")).read_text().splitlines()]
    released = [line for line in lines if line["state"] == "released"]
    assert sorted(line["m"] for line in released) == [20, 99]
    assert sorted(line["n"] for line in released) == [180, 870]
    cards = {path.name for path in (tmp_path / "clinic").rglob("card*.json")}
    assert cards == {"card.json", "card-2.json"}


def test_the_site_refuses_groups_that_are_not_its_own() -> None:
    table = frames()["clinic"]
    site, s = parties(frames())[0], study()
    tokens = tokenise(table["id"].to_numpy(), KEY, s)
    has = Has.of(site.table())
    folder_reports = {}
    for party in parties(frames()):
        told = tokenise(party.table().ids(), KEY, s)
        own = Has.of(party.table())
        folder_reports[party.name] = AlignmentReport(
            party.name, s.hash, "union", told.n, told.mac(), told.tokens, own.labels, own.rows[told.rows]
        )
    for name, report in folder_reports.items():
        again = AlignmentReport.from_bytes(report.to_bytes())
        assert (again.responses, again.n) == (report.responses, report.n), name
        np.testing.assert_array_equal(again.has, report.has)
    good = unite(folder_reports, s)["clinic"]
    assert UnionCohort.from_bytes(good.to_bytes()).groups == good.groups
    assert len(settle_groups("clinic", s, tokens, has, good)) == 2
    from dataclasses import replace

    moved = good.member.copy()
    first, second = np.flatnonzero(good.member == 0)[0], np.flatnonzero(good.member == 1)[0]
    moved[[first, second]] = [1, 0]
    more = tuple(replace(group, m=group.m + 10) for group in good.groups)
    few = good.member.copy()
    few[np.flatnonzero(few == 1)[20:]] = -1
    rows = rows_of([good.groups[0].n, 20], s.sketch.m)
    small = tuple(replace(group, n=n, m=m) for group, n, m in zip(good.groups, (good.groups[0].n, 20), rows, strict=True))
    for wrong, words in (
        (replace(good, member=moved), "not those of the responses that this site reported"),
        (replace(good, groups=more), "do not keep to the study's rows"),
        (replace(good, groups=small, member=few), "smaller than the study allows"),
        (replace(good, member=good.member[:-1]), "another number of subjects"),
        (replace(good, site="lab"), "not meant for site 'clinic'"),
    ):
        with pytest.raises(AlignmentError, match=words):
            settle_groups("clinic", s, tokens, has, wrong)


def test_groups_that_are_too_small_are_refused_or_left_out() -> None:
    tables = frames()
    with pytest.raises(AlignmentError, match="No group of subjects is large enough"):
        fit(parties(tables), study(alignment={"mode": "union", "min_group": 1000}))
    tables["clinic"]["fev1"] = np.where(np.arange(N) < 50, 1.0 + np.arange(N), np.nan)
    with pytest.raises(AlignmentError, match="No group that is large enough has the response 'fev1'"):
        fit(parties(tables), study())


def test_a_group_of_one_is_left_out_and_counted(tmp_path: Path) -> None:
    """One subject alone lacks two responses: its tokens are known to the server, nothing of its row is sketched."""
    tables = frames(missing=False)
    tables["registry"] = tables["registry"].iloc[1:]
    told = fit(parties(tables), study(), folder=tmp_path, workers=1)
    groups, dropped = StudyFolder.open(tmp_path).groups()
    assert [(group.n, group.m) for group in groups] == [(N - 1, M)]
    assert dropped == 1
    assert told.summary["subjects"] == N - 1
    with pytest.raises(StudyError, match="min_group"):
        study(alignment={"mode": "union", "min_group": 1})


def test_nobody_has_a_response() -> None:
    tables = frames()
    tables["clinic"]["fev1"] = np.nan
    sites = parties(tables)
    with pytest.raises((AlignmentError, InputError), match="fev1"):
        fit(sites, study())
    assert "sketch" not in [entry["step"] for site in sites for entry in site.run_store(study()).log]


def test_more_covariates_than_a_group_can_be_adjusted_for_are_refused_before_a_sketch() -> None:
    """The announcements say how many covariates there are: for all rows before tokens leave, per group before sketches do."""
    tables = frames()
    rng = np.random.default_rng(5)
    wide = {f"z{j}": rng.standard_normal(len(tables["clinic"])) for j in range(30)}
    tables["clinic"] = tables["clinic"].assign(**wide)
    roster = study().to_dict()["site"]
    roster[0]["covariates"] = ["z*"]
    for m, words, step in ((60, "30 covariate columns, and 60 sketch rows can", "alignment"), (120, "of a group of", "sketch")):
        sites = parties(tables)
        sites[0].roles["covariates"] = [*wide]
        plan = study(site=roster, sketch={"m": m})
        with pytest.raises(AlignmentError, match=words):
            fit(sites, plan, workers=1)
        assert not any(step in entry["step"] for site in sites for entry in site.run_store(plan).log)


def test_covariates_are_adjusted_for_in_every_group() -> None:
    """A confounder at one site, a centre at another: features that follow them are not taken for causes."""
    tables = frames()
    rng = np.random.default_rng(7)
    people = pd.Index(sorted({i for frame in tables.values() for i in frame["id"]}))
    age = pd.Series(50 + 10 * rng.standard_normal(len(people)), people)
    centre = pd.Series(np.resize(["a", "b"], len(people)), people)
    own = {name: frame["id"] for name, frame in tables.items()}
    tables["clinic"] = tables["clinic"].assign(age=own["clinic"].map(age).to_numpy())
    tables["clinic"]["x3"] += 0.1 * (tables["clinic"]["age"] - 50)  # follows age
    tables["clinic"]["fev1"] += 0.2 * tables["clinic"]["age"]
    tables["lab"] = tables["lab"].assign(centre=own["lab"].map(centre).to_numpy())
    tables["registry"]["cost"] += 4.0 * own["registry"].map(age) + 30.0 * (own["registry"].map(centre) == "b")
    found = parties(tables)
    found[0].roles["covariates"], found[1].roles["covariates"] = ["age"], ["centre"]
    roster = study().to_dict()["site"]
    roster[0]["covariates"], roster[1]["covariates"] = ["age"], ["centre=*"]
    told = fit(found, study(site=roster, sketch={"m": 240}, fit={**FIT, "draws": 100, "warmup": 100}), workers=1)
    rows = {(row["feature"], row["response"]): row for row in told.rows()}
    for where, truth in {("age", "fev1"): 0.2, ("age", "cost"): 4.0, ("centre=b", "cost"): 30.0}.items():
        row = rows[where]
        assert row["role"] == "covariate"
        assert row["lower"] < truth < row["upper"]
        assert row["upper"] - row["lower"] < abs(truth)
    assert "x3" not in told.selected
    assert {"x0", "g1"} <= set(told.selected)


def test_what_a_union_does_not_cover_is_said_in_the_study_file() -> None:
    with pytest.raises(StudyError, match='mode = "union" does not cover a fractional likelihood'):
        study(fit={**FIT, "power": 0.9})
    keys = {name: Identity.new(name) for name in ("clinic", "lab", "registry")}
    roster = study().to_dict()["site"]
    for entry in roster:
        own = keys[entry["name"]]
        entry |= {"exchange_key": own.exchange_key, "signing_key": own.signing_key}
    with pytest.raises(StudyError, match='mode = "union" does not cover kind = "gram"'):
        study(site=roster, sketch={"kind": "gram"})
    private = {"epsilon": 1.0, "delta": 1e-6, "row_bound": dict.fromkeys(keys, 3.0)}
    with pytest.raises(StudyError, match='mode = "union" does not cover differential privacy'):
        study(privacy=private, sketch={"m": M, "kind": "gaussian"})
    with pytest.raises(StudyError, match='min_group belongs to mode = "union"'):
        study(alignment={"mode": "intersect", "min_group": 50})


def test_the_server_refuses_groups_that_were_not_agreed(done: tuple[StudyResult, StudyFolder], tmp_path: Path) -> None:
    sites, s = parties(frames()), study()
    folder = StudyFolder.create(tmp_path, s)
    ask = carrier(sites, s)
    for kind, step in (("announcement", "announce"), ("alignment", "align")):
        heard = {} if step == "announce" else {name: folder.read("announcement", name) for name in s.names}
        for name, reply in ask(step, dict.fromkeys(s.names, heard)).items():
            folder.accept(kind, name, reply.message)
    whole = GroupedSketch.load(done[1].file("sketch", "clinic"))
    less = GroupedSketch("clinic", s.hash, whole.responses, {0: whole.parts[0]})
    with pytest.raises(FederationError, match="other groups of subjects than were agreed"):
        folder.accept("sketch", "clinic", less.to_bytes())
    swapped = GroupedSketch("clinic", s.hash, whole.responses, {0: whole.parts[1], 1: whole.parts[0]})
    with pytest.raises(FederationError, match=r"a response for a group that does not have it|has m 20"):
        folder.accept("sketch", "clinic", swapped.to_bytes())
    folder.accept("sketch", "clinic", whole.to_bytes())
    lab, registry = (GroupedSketch.load(done[1].file("sketch", name)) for name in ("lab", "registry"))
    with pytest.raises(MessageError, match="Not every site with features"):
        join_groups([whole, GroupedSketch("lab", s.hash, (), {0: lab.parts[0]}), registry])


def run(*words: object) -> None:
    assert main([str(word) for word in words]) == 0


def test_by_files_the_same(done: tuple[StudyResult, StudyFolder], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study.toml").write_text(dump(study()))
    KEY.save(tmp_path / "study.key")
    for site in parties(frames()):
        name, frame = site.name, frames()[site.name]
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        run("site", "init", tmp_path / name, "--name", name, "--table", tmp_path / f"{name}.csv", "--id", "id",
            "--responses", ",".join(site.roles["responses"]))  # fmt: skip
        toml = (tmp_path / name / "site.toml").read_text().replace('# key = "study.key"', 'key = "../study.key"')
        (tmp_path / name / "site.toml").write_text(toml)
        run("site", "accept", tmp_path / name, tmp_path / "study.toml",
            "--fingerprints", fingerprints(tmp_path / name, tmp_path / "study.toml"))  # fmt: skip
    assert "the server sees who has which response" in capsys.readouterr().err
    every = {kind: [tmp_path / f"{name}.{kind}" for name in study().names] for kind in ("announcement", "alignment", "sketch")}
    for name in study().names:
        run("site", "announce", tmp_path / name, "-o", tmp_path / f"{name}.announcement")
    for name in study().names:
        run("site", "align", tmp_path / name, *every["announcement"], "-o", tmp_path / f"{name}.alignment")
    run("server", "align", *every["alignment"], "--study", tmp_path / "study.toml", "-o", tmp_path / "server")
    said = capsys.readouterr().out
    groups, dropped = done[1].groups()
    assert f"{sum(group.n for group in groups):,} subjects are at all sites with features and have a response, in 2" in said
    assert f"  {groups[0].n:,} subjects, {groups[0].m} sketch rows: fev1, cost, days" in said
    assert f"  {dropped:,} more are left out" in said
    for name in study().names:
        where = tmp_path / "server" / f"{name}.cohort"
        run("site", "sketch", tmp_path / name, "--cohort", where, "--yes", "-o", tmp_path / f"{name}.sketch")
    run("fit", *every["sketch"], "--study", tmp_path / "study.toml", "-o", tmp_path / "server")
    folder = StudyFolder.open(tmp_path / "server")
    for name in study().names:
        assert folder.read("sketch", name) == done[1].read("sketch", name)
        run("site", "receive", tmp_path / name, folder.file("coefficients", name), "-o", tmp_path / f"{name}.out.csv")
        assert SiteFolder.load(tmp_path / name).site().model(study()).rows() == done[0].models[name].rows()
    run("report", tmp_path / "server", "-o", tmp_path / "report.html")
    assert 'id="groups"' in (tmp_path / "report.html").read_text()
