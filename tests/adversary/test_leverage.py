"""Directions that few people carry: the server finds them in what leaves, without the key; the gate finds them first.

Each case is a table, the server's attack on its sketch, and how many people's columns of Φ it has. Nothing in these columns is
rare, dominant or repeated. What is found is refused, or warned of by name; ordinary tables are not.
"""

from dataclasses import replace

import numpy as np
import pytest
from tests.adversary.few_people_tables import (
    Case,
    hits,
    judged,
    leading,
    loud,
    loud_in_some,
    ordinary,
    pairs,
    panels,
    people_of,
    refusals,
    study,
    table,
    totals,
    unnamed_totals,
)

from intarsia.privacy.blind import blind_phi, danger
from intarsia.privacy.card import Release, site_card
from intarsia.privacy.card_page import page
from intarsia.privacy.facts import WARN
from intarsia.privacy.leverage import attacks, families
from intarsia.site.data import columns as columns_of_a_site
from intarsia.site.rank_normal import as_the_study_asks

CASES = {
    "a loud person": loud(),
    "among 200": loud(200, 20, 300, times=8.0),
    "with common factors": loud(rho=0.5),
    "three of them": loud(people=3),
    "many columns": loud(columns=1200, times=3.5),
    "two panels": panels(),
    "two panels, filled in": panels(outside=0.01),
    "two panels among 300": panels(300, 60, 20),
    "totals": totals(),
    "totals among 200": totals(200, 40, 12, 5),
    "pairs": pairs(),
    "pairs among 200": pairs(200, 50, 30),
}
LARGE = {
    "a loud person": loud(20_000, 200, 1000, times=15.0),
    "two panels": panels(20_000, 100),
    "totals": totals(20_000, 300, 8),
    "pairs": pairs(20_000, 200, 60),
}


def told(case: Case, kind: str = "orthonormal", level: str = "refuse") -> str:
    found = [f for f in judged(case, kind).verdict.findings if f.level == level and f.rule in ("leverage", "near-duplicate")]
    return " ".join(f.text for f in found)


@pytest.mark.parametrize("name", CASES)
def test_the_server_has_peoples_columns_of_phi_and_the_gate_refuses_the_sketch(name: str) -> None:
    case = CASES[name]
    assert hits(case) >= case.hits
    assert refusals(case) & {"leverage", "near-duplicate"}


@pytest.mark.parametrize("name", CASES)
def test_the_gate_refuses_the_products_too(name: str) -> None:
    case = CASES[name]
    if 3 * len(case.columns) <= len(case.columns["x0"] if "x0" in case.columns else case.columns["visit0_total"]):
        assert refusals(case, "gram") & {"leverage", "near-duplicate"}


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_among_twenty_thousand_people(name: str) -> None:
    case = LARGE[name]
    assert hits(case) >= case.hits
    assert refusals(case) & {"leverage", "near-duplicate"}
    assert name == "a loud person" or refusals(case, "gram") & {"leverage", "near-duplicate"}


def test_from_products_the_server_has_the_loud_persons_row() -> None:
    columns = loud().columns
    Z = np.column_stack(list(columns.values()))
    Z = (Z - Z.mean(axis=0)) / Z.std(axis=0, ddof=1)
    row = np.linalg.eigh(Z.T @ Z)[1][:, -1]
    assert abs(np.corrcoef(row, Z[3])[0, 1]) > 0.99
    assert "one subject" in told(loud(), "gram")


@pytest.mark.parametrize("slips", [2, 3])
def test_several_slips_in_totals_without_names_are_warned_of(slips: int) -> None:
    """The direction is two or three people's columns of Φ, mixed; what nobody found it from is not in the columns' names."""
    text = told(unnamed_totals(slips=slips), level=WARN)
    assert f"is carried by {slips} subjects" in text
    assert "a sum of those subjects' column of Φ" in text
    assert "not looked for" not in text


def test_somebody_loud_in_columns_without_names_is_warned_of_where_an_attacker_who_guesses_them_gains() -> None:
    """The attacker is told which 60 of the 300 columns they are. At six times the others' size the gate warns; at four the best
    direction has a cosine of about a half with the person's column of Φ, which page and gate count as nothing found."""
    for times, level, cosine in ((6.0, "warn", 0.7), (4.0, "ok", 0.45)):
        case, at = loud_in_some(times=times)
        oracle = replace(case, attack=lambda S, labels, at=at: leading(S[:, at], labels), cosine=cosine)
        assert hits(oracle) == 1
        assert hits(replace(oracle, cosine=cosine + 0.1)) == 0
        assert hits(replace(case, cosine=cosine)) == 0  # without that help
        assert {f.level for f in judged(case).verdict.findings if f.rule == "leverage"} == {level}


def test_what_is_refused_is_named_with_how_many_people_and_the_remedy() -> None:
    text = told(totals())
    assert "visit" in text
    assert "In all 25 subjects are exposed so" in text
    for remedy in ("at_most, at_least", "rank-normal", "merge", "leave"):
        assert remedy in text
    # Both panels, by who carries them: their names have nothing in common.
    assert told(panels(stem=False)).count("are carried by 3") == 2


def test_normal_scores_are_a_remedy_for_a_loud_person() -> None:
    case = loud()
    entry = study(case.m).to_dict()
    scored = as_the_study_asks(table(case.columns), "rank-normal", np.arange(1000))
    values = np.concatenate([np.hstack(parts) for parts in scored.blocks(order=np.arange(1000))])
    mended = Case({name: values[:, j] for j, name in enumerate(case.columns)}, case.m, leading)
    assert entry["sketch"]["m"] == case.m
    assert hits(mended) == 0
    assert "leverage" not in refusals(mended)


