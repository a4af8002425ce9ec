"""What docs/tables.md writes into site.toml is understood, and the template of a new site is too."""

import re
from pathlib import Path
from typing import Any

import pytest

from intarsia.errors import InputError
from intarsia.site.data.column_rules import ColumnRule
from intarsia.site.data.reading import Reading
from intarsia.site.data.table import Table
from intarsia.site.data.table_rules import TableRules
from intarsia.site.site import Site
from intarsia.site.site_folder import SiteFolder
from intarsia.site.table_settings import for_new_subjects

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"
BLOCKS = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_every_block_of_the_page_is_read(block: str, tmp_path: Path) -> None:
    text = block if block.startswith("name") else f'name = "clinic"\n{block}'
    (tmp_path / "site.toml").write_text(text, encoding="utf-8")
    settings = SiteFolder.load(tmp_path).settings
    assert settings["name"] == "clinic"
    assert set(settings) > {"name", "policy"}


def test_there_are_blocks() -> None:
    assert len(BLOCKS) >= 6


def test_the_template_is_read_and_a_source_is_found_from_the_folder(tmp_path: Path) -> None:
    site_folder = SiteFolder.create(tmp_path / "clinic", "clinic", "visits.csv", "patient", ["fev1"])
    assert site_folder.settings["covariates"] == []
    assert site_folder.site().data == str(tmp_path / "clinic" / "visits.csv")
    path = tmp_path / "clinic" / "site.toml"
    path.write_text(path.read_text().replace('"visits.csv"', '["a.csv", "/b.csv"]'))
    assert SiteFolder.load(tmp_path / "clinic").site().data == [str(tmp_path / "clinic" / "a.csv"), "/b.csv"]
    path.write_text(path.read_text().replace('["a.csv", "/b.csv"]', '"postgresql://db/x"\npassword_file = "p"'))
    site = SiteFolder.load(tmp_path / "clinic").site()
    assert site.data == "postgresql://db/x"
    assert site.rules.reading == {"password_file": str(tmp_path / "clinic" / "p")}


def test_new_subjects_keep_codes_categories_and_how_the_table_is_read() -> None:
    rules = TableRules(
        missing="mean",
        columns={"centre": {"categorical": True}, "y": {"missing": "mean"}, "lab_*": {"missing_codes": [7]}},
        missing_codes=[9],
        reading={"query": "visits", "decimal": ",", "dataset": "old/matrix"},
    )
    nothing: dict[str, dict[str, Any]] = {"levels": {}, "reference": {}}
    got = for_new_subjects(rules, ["centre", "lab_1"], nothing)
    left = {"centre": {"categorical": True}, "lab_*": {"missing_codes": [7]}}
    assert got == TableRules("mean", "drop", left, [9], Reading(decimal=",", query="visits"))


def test_new_subjects_have_the_levels_of_the_sketch_beside_the_columns_own_rules() -> None:
    rules = TableRules(columns={"lab_*": {"missing_codes": [7], "missing": "mean"}})
    kept = {"levels": {"lab_1": ["1", "2"], "y": ["no", "yes"]}, "reference": {"lab_1": "2", "y": "no"}}
    got = for_new_subjects(rules, ["lab_1", "lab_2"], kept).columns
    assert got is not None
    assert set(got) == {"lab_*", "lab_1"}  # y is no column of theirs
    assert got["lab_1"] == ColumnRule(levels=("1", "2"), reference="2", missing_codes=("7",), missing="mean")
    table = Table.open({"lab_1": [1, 7, 1], "lab_2": [0.5, 7.0, 2.5]}, rules=TableRules(columns=got))
    assert table.features == ["lab_1=1", "lab_2"]
    assert table.missing_counts == {"lab_1": 1, "lab_2": 1}


def test_a_site_in_python_takes_the_names_of_site_toml(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("who|x|y\na|1,5|2\nb|2,5|1\n", encoding="utf-8")
    site = Site(
        "s", tmp_path / "t.csv", id="who", responses=["y"], options={"separator": "|", "decimal": ",", "missing_codes": [9]}
    )
    assert list(site.table().features) == ["x"]
    assert site.rules.missing_codes == [9]
    with pytest.raises(InputError, match=r"options has 'qery', which says nothing about a table\. Known: columns, .*query"):
        Site("s", tmp_path / "t.csv", id="who", options={"qery": "t"})
    with pytest.raises(InputError, match="both a Reading and 'query'"):
        Site("s", tmp_path / "t.csv", id="who", options={"reading": Reading(), "query": "t"})
