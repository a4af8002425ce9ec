"""A table of results is the same in every kind of file, and no cell of it can become a formula or mark-up."""

import csv
import json
import xml.etree.ElementTree as ET
import zipfile
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from intarsia.cli.labels import read_labels
from intarsia.errors import InputError
from intarsia.wire.page_table import Page
from intarsia.wire.table_files import write_table

ROWS: list[dict[str, Any]] = [
    {"feature": "no2_2019", "effect": 0.123456789, "selected": True, "n": 3, "unit": "ml & %"},
    {"feature": "=HYPERLINK(1)|x", "effect": float("nan"), "selected": False, "n": -7, "unit": "a<b>\x1b[2J\n"},
]
HEAD = ["feature", "effect", "selected", "n", "unit"]


def test_csv_and_tsv_keep_all_digits_and_no_formula(tmp_path: Path) -> None:
    for suffix, sign in ((".csv", ","), (".tsv", "\t")):
        write_table(tmp_path / f"t{suffix}", ROWS)
        with (tmp_path / f"t{suffix}").open(newline="", encoding="utf-8") as file:
            got = list(csv.reader(file, delimiter=sign))
        assert got[0] == HEAD
        assert got[1] == ["no2_2019", "0.123456789", "True", "3", "ml & %"]
        assert got[2][0] == "'=HYPERLINK(1)|x"


def test_json_lines(tmp_path: Path) -> None:
    write_table(tmp_path / "t.jsonl", ROWS[:1])
    assert json.loads((tmp_path / "t.jsonl").read_text()) == ROWS[0]


def test_excel_has_numbers_as_numbers_and_texts_as_texts(tmp_path: Path) -> None:
    write_table(tmp_path / "t.xlsx", ROWS)
    first = (tmp_path / "t.xlsx").read_bytes()
    write_table(tmp_path / "t.xlsx", ROWS)
    assert (tmp_path / "t.xlsx").read_bytes() == first
    with zipfile.ZipFile(tmp_path / "t.xlsx") as archive:
        parts = {name: ET.fromstring(archive.read(name)) for name in archive.namelist()}  # every part is well formed
    assert {"[Content_Types].xml", "_rels/.rels", "xl/workbook.xml", "xl/_rels/workbook.xml.rels"} < set(parts)
    main = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
    rows = parts["xl/worksheets/sheet1.xml"].findall(f"{main}sheetData/{main}row")
    cells = [[(c.get("t"), "".join(c.itertext())) for c in row] for row in rows]
    assert [text for _, text in cells[0]] == HEAD
    assert cells[1] == [("inlineStr", "no2_2019"), (None, "0.123456789"), ("b", "1"), (None, "3"), ("inlineStr", "ml & %")]
    assert cells[2] == [("inlineStr", "=HYPERLINK(1)|x"), (None, ""), ("b", "0"), (None, "-7"), ("inlineStr", "a<b>\\x1b[2J\\n")]
    assert not parts["xl/worksheets/sheet1.xml"].findall(f".//{main}f")


def test_excel_opens_in_another_reader(tmp_path: Path) -> None:
    import openpyxl

    write_table(tmp_path / "t.xlsx", ROWS)
    got = list(openpyxl.load_workbook(tmp_path / "t.xlsx").active.values)
    assert list(got[0]) == HEAD
    assert got[1][:4] == ("no2_2019", 0.123456789, True, 3)


def test_latex_and_markdown_escape_their_signs(tmp_path: Path) -> None:
    write_table(tmp_path / "t.tex", ROWS)
    tex = (tmp_path / "t.tex").read_text()
    assert r"no2\_2019 & 0.1235 & yes & 3 & ml \& \% \\" in tex
    assert r"\textbackslash{}x1b[2J" in tex
    assert tex.startswith(r"\begin{tabular}{lrlrl}")
    write_table(tmp_path / "t.md", ROWS)
    lines = (tmp_path / "t.md").read_text().splitlines()
    assert lines[2] == "| no2_2019 | 0.1235 | yes | 3 | ml &amp; % |"
    assert lines[3].startswith("| =HYPERLINK(1)\\|x |  | no | -7 | a&lt;b&gt;")


LABELS = [
    "![x](//evil/a.png)",
    "[here](javascript:1)",
    "**bold**",
    "_slanted_",
    "~~gone~~",
    "snp_12_A",
    "[1mm]",
    "*",
    r"a\|b",
]


def test_a_label_is_no_mark_up_of_its_own(tmp_path: Path) -> None:
    """Rendered, a cell shows what the label is: no picture is fetched, nothing is a link, bold or struck out."""
    rows = [{"feature": label, "effect": 0.5} for label in LABELS]
    write_table(tmp_path / "t.md", rows)
    page = MarkdownIt().enable(["table", "strikethrough"]).render((tmp_path / "t.md").read_text())
    root = ET.fromstring(f"<page>{page}</page>")
    assert {part.tag for part in root.iter()} == {"page", "table", "thead", "tbody", "tr", "th", "td"}
    assert [row[0].text for row in root.findall("table/tbody/tr")] == LABELS
    assert "snp_12_A" in (tmp_path / "t.md").read_text()
    write_table(tmp_path / "t.tex", rows)
    body = (tmp_path / "t.tex").read_text().splitlines()
    ends = [k for k, line in enumerate(body[:-1]) if line.endswith("\\\\")]
    assert not any(body[k + 1].startswith(("[", "*")) for k in ends)
    assert "{}[1mm] & 0.5" in (tmp_path / "t.tex").read_text()


