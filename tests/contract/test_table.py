"""Tables of every kind give the same columns, and what cannot be used is refused by name and count, never by value."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from intarsia.errors import InputError
from intarsia.site.data.covariate_checks import check_covariates
from intarsia.site.data.table import Table
from intarsia.site.data.table_rules import TableRules

N = 60
SECRET = "SecretCell"


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "who": [f"s{i:03d}" for i in range(N)],
            "age": rng.normal(60, 9, N),
            "sex": rng.choice(["f", "m"], N),
            "group": pd.Categorical(rng.choice(["a", "b", "c"], N), categories=["c", "b", "a", "unused"]),
            "count": rng.integers(0, 9, N),
            "smoker": rng.random(N) < 0.5,
            "y": rng.normal(size=N),
        }
    )


def write_feather(df: pd.DataFrame, path: Path) -> Path:
    df.to_feather(path)
    return path


def write_csv(df: pd.DataFrame, path: Path) -> Path:
    df.to_csv(path, index=False)
    return path


def write_parquet(df: pd.DataFrame, path: Path) -> Path:
    pq.write_table(pa.Table.from_pandas(df), path, row_group_size=17)
    return path


def write_two(df: pd.DataFrame, folder: Path) -> list[Path]:
    # The second file has its columns in another order.
    return [write_parquet(df[:25], folder / "1.parquet"), write_csv(df[25:][df.columns[::-1]], folder / "2.csv")]


SOURCES: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "pandas": lambda df, _: df,
    "polars": lambda df, _: pl.from_pandas(df),
    "arrow": lambda df, _: pa.Table.from_pandas(df),
    "dict": lambda df, _: {name: df[name].tolist() for name in df},
    "parquet": lambda df, folder: write_parquet(df, folder / "t.parquet"),
    "csv": lambda df, folder: write_csv(df, folder / "t.csv"),
    "csv.gz": lambda df, folder: write_csv(df, folder / "t.csv.gz"),
    "feather": lambda df, folder: write_feather(df, folder / "t.feather"),
    "two files": write_two,
}


def whole(table: Table, **how: Any) -> np.ndarray:
    return np.vstack([np.hstack(block) for block in table.blocks(**how)])


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_gives_the_same_columns(kind: str, tmp_path: Path) -> None:
    df = frame()
    table = Table.open(SOURCES[kind](df, tmp_path), id="who", responses=["y"])
    assert table.features == ["age", "sex=m", "group=a", "group=b", "group=c", "count", "smoker"]
    assert table.responses == ["y"]
    assert table.n == N
    assert table.ids().tolist() == df["who"].tolist()
    expected = np.column_stack(
        [df["age"], df["sex"] == "m", *(df["group"] == g for g in "abc"), df["count"], df["smoker"], df["y"]]
    ).astype(float)
    np.testing.assert_allclose(whole(table, rows=7), expected, rtol=1e-12)
    chosen = np.random.default_rng(1).permutation(N)[:41]
    np.testing.assert_allclose(whole(table, rows=7, order=chosen), expected[chosen], rtol=1e-12)
    assert all(len(X) <= 7 for X, *_ in table.blocks(rows=7))


@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_files_are_read_in_blocks(tmp_path: Path, order: Any) -> None:
    X = np.asarray(np.random.default_rng(0).random((50, 4)), order=order, dtype=np.float32)
    np.save(tmp_path / "x.npy", X)
    table = Table.open(
        tmp_path / "x.npy", responses="d", ignore="b", id=np.arange(50), rules=TableRules(names=["a", "b", "c", "d"])
    )
    assert (table.features, table.responses) == (["a", "c"], ["d"])
    np.testing.assert_array_equal(whole(table, rows=9), X[:, [0, 2, 3]])
    assert table.ids().tolist() == [str(i) for i in range(50)]


def test_roles_take_patterns() -> None:
    df = pd.DataFrame(np.eye(6), columns=["snp_1", "snp_2", "age", "y_a", "y_b", "note"])
    table = Table.open(df, features=["snp_*", "age"], responses="y_*")
    assert (table.features, table.responses) == (["snp_1", "snp_2", "age"], ["y_a", "y_b"])
    assert Table.open(df, features=[], responses="y_*").features == []


def test_ids_keep_their_text(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,x\n007,1\n08,2\n9,4\n")
    assert Table.open(tmp_path / "t.csv", id="id").ids().tolist() == ["007", "08", "9"]
    assert Table.open(pd.DataFrame({"id": [1.0, 2.0], "x": [1, 2]}), id="id").ids().tolist() == ["1", "2"]


def test_a_late_odd_cell_does_not_change_how_a_csv_is_read(tmp_path: Path) -> None:
    """Types are decided on all rows: whole numbers first and fractions a megabyte later are one column of numbers."""
    rows = ["x,z"] + ["1,a"] * 400_000 + ["2.5,b"]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    table = Table.open(tmp_path / "t.csv")
    assert table.features == ["x", "z=b"]
    assert whole(table)[-1].tolist() == [2.5, 1.0]


def test_missing_values_are_refused_by_name_and_count_or_put_at_the_mean() -> None:
    df = frame()
    df.loc[[3, 4, 9], "age"] = np.nan
    df.loc[7, "sex"] = None
    table = Table.open(df, id="who")
    with pytest.raises(InputError, match=r"Missing values in 2 columns: age \(3\), sex=m \(1\) of 60 rows"):
        whole(table, rows=5)
    filled = whole(Table.open(df, id="who", rules=TableRules(missing="mean")), rows=5)
    assert np.isfinite(filled).all()
    np.testing.assert_allclose(filled[[3, 4, 9], 0], df["age"].mean())
    np.testing.assert_allclose(filled[7, 1], (df["sex"].dropna() == "m").mean())


def test_infinite_values_are_refused_even_when_missing_ones_are_not() -> None:
    df = frame()
    df.loc[[3, 4], "age"] = np.inf
    with pytest.raises(InputError, match=r"Infinite values in column age \(2\)"):
        whole(Table.open(df, id="who", rules=TableRules(missing="mean")))


@pytest.mark.parametrize("values", [1, 8 * 20, 8 * 45])
def test_another_order_is_the_same_in_however_many_passes(values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intarsia.site.data.table._PASS_VALUES", values)
    table, chosen = Table.open(frame(), id="who", responses=["y"]), np.random.default_rng(1).permutation(N)[:41]
    np.testing.assert_array_equal(whole(table, rows=7, order=chosen), whole(table)[chosen])
    assert [len(X) for X, *_ in table.blocks(rows=7, order=chosen)] == [7, 7, 7, 7, 7, 6]


def test_a_column_without_any_value_is_refused() -> None:
    with pytest.raises(InputError, match="No value at all in column b"):
        whole(Table.open({"a": [1.0, 2.0], "b": [None, None]}, rules=TableRules(missing="mean")))


def test_levels_can_be_fixed_for_stores_that_lack_one() -> None:
    df = frame()
    given = {"sex": ["f", "m"], "group": ["a", "b", "c"], "count": [str(i) for i in range(9)]}
    rules = {name: {"levels": levels} for name, levels in given.items()}
    part = Table.open(df[df["group"] != "b"], id="who", rules=TableRules(columns=rules))
    assert part.features == Table.open(df, id="who", rules=TableRules(columns=rules)).features
    assert "count=3" in part.features  # a coded factor
    with pytest.raises(InputError, match="cells with a level that is not among its 2 levels"):
        whole(Table.open(df, id="who", rules=TableRules(columns={"group": {"levels": ["a", "b"]}})))


def test_covariates_are_a_role_of_their_own_with_a_reference_level() -> None:
    df = frame()
    table = Table.open(df, id="who", responses="y", covariates=["age", "group", "sex"])
    assert table.covariates == ["age", "sex=m", "group=b", "group=c"]  # in the table's order, first level without an indicator
    assert (table.features, table.responses) == (["count", "smoker"], ["y"])
    assert table.labels == ["count", "smoker", "y", "age", "sex=m", "group=b", "group=c"]
    X, Y, Z = (np.vstack(parts) for parts in zip(*table.blocks(rows=7)))
    np.testing.assert_array_equal(Z, np.column_stack([df["age"], df["sex"] == "m", df["group"] == "b", df["group"] == "c"]))
    np.testing.assert_array_equal(Y[:, 0], df["y"])
    assert X.shape == (N, 2)
    other = Table.open(df, id="who", covariates="group", rules=TableRules(columns={"group": {"reference": "c"}}))
    assert other.covariates == ["group=a", "group=b"]
    as_feature = Table.open(df, id="who", features=["group"], rules=TableRules(columns={"group": {"reference": "b"}}))
    assert as_feature.features == ["group=a", "group=c"]


def covariates_of(**columns: Any) -> Table:
    rng = np.random.default_rng(3)
    df = pd.DataFrame({"x": rng.normal(size=N), "age": 1e6 + rng.normal(size=N), **columns})
    return Table.open(df, features="x", covariates=["age", *columns])


def test_covariates_that_follow_from_the_others_are_refused_by_name() -> None:
    df, rng = frame(), np.random.default_rng(4)
    check_covariates(covariates_of(sex=df["sex"], group=df["group"], height=rng.normal(size=N)))
    height = rng.normal(170, 9, N)
    with pytest.raises(InputError, match=r"Among the covariates column inches follows exactly from the others"):
        check_covariates(covariates_of(height=height, inches=height / 2.54 + 3))
    with pytest.raises(InputError, match=r"column site=z follows"):  # one level of one column is a level of another
        check_covariates(covariates_of(group=df["group"], site=np.where(df["group"] == "b", "z", "y")))
    with pytest.raises(InputError, match=r"No variation in column wave among these 60 subjects"):
        check_covariates(covariates_of(wave=np.full(N, 2.0)))
    with pytest.raises(InputError, match=r"No variation in column sex=m among these \d+ subjects"):  # over the cohort alone
        check_covariates(covariates_of(sex=df["sex"]), order=np.flatnonzero(df["sex"] == "f"))
    wide = {f"z{j}": rng.normal(size=N) for j in range(N)}
    with pytest.raises(InputError, match=r"61 columns of covariates for 60 subjects"):
        check_covariates(covariates_of(**wide))


def secret_frame(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"id": [f"{SECRET}{i}" for i in range(5)], "x": np.arange(5.0), **columns})


def duplicated() -> pd.DataFrame:
    df = secret_frame(z=np.arange(5.0))
    df.columns = ["id", "x", "x"]
    return df


REFUSED: list[tuple[str, Callable[[], Any]]] = [
    ("same name", lambda: Table.open(duplicated())),
    ("same name: a", lambda: Table.open(np.eye(3), rules=TableRules(names=["a", "b", "a"]))),
    ("3 columns, 2 names", lambda: Table.open(np.eye(3), rules=TableRules(names=["a", "b"]))),
    ("No column 'y'", lambda: Table.open(secret_frame(), id="id", responses="y")),
    ("No column 'pid'", lambda: Table.open(secret_frame(), id="pid")),
    ("two roles: x", lambda: Table.open(secret_frame(), covariates=["x"], responses=["x"])),
    ("two roles: x", lambda: Table.open(secret_frame(), features=["x"], covariates=["x"])),
    (
        "no level like the reference",
        lambda: Table.open(secret_frame(s=list("abaab")), id="id", rules=TableRules(columns={"s": {"reference": SECRET}})),
    ),
    ("two roles", lambda: Table.open(secret_frame(), features=["x"], responses=["x"])),
    ("No column is left", lambda: Table.open(secret_frame(), id="id", ignore="x")),
    ("no rows", lambda: Table.open(secret_frame()[:0], id="id")),
    ("neither numbers nor levels", lambda: Table.open(secret_frame(d=pd.Timestamp("2020-01-01")), id="id")),
    ("mixed types", lambda: Table.open(secret_frame(d=[SECRET, 1, 2, 3, None]), id="id")),
    ("over 100 different texts", lambda: Table.open({"x": [f"{SECRET}{i}" for i in range(101)]})),
    ("3 rows repeat", lambda: Table.open(secret_frame(k=[f"{SECRET}"] * 4 + ["b"]), id="k", features="x").ids()),
    ("1 subject has no id", lambda: Table.open(secret_frame(k=[None, *"abcd"]), id="k", features="x").ids()),
    ("no id column", lambda: Table.open(secret_frame(), features="x").ids()),
    ("4 ids were given for 5 rows", lambda: Table.open(secret_frame(), features="x", id=[1, 2, 3, 4])),
    ("two-dimensional", lambda: Table.open(np.arange(3.0))),
    ("of numbers", lambda: Table.open(np.array([[SECRET]]))),
    ("not a table", lambda: Table.open(3)),
    ("no file", lambda: Table.open("nowhere.parquet")),
    ("missing='zero'", lambda: Table.open(secret_frame(), rules=TableRules(missing="zero"))),
    ("too large to square", lambda: whole(Table.open({"x": [1e308, -1e308, 3.0, np.nan]}, rules=TableRules(missing="mean")))),
]


@pytest.mark.parametrize(("words", "make"), REFUSED, ids=[words for words, _ in REFUSED])
def test_what_cannot_be_used_is_refused_without_naming_a_value(words: str, make: Callable[[], Any]) -> None:
    with pytest.raises(InputError, match=words) as caught:
        make()
    assert SECRET not in str(caught.value)


def test_the_index_of_pandas_is_no_feature_unless_it_is_named(tmp_path: Path) -> None:
    """Rows that were sorted or shuffled carry their numbers into a Parquet file; a CSV file has them without a name."""
    shuffled = pd.DataFrame({"id": list("abcd"), "x": [1.0, 2.0, 4.0, 3.0]}).sample(frac=1, random_state=1)
    shuffled.to_parquet(tmp_path / "t.parquet")
    assert "__index_level_0__" in pq.read_schema(tmp_path / "t.parquet").names
    assert Table.open(tmp_path / "t.parquet", id="id").features == ["x"]
    assert Table.open(tmp_path / "t.parquet", id="id", features=["*"]).features == ["x"]
    by_index = Table.open(tmp_path / "t.parquet", id="__index_level_0__", ignore="id")
    assert sorted(map(str, by_index.ids())) == ["0", "1", "2", "3"]
    shuffled.to_csv(tmp_path / "t.csv")
    with pytest.raises(InputError, match="index=False in pandas"):
        Table.open(tmp_path / "t.csv", id="id")


@pytest.mark.parametrize("name", ["t.parquet", "t.feather", "t.csv", "t.npy", "t.csv.gz", "t.txt"])
def test_broken_files_are_our_error_and_quote_nothing(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(f"a,b\n1,2\n{SECRET},{SECRET},{SECRET}\n".encode())
    with pytest.raises(InputError) as caught:
        whole(Table.open(tmp_path / name))
    assert SECRET not in str(caught.value)


def test_a_csv_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("x,y,x\n1,2,3\n")
    for files in (tmp_path / "b.csv", [tmp_path / "a.csv", tmp_path / "b.csv"]):
        with pytest.raises(InputError, match="same name"):
            Table.open(files)


def test_files_with_different_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("x,z\n1,2\n")
    with pytest.raises(InputError, match="do not have the same columns; y, z"):
        Table.open([tmp_path / "a.csv", tmp_path / "b.csv"])


def test_a_pickled_array_is_not_opened(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError):
        Table.open(tmp_path / "t.npy")


def test_moments_are_those_of_the_textbook_at_a_large_offset() -> None:
    X = np.random.default_rng(0).standard_normal((500, 3))
    X[:, 1] += 1e9
    found = Table.open(X).moments()
    np.testing.assert_allclose(found.sd, (X - X[0]).std(axis=0, ddof=1), rtol=1e-12)
    np.testing.assert_allclose(found.mean, X.mean(axis=0), rtol=1e-12)
