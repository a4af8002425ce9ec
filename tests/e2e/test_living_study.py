"""A study that goes on after it has begun: a site leaves, a site joins, a subject withdraws, a response is corrected."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.e2e.test_union import frames as partly
from tests.federation import (
    KEY,
    NAMES,
    NOT_ROUNDED,
    RESPONSES,
    fingerprints,
    frames,
    gram_sites,
    gram_study,
    predicts_with,
    sites,
    study,
)

from intarsia.carriers.in_process import carrier, study_for
from intarsia.carriers.in_process import fit as fit_here
from intarsia.cli import main
from intarsia.errors import AlignmentError, FederationError, InputError, IntarsiaError, PrivacyError, StudyError
from intarsia.privacy.ledger import Ledger
from intarsia.report.gather import from_folder
from intarsia.report.page import render
from intarsia.server.study import departure, gram, protocol
from intarsia.server.study.departure import leave
from intarsia.server.study.fit import fit
from intarsia.server.study.folder import StudyFolder
from intarsia.server.study.status import status
from intarsia.site.identity import Identity
from intarsia.site.predict_rules import PredictRules
from intarsia.site.site import Site
from intarsia.site.site_ledger import open_ledger
from intarsia.wire.changes import RESPONSE_COLUMNS, Changes
from intarsia.wire.messages import join
from intarsia.wire.study import Study

pytestmark = pytest.mark.filterwarnings("ignore")


QUICK = {"attack_seconds": 0.5}


def run(*words: object) -> None:
    assert main([str(word) for word in words]) == 0


def fails(match: str, kind: type[Exception], *words: object) -> None:
    with pytest.raises(kind, match=match):
        main(["--debug", *(str(word) for word in words)])


def in_folders(where: Path, parties: list[Site]) -> list[Site]:
    for site in parties:
        site.folder = where / site.name
        site.folder.mkdir(parents=True, exist_ok=True)
    return parties


def finished(where: Path, parties: list[Site], plan: Study) -> StudyFolder:
    folder, ask = StudyFolder.create(where / "server", plan), carrier(in_folders(where, parties), plan)
    protocol.collect(folder, ask)
    fit(folder, workers=1)
    protocol.deliver(folder, ask)
    return folder


class ByFiles:
    """Three institutions in folders of their own that exchange files, with the commands of the tutorial."""

    def __init__(self, where: Path, tables: dict[str, pd.DataFrame] | None = None, names: tuple[str, ...] = NAMES):
        self.where, self.names = where, names
        for name, frame in (tables or frames()).items():
            frame.to_csv(where / f"{name}.csv", index=False)
            run("site", "init", where / name, "--name", name, "--table", where / f"{name}.csv", "--id", "id",
                "--responses", ",".join(RESPONSES[name]))  # fmt: skip
            toml = where / name / "site.toml"
            toml.write_text(toml.read_text().replace('one_column = "refuse"', 'one_column = "allow"'))

    def study(self, *more: object, m: int = 30) -> Path:
        path, named = self.where / "study.toml", [w for n in self.names for w in ("--site", self.where / n / f"{n}.toml")]
        owned = [f"{name}={','.join(RESPONSES[name])}" for name in self.names if RESPONSES[name]]
        given = [word for text in owned for word in ("--responses", text)]
        short = ("--draws", 60, "--warmup", 40, "--chains", 2, "--thin", 1)
        run("study", "new", path, "--id", "liver", "--m", m, *named, *given, *short, *more)
        return path

    def go(self, source: Path, names: tuple[str, ...] | None = None) -> Path:
        """The whole study, to the receipts; returns the server's folder of this run."""
        names, plan, w = names or self.names, Study.load(source), self.where
        out, which = w / f"server-{plan.run[:8]}", ("--study", f"{plan.id}-{plan.hash[:8]}")

        def all_of(kind: str) -> list[Path]:
            return [w / f"{plan.run[:8]}-{name}.{kind}" for name in names]

        def step(kind: str, *words: object) -> None:
            for name, file in zip(names, all_of(kind), strict=True):
                run("site", kind, w / name, *which, *words, "-o", file)

        for name in names:
            run("site", "accept", w / name, source, "--fingerprints", fingerprints(w / name, source))
        step("offer")
        step("share", *all_of("offer"))
        for name, file in zip(names, all_of("confirmation"), strict=True):
            run("site", "combine", w / name, *which, *all_of("share"), "-o", file)
        for name in names:
            run("site", "seal", w / name, *which, *all_of("confirmation"))
        step("announce")
        if plan.alignment.mode == "intersect":
            for name, file in zip(names, all_of("align"), strict=True):
                run("site", "align", w / name, *which, *all_of("announce"), "-o", file)
            run("server", "align", *all_of("align"), "--study", source, "-o", out)
        for name, file in zip(names, all_of("sketch"), strict=True):
            cohort = ["--cohort", out / f"{name}.cohort"] if plan.alignment.mode == "intersect" else []
            told = [] if cohort else ["--announcements", *all_of("announce")]
            run("site", "sketch", w / name, *which, *cohort, "--yes", "-o", file, *told)
        run("fit", *all_of("sketch"), "--study", source, "-o", out, "--workers", 1)
        self.deliver(out, names)
        return out

    def deliver(self, out: Path, names: tuple[str, ...], *more: object) -> None:
        plan = StudyFolder.open(out).study
        for name in names:
            run("site", "receive", self.where / name, StudyFolder.open(out).file("coefficients", name), "--study",
                f"{plan.id}-{plan.hash[:8]}", "-o", self.where / f"{name}.csv.out.csv", *more,
                "--receipt", self.where / f"{name}.receipt")  # fmt: skip
        run("deliver", "receipts", out, *(self.where / f"{name}.receipt" for name in names))


