"""The query of docs/tables.md makes one row for each person of a small OMOP CDM, in DuckDB and in PostgreSQL."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import postgres
from tests.contract.test_databases import with_password

from intarsia.site.site_folder import SiteFolder

PAGE = (Path(__file__).parents[2] / "docs" / "tables.md").read_text(encoding="utf-8")
BLOCK = PAGE.split("## An OMOP common data model")[1].split("```toml\n")[1].split("```")[0]
# Columns and concepts of the CDM 5.4 that the query uses; 443238 is a descendant of type 2 diabetes.
TABLES = """
CREATE TABLE person (person_id INTEGER, gender_concept_id INTEGER, year_of_birth INTEGER);
CREATE TABLE observation_period (person_id INTEGER, observation_period_start_date DATE, observation_period_end_date DATE);
CREATE TABLE condition_occurrence (person_id INTEGER, condition_concept_id INTEGER, condition_start_date DATE);
CREATE TABLE measurement (person_id INTEGER, measurement_concept_id INTEGER, measurement_date DATE, value_as_number DOUBLE PRECISION);
CREATE TABLE drug_exposure (person_id INTEGER, drug_concept_id INTEGER, drug_exposure_start_date DATE);
CREATE TABLE concept_ancestor (ancestor_concept_id INTEGER, descendant_concept_id INTEGER);
INSERT INTO person VALUES (1, 8532, 1950), (2, 8507, 1960), (3, 8507, 1970), (4, 8532, 1980), (5, 8532, 1990), (6, 8507, 1955);
INSERT INTO observation_period VALUES (1, '2010-01-01', '2020-12-31'), (2, '2010-01-01', '2020-12-31'),
  (3, '2018-06-01', '2020-12-31'), (4, '2010-01-01', '2020-12-31'), (5, '2010-01-01', '2020-12-31'), (6, '2010-01-01', '2020-12-31');
INSERT INTO concept_ancestor VALUES (201826, 201826), (201826, 443238), (1503297, 1503297), (1503297, 40164929);
INSERT INTO condition_occurrence VALUES (1, 201826, '2018-03-01'), (1, 443238, '2017-03-01'), (2, 443238, '2019-03-01'),
  (3, 201826, '2019-01-01'), (4, 201826, '2018-05-05'), (5, 4000000, '2018-01-01'), (6, 201826, '2016-01-01');
INSERT INTO measurement VALUES (1, 3004410, '2016-06-01', 9.5), (1, 3004410, '2017-01-01', 8.25), (1, 3004410, '2017-05-01', 6.0),
  (1, 3038553, '2016-12-01', 31.5), (2, 3004410, '2018-12-01', 6.75), (2, 3004410, '2019-01-01', NULL), (3, 3004410, '2018-12-01', 9.0),
  (4, 3038553, '2018-04-01', 24.0), (6, 3004410, '2015-12-31', 7.0), (6, 3038553, '2014-06-01', 28.0);
INSERT INTO drug_exposure VALUES (1, 40164929, '2016-12-24'), (1, 1503297, '2017-01-24'), (2, 40164929, '2019-03-02'),
  (6, 1503297, '2015-07-07');
"""  # noqa: E501
# Of six: 3 was observed for too short a time, 4 has no HbA1c in the window, 5 has no diabetes.
EXPECTED = {
    "1": {"age": 67, "sex=male": 0, "bmi": 31.5, "metformin": 1, "hba1c": 8.25},
    "2": {"age": 59, "sex=male": 1, "bmi": np.nan, "metformin": 0, "hba1c": 6.75},
    "6": {"age": 61, "sex=male": 1, "bmi": np.nan, "metformin": 1, "hba1c": 7.0},
}


def duckdb(folder: Path) -> str:
    package = pytest.importorskip("duckdb", reason="needs intarsia[duckdb]")
    with package.connect(str(folder / "cdm.duckdb")) as connection:
        connection.execute(TABLES)
    return str(folder / "cdm.duckdb")


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    dbapi = pytest.importorskip("adbc_driver_postgresql.dbapi", reason="needs intarsia[postgresql]")
    with postgres.server() as uri:
        with dbapi.connect(with_password(uri)) as connection, connection.cursor() as cursor:
            for statement in filter(str.strip, TABLES.split(";")):
                cursor.execute(statement)
            connection.commit()
        yield uri


def check(folder: Path, source: str) -> None:
    said: dict[str, Any] = tomllib.loads(BLOCK)
    assert said["table"]["source"] == "cdm.duckdb"
    (folder / "site.toml").write_text('name = "clinic"\n' + BLOCK.replace("cdm.duckdb", source), encoding="utf-8")
    table = SiteFolder.load(folder).site().table()
    assert (table.responses, table.covariates) == (["hba1c"], ["age", "sex=male"])
    assert table.ids().tolist() == list(EXPECTED)
    rows = np.vstack(list(table.encoded()))
    got = {id: dict(zip(table.labels, row)) for id, row in zip(EXPECTED, rows.tolist())}
    for id, expected in EXPECTED.items():
        np.testing.assert_equal(got[id], expected, err_msg=id)


def test_the_query_of_the_page_runs_on_duckdb(tmp_path: Path) -> None:
    check(tmp_path, duckdb(tmp_path))


def test_the_query_of_the_page_runs_on_postgresql(tmp_path: Path, postgresql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", postgres.PASSWORD)
    check(tmp_path, postgresql)
