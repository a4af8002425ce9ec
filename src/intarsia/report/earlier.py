"""The report's section on a study that was fitted again: what happened, and effects of both fits side by side."""

from collections.abc import Mapping
from typing import Any

from intarsia.report.gather import Material
from intarsia.report.html import Html, el, join, number, table
from intarsia.wire.changes import how_far

LISTED = 40  # coefficients side by side


def changes(m: Material) -> Html | None:
    """Selected before or now, and whatever moved out of its earlier interval; None for a study fitted once."""
    found = m.changes
    if found is None:
        return None
    chosen = list(found.noteworthy.rows)
    chosen.sort(key=lambda row: (not row["outside"], -how_far(row) if row["outside"] else 0.0))
    rows: list[list[Any]] = [
        [
            el("bdi", row["feature"]), el("bdi", row["response"]), _effect(row, "before"), _effect(row, "after"),
            _yes(row["selected_before"]), _yes(row["selected_after"]), "outside" if row["outside"] else "",
        ]
        for row in chosen[:LISTED]
    ]  # fmt: skip
    head = ["feature", "response", "effect before", "effect now", "selected before", "selected now", "earlier interval"]
    more = f" {len(chosen) - LISTED:,} more are in the table of `intarsia study changes`." if len(chosen) > LISTED else ""
    return join([
        el("ul", *(el("li", line.strip()) for line in found.lines() if not line.startswith("  "))),
        el("p", "Both fits rest on much of the same data: what moved is described here and is not tested. Effects are in "
           f"standard deviations, unless scales are shared.{more}", class_="note"),
        table(head, rows) if rows else None,
    ])  # fmt: skip


def _effect(row: Mapping[str, Any], when: str) -> str:
    if row[when] is None:
        return "–"
    return f"{number(row[when])} ({number(row[f'{when}_lower'])} to {number(row[f'{when}_upper'])})"


def _yes(value: bool | None) -> str:
    return "–" if value is None else "yes" if value else "no"
