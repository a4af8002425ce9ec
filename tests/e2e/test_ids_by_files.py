"""A study by files whose sites write their ids differently: what they read, and how they go on."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from intarsia.cli import main
from intarsia.errors import AlignmentError, FederationError
from intarsia.wire.study import Study
from intarsia.wire.words import to_words

N = 200


def run(*words: object) -> int:
    return main([str(word) for word in words])


class TwoSites:
    """A clinic that writes 7 and a laboratory that writes 007; they exchanged a key file."""

    def __init__(self, where: Path) -> None:
        self.where, self.study = where, where / "study.toml"
        rng = np.random.default_rng(1)
        assert run("key", "new", "-o", where / "study.key") == 0
        for name, ids in (("clinic", range(N)), ("lab", [f"{i:03d}" for i in range(N)])):
            pd.DataFrame({"id": ids, f"{name}_x": rng.normal(size=N), f"{name}_z": rng.normal(size=N)}).to_csv(
                where / f"{name}.csv", index=False
            )
            assert run("site", "init", where / name, "--name", name, "--table", where / f"{name}.csv", "--id", "id") == 0
            toml = where / name / "site.toml"
            text = toml.read_text().replace('# key = "study.key"', 'key = "../study.key"')
            toml.write_text(text.replace("responses = []", 'responses = ["clinic_z"]') if name == "clinic" else text)
        new = ["--id", "ids", "--m", 20, "--site", "clinic", "--site", "lab", "--responses", "clinic=clinic_z"]
        assert run("study", "new", self.study, *new, "--draws", 60, "--warmup", 40, "--chains", 2, "--thin", 1) == 0

    def canonical(self) -> None:
        self.study.write_text(self.study.read_text().replace('canonical = ["strip", "nfc"]', 'canonical = ["strip", "integer"]'))

    def accept(self) -> None:
        (self.where / "words.txt").write_text(f"study.toml {to_words(bytes.fromhex(Study.load(self.study).hash))}\n")
        for name in ("clinic", "lab"):
            assert run("site", "accept", self.where / name, self.study, "--fingerprints", self.where / "words.txt") == 0

    def files(self, step: str, *given: object) -> list[Path]:
        out = [self.where / f"{name}.{step}" for name in ("clinic", "lab")]
        for name, file in zip(("clinic", "lab"), out, strict=True):
            assert run("site", step, self.where / name, *given, "-o", file) == 0
        return out


@pytest.fixture
def two(tmp_path: Path) -> TwoSites:
    return TwoSites(tmp_path)


def test_subjects_are_compared_before_a_sketch_leaves(two: TwoSites, capsys: pytest.CaptureFixture[str]) -> None:
    two.accept()
    told = two.files("align", *two.files("announce"))
    assert run("server", "align", *told, "--study", two.study, "-o", two.where / "first") == AlignmentError.exit_code
    assert 'canonical = ["strip", "integer"] in study.toml makes one' in capsys.readouterr().err
    first = Study.load(two.study)
    two.canonical()
    two.accept()
    said = f"it replaces the text ids-{first.hash[:8]} of the same run, of which this site has sketched nothing\n"
    assert capsys.readouterr().out.count(said) == 2
    told = two.files("align", *two.files("announce"))  # no --study: one text is left
    assert run("server", "align", *told, "--study", two.study, "-o", two.where / "server") == 0
    capsys.readouterr()
    for name in ("clinic", "lab"):
        cohort = ["--cohort", two.where / "server" / f"{name}.cohort"]
        assert run("site", "sketch", two.where / name, *cohort, "--yes", "-o", two.where / f"{name}.sketch") == 0
    assert "not compared yet" not in capsys.readouterr().out
    sketches = [two.where / "clinic.sketch", two.where / "lab.sketch"]
    assert run("fit", *sketches, "--study", two.study, "-o", two.where / "server", "--workers", 1) == 0


def test_without_comparing_it_shows_at_the_fit_and_a_text_with_a_sketch_stays(
    two: TwoSites, capsys: pytest.CaptureFixture[str]
) -> None:
    two.accept()
    capsys.readouterr()
    sketches = two.files("sketch", "--yes")
    assert capsys.readouterr().out.count("not compared yet: whether all sites hold the same subjects") == 2
    two.files("sketch", "--yes")  # the same bytes again: there is nothing left to warn of
    assert "not compared yet" not in capsys.readouterr().out
    assert run("fit", *sketches, "--study", two.study, "-o", two.where / "server") == FederationError.exit_code
    said = capsys.readouterr().err
    assert "(200 subjects) do not prove the same subjects in the same order. 1, 001 and 1.0 are three ids" in said
    assert "stays counted in their ledgers" in said
    two.canonical()
    two.accept()
    assert "it replaces the text" not in capsys.readouterr().out
    assert len(list((two.where / "lab" / "accepted").glob("*.toml"))) == 2
