"""The gate, the policy, the ledger and the card: what is refused, why, and what stays on record."""

import base64
import json
import multiprocessing
import shutil
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from intarsia.cli import main
from intarsia.errors import InputError, MessageError, PrivacyError
from intarsia.privacy import dp
from intarsia.privacy.card import NOT_CLAIMED, Release, exposed_names, sign, site_card, study_card, verify
from intarsia.privacy.card_page import page
from intarsia.privacy.facts import ColumnFacts, Facts
from intarsia.privacy.gate import judge
from intarsia.privacy.ledger import Claim, Ledger
from intarsia.privacy.policy import Override, Policy, loosened
from intarsia.privacy.subject_ids import canonical_id
from intarsia.site.site_folder import SiteFolder
from intarsia.site.site_ledger import open_ledger
from intarsia.wire.study import Study


def facts(**changes):
    base = {"n": 5000, "m": 200, "kind": "orthonormal", "columns": 20, "precision": "float32"}
    return Facts(**(base | changes))


def column(name="age", **changes):
    base = {"distinct": 13, "smallest_level": None, "off_mode": 4000, "dominance": 0.01}
    return ColumnFacts(name, **(base | changes))


def study(**privacy):
    return Study.from_dict(
        {
            "id": "demo",
            "run": "ab" * 16,
            "sketch": {"m": 200, "kind": "gaussian" if privacy else "orthonormal"},
            "privacy": privacy,
            "site": [{"name": "clinic", "features": ["*"]}, {"name": "lab", "responses": ["y"]}],
        }
    )


def test_a_clean_sketch_passes():
    verdict = judge(facts(own_columns=(column(),)), Policy()).check()
    assert not verdict.warnings


@pytest.mark.parametrize(
    ("changes", "rule", "words"),
    [
        ({"m": 1300}, "ratio", "at most 1250"),
        ({"m": 200, "history_m": 1100}, "ratio", "earlier runs"),
        ({"m": 200, "history_m": 1249}, "ratio", "allowance is spent"),
        ({"own_columns": (column(distinct=1, off_mode=0),)}, "constant", "one value"),
        ({"own_columns": (column(duplicate_of="x"),)}, "duplicate", "Leave one"),
        ({"own_columns": (column(distinct=3, smallest_level=9),)}, "rare-level", "fewer than 10"),
        ({"own_columns": (column(off_mode=4),)}, "rare-level", "the least is 4"),
        ({"own_columns": (column(dominance=0.9),)}, "dominant", "90%"),
    ],
)
def test_refusals_name_the_rule_the_number_and_the_remedy(changes, rule, words):
    verdict = judge(facts(**changes), Policy())
    assert [f.rule for f in verdict.refused] == [rule]
    with pytest.raises(PrivacyError, match="nothing was sent") as caught:
        verdict.check()
    assert f"{rule}:" in str(caught.value)
    assert words in str(caught.value)


def test_all_refusals_come_in_one_message():
    bad = facts(m=1300, own_columns=(column(distinct=1, off_mode=0), column("b", dominance=0.9)))
    with pytest.raises(PrivacyError) as caught:
        judge(bad, Policy()).check()
    assert str(caught.value).count("\n  - ") == 3


def test_warnings_do_not_stop():
    warned = judge(facts(m=600, columns=2000, own_columns=(column(distinct=2, smallest_level=50),)), Policy()).check()
    assert {f.rule for f in warned.warnings} == {"ratio", "membership", "few-values"}
    text = next(f.text for f in warned.warnings if f.rule == "membership")
    assert f"{warned.membership:.3f}" in text
    silent = judge(facts(m=600, columns=2000, kind="gaussian", epsilon=1.0, delta=1e-6), Policy())
    assert "membership" not in {f.rule for f in silent.warnings}


def test_infinite_information_is_said():
    verdict = judge(facts(n=500, m=50, columns=480), Policy())
    assert any("infinite" in f.text for f in verdict.findings)


