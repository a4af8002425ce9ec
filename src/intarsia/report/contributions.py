"""The report's section on subjects who lack responses: which groups there are, and what each contributes to."""

from typing import Any

from intarsia.report.gather import Material
from intarsia.report.html import Html, el, join, table
from intarsia.wire.plain import plural


def groups(m: Material) -> Html | None:
    """One row per group and one per response; None where every subject has every response."""
    if not m.groups:
        return None
    rows: list[list[Any]] = [
        [k + 1, f"{group.n:,}", f"{group.m:,}", join([el("bdi", label) for label in group.responses], ", ")]
        for k, group in enumerate(m.groups)
    ]
    by_response: list[list[Any]] = []
    for response in m.responses:
        there = [group for group in m.groups if response in group.responses]
        by_response.append([
            el("bdi", response), f"{sum(group.n for group in there):,}", f"{sum(group.m for group in there):,}",
            ", ".join(str(k + 1) for k, group in enumerate(m.groups) if response in group.responses),
        ])  # fmt: skip
    left = f" {plural(m.dropped, 'subject')} left out: too few have the same responses, or they have none." if m.dropped else ""
    return join([
        el("p", "Subjects are grouped by the responses they have; each group was sketched on its own. In every sweep the "
           "responses that a group lacks are drawn given those it has, and intervals are as wide as what is missing makes them. "
           f"This is right where a response is missing for reasons that the features and the other responses know.{left}"),
        table(["group", "subjects", "sketch rows", "responses"], rows),
        table(["response", "subjects", "sketch rows", "groups"], by_response),
    ])  # fmt: skip
