"""Where a site's columns come from, always read in row blocks: here arrays, dataframes, Arrow, Parquet, Feather and .npy.

A source knows its column names, how each can be used ("number", "level" or another type's name) and its number of
rows, and gives batches. A batch gives some columns as a float64 matrix (missing is NaN) or one column as text
(missing is null).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from intarsia.errors import InputError

NUMBER, LEVEL = "number", "level"


class Batch(Protocol):
    rows: int

    def matrix(self, names: Sequence[str]) -> np.ndarray: ...

    def text(self, name: str) -> pa.Array: ...


class Source(Protocol):
    names: list[str]
    kinds: dict[str, str]
    n: int

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[Batch]: ...


def kind_of_type(kind: pa.DataType) -> str:
    """What an Arrow type is good for."""
    types = pa.types
    if types.is_dictionary(kind):
        return LEVEL
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind):
        return NUMBER
    if types.is_null(kind):
        return NUMBER
    if str(kind) in ("string", "large_string", "string_view"):
        return LEVEL
    if types.is_date(kind):
        return "dates"
    if types.is_temporal(kind):
        return "times or lengths of time" if types.is_time(kind) or types.is_duration(kind) else "dates with times"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return "binary data"
    if types.is_nested(kind):
        return "lists or records"
    return str(kind)


def to_float(column: Any) -> np.ndarray:
    """An Arrow column of numbers as float64, nulls as NaN."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if not pa.types.is_float64(column.type):
        column = pc.cast(column, pa.float64(), safe=False)
    return column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column.to_numpy()


