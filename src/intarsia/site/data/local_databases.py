"""SQLite (through ADBC) and DuckDB files, opened for reading only."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from intarsia.errors import InputError
from intarsia.site.data.databases import quoted, trouble
from intarsia.site.data.sources import LEVEL, NUMBER

_NUMBERS = re.compile(r"(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|REAL|DOUBLE|DECIMAL\(.*\)|BOOLEAN)$")
_TEXTS = re.compile(r"(VARCHAR|CHAR|UUID|ENUM\(.*\))$", re.DOTALL)
_CELLS = ("'integer', 'real'", "'text'", "'blob'")
_MEMORY = "1GB"  # what DuckDB may hold of its own while it puts rows in order
_MOST_TABLES = 12  # named where a query is missing
_COLUMNS_AT_ONCE = 400  # SQLite gives at most 2,000 results per query


class SQLite:
    """A SQLite file. Its cells have types of their own, so that what a column is follows from all of them."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, f"SQLite {path}"

    def _open(self) -> Any:
        try:
            from adbc_driver_sqlite import dbapi
        except ImportError:
            raise InputError("Reading SQLite needs its driver: pip install 'intarsia[sqlite]'.") from None
        try:
            connection = dbapi.connect(f"file:{quote(str(self.path.resolve()))}?mode=ro")
            return connection, connection.cursor()
        except Exception as error:
            raise trouble(self.name, error) from None

    def tables(self) -> list[str]:
        connection, cursor = self._open()
        try:
            cursor.execute(f"SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name LIMIT {_MOST_TABLES}")
            return [str(row[0]) for row in cursor.fetchall()]
        except Exception as error:
            raise trouble(self.name, error) from None
        finally:
            cursor.close()
            connection.close()

    def describe(self, query: str) -> list[tuple[str, str]]:
        connection, cursor = self._open()
        try:
            cursor.execute(f"SELECT * FROM ({query}) AS q LIMIT 0")
            names = [column[0] for column in cursor.description]
            found: dict[str, str] = {}
            for start in range(0, len(names), _COLUMNS_AT_ONCE):
                some = names[start : start + _COLUMNS_AT_ONCE]
                counts = ", ".join(f"SUM(typeof({quoted(name)}) IN ({kind}))" for name in some for kind in _CELLS)
                cursor.execute(f"SELECT {counts} FROM ({query}) AS q")
                row = cursor.fetchone()
                found |= {name: _cells(*row[3 * i : 3 * i + 3]) for i, name in enumerate(some)}
        except Exception as error:
            raise trouble(self.name, error, self.tables) from None
        finally:
            cursor.close()
            connection.close()
        return list(found.items())

    def cast(self, column: str, kind: str) -> str:
        return f"CAST({quoted(column)} AS {'TEXT' if kind == LEVEL else 'REAL'})"

    def stream(self, query: str, columns: Sequence[tuple[str, str, str]], order: str, rows: int) -> Iterator[pa.RecordBatch]:
        # The driver takes a column's type from its first row, where a missing value has none: a made-up first row gives it.
        first = ", ".join(f"{repr('') if kind == LEVEL else '0.5'} AS {quoted(name)}" for _, name, kind in columns)
        chosen = ", ".join(sql for sql, _, _ in columns)
        names = ", ".join(quoted(name) for _, name, _ in columns)
        made_up = f'SELECT 0 AS "intarsia first", NULL AS "intarsia order", {first}'
        inner = f"{made_up} UNION ALL SELECT 1, {order}, {chosen} FROM ({query})"
        connection, cursor = self._open()
        try:
            cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(max(rows, 2))})
            cursor.execute(f'SELECT {names} FROM ({inner}) ORDER BY "intarsia first", "intarsia order"')
            start = 1
            for batch in cursor.fetch_record_batch():
                yield batch.slice(start)
                start = 0
        except (GeneratorExit, InputError):
            raise
        except Exception as error:
            raise trouble(self.name, error) from None
        finally:
            cursor.close()
            connection.close()


def _cells(numbers: int | None, texts: int | None, blobs: int | None) -> str:
    if blobs:
        return "binary data"
    if numbers and texts:
        return "mixed types"
    return LEVEL if texts else NUMBER


class DuckDB:
    """A DuckDB file."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, f"DuckDB {path}"

    def _open(self) -> Any:
        try:
            import duckdb
        except ImportError:
            raise InputError("Reading DuckDB needs its package: pip install 'intarsia[duckdb]'.") from None
        try:
            connection = duckdb.connect(str(self.path), read_only=True, config={"memory_limit": _MEMORY})
            connection.execute("SET enable_progress_bar = false")
            return connection
        except Exception as error:
            raise trouble(self.name, error) from None

    def tables(self) -> list[str]:
        connection = self._open()
        try:
            found = connection.execute(f"SELECT table_name FROM information_schema.tables ORDER BY 1 LIMIT {_MOST_TABLES}")
            return [str(row[0]) for row in found.fetchall()]
        except Exception as error:
            raise trouble(self.name, error) from None
        finally:
            connection.close()

    def describe(self, query: str) -> list[tuple[str, str]]:
        connection = self._open()
        try:
            rows = connection.execute(f"DESCRIBE SELECT * FROM ({query}) AS q").fetchall()
        except Exception as error:
            raise trouble(self.name, error, self.tables) from None
        finally:
            connection.close()
        return [(row[0], NUMBER if _NUMBERS.match(row[1]) else LEVEL if _TEXTS.match(row[1]) else row[1].lower()) for row in rows]

    def cast(self, column: str, kind: str) -> str:
        return f"CAST({quoted(column)} AS {'VARCHAR' if kind == LEVEL else 'DOUBLE'})"

    def stream(self, query: str, columns: Sequence[tuple[str, str, str]], order: str, rows: int) -> Iterator[pa.RecordBatch]:
        chosen = ", ".join(f"{sql} AS {quoted(name)}" for sql, name, _ in columns)
        connection = self._open()
        try:
            result = connection.sql(f"SELECT {chosen} FROM ({query}) AS q ORDER BY q.{order}")
            reader = (
                getattr(result, "to_arrow_reader", None) or result.fetch_arrow_reader
            )  # its names in newer and older versions
            yield from reader(rows)
        except (GeneratorExit, InputError):
            raise
        except Exception as error:
            raise trouble(self.name, error) from None
        finally:
            connection.close()
