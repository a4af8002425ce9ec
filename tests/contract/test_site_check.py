"""`intarsia site check`: whoever answers for the data sees what would leave, and looking neither sends nor books anything."""

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from intarsia.cli import main
from intarsia.errors import InputError, PrivacyError
from intarsia.site.key import SketchKey
from intarsia.wire.study import Study

N = 400
STUDY = """schema = 1
id = "lungs"
run = "a1b2c3d4a1b2c3d4"
[sketch]
m = {m}
[[site]]
name = "clinic"
responses = ["fev1", "grade"]
features = ["age", "centre*", "bmi", "asthma", "same"]
"""


def made_site(folder: Path, **table: Any) -> Path:
    rng = np.random.default_rng(0)
    df = pd.DataFrame(
        {
            "patient": [f"p{i}" for i in range(N)],
            "age": rng.normal(50, 10, N).round(1),
            "centre": rng.integers(1, 5, N),
            "bmi": rng.normal(25, 3, N).round(3),
            "asthma": rng.integers(0, 2, N),
            "grade": rng.integers(0, 3, N),
            "fev1": rng.normal(3, 0.5, N).round(3),
            "same": 1,
        }
    )
    df.loc[:20, "bmi"] = 999
    df.to_csv(folder / "visits.csv", index=False, sep=";", decimal=",")
    site = folder / "clinic"
    site.mkdir()
    lines = ['name = "clinic"', "[table]", 'source = "../visits.csv"', 'id = "patient"', 'responses = ["fev1", "grade"]']
    (site / "site.toml").write_text("\n".join([*lines, *table.pop("lines", [])]) + "\n")
    return site


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def accepted(site: Path, m: int) -> None:
    (site / "accepted").mkdir()
    (site / "accepted" / "lungs.toml").write_text(STUDY.format(m=m))


def test_every_column_that_would_leave_is_named_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = made_site(tmp_path)
    before = files(tmp_path)
    assert main(["site", "check", str(site)]) == 6  # a constant column is refused
    said = capsys.readouterr().out
    assert "400 subjects, id column patient" in said
    assert "EVERY column without another role leaves as one: 5 columns" in said
    assert 'grade; 3 values, taken as numbers. Grades in order: say kinds = { grade = "ordinal" }' in said
    assert "centre; 4 whole numbers, taken as a measurement; if they are codes, say categorical = true" in said
    assert "bmi; 21 times 999, far from all other values: a code for missing?" in said
    assert "asthma; two values" in said
    assert "REFUSED  constant: same has one value only" in said
    assert files(tmp_path) == before


def test_a_table_put_in_order_passes_and_says_what_is_filled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = ["[table.columns.centre]", "categorical = true", "reference = 2", "[table.columns.bmi]", "missing_codes = [999]"]
    lines = [
        'features = ["age", "centre", "bmi", "asthma", "same"]',
        'missing = "mean"',
        'constant = "drop"',
        *rules,
    ]
    site = made_site(tmp_path, lines=lines)
    accepted(site, m=20)
    before = files(tmp_path)
    assert main(["site", "check", str(site), "--json"]) == 0
    got = json.loads(capsys.readouterr().out)
    columns = {column["name"]: column for column in got["columns"]}
    assert not got["unlisted"]
    assert columns["centre"]["role"] == "feature"
    assert (columns["centre"]["levels"], columns["centre"]["reference"]) == (["1", "2", "3", "4"], "2")
    assert (columns["bmi"]["missing"], columns["bmi"]["when_missing"]) == (21, "mean")
    assert columns["same"]["note"] == "one value only: left out"
    assert got["studies"][0]["study"] == "lungs"
    assert got["studies"][0]["refused"] == []
    assert any("few-values" in text for text in got["studies"][0]["warnings"])
    assert main(["site", "check", str(site)]) == 0
    said = capsys.readouterr().out
    assert "centre; categories 1, 2 (reference), 3, 4" in said
    assert "bmi; 21 missing: put at the mean" in said
    assert "21 missing values in 1 column will be filled" in said
    assert "ATTENTION" not in said
    assert files(tmp_path) == before


