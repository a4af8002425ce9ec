"""A fit that has not converged goes on, before anybody has its coefficients; the same sketches are fitted again beside it."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.federation import FIT, frames, sites, study

import intarsia
from intarsia.cli import main
from intarsia.errors import FederationError, InputError
from intarsia.server.posterior.posterior import Posterior
from intarsia.server.study.fit import sample, settings_of
from intarsia.server.study.folder import StudyFolder
from intarsia.server.study.longer import with_own
from intarsia.wire.study import Study

pytestmark = pytest.mark.filterwarnings("ignore::intarsia.server.assess.convergence.NotConvergedWarning")


@pytest.fixture(scope="module")
def delivered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("studies") / "liver"
    intarsia.fit(sites(frames()), study(), folder=where, progress=False)
    return where


@pytest.fixture
def fitted(delivered: Path, tmp_path: Path) -> Path:
    """The study's folder after the fit, before a site has taken its coefficients."""
    where = shutil.copytree(delivered, tmp_path / "liver")
    shutil.rmtree(where / "receipt")
    return where


def at_length(where: Path, **length: Any) -> np.ndarray:
    """What the sketches give when study.toml itself asks for this length, from the first sweep on."""
    folder = StudyFolder.open(where)
    longer = Study.from_dict(folder.study.to_dict() | {"fit": FIT | length})
    return np.asarray(sample(longer, folder.joined(), settings_of(longer))[0].C.values)


def test_it_goes_on_from_its_checkpoint(fitted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = np.asarray(Posterior.load(fitted / "posterior.nc").C.values)
    assert main(["fit", "-o", str(fitted), "--draws", "90", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["draws"] == 2 * 90
    longer = np.asarray(Posterior.load(fitted / "posterior.nc").C.values)
    np.testing.assert_array_equal(longer[:, : short.shape[1]], short)
    np.testing.assert_array_equal(longer, at_length(fitted, draws=90))
    # Given again, and without the number: the same fit, which is not made anew.
    before = (fitted / "posterior.nc").stat().st_mtime_ns
    assert main(["fit", "-o", str(fitted), "--draws", "90"]) == 0
    assert main(["fit", "-o", str(fitted)]) == 0
    assert (fitted / "posterior.nc").stat().st_mtime_ns == before


def test_a_longer_warm_up_begins_anew(fitted: Path) -> None:
    assert main(["fit", "-o", str(fitted), "--warmup", "70"]) == 0
    np.testing.assert_array_equal(Posterior.load(fitted / "posterior.nc").C.values, at_length(fitted, warmup=70))


def test_the_remedy_is_said_with_its_command(fitted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "-o", str(fitted)]) == 0
    said = capsys.readouterr().out
    assert "NOT CONVERGED" in said
    assert f"first (a site takes its coefficients once): intarsia fit -o {fitted} --draws " in said


def test_a_fit_that_sites_hold_stays(delivered: Path, fitted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (delivered / "posterior.nc").read_bytes()
    assert main(["fit", "-o", str(delivered), "--draws", "90"]) == FederationError.exit_code
    assert "clinic, mri, lab hold the coefficients of this fit" in capsys.readouterr().err
    assert (delivered / "posterior.nc").read_bytes() == before
    assert main(["fit", "-o", str(fitted), "--draws", "30"]) == InputError.exit_code
    assert "may take 60 draws per chain already" in capsys.readouterr().err


def test_a_refit_compares_and_changes_nothing(delivered: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: path.read_bytes() for path in delivered.iterdir() if path.is_file()}
    out = tmp_path / "independent.nc"
    assert main(["refit", str(delivered), "-o", str(out), "--noise", "independent", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["changed"] == {"noise": "independent"}
    assert "predicts better" in told["comparison"][0] or "Neither fit" in told["comparison"][0]
    assert any("clinic_0" in line for line in told["comparison"] if line.startswith("selected by both"))
    Sigma = Posterior.load(out).Sigma.values
    assert not Sigma[..., 0, 1].any()  # of the alternative model, and of the study's own it is not
    assert np.asarray(Posterior.load(delivered / "posterior.nc").Sigma.values)[..., 0, 1].any()
    assert {path.name: path.read_bytes() for path in delivered.iterdir() if path.is_file()} == before
    assert main(["report", str(out), "-o", str(tmp_path / "page.html")]) == 0
    capsys.readouterr()
    assert main(["refit", str(delivered), "-o", str(out)]) == InputError.exit_code
    assert "Say what is to be different" in capsys.readouterr().err
    assert main(["refit", str(delivered), "-o", str(tmp_path / "x.csv"), "--seed", "2"]) == InputError.exit_code


def test_a_fit_begun_on_an_accelerator_is_remembered_as_such(delivered: Path, tmp_path: Path) -> None:
    """JAX runs on its CPU device here."""
    pytest.importorskip("jax")
    where = tmp_path / "other"
    sketches = [str(path) for path in sorted((delivered / "sketch").glob("*.sketch"))]
    assert main(["fit", *sketches, "--study", str(delivered / "study.toml"), "-o", str(where), "--backend", "jax"]) == 0
    assert settings_of_next(where).backend == "jax"


def settings_of_next(where: Path) -> Any:
    folder = StudyFolder.open(where)
    return with_own(folder, settings_of(folder.study))