# A site leaves.


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyFolder, list[Site], dict[str, Any]]:
    """The mri site leaves after delivery: notice, refit, delivery to the two that stay."""
    where = tmp_path_factory.mktemp("leave")
    parties = sites(frames(), identities=True)
    plan = study(parties)
    folder = finished(where, parties, plan)
    before = {name: folder.file("sketch", name).read_bytes() for name in NAMES}
    was = json.loads((folder.path / "fit.json").read_text())
    clinic = parties[0].model(plan)
    notice = parties[1].leave(plan)
    _, summary, changes = leave(folder, notice, workers=1)
    protocol.deliver(folder, carrier(parties, plan))
    told = {"before": before, "was": was, "clinic": clinic, "notice": notice, "summary": summary, "changes": changes}
    return folder, parties, told


def test_the_refit_is_the_fit_of_the_remaining_sketches(left) -> None:  # type: ignore[no-untyped-def]
    folder, _, told = left
    from intarsia.server.posterior.posterior import Posterior
    from intarsia.server.study.fit import posterior_of, settings_of
    from intarsia.wire.messages import Sketch

    rest = join([Sketch.load(told["before"][name]) for name in ("clinic", "lab")])
    expected, _ = posterior_of(folder.study, rest, settings_of(folder.study))
    found = Posterior.load(folder.path / "posterior.nc")
    np.testing.assert_array_equal(found.C.values, expected.C.values)
    assert found.responses == ["alt", "ast", "hdl"]
    assert told["summary"]["features"] == 12
    assert told["summary"]["left"] == ["mri"]


def test_nothing_of_the_site_stays_at_the_server_but_its_notice(left) -> None:  # type: ignore[no-untyped-def]
    folder, _, told = left
    files = {path.relative_to(folder.path).as_posix() for path in folder.path.rglob("*") if path.is_file()}
    assert {file for file in files if "mri" in file} == {"leave/mri.leave"}
    event = [json.loads(line) for line in (folder.path / "events.jsonl").read_text().splitlines()]
    deleted = next(e for e in event if e["event"] == "left")["deleted"]
    assert {"sketch/mri.sketch", "alignment/mri.alignment", "sketch/mri.facts"} <= set(deleted)
    # No row of its sketch is left in any file.
    from intarsia.wire.messages import Sketch

    some = np.ascontiguousarray(Sketch.load(told["before"]["mri"]).X[10]).tobytes()
    assert some in told["before"]["mri"]
    assert not any(some in path.read_bytes() for path in folder.path.rglob("*") if path.is_file())
    kept = next(folder.path.glob("superseded/*/fit.json"))
    assert json.loads(kept.read_text())["superseded"] is True
    rows = json.loads((kept.parent / "results.json").read_text())["rows"]
    assert {row["site"] for row in rows} == {"clinic", "lab"}


