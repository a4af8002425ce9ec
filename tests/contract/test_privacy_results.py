"""docs/privacy.md shows what the kept measurement of the gate says, and the measurement holds what the page claims."""

import json
from pathlib import Path

from experiments import privacy_gate

ROOT = Path(__file__).parents[2]
KEPT = json.loads(privacy_gate.RESULTS.read_text(encoding="utf-8"))


def shown(table: str) -> list[str]:
    """The lines of the table that stands after its mark in the page."""
    text = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    after = text.split(f"<!-- table: {table} -->", 1)[1].strip("\n").splitlines()
    return after[: next(i for i, line in enumerate(after) if not line.startswith("|"))]


def test_the_tables_are_the_kept_results() -> None:
    assert shown("cells") == privacy_gate.table_lines(KEPT["cells"])
    assert shown("limits") == privacy_gate.limit_lines(KEPT["limits"])
    assert shown("elsewhere") == privacy_gate.elsewhere_lines(KEPT["elsewhere"])
    assert len(KEPT["cells"]) == len(privacy_gate.SIZES) * len(privacy_gate.KINDS)


def test_no_attack_without_the_key_succeeds_unnamed() -> None:
    let_through = [c for c in KEPT["cells"] if not c["refused"]]
    for c in let_through:
        for attack, found in c["found"].items():
            named = set(privacy_gate.NAMED_BY[attack]) & set(c["warned"])
            assert named or not privacy_gate.succeeds(attack, found), (c["kind"], c["n"], c["columns"], attack)
    # The same as the measurement itself says, also of what was refused: by a rule that names the attack.
    assert [c for c in KEPT["cells"] if c["unnamed"]] == []
    # The measurement is worth something only if attacks do succeed and some data do pass.
    for attack in privacy_gate.NAMED_BY:
        assert any(privacy_gate.succeeds(attack, c["found"][attack]) for c in KEPT["cells"])
    assert 0 < len(let_through) < len(KEPT["cells"])
    for c in KEPT["elsewhere"]:
        assert c["found"] > 0
        assert all(privacy_gate.EVERYWHERE in gate["warned"] for gate in c["gates"])


def test_the_rule_is_ahead_of_the_attack() -> None:
    assert [c for c in KEPT["limits"] if c["danger"] < 0.3 and c["found"]] == []
    assert sum(c["found"] > 0 for c in KEPT["limits"] if c["danger"] > 2.5) > 5


def test_a_cell_is_measured_as_kept() -> None:
    """One small cell anew: the gate refuses near-duplicates, and the attack finds people in them."""
    found = privacy_gate.cell("near-duplicates", 200, 50, 60)
    assert found["refused"] == ["near-duplicate"]
    assert found["found"]["similar columns"] > 10
    assert found["unnamed"] == []
    apart = privacy_gate.pairs_elsewhere(200, 50, 60)
    assert [gate["refused"] for gate in apart["gates"]] == [[], []]
    assert apart["found"] > 10
    assert all(privacy_gate.EVERYWHERE in gate["warned"] for gate in apart["gates"])


def test_all_safeguards_together_cost_less_than_a_tenth() -> None:
    """As docs/federation.md says of the kept comparison with version 0.1.0."""
    kept = json.loads((ROOT / "experiments" / "results" / "federation_cost.json").read_text(encoding="utf-8"))
    assert kept["commits"]["before"] == "470f568"
    assert len(kept["runs"]["after"]) == len(kept["runs"]["before"]) >= 4
    assert set(kept["ratio_of_medians"]) == {"study_seconds", "steps_seconds", "jobs_processor_seconds"}
    assert max(kept["ratio_of_medians"].values()) < 1.1