def test_a_loud_person_of_whom_other_sites_columns_tell_the_rest_is_warned_of() -> None:
    """In 60 columns nothing is found; in 2,000 like them it is. The gate knows their number, not their values."""
    few, many = loud(columns=60, times=3.0), loud(columns=2000, times=3.0)
    assert hits(few) == 0
    assert hits(replace(many, cosine=0.85)) == 1
    alone = {f.rule for f in judged(few).verdict.warnings}
    assert "leverage" not in alone
    warned = [f for f in judged(few, others=1940).verdict.findings if f.rule == "leverage"]
    assert [f.level for f in warned] == [WARN]
    assert "if the other sites' columns are like these" in warned[0].text


def test_the_card_states_the_most_exposed_persons_membership() -> None:
    check = judged(loud(n=4000, columns=30, times=2.0), others=10)
    average, most = check.verdict.membership, check.verdict.most_exposed
    assert average is not None
    assert most is not None
    assert average < 0.53 < 0.54 < most
    text = next(f.text for f in check.verdict.findings if f.rule == "membership")
    assert f"of the one who is most exposed it is {most:.3f}" in text
    card = site_card(study(100, others=10), "lab", check.facts, check.verdict, Release(check.key_fingerprint))
    assert card["membership_auc_most_exposed"] == most
    assert "of the one who is most exposed" in page(card)


def test_what_is_not_looked_at_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from intarsia.site import few_people

    case = loud(columns=40, times=1.0)
    assert not [f for f in judged(case).verdict.warnings if f.rule == "leverage"]
    monkeypatch.setattr(few_people, "LARGEST_SEARCH", 40 * 40 * case.m * 3)
    assert "not looked for among sums of more than 3 of the 40 columns" in told(case, level=WARN)
    monkeypatch.setattr(few_people, "LARGEST_PHI", 100)
    monkeypatch.setattr(few_people, "LARGEST_PRODUCTS", 100)
    assert "too large to be attacked here" in told(case, level=WARN)


def test_more_pairs_than_can_be_held_are_compared_in_turns_and_what_is_left_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    case = pairs(count=40, share=0.95)
    monkeypatch.setattr(columns_of_a_site, "LARGEST_COMPARED_VALUES", 10 * 1000)  # ten columns at once
    found = [c for c in judged(case).facts.own_columns if c.near_duplicate_of]
    assert len(found) == 40
    monkeypatch.setattr(columns_of_a_site, "MOST_COMPARISONS", 2)
    looked = judged(case).facts.looked
    assert looked is not None
    assert looked.unseen == ("30 pairs of columns that look alike",)


def test_differences_of_columns_may_be_skewed_where_the_columns_are_not() -> None:
    """Pairs that share a normal part; what sets them apart has long tails. The blind figure of the columns alone says nothing."""
    rng = np.random.default_rng(0)
    n, m, count = 120, 30, 1500
    common, own = rng.standard_normal((n, count)), 0.12 * (np.exp(rng.standard_normal((n, count))) - np.exp(0.5))
    case = Case({f"a{j}": common[:, j] for j in range(count)} | {f"b{j}": (common + own)[:, j] for j in range(count)}, m, unlike)
    check = judged(case)
    assert hits(case) > 5
    assert danger(check.facts.shape, n, m) < check.verdict.policy.max_blind
    assert check.facts.looked is not None
    assert check.facts.looked.found_in_differences
    assert "blind" in {f.rule for f in check.verdict.refused}


def unlike(S: np.ndarray, labels: list[str]) -> np.ndarray:
    half = len(labels) // 2
    return blind_phi(S[:, half:] - S[:, :half], np.random.default_rng(1), 60)


def test_families_are_columns_with_a_beginning_or_an_end_in_common() -> None:
    labels = ["visit1_item1", "visit1_item2", "visit2_item1", "visit2_item2", "age"]
    sets = {tuple(labels[j] for j in group) for naming in families(labels) for group in naming}
    assert ("visit1_item1", "visit1_item2") in sets
    assert ("visit1_item2", "visit2_item2") in sets


def test_weights_of_a_direction_make_the_direction() -> None:
    S = np.random.default_rng(0).standard_normal((30, 24))
    names = [f"{'ab'[j % 2]}{j // 2}" for j in range(24)]
    ways = set()
    for some in attacks(S, names, 4, [np.arange(9)]):
        ways.add(some.how)
        for k in range(some.found.shape[1]):
            made = S @ some.weights(np.array([k]))[:, 0]
            assert people_of(some.found[:, [k]], made[:, None], 0.999) == {0}
    assert ways == {"loud", "principal", "totals", "meeting", "pursuit"}


def refused_ordinary(seeds: range) -> list[tuple[int, str]]:
    out = []
    for seed in seeds:
        case = ordinary(seed)
        n = len(next(iter(case.columns.values())))
        kinds = ["orthonormal"] + ["gram"] * (3 * len(case.columns) <= n)
        out += [(seed, kind) for kind in kinds if "leverage" in refusals(case, kind)]
    return out


def test_ordinary_tables_are_not_refused() -> None:
    assert refused_ordinary(range(50)) == []


@pytest.mark.slow
def test_not_one_of_a_thousand_ordinary_tables_is_refused() -> None:
    assert refused_ordinary(range(1000)) == []
