"""A table seen through one group of its subjects: only the responses that the group has.

Rows outside of the group are never sketched.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from intarsia.errors import InputError
from intarsia.site.data.missing import Filler
from intarsia.site.data.row_blocks import check_order
from intarsia.site.data.table import Table


class PartTable(Table):
    """All features and covariates of a table, and some of its responses."""

    @classmethod
    def of(cls, table: Table, responses: Sequence[str], order: Any) -> Table:
        """The table itself where the group has every response of every row."""
        from intarsia.site.sketch.sketch import ManyPieces

        if list(responses) == list(table.responses) and len(order) == table.n:
            return table
        if isinstance(table.source, ManyPieces):
            raise InputError("A table that lies in pieces elsewhere has one group of subjects only. Gather it first.")
        part = cls.__new__(cls)
        part.__dict__.update(table.__dict__)
        part._moments, part._missing = None, None
        part._whole = table
        P, Q = len(table.features), len(table.responses)
        part.responses = list(responses)
        kept = [P + table.responses.index(label) for label in responses]
        part._columns = np.array([*range(P), *kept, *range(P + Q, len(table.labels))], dtype=np.intp)
        part._answers = slice(P, P + len(kept))
        part._inside = np.zeros(table.n, dtype=bool)
        part._inside[check_order(order, table.n)] = True
        return part

    _whole: Table
    _columns: np.ndarray
    _answers: slice
    _inside: np.ndarray

    def filler(self) -> Filler | None:
        return None  # the whole table has filled its blocks

    def encoded(self, rows: int | None = None) -> Iterator[np.ndarray]:
        yield from self._seen(self._whole.encoded(rows))

    def raw_blocks(self, rows: int | None = None) -> Iterator[np.ndarray]:
        yield from self._seen(self._whole.raw_blocks(rows))

    def _seen(self, blocks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        at = 0
        for whole in blocks:
            Z = np.array(whole[:, self._columns], dtype=np.float64)
            outside = ~self._inside[at : at + len(Z)]
            answers = Z[:, self._answers]
            answers[outside[:, None] & np.isnan(answers)] = 0.0  # nobody of this group
            at += len(Z)
            yield Z
