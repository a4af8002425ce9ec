"""Categories in order, read as numbers: "never", "sometimes", "often" as 1, 2, 3, or as scores that the site gives them.

A feature or covariate says so by a rule of its own (order, scores); a response by its kind (grades.py).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from intarsia.errors import InputError
from intarsia.site.data.column_rules import Rules
from intarsia.site.data.sources import NUMBER, Batch, Source
from intarsia.wire.plain import plural

Text = Callable[[Any, str], pa.Array]  # a batch's column as text, codes for "missing" as nulls


@dataclass(frozen=True)
class Scale:
    """The categories from the lowest to the highest, and the number that each is read as."""

    order: tuple[str, ...]
    scores: tuple[float, ...]

    def read(self, column: pa.Array, name: str) -> np.ndarray:
        place = pc.index_in(column, value_set=pa.array(self.order, pa.string()))
        unknown = place.null_count - column.null_count
        if unknown:
            raise InputError(
                f"Column {name!r} has {plural(unknown, 'cell')} that its order of {len(self.order)} categories does not name. "
                "Name each category once, as it is written in the table; codes for missing go under missing_codes."
            )
        index = place.fill_null(-1).to_numpy(zero_copy_only=False)
        return np.where(index < 0, np.nan, np.array(self.scores)[index])


class ScoredBatch:
    """A batch some of whose columns of categories are numbers."""

    def __init__(self, batch: Any, text: Text, scales: Mapping[str, Scale]) -> None:
        self.batch, self.read, self.scales, self.rows = batch, text, scales, batch.rows

    def matrix(self, names: Sequence[str]) -> np.ndarray:
        numbers = [name for name in names if name not in self.scales]
        if len(numbers) == len(names):
            return np.asarray(self.batch.matrix(names))
        plain = self.batch.matrix(numbers) if numbers else np.empty((self.rows, 0))
        at = {name: j for j, name in enumerate(numbers)}
        return np.column_stack([self._scored(name) if name in self.scales else plain[:, at[name]] for name in names])

    def _scored(self, name: str) -> np.ndarray:
        return self.scales[name].read(self.read(self.batch, name), name)

    def text(self, name: str) -> pa.Array:
        return self.batch.text(name)


class ScoredSource:
    """A source some of whose columns of categories are read as numbers."""

    def __init__(self, source: Source, text: Text, scales: Mapping[str, Scale]) -> None:
        self.source, self.text, self.scales = source, text, scales
        self.names, self.n = source.names, source.n
        self.kinds = {**source.kinds, **dict.fromkeys(scales, NUMBER)}

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[Batch]:
        for batch in self.source.batches(columns, rows):
            yield ScoredBatch(batch, self.text, self.scales)


def by_rules(source: Source, rules: Rules, responses: Sequence[str]) -> Source:
    """The source with the columns that have an order read as numbers."""
    if not any(rule.order for rule in rules.columns.values()):
        return source
    scales = {name: Scale(rule.order, rule.scores) for name in source.names if (rule := rules.at(name)).order}
    for name in scales:
        if name in responses:
            raise InputError(
                f"Column {name!r} is a response: its order is said with its kind, "
                f'kinds = {{ {name} = {{ kind = "ordinal", order = […] }} }}.'
            )

    def text(batch: Any, name: str) -> pa.Array:
        column, codes = batch.text(name), pa.array(rules.codes(name), pa.string())
        return pc.if_else(pc.is_in(column, value_set=codes), pa.scalar(None, pa.string()), column)

    return ScoredSource(source, text, scales)
