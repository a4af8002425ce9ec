"""Tables in PostgreSQL, SQLite and DuckDB give what the same table in a file gives; nothing is written, no password is told."""

import socket
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import pytest
from tests import postgres

from intarsia.errors import InputError
from intarsia.site.data.table import Table
from intarsia.site.data.table_rules import TableRules

N = 5000
SECRET = "SecretCell"


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    df = pd.DataFrame(
        {
            "who": rng.permutation(N) + 10_000,
            "age": rng.normal(60, 9, N).round(6),
            "count": rng.integers(0, 9, N),
            "smoker": rng.random(N) < 0.5,
            "Sex of it": rng.choice(["f", "m"], N),
            "y": rng.normal(size=N).round(6),
        }
    )
    df.loc[df["who"] < 13_000, "age"] = np.nan  # every one of the first thousands of rows, in the order of the ids
    df.loc[df["who"] < 13_000, "Sex of it"] = None
    return df


def rows(df: pd.DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(None if pd.isna(cell) else cell for cell in row) for row in df.astype(object).itertuples(index=False)]


CREATE = 'CREATE TABLE visits (who {int}, age {float}, "count" {int}, smoker {bool}, "Sex of it" {text}, y {decimal}, seen date)'


def fill(cursor: Any, mark: str, types: dict[str, str]) -> None:
    cursor.execute(CREATE.format(**types))
    cursor.executemany(f"INSERT INTO visits VALUES ({', '.join([mark] * 6)}, NULL)", rows(frame()))


def sqlite(folder: Path) -> str:
    path = folder / "clinic.sqlite"
    with sqlite3.connect(path) as connection:
        fill(connection, "?", {"int": "INTEGER", "float": "REAL", "bool": "INTEGER", "text": "TEXT", "decimal": "NUMERIC"})
    return str(path)


def duck(folder: Path) -> str:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed: pip install 'intarsia[duckdb]'")
    path = folder / "clinic.duckdb"
    df = frame()
    with duckdb.connect(str(path)) as connection:
        connection.register("df", df)
        connection.execute(
            'CREATE TABLE visits AS SELECT who, CASE WHEN isnan(age) THEN NULL ELSE age END AS age, "count", smoker, '
            '"Sex of it", '
            "CAST(y AS DECIMAL(12, 6)) AS y, DATE '2020-01-01' AS seen FROM df"
        )
    return str(path)


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    dbapi = pytest.importorskip("adbc_driver_postgresql.dbapi", reason="pip install 'intarsia[postgresql]'")
    with postgres.server() as uri:
        with dbapi.connect(with_password(uri)) as connection, connection.cursor() as cursor:
            cursor.execute(
                CREATE.format(int="bigint", float="double precision", bool="boolean", text="text", decimal="numeric(12, 6)")
            )
            connection.commit()
            df = frame().assign(y=frame()["y"].astype(str), seen=None)
            import pyarrow as pa

            cursor.execute(
                "CREATE TABLE loading (who bigint, age double precision, count bigint, smoker boolean, sex text, y text)"
            )
            table = pa.Table.from_pandas(df.drop(columns="seen").rename(columns={"Sex of it": "sex"}), preserve_index=False)
            cursor.adbc_ingest("loading", table.cast(pa.schema([(f.name, pa.string() if "string" in str(f.type) else f.type)
                                                                for f in table.schema])), mode="append")  # fmt: skip
            cursor.execute("INSERT INTO visits SELECT who, age, count, smoker, sex, CAST(y AS numeric), NULL FROM loading")
            connection.commit()
        yield uri


def with_password(uri: str) -> str:
    return uri.replace("@", f":{quote(postgres.PASSWORD, safe='')}@", 1)


def values(table: Table) -> np.ndarray:
    return np.vstack([np.hstack(parts) for parts in table.blocks(rows=700)])


def same_as_a_file(source: str, **reading: str) -> None:
    table = Table.open(
        source, id="who", responses="y", ignore="seen", rules=TableRules(missing="mean", reading={"query": "visits", **reading})
    )
    df = frame().sort_values("who")
    expected = Table.open(df, id="who", responses="y", rules=TableRules(missing="mean"))
    assert table.n == N
    assert (table.features, table.responses) == (expected.features, expected.responses)
    assert table.ids().tolist() == expected.ids().tolist()
    np.testing.assert_allclose(values(table), values(expected), rtol=1e-12)
    assert table.imputed == expected.imputed == {"age": 3000, "Sex of it": 3000}
    part = 'SELECT who, "Sex of it", age / 2 AS half FROM visits WHERE age > 60;'
    some = Table.open(source, id="who", rules=TableRules(reading={"query": part, **reading}))
    assert some.n == (df["age"] > 60).sum()
    assert some.features == ["Sex of it=m", "half"]


@pytest.mark.parametrize("make", [sqlite, duck])
def test_a_file_of_a_database_reads_like_a_table(make: Callable[[Path], str], tmp_path: Path) -> None:
    source = make(tmp_path)
    before = Path(source).read_bytes()
    same_as_a_file(source)
    assert Path(source).read_bytes() == before