def test_overrides_are_explicit_and_stay_visible():
    policy = Policy().tightened({"override": [{"rule": "ratio", "reason": "ethics board vote of May"}]})
    verdict = judge(facts(m=1300), policy).check()
    found = next(f for f in verdict.findings if f.rule == "ratio")
    assert found.level == "overridden"
    assert found.override.reason == "ethics board vote of May"
    some = Policy(overrides=(Override("rare-level", "approved for this column", ("a",)),))
    rare = tuple(column(name, distinct=2, smallest_level=3) for name in ("a", "b"))
    assert judge(facts(own_columns=rare), some).refused
    assert not judge(facts(own_columns=rare[:1]), some).refused


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"max_ratio": 0.9}, "looser"),
        ({"min_level": 3}, "looser"),
        ({"self_attack": False}, "looser"),
        ({"max_ration": 0.1}, "Unknown"),
        ({"max_ratio": "small"}, "must be a number"),
        ({"override": [{"rule": "one-time", "reason": "because we want to"}]}, "can be overridden"),
        ({"override": [{"rule": "ratio", "reason": "x"}]}, "reason"),
        ({"override": [{"rule": "ratio"}]}, "written as"),
    ],
)
def test_a_site_may_tighten_only(own, words):
    with pytest.raises(InputError, match=words):
        Policy().tightened(own)


def test_tightening_by_the_sites_own_limits():
    own = {"max_ratio": 0.05, "override": [{"rule": "few-values", "reason": "sex is public here"}]}
    policy = Policy.of_study(study().privacy).tightened(own)
    assert policy.max_ratio == 0.05
    assert policy.overrides[0].rule == "few-values"
    assert judge(facts(m=300), policy).refused


def test_the_defaults_are_the_floor():
    """A study file cannot switch the gate off; what it tries is listed for the person who accepts it."""
    loose = study(max_ratio=1.0, min_level=0, self_attack=False, max_auc=1.0, max_blind=1e6, max_epsilon=1e3)
    assert Policy.of_study(loose.privacy) == Policy()
    named = {item.limit: item for item in loosened(loose)}
    assert set(named) == {"max_ratio", "min_level", "self_attack", "max_auc", "max_blind", "max_epsilon"}
    assert "default stays in force" in str(named["max_ratio"])
    own = {"override": [{"rule": "ratio", "reason": "vote of the board, 3 May"}]}
    assert "vote of the board" in str({item.limit: item for item in loosened(loose, own)}["max_ratio"])
    assert loosened(study(max_ratio=0.2, min_level=20)) == []
    assert Policy.of_study(study(max_ratio=0.2, min_level=20).privacy).min_level == 20


def test_budget_is_capped():
    private = {"kind": "gaussian", "epsilon": 4.0, "delta": 1e-6}
    assert not judge(facts(**private, earlier_budget=(6.0, 1e-6)), Policy()).refused
    verdict = judge(facts(**private, earlier_budget=(6.5, 1e-6)), Policy())
    assert [f.rule for f in verdict.refused] == ["budget"]
    assert "Σε = 10.5" in verdict.refused[0].text
    assert [f.rule for f in judge(facts(**private | {"delta": 2e-4}), Policy()).refused] == ["budget"]
    assert any(f.rule == "budget" for f in judge(facts(**private, earlier_budget=None), Policy()).warnings)
    # A run without noise does not end the counting of those that had some.
    after = judge(facts(**private, earlier_budget=None, earlier_private=(6.5, 1e-6)), Policy())
    assert [f.rule for f in after.refused] == ["budget"]


def test_no_figure_where_columns_are_unknown():
    """Columns nobody counted must not be left out of a figure: it would be too small."""
    given = facts(columns=7, columns_known=False, own_columns=(column(), column("weight")))
    verdict = judge(given, Policy())
    assert verdict.membership is None
    assert verdict.leakage is None
    assert {f.rule for f in verdict.warnings if "unknown" in f.text} == {"membership", "blind"}
    card = site_card(study(), "clinic", given, verdict, Release("0f" * 16))
    assert card["attacks"]["membership_auc"] == card["attacks"]["known_rows_r2"] == "unknown"
    assert card["columns"]["at_server"] == "unknown"
    assert card["information"]["phi_secret_bits"]["upper"] == "unknown"
    assert "unknown" in page(card)
    assert "is unknown here" in card["in_one_sentence"]


