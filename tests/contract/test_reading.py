"""CSV files as institutions write them are read, and what cannot be read says what to do; never a cell of it."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from intarsia.errors import InputError
from intarsia.site.data.table import Table
from intarsia.site.data.table_rules import TableRules

SECRET = "SecretCell"
PEOPLE = pd.DataFrame(
    {
        "id": ["a", "b", "c", "d"],
        "größe": [1.5, 2.25, -3.0, 1e-4],
        "ort": ["Köln", "Mölln", "Köln", "Ulm"],
        "kinder": [0, 1, 2, 5],
    }
)


def values(table: Table) -> np.ndarray:
    return np.vstack([np.hstack(parts) for parts in table.blocks()])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16"])
@pytest.mark.parametrize(("separator", "decimal"), [(",", "."), (";", ","), (";", "."), ("\t", ","), ("|", ".")])
def test_separator_decimal_and_encoding_are_found(tmp_path: Path, encoding: str, separator: str, decimal: str) -> None:
    path = tmp_path / "t.csv"
    PEOPLE.to_csv(path, index=False, sep=separator, decimal=decimal, encoding=encoding)
    table = Table.open(path, id="id")
    assert table.features == ["größe", "ort=Köln", "ort=Mölln", "ort=Ulm", "kinder"]
    np.testing.assert_allclose(values(table)[:, 0], PEOPLE["größe"], rtol=1e-12)
    np.testing.assert_allclose(values(table)[:, -1], PEOPLE["kinder"])


def test_tsv_gz_and_a_late_letter_that_is_not_utf8(tmp_path: Path) -> None:
    rows = ["id;x;w"] + [f"s{i};{i},5;a" for i in range(30_000)] + ["last;1,25;é"]
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress("\n".join(rows).encode("latin-1")))
    table = Table.open(tmp_path / "t.csv.gz", id="id")
    assert table.features == ["x", "w=é"]
    assert values(table)[-1].tolist() == [1.25, 1.0]
    (tmp_path / "t.tsv").write_text("id\tx\na\t1\nb\t2\n")
    assert Table.open(tmp_path / "t.tsv", id="id").features == ["x"]


def test_what_is_said_comes_before_what_is_found(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('id,"x","y"\na,"1,5",2\nb,"2,5",3\n')
    assert Table.open(path, id="id").features == [
        "x=2,5",
        "y",
    ]  # texts: a comma between cells and a decimal comma are not guessed
    table = Table.open(path, id="id", rules=TableRules(reading={"decimal": ","}))
    assert table.features == ["x", "y"]
    assert values(table)[:, 0].tolist() == [1.5, 2.5]
    path.write_text("id;a,b\n1;2\n3;4\n")
    assert Table.open(path, id="id", rules=TableRules(reading={"separator": ";"})).features == ["a,b"]


def test_text_that_means_missing_does_not_make_a_column_text(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id;x;centre\na;1,5;1\nb;.;2\nc;999;9\nd;-99;2\ne;3,5;1\n")
    table = Table.open(
        path,
        id="id",
        rules=TableRules(
            missing="mean", missing_codes=[".", 999, -99], columns={"centre": {"categorical": True, "missing_codes": [9]}}
        ),
    )
    assert table.features == ["x", "centre=2"]
    np.testing.assert_allclose(values(table)[:, 0], [1.5, 2.5, 2.5, 2.5, 3.5])
    assert table.imputed == {"x": 3, "centre": 1}


REFUSED: list[tuple[str, str, bytes, dict[str, Any]]] = [
    ("(a row|row 3) has 3 cells, the first has 2.*separator = ';'", "t.csv", f"a,b\n1,2\n{SECRET},{SECRET},3\n".encode(), {}),
    ("holds letters that are not utf-8", "t.csv", f"a;b\n1;{SECRET}é\n".encode("latin-1"), {"encoding": "utf-8"}),
    ("'a' has decimal commas and column 'b' decimal points", "t.csv", b"a;b\n1,5;1.5\n2,5;2.5\n", {}),
    ("no encoding|No encoding", "t.csv", b"a\n1\n", {"encoding": "klingon"}),
    ("cannot be the same", "t.csv", b"a\n1\n", {"separator": ",", "decimal": ","}),
    ("one character", "t.csv", b"a\n1\n", {"separator": ";;"}),
    ("Known: separator", "t.csv", b"a\n1\n", {"seperator": ";"}),
    ("an Excel sheet.*Save the table as CSV or Parquet", "t.xlsx", b"PK", {}),
    ("an SPSS file", "t.sav", b"$FL2", {}),
    ("a pickled object", "t.pkl", b"\x80", {}),
    ("no rows", "t.csv", b"a,b\n", {}),
    ("cannot be read as CSV", "t.csv", b"", {}),
]


@pytest.mark.parametrize(("words", "name", "content", "reading"), REFUSED, ids=[words for words, *_ in REFUSED])
def test_errors_name_the_remedy_and_no_cell(
    tmp_path: Path, words: str, name: str, content: bytes, reading: dict[str, Any]
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        values(Table.open(tmp_path / name, rules=TableRules(reading=reading)))
    assert SECRET not in str(caught.value)
