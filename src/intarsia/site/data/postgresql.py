"""PostgreSQL through ADBC: rows come by COPY in Arrow batches, in a session that can only read."""

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

import pyarrow as pa

from intarsia.errors import InputError
from intarsia.site.data.databases import quoted, trouble
from intarsia.site.data.reading import Reading
from intarsia.site.data.sources import LEVEL, NUMBER, kind_of_type

_TEXTS = ("text", "varchar", "bpchar", "name", "uuid", "citext", "char")


class PostgreSQL:
    """A server named by postgresql://[user@]host[:port]/database."""

    def __init__(self, uri: str, reading: Reading) -> None:
        parts = urlsplit(uri)
        if parts.password is not None or "password" in parse_qs(parts.query):
            raise InputError(
                "The address of the database holds a password. Take it out of there and change it: site.toml may be copied. Set "
                "PGPASSWORD, or keep it in ~/.pgpass or in a password_file that only its owner can read."
            )
        try:
            port = parts.port
        except ValueError:
            raise InputError("The address of the database has a port that is not a number.") from None
        self.name = f"PostgreSQL {parts.hostname or 'on this machine'}{f':{port}' if port else ''}{parts.path}"
        self._uri = uri if reading.password_file is None else _with_password(parts, Path(reading.password_file))

    def _cursor(self) -> Any:
        try:
            from adbc_driver_postgresql import dbapi
        except ImportError:
            raise InputError("Reading PostgreSQL needs its driver: pip install 'intarsia[postgresql]'.") from None
        try:
            connection = dbapi.connect(self._uri, autocommit=True)
            cursor = connection.cursor()
            cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
        except Exception as error:
            raise trouble(self.name, error) from None
        return connection, cursor

    def tables(self) -> list[str]:
        return []  # a server has many, and asking may fail

    def describe(self, query: str) -> list[tuple[str, str]]:
        connection, cursor = self._cursor()
        try:
            cursor.execute(f"SELECT * FROM ({query}) AS q LIMIT 0")
            schema = cursor.fetch_arrow_table().schema
        except Exception as error:
            raise trouble(self.name, error) from None
        finally:
            _close(cursor, connection)
        self._truths = {field.name for field in schema if pa.types.is_boolean(field.type)}
        return [(field.name, _kind(field)) for field in schema]

    def cast(self, column: str, kind: str) -> str:
        if kind == LEVEL:
            return f"CAST({quoted(column)} AS text)"
        inner = f"CAST({quoted(column)} AS integer)" if column in self._truths else quoted(column)
        return f"CAST({inner} AS double precision)"

    def stream(self, query: str, columns: Sequence[tuple[str, str, str]], order: str, rows: int) -> Iterator[pa.RecordBatch]:
        chosen = ", ".join(f"{sql} AS {quoted(name)}" for sql, name, _ in columns)
        connection, cursor = self._cursor()
        try:
            cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(1 << 24)})
            cursor.execute(f"SELECT {chosen} FROM ({query}) AS q ORDER BY q.{order}")
            yield from cursor.fetch_record_batch()
        except (GeneratorExit, InputError):
            raise
        except Exception as error:
            raise trouble(self.name, error) from None
        finally:
            _close(cursor, connection)


def _kind(field: pa.Field) -> str:
    known = (field.metadata or {}).get(b"ADBC:postgresql:typname", b"").decode()
    if known == "numeric":
        return NUMBER
    if known in _TEXTS:
        return LEVEL
    return known or kind_of_type(field.type)


def _with_password(parts: Any, path: Path) -> str:
    """The address with the password from a file that only its owner can read; it is kept in memory alone."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise InputError(f"The password file {path} cannot be read. It is one line of text.") from None
    if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
        raise InputError(f"The password file {path} can be read by others. Run: chmod 600 {path}")
    password = text.rstrip("\r\n")
    if not password or "\n" in password:
        raise InputError(f"The password file {path} must hold the password in one line, and nothing else.")
    if parts.username is None:
        raise InputError("A password file needs a user in the address of the database: postgresql://user@host/database.")
    user, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}"))


def _close(*held: Any) -> None:
    for one in held:
        with contextlib.suppress(Exception):  # a connection that is gone is closed
            one.close()
