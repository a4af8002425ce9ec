"""A REDCap export with its data dictionary: `site init --redcap` says what each column is, and what should stay at the site."""

import csv
import tomllib
from pathlib import Path

import numpy as np
import pytest

from intarsia.cli import main
from intarsia.errors import InputError
from intarsia.site.redcap import read_dictionary
from intarsia.site.site_folder import SiteFolder

HEAD = (
    "Variable / Field Name,Form Name,Section Header,Field Type,Field Label,"
    '"Choices, Calculations, OR Slider Labels",Field Note,Text Validation Type OR Show Slider Number,Text Validation Min,'
    "Text Validation Max,Identifier?,Branching Logic (Show field only if...),Required Field?,Custom Alignment,"
    "Question Number (surveys only),Matrix Group Name,Matrix Ranking?,Field Annotation"
)
GRADES = "0, Not at all | 1, Several days | 2, More than half the days | 3, Nearly every day | -9, Prefer not to answer"
COMPLAINTS = ("little interest", "feeling down", "trouble sleeping", "little energy", "appetite", "feeling bad about yourself",
              "trouble concentrating", "moving slowly", "thoughts of harm")  # fmt: skip
N = 80


def line(name: str, type: str, label: str, choices: str = "", **more: str) -> list[str]:
    out = [name, "baseline", "", type, label, choices] + [""] * 12
    for key, value in more.items():
        out[{"validation": 7, "identifier": 10, "branching": 11, "matrix": 15}[key]] = value
    return out


def dictionary(folder: Path) -> Path:
    """A depression questionnaire of nine items with what surrounds it in a project."""
    rows = [
        line("record_id", "text", "Record ID"),
        line("intro", "descriptive", "<b>Welcome</b>"),
        line("dob", "text", "Date of birth", validation="date_ymd", identifier="y"),
        line("surname", "text", "Surname", identifier="y"),
        line("visit", "text", "Date of visit", validation="date_ymd"),
        line("age", "text", "Age", validation="integer"),
        line("crp", "text", "C-reactive protein, mg/l", validation="number_1dp"),
        line("sex", "radio", "Sex", "1, Female | 2, Male"),
        line("centre", "dropdown", "Centre", "1, Ulm | 2, Graz | 3, Basel | 4, Bergen"),
        line("smoker", "yesno", "Do you smoke?"),
        line("cigarettes", "text", "How many a day?", validation="integer", branching="[smoker] = '1'"),
        line("illness", "checkbox", "Ever had", "1, Asthma | 2, Diabetes | 99, Don't know"),
        *(line(f"phq{k}", "radio", f"Over two weeks: {what}", GRADES, matrix="phq") for k, what in enumerate(COMPLAINTS, 1)),
        line("hardship", "radio", "How difficult?", "0, Not difficult at all | 1, Very difficult | 2, Extremely difficult"),
        line("phq_total", "calc", "Sum", "sum([phq1], [phq2])"),
        line("remarks", "notes", "Remarks"),
        line("later", "yesno", "Asked in the second wave"),
    ]
    path = folder / "dictionary.csv"
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        file.write(HEAD + "\n")
        csv.writer(file).writerows(rows)
    return path


def export(folder: Path) -> tuple[Path, dict[str, list[str]]]:
    """The raw export of eighty people, and its columns."""
    rng = np.random.default_rng(0)

    def pick(*codes: int) -> list[str]:
        return [str(rng.choice(codes)) for _ in range(N)]

    grades = {f"phq{k}": pick(0, 1, 2, 3) for k in range(1, 10)}
    columns = {
        "record_id": [str(i + 1) for i in range(N)], "redcap_event_name": ["baseline_arm_1"] * N, "dob": ["1970-01-02"] * N,
        "surname": ["Secret"] * N, "visit": ["2024-05-06"] * N, "age": [str(rng.integers(20, 80)) for _ in range(N)],
        "crp": [f"{rng.gamma(2):.1f}" for _ in range(N)], "sex": pick(1, 2), "centre": pick(1, 2, 3, 4), "smoker": pick(0, 1),
        "cigarettes": [""] * N, "illness___1": pick(0, 1), "illness___2": pick(0, 1), "illness___99": ["0"] * N, **grades,
        "hardship": pick(0, 1, 2), "phq_total": [str(sum(int(grades[f"phq{k}"][i]) for k in range(1, 10))) for i in range(N)],
        "remarks": ["none"] * N, "baseline_complete": pick(0, 1, 2),
    }  # fmt: skip
    columns["phq3"][5] = columns["phq3"][9] = "-9"
    path = folder / "export.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([list(columns), *zip(*columns.values())])
    return path, columns


def init(folder: Path, *more: str) -> int:
    table, words = export(folder)[0], dictionary(folder)
    name = ["--name", "clinic", "--table", str(table), "--redcap", str(words)]
    return main(["site", "init", str(folder / "clinic"), *name, *more])


