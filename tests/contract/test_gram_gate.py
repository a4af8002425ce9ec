"""The gate for an exact Gram matrix: how many columns, which columns, and what left before."""

import json

import pytest
from tests.federation import NAMES, frames, gram_sites, gram_study

from intarsia.carriers.in_process import carrier
from intarsia.cli import main
from intarsia.errors import FederationError, PrivacyError, StudyError
from intarsia.privacy.facts import ColumnFacts, Facts
from intarsia.privacy.gate import judge
from intarsia.privacy.gram_leakage import beside_sketch
from intarsia.privacy.ledger import Claim, Ledger
from intarsia.privacy.policy import Policy
from intarsia.server.study import protocol
from intarsia.server.study.folder import StudyFolder
from intarsia.site.site_ledger import open_ledger
from intarsia.wire.study import Study


def facts(n=10_000, columns=40, **more):
    own = tuple(ColumnFacts(f"x{j}", 13, None, n - 1, 0.01) for j in range(5))
    return Facts(n=n, m=0, kind="gram", columns=columns, own_columns=own, **more)


def level(found, rule):
    return next(f.level for f in found.findings if f.rule == rule)


@pytest.mark.parametrize(
    ("n", "columns", "size", "member"),
    [(10_000, 40, "ok", "ok"), (10_000, 60, "ok", "warn"), (300, 99, "warn", "warn"), (300, 101, "refuse", "warn")],
)
def test_columns_per_subject_and_membership(n, columns, size, member):
    verdict = judge(facts(n, columns), Policy())
    assert (level(verdict, "columns"), level(verdict, "membership")) == (size, member)


def test_columns_that_nobody_has_counted_are_not_made_up():
    verdict = judge(facts(columns_known=False), Policy())
    assert verdict.membership is None
    assert (level(verdict, "columns"), level(verdict, "membership")) == ("note", "warn")


def test_the_rules_about_columns_apply_and_speak_of_products():
    bad = ColumnFacts("rare", 2, 4, 4, 0.01), ColumnFacts("one", 13, None, 900, 0.9)
    verdict = judge(facts(n=1000, columns=8), Policy())
    assert not verdict.refused
    whole = Facts(n=1000, m=0, kind="gram", columns=8, own_columns=bad)
    refused = {f.rule: f.text for f in judge(whole, Policy()).refused}
    assert set(refused) == {"rare-level", "dominant"}
    assert "its products are that subject's own values" in refused["dominant"]
    assert "Φ" not in "".join(refused.values())


@pytest.mark.parametrize(("group", "outcome"), [(None, "ok"), (0, "refuse"), (1, "refuse"), (119, "refuse"), (120, "ok")])
def test_differencing_is_judged_as_a_gram_matrix_of_those_who_differ(group, outcome):
    """40 columns: at least 120 people."""
    assert level(judge(facts(singled_out=group), Policy()), "differencing") == outcome


def collect(where, tables, run, folders):
    parties = gram_sites(tables)
    for site in parties:
        site.folder = folders / site.name
        site.folder.mkdir(parents=True, exist_ok=True)
    study = Study.from_dict(gram_study(parties).to_dict() | {"run": run})
    folder = StudyFolder.create(where, study)
    protocol.collect(folder, carrier(parties, study))
    return parties, study


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """One Gram matrix of 400 people has left the sites whose folders these are."""
    where = tmp_path_factory.mktemp("ledger")
    collect(where / "server-1", frames(), "1" * 32, where / "sites")
    return where


def test_the_ledger_has_one_entry_that_counts_no_rows(once):
    entry = open_ledger(once / "sites" / "mri").entries()[-1]
    assert (entry.state, entry.kind, entry.m, entry.n) == ("released", "gram", 0, 400)
    tokens = open_ledger(once / "sites" / "mri").tokens(frames()["mri"]["id"])
    assert open_ledger(once / "sites" / "mri").history(tokens) == 0


def test_a_second_run_without_one_subject_is_refused(once):
    tables = {name: frame[frame["id"] != "S0007"].reset_index(drop=True) for name, frame in frames().items()}
    with pytest.raises(PrivacyError, match="would single out 1 subject:"):
        collect(once / "server-2", tables, "2" * 32, once / "sites")


def test_a_second_run_with_one_corrected_value_is_refused(once):
    tables = frames()
    tables["clinic"].loc[3, "clinic_4"] += 1.0
    with pytest.raises(PrivacyError, match="once"):
        collect(once / "server-3", tables, "3" * 32, once / "sites")


def test_the_very_same_matrix_again_tells_nothing_new(once):
    collect(once / "server-4", frames(), "4" * 32, once / "sites")
    ledgers = [open_ledger(once / "sites" / name) for name in NAMES]
    assert all(ledger.entries()[-1].run == "4" * 32 for ledger in ledgers)


def test_a_cohort_of_other_people_is_not_differencing(once):
    tables = frames(seed=3)
    for frame in tables.values():
        frame["id"] = "T" + frame["id"].str[1:]
    collect(once / "server-5", tables, "5" * 32, once / "sites")


