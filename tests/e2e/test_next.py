"""`site next` and `study next`: a whole study by files in few commands, as files come; and what each says where it must wait."""

import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.federation import fingerprints

from intarsia.cli import main
from intarsia.errors import InputError, PrivacyError
from intarsia.site.site_folder import SiteFolder

NAMES = ("clinic", "mri", "lab", "gp", "school")
N = 400


def tables(where: Path, names: tuple[str, ...]) -> None:
    rng = np.random.default_rng(0)
    people = [f"P{i:03d}" for i in range(N)]
    X = {name: rng.normal(size=(N, 4)) for name in names}
    for k, name in enumerate(names):
        frame = pd.DataFrame(X[name], columns=[f"{name}{j}" for j in range(4)]).assign(id=people)
        if name == "clinic":
            frame["fev1"] = X[names[-1]][:, 0] - X["clinic"][:, 1] + rng.normal(size=N)
        frame.sample(frac=1, random_state=k).to_csv(where / f"{name}.csv", index=False)


class Counted:
    """The command line, and how often it was called."""

    def __init__(self, where: Path):
        self.where, self.calls = where, 0

    def __call__(self, *words: str | Path) -> int:
        self.calls += 1
        return main([str(word) for word in words])


def init(run: Counted, names: tuple[str, ...]) -> None:
    for name in names:
        site = ["site", "init", run.where / name, "--name", name, "--table", run.where / f"{name}.csv"]
        assert run(*site, *(["--responses", "fev1"] if name == "clinic" else [])) == 0


def plan(run: Counted, names: tuple[str, ...], *more: str) -> Path:
    study = run.where / "mail" / "study.toml"
    study.parent.mkdir(exist_ok=True)
    public = [word for name in names for word in ("--site", run.where / name / f"{name}.toml")]
    short = ["--draws", "60", "--warmup", "60", "--chains", "2", "--title", "Lungs of five towns"]
    assert run("study", "new", study, "--id", "lungs", "--m", "60", *public, "--responses", "clinic=fev1", *short, *more) == 0
    study.write_text(study.read_text().replace('until = "converged"', 'until = "draws"    '))
    return study


def next_of(run: Counted, name: str, *more: str) -> list[str | Path]:
    words = fingerprints(run.where / name, run.where / "mail" / "study.toml")  # what was read out on the telephone
    return ["site", "next", run.where / name, run.where / "mail", "--fingerprints", words, "--yes", *more]


@pytest.mark.slow
def test_a_study_of_five_sites_takes_thirteen_commands_and_a_site_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Counted(tmp_path)
    tables(tmp_path, NAMES)
    init(run, NAMES)
    plan(run, NAMES)
    codes: dict[str, int] = {}

    def site(name: str) -> None:
        codes[name] = run(*next_of(run, name, "--wait", "400"))

    threads = [threading.Thread(target=site, args=(name,)) for name in NAMES]
    for thread in threads:
        thread.start()
    assert run("study", "next", tmp_path / "liver", tmp_path / "mail", "--wait", "400") == 0
    for thread in threads:
        thread.join(60)
    assert run("report", tmp_path / "liver", "-o", tmp_path / "report.html") == 0
    assert codes == dict.fromkeys(NAMES, 0)
    assert run.calls == 13 <= 15
    assert "Lungs of five towns" in (tmp_path / "report.html").read_text(encoding="utf-8")
    said = capsys.readouterr().out
    assert "every site has its coefficients and has acknowledged them" in said
    for name in NAMES:
        rows = pd.read_csv(tmp_path / name / "coefficients.csv")
        assert list(rows["feature"]) == [f"{name}{j}" for j in range(4)]
    assert not list((tmp_path / "mail").glob("*.letter"))


def test_next_says_what_it_waits_for_and_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two sites that answer from time to time; each command ends when there is nothing to do."""
    run, names = Counted(tmp_path), ("clinic", "mri")
    tables(tmp_path, names)
    init(run, names)
    mail = tmp_path / "mail"
    assert run("site", "next", tmp_path / "clinic", mail) == 0
    assert f"waiting for {mail / 'study.toml'}" in capsys.readouterr().out
    assert (mail / "clinic.toml").read_bytes() == (tmp_path / "clinic" / "clinic.toml").read_bytes()
    assert run("study", "next", tmp_path / "lungs", mail) == 0
    assert f"next: intarsia study new {mail / 'study.toml'} --id NAME --m ROWS --site {mail / 'clinic.toml'}" in (
        capsys.readouterr().out
    )
    plan(run, names)
    assert run(*next_of(run, "clinic")) == 0
    said = capsys.readouterr()
    assert "accepted lungs" in said.out
    assert f"waiting for {mail / 'clinic.letter'}" in said.out
    for _ in range(12):
        assert run("study", "next", tmp_path / "lungs", mail) == 0
        told = capsys.readouterr().out
        if "next: intarsia report" in told:
            break
        assert "waiting for the answers of" in told
        for name in names:
            assert run(*next_of(run, name)) == 0
        assert capsys.readouterr()
    assert "has acknowledged them" in told
    assert (tmp_path / "mri" / "coefficients.csv").is_file()
    assert run(*next_of(run, "mri")) == 0  # nothing is left to do, and that is no mistake


def test_a_refusal_has_its_exit_code_and_is_taken_up_again_when_mended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, names = Counted(tmp_path), ("clinic", "mri")
    tables(tmp_path, names)
    frame = pd.read_csv(tmp_path / "mri.csv")
    frame.loc[0, "mri2"] = 1e6
    frame.to_csv(tmp_path / "mri.csv", index=False)
    init(run, names)
    plan(run, names)
    code = 0
    for _ in range(12):
        run("study", "next", tmp_path / "lungs", tmp_path / "mail")
        assert run(*next_of(run, "clinic")) == 0
        code = run(*next_of(run, "mri"))
        if code:
            break
    assert code == PrivacyError.exit_code
    assert "dominant: in mri2" in capsys.readouterr().out
    assert run("study", "next", tmp_path / "lungs", tmp_path / "mail") == 9
    frame.assign(mri2=np.random.default_rng(1).normal(size=N)).to_csv(tmp_path / "mri.csv", index=False)
    run("study", "next", tmp_path / "lungs", tmp_path / "mail")
    assert run(*next_of(run, "mri")) == 0
    assert SiteFolder.load(tmp_path / "mri").site().run_store
    told = capsys.readouterr().out
    assert "this site's columns by name, after its gate" in told


def test_a_folder_that_is_no_sites_is_told_how_to_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["site", "next", str(tmp_path / "clinic")]) == InputError.exit_code
    assert "A new site is made by `intarsia site init`" in capsys.readouterr().err