def test_the_dictionary_says_what_every_column_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(tmp_path, "--responses", "phq_total", "--covariates", "age,sex") == 0
    told = capsys.readouterr().out
    assert "why 8 columns should stay here" in told
    assert "not in the table" in told
    text = (tmp_path / "clinic" / "site.toml").read_text(encoding="utf-8")
    said = tomllib.loads(text)["table"]
    assert said["id"] == "record_id"
    assert said["ignore"] == [
        "redcap_event_name", "dob", "surname", "visit", "cigarettes", "illness___99", "remarks", "baseline_complete",
    ]  # fmt: skip
    for name, reason in {
        "dob": "marked as an identifier", "visit": "date", "cigarettes": "asked only if [smoker] = '1'", "remarks": "free text",
        "illness___99": "ticked where there was no answer", "redcap_event_name": "REDCap's own",
    }.items():  # fmt: skip
        assert f'"{name}",  # {reason}' in text
    assert "# Over two weeks: trouble sleeping: 0 Not at all; 1 Several days" in text
    rules = said["columns"]
    grades = {"order": [0, 1, 2, 3], "scores": [0, 1, 2, 3], "missing_codes": [-9]}
    assert all(rules[f"phq{k}"] == grades for k in range(1, 10))
    assert rules["hardship"]["order"] == [0, 1, 2]
    assert rules["centre"] == rules["sex"] == {"categorical": True}
    assert set(rules) == {*(f"phq{k}" for k in range(1, 10)), "hardship", "centre", "sex"}


def test_the_table_is_read_by_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    init(tmp_path, "--responses", "phq_total", "--covariates", "age,sex")
    folder = tmp_path / "clinic"
    toml = folder / "site.toml"
    toml.write_text(toml.read_text().replace('missing = "error"', 'missing = "mean"'), encoding="utf-8")
    table, columns = SiteFolder.load(folder).site().table(), export(tmp_path)[1]
    assert table.responses == ["phq_total"]
    assert table.covariates == ["age", "sex=2"]
    assert [f"centre={k}" for k in range(1, 5)] == [name for name in table.features if name.startswith("centre")]
    assert not {"surname", "dob", "cigarettes", "remarks"} & set(table.features)
    assert table.imputed == {"phq3": 2}
    block = np.vstack(list(table.raw_blocks()))
    for name in ("phq1", "phq9", "hardship", "smoker", "crp"):
        np.testing.assert_array_equal(block[:, table.labels.index(name)], np.array(columns[name], float))
    capsys.readouterr()
    main(["site", "check", str(folder)])
    shown = " ".join(capsys.readouterr().out.split())
    assert "grades 0, 1, 2, 3" in shown
    assert "Secret" not in shown


def test_outcomes_have_their_kind_and_are_never_left_out(tmp_path: Path) -> None:
    init(tmp_path, "--responses", "phq3,smoker,sex,centre,cigarettes", "--ignore", "age")
    said = tomllib.loads((tmp_path / "clinic" / "site.toml").read_text(encoding="utf-8"))["table"]
    graded = {"kind": "ordinal", "order": [0, 1, 2, 3]}
    assert said["kinds"] == {"phq3": graded, "smoker": "binary", "sex": "binary"}
    assert said["columns"]["phq3"] == {"missing_codes": [-9]}
    assert said["columns"]["centre"] == {}
    assert "cigarettes" not in said["ignore"]
    assert "age" in said["ignore"]
    assert SiteFolder.load(tmp_path / "clinic").site().table().responses == ["sex", "centre", "smoker", "cigarettes", "phq3"]


def test_the_dictionary_of_the_api_is_the_same(tmp_path: Path) -> None:
    path = dictionary(tmp_path)
    fields = read_dictionary(path)
    names = (
        "field_name,form_name,section_header,field_type,field_label,select_choices_or_calculations,field_note,"
        "text_validation_type_or_show_slider_number,text_validation_min,text_validation_max,identifier,branching_logic,"
        "required_field,custom_alignment,question_number,matrix_group_name,matrix_ranking,field_annotation"
    )
    path.write_text(path.read_text(encoding="utf-8-sig").replace(HEAD, names), encoding="utf-8")
    assert read_dictionary(path) == fields
    assert len(fields) == 24  # the descriptive text is no field


def test_what_is_no_dictionary_or_no_raw_export_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, words = export(tmp_path)[0], dictionary(tmp_path)
    with pytest.raises(InputError, match="no REDCap data dictionary: it has no column 'Variable / Field Name'"):
        read_dictionary(table)
    table.write_text(table.read_text().replace("record_id", "Record ID", 1), encoding="utf-8")
    place = ["site", "init", str(tmp_path / "clinic"), "--name", "clinic"]
    assert main([*place, "--table", str(table), "--redcap", str(words)]) == 2
    assert "Export the data raw" in capsys.readouterr().err
    assert main([*place, "--table", "absent.csv", "--redcap", str(words)]) == 2
    assert "There is no file" in capsys.readouterr().err
    assert not (tmp_path / "clinic").exists()
