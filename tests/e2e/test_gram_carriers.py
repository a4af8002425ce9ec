"""A Gram study by the commands of docs/gram.md, through pipes to processes, and in one process: the same matrix, bit for bit."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.federation import FIT, NAMES, RESPONSES, fingerprints, frames, gram_by_files, gram_parties, gram_study_of

from intarsia.carriers.in_process import carrier
from intarsia.carriers.pipes import Hospital
from intarsia.cli import main
from intarsia.errors import FederationError
from intarsia.server.study import gram, protocol
from intarsia.server.study.folder import StudyFolder, dump
from intarsia.site.site_folder import SiteFolder
from intarsia.wire.study import Study

pytestmark = pytest.mark.filterwarnings("ignore")


def run(*words: object) -> None:
    assert main([str(word) for word in words]) == 0


@pytest.fixture(scope="module")
def accepted(tmp_path_factory):
    """Three sites with identities of their own that have accepted a Gram study and done nothing else."""
    where = tmp_path_factory.mktemp("sites")
    for name, frame in frames().items():
        frame.to_csv(where / f"{name}.csv", index=False)
        run("site", "init", where / name, "--name", name, "--table", where / f"{name}.csv", "--id", "id",
            "--responses", ",".join(RESPONSES[name]))  # fmt: skip
    public = [word for name in NAMES for word in ("--site", where / name / f"{name}.toml")]
    owned = [f"{name}={','.join(labels)}" for name, labels in RESPONSES.items() if labels]
    short = [word for key in ("draws", "warmup", "chains", "thin") for word in (f"--{key}", FIT[key])]
    given = [word for text in owned for word in ("--responses", text)]
    run("study", "new", where / "study.toml", "--id", "liver", "--gram", *public, *given, *short)
    text = (where / "study.toml").read_text().replace("rows = 16384", "rows = 150")
    text = text.replace("seed = 0\n", f"seed = {FIT['seed']}\n")
    assert 'holders = ["clinic", "mri", "lab"]' in text
    (where / "study.toml").write_text(text)
    for name in NAMES:
        listed = fingerprints(where / name, where / "study.toml")
        run("site", "accept", where / name, where / "study.toml", "--fingerprints", listed)
    return where


@pytest.fixture(scope="module")
def here(accepted, tmp_path_factory):
    """The study in one process: its folder at the server."""
    where = shutil.copytree(accepted, tmp_path_factory.mktemp("here") / "sites")
    study = Study.load(accepted / "study.toml")
    folder = StudyFolder.create(where / "server", study)
    protocol.collect(folder, carrier([SiteFolder.load(where / name).site() for name in NAMES], study))
    return folder


def test_a_study_by_files_makes_the_same_matrix_and_fits(accepted, here, tmp_path, capsys, monkeypatch):
    where = shutil.copytree(accepted, tmp_path / "sites")
    monkeypatch.chdir(tmp_path)

    def each(step, *files, out):  # type: ignore[no-untyped-def]
        for name in NAMES:
            run("site", step, where / name, *files, *(("-o", f"{name}.{out}") if out else ()))

    def all_of(kind: str) -> list[Path]:
        return sorted(tmp_path.glob(f"*.{kind}"))

    run("site", "check", where / "mri")
    assert "a Gram matrix: the gate would let it pass, with warnings" in capsys.readouterr().out
    each("offer", out="offer")
    each("share", *all_of("offer"), out="share")
    each("combine", *all_of("share"), out="confirmation")
    each("seal", *all_of("confirmation"), out="")
    for name in NAMES:
        run("site", "sketch", where / name, "--yes", "-o", f"{name}.gram")
    each("deal", *all_of("gram"), out="deal")
    assert len(all_of("deal")) == 3 * 3  # 400 subjects in blocks of 150
    assert "send them to mri and lab" in capsys.readouterr().out
    each("multiply", *all_of("deal"), out="product")
    assert len(all_of("product")) == 3 * 3
    early = [path for path in all_of("product") if path.name != "lab-2.product"]
    with pytest.raises(FederationError, match="lacks the product of lab"):
        main(["--debug", "fit", *map(str, all_of("gram")), *map(str, early), "--study", str(where / "study.toml"), "-o", "liver"])
    run("fit", "lab-2.product", "-o", "liver")
    folder = StudyFolder.open(tmp_path / "liver")
    assert np.array_equal(gram.joint(folder), gram.joint(here))
    run("site", "receive", where / "mri", folder.file("coefficients", "mri"), "-o", "mri.csv")
    assert "mri_1" in (tmp_path / "mri.csv").read_text()
    run("study", "status", "liver")
    assert "product" in capsys.readouterr().out


def through_pipes(hospitals: dict[str, Hospital], study: Study, where: Path) -> StudyFolder:
    """The server's folder after all steps, each site a process of its own."""

    def ask(step, payloads):  # type: ignore[no-untyped-def]
        for name, payload in payloads.items():
            hospitals[name].post(step, study.hash, payload)
        return {name: hospitals[name].reply() for name in payloads}

    try:
        folder = StudyFolder.create(where, study)
        protocol.collect(folder, ask)
    finally:
        for hospital in hospitals.values():
            hospital.close()
    return folder


def test_through_pipes_to_processes_it_is_the_same_matrix(accepted, here, tmp_path):
    where = shutil.copytree(accepted, tmp_path / "sites")
    study = Study.load(accepted / "study.toml")
    hospitals = {name: Hospital(name, where / name) for name in NAMES}
    folder = through_pipes(hospitals, study, tmp_path / "server")
    assert np.array_equal(gram.joint(folder), gram.joint(here))
    assert folder.read("product", "mri") != here.read("product", "mri")  # other masks, the same sum


def in_folders(number: int, where: Path, study: Study, n: int = 240) -> list[Path]:
    """The sites of `gram_parties` as folders that have accepted the study."""
    parties, tables = gram_parties(number, n=n)
    folders = []
    for site in parties:
        tables[site.name].to_csv(where / f"{site.name}.csv", index=False)
        run("site", "init", where / site.name, "--name", site.name, "--table", where / f"{site.name}.csv", "--id", "id",
            "--responses", ",".join(site.roles["responses"]))  # fmt: skip
        (where / site.name / "identity.key").unlink()
        site.own_identity().save(where / site.name)
        folders.append(where / site.name)
    (where / "study.toml").write_text(dump(study))
    for folder in folders:
        run("site", "accept", folder, where / "study.toml", "--fingerprints", fingerprints(folder, where / "study.toml"))
    return folders


@pytest.mark.parametrize("number", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_other_numbers_of_sites_by_files_and_through_pipes(number, tmp_path, monkeypatch):
    """Two sites and the server, and five sites of which three hold shares, in folds: the matrix of one process, bit for bit."""
    parties, _ = gram_parties(number)
    holders = ["site0", "site1", "server"] if number == 2 else ["site1", "site4", "site2"]
    study = gram_study_of(parties, holders, folds=2, rows=70)
    here = StudyFolder.create(tmp_path / "here", study)
    protocol.collect(here, carrier(parties, study))
    expected = gram.joint(here)  # the folds themselves hang on the key of each run

    (tmp_path / "piped").mkdir()
    hospitals = {path.name: Hospital(path.name, path) for path in in_folders(number, tmp_path / "piped", study)}
    piped = through_pipes(hospitals, study, tmp_path / "server")
    assert np.array_equal(gram.joint(piped), expected)

    where = tmp_path / "files"
    where.mkdir()
    folders = in_folders(number, where, study)
    monkeypatch.chdir(where)
    assert np.array_equal(gram.joint(gram_by_files(folders, study, where, monkeypatch)), expected)