def test_a_page_says_no_more_than_a_reader_needs(tmp_path: Path) -> None:
    """No probability of 7e-29, and not in every row that it is of a feature and selected."""
    rows = [{"feature": name, "role": "feature", "lfsr": rate, "selected": True} for name, rate in (("a", 7e-29), ("b", 0.2))]
    write_table(tmp_path / "t.md", rows)
    lines = (tmp_path / "t.md").read_text().splitlines()
    assert lines[0] == "| feature | lfsr |"
    assert lines[2:] == ["| a | &lt; 0.001 |", "| b | 0.200 |"]
    write_table(tmp_path / "t.csv", rows)
    assert (tmp_path / "t.csv").read_text().splitlines()[1] == "a,feature,7e-29,True"


EFFECT = {
    "feature": "bmi", "role": "feature", "site": "clinic", "response": "fev1",
    "effect": -0.123456, "lower": -0.2011, "upper": -0.0512, "interval": 0.95, "unit": "l per kg/m²", "sd": 0.04,
    "standardised": -0.3, "pip": 0.99951, "lfsr": 0.2, "selected": True,
}  # fmt: skip


def test_a_page_has_units_in_its_heading_and_digits_that_are_known(tmp_path: Path) -> None:
    """One cell for an effect and its interval, two figures of the interval's width, labels for columns, covariates as rows."""
    age = EFFECT | {"feature": "sex=f", "role": "covariate", "effect": 120.4, "lower": 85.2, "upper": 155.9, "pip": None}
    none = EFFECT | {"feature": "zinc", "effect": 0.0031, "lower": 0.0, "upper": 0.0912, "pip": 0.08}
    page = Page("Effects & odds.", "tab:lungs 1", {"bmi": "Body mass index (kg/m²)", "fev1": "FEV₁", "sex": "Sex"})
    write_table(tmp_path / "t.tex", [EFFECT, none, age], page=page)
    lines = (tmp_path / "t.tex").read_text().splitlines()
    assert lines[0] == r"\begin{table}"
    assert r"\caption{Effects \& odds.}" in lines
    assert r"\label{tab:lungs-1}" in lines
    assert lines[-1] == r"\end{table}"
    head = next(line for line in lines if line.startswith("Feature"))
    assert head == r"Feature & Role & Site & Response & Effect, l per kg/m$^2$ (95\% interval) & PIP & Sign rate \\"
    assert any(
        "Body mass index (kg/m$^2$) & " in line and "$-$0.12 ($-$0.20 to $-$0.05)" in line and "$>$ 0.999" in line
        for line in lines
    )
    assert any("zinc" in line and "0.003 (up to 0.091)" in line for line in lines)
    assert any("Sex: f" in line and "covariate" in line and "120 (85 to 156)" in line for line in lines)
    write_table(tmp_path / "t.csv", [EFFECT, none, age], page=page)  # for programs: every column and digit, names as they are
    assert (tmp_path / "t.csv").read_text().splitlines()[1].startswith("bmi,feature,clinic,fev1,-0.123456,-0.2011")


def test_units_that_differ_keep_their_column_and_odds_ratios_have_one_cell(tmp_path: Path) -> None:
    asthma = EFFECT | {"response": "asthma", "unit": "log odds", "odds_ratio": 1.4321, "or_lower": 1.1, "or_upper": 1.9}
    plain = EFFECT | {"odds_ratio": None, "or_lower": None, "or_upper": None}
    write_table(tmp_path / "t.md", [asthma, plain])
    lines = (tmp_path / "t.md").read_text().splitlines()
    assert "| Unit |" in lines[0]
    assert "Odds ratio (95% interval)" in lines[0]
    assert "1.43 (1.10 to 1.90)" in lines[2]
    assert lines[3].count("(") == 1


def test_labels_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("name,label,unit\nbmi,Body mass index,kg/m²\nsex,Sex,\n", encoding="utf-8")
    assert read_labels(tmp_path / "labels.csv") == {"bmi": "Body mass index (kg/m²)", "sex": "Sex"}
    for text, wrong in (("a,b\n1,2\n", "it needs name and label"), ("name,label\nbmi,\n", "line 2"),
                        ("name,label\nbmi,A\nbmi,B\n", "line 3: 'bmi' has a label already")):  # fmt: skip
        (tmp_path / "labels.csv").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=wrong):
            read_labels(tmp_path / "labels.csv")


@pytest.mark.parametrize("name", ["t.xls", "t.txt", "t"])
def test_an_unknown_suffix_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"Use \.csv, \.tsv, \.jsonl, \.xlsx, \.tex, \.md"):
        write_table(tmp_path / name, ROWS)
    assert not (tmp_path / name).exists()


def test_a_table_without_rows_has_its_headings(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", [], ["feature", "mean"])
    assert (tmp_path / "t.csv").read_text().splitlines() == ["feature,mean"]
