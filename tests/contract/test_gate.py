"""The gate, the policy, the ledger and the card: what is refused, why, and what stays on record."""

import base64
import json
import multiprocessing

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from intarsia.errors import InputError, MessageError, PrivacyError
from intarsia.privacy import dp
from intarsia.privacy.card import NOT_CLAIMED, sign, site_card, study_card, verify
from intarsia.privacy.gate import ColumnFacts, Facts, judge
from intarsia.privacy.ledger import Ledger
from intarsia.privacy.page import page
from intarsia.privacy.policy import Override, Policy, load_policy
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
    silent = judge(facts(m=600, columns=2000, kind="gaussian", differential_privacy=True), Policy())
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


def test_tightening_and_the_site_file(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text('max_ratio = 0.05\n[[override]]\nrule = "few-values"\nreason = "sex is public here"\n')
    policy = Policy.of_study(study().privacy).tightened(load_policy(path))
    assert policy.max_ratio == 0.05
    assert policy.overrides[0].rule == "few-values"
    assert judge(facts(m=300), policy).refused
    path.write_text("max_ratio = = 1")
    with pytest.raises(InputError, match="TOML"):
        load_policy(path)


# --- ledger -------------------------------------------------------------------------------------------------------


def claim(ledger, ids, run="r1", study="s", m=50, content="c"):
    return ledger.reserve(
        study=study, run=run, tokens=ledger.tokens(ids), content=content, n=len(ids), m=m, kind="orthonormal", columns=3
    )


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


def test_a_claim_that_released_nothing_may_be_repaired(tmp_path):
    ledger = Ledger(tmp_path)
    claim(ledger, ["a", "b"], content="first try")
    entry = claim(ledger, ["a"], content="repaired")
    ledger.release(entry, b"x")
    assert ledger.history(ledger.tokens(["b"])) == 0
    assert ledger.history(ledger.tokens(["a"])) == 50


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
        facts = {"n": 2, "m": 5, "kind": "gaussian", "columns": 1, "content": name}
        delta = None if epsilon is None else 1e-6
        entry = ledger.reserve(study="s", run=name, tokens=ledger.tokens(who), epsilon=epsilon, delta=delta, **facts)
        ledger.release(entry, name.encode())

    assert ledger.budget(people) == (0, 0)
    run("r1", ["a", "b"], 1.0)
    run("r2", ["b", "c"], 2.0)
    run("r3", ["z"], 4.0)
    assert ledger.budget(people) == (3.0, 2e-6)
    run("r4", ["a"], None)
    assert ledger.budget(people) is None
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
    return site_card(study(), "clinic", given, judge(given, policy), key_fingerprint="0f" * 16, ledger_head=(3, "ab" * 32))


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


def test_infinity_is_plain_json():
    card = a_card(n=500, m=50, columns=480)
    assert card["information"]["phi_secret_bits"]["upper"] == "infinite"
    assert "∞" in page(card)
    json.loads(json.dumps(card, allow_nan=False))


def test_labels_cannot_inject_markup():
    given = facts(own_columns=(column("<img src=x>", attacked="exact", theory_unknown=0.0),))
    html = page(site_card(study(), "clinic", given, judge(given, Policy()), key_fingerprint="0f" * 16))
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
    given = facts(kind="gaussian", differential_privacy=True)
    card = site_card(private, "clinic", given, judge(given, Policy()), key_fingerprint="0f" * 16, guarantee=g, longest=0.3)
    d = card["differential_privacy"]
    assert d["against_server"] == {"epsilon": 1.0, "delta": 1e-6}
    assert d["against_a_party_that_knows_phi"]["mu"] == pytest.approx(np.sqrt(5000 * g.t) * 0.3)
    whole = study_card(private, n=5000, columns=40, key_fingerprint="0f" * 16, site_cards=[card])
    assert whole["differential_privacy"]["neighbours"].startswith("one person's row")
    assert "μ" in page(whole)
