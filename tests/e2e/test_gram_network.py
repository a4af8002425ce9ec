"""Four sites over the engine, three of which hold shares: the matrix of one process and of files, bit for bit."""

import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="the networked carrier needs intarsia[federation]")

from tests.federation import gram_by_files, gram_parties, gram_study_of
from tests.network import Network

from intarsia.carriers.in_process import carrier
from intarsia.server.study import gram, protocol
from intarsia.server.study.folder import StudyFolder
from intarsia.site.site_folder import SiteFolder

pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_four_sites_over_the_network_by_files_and_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parties, tables = gram_parties(4)
    responses = {site.name: list(site.roles["responses"]) for site in parties}
    network = Network(tmp_path / "network", tables, responses, preshared=False)
    for site in parties:
        site.identity = SiteFolder.load(network.root / site.name).identity()
    study = gram_study_of(parties, ["site3", "site0", "site2"], folds=2)
    path = network.accept(study)
    (tmp_path / "files").mkdir()
    folders = [shutil.copytree(network.root / site.name, tmp_path / "files" / site.name) for site in parties]
    for folder in folders:  # the table lies beside the folder
        shutil.copy(network.root / f"{folder.name}.csv", tmp_path / "files")
    network.start()
    try:
        network.command("study", "run", path, "--server", network.server, "--until", "collect")
    finally:
        network.stop()
    over_the_network = gram.joint(StudyFolder.open(network.folder(study)))

    here = StudyFolder.create(tmp_path / "here", study)
    protocol.collect(here, carrier(parties, study))
    assert np.array_equal(over_the_network, gram.joint(here))

    monkeypatch.chdir(tmp_path / "files")
    assert np.array_equal(over_the_network, gram.joint(gram_by_files(folders, study, tmp_path / "files", monkeypatch)))
