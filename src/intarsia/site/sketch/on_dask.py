"""A site whose table is larger than one machine: a Dask array or dataframe, sketched by map-reduce of partial sums.

Each partition is summed where it lies (its own columns of Φ from the sub-key), the sums are added in a tree, and
only the m rows of the sketch come back. The cluster must be the site's own: workers see raw rows and the sub-key of
this one sketch.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import dask
import numpy as np

from intarsia.errors import InputError
from intarsia.site.data.sources import NUMBER, ArraySource, ArrowBatch, Batch, FrameSource, kind_of_type
from intarsia.site.data.table import Table
from intarsia.site.sketch.partial import Design, Partial, Progress
from intarsia.site.sketch.sketch import Bound, Work, partial

_FAN_IN = 8  # partial sums added in one task


class DaskSource:
    """The table behind a Dask array (rows × columns) or dataframe, one piece per partition."""

    def __init__(self, collection: Any, names: Sequence[str] | None) -> None:
        self._array = hasattr(collection, "ndim") and hasattr(collection, "chunks")
        if self._array:
            if collection.ndim != 2 or collection.dtype.kind not in "fiub":
                raise InputError("A Dask array must be two-dimensional and of numbers.")
            collection = collection.rechunk({1: -1})
            width = collection.shape[1]
            model = ArraySource(np.empty((0, width), dtype=collection.dtype), names)
            self.names, self.kinds = model.names, model.kinds
        elif hasattr(collection, "to_delayed") and hasattr(collection, "dtypes"):
            self.names = [str(name) for name in collection.columns]
            if len(set(self.names)) != len(self.names):
                raise InputError("Two columns have the same name. Rename one.")
            self.kinds = {}
        else:
            raise InputError(f"A Dask {type(collection).__name__} is no table. Give a Dask array or dataframe.")
        self.collection = collection
        self.lengths = self._survey()
        self.n = int(sum(self.lengths))

    def _survey(self) -> list[int]:
        """Every partition's number of rows; and what each column of a dataframe is, by what the partitions hold: its own types do
        not tell text from objects."""
        if self._array and not any(np.isnan(k) for k in self.collection.chunks[0]):
            return [int(k) for k in self.collection.chunks[0]]
        pieces = self.pieces(self.names)
        if self._array:
            return list(dask.compute(*[dask.delayed(len)(piece) for piece in pieces]))
        found = dask.compute(*[dask.delayed(_look)(piece) for piece in pieces])  # one pass: a partition is read for it
        for name in self.names:
            seen = {kinds[name] for _, kinds in found if kinds is not None}
            self.kinds[name] = seen.pop() if len(seen) == 1 else "mixed types"
        return [length for length, _ in found]

    def pieces(self, columns: Sequence[str]) -> list[Any]:
        """One delayed partition each: a block of the array, or a dataframe with these columns."""
        if self._array:
            return list(self.collection.to_delayed().ravel())
        return list(self.collection[list(columns)].to_delayed())

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[Batch]:
        """Partition by partition through this machine: for ids, levels and other small matters."""
        for piece in self.pieces(columns):
            held = piece.compute()
            if self._array:
                yield from ArraySource(held, self.names).batches(columns, rows)
            elif len(held):
                whole = FrameSource(held).frame.select(list(columns))
                for start in range(0, len(held), rows):
                    yield ArrowBatch(whole[start : start + rows].to_arrow())

    def partial(
        self, table: Table, design: Design, *, positions: Any, gram: bool,
        bound: Bound | None, progress: Progress | None,
    ) -> Partial:  # fmt: skip
        """Sum every partition where it lies and add the sums in a tree."""
        columns = table.layout.roles.all
        starts = np.concatenate([[0], np.cumsum(self.lengths)])
        terms = dask.delayed((table.layout, table.missing_rules, table.filler(), self.names if self._array else None))
        sums = []
        for piece, start, length in zip(self.pieces(columns), starts, self.lengths):
            places = None if positions is None else positions[start : start + length]
            if length and (places is None or (places >= 0).any()):
                sums.append(dask.delayed(_sum)(piece, terms, design, int(start), places, gram, bound))
        if not sums:
            raise InputError("No rows to sketch.")
        while len(sums) > 1:
            sums = [dask.delayed(_add)(sums[a : a + _FAN_IN]) for a in range(0, len(sums), _FAN_IN)]
        found: Partial = sums[0].compute()
        if progress is not None:
            progress(found.moments.rows, design.n)
        return found


def _look(frame: Any) -> tuple[int, dict[str, str] | None]:
    """A partition's rows, and the kinds of its columns where it has any."""
    import pyarrow as pa

    if not len(frame):
        return 0, None
    kinds = {}
    for name in frame.columns:
        if frame[name].dtype.kind in "fiu":  # no need to look at every value
            kinds[str(name)] = NUMBER
            continue
        try:
            kinds[str(name)] = kind_of_type(pa.array(frame[name], from_pandas=True).type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError):
            kinds[str(name)] = "mixed types"
    return len(frame), kinds


def _sum(piece: Any, terms: Any, design: Design, start: int, places: Any, gram: bool, bound: Bound | None) -> Partial:
    layout, missing, filler, names = terms
    source: Any
    if names is None and all(isinstance(kind, np.dtype) and kind.kind in "fiu" for kind in piece.dtypes):
        # Plain numbers: the columns' way through Arrow, one by one, takes longer than the sketch.
        piece, names = piece.to_numpy(dtype=np.float64), [str(name) for name in piece.columns]
    source = ArraySource(piece, names) if names is not None else FrameSource(piece)
    table = Table(source, layout, missing=missing, constant="drop", filler=filler)
    return partial(table, design, start=start, positions=places, gram=gram, bound=bound, work=Work(threads=1))


def _add(sums: list[Partial]) -> Partial:
    total = sums[0]
    for other in sums[1:]:
        total = total.merge(other)
    return total
