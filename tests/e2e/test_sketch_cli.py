"""From a file and a key to a sketch another process reads: the command line, as a user types it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from intarsia import Sketch, SketchKey, Table, join, sketch
from intarsia.cli import main

STUDY = """id = "diabetes"
run = "00112233445566778899aabbccddeeff"
[sketch]
m = 25
precision = "float32"
[[site]]
name = "clinic"
features = ["age", "sex=*"]
responses = ["hba1c"]
[[site]]
name = "genome"
features = ["snp_*"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    who = [f"p{i:04d}" for i in range(300)]
    clinic = pd.DataFrame({"patient": who, "age": rng.normal(60, 9, 300), "sex": rng.choice(["f", "m"], 300),
                           "hba1c": rng.normal(7, 1, 300), "note": "x"})  # fmt: skip
    genome = pd.DataFrame({f"snp_{j}": rng.integers(0, 3, 300) for j in range(8)} | {"subject": who})
    clinic.to_parquet("clinic.parquet")
    genome.sample(frac=1, random_state=1).to_csv("genome.csv.gz", index=False)  # other order of rows
    Path("study.toml").write_text(STUDY)
    return tmp_path


def test_two_sites_sketch_and_the_server_joins(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "new", "-o", "study.key"]) == 0
    assert main(["key", "show", "study.key", "--json"]) == 0
    fingerprint = json.loads(capsys.readouterr().out.splitlines()[-1])["fingerprint"]
    both = ["--study", "study.toml", "--key", "study.key"]
    assert main(["sketch", "clinic.parquet", *both, "--site", "clinic", "--id", "patient", "-o", "clinic.sketch"]) == 0
    said = capsys.readouterr().out
    assert "300 subjects, 2 features, 1 responses" in said
    assert "never send it" in said
    assert main(["sketch", "genome.csv.gz", *both, "--site", "genome", "--id", "subject", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["key_fingerprint"] == fingerprint
    assert (facts["features"], facts["m"], facts["kind"]) == (8, 25, "orthonormal")
    assert Path("clinic.sketch.local").stat().st_mode & 0o077 == 0
    # Another process reads both.
    program = (
        "from intarsia import Sketch, join\n"
        "joined = join([Sketch.load('clinic.sketch'), Sketch.load('genome.sketch')])\n"
        "print(joined.X.shape, joined.Y.shape, joined.feature_sites[-1], joined.n)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(25, 10) (25, 1) genome 300"


def test_rows_are_matched_by_id_whatever_their_order_in_the_files(folder: Path) -> None:
    SketchKey.new().save("study.key")
    clinic = pd.read_parquet("clinic.parquet")
    clinic[::-1].to_csv("again.csv", index=False)
    both = ["--study", "study.toml", "--key", "study.key", "--site", "clinic", "--id", "patient"]
    assert main(["sketch", "clinic.parquet", *both, "-o", "a.sketch"]) == 0
    assert main(["sketch", "again.csv", *both, "-o", "b.sketch"]) == 0
    a, b = Sketch.load("a.sketch"), Sketch.load("b.sketch")
    np.testing.assert_allclose(a.X, b.X, atol=1e-5)
    assert a.order_mac == b.order_mac != ""


def test_the_same_without_a_study_and_in_three_lines_of_python(folder: Path) -> None:
    SketchKey.new().save("study.key")
    terms = ["--study-id", "trial", "--run", "1", "--m", "20", "--key", "study.key", "--site", "clinic"]
    roles = ["--ignore", "note", "--id", "patient", "--responses", "hba1c"]
    assert main(["sketch", "clinic.parquet", *terms, *roles]) == 0
    table = Table.open("clinic.parquet", id="patient", responses=["hba1c"], ignore=["note"])
    result = sketch(table, SketchKey.load("study.key"), study="trial", run="1", m=20, site="clinic")
    found = Sketch.load("clinic.sketch")
    np.testing.assert_allclose(found.X, result.message.X, rtol=1e-9, atol=1e-12)
    assert found.study_hash == result.message.study_hash
    assert join([found]).responses == ("hba1c",)


def test_a_study_is_sketched_behind_the_privacy_gate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SketchKey.new().save("study.key")
    common = ["--study", "study.toml", "--key", "study.key", "--site", "clinic", "--id", "patient", "--json"]
    Path("study.toml").write_text(STUDY.replace("m = 25", "m = 200"))
    assert main(["sketch", "clinic.parquet", *common]) == 6
    assert "refuses this sketch" in capsys.readouterr().err
    assert not list(folder.glob("*.sketch*"))
    Path("study.toml").write_text(STUDY)
    assert main(["sketch", "clinic.parquet", *common, "--ledger", "ledger"]) == 0
    # The same run for other subjects would use Φ twice.
    pd.read_parquet("clinic.parquet")[1:].to_parquet("fewer.parquet")
    assert main(["sketch", "fewer.parquet", *common, "--ledger", "ledger", "-o", "b.sketch"]) == 6
    assert not Path("b.sketch").exists()


def test_a_private_study_gets_noise(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SketchKey.new().save("study.key")
    private = (
        STUDY.replace("m = 25", 'm = 25\nkind = "gaussian"')
        + """
[privacy]
epsilon = 5.0
delta = 1e-6
[privacy.row_bound]
clinic = 3.0
genome = 3.0
[privacy.centres.clinic]
"*" = 0.5
[privacy.scales.clinic]
"*" = 10.0
"""
    )
    Path("study.toml").write_text(private)
    common = ["--study", "study.toml", "--key", "study.key", "--site", "clinic", "--id", "patient", "--json"]
    for name in ("a", "b"):
        code = main(["sketch", "clinic.parquet", *common, "-o", f"{name}.sketch"])
        assert code == 0, capsys.readouterr().err
    a, b = Sketch.load("a.sketch"), Sketch.load("b.sketch")
    assert a.noise == b.noise > 0
    assert not np.allclose(a.X, b.X)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--study", "study.toml"], 4, "--site clinic | genome"),
        (["--study", "study.toml", "--m", "5"], 2, "the study fixes the terms"),
        (["--m", "5"], 2, "--study-id"),
        (["--study-id", "t", "--run", "1", "--m", "300", "--id", "patient"], 2, "must be below n"),
        (["--study-id", "t", "--run", "1", "--m", "20", "--id", "patient", "--order", "study.toml"], 2, "row numbers"),
        (["--study-id", "t", "--run", "1", "--m", "20", "--key", "none.key"], 7, "no key file"),
        (["--study-id", "t", "--run", "1", "--m", "20"], 2, "over 100 different texts"),
        (["--study-id", "t", "--run", "1", "--m", "20", "--ignore", "patient"], 2, "No variation in column note"),
    ],
)
def test_errors_say_what_to_do(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    SketchKey.new().save("study.key")
    assert main(["sketch", "clinic.parquet", "--key", "study.key", *arguments]) == code
    assert words in capsys.readouterr().err
    assert not list(folder.glob("*.sketch*"))
