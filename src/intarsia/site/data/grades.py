"""Grades that are written as texts ("none", "mild", "severe"): read as their place in a stated order, 1 for the lowest."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from intarsia.errors import InputError
from intarsia.site.data.scores import Scale, ScoredSource
from intarsia.site.data.table import Table

Orders = Mapping[str, Sequence[str]]


def graded(table: Table, orders: Orders) -> Table:
    """The table with these columns of texts as numbers. A text that is not in its order is refused, by count."""
    if not orders:
        return table
    for name, order in orders.items():
        unknown = [text for text in table.levels[name] if text not in order]
        if unknown or len(set(order)) < len(order):
            raise InputError(
                f"Response {name!r}: {len(unknown)} of its {len(table.levels[name])} grades are not in the order given for it, "
                "or one is there twice. Name each grade once, from the lowest to the highest, as it is written in the table."
            )
    old = table.layout
    parts: dict[str, Mapping[str, Any]] = {"levels": old.levels, "reference": old.reference, "codes": old.codes}
    kept: dict[str, Any] = {what: {k: v for k, v in part.items() if k not in orders} for what, part in parts.items()}
    out = copy(table)
    scales = {name: Scale(tuple(order), tuple(float(i + 1) for i in range(len(order)))) for name, order in orders.items()}
    out.source = ScoredSource(table.source, old.text, scales)
    out.layout = replace(old, **kept)
    out.responses = out.layout.labels(out.layout.roles.responses)
    out.missing_rules = {
        label: table.missing_rules[old.labels([name])[0]] if name in orders else table.missing_rules[label]
        for name in old.roles.all
        for label in out.layout.labels([name])
    }
    out._moments, out._missing, out._filler = None, None, None
    return out