def test_blind_and_near_duplicate_rules():
    skewed = tuple(column(f"c{j}", skewness=4.0, kurtosis=10.0) for j in range(100))
    small = {"n": 200, "m": 50}
    assert [f.rule for f in judge(facts(**small, columns=2000, own_columns=skewed), Policy()).refused] == ["blind"]
    # The other sites' columns count: the same columns alone are not refused.
    assert not judge(facts(**small, columns=100, own_columns=skewed), Policy()).refused
    assert "blind" in {f.rule for f in judge(facts(**small, columns=200, own_columns=skewed), Policy()).warnings}
    normal = tuple(column(f"c{j}", skewness=0.1, kurtosis=0.1) for j in range(100))
    assert not judge(facts(**small, columns=2000, own_columns=normal), Policy()).refused
    found = judge(facts(**small, columns=100, own_columns=normal, blind_found=3), Policy())
    assert "3 of 200 columns of Φ were found" in found.refused[0].text
    pair = (column("a"), column("b", near_duplicate_of="a", near_people=4))
    verdict = judge(facts(own_columns=pair), Policy())
    assert [(f.rule, f.columns) for f in verdict.refused] == [("near-duplicate", ("b",))]
    assert not judge(facts(own_columns=(column("a"), column("b", near_duplicate_of="a", near_people=12))), Policy()).refused


def test_under_differential_privacy_no_column_decides():
    """A refusal for nine carriers and none for ten would tell the tenth's value outside of the budget."""
    dangerous = (column("rare", distinct=2, smallest_level=1), column("copy", duplicate_of="rare"), column("one", dominance=0.9))
    verdict = judge(facts(kind="gaussian", epsilon=1.0, delta=1e-6, own_columns=dangerous), Policy())
    assert not verdict.refused
    assert verdict.blind is None
    assert not any(f.columns for f in verdict.findings)


# --- ledger -------------------------------------------------------------------------------------------------------


def claim(ledger, ids, run="r1", study="s", m=50, content="c"):
    return ledger.reserve(Claim(study, run, ledger.tokens(ids), len(ids), m, "orthonormal", 3, content))


def test_phi_is_used_once(tmp_path):
    ledger = Ledger(tmp_path)
    people = [f"p{i}" for i in range(100)]
    entry = claim(ledger, people)
    ledger.release(entry, b"sketch")
    assert claim(ledger, people).state == "released"  # the same again is the same sketch
    assert ledger.release(claim(ledger, people), b"sketch").sketch == ledger.entries()[-1].sketch
    for changed in ({"ids": people[:-1]}, {"content": "other"}, {"m": 60}):
        given = {"ids": people} | changed
        with pytest.raises(PrivacyError, match="one-time"):
            claim(ledger, given.pop("ids"), **given)
    with pytest.raises(PrivacyError, match="another sketch"):
        ledger.release(entry, b"other bytes")
    assert len(ledger.entries()) == 2


def test_the_same_line_is_written_once(tmp_path):
    """A refusal or a claim that nothing came of, repeated: asking on neither fills the disk nor hides other lines."""
    ledger = Ledger(tmp_path)
    asked = Claim("s", "r1", ledger.tokens(["p1", "p2"]), 2, 50, "orthonormal", 3, "c")
    for _ in range(3):
        ledger.bind(asked)
        ledger.refuse(asked, ["rare-level", "blind"])
    ledger.refuse(asked, ["blind"])  # another reason is another line
    ledger.refuse(asked, ["blind", "rare-level"])
    for _ in range(3):
        assert ledger.reserve(asked).state == "reserved"
    ledger.refuse(replace(asked, content="other values"), ["blind"])
    assert [entry.state for entry in ledger.entries()] == ["tried", "refused", "refused", "reserved", "refused"]
    assert ledger.reserve(asked).sequence == 5  # a refusal came in between: claimed anew