def test_a_deleted_list_of_subjects_counts_as_the_same_people(once, tmp_path):
    ledger = open_ledger(once / "sites" / "lab")
    for path in (once / "sites" / "lab").rglob("cohorts/*"):
        path.rename(tmp_path / path.name)
    tokens = ledger.tokens([f"U{i}" for i in range(50)])
    assert ledger.singled_out(tokens, "other") == 0
    for path in tmp_path.iterdir():
        path.rename(ledger.folder / "cohorts" / path.name)
    assert ledger.singled_out(tokens, "other") is None


def test_three_cohorts_single_out_whom_no_two_of_them_do(tmp_path):
    """All, the first half and somebody, the second half: (second) + (third) - (first) is that somebody."""
    ledger = Ledger(tmp_path)
    people = [f"P{i}" for i in range(400)]

    def release(run, cohort):
        entry = ledger.reserve(Claim("s", run, ledger.tokens(cohort), len(cohort), 0, "gram", 5, run))
        ledger.release(entry, run.encode())

    release("1", people)
    second = ledger.tokens(people[:201])
    assert ledger.singled_out(second, "x") == 199
    release("2", people[:201])
    assert ledger.singled_out(ledger.tokens(people[200:]), "x") == 1
    assert ledger.singled_out(ledger.tokens(people[201:]), "x") == 199


def test_columns_of_all_sites_are_counted_again_before_anything_is_shared(tmp_path, monkeypatch):
    """By files nobody announces its columns: the blocks themselves are counted at the first deal."""
    parties = gram_sites(frames(n=60))
    study = gram_study(parties)
    folder = StudyFolder.create(tmp_path, study)
    for site in parties:
        site.hear = lambda _study, _announcements: {}  # type: ignore[method-assign,assignment]
    monkeypatch.setattr("intarsia.site.answer._has_heard", lambda _site, _study: None)  # there the operator sketches
    with pytest.raises(PrivacyError, match="21 columns for 60 subjects: more than a third"):
        protocol.collect(folder, carrier(parties, study))
    assert not folder.missing("sketch")
    assert not list(tmp_path.glob("deal-*/*"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sketch": {"kind": "gram", "m": 30}}, "leave m out"),
        ({"sketch": {"kind": "gram", "precision": "float32"}}, "leave precision out"),
        ({"sketch": {"m": 30, "rows": 64}}, "rows is for kind"),
        ({"privacy": {"epsilon": 1.0, "delta": 1e-6, "row_bound": dict.fromkeys(NAMES, 1.0)}}, "does not cover kind"),
    ],
)
def test_what_a_gram_study_cannot_do_is_refused_in_the_study_file(change, words):
    content = gram_study(gram_sites(dict.fromkeys(NAMES))).to_dict()
    with pytest.raises(StudyError, match=words):
        Study.from_dict(content | change)


def test_two_sites_or_no_pinned_keys_are_refused():
    content = gram_study(gram_sites(dict.fromkeys(NAMES))).to_dict()
    with pytest.raises(StudyError, match="two sites needs the server as the third holder"):
        Study.from_dict(content | {"site": content["site"][:2]})
    bare = [{k: v for k, v in site.items() if not k.endswith("_key")} for site in content["site"]]
    with pytest.raises(StudyError, match="pin exchange_key"):
        Study.from_dict(content | {"site": bare})


def test_study_files_without_a_gram_matrix_keep_their_hash():
    """`rows` is no part of a sketch study: hashes of accepted studies do not change."""
    content = gram_study(gram_sites(dict.fromkeys(NAMES))).to_dict() | {"sketch": {"m": 30}}
    assert "rows" not in Study.from_dict(content).to_dict()["sketch"]


def test_the_multiplication_steps_are_refused_in_a_sketch_study():
    parties = gram_sites(frames(n=60))
    study = Study.from_dict(gram_study(parties).to_dict() | {"sketch": {"m": 6}})
    for step in ("deal", "multiply"):
        with pytest.raises(FederationError, match="Only a study of kind 'gram'"):
            carrier(parties, study)(step, {"mri": {"block.number": b"0"}})


def test_the_plan_puts_the_gram_matrix_beside_the_sketch(capsys):
    few, many = beside_sketch(10_000, 50, 500), beside_sketch(300, 120, 60)
    assert few.allowed
    assert few.narrower == pytest.approx((9999 / 500) ** 0.5)
    assert few.membership_auc == pytest.approx(0.597, abs=0.001)
    assert not many.allowed
    assert "is refused here" in many.sentence
    assert main(["privacy", "plan", "--n", "10000", "--features", "47", "--responses", "3"]) == 0
    assert 'exact Gram matrix (kind = "gram") would give the pooled fit' in capsys.readouterr().out
    assert main(["privacy", "plan", "--n", "300", "--features", "119", "--responses", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gram"]["allowed"] is False
