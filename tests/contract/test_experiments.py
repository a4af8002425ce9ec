"""The code behind the kept results: what it sums up is right, every rival answers, and rows are kept one a line."""

import json
from pathlib import Path

import numpy as np
import pytest
from experiments import compare, genotypes, kept, slow
from experiments.rivals import knockoff, ours, stability
from experiments.rivals.answer import Answer

from intarsia.cli import lab, main


def line(evidence: list[tuple[float, int]], true: int) -> dict[str, object]:
    return {"true": true, "evidence": evidence}


def test_power_at_a_realised_rate_by_hand() -> None:
    """Nineteen true ones and a false one are 5 % false; the next false one is too many, whatever comes after it."""
    rows = [line([(1 - k / 100, 1) for k in range(19)] + [(0.5, 0), (0.4, 0), (0.3, 1)], 25)]
    assert compare.at_realised(rows) == pytest.approx(19 / 25)
    assert compare.at_realised([line([(0.9, 0), (0.8, 1)], 2)]) == 0.0
    assert compare.at_realised([line([], 2)]) is None


def test_a_threshold_takes_all_that_are_as_large() -> None:
    """A method that says the same of a true and of a false feature cannot have the one without the other."""
    assert compare.at_realised([line([(0.9, 1), (0.8, 1), (0.8, 0)], 2)]) == pytest.approx(0.5)


def test_a_row_counts_what_an_answer_is_worth() -> None:
    rng = np.random.default_rng(1)
    X, C = rng.standard_normal((50, 4)), np.zeros((4, 2))
    C[0], C[1] = [1.0, 0.5], [0.0, 1.0]
    found = Answer(np.array([0.9, 0.2, 0.8, 0.0]), np.array([True, False, True, False]), C, [np.array([0, 1]), np.array([2, 3])])
    found.lower, found.upper = C - 1, C + 1
    row = compare.row(found, X, C, rng.standard_normal((30, 4)))
    assert (row["found"], row["false"], row["sets"], row["false_sets"]) == (1, 1, 2, 1)
    assert row["evidence"] == [[0.9, 1], [0.8, 0], [0.2, 1]]
    assert (row["r2"], row["error"], row["intervals"], row["covering"]) == (1.0, 0.0, 2, 2)


@pytest.mark.parametrize("design", list(compare.DESIGNS))
def test_designs_are_what_they_are_called(design: str) -> None:
    X, Y, C, new = compare.simulate(design, 1)
    wanted = compare.DESIGNS[design]
    assert X.shape == (wanted.n, wanted.P)
    assert Y.shape == (wanted.n, wanted.Q)
    assert new.shape == (compare.NEW, wanted.P)
    assert C.any(axis=1).sum() == wanted.s
    assert np.abs(X.mean(axis=0)).max() < 1e-12
    sketch = compare.ways(design, X, Y, 1)["sketch"]
    assert [len(part) for part in sketch] == [wanted.m] * 2


def test_copied_haplotypes_have_alleles_in_disequilibrium() -> None:
    X = genotypes._copied(300, 40, 1)
    assert set(np.unique(X)) == {0.0, 1.0, 2.0}
    near, far = (np.abs([np.corrcoef(X[:, p], X[:, p + k])[0, 1] for p in range(20)]).mean() for k in (1, 20))
    assert near > far + 0.1


@pytest.mark.parametrize(("method", "true"), [(ours.answer, 5), (stability.answer, 3), (knockoff.answer, 5)])
def test_every_rival_finds_what_is_plain(method, true) -> None:
    """Of twelve features stability selection takes three at most."""
    rng = np.random.default_rng(2)
    X = rng.standard_normal((150, 12))
    X -= X.mean(axis=0)
    Y = X[:, :true] @ np.full((true, 2), 1.0) + 0.5 * rng.standard_normal((150, 2))
    found = method(X, Y - Y.mean(axis=0), 1)
    assert found.evidence[:true].min() > found.evidence[true:].max()
    assert found.chosen[:true].all()


def test_rows_are_kept_one_a_line(tmp_path: Path) -> None:
    found = {"date": "today", "rows": [{"a": 1}, {"a": [1, 2]}], "parts": {"x": {"b": 1}, "y": {"b": 2}}, "plain": [1, 2]}
    kept.keep(tmp_path / "one.json", found)
    text = (tmp_path / "one.json").read_text()
    assert json.loads(text) == found
    assert '{"a": [1, 2]}' in text.splitlines()
    kept.keep(tmp_path / "one.jsonl", found["rows"])
    assert kept.read_rows(tmp_path / "one.jsonl") == found["rows"]


def test_a_part_of_the_slow_suite_leaves_the_rows_of_the_rest(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(
        '<testsuites><testsuite><testcase classname="tests.exact.test_a" name="x" time="1.5"/>'
        '<testcase classname="tests.exact.test_a" name="y" time="2"><failure/></testcase></testsuite></testsuites>'
    )
    new = slow.outcome(tmp_path / "report.xml")
    assert new == {"tests/exact/test_a.py": {"tests": 2, "failed": 1, "skipped": 0, "seconds": 3.5}}
    before = [{"file": "tests/exact/test_a.py", "failed": 0}, {"file": "tests/exact/test_b.py", "failed": 0}]
    rows = slow.together(before, new, {"commit": "abc"}, whole=False)
    assert [row["file"] for row in rows] == ["tests/exact/test_a.py", "tests/exact/test_b.py"]
    assert (rows[0]["failed"], rows[0]["commit"]) == (1, "abc")
    assert len(slow.together(before, new, {"commit": "abc"}, whole=True)) == 1


def test_the_lab_says_where_it_is_to_be_had(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In an installation without a checkout, whatever is asked of it."""
    assert lab.checkout() == Path(__file__).parents[2]
    monkeypatch.setattr(lab, "checkout", lambda: None)
    assert main(["lab", "run", "sim1", "--size", "smoke"]) == 2
    told = capsys.readouterr().err
    assert "checkout" in told
    assert "pip install -e" in told
