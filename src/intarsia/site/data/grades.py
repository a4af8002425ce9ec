"""Grades that are written as texts ("none", "mild", "severe"): read as their place in a stated order, 1 for the lowest."""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from intarsia.errors import InputError
from intarsia.site.data.layout import Layout
from intarsia.site.data.sources import NUMBER, Batch, Source
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
    out.source = GradedSource(table.source, old, orders)
    out.layout = replace(old, **kept)
    out.responses = out.layout.labels(out.layout.roles.responses)
    out.missing_rules = {
        label: table.missing_rules[old.labels([name])[0]] if name in orders else table.missing_rules[label]
        for name in old.roles.all
        for label in out.layout.labels([name])
    }
    out._moments, out._missing, out._filler = None, None, None
    return out


class GradedBatch:
    """A batch whose columns of grades are numbers."""

    def __init__(self, batch: Any, layout: Layout, orders: Orders) -> None:
        self.batch, self.layout, self.orders, self.rows = batch, layout, orders, batch.rows

    def matrix(self, names: Sequence[str]) -> np.ndarray:
        numbers = [name for name in names if name not in self.orders]
        if len(numbers) == len(names):
            return np.asarray(self.batch.matrix(names))
        plain = self.batch.matrix(numbers) if numbers else np.empty((self.rows, 0))
        at = {name: j for j, name in enumerate(numbers)}
        return np.column_stack([self._grades(name) if name in self.orders else plain[:, at[name]] for name in names])

    def _grades(self, name: str) -> np.ndarray:
        place = pc.index_in(self.layout.text(self.batch, name), value_set=pa.array(self.orders[name], pa.string()))
        return np.asarray(pc.add(pc.cast(place, pa.float64()), 1.0).to_numpy(zero_copy_only=False), dtype=np.float64)

    def text(self, name: str) -> pa.Array:
        return self.batch.text(name)


class GradedSource:
    """A source some of whose columns of texts are read as grades."""

    def __init__(self, source: Source, layout: Layout, orders: Orders) -> None:
        self.source, self.layout, self.orders = source, layout, orders
        self.names, self.n = source.names, source.n
        self.kinds = {**source.kinds, **dict.fromkeys(orders, NUMBER)}

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[Batch]:
        for batch in self.source.batches(columns, rows):
            yield GradedBatch(batch, self.layout, self.orders)
