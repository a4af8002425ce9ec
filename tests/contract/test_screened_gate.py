"""The gate's rules for a screened study, what it says would pass, and what ledger and card keep of every step."""

import json
import re

import numpy as np
import pytest
from tests.federation import fixed_identity, frames, gram_parties, gram_study_of, screened_study_of

from intarsia.carriers.in_process import carrier
from intarsia.cli import main
from intarsia.errors import IntarsiaError, PrivacyError, StudyError
from intarsia.privacy.card import verify
from intarsia.privacy.facts import NOTE, OK, REFUSE, WARN, Carried, ColumnFacts, Facts, Looked, Screen
from intarsia.privacy.gate import judge
from intarsia.privacy.kinds_of_study import compare, verdict
from intarsia.privacy.ledger import Ledger
from intarsia.privacy.membership import membership_auc as sketch_auc
from intarsia.privacy.plan import Problem, plan
from intarsia.privacy.policy import Override, Policy
from intarsia.privacy.screened_leakage import auc_of, distance, membership_auc, most, most_kept
from intarsia.server.study import protocol, screened
from intarsia.server.study.folder import StudyFolder
from intarsia.site.screened.kept_gate import largest_leverage
from intarsia.site.site import Site
from intarsia.wire.study import Study

HOLDERS = ["site0", "site1", "site2"]
FINE = (ColumnFacts("x", 13, None, 900, 0.01), ColumnFacts("y", 13, None, 900, 0.01))


def facts(n=20_000, P=1000, Q=3, looks=1, **more) -> Facts:  # type: ignore[no-untyped-def]
    of_screen = {k: more.pop(k) for k in ("keep", "largest", "binary", "farthest", "earlier_sums") if k in more}
    if "earlier_sums_of_features" in more:
        more["earlier_sums"] = more.pop("earlier_sums_of_features")
    given = {"own_columns": FINE, "responses": frozenset({"y"}), "other_sites": True} | more
    return Facts(n, 0, "screened", P + Q, screen=Screen(P, Q, 0, looks, **of_screen), **given)


def said(of: Facts, rule: str, policy: Policy | None = None):  # type: ignore[no-untyped-def]
    return [f for f in judge(of, policy or Policy()).findings if f.rule == rule]


@pytest.mark.parametrize(
    ("of", "level"),
    [
        (facts(P=200, Q=1, keep=20), OK),
        (facts(), WARN),
        (facts(P=3000), REFUSE),
        (facts(looks=3), REFUSE),
        (facts(farthest=((9.0, 1.0),)), WARN),
    ],
)
def test_membership_is_warned_of_above_60_and_refused_above_65(of, level):
    assert said(of, "membership")[0].level == level


