"""Two fits side by side: which coefficients moved, where features are in now and then or never."""

from typing import Any

import pytest

from intarsia.wire.changes import compare


def row(feature: str, effect: float, ends: tuple[float, float], sd: float, **more: Any) -> dict[str, Any]:
    known = {"feature": feature, "role": "feature", "site": "lab", "response": "y", "unit": "sd", "selected": False}
    return known | {"effect": effect, "lower": ends[0], "upper": ends[1], "sd": sd} | more


def test_a_feature_that_is_in_now_and_then_has_not_moved() -> None:
    """Its mean lies outside of its own interval, whose ends are zero."""
    found = compare([row("x", -0.009, (0, 0), 0.05)], [row("x", -0.012, (0, 0), 0.06)])
    assert found.compared == 1
    assert found.outside == []


def test_a_feature_that_was_in_no_draw_and_now_is_has_moved_most() -> None:
    before = [row("x", 0.0, (0, 0), 0.0), row("z", 0.5, (0.4, 0.6), 0.05), row("idle", 0.0, (0, 0), 0.0)]
    after = [row("z", 0.9, (0.8, 1.0), 0.05), row("x", 40.2, (38.5, 41.3), 0.7), row("idle", 0.0, (0, 0), 0.0)]
    found = compare(before, after)
    assert found.compared == 3
    assert [one["feature"] for one in found.outside] == ["x", "z"]
    assert found.outside[0]["moved"] is None
    assert found.outside[1]["moved"] == pytest.approx(8)
    assert any("x on y: 0 (0 to 0) before, 40.2 (38.5 to 41.3) now" in line for line in found.lines())


def test_other_units_and_other_columns_are_not_compared() -> None:
    found = compare([row("x", 1.0, (0.9, 1.1), 0.1), row("old", 1.0, (0, 2), 0.5)], [row("x", 9.0, (8, 10), 0.5, unit="kg")])
    assert found.compared == 0
    assert found.outside == []