def test_only_what_was_reserved_is_released(tmp_path):
    ledger, other = Ledger(tmp_path / "here"), Ledger(tmp_path / "there")
    foreign = claim(other, ["a", "b"])
    with pytest.raises(PrivacyError, match="not reserved"):
        ledger.release(foreign, b"sketch")
    assert ledger.entries() == []
    mine = claim(ledger, ["a", "b"])
    with pytest.raises(PrivacyError, match="not reserved"):
        ledger.release(replace(mine, cohort=claim(ledger, ["a", "c"], run="r2").cohort), b"sketch")
    assert {e.state for e in ledger.entries()} == {"reserved"}


def test_a_claim_that_released_nothing_may_be_repaired(tmp_path):
    ledger = Ledger(tmp_path)
    claim(ledger, ["a", "b"], content="first try")
    assert ledger.history(ledger.tokens(["a"])) == 0
    ledger.release(claim(ledger, ["a", "b"], content="repaired"), b"x")
    assert ledger.history(ledger.tokens(["a"])) == 50


def test_a_run_belongs_to_the_cohort_it_was_first_tried_on(tmp_path):
    """A server that asks again with other cohorts learns nothing: not even a refusal that looked at a value."""
    ledger = Ledger(tmp_path)
    people = [f"p{i}" for i in range(30)]

    def ask(ids):
        return Claim("s", "r1", ledger.tokens(ids), len(ids), 5, "orthonormal", 3)

    ledger.bind(ask(people))
    ledger.bind(ask(people))  # the same again is no new try
    assert [e.state for e in ledger.entries()] == ["tried"]
    ledger.refuse(ask(people), ["rare-level", "blind"])
    assert ledger.entries()[-1].note == "blind, rare-level"
    for step in (ledger.bind, ledger.reserve, lambda c: ledger.refuse(c, ["ratio"])):
        with pytest.raises(PrivacyError, match="another cohort"):
            step(ask(people[:-1]))
    ledger.release(ledger.reserve(ask(people)), b"x")
    assert [e.state for e in ledger.entries()] == ["tried", "refused", "reserved", "released"]


@pytest.mark.parametrize("written", [" p7", "P7", "p007", "p-7", "\uff507", "p 7"])
def test_an_id_written_otherwise_is_the_same_person(tmp_path, written):
    ledger = Ledger(tmp_path)
    ledger.release(claim(ledger, ["p7", "p8"]), b"x")
    assert ledger.history(ledger.tokens([written])) == 50
    assert ledger.history(ledger.tokens(["p9"])) == 0


def test_whole_numbers_are_one_id_however_written():
    assert canonical_id(12) == canonical_id("12.0") == canonical_id(" 012") == "12"
    assert canonical_id("p10") != canonical_id("p1")
    assert canonical_id("100") == "100"
    assert canonical_id("--") == "--"


def test_rows_add_up_over_overlapping_cohorts(tmp_path):
    ledger = Ledger(tmp_path)
    people = [f"p{i}" for i in range(30)]
    ledger.release(claim(ledger, people, run="r1", m=50), b"1")
    ledger.release(claim(ledger, people[:-1], run="r2", m=40), b"2")
    ledger.release(claim(ledger, ["other"], run="r3", m=7), b"3")
    assert ledger.history(ledger.tokens(people[:5])) == 90  # one subject fewer is not a new cohort
    assert ledger.history(ledger.tokens(people[-1:])) == 50
    assert ledger.history(ledger.tokens(["stranger"])) == 0
    assert ledger.history(ledger.tokens(people), but=("s", "r1")) == 40
    for path in (tmp_path / "cohorts").iterdir():
        path.unlink()
    assert ledger.history(ledger.tokens(["stranger"])) == 97  # unknown overlap counts in full


def test_privacy_budgets_add_up(tmp_path):
    ledger = Ledger(tmp_path)
    people = ledger.tokens(["a", "b"])

    def run(name, who, epsilon):
        delta = None if epsilon is None else 1e-6
        claim = Claim("s", name, ledger.tokens(who), 2, 5, "gaussian", 1, name, epsilon, delta)
        ledger.release(ledger.reserve(claim), name.encode())

    assert ledger.budget(people) == (0, 0)
    run("r1", ["a", "b"], 1.0)
    run("r2", ["b", "c"], 2.0)
    run("r3", ["z"], 4.0)
    assert ledger.budget(people) == (3.0, 2e-6)
    run("r4", ["a"], None)
    assert ledger.budget(people) is None
    assert ledger.budget(people, of_all=False) == (3.0, 2e-6)
    assert ledger.budget(ledger.tokens(["z"])) == (4.0, 1e-6)