def test_what_is_refused_says_what_would_pass_and_that_passes():
    refused = said(facts(P=3000), "membership")[0]
    products, people = (
        int(x.replace(",", "")) for x in re.findall(r"at most ([\d,]+) products.*?, or ([\d,]+) people", refused.text)[0]
    )
    assert said(facts(P=products // 3 - 20), "membership")[0].level == WARN
    assert said(facts(n=people + 2000, P=3000), "membership")[0].level == WARN
    assert said(facts(P=products // 3 + 20), "membership")[0].level == REFUSE
    lax = Policy(overrides=(Override("membership", "agreed with the data officer"),))
    assert said(facts(P=3000), "membership", lax)[0].level == "overridden"


def test_another_site_with_more_columns_than_a_third_of_the_people_is_refused_where_responses_are():
    of = facts(n=6000, P=2500, Q=1, largest=2400)
    assert said(of, "sums")[0].level == REFUSE
    assert "at most 2,000 columns of one site" in said(of, "sums")[0].text
    assert said(facts(n=6000, P=2000, Q=1, largest=1900), "sums")[0].level == OK
    assert not said(facts(n=6000, P=2500, Q=1, largest=2400, responses=frozenset()), "sums")  # it has none to be solved


def test_a_group_that_sums_single_out_is_judged_as_a_study_of_its_own():
    for apart, level in ((None, OK), (0, REFUSE), (50, REFUSE), (9000, REFUSE), (9200, OK)):
        found = said(facts(singled_out=apart), "differencing")[0]
        assert found.level == level, apart
        assert level == OK or "What would pass" in found.text
    assert said(facts(P=20, Q=1, keep=20, singled_out=70), "differencing")[0].level == OK  # 3 × (20 + 1): as of a Gram matrix


def test_what_left_before_is_added_to_the_membership_figure():
    alone = said(facts(), "membership")
    with_sums, with_sketch = said(facts(earlier_sums=3000), "membership"), said(facts(history_m=2000), "membership")
    assert len(alone) == 1
    for more in (with_sums, with_sketch):
        assert more[1].number > alone[0].number
        assert "cannot be called back" in more[1].text


def mixed(n=20_000, m=500, P=1000, Q=3, **more) -> Facts:  # type: ignore[no-untyped-def]
    """Of a study that a sketch screens."""
    of_screen = {k: more.pop(k) for k in ("keep", "largest", "earlier_sums") if k in more}
    given = {"own_columns": FINE, "responses": frozenset({"y"}), "other_sites": True} | more
    return Facts(n, m, "screened", P + Q, screen=Screen(P, Q, 0, 0, **of_screen), **given)


def test_where_a_sketch_screens_membership_is_that_of_both_together():
    both = said(mixed(), "membership")[0]
    sketch, kept = sketch_auc(20_000, 500, 1003), membership_auc(20_000, 0, 3, 71 + 3)
    assert max(sketch, kept) < both.number < sketch + kept - 0.5
    assert both.number == pytest.approx(auc_of(distance(sketch) ** 2 + distance(kept) ** 2), abs=1e-9)
    for number in (both.number, sketch, kept):
        assert f"{number:.3f}" in both.text
    assert both.level == WARN  # as of any sketch: the figure is named
    assert said(mixed(n=100_000, m=100, P=200), "membership")[0].level == OK
    exposed = Looked(farthest=4.0)
    assert judge(mixed(looked=exposed), Policy()).most_exposed > both.number + 0.1


def test_where_a_sketch_screens_the_exact_products_by_themselves_stay_below_the_limit():
    """However much the sketch tells: what is asked for beyond that is cut, and the gate says so."""
    found = said(mixed(n=1000, m=200, P=2000, Q=5, keep=300), "membership")[0]
    fits = most_kept(1000, 0, 5, 0, 0.65)
    assert most(mixed(n=1000, m=200, P=2000, Q=5, keep=300), Policy()) == fits < 140
    assert membership_auc(1000, 0, 5, fits + 5) <= 0.65
    assert "The study asks for 300, whose exact products would tell more" in found.text
    lax = Policy(overrides=(Override("membership", "the sketch tells it anyway"),))
    assert most(mixed(n=1000, m=200, P=2000, Q=5, keep=300), lax) == 300
    many = said(mixed(n=300, m=30, P=50, Q=60, keep=10), "membership")[0]
    assert many.level == REFUSE
    assert "What would pass: fewer responses" in many.text


def test_where_a_sketch_screens_it_is_judged_as_a_sketch_too():
    assert [f.level for f in said(mixed(n=1000, m=300), "ratio")] == [REFUSE]
    assert [f.level for f in said(mixed(n=1000, m=100, history_m=200), "ratio")] == [REFUSE]
    assert said(mixed(n=1000, m=100, history_m=100), "membership")[1].text.endswith("which cannot be called back.")
    assert said(mixed(attack_ran=False), "self-attack")[0].level == WARN
    decoded = ColumnFacts("gene", 2, 40, 40, 0.2, attacked="exact")
    assert "decodable" in {f.rule for f in judge(mixed(own_columns=(*FINE, decoded)), Policy()).findings}
    carried = Carried("principal", ("x", "y"), 1, 0.9, True)
    assert "column of Φ" in said(mixed(looked=Looked((carried,))), "leverage")[0].text
    assert not said(mixed(n=6000, P=2500, largest=2400), "sums")  # a site that works with the server knows Φ: on the card


def test_where_a_sketch_screens_earlier_exact_products_of_nearly_the_same_people_count():
    for apart, level in ((None, OK), (0, REFUSE), (50, REFUSE), (230, OK)):
        assert said(mixed(singled_out=apart), "differencing")[0].level == level, apart


def test_study_files_that_ask_for_both_screens_are_refused(tmp_path):
    parties, _ = gram_parties(3)
    with pytest.raises(StudyError, match="with m a sketch screens: leave one of the two out"):
        screened_study_of(parties, HOLDERS, m=50, again=1)
    with pytest.raises(StudyError, match=r"leave precision out, or give m"):
        screened_study_of(parties, HOLDERS, precision="float32")
    study = screened_study_of(parties, HOLDERS, m=50, precision="float32")
    assert (study.sketch.looks, study.sketch.by_sketch, study.spare_bits) == (0, True, 0)
    assert Study.from_dict(study.to_dict()).hash == study.hash != screened_study_of(parties, HOLDERS, m=51).hash


def test_columns_are_judged_as_of_a_gram_matrix():
    rare = ColumnFacts("gene", 2, 4, 4, 0.2)
    found = said(facts(own_columns=(*FINE, rare)), "rare-level")
    assert [f.level for f in found] == [REFUSE]
    assert found[0].columns == ("gene",)


def test_directions_that_few_people_carry_are_judged_as_of_a_gram_matrix():
    carried = Carried("totals", ("x", "y"), 1, 0.9, True)
    found = said(facts(looked=Looked((carried,))), "leverage")
    assert [f.level for f in found] == [REFUSE]
    assert "tells that subject's values" in found[0].text
    wide = said(facts(looked=Looked(unseen=("the 9,000 columns",))), "leverage")
    assert [f.level for f in wide] == [NOTE]  # they are looked for in what is kept, which is what leaves
    assert "when the server names these" in wide[0].text


def test_what_results_tell_and_new_pseudonyms_are_said_as_of_a_gram_matrix():
    found = said(facts(most_told=8, sums=70, earlier_sums_of_features=3), "results")
    assert "70 of them in this run and 3 in earlier ones" in found[0].text
    assert "told 8 effects in full" in found[0].text
    assert [f.level for f in said(facts(strangers=2), "pseudonyms")] == [NOTE]


def test_the_verdict_states_the_most_exposed_person():
    assert judge(facts(), Policy()).most_exposed is None  # nobody looked
    ordinary, loud = (judge(facts(farthest=((1.0, 1.0), (e, 1.0))), Policy()) for e in (1.0, 9.0))
    assert ordinary.most_exposed == pytest.approx(ordinary.membership, abs=0.01)
    assert loud.most_exposed > loud.membership + 0.1


def test_the_largest_leverage_is_the_largest_share_of_one_person_in_a_combination():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 4))
    X[:, 3] = X[:, 2]
    X[7, 3] += 0.5
    encoded = np.round(np.ldexp(X, 20)).astype(np.int64).view(np.uint64)
    assert largest_leverage(encoded, [0, 1, 2]) < 0.1
    assert largest_leverage(encoded, [2, 3]) == pytest.approx(1.0, abs=1e-4)  # their difference is that person
    assert largest_leverage(encoded, [1, 1]) < 0.1  # the same column twice is one


def collected(where, **choices):
    """A study at sites that keep a ledger and a card."""
    parties, tables = gram_parties(3, n=2500)
    for site in parties:
        site.folder = where / site.name
        site.folder.mkdir()
    folder = StudyFolder.create(where / "server", screened_study_of(parties, HOLDERS, rows=2500, **choices))
    protocol.collect(folder, carrier(parties, folder.study))
    return where, parties, tables, folder


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A study with a look again."""
    return collected(tmp_path_factory.mktemp("done"), again=1)


def test_every_step_is_a_row_in_the_ledger_and_a_line_on_the_signed_card(done):
    where, parties, _, folder = done
    expected = [
        "round 1: 0 features kept, 0 of this site", "look 1: products of all features", "round 2: 2 features kept, ",
        "look 2: products of all features", "round 3: 4 features kept, ",
    ]  # fmt: skip
    for site in parties:
        ledger = Ledger(where / site.name / "ledger")
        rows = [entry.note for entry in ledger.entries() if entry.state == "step"]
        assert [row[: len(text)] for row, text in zip(rows, expected, strict=True)] == expected
        assert ledger.exact_sums(ledger.tokens([f"S{i:04d}" for i in range(9)])) == 10 * 2 * 2
        run = where / site.name / "studies" / folder.study.folder_name
        card = verify((run / "card.json").read_bytes(), fixed_identity(site.name).signing_key)
        assert card["steps"] == rows
        assert "look 2: products of all features" in (run / "card.html").read_text()
        assert card["attacks"]["membership_auc"] <= card["attacks"]["membership_auc_most_exposed"]
        assert card["screen"]["sums"] == 40
        assert "names those in which this subject is extreme" in " ".join(card["not_claimed"])


@pytest.fixture(scope="module")
def mixed_done(tmp_path_factory):
    """A study that a sketch screens."""
    return collected(tmp_path_factory.mktemp("mixed"), m=100)


def test_where_a_sketch_screens_ledger_and_card_say_it(mixed_done):
    where, parties, _, folder = mixed_done
    for site in parties:
        ledger = Ledger(where / site.name / "ledger")
        tokens = ledger.tokens([f"S{i:04d}" for i in range(9)])
        assert (ledger.history(tokens), ledger.exact_sums(tokens)) == (100, 0)
        rows = [entry.note for entry in ledger.entries() if entry.state == "step"]
        assert len(rows) == 1
        assert rows[0].startswith("round 1: 4 features kept, ")
        run = where / site.name / "studies" / folder.study.folder_name
        card = verify((run / "card.json").read_bytes(), fixed_identity(site.name).signing_key)
        assert card["steps"] == rows
        assert card["parties"]["know_phi"] == "every site; the server does not"
        assert (card["sketch"]["m"], card["screen"]["looks"], card["screen"]["sums"]) == (100, 0, 0)
        assert card["history"]["sum_m"] == 100
        assert card["attacks"]["membership_auc"] < card["membership_auc_most_exposed"]
        assert "100 secret mixtures over 2,500 people of each of 10 features" in card["in_one_sentence"]
        page = (run / "card.html").read_text()
        for words in ("Sites (know Φ)", "If Φ is known", "Columns per subject", "of kept columns exactly, the others to ± 0.100"):
            assert words in page, words


def test_where_a_sketch_screens_the_next_run_counts_it(mixed_done):
    _, parties, _, _ = mixed_done

    def other_value(tables) -> None:  # type: ignore[no-untyped-def]
        tables["site2"].loc[3, "site2_1"] += 0.5

    assert "with other values or other columns, have left before" in again_with(mixed_done, "values", other_value)
    assert again_with(mixed_done, "same", lambda tables: None) == ""
    many = screened_study_of(parties, HOLDERS, m=500, rows=2500).again()
    assert "rows from earlier runs) is above the limit 0.25" in again_with(mixed_done, "many", lambda tables: None, many)


def again_with(done, name: str, change, study: Study | None = None) -> str:  # type: ignore[no-untyped-def]
    """A further study of the same sites after a change to one table: why that site refuses, or nothing."""
    where, parties, tables, folder = done
    changed = {key: frame.copy() for key, frame in tables.items()}
    change(changed)
    plan_ = study or folder.study.again()
    others = [
        Site(s.name, changed[s.name], id="id", responses=s.roles["responses"], identity=s.identity, folder=s.folder)
        for s in parties
    ]
    try:
        protocol.collect(StudyFolder.create(where / f"server-{plan_.run[:6]}-{name}", plan_), carrier(others, plan_))
    except PrivacyError as error:
        return str(error)
    return ""


def test_the_same_study_again_passes_and_other_values_or_nearly_the_same_people_do_not(done):
    assert again_with(done, "same", lambda tables: None) == ""

    def other_value(tables) -> None:  # type: ignore[no-untyped-def]
        tables["site2"].loc[3, "site2_1"] += 0.5

    def fewer(tables) -> None:  # type: ignore[no-untyped-def]
        for key in tables:
            tables[key] = tables[key][tables[key]["id"] != "S0005"]

    assert "with other values or other columns, have left before" in again_with(done, "values", other_value)
    assert "would single out 1 people" in again_with(done, "fewer", fewer)


@pytest.mark.slow
def test_after_a_gram_study_of_the_same_table_a_screened_one_of_nearly_the_same_people_is_refused(tmp_path):
    parties, tables = gram_parties(3, n=2500)
    for site in parties:
        site.folder = tmp_path / site.name
        site.folder.mkdir()
    gram = gram_study_of(parties, HOLDERS, rows=2500)
    protocol.collect(StudyFolder.create(tmp_path / "gram", gram), carrier(parties, gram))
    plan_ = screened_study_of(parties, HOLDERS, rows=2500).again()
    here = (tmp_path, parties, tables, StudyFolder.create(tmp_path / "unused", plan_))

    def fewer(tables) -> None:  # type: ignore[no-untyped-def]
        for key in tables:
            tables[key] = tables[key][~tables[key]["id"].isin(["S0005", "S0006"])]

    assert "would single out 2 people" in again_with(here, "fewer", fewer, plan_)
    assert again_with(here, "same", lambda tables: None, plan_.again()) == ""  # the Gram matrix has told all of it


def test_before_all_sites_have_announced_their_columns_nothing_leaves(tmp_path):
    parties, _ = gram_parties(3)
    study = screened_study_of(parties, HOLDERS)
    site = parties[0]
    with pytest.raises(IntarsiaError):
        site.sketch(study, None)


def test_the_plan_compares_four_kinds_and_says_when_none_is_worth_it(capsys):
    problem = Problem.expected(20_000, 1000, 3, 20)
    ways = compare(problem, plan(problem))
    sketch, gram, screen, by_sketch = ways
    assert all(way.allowed for way in ways)
    assert screen.power == pytest.approx(gram.power, abs=0.02)
    assert screen.membership_auc < 0.65 < sketch.membership_auc < gram.membership_auc
    assert sketch.power[0] < 0.5 < screen.power[0]
    # What a sketch keeps is fitted to all rows: more than in the sketch alone, less than where exact sums screen.
    assert all(a <= b <= c for a, b, c in zip(sketch.power, by_sketch.power, screen.power, strict=True))
    assert by_sketch.power[1] > sketch.power[1] + 0.1
    assert by_sketch.membership_auc > sketch.membership_auc
    assert "m = 2000, 71 kept" in by_sketch.name
    assert by_sketch.megabytes < screen.megabytes
    assert "screened, 71 kept finds nearly as much and tells less" in verdict(ways)
    small = Problem.expected(150, 300, 4, 5)
    assert "not worth running with these people" in verdict(compare(small, plan(small)))
    assert not compare(small, plan(small))[2].allowed
    assert main(["privacy", "plan", "--n", "20000", "--features", "1000", "--responses", "3", "--json"]) == 0
    names = [way["name"] for way in json.loads(capsys.readouterr().out)["ways"]]
    assert names[2] == "screened, 71 kept"
    assert names[3].startswith("screened by a sketch, m = ")
    assert len(names) == 4
    assert main(["privacy", "plan", "--n", "1262", "--features", "294", "--responses", "6"]) == 0
    assert "refused" in capsys.readouterr().out


def test_study_new_writes_a_screened_study(tmp_path, capsys):
    for name in ("clinic", "lab", "mri"):
        frames()[name].to_csv(tmp_path / f"{name}.csv", index=False)
        assert (
            main(["site", "init", str(tmp_path / name), "--name", name, "--table", str(tmp_path / f"{name}.csv"), "--id", "id"])
            == 0
        )
    public = [word for name in ("clinic", "lab", "mri") for word in ("--site", str(tmp_path / name / f"{name}.toml"))]
    path = tmp_path / "study.toml"
    assert main(["study", "new", str(path), "--id", "liver", "--screened", "--responses", "clinic=alt,ast", *public]) == 0
    study = Study.load(path)
    assert study.sketch.screened
    assert (study.sketch.looks, study.holders) == (2, ("clinic", "lab", "mri"))
    capsys.readouterr()
    assert main(["study", "check", str(path)]) == 0
    assert "The server gets the exact sums of products of all features with the responses" in capsys.readouterr().out


def test_what_was_screened_out_is_in_the_table(done):
    *_, folder = done
    rows = screened.table(folder)
    assert len(rows) == 10
    assert sorted({row["kept"] for row in rows}, key=str) == [1, 2, None]
    assert all(set(row["r"]) == {"y0", "y1"} and np.isfinite(row["score"]) for row in rows)


def test_a_site_cannot_be_taken_out_of_a_screened_study_and_is_told_what_to_do(done):
    from intarsia.errors import StudyError
    from intarsia.server.study.departure import leave

    _, parties, _, folder = done
    notice = parties[2].leave(folder.study)
    with pytest.raises(StudyError, match="start a run without it: intarsia study again"):
        leave(folder, notice)
