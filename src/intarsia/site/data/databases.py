"""Tables that lie in a database: PostgreSQL, SQLite and DuckDB, read in Arrow batches, never whole and never written to.

Every pass over the table asks for the same rows in the same order: ordered by the id column, and the ids of each pass are
compared with those of the first. A database that changes in between is noticed, not mixed.

The password of a PostgreSQL server never stands in a file that travels: it comes from PGPASSWORD, from the password file of
PostgreSQL itself (~/.pgpass, PGPASSFILE), or from a `password_file` that only its owner can read. Nothing a driver says is passed
on, as it may quote a row; the standard five-letter code of the trouble is.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from intarsia.errors import InputError
from intarsia.site.data.reading import Reading
from intarsia.site.data.sources import LEVEL, ArrowBatch, Batch

_PLAIN = re.compile(r"[A-Za-z_][\w$]*(\.[A-Za-z_][\w$]*)?")
_ID = "intarsia id"  # what the id column is called in every pass; a name no table has

# What can go wrong, by its SQLSTATE, and what to do.
_STATES = {
    "28P01": "the password is wrong or missing. Set PGPASSWORD, or keep it in ~/.pgpass or in a password_file",
    "28000": "the server does not let this user in. Ask its administrator",
    "3D000": "there is no database of that name",
    "42P01": "there is no such table. Name it with its schema, for example study.visits",
    "42703": "there is no such column",
    "42501": "this user may not read that table. Ask for the right to SELECT",
    "42601": "the query is not valid SQL: it must be one SELECT",
    "57014": "the query was cancelled, perhaps by the server's time limit",
    "25006": "the query tries to write; only a SELECT is run",
}
# The same where a driver has no code for it: words of its first line, which are looked for and never passed on.
_WORDS = {
    "connection refused": "nothing answers there. Check host and port, and that the server runs and listens to this machine",
    "could not translate host name": "there is no host of that name",
    "timeout expired": "nothing answers there in time. Check host, port and firewall",
    "no password supplied": _STATES["28P01"],
    "password authentication failed": "the user or the password is wrong (PGPASSWORD, ~/.pgpass or password_file)",
    "no pg_hba.conf entry": _STATES["28000"],
    "does not exist!": "there is no such table",  # DuckDB
    "no such table": "there is no such table",
    "referenced column": _STATES["42703"],
    "no such column": _STATES["42703"],
    "syntax error": _STATES["42601"],
    "file is not a database": "the file is none of its databases, or is encrypted",
    "not a valid duckdb database": "the file is none of its databases, or is encrypted",
    "could not set lock": "another program writes to it. Close that, or read from a copy",
    "database is locked": "another program writes to it. Close that, or read from a copy",
}


class Engine(Protocol):
    """One kind of database. `name` is for messages and never holds a user or a password."""

    name: str

    def tables(self) -> list[str]:
        """Names of some tables and views, for a message; none where it would take a connection that may fail."""
        ...

    def describe(self, query: str) -> list[tuple[str, str]]:
        """The query's columns and what each is: NUMBER, LEVEL or the name of another type."""
        ...

    def cast(self, column: str, kind: str) -> str:
        """SQL that gives the column as a double or as text."""
        ...

    def stream(self, query: str, columns: Sequence[tuple[str, str, str]], order: str, rows: int) -> Iterator[pa.RecordBatch]:
        """Batches of the columns (SQL, name, kind), ordered by one column."""
        ...


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def query_of(text: str | None, engine: Engine) -> str:
    """The query as a part of another: a table's name becomes a SELECT, a closing semicolon goes, a last comment ends."""
    if not text or not text.strip():
        there = engine.tables()
        named = f" There are: {', '.join(there)}." if there else ""
        raise InputError(
            f"{engine.name} needs a query: query in site.toml or --query of a command, one SELECT or the name of a table.{named}"
        )
    plain = text.strip().rstrip(";").strip()
    return f"SELECT * FROM {plain}" if _PLAIN.fullmatch(plain) else f"{plain}\n"


def trouble(engine: str, error: Exception, tables: Callable[[], Sequence[str]] = list) -> InputError:
    """A driver's error in our words; `tables` names those there are, where one is missing."""
    state = str(getattr(error, "sqlstate", None) or "")
    if state in _STATES:
        return InputError(f"{engine}: {_STATES[state]} ({state}).")
    if state:
        return InputError(f"{engine} refused the query (SQLSTATE {state}). Try it with the database's own client.")
    line = str(error).partition("\n")[0].lower()
    if "failed to connect" in line and "database " in line and "does not exist" in line:
        return InputError(f"{engine}: {_STATES['3D000']}.")
    known = next((said for words, said in _WORDS.items() if words in line), None)
    if known is not None:
        there = tables() if "no such table" in known else ()
        return InputError(f"{engine}: {known}." + (f" There are: {', '.join(there)}." if there else ""))
    if isinstance(error, OSError):
        return InputError(
            f"{engine} stopped while giving rows. Does every row fit the query? Try it with the database's own client."
        )
    return InputError(f"{engine} could not be read ({type(error).__name__}). Is it there, running, and free to be read?")


class DatabaseSource:
    """The rows of one query, ordered by the id column."""

    def __init__(self, engine: Engine, reading: Reading) -> None:
        self.engine, self.query = engine, query_of(reading.query, engine)
        described = engine.describe(self.query)
        self.names = [name for name, _ in described]
        self.kinds = dict(described)
        if reading.id is None:
            raise InputError(f"{engine.name}: say which column is the id. Rows of a database have no order of their own.")
        if reading.id not in self.kinds:
            raise InputError(f"{engine.name}: the query gives no column {reading.id!r} for the role id.")
        self._id = reading.id
        # Ids are text whatever the database calls their type (uuid, integer, …).
        self.kinds[self._id] = LEVEL
        self.n, self._ids = 0, b""
        digest = hashlib.sha256()
        for batch in self._pass([], 1 << 16, digest):
            self.n += batch.num_rows
        self._ids = digest.digest()

    def _pass(self, columns: Sequence[str], rows: int, digest: "hashlib._Hash") -> Iterator[pa.RecordBatch]:
        wanted = [(self.engine.cast(name, self.kinds[name]), name, self.kinds[name]) for name in columns]
        wanted.append((self.engine.cast(self._id, LEVEL), _ID, LEVEL))
        for batch in self.engine.stream(self.query, wanted, quoted(self._id), rows):
            ids = batch.column(batch.schema.get_field_index(_ID))
            digest.update("\x00".join("" if i is None else i for i in ids.to_pylist()).encode() + b"\x00")
            yield batch

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[Batch]:
        digest, seen = hashlib.sha256(), 0
        for batch in self._pass(columns, rows, digest):
            seen += batch.num_rows
            for start in range(0, batch.num_rows, rows):
                yield ArrowBatch(batch.slice(start, rows))
        if digest.digest() != self._ids:
            raise InputError(
                f"{self.engine.name}: the subjects changed while the table was read ({self.n} rows at first, {seen} now). "
                "Read from a copy or a view that stands still, and start again."
            )