def to_text(column: Any) -> pa.Array:
    """An Arrow column as text: whole numbers without a point, nulls kept."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_floating(column.type):
        # Cell by cell, so that a value has the same text in every batch.
        wide = pc.cast(column, pa.float64())
        wide = pc.if_else(pc.is_nan(wide), pa.scalar(None, pa.float64()), wide)
        number = pc.cast(pc.if_else(pc.less(pc.abs(wide), 2.0**53), wide, 0.5), pa.int64(), safe=False)
        whole = pc.equal(pc.cast(number, pa.float64()), wide)
        return pc.if_else(whole, pc.cast(number, pa.string()), pc.cast(wide, pa.string()))
    return pc.cast(column, pa.string())


class ArrowBatch:
    """A batch that holds an Arrow table or record batch."""

    def __init__(self, data: Any) -> None:
        self.data, self.rows = data, data.num_rows

    def matrix(self, names: Sequence[str]) -> np.ndarray:
        out = np.empty((self.rows, len(names)), order="F")
        for j, name in enumerate(names):
            out[:, j] = to_float(self.data.column(name))
        return out

    def text(self, name: str) -> pa.Array:
        return to_text(self.data.column(name))


class ArrayBatch:
    """A batch cut from a numeric matrix."""

    def __init__(self, block: np.ndarray, index: dict[str, int]) -> None:
        self.block, self.index, self.rows = block, index, len(block)

    def matrix(self, names: Sequence[str]) -> np.ndarray:
        columns = [self.index[name] for name in names]
        if columns and columns == list(range(columns[0], columns[0] + len(columns))):
            return np.asarray(self.block[:, columns[0] : columns[0] + len(columns)], dtype=np.float64)
        return np.asarray(self.block[:, columns], dtype=np.float64)

    def text(self, name: str) -> pa.Array:
        return to_text(pa.array(np.ascontiguousarray(self.block[:, self.index[name]])))


class ArraySource:
    """A two-dimensional array of numbers in memory, or an .npy file read block by block."""

    def __init__(self, array: np.ndarray, names: Sequence[str] | None, path: Path | None = None) -> None:
        if array.ndim != 2 or array.dtype.kind not in "fiub":
            raise InputError(
                f"An array must be two-dimensional and of numbers; this one has {array.ndim} dimensions and type "
                f"{array.dtype}. Give rows as subjects and columns as variables, or a dataframe."
            )
        self.array, self.path = array, path
        self.n, columns = array.shape
        width = len(str(columns))
        self.names = [f"x{j + 1:0{width}d}" for j in range(columns)] if names is None else list(map(str, names))
        if len(self.names) != columns:
            raise InputError(f"The array has {columns} columns, {len(self.names)} names came. Give one name per column.")
        self.kinds = dict.fromkeys(self.names, NUMBER)
        self._index = {name: j for j, name in enumerate(self.names)}

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[Batch]:
        for start in range(0, self.n, rows):
            yield ArrayBatch(self._block(start, min(start + rows, self.n)), self._index)

    def _block(self, start: int, stop: int) -> np.ndarray:
        if self.path is None or not isinstance(self.array, np.memmap) or not self.array.flags.c_contiguous:
            return self.array[start:stop]
        # Read rather than mapped: pages of a map count as this process's memory until the system wants them back.
        width = self.array.shape[1]
        offset = self.array.offset + start * width * self.array.dtype.itemsize
        block = np.fromfile(self.path, self.array.dtype, (stop - start) * width, offset=offset)
        if block.size != (stop - start) * width:
            raise InputError(f"{self.path} is shorter than its header says. Write it again.")
        return block.reshape(stop - start, width)


class FrameSource:
    """A dataframe of any library narwhals knows, or an Arrow table; sliced, never converted whole."""

    def __init__(self, frame: Any) -> None:
        import narwhals as nw

        try:
            self.frame = nw.from_native(frame, eager_only=True)
        except TypeError:
            raise InputError(
                f"A {type(frame).__name__} is not a table intarsia reads. Give a dataframe (pandas, polars, Arrow, …), "
                "a two-dimensional NumPy array, or the path of a .parquet, .csv(.gz), .feather, .arrow or .npy file."
            ) from None
        except Exception as error:  # pandas refuses duplicate names by an error of its own
            if "uplicate" in type(error).__name__ or "unique" in str(error):
                raise InputError("Two columns have the same name. Rename one.") from None
            raise InputError(f"The dataframe cannot be used: {type(error).__name__}.") from None
        self.names = list(self.frame.columns)
        self.n = len(self.frame)
        self.kinds = {}
        for name in self.names:
            # Decided on all rows: an object column of pandas shows its type only when it is looked at.
            try:
                self.kinds[name] = kind_of_type(self.frame.select(name).to_arrow().column(0).type)
            except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError):
                self.kinds[name] = "mixed types"

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[Batch]:
        wanted = self.frame.select(list(columns))
        for start in range(0, self.n, rows):
            yield ArrowBatch(wanted[start : start + rows].to_arrow())


class ParquetSource:
    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self.path = path
        self.file = pq.ParquetFile(path, pre_buffer=False)
        schema = self.file.schema_arrow
        self.names, self.n = list(schema.names), self.file.metadata.num_rows
        self.kinds = {field.name: kind_of_type(field.type) for field in schema}

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[Batch]:
        import pyarrow.parquet as pq

        # A fresh reader each time: two passes at once (read-ahead) must not share one file position.
        for batch in pq.ParquetFile(self.path, pre_buffer=False).iter_batches(rows, columns=list(columns)):
            yield ArrowBatch(batch)
            del batch
        pa.default_memory_pool().release_unused()  # or a site holds on to as much as a pass needed


class FeatherSource:
    """Arrow IPC files (Feather version 2), mapped and read batch by batch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with pa.memory_map(str(path)) as handle, pa.ipc.open_file(handle) as reader:
            schema = reader.schema
            self.n = sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))
        self.names = list(schema.names)
        self.kinds = {field.name: kind_of_type(field.type) for field in schema}

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[Batch]:
        with pa.memory_map(str(self.path)) as handle, pa.ipc.open_file(handle) as reader:
            for i in range(reader.num_record_batches):
                batch = reader.get_batch(i).select(list(columns))
                for start in range(0, batch.num_rows, rows):
                    yield ArrowBatch(batch.slice(start, rows))


class ManySource:
    """Several stores of one site, one after the other, with the same columns in any order."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self.names = sources[0].names
        for source in sources[1:]:
            if set(source.names) != set(self.names):
                differing = sorted(set(source.names) ^ set(self.names))[:5]
                raise InputError(
                    f"The files do not have the same columns; {', '.join(differing)} is in some only. "
                    "Bring them to the same columns first."
                )
        self.n = sum(source.n for source in sources)
        self.kinds = {}
        for name in self.names:
            found = {source.kinds[name] for source in sources}
            self.kinds[name] = found.pop() if len(found) == 1 else LEVEL if found == {NUMBER, LEVEL} else "mixed types"

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[Batch]:
        for source in self.sources:
            yield from source.batches(columns, rows)


def read_as_text(source: Source, name: str) -> None:
    """Let a CSV column keep its text: ids such as 007 are no numbers."""
    from intarsia.site.data.csv_source import CsvSource

    for one in source.sources if isinstance(source, ManySource) else [source]:
        if isinstance(one, CsvSource):
            one.kinds[name] = LEVEL
    if isinstance(source, CsvSource | ManySource) and source.kinds[name] == NUMBER:
        source.kinds[name] = LEVEL
