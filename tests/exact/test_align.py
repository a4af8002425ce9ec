"""Same subjects, same order, by keyed tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.errors import AlignmentError, MessageError
from intarsia.site.align import canonical, report, settle, tokenise, written
from intarsia.site.key import SketchKey
from intarsia.wire.alignment import AlignmentReport, Cohort, intersect
from intarsia.wire.study import Study

KEY = SketchKey(bytes(range(32)))


def study_of(names: str, mode: str = "intersect", rules: tuple[str, ...] = ("strip", "nfc")) -> Study:
    sites = [{"name": n, "features": ["*"], "responses": [f"y{n}"]} for n in names]
    alignment = {"mode": mode, "canonical": list(rules)}
    return Study.from_dict({"id": "s", "run": "0" * 32, "sketch": {"m": 5}, "alignment": alignment, "site": sites})


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sets(st.integers(0, 40), min_size=1), min_size=2, max_size=5), st.randoms())
def test_the_intersection_of_any_number_of_sites(cohorts: list[set[int]], random) -> None:  # type: ignore[no-untyped-def]
    names = "abcde"[: len(cohorts)]
    study = study_of(names)
    rows = {name: random.sample(sorted(c), len(c)) for name, c in zip(names, cohorts, strict=True)}
    tokens = {name: tokenise([f"S{i}" for i in ids], KEY, study) for name, ids in rows.items()}
    reports = {n: AlignmentReport.from_bytes(report(n, study, t).to_bytes()) for n, t in tokens.items()}
    common = set.intersection(*cohorts)
    if not common:
        with pytest.raises(AlignmentError, match="No subject is at all sites"):
            intersect(reports)
        return
    answers = {n: Cohort.from_bytes(c.to_bytes()) for n, c in intersect(reports).items()}
    settled = {n: settle(n, study, tokens[n], answers[n]) for n in names}
    orders = {n: [rows[n][i] for i in order] for n, (order, _) in settled.items()}
    assert set(orders[names[0]]) == common
    assert all(orders[n] == orders[names[0]] for n in names)
    assert len({mac for _, mac in settled.values()}) == 1


def test_strict_alignment_compares_digests_only() -> None:
    study = study_of("abc", "strict")
    ids = [f"S{i}" for i in range(50)]
    tokens = {n: tokenise(list(np.random.default_rng(k).permutation(ids)), KEY, study) for k, n in enumerate("abc")}
    reports = {n: report(n, study, t) for n, t in tokens.items()}
    assert all(r.tokens is None for r in reports.values())
    answers = intersect(reports)
    assert len({settle(n, study, tokens[n], answers[n])[1] for n in "abc"}) == 1
    reports["b"] = report("b", study, tokenise(ids[:-1], KEY, study))
    with pytest.raises(AlignmentError, match=r"'b' has 49 subjects; the cohorts of b differ|'b' has 49.*cohorts of b "):
        intersect(reports)


def test_same_size_but_other_subjects_is_noticed() -> None:
    study = study_of("ab", "strict")
    a = report("a", study, tokenise(["x", "y", "z"], KEY, study))
    b = report("b", study, tokenise(["x", "y", "w"], KEY, study))
    with pytest.raises(AlignmentError, match=r"do not hold the same subjects.*may only be written differently.*canonical"):
        intersect({"a": a, "b": b})
    # Also where a third site has another number; not where all numbers differ.
    c = report("c", study_of("abc", "strict"), tokenise(["x", "y", "z", "w"], KEY, study))
    with pytest.raises(AlignmentError, match="may only be written differently"):
        intersect({"a": a, "b": b, "c": c})
    with pytest.raises(AlignmentError) as refused:
        intersect({"a": a, "c": c})
    assert "written differently" not in str(refused.value)


def test_another_key_run_or_purpose_gives_unrelated_tokens() -> None:
    study = study_of("ab")
    base = tokenise(["x", "y"], KEY, study)
    others = [
        tokenise(["x", "y"], SketchKey(bytes(32)), study),
        tokenise(["x", "y"], KEY, study.again()),
        tokenise(["x", "y"], KEY, study, purpose="predict-june"),
    ]
    for other in others:
        assert not {bytes(t) for t in base.tokens} & {bytes(t) for t in other.tokens}
        assert other.mac() != base.mac()


@pytest.mark.parametrize(
    ("rules", "ids", "expected"),
    [
        (("strip",), [" a ", "b"], ["a", "b"]),
        (("collapse",), ["a \t b"], ["a b"]),
        (("lower",), ["Ab"], ["ab"]),
        (("no-leading-zeros",), ["007", "0", "70"], ["7", "0", "70"]),
        (("integer",), ["007", " 8 ", "9.0"], ["7", "8", "9"]),
        (("integer",), [7.0, 8.0], ["7", "8"]),
        (("nfc",), ["e\u0301"], ["\u00e9"]),
        ((), [7, 8], ["7", "8"]),
    ],
)
def test_canonical_rules(rules: tuple[str, ...], ids: list[object], expected: list[str]) -> None:
    assert canonical(ids, rules) == expected


@pytest.mark.parametrize(
    ("ids", "rules", "words"),
    [
        (["SECRET7", "SECRET7", "x"], (), "1 of 3 subjects have an id that another row has"),
        (["SECRET7", None], (), "1 of 2 subjects have no id"),
        (["SECRET7", float("nan")], (), "1 of 2 subjects have no id"),
        (["SECRET7", "  "], ("strip",), "1 of 2 subjects have no id"),
        ([1.5, 2.5], (), "floating-point"),
        (["SECRET7", "8"], ("integer",), "1 of 2 ids are none"),
    ],
)
def test_bad_ids_are_counted_never_shown(ids: list[object], rules: tuple[str, ...], words: str) -> None:
    with pytest.raises(AlignmentError, match=words) as caught:
        tokenise(ids, KEY, study_of("ab", rules=rules))
    assert "SECRET7" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_messages_that_lie_are_refused() -> None:
    study = study_of("ab")
    tokens = tokenise(["x", "y", "z"], KEY, study)
    good = report("a", study, tokens)
    backwards = AlignmentReport(good.site, good.study_hash, good.mode, good.n, good.mac, tokens.tokens[::-1].copy())
    with pytest.raises(MessageError, match="not ascending"):
        AlignmentReport.from_bytes(backwards.to_bytes())
    short = AlignmentReport(good.site, good.study_hash, good.mode, 2, good.mac, tokens.tokens)
    with pytest.raises(MessageError, match="2 × 16"):
        AlignmentReport.from_bytes(short.to_bytes())
    wrong = Cohort("a", study.hash, "intersect", 1, np.array([True, False]))
    with pytest.raises(AlignmentError, match="another number of subjects"):
        settle("a", study, tokens, wrong)
    with pytest.raises(AlignmentError, match="not meant for site 'a'"):
        settle("a", study, tokens, Cohort("b", study.hash, "intersect", 1, np.array([True, False, False])))


def test_how_ids_are_written_is_told_without_an_id() -> None:
    assert written(["0007", "0012", "1300"]) == "ids are whole numbers, 2 with leading zeros"
    assert written(np.array([7.0, 12.0])) == "ids are numbers with decimals, 2 ending in .0"
    assert written([7, 12]) == "ids are whole numbers"
    assert written(["p7", "P8 ", "12"]) == "ids are numbers and texts, 1 with spaces around them, 1 with small letters"
    assert written(["p7", "p8"]) == "ids are texts"
    assert written([]) == ""