def test_everybody_is_told_what_changed(left, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    folder, parties, told = left
    lines = "\n".join(told["changes"].lines())
    assert "mri left; clinic, lab stay" in lines
    assert "6 features and 0 responses left with it" in lines
    assert set(told["changes"].selected_before) == set(told["was"]["selected"])
    from intarsia.cli.living_site import compared

    plan = folder.study
    found = compared(parties[0], plan)
    assert found.why[0] == "mri left with its 6 columns"
    assert any("sees the other site's part as it is" in line for line in found.why)
    row = next(row for row in found.rows if (row["feature"], row["response"]) == ("clinic_0", "alt"))
    old = next(r for r in told["clinic"].rows() if (r["feature"], r["response"]) == ("clinic_0", "alt"))
    assert row["before"] == old["effect"]
    assert row["after"] == next(
        r["effect"] for r in parties[0].model(plan).rows() if (r["feature"], r["response"]) == ("clinic_0", "alt")
    )
    run("study", "changes", folder.path, "-o", folder.path.parent / "changes.csv")
    assert "selected before" in capsys.readouterr().out
    assert len(pd.read_csv(folder.path.parent / "changes.csv")) == 12 * 3
    page = render(from_folder(folder.path))
    assert "Beside the earlier fit" in page
    assert "mri left" in page
    assert [row["done"] for row in status(folder)] == [True] * 3


def test_the_sites_that_stay_predict_without_it(left) -> None:  # type: ignore[no-untyped-def]
    folder, parties, _ = left
    plan = folder.study
    new = {name: frame.drop(columns=RESPONSES[name]) for name, frame in frames(30, seed=5).items()}
    for site in parties:
        site.predict_rules = PredictRules.of(NOT_ROUNDED)
    ask = carrier(parties, plan, lambda site: new[site])
    protocol.predict(folder, "july", ask)
    prediction = parties[0].predictions[plan.hash, "july"]
    from intarsia.server.posterior.posterior import Posterior

    posterior = Posterior.load(folder.path / "posterior.nc")
    C = predicts_with(posterior)
    tables = frames()
    whole = tables["clinic"].merge(tables["lab"], on="id")
    fresh = new["clinic"].merge(new["lab"], on="id").set_index("id").loc[list(prediction.ids)]
    Z = (fresh[posterior.features] - whole[posterior.features].mean()) / whole[posterior.features].std()
    q = posterior.responses.index("alt")
    expected = whole["alt"].mean() + whole["alt"].std() * (Z.to_numpy() @ C[:, q])
    np.testing.assert_allclose(prediction.mean[:, 0], expected, atol=1e-8)
    # The site that left answers nothing any more.
    with pytest.raises(FederationError, match="has left this run"):
        ask("predict", {"mri": {"request": b"july"}})


def test_the_same_command_again_changes_nothing(left) -> None:  # type: ignore[no-untyped-def]
    folder, _, told = left
    before = (folder.path / "fit.json").read_bytes()
    _, summary, _ = leave(folder, told["notice"], workers=1)
    assert (folder.path / "fit.json").read_bytes() == before
    assert summary["left"] == ["mri"]


def collected(where: Path, parties: list[Site], plan: Study) -> StudyFolder:
    folder = StudyFolder.create(where / "server", plan)
    protocol.collect(folder, carrier(in_folders(where, parties), plan))
    return folder


def test_a_leave_that_was_interrupted_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before the messages are deleted, then the same command: nothing of the site is fitted, and nothing stays."""
    parties = sites(frames())
    folder = collected(tmp_path, parties, study())
    notice, real = parties[1].leave(study()), departure._delete
    monkeypatch.setattr(departure, "fit", lambda folder, **_: {"fitted": folder.joined().features})
    monkeypatch.setattr(departure, "_delete", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        leave(folder, notice)
    assert folder.file("sketch", "mri").is_file()
    monkeypatch.setattr(departure, "_delete", real)
    folder.file("leave", "mri").write_bytes(notice[:-20])  # and the disk lost an end of what was kept
    _, summary, changes = leave(folder, notice, workers=1)
    assert folder.file("leave", "mri").read_bytes() == notice
    assert not any(label.startswith("mri") for label in summary["fitted"])
    assert changes is None  # nothing had been fitted before
    assert [path.name for path in folder.path.rglob("mri.*")] == ["mri.leave"]


@pytest.mark.slow
def test_one_after_the_other_in_one_process(tmp_path: Path) -> None:
    parties = sites(frames())
    first = fit_here(parties, study(), folder=tmp_path / "server", workers=1)
    second = first.without("mri", tmp_path / "server", workers=1)
    third = second.without("lab", tmp_path / "server", workers=1)
    assert set(second.posterior.features) == {f"{name}_{j}" for name in ("clinic", "lab") for j in range(6)}
    assert set(third.posterior.features) == {f"clinic_{j}" for j in range(6)}
    assert third.changes is not None
    assert third.changes.gone["response"] == ["hdl"]
    kept = [json.loads(path.read_text()) for path in (tmp_path / "server" / "superseded").glob("*/results.json")]
    assert [{row["site"] for row in rows} for rows in kept] == [{"clinic"}, {"clinic"}]
    new = {name: frame.drop(columns=RESPONSES[name]) for name, frame in frames(25, seed=5).items()}
    assert set(second.sites) > set(third.sites)
    assert set(third.predict(new, "alone")) == {"clinic"}
    # The site that left reads what it had, and says nothing more.
    assert len(parties[1].model(study()).rows()) == 6 * 3
    assert parties[0].earlier_model(study()).coefficients.fit_parts.keys() == {"clinic", "lab"}
    with pytest.raises(StudyError, match="'mri' takes no part"):
        third.without("mri", tmp_path / "server")


def test_without_the_last_response_there_is_nothing_to_regress(tmp_path: Path) -> None:
    tables = frames()
    parties = sites(tables)
    parties[2] = Site("lab", tables["lab"].drop(columns="hdl"), id="id", key=KEY)
    plan = study()
    content = plan.to_dict()
    content["site"][2].pop("responses")
    plan = Study.from_dict(content)
    folder = collected(tmp_path, parties, plan)
    with pytest.raises(StudyError, match="holds every response of the study: without it there is nothing left to regress"):
        leave(folder, parties[0].leave(plan))
    assert folder.left == ()
    assert folder.missing("sketch") == ()


def test_a_site_leaves_before_all_have_sent(tmp_path: Path) -> None:
    parties = in_folders(tmp_path, sites(frames()))
    plan, folder = study(), StudyFolder.create(tmp_path / "server", study())
    with pytest.raises(FederationError, match="there is nothing to take back"):
        parties[1].leave(plan)
    folder.accept("sketch", "mri", parties[1].sketch(plan))
    with pytest.raises(FederationError, match=r"study again study\.toml --without mri"):
        leave(folder, parties[1].leave(plan))


def test_a_gram_matrix_without_the_site_that_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block between the two that stay is kept; shares that need the third site are deleted."""
    parties = gram_sites(frames())
    plan = gram_study(parties)
    folder = collected(tmp_path, parties, plan)
    whole = gram.joint(folder)
    monkeypatch.setattr(departure, "fit", lambda folder, **_: {"fitted": folder.joined().features})
    _, summary, _ = leave(folder, parties[1].leave(plan))
    stays = np.r_[0:8, 14:21]  # clinic brings 6 + 2 columns, mri 6, lab 6 + 1
    np.testing.assert_array_equal(gram.joint(folder), whole[np.ix_(stays, stays)])
    assert len(summary["fitted"]) == 12
    assert not list(folder.path.glob("product/*"))
    assert [path.name for path in folder.path.rglob("mri.*")] == ["mri.leave"]


@pytest.mark.slow
def test_a_site_leaves_a_gram_study(tmp_path: Path) -> None:
    parties = gram_sites(frames())
    plan = gram_study(parties)
    folder = finished(tmp_path, parties, plan)
    leave(folder, parties[1].leave(plan), workers=1)
    protocol.deliver(folder, carrier(parties, plan))
    assert parties[0].model(plan).coefficients.fit_parts.keys() == {"clinic", "lab"}
    assert all(row["done"] for row in status(folder))


def test_a_registry_leaves_a_union_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its responses go; subjects who had no other response are of no use any more and their rows go too."""
    tables = partly()
    roles = {"clinic": ["fev1"], "lab": [], "registry": ["cost", "days"]}
    parties = [Site(n, tables[n], id="id", responses=roles[n], identity=Identity.new(n), policy=QUICK) for n in tables]
    plan = study_for(parties, 120, alignment={"mode": "union"})
    folder = StudyFolder.create(tmp_path / "server", plan)
    protocol.collect(folder, carrier(parties, plan))
    before = folder.joined()
    monkeypatch.setattr(departure, "fit", lambda folder, **_: {"fitted": folder.joined()})
    registry = next(site for site in parties if site.name == "registry")
    _, summary, _ = leave(folder, registry.leave(plan))
    after = summary["fitted"]
    has = ~np.isnan(before.Y[:, before.responses.index("fev1")])
    assert after.responses == ("fev1",)
    np.testing.assert_array_equal(after.X, before.X[has])
    np.testing.assert_array_equal(after.Y[:, 0], before.Y[has, before.responses.index("fev1")])
    assert after.m == sum(group.m for group in folder.groups()[0]) < before.m


def test_a_site_leaves_by_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands of docs/living-study.md: notice, refit, delivery with the notice, changes at a site."""
    parties = ByFiles(tmp_path)
    out = parties.go(parties.study())
    run("site", "leave", tmp_path / "mri", "-o", tmp_path / "mri.leave")
    assert "cannot be taken back" in capsys.readouterr().out
    run("study", "leave", out, tmp_path / "mri.leave", "--workers", 1)
    said = capsys.readouterr().out
    assert "mri left; clinic, lab stay" in said
    assert "deleted here: everything that mri had sent" in said
    # Coefficients of the new fit without the notice are refused; with it they are taken.
    new = StudyFolder.open(out).file("coefficients", "lab")
    fails("digests of one fit", IntarsiaError, "site", "receive", tmp_path / "lab", new, "-o", tmp_path / "x.csv")
    parties.deliver(out, ("clinic", "lab"), "--left", out / "leave" / "mri.leave")
    said = capsys.readouterr().out
    assert "mri left with its 6 columns" in said
    run("site", "changes", tmp_path / "clinic", "-o", tmp_path / "changes.csv")
    table = pd.read_csv(tmp_path / "changes.csv")
    assert len(table) == 6 * 3
    assert table["before"].notna().all()
    assert table["after"].notna().all()
    run("study", "status", out)
    assert "left after having sent: mri\ncomplete" in capsys.readouterr().out


def test_changes_at_a_site_of_responses_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not told which features are selected, so "none" would not be true; its responses are compared."""
    tables = frames()
    tables["clinic"] = tables["clinic"][["id", *RESPONSES["clinic"]]]
    parties = ByFiles(tmp_path, tables)
    out = parties.go(parties.study())
    run("site", "leave", tmp_path / "mri", "-o", tmp_path / "mri.leave")
    run("study", "leave", out, tmp_path / "mri.leave", "--workers", 1)
    parties.deliver(out, ("clinic", "lab"), "--left", out / "leave" / "mri.leave")
    capsys.readouterr()
    run("site", "changes", tmp_path / "clinic", "-o", tmp_path / "changes.csv")
    said = capsys.readouterr().out
    assert "this site brings no features" in said
    assert "none" not in said
    assert "of 0 coefficients" not in said
    assert "alt: features of all sites selected for it: " in said
    assert "share explained in rows left out: " in said
    assert "2 responses side by side" in said
    table = pd.read_csv(tmp_path / "changes.csv")
    assert list(table.columns) == list(RESPONSE_COLUMNS)
    assert table["response"].tolist() == ["alt", "ast"]
    run("site", "changes", tmp_path / "clinic", "--json")
    told = json.loads(capsys.readouterr().out)
    assert [row["response"] for row in told["responses"]] == ["alt", "ast"]
    assert Changes.from_dict(told).responses == told["responses"]


# A site joins.


def test_a_site_joins_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = frames()
    parties = ByFiles(tmp_path, tables, ("clinic", "lab"))
    first = parties.study()
    before = parties.go(first)
    capsys.readouterr()
    second = tmp_path / "study-2.toml"
    fails("keys of 'mri' must be pinned too", InputError, "study", "join", first, "--site", "mri", "-o", second)
    run("study", "join", first, "--site", tmp_path / "mri" / "mri.toml", "-o", second)
    said = capsys.readouterr().out
    assert "Φ is new" in said
    assert "What every site keeps as it is: its identity" in said
    assert "Σm in every site's ledger grows" in said
    old, new = Study.load(first), Study.load(second)
    assert (new.replaces, new.reason, new.names) == (old.hash, "join", ("clinic", "lab", "mri"))
    assert "# Rows of the sketch." in second.read_text()  # the comments are still there
    assert all(line.startswith("site mri.") for line in old.differences(new))
    after = parties.go(second, ("clinic", "lab", "mri"))
    told = capsys.readouterr().err
    assert "Compared with the run it replaces, which this site accepted: 6 entries differ" in told
    assert 'site mri.features: absent → ["*"]' in told
    assert "has not accepted the run that this one says it replaces" in told  # the site that joins
    assert "up to 30 sketch rows have left about the same subject; with this run 60" in told
    run("study", "changes", after, "--before", before)
    said = capsys.readouterr().out
    assert "because of join" in said
    assert "sites that joined: mri" in said
    assert "6 features new in the fit: mri_0" in said
    run("site", "changes", tmp_path / "clinic", "--study", f"liver-{new.hash[:8]}")
    assert "because of join" in capsys.readouterr().out
    # The ledger of a site that was there before counts both runs.
    ledger = (tmp_path / "clinic" / "ledger" / "ledger.jsonl").read_text().splitlines()
    assert sum(json.loads(line)["m"] for line in ledger if json.loads(line)["state"] == "released") == 60
    fails("does not say that it replaces", StudyError, "study", "changes", before, "--before", after)


# A subject withdraws.


def test_a_withdrawal_that_changes_nothing_or_does_not_fit_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    parties = ByFiles(tmp_path)
    source = parties.study()
    run("site", "accept", tmp_path / "lab", source, "--fingerprints", fingerprints(tmp_path / "lab", source))
    (tmp_path / "typo.txt").write_text("S9999\n")
    capsys.readouterr()
    run("site", "withdraw", tmp_path / "lab", "--subjects", tmp_path / "typo.txt", "-o", tmp_path / "study-2.toml")
    said = capsys.readouterr().out
    assert "1 id given: 0 are in the table, 1 are new" in said
    assert "study-2.toml was not written: a new run would leave nobody of this table out" in said
    assert not (tmp_path / "study-2.toml").exists()
    book = tmp_path / "lab" / "ledger" / "ledger.jsonl"
    open_ledger(tmp_path / "lab")
    book.touch()
    monkeypatch.setattr(Ledger, "history", lambda *_given: 90)  # rows that have left about one of them
    (tmp_path / "gone.txt").write_text("S0007\n")
    run("site", "withdraw", tmp_path / "lab", "--subjects", tmp_path / "gone.txt", "-o", tmp_path / "study-2.toml")
    said = capsys.readouterr().out
    assert "ATTENTION: with its m = 30 Σm/n would be 0.301 here, above 0.25" in said
    assert "There is room for m = 9; change m in" in said


def test_a_subject_withdraws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parties = ByFiles(tmp_path)
    first = parties.study("--intersect")
    before = parties.go(first)
    (tmp_path / "gone.txt").write_text("S0007\n s0011 \nS9999\n")
    capsys.readouterr()
    run("site", "withdraw", tmp_path / "lab", "--subjects", tmp_path / "gone.txt", "-o", tmp_path / "study-2.toml")
    said = capsys.readouterr().out
    assert "3 ids given: 2 are in the table, 3 are new" in said
    assert "ATTENTION: 1 id of those given is not in the table. If that is a slip of the pen, the person is still in" in said
    assert "with it 60 rows will have left about the same subject (Σm/n = 0.151 of 0.25)" in said
    assert "2 of the 400 subjects have withdrawn since" in said
    assert "It cannot be called back" in said
    assert "R² = m/n = 0.07" in said
    assert "it is enough that this site leaves them out" in said
    assert "S0007" not in said
    main(["site", "check", str(tmp_path / "lab")])
    assert "2 more have withdrawn" in capsys.readouterr().out
    assert (tmp_path / "lab" / "withdrawn.txt").stat().st_mode & 0o777 == 0o600
    second = Study.load(tmp_path / "study-2.toml")
    assert (second.reason, second.replaces) == ("withdrawal", Study.load(first).hash)
    after = parties.go(tmp_path / "study-2.toml")
    assert json.loads((before / "fit.json").read_text())["subjects"] == 400
    assert json.loads((after / "fit.json").read_text())["subjects"] == 398
    run("study", "changes", after, "--before", before)
    assert "400 subjects before, 398 now" in capsys.readouterr().out
    # Nothing that left any site in the second run, and nothing at the server, holds an id.
    sent = [path.read_bytes() for path in tmp_path.glob(f"{second.run[:8]}-*")] + [p.read_bytes() for p in after.rglob("*.*")]
    assert not any(b"S0007" in raw or b"s0011" in raw for raw in sent)
    # New subjects of a prediction must not have withdrawn either.
    people = frames(40, seed=5)["lab"].drop(columns="hdl").assign(id=lambda f: ["S0007", *(f"N{i}" for i in range(len(f) - 1))])
    people.to_csv(tmp_path / "new.csv", index=False)
    fails("1 of these subjects have withdrawn", PrivacyError, "predict", "part", tmp_path / "lab", "june", tmp_path / "new.csv",
          "--study", f"liver-{second.hash[:8]}", "-o", tmp_path / "lab.part")  # fmt: skip


def test_a_withdrawal_in_a_strict_study_needs_every_site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parties = in_folders(tmp_path, sites(frames()))
    plan = study(m=30)
    for site in parties[:2]:
        (tmp_path / site.name / "withdrawn.txt").write_text("S0007\n")
    with pytest.raises(AlignmentError, match=r"do not hold the same subjects.*whoever withdrew at one site"):
        protocol.collect(StudyFolder.create(tmp_path / "server", plan), carrier(parties, plan))
    (tmp_path / "lab" / "withdrawn.txt").write_text("S0007\n")
    following = plan.again(reason="withdrawal")
    parties = in_folders(tmp_path, sites(frames()))
    folder = StudyFolder.create(tmp_path / "server-2", following)
    protocol.collect(folder, carrier(parties, following))
    assert folder.joined().n == 399


def test_whoever_withdrew_takes_no_part_in_means_and_levels(tmp_path: Path) -> None:
    """Means that fill gaps and the levels of categories are those of the others alone."""
    table = pd.DataFrame({
        "id": [f"P{i}" for i in range(60)], "x": [1000.0, *([np.nan, 1.0] * 29), 3.0],
        "centre": ["rare", *(["a", "b", "c"] * 19), "a", "b"], "y": np.random.default_rng(0).standard_normal(60),
    })  # fmt: skip
    site = Site("clinic", table, id="id", responses=["y"], missing="mean", folder=tmp_path)
    assert site.table().levels == {"centre": ["a", "b", "c", "rare"]}
    (tmp_path / "withdrawn.txt").write_text("p0\n")
    site = Site("clinic", table, id="id", responses=["y"], missing="mean", folder=tmp_path)
    assert site.table().n == 59
    assert site.table().levels == {"centre": ["a", "b", "c"]}
    assert site.table().moments().mean[0] < 2
    assert "P0" not in set(site.table().ids())


def test_a_batch_of_withdrawals_from_a_gram_study(tmp_path: Path) -> None:
    """The difference of two Gram matrices is that of the people in whom they differ: so few are refused, enough pass."""
    from intarsia.privacy.policy import Policy
    from intarsia.site.site_ledger import open_ledger
    from intarsia.site.withdrawal import told_before, withdraw
    from intarsia.wire.study import Privacy

    tables = frames()
    parties = in_folders(tmp_path, gram_sites(tables))
    plan = gram_study(parties, alignment={"mode": "intersect"})
    protocol.collect(StudyFolder.create(tmp_path / "server", plan), carrier(parties, plan))

    def drop(people: list[str]) -> str:
        for name in NAMES:
            withdraw(tmp_path / name, people, tables[name]["id"])
        return told_before(tmp_path / "clinic", open_ledger(tmp_path / "clinic"), Policy.of_study(Privacy()))[0]

    def go(number: int) -> StudyFolder:
        again = plan.again(reason="withdrawal")
        here = in_folders(tmp_path, gram_sites(tables))
        folder = StudyFolder.create(tmp_path / f"server-{number}", again)
        protocol.collect(folder, carrier(here, again))
        return folder

    said = drop(["S0001"])
    assert "at least 63 subjects; the smallest would have 1. A new Gram matrix without them is refused now" in said
    with pytest.raises(PrivacyError, match="would single out 1 subject:"):
        go(1)
    said = drop([f"S{i:04d}" for i in range(1, 64)])
    assert "the smallest would have 63. A new Gram matrix without them now passes" in said
    assert go(2).joined().n == 400 - 63


# A response is corrected.


def test_the_owner_corrects_a_response(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parties = ByFiles(tmp_path)
    first = parties.study()
    before = parties.go(first)
    second, clinic = tmp_path / "study-2.toml", tmp_path / "clinic.csv"
    fails("No column has changed", InputError, "site", "correct", tmp_path / "clinic", "-o", second)
    table = pd.read_csv(clinic)
    table.sample(frac=1.0, random_state=9).to_csv(clinic, index=False)  # another order is no change
    fails("No column has changed", InputError, "site", "correct", tmp_path / "clinic", "-o", second)
    table.assign(alt=table["alt"] + 40 * table["clinic_3"]).to_csv(clinic, index=False)
    capsys.readouterr()
    run("site", "correct", tmp_path / "clinic", "-o", second)
    said = capsys.readouterr().out
    assert "changed since that run: 1 response: alt" in said
    new = Study.load(second)
    assert (new.reason, new.replaces) == ("correction", Study.load(first).hash)
    after = parties.go(second)
    # The ledger of the owner saw other content for the same people; the others saw the same people again.
    lines = [json.loads(line) for line in (tmp_path / "clinic" / "ledger" / "ledger.jsonl").read_text().splitlines()]
    released = [line for line in lines if line["state"] == "released"]
    assert len({line["cohort"] for line in released}) == 1
    assert len({line["content"] for line in released}) == 2
    capsys.readouterr()
    run("study", "changes", after, "--before", before)
    assert "because of correction" in capsys.readouterr().out
    page = render(from_folder(after))
    assert "Beside the earlier fit" in page
    assert "clinic_3" in page
    run("site", "changes", tmp_path / "clinic", "--study", f"liver-{new.hash[:8]}", "-o", tmp_path / "changes.csv")
    table = pd.read_csv(tmp_path / "changes.csv").set_index(["feature", "response"])
    moved = table.loc[("clinic_3", "alt")]
    assert moved["outside"]
    assert moved["after"] > moved["before_upper"]
