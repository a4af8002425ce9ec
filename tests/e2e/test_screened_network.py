"""A screened study over the engine: the numbers of one process, bit for bit, and results at every site."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="the networked carrier needs intarsia[federation]")

from tests.e2e.test_screened_by_sketch import as_determined
from tests.federation import FIT, gram_parties, screened_study_of
from tests.network import Network

from intarsia.carriers.in_process import carrier
from intarsia.server.study import gram, protocol, screened
from intarsia.server.study.folder import StudyFolder
from intarsia.server.study.round_folder import RoundFolder
from intarsia.site.site import Site
from intarsia.site.site_folder import SiteFolder
from intarsia.wire.study import Study

pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def over_the_network(where: Path, **sketch: Any) -> tuple[StudyFolder, list[Site], list[Site]]:
    """A whole study by the command: its folder at the server, the sites there, and the same sites to be asked here."""
    parties, tables = gram_parties(3, n=2000)
    responses = {site.name: list(site.roles["responses"]) for site in parties}
    network = Network(where, tables, responses, preshared=False)
    for site in parties:
        site.identity = SiteFolder.load(network.root / site.name).identity()
    content = screened_study_of(parties, ["site0", "site1", "site2"], rows=1024, **sketch).to_dict()
    study = Study.from_dict(content | {"fit": FIT | {"until": "draws"}})
    path = network.accept(study)
    network.start()
    try:
        network.command("study", "run", path, "--server", network.server)
    finally:
        network.stop()
    there = [SiteFolder.load(network.root / site.name).site() for site in parties]
    return StudyFolder.open(network.folder(study)), there, parties


def test_over_the_network_it_is_the_study_of_one_process(tmp_path: Path) -> None:
    there, sites, parties = over_the_network(tmp_path / "network", again=1)
    here = StudyFolder.create(tmp_path / "here", there.study)
    protocol.collect(here, carrier(parties, there.study))
    for at in (1, 2):
        assert np.array_equal(screened.looked(there, at), screened.looked(here, at))
    assert np.array_equal(gram.joint(RoundFolder(there, 3)), gram.joint(RoundFolder(here, 3)))
    assert (there.path / screened.TABLE).read_bytes() == (here.path / screened.TABLE).read_bytes()
    kept = {label for label in here.joined().features if label.startswith("site2")}
    assert set(sites[2].model(there.study).units.features) == kept


def test_a_sketch_screens_over_the_network_as_tables_and_key_make_it(tmp_path: Path) -> None:
    there, sites, _ = over_the_network(tmp_path / "network", m=100)
    as_determined(there, sites)
    kept = {label for label in there.joined().features if label.startswith("site2")}
    assert set(sites[2].model(there.study).units.features) == kept
