"""A source without some of its rows: people who withdrew are not read, so that nothing made of the table rests on them."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from intarsia.site.data.sources import Batch, Source


class KeptBatch:
    """The kept rows of a batch."""

    def __init__(self, batch: Any, keep: np.ndarray) -> None:
        self.batch, self.keep, self.rows = batch, keep, int(keep.sum())

    def matrix(self, names: Sequence[str]) -> np.ndarray:
        return np.asarray(self.batch.matrix(names)[self.keep])

    def text(self, name: str) -> pa.Array:
        return self.batch.text(name).filter(pa.array(self.keep))

    def bytes(self, names: Sequence[str]) -> np.ndarray:
        return np.asarray(self.batch.bytes(names)[self.keep])


class KeptRows:
    """A source of which some rows are kept (one mark per row)."""

    def __init__(self, source: Source, keep: np.ndarray) -> None:
        self.source, self.keep = source, keep
        self.names, self.kinds, self.n = source.names, source.kinds, int(keep.sum())
        self.packed = bool(getattr(source, "packed", False))

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[Batch]:
        at = 0
        for batch in self.source.batches(columns, rows):
            keep = self.keep[at : at + batch.rows]
            at += batch.rows
            if keep.any():
                yield KeptBatch(batch, keep)