def test_the_gates_refusal_is_seen_beforehand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = made_site(tmp_path, lines=['ignore = ["same", "centre"]'])
    accepted(site, m=200)
    before = files(tmp_path)
    assert main(["site", "check", str(site)]) == 6
    said = capsys.readouterr().out
    assert "m = 200: the gate would REFUSE" in said
    assert "ratio: Σm/n = 0.500" in said
    assert "stay here: patient (id), centre, same" in said
    assert files(tmp_path) == before


def test_a_study_goes_by_the_name_that_commands_print(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = made_site(tmp_path, lines=['ignore = ["same", "centre"]'])
    accepted(site, m=200)
    hash_ = Study.load(site / "accepted" / "lungs.toml").hash
    for name in ("lungs", hash_[:8], f"lungs-{hash_[:8]}"):
        assert main(["site", "check", str(site), "--study", name]) == 6
        assert f"study lungs ({hash_[:12]}…), m = 200: the gate would REFUSE" in capsys.readouterr().out
    assert main(["site", "check", str(site), "--study", "liver"]) == InputError.exit_code
    assert f"Accepted here, by the names --study takes: lungs-{hash_[:8]}." in capsys.readouterr().err


def test_missing_values_are_seen_beforehand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = made_site(tmp_path, lines=['constant = "drop"', "[table.columns.bmi]", "missing_codes = [999]"])
    accepted(site, m=20)
    assert main(["site", "check", str(site)]) == 6
    said = capsys.readouterr().out
    assert "bmi; 21 missing: REFUSED" in said
    assert "Missing values in column bmi (21) of 400 rows" in said


def test_site_toml_says_which_line_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = made_site(tmp_path, lines=['missing = "zero"', "[table.columns.bmi]", "missingcodes = [999]"])
    assert main(["site", "check", str(site)]) == 4
    said = capsys.readouterr().err
    assert "line 6: missing 'zero' is not one of error, mean, regression" in said
    assert "unknown entry 'missingcodes'; did you mean 'missing_codes'?" in said


def test_a_column_the_study_does_not_list_is_seen_beforehand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = made_site(tmp_path, lines=['constant = "drop"'])
    accepted(site, m=20)
    path = site / "accepted" / "lungs.toml"
    path.write_text(path.read_text().replace('"asthma", ', ""))
    assert main(["site", "check", str(site)]) == 6
    assert "study.toml does not list the feature 'asthma' (1 in all)" in capsys.readouterr().out


def test_covariates_that_repeat_each_other_are_seen_beforehand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = made_site(tmp_path, lines=['covariates = ["age", "years"]', 'ignore = ["same"]'])
    df = pd.read_csv(tmp_path / "visits.csv", sep=";", decimal=",")
    df.assign(years=2 * df["age"]).to_csv(tmp_path / "visits.csv", index=False)
    assert main(["site", "check", str(site)]) == 6
    said = capsys.readouterr().out
    assert "2 covariates (adjusted for, not shrunk):" in said
    assert "Among the covariates column years follows exactly from the others" in said


class Terminal:
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_first_sketch_waits_for_a_yes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = made_site(tmp_path, lines=['ignore = ["same"]', 'key = "study.key"', "[table.columns.bmi]", "missing_codes = [999]",
                                 'missing = "mean"'])  # fmt: skip
    accepted(site, m=20)
    SketchKey(bytes(32)).save(site / "study.key")
    command = ["site", "sketch", str(site), "-o", str(tmp_path / "clinic.sketch")]
    assert main(command) == 6  # a script that nobody can be asked from
    assert "there is no terminal to ask on" in capsys.readouterr().err
    assert not (tmp_path / "clinic.sketch").exists()
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", lambda prompt: "no")
    assert main(command) == 6
    said = capsys.readouterr()
    assert "the gate would let it pass, with warnings" in said.out
    assert "Not confirmed: nothing was sketched" in said.err
    assert not (tmp_path / "clinic.sketch").exists()
    monkeypatch.setattr("builtins.input", lambda prompt: "yes")
    assert main(command) == 0
    assert "warning    few-values" in capsys.readouterr().out
    first = (tmp_path / "clinic.sketch").read_bytes()
    monkeypatch.delattr("builtins.input")  # the same bytes again need no second yes
    assert main(command) == 0
    assert (tmp_path / "clinic.sketch").read_bytes() == first


def test_a_new_site_says_whether_its_table_can_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_site(tmp_path)
    init = ["site", "init", str(tmp_path / "lab"), "--name", "lab", "--id", "patient", "--table", str(tmp_path / "visits.csv")]
    assert main([*init, "--responses", "fev1"]) == 0
    assert "table        400 subjects, 6 features, 1 response as it is now" in capsys.readouterr().out
    init[2] = str(tmp_path / "adjusting")
    assert main([*init, "--responses", "fev1", "--covariates", "bmi, age"]) == 0
    assert "table        400 subjects, 4 features, 1 response, 2 covariates as it is now" in capsys.readouterr().out
    init[2] = str(tmp_path / "other")
    assert main([*init, "--responses", "fev2"]) == 0
    assert "table        cannot be used yet: No column 'fev2' for the role response" in capsys.readouterr().out


def test_what_the_gate_of_a_private_study_does_not_look_at_is_told_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    """A private study refuses for no value; the person who asks still learns of the constant column."""
    site = made_site(tmp_path)
    (site / "accepted").mkdir()
    study = STUDY.format(m=30).replace("m = 30", 'm = 30\nkind = "gaussian"') + (
        "[privacy]\nepsilon = 5.0\ndelta = 1e-6\nrow_bound.clinic = 3.0\n"
        'centres.clinic = { "*" = 0.0 }\nscales.clinic = { "*" = 1.0 }\n'
    )
    (site / "accepted" / "lungs.toml").write_text(study)
    main(["site", "check", str(site), "--json"])
    found = json.loads(capsys.readouterr().out)["studies"][0]
    assert not found["refused"]
    assert any("for you alone: constant: same" in text for text in found["notes"])


def test_subjects_may_lack_responses_in_a_union(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is missing there is no mistake: each group of subjects is judged on its own."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.standard_normal((900, 5)), columns=["x1", "x2", "x3", "fev1", "grade"])
    table.insert(0, "patient", [f"p{i}" for i in range(900)])
    table.loc[:299, "fev1"] = np.nan
    table.loc[290:340, "grade"] = np.nan
    site = made_site(tmp_path)
    table.to_csv(tmp_path / "visits.csv", index=False)
    accepted(site, m=80)
    path = site / "accepted" / "lungs.toml"
    union = path.read_text().replace("[[site]]", '[alignment]\nmode = "union"\n[[site]]', 1)
    path.write_text(re.sub("features = .*", 'features = ["x*"]', union))
    before = files(tmp_path)
    assert main(["site", "check", str(site)]) == 0
    said = capsys.readouterr().out
    assert "fev1; 300 missing: these subjects count as lacking it" in said
    assert "559 subjects with fev1, grade: " in said
    assert "290 subjects with grade: " in said
    assert "51 subjects would be left out" in said
    assert "parts of them" in said
    assert files(tmp_path) == before
    table.assign(x1=table["x1"].where(table.index > 9)).to_csv(tmp_path / "visits.csv", index=False)
    assert main(["site", "check", str(site)]) == 6
    assert "x1; 10 missing: REFUSED" in capsys.readouterr().out


def test_a_text_column_behind_many_others_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "lab"
    site.mkdir()
    rng = np.random.default_rng(0)
    columns = {f"x{j:02d}": rng.standard_normal(60) for j in range(40)}
    table = {"id": np.arange(60), **columns, "examiner": np.where(np.arange(60) % 2, "ann", "ben")}
    pd.DataFrame(table).to_csv(tmp_path / "lab.csv", index=False)
    (site / "site.toml").write_text('name = "lab"\n[table]\nsource = "../lab.csv"\nid = "id"\n')
    assert main(["site", "check", str(site)]) == 0
    said = capsys.readouterr().out
    assert ", x29 and 10 more (--all lists them)\n  examiner; categories ann" in said


def test_features_of_which_the_same_is_to_be_said_share_a_line_and_all_that_must_be_mended_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site, n = tmp_path / "home", 400
    site.mkdir()
    rng = np.random.default_rng(0)
    table: dict[str, Any] = {"id": np.arange(n), "sleep": rng.standard_normal(n)}
    table |= {f"q{j}": np.r_[rng.permutation(n - 1) % 4, 7] for j in range(9)}  # one person alone has a 7
    table |= {"seen": np.repeat(np.datetime64("2020-01-01"), n), "weight": rng.standard_normal(n)}
    table |= {"pounds": table["weight"] * 2.2, "pets": np.r_[np.resize(["dog", "none"], n - 2), ["bird", "ferret"]]}
    table |= {f"blood{j}": np.where(np.arange(n) < 10 + j, np.nan, rng.standard_normal(n)) for j in range(3)}
    pd.DataFrame(table).to_parquet(tmp_path / "home.parquet")
    begun = 'name = "home"\n[table]\nsource = "../home.parquet"\nid = "id"\nmissing = "mean"\n'
    (site / "site.toml").write_text(begun)
    assert main(["site", "check", str(site)]) == InputError.exit_code
    assert "Column 'seen' holds dates with times" in capsys.readouterr().err
    begun += 'ignore = ["seen"]\n'
    (site / "site.toml").write_text(begun)
    assert main(["site", "check", str(site)]) == PrivacyError.exit_code
    said = capsys.readouterr().out
    assert "missing (how many in brackets): put at the mean (3 columns): blood0 (10), blood1 (11), blood2 (12)\n" in said
    assert "categorical = true (9 columns): q0, q1, q2, q3, q4, q5, q6, q7, q8\n" in said
    assert "rare-level: q0, q1, q2, q3, q4, q5, q6, q7, q8, pets=bird, pets=ferret have a value" in said
    assert "duplicate: pounds repeats weight" in said
    mended = '[table.columns."q*"]\nat_most = 3\n[table.columns.pets]\nmerge = { animal = ["bird", "dog", "ferret"] }\n'
    (site / "site.toml").write_text(begun.replace('"seen"', '"seen", "pounds"') + mended)
    assert main(["site", "check", str(site)]) == 0
    said = capsys.readouterr().out
    assert "numbers above 3 are taken as 3 (9 columns): q0, q1, q2, q3, q4, q5, q6, q7, q8\n" in said
    assert "pets; categories animal (reference), none; bird, dog, ferret are taken as animal" in said


def test_an_outcome_that_counts_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site, n = tmp_path / "clinic", 400
    site.mkdir()
    rng = np.random.default_rng(0)
    visits = np.r_[np.arange(30), rng.poisson(9, n - 30)]  # more values than grades could have
    falls, pulse = np.arange(n) % 5, np.arange(n) % 90 + 60
    table = {"id": np.arange(n), "bmi": rng.standard_normal(n), "visits": visits, "falls": falls, "pulse": pulse}
    pd.DataFrame(table).to_csv(tmp_path / "clinic.csv", index=False)
    begun = 'name = "clinic"\n[table]\nsource = "../clinic.csv"\nid = "id"\nresponses = ["visits", "falls", "pulse"]\n'
    (site / "site.toml").write_text(begun)
    assert main(["site", "check", str(site)]) == 0
    said = capsys.readouterr().out
    assert 'visits; whole numbers from 0: a count? Say kinds = { visits = "count" }, and effects are ratios; 0 to ' in said
    assert 'falls; whole numbers from 0, 5 of them: a count? Say kinds = { falls = "count" }' in said
    assert 'if they are grades, kinds = { falls = "ordinal" }; 0 to 4, median 2\n' in said
    assert f"\n  pulse; 60 to 149, median {np.median(pulse):.4g}\n" in said
    (site / "site.toml").write_text(begun + 'kinds = { visits = "count", falls = "ordinal" }\n')
    main(["site", "check", str(site)])
    assert "a count?" not in capsys.readouterr().out


def test_a_site_is_made_once_and_its_settings_are_edited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong column at the first try: the remedy is site.toml, not another key."""
    where = tmp_path / 'odd "quoted" folder'
    where.mkdir()
    (where / "visits.csv").write_text("patient,age,fev1\n" + "\n".join(f"p{i},{i % 9},{i % 7}" for i in range(40)) + "\n")
    init = ["site", "init", str(where / "clinic"), "--name", "clinic", "--table", str(where / "visits.csv"), "--id", "id"]
    assert main(init) == 0
    assert "cannot be used yet: No column 'id'" in capsys.readouterr().out
    keys = (where / "clinic" / "identity.key").read_bytes()
    assert main(init) == InputError.exit_code
    told = capsys.readouterr().err
    assert "is a site already" in told
    assert "site.toml" in told
    assert (where / "clinic" / "identity.key").read_bytes() == keys


def test_a_database_is_named_with_its_query_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("adbc_driver_sqlite")
    with sqlite3.connect(tmp_path / "records.sqlite") as records:
        records.execute("CREATE TABLE visits (patient INTEGER, fev1 REAL, note TEXT)")
        records.executemany("INSERT INTO visits VALUES (?, ?, 'seen')", [(i, i % 7 + i / 90) for i in range(40)])
    table = ["--table", str(tmp_path / "records.sqlite"), "--query", "visits", "--id", "patient"]
    assert main(["site", "init", str(tmp_path / "c"), "--name", "clinic", *table, "--ignore", "note"]) == 0
    assert "40 subjects, 1 feature, 0 responses" in capsys.readouterr().out


def test_cells_to_mend_are_named_to_the_operator_and_in_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By row and value, on the screen of whoever has the table; what is raised, and may leave, says neither."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"id": [f"p{i}" for i in range(N)], "age": rng.normal(50, 9, N).round(2), "fev1": rng.normal(size=N)})
    table["age"] = table["age"].astype(str)
    table.loc[16, "age"], table.loc[202, "age"] = "n/a?", "<50"
    table.loc[7, "id"] = "p6"
    table.to_csv(tmp_path / "clinic.csv", index=False)
    site = tmp_path / "clinic"
    site.mkdir()
    toml = 'name = "clinic"\n[table]\nsource = "../clinic.csv"\nid = "id"\nresponses = ["fev1"]\n'
    (site / "site.toml").write_text(toml)
    assert main(["site", "check", str(site)]) == 2  # so many different texts are no categories
    said = capsys.readouterr().err
    assert "to mend: age is taken for categories, because 2 cells hold text: row 17: 'n/a?'; row 203: '<50'" in said
    assert "to mend: ids that occur more than once: p6 (rows 7, 8)" in said
    with pytest.raises(InputError) as raised:
        main(["--debug", "site", "check", str(site)])
    assert not any(text in str(raised.value) for text in ("n/a", "<50", "p6", "17"))
    table["age"] = [50.5 if text in ("n/a?", "<50") else text for text in table["age"]]
    table.to_csv(tmp_path / "clinic.csv", index=False)
    capsys.readouterr()
    assert main(["site", "check", str(site)]) == 6
    said = capsys.readouterr().out
    assert "REFUSED: 1 row repeats the id of another row" in said
    assert said.splitlines()[-1] == "to mend: ids that occur more than once: p6 (rows 7, 8)"
    table.loc[7, "id"] = "p7"
    table.to_csv(tmp_path / "clinic.csv", index=False)
    assert main(["site", "check", str(site)]) == 0
    assert "to mend" not in (said := capsys.readouterr().out)
    assert said.splitlines()[-1].startswith("next: ")


def test_a_study_that_was_given_up_is_forgotten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = made_site(tmp_path)
    accepted(site, m=20)
    assert main(["site", "forget", str(site), "--study", "lunqs"]) == InputError.exit_code
    assert "No study accepted here is called 'lunqs'; did you mean 'lungs'?" in capsys.readouterr().err
    store = Study.load(site / "accepted" / "lungs.toml")
    (site / "accepted" / "lungs.toml").rename(site / "accepted" / f"{store.folder_name}.toml")
    assert main(["site", "forget", str(site)]) == 0
    assert "forgotten: lungs-" in capsys.readouterr().out
    assert main(["site", "offer", str(site), "-o", str(tmp_path / "offer")]) == InputError.exit_code
    assert "has accepted no study yet" in capsys.readouterr().err
