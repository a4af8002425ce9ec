"""A matrix in a zarr or HDF5 file, subjects in rows, read in row blocks.

The file holds one two-dimensional array of numbers (`dataset` says which, where there are several). A list of as many texts as
it has columns names them (`names` says which; else x1, x2, …). Every other list of as many entries as there are subjects is a
column of its own, under its own name: ids, outcomes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from intarsia.errors import InputError
from intarsia.site.data.reading import Reading
from intarsia.site.data.sources import LEVEL, NUMBER, Batch, to_text

_NUMBERS = "fiub"


class MatrixBatch:
    def __init__(self, block: np.ndarray, index: dict[str, int], beside: dict[str, np.ndarray]) -> None:
        self.block, self.index, self.beside, self.rows = block, index, beside, len(block)

    def matrix(self, names: Sequence[str]) -> np.ndarray:
        out = np.empty((self.rows, len(names)), order="F")
        inside = [name for name in names if name in self.index]
        if len(inside) == len(names):
            return np.asarray(self.block[:, [self.index[name] for name in names]], dtype=np.float64)
        for j, name in enumerate(names):
            out[:, j] = self.block[:, self.index[name]] if name in self.index else self.beside[name]
        return out

    def text(self, name: str) -> pa.Array:
        if name in self.beside:
            values = self.beside[name]
            return pa.array([str(v) for v in values], pa.string()) if values.dtype == object else to_text(pa.array(values))
        return to_text(pa.array(np.ascontiguousarray(self.block[:, self.index[name]])))


class MatrixSource:
    def __init__(self, path: Path, reading: Reading) -> None:
        self.path, self.reading = path, reading
        with _arrays(path) as arrays:
            self._survey(arrays)

    def _survey(self, arrays: dict[str, Any]) -> None:
        path, reading = self.path, self.reading
        tables = {name: array for name, array in arrays.items() if len(array.shape) == 2 and array.dtype.kind in _NUMBERS}
        self.dataset = reading.dataset or (next(iter(tables)) if len(tables) == 1 else "")
        if self.dataset not in tables:
            known = ", ".join(sorted(tables)[:10]) or "none"
            raise InputError(f'{path}: say which matrix of numbers to read with dataset = "…". There: {known}.')
        matrix = tables[self.dataset]
        self.n, columns = (int(k) for k in matrix.shape)
        lists = {name: array for name, array in arrays.items() if len(array.shape) == 1}
        self.columns = self._column_names(lists, columns)
        beside = {name: array for name, array in lists.items() if array.shape[0] == self.n and name != self._names_from}
        self.names = [*beside, *self.columns]
        self.kinds = {name: NUMBER if array.dtype.kind in _NUMBERS else LEVEL for name, array in beside.items()}
        self.beside = set(beside)
        self.kinds |= dict.fromkeys(self.columns, NUMBER)
        self._index = {name: j for j, name in enumerate(self.columns)}
        # Rows are read in whole chunks: a chunk read twice is unpacked twice.
        self._chunk = int((matrix.chunks or (1,))[0])

    def _column_names(self, lists: dict[str, Any], columns: int) -> list[str]:
        fit = [name for name, array in lists.items() if array.shape[0] == columns and array.dtype.kind not in _NUMBERS]
        self._names_from = self.reading.names or (fit[0] if len(fit) == 1 and columns != self.n else "")
        if self.reading.names and self.reading.names not in fit:
            raise InputError(
                f"{self.path}: {self.reading.names!r} is no list of {columns} texts, one for each column of the matrix."
            )
        if not self._names_from:
            width = len(str(columns))
            return [f"x{j + 1:0{width}d}" for j in range(columns)]
        return [_text(name) for name in lists[self._names_from][:]]

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[Batch]:
        with _arrays(self.path) as arrays:
            yield from self._blocks(arrays, columns, rows)

    def _blocks(self, arrays: dict[str, Any], columns: Sequence[str], rows: int) -> Iterator[Batch]:
        matrix = arrays[self.dataset]
        beside = {name: _column(arrays[name][:]) for name in columns if name in self.beside}
        wanted = [self._index[name] for name in columns if name in self._index]
        held = max(rows // self._chunk, 1) * self._chunk
        for start in range(0, self.n, held):
            stop = min(start + held, self.n)
            block = np.asarray(matrix[start:stop, :]) if wanted else np.empty((stop - start, 0))
            for a in range(start, stop, rows):
                b = min(a + rows, stop)
                yield MatrixBatch(block[a - start : b - start], self._index, {name: c[a:b] for name, c in beside.items()})


@contextmanager
def _arrays(path: Path) -> Iterator[dict[str, Any]]:
    """Every array of the file by its path inside it, while it is open."""
    found: dict[str, Any] = {}
    if path.suffix.lower() == ".zarr" or path.is_dir():
        try:
            import zarr
        except ImportError:
            raise InputError("Reading zarr needs its package: pip install 'intarsia[zarr]'.") from None
        root = zarr.open(str(path), mode="r")
        members = root.members(max_depth=None) if hasattr(root, "members") else [("", root)]
        yield {name: member for name, member in members if hasattr(member, "shape")}
        return
    import h5py

    with h5py.File(path, "r") as file:
        file.visititems(lambda name, item: found.__setitem__(name, item) if isinstance(item, h5py.Dataset) else None)
        yield found


def _column(values: np.ndarray) -> np.ndarray:
    return values if values.dtype.kind in _NUMBERS else np.array([_text(v) for v in values], dtype=object)


def _text(value: Any) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)
