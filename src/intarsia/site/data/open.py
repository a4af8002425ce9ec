"""From what the site names as its table (a path, several, a database, a dataframe, an array) to the source that reads it."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from intarsia.errors import InputError, of_the_system
from intarsia.site.data.csv_source import CsvSource
from intarsia.site.data.matrices import MatrixSource
from intarsia.site.data.plink import PlinkSource
from intarsia.site.data.reading import DATABASES, Reading
from intarsia.site.data.sources import ArraySource, FeatherSource, FrameSource, ManySource, ParquetSource, Source

_READS = ".parquet, .csv, .tsv (also .gz), .feather, .arrow, .npy, .sqlite, .duckdb, .bed, .pgen, .bgen, .zarr or .h5 file"
_ELSEWHERE = {
    ".xlsx": "an Excel sheet", ".xls": "an Excel sheet", ".ods": "a spreadsheet", ".sav": "an SPSS file", ".dta": "a Stata file",
    ".sas7bdat": "a SAS file", ".rds": "an R file", ".rda": "an R file", ".rdata": "an R file", ".mat": "a MATLAB file",
    ".pkl": "a pickled object", ".pickle": "a pickled object",
}  # fmt: skip
_SQLITE, _DUCKDB = (".sqlite", ".sqlite3", ".db"), (".duckdb", ".ddb")
_COMPRESSED = (".gz", ".zst", ".bz2")


@dataclass(frozen=True)
class Queried:
    """A database and the rows to read from it, in place of those that the site's settings name."""

    place: str
    query: str


def open_source(source: Any, names: Sequence[str] | None = None, reading: Reading | None = None) -> Source:
    """The source behind what the user gave: a path, several paths, a database, an array, a dataframe, a dict of columns."""
    reading = reading or Reading()
    if isinstance(source, Queried):
        source, reading = source.place, replace(reading, query=source.query)
    if isinstance(source, str | os.PathLike):
        return _open_one(str(source), names, reading)
    if isinstance(source, list | tuple) and source and all(isinstance(s, str | os.PathLike) for s in source):
        opened = [_open_one(str(s), names, reading) for s in source]
        return ManySource(opened) if len(opened) > 1 else opened[0]
    if isinstance(source, np.ndarray):
        return ArraySource(source, names)
    if type(source).__module__.split(".")[0] in ("dask", "dask_expr"):
        from intarsia.site.sketch.on_dask import DaskSource

        return DaskSource(source, names)
    if isinstance(source, dict):
        try:
            source = pa.table(source)
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError):
            raise InputError("The dict is not a table: give columns of one length, each of one type.") from None
    return FrameSource(source)


def _open_one(place: str, names: Sequence[str] | None, reading: Reading) -> Source:
    if place.startswith(DATABASES):
        from intarsia.site.data.databases import DatabaseSource
        from intarsia.site.data.postgresql import PostgreSQL

        return DatabaseSource(PostgreSQL(place, reading), reading)
    return _open_file(Path(place), names, reading)


def _open_file(path: Path, names: Sequence[str] | None, reading: Reading) -> Source:
    plain = path.with_suffix("") if path.suffix in _COMPRESSED else path
    kind = plain.suffix.lower()
    if not path.exists():
        raise InputError(f"There is no file {path}. In site.toml a relative path counts from the site's folder.")
    if path.is_file():
        try:
            path.open("rb").close()
        except OSError as error:  # before a library says it in its own way
            raise InputError(of_the_system(error)) from None
    if kind in (*_SQLITE, *_DUCKDB):
        from intarsia.site.data.databases import DatabaseSource
        from intarsia.site.data.local_databases import DuckDB, SQLite

        return DatabaseSource(SQLite(path) if kind in _SQLITE else DuckDB(path), reading)
    if kind == ".bed":
        return PlinkSource(path)
    if kind in (".pgen", ".bgen"):
        from intarsia.site.data.dosages import BgenSource, PgenSource

        return PgenSource(path) if kind == ".pgen" else BgenSource(path)
    readers: dict[str, Callable[[], Source]] = {
        ".parquet": lambda: ParquetSource(path), ".pq": lambda: ParquetSource(path), ".feather": lambda: FeatherSource(path),
        ".arrow": lambda: FeatherSource(path), ".ipc": lambda: FeatherSource(path), ".csv": lambda: CsvSource(path, reading),
        ".tsv": lambda: CsvSource(path, reading), ".zarr": lambda: MatrixSource(path, reading),
        ".h5": lambda: MatrixSource(path, reading), ".hdf5": lambda: MatrixSource(path, reading),
        ".npy": lambda: ArraySource(np.load(path, mmap_mode="r", allow_pickle=False), names, path),
    }  # fmt: skip
    try:
        if kind in readers and (plain is path or kind in (".csv", ".tsv")):
            return readers[kind]()
    except (pa.ArrowException, ValueError, EOFError, OSError) as error:
        if isinstance(error, InputError):
            raise
        # The library's own words may quote a cell, so only the kind of trouble is passed on.
        raise InputError(f"{path} cannot be read as {kind} ({type(error).__name__}). Check that the file is whole.") from None
    if kind in _ELSEWHERE:
        raise InputError(
            f"{path} is {_ELSEWHERE[kind]}, which intarsia does not read. Save the table as CSV or Parquet and give that."
        )
    raise InputError(f"{path} is of no type intarsia reads. Give a {_READS}.")