def test_tampering_is_found(tmp_path):
    ledger = Ledger(tmp_path)
    for run in ("r1", "r2"):
        ledger.release(claim(ledger, ["a"], run=run), run.encode())
    heads = [ledger.head]
    lines = ledger.path.read_text().splitlines()
    for broken in (
        [lines[0].replace('"m":50', '"m":5'), *lines[1:]],
        [lines[1], lines[0], *lines[2:]],
        lines[1:],
        [*lines[:2], "not json", *lines[2:]],
    ):
        ledger.path.write_text("\n".join(broken) + "\n")
        with pytest.raises(PrivacyError, match="does not fit the chain"):
            ledger.entries()
    ledger.path.write_text("\n".join(lines[:2]) + "\n")  # whole lines cut off: a valid chain, but not the one published
    assert len(ledger.entries()) == 2
    with pytest.raises(PrivacyError, match="removed or replaced"):
        ledger.verify(heads)
    (tmp_path / "ledger.key").unlink()
    with pytest.raises(PrivacyError, match="missing"):
        Ledger(tmp_path)


def test_a_ledger_cannot_start_again_unseen(tmp_path):
    ledger = open_ledger(tmp_path)
    ledger.release(claim(ledger, ["a", "b"]), b"x")
    again = open_ledger(tmp_path)
    assert again.history(again.tokens(["a"])) == 50
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    ledger.path.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(PrivacyError, match="removed or replaced"):
        open_ledger(tmp_path)
    shutil.rmtree(tmp_path / "ledger")
    with pytest.raises(PrivacyError, match="missing"):
        open_ledger(tmp_path)
    (tmp_path / "ledger.head").unlink()
    run = tmp_path / "studies" / "s-0123"
    run.mkdir(parents=True)
    run.joinpath("sketch").write_bytes(b"x")
    with pytest.raises(PrivacyError, match="missing"):
        open_ledger(tmp_path)
    run.joinpath("sketch").unlink()
    run.joinpath("card.json").write_text(json.dumps({"card": {"ledger": {"entries": 2, "head": "ab" * 32}}}))
    with pytest.raises(PrivacyError, match="missing"):
        open_ledger(tmp_path)


