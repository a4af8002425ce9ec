"""Many sites: the work grows as they do, in one process; and twenty of them by files are what they are in one process."""

import cProfile
import pstats
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.faults.studies import run
from tests.federation import KEY, fingerprints

import intarsia
from intarsia.carriers.in_process import carrier, study_for
from intarsia.server.study import protocol
from intarsia.server.study.folder import StudyFolder, dump
from intarsia.site.site import Site
from intarsia.site.site_folder import SiteFolder

FIT = {"draws": 20, "warmup": 20, "chains": 2, "thin": 1, "seed": 7}


def tables(number: int, n: int = 200) -> dict[str, pd.DataFrame]:
    """Two columns at each site; the first brings the response."""
    rng = np.random.default_rng(number)
    out = {}
    for k in range(number):
        frame = pd.DataFrame(rng.standard_normal((n, 2)), columns=[f"s{k}_a", f"s{k}_b"])
        frame.insert(0, "id", [f"P{i}" for i in range(n)])
        if k == 0:
            frame["y"] = frame["s0_a"] + rng.standard_normal(n)
        out[f"s{k}"] = frame
    return out


def sites(number: int) -> list[Site]:
    return [
        Site(name, frame, id="id", key=KEY, responses=["y"] if name == "s0" else []) for name, frame in tables(number).items()
    ]


def calls(number: int, where: Path) -> int:
    """Functions called while everything is collected: time without a clock."""
    parties = sites(number)
    study = study_for(parties, m=20, fit=FIT, run="0123456789abcdef0123456789abcdef")
    folder = StudyFolder.create(where / str(number), study)
    profile = cProfile.Profile()
    profile.runcall(protocol.collect, folder, carrier(parties, study))
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def test_twice_the_sites_are_about_twice_the_work(tmp_path: Path) -> None:
    """What grows with the pairs of sites (every site hears what every other announces) is a small part of it."""
    calls(2, tmp_path / "first")  # what is loaded once
    few, many = calls(30, tmp_path), calls(60, tmp_path)
    assert many < 2.5 * few


@pytest.mark.filterwarnings("ignore::intarsia.server.assess.convergence.NotConvergedWarning")
def test_twenty_sites_by_files_are_what_they_are_in_one_process(tmp_path: Path) -> None:
    parties = sites(20)
    study = study_for(parties, m=30, fit=FIT, run="0123456789abcdef0123456789abcdef")
    here = intarsia.fit(parties, study, workers=1, progress=False)
    (tmp_path / "study.toml").write_text(dump(study))
    KEY.save(tmp_path / "study.key")
    for name, frame in tables(20).items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        responses = ("--responses", "y") if name == "s0" else ()
        run("site", "init", tmp_path / name, "--name", name, "--table", tmp_path / f"{name}.csv", "--id", "id", *responses)
        toml = (tmp_path / name / "site.toml").read_text().replace("# key =", "key =").replace('"study.key"', '"../study.key"')
        (tmp_path / name / "site.toml").write_text(toml)
        compared = fingerprints(tmp_path / name, tmp_path / "study.toml")
        run("site", "accept", tmp_path / name, tmp_path / "study.toml", "--fingerprints", compared)
        run("site", "sketch", tmp_path / name, "--yes", "-o", tmp_path / f"{name}.sketch")
    given = [tmp_path / f"{name}.sketch" for name in study.names]
    run("fit", *given, "--study", tmp_path / "study.toml", "-o", tmp_path / "server", "--workers", 1)
    folder = StudyFolder.open(tmp_path / "server")
    for name in study.names:
        run("site", "receive", tmp_path / name, folder.file("coefficients", name), "-o", tmp_path / f"{name}-out.csv")
        assert SiteFolder.load(tmp_path / name).site().model(study).rows() == here.models[name].rows()
    run("deliver", "receipts", tmp_path / "server", *(tmp_path / f"{name}.receipt" for name in study.names))
