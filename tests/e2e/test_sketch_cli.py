"""From a site's folder to a sketch another process reads: the command line, as a user types it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.federation import fingerprints

from intarsia import Sketch, SketchKey
from intarsia.cli import COMMANDS, main
from intarsia.site.site_folder import SiteFolder

STUDY = """id = "diabetes"
run = "00112233445566778899aabbccddeeff"
[sketch]
m = 25
precision = "float32"
[[site]]
name = "clinic"
features = ["age", "sex=*"]
responses = ["hba1c"]
covariates = ["centre=*"]
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
                           "hba1c": rng.normal(7, 1, 300), "centre": rng.choice(["a", "b", "c"], 300)})  # fmt: skip
    genome = pd.DataFrame({f"snp_{j}": rng.integers(0, 3, 300) for j in range(8)} | {"patient": who})
    clinic.to_parquet("clinic.parquet")
    genome.sample(frac=1, random_state=1).to_csv("genome.csv.gz", index=False)  # other order of rows
    SketchKey(bytes(range(32))).save("study.key")
    Path("study.toml").write_text(STUDY)
    for name, table in (("clinic", "clinic.parquet"), ("genome", "genome.csv.gz")):
        assert main(["site", "init", name, "--name", name, "--table", table, "--id", "patient"]) == 0
        text = (tmp_path / name / "site.toml").read_text().replace('# key = "study.key"', 'key = "../study.key"')
        if name == "clinic":
            text = text.replace("responses = []", 'responses = ["hba1c"]').replace("covariates = []", 'covariates = ["centre"]')
        (tmp_path / name / "site.toml").write_text(text)
        words = fingerprints(tmp_path / name, Path("study.toml"))
        assert main(["site", "accept", name, "study.toml", "--fingerprints", str(words)]) == 0
    return tmp_path


def test_two_sites_sketch_and_the_server_joins(folder: Path) -> None:
    for name in ("clinic", "genome"):
        assert main(["site", "sketch", name, "--yes", "-o", f"{name}.sketch"]) == 0
    program = (
        "from intarsia import Sketch, join\n"
        "joined = join([Sketch.load('clinic.sketch'), Sketch.load('genome.sketch')])\n"
        "print(joined.X.shape, joined.Y.shape, joined.Z.shape, joined.covariates, joined.feature_sites[-1], joined.n)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(25, 10) (25, 1) (25, 2) ('centre=b', 'centre=c') genome 300"
    assert Sketch.load("clinic.sketch").order_mac == Sketch.load("genome.sketch").order_mac != ""


def test_there_is_no_second_way_out_of_a_site(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The gate refuses, nothing is written, and no other command makes a sketch from a table and a key."""
    assert "sketch" not in COMMANDS
    Path("study.toml").write_text(STUDY.replace("m = 25", "m = 200"))
    SiteFolder.load("clinic").accept("study.toml")
    hash16 = next(p.stem.rsplit("-", 1)[1] for p in Path("clinic/accepted").glob("*.toml") if "m = 200" in p.read_text())
    assert main(["site", "sketch", "clinic", "--study", hash16, "--yes", "-o", "clinic.sketch"]) == 6
    assert "refuses this sketch" in capsys.readouterr().err
    assert not list(folder.glob("*.sketch*"))


def test_a_second_call_writes_the_same_bytes_whatever_became_of_the_table(folder: Path) -> None:
    assert main(["site", "sketch", "clinic", "--yes", "-o", "a.sketch"]) == 0
    pd.read_parquet("clinic.parquet")[1:].to_parquet("clinic.parquet")
    assert main(["site", "sketch", "clinic", "--yes", "-o", "b.sketch"]) == 0
    assert Path("a.sketch").read_bytes() == Path("b.sketch").read_bytes()


def test_a_fit_needs_its_study(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["site", "sketch", "clinic", "--yes", "-o", "clinic.sketch"]) == 0
    assert main(["fit", "clinic.sketch", "-o", "out"]) == 4
    assert "--study study.toml" in capsys.readouterr().err
    assert not Path("out").exists()
