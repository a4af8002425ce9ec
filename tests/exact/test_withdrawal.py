"""What two runs tell of somebody who is in the first alone; columns remembered at the site; rows that are not read."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from intarsia.errors import InputError, PrivacyError
from intarsia.privacy.ledger import Ledger
from intarsia.site.data.table import Table
from intarsia.site.data.table_rules import TableRules
from intarsia.site.fingerprint import Fingerprint
from intarsia.site.withdrawal import FILE, refuse_withdrawn, withdraw, withdrawn


def test_a_second_run_without_a_person_raises_what_the_first_tells_to_whoever_knows_both() -> None:
    """R² of the person's value: the part of the unit vector that lies in the rows of Φ, then in those of both. Their ratio is
    n/(n − m): the first Φ's rows, with the second's projected out, are m directions in n − m dimensions."""
    rng, n, m = np.random.default_rng(0), 300, 60
    alone, both = [], []
    for _ in range(60):
        first, second = np.linalg.qr(rng.standard_normal((n, m)))[0], np.zeros((n, m))
        second[1:] = np.linalg.qr(rng.standard_normal((n - 1, m)))[0]
        alone.append(np.square(first[0]).sum())
        both.append(np.square(np.linalg.qr(np.hstack([first, second]))[0][0]).sum())
    assert np.mean(both) / np.mean(alone) == pytest.approx(n / (n - m), rel=0.02)


@pytest.fixture
def table() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.standard_normal((40, 3)), columns=["a", "b", "y"])
    frame["centre"] = np.resize(["x", "z"], 40)
    frame.loc[3, "b"] = np.nan
    frame.insert(0, "id", [f"P{i:03d}" for i in range(40)])
    return frame


def opened(frame: pd.DataFrame, **options: object) -> Table:
    return Table.open(frame, id="id", responses=["y"], rules=TableRules(missing="mean", **options))


def test_a_fingerprint_sees_one_changed_cell_and_no_change_of_order(table: pd.DataFrame, tmp_path: Path) -> None:
    ledger, rows = Ledger(tmp_path), np.arange(0, 40, 2)
    before = Fingerprint.from_bytes(Fingerprint.of(opened(table), ledger, rows).to_bytes())
    shuffled = table.sample(frac=1.0, random_state=0)
    now, gone = before.again(opened(shuffled), ledger)
    assert (list(before.changed(now)), gone) == ([], 0)
    outside = table.copy()
    outside.loc[1, "y"] += 1  # not in the run
    assert not before.changed(before.again(opened(outside), ledger)[0])
    for column, value in (("y", 1e-9), ("b", 0.0)):
        other = table.copy()
        other.loc[2, column] = table.loc[2, column] + value if value else np.nan
        assert list(before.changed(before.again(opened(other), ledger)[0])) == [column]
    assert before.again(opened(table.drop(index=[0, 1])), ledger)[1] == 1
    assert "c" in before.changed(before.again(opened(table.assign(c=table["a"])), ledger)[0])
    # Another site's ledger has another key: nothing can be compared across sites.
    assert Fingerprint.of(opened(table), Ledger(tmp_path / "other"), rows).columns != before.columns


def test_rows_that_are_not_read_are_as_if_they_were_not_there(table: pd.DataFrame, tmp_path: Path) -> None:
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_parquet(tmp_path / "t.parquet")
    less = opened(table.drop(index=[0, 3, 39]))
    for source in (table, tmp_path / "t.csv", tmp_path / "t.parquet", [tmp_path / "t.csv"]):
        found = opened(source, without={"p0", "p3", "p39"})
        assert list(found.ids()) == list(less.ids())
        for rows in (7, None):
            ours, theirs = (np.vstack([np.hstack(part) for part in t.blocks(rows)]) for t in (found, less))
            np.testing.assert_array_equal(ours, theirs)
        assert found.missing_counts == {}
    assert opened(table, without={"nobody"}).n == 40
    with pytest.raises(InputError, match="Every subject of the table has withdrawn"):
        opened(table.head(1), without={"p0"})


def test_the_list_grows_and_recognises_people_however_they_are_written(tmp_path: Path) -> None:
    first = withdraw(tmp_path, ["P001", " p-1 ", ""], ["P001", "P002"])
    assert (first.given, first.in_table, first.new) == (1, 1, 1)  # both are the same person
    second = withdraw(tmp_path, ["P001", "P777"], ["P001", "P002"])
    assert (second.given, second.in_table, second.new) == (2, 1, 1)
    assert withdrawn(tmp_path) == {"p1", "p777"}
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(InputError, match="1 rows more than ids given fit"):
        withdraw(tmp_path, ["12"], ["1-2", "12"])
    with pytest.raises(InputError, match="names no subject"):
        withdraw(tmp_path, [" ", ""], ["1"])
    assert (tmp_path / FILE).read_bytes() == before
    with pytest.raises(PrivacyError, match="1 of these subjects have withdrawn"):
        refuse_withdrawn(tmp_path, ["P002", next(iter(withdrawn(tmp_path)))])
    refuse_withdrawn(tmp_path, ["P002"])
    refuse_withdrawn(None, ["P001"])