def test_postgresql_reads_like_a_table(postgresql: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PGPASSWORD", postgres.PASSWORD)
    same_as_a_file(postgresql)
    monkeypatch.delenv("PGPASSWORD")
    secret = tmp_path / "db.password"
    secret.write_text(postgres.PASSWORD + "\n")
    secret.chmod(0o644)
    with pytest.raises(InputError, match=r"can be read by others\. Run: chmod 600"):
        Table.open(postgresql, id="who", rules=TableRules(reading={"query": "visits", "password_file": str(secret)}))
    secret.chmod(0o600)
    same_as_a_file(postgresql, password_file=str(secret))
    with pytest.raises(InputError, match=r"the password is wrong or missing\. Set PGPASSWORD") as caught:
        Table.open(postgresql, id="who", rules=TableRules(reading={"query": "visits"}))
    assert postgres.USER not in str(caught.value)


def test_postgresql_says_what_is_wrong_with_an_address(postgresql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", SECRET)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # taken, and nobody listens
        closed = f"postgresql://me@127.0.0.1:{nobody.getsockname()[1]}/records"
        tries = [(postgresql, "the user or the password is wrong"), (closed, "nothing answers there. Check host and port")]
        for address, words in tries:
            with pytest.raises(InputError, match=words) as caught:
                Table.open(address, id="who", rules=TableRules(reading={"query": "visits"}))
            assert SECRET not in str(caught.value)
            assert postgres.USER not in str(caught.value)
    monkeypatch.setenv("PGPASSWORD", postgres.PASSWORD)
    with pytest.raises(InputError, match="there is no database of that name"):
        Table.open(postgresql.rpartition("/")[0] + "/elsewhere", id="who", rules=TableRules(reading={"query": "visits"}))


@pytest.mark.parametrize(
    ("query", "words"),
    [("nowhere", "no such table"), ("SELECT nothing FROM visits", "no such column"), ("SELEC", "not valid SQL|no such table"),
     ("SELECT 1; DROP TABLE visits", "not valid SQL"), ("DELETE FROM visits RETURNING who", "not valid SQL")],
)  # fmt: skip
def test_postgresql_says_what_is_wrong_with_a_query(
    postgresql: str, monkeypatch: pytest.MonkeyPatch, query: str, words: str
) -> None:
    monkeypatch.setenv("PGPASSWORD", postgres.PASSWORD)
    with pytest.raises(InputError, match=words):
        Table.open(postgresql, id="who", rules=TableRules(reading={"query": query}))
    assert Table.open(postgresql, id="who", ignore="seen", rules=TableRules(reading={"query": "visits"})).n == N


def test_a_row_that_cannot_be_read_is_not_quoted(postgresql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", postgres.PASSWORD)
    query = f"SELECT who, CAST('{SECRET}' || who AS integer) AS x FROM visits"
    with pytest.raises(InputError, match="stopped while giving rows") as caught:
        values(Table.open(postgresql, id="who", rules=TableRules(reading={"query": query})))
    assert SECRET not in str(caught.value)


def test_a_password_in_the_address_is_refused_and_not_repeated() -> None:
    for uri in (f"postgresql://me:{SECRET}@host/db", f"postgresql://me@host/db?password={SECRET}"):
        with pytest.raises(InputError, match=r"holds a password\. Take it out") as caught:
            Table.open(uri, id="who", rules=TableRules(reading={"query": "visits"}))
        assert SECRET not in str(caught.value)


def test_a_table_that_changes_between_two_passes_is_noticed(tmp_path: Path) -> None:
    source = sqlite(tmp_path)
    table = Table.open(source, id="who", features="y", rules=TableRules(reading={"query": "visits"}))
    values(table)
    with sqlite3.connect(source) as connection:
        connection.execute("UPDATE visits SET who = 99999 WHERE who = 10007")
    with pytest.raises(InputError, match="subjects changed while the table was read"):
        values(table)


def test_sqlite_columns_of_mixed_cells_and_missing_things_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (who, x)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(1, 2.0), (2, SECRET), (3, 4)])
    with pytest.raises(InputError, match="'x' holds mixed types") as caught:
        Table.open(path, id="who", rules=TableRules(reading={"query": "t"}))
    assert SECRET not in str(caught.value)
    for reading, id, words in (
        ({}, "who", r"needs a query: .* the name of a table\. There are: t\."),
        ({"query": "t"}, None, "say which column is the id"),
        ({"query": "t"}, "whom", "gives no column 'whom'"),
        ({"query": "t2"}, "who", r"there is no such table\. There are: t\."),
        ({"query": "SELECT whom FROM t"}, "who", "there is no such column"),
        ({"query": "SELEC who FROM t"}, "who", "the query is not valid SQL"),
    ):
        with pytest.raises(InputError, match=words):
            Table.open(path, id=id, rules=TableRules(reading=reading))
    (tmp_path / "text.db").write_text(f"{SECRET}, and no database at all, however long the text may be")
    with pytest.raises(InputError, match="the file is none of its databases") as caught:
        Table.open(tmp_path / "text.db", id="who", rules=TableRules(reading={"query": "t"}))
    assert SECRET not in str(caught.value)
    with pytest.raises(InputError, match="There is no file"):
        Table.open(tmp_path / "other.db", id="who", rules=TableRules(reading={"query": "t"}))


def test_duckdb_says_what_is_wrong_with_a_query(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(str(tmp_path / "t.duckdb")) as made:
        made.execute("CREATE TABLE visits AS SELECT 1 AS who, 2 AS x")
    for query, words in (
        ("visitz", r"there is no such table\. There are: visits\."),
        ("SELECT whom FROM visits", "there is no such column"),
        ("SELEC who FROM visits", "the query is not valid SQL"),
    ):
        with pytest.raises(InputError, match=words):
            Table.open(tmp_path / "t.duckdb", id="who", rules=TableRules(reading={"query": query}))