def test_a_line_cut_by_a_crash_is_dropped(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.release(claim(ledger, ["a"]), b"1")
    whole = ledger.path.read_bytes()
    for cut in (1, 40, 200):
        ledger.path.write_bytes(whole + whole.splitlines(keepends=True)[-1][:-cut])
        assert len(ledger.entries()) == 2
        claim(ledger, ["a"], run=f"after{cut}")
        assert [e.run for e in ledger.entries()] == ["r1", "r1", f"after{cut}"]


def _race(folder, index):
    ledger = Ledger(folder)
    try:
        ledger.release(claim(ledger, ["a", "b"], content=f"c{index}"), f"{index}".encode())
    except PrivacyError:
        return 0
    return 1


def test_of_many_at_once_one_wins(tmp_path):
    with multiprocessing.get_context("fork").Pool(4) as pool:
        wins = pool.starmap(_race, [(tmp_path, i) for i in range(12)])
    assert sum(wins) == 1
    assert sum(e.state == "released" for e in Ledger(tmp_path).entries()) == 1


def test_no_id_and_no_key_is_in_the_ledger(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.release(claim(ledger, ["patient-4711", "patient-4712"]), b"1")
    raw = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != "ledger.key")
    assert b"patient" not in raw
    assert (tmp_path / "ledger.key").read_bytes() not in raw
    assert (tmp_path / "ledger.key").stat().st_mode & 0o077 == 0


# --- card ---------------------------------------------------------------------------------------------------------


def a_card(**changes):
    columns = (column("sex", distinct=2, smallest_level=2000, attacked="exact", right=1.0, right_rare=1.0, theory_unknown=0.0),)
    given = facts(own_columns=columns, **changes)
    policy = Policy(overrides=(Override("few-values", "sex is public in this register"),))
    return site_card(study(), "clinic", given, judge(given, policy), Release("0f" * 16, ledger_head=(3, "ab" * 32)))


def test_card_says_what_must_be_said():
    card = a_card()
    assert card["exposed_columns"][0]["name"] == "sex"
    assert card["overrides"][0]["rule"] == "few-values"
    assert card["attacks"]["known_phi_r2"] == pytest.approx(200 / 4999)
    assert card["information"]["phi_secret_bits"]["exact"]
    assert card["not_claimed"] == list(NOT_CLAIMED)
    html = page(card, "key")
    for words in ("sex", "Membership AUC", "not anonymous", "few-values", "ab" * 32):
        assert words in html
    assert "<script" not in html
    assert "http" not in html
    for never in ("unconditional", "holds if Φ is known"):
        assert never not in html


def test_the_card_begins_with_a_plain_sentence(tmp_path, capsys):
    key = Ed25519PrivateKey.generate()
    public = base64.b64encode(key.public_key().public_bytes_raw()).decode()
    card = a_card()
    sentence = card["in_one_sentence"]
    assert sentence.startswith("The server gets 200 secret mixtures of 5,000 people for each of the 20 columns")
    assert sentence.endswith("a leaked key would expose 1 column.")
    html = page(card)
    assert html.index("The server gets 200") < html.index("Who sees what")
    path = tmp_path / "clinic.card.json"
    path.write_text(sign(card, key.sign, public))
    assert main(["privacy", "card", str(path)]) == 0
    said = capsys.readouterr().out
    assert said.replace("\n", " ").startswith(sentence)
    assert "│ exposed columns      │ 1: sex" in said  # what the JSON lists


def test_the_servers_card_names_the_columns_its_sites_name():
    whole = study_card(study(), n=5000, columns=40, key_fingerprint="0f" * 16, site_cards=[a_card()])
    assert exposed_names(whole) == ["sex"]
    assert "expose 1 column" in whole["in_one_sentence"]
    # The site's own card and the server's agree on the figure both state.
    alone = study_card(study(), n=5000, columns=20, key_fingerprint="0f" * 16)
    assert alone["attacks"] == a_card()["attacks"]


def test_the_servers_card_does_not_speak_for_sites_whose_cards_it_lacks():
    from intarsia.cli.privacy import _exposed, _overrides

    sizes = {"n": 5000, "columns": 40, "key_fingerprint": "0f" * 16}
    some = study_card(study(), **sizes, site_cards=[a_card()])
    assert some["in_one_sentence"].endswith(
        "would expose 1 column of the sites whose cards are here, and nothing is known of lab."
    )
    assert _exposed(some) == "1: sex; of lab unknown: give all cards (--site-card)"
    assert _overrides(some) == "few-values (site clinic); of lab unknown"  # not "none"
    given = facts(own_columns=(column(),))
    lab = site_card(study(), "lab", given, judge(given, Policy()), Release("0f" * 16, ledger_head=(3, "ab" * 32)))
    whole = study_card(study(), **sizes, site_cards=[a_card(), lab])
    assert whole["in_one_sentence"].endswith("a leaked key would expose 1 column.")
    assert (_exposed(whole), _overrides(whole)) == ("1: sex", "few-values (site clinic)")
    alone = study_card(study(), **sizes)
    assert _exposed(alone) == _overrides(alone) == "unknown: give the sites' cards (--site-card)"
    assert (_exposed(lab), _overrides(lab)) == ("none found", "none")


def test_infinity_is_plain_json():
    card = a_card(n=500, m=50, columns=480)
    assert card["information"]["phi_secret_bits"]["upper"] == "infinite"
    assert "∞" in page(card)
    json.loads(json.dumps(card, allow_nan=False))


def test_labels_cannot_inject_markup():
    given = facts(own_columns=(column("<img src=x>", attacked="exact", theory_unknown=0.0),))
    html = page(site_card(study(), "clinic", given, judge(given, Policy()), Release("0f" * 16)))
    assert "<img" not in html


def test_signature_holds_and_breaks():
    key = Ed25519PrivateKey.generate()
    public = base64.b64encode(key.public_key().public_bytes_raw()).decode()
    text = sign(a_card(), key.sign, public)
    assert verify(text, public) == json.loads(text)["card"]
    with pytest.raises(MessageError, match="does not hold"):
        verify(text.replace('"m": 200', '"m": 20'), public)
    other = base64.b64encode(Ed25519PrivateKey.generate().public_key().public_bytes_raw()).decode()
    with pytest.raises(MessageError, match="does not hold"):
        verify(text, other)
    for junk in ("", "{}", "[]", '{"card": 1, "signing_key": "", "signature": ""}', "[" * 10**5):
        with pytest.raises(MessageError):
            verify(junk)


def test_private_card_has_both_guarantees():
    private = study(epsilon=1.0, delta=1e-6, row_bound={"clinic": 10.0, "lab": 2.0})
    g = dp.guarantee(1.0, 1e-6, 200, dict(private.privacy.row_bound))
    given = facts(kind="gaussian", epsilon=1.0, delta=1e-6)
    card = site_card(private, "clinic", given, judge(given, Policy()), Release("0f" * 16, guarantee=g, longest=0.3))
    d = card["differential_privacy"]
    assert d["against_server"] == {"epsilon": 1.0, "delta": 1e-6}
    assert d["against_a_party_that_knows_phi"]["mu"] == pytest.approx(
        np.sqrt(5000 * g.t) * 0.3 + 1.0 / 6000
    )  # what the grid may add
    whole = study_card(private, n=5000, columns=40, key_fingerprint="0f" * 16, site_cards=[card])
    assert whole["differential_privacy"]["neighbours"].startswith("one person's row")
    assert "μ" in page(whole)


def test_an_override_works_where_the_documents_say(tmp_path):
    """[[override]] at the top level of site.toml, beside [policy]."""
    SiteFolder.create(tmp_path, "clinic")
    text = (tmp_path / "site.toml").read_text().replace("# [[override]]", "[[override]]").replace("# rule", "rule")
    text = text.replace("# columns", "columns").replace("# reason", "reason")
    (tmp_path / "site.toml").write_text(text)
    own = SiteFolder.load(tmp_path).site().policy
    policy = Policy().tightened(own)
    assert policy.overrides == (Override("rare-level", "approved by the ethics board, vote of 3 May", ("transplant",)),)
    rare = (column("transplant", distinct=2, smallest_level=3),)
    assert not judge(facts(own_columns=rare), policy).refused


def test_new_pseudonyms_are_noted(tmp_path):
    """Subjects are known by their ids alone: whoever writes them anew is a stranger, and the card says so."""
    ledger = Ledger(tmp_path)
    claim = Claim("a", "ab" * 16, ledger.tokens([f"P{i}" for i in range(50)]), 50, 5, "orthonormal", 2, "c")
    assert ledger.strangers(claim.tokens) == 0
    ledger.release(ledger.reserve(claim), b"left")
    assert ledger.strangers(ledger.tokens([f"P{i}" for i in range(49, 80)])) == 0
    assert ledger.strangers(ledger.tokens([f"X{i}" for i in range(50)])) == 1
    finding = next(f for f in judge(facts(strangers=1), Policy()).findings if f.rule == "pseudonyms")
    assert finding.level == "note"
    assert "start again" in finding.text


def test_what_was_told_of_features_adds_up(tmp_path):
    ledger = Ledger(tmp_path)
    tokens = ledger.tokens([f"P{i}" for i in range(50)])
    for k, sums in enumerate((4, None)):
        claim = Claim("a", f"{k:02d}" * 16, tokens, 50, 5, "orthonormal", 2, "c", sums=sums)
        ledger.release(ledger.reserve(claim), b"left")
    assert ledger.sums(tokens) == 4 + 5  # where it was not noted, as many as the sketch had rows
