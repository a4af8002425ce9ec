"""A site's folder put back from an older copy: its ledger has forgotten what left, and the other sites have not."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.federation import fixed_identity

from intarsia.carriers import in_process
from intarsia.carriers.in_process import study_for
from intarsia.errors import FederationError
from intarsia.files import DamagedFileError
from intarsia.server.assess.convergence import NotConvergedWarning
from intarsia.site import peers
from intarsia.site.site import Site

SHORT = {"draws": 25, "warmup": 40, "chains": 2, "thin": 1, "seed": 1}


def parties(where: Path) -> list[Site]:
    rng = np.random.default_rng(0)
    ids = [f"S{i}" for i in range(200)]
    tables: dict[str, dict[str, Any]] = {
        "clinic": {"id": ids, "y": rng.standard_normal(200)},
        "lab": {"id": ids, **{f"x{j}": rng.standard_normal(200) for j in range(4)}},
    }
    out = []
    for name, table in tables.items():
        (where / name).mkdir(parents=True, exist_ok=True)
        responses = ["y"] if name == "clinic" else []
        out.append(Site(name, table, id="id", responses=responses, identity=fixed_identity(name), folder=where / name))
    return out


def run(sites: list[Site], number: int) -> Any:
    study = study_for(sites, m=10, id="again", run=f"{number:032x}", fit=SHORT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        in_process.fit(sites, study)
    return study


def test_the_other_sites_refuse_one_whose_ledger_became_shorter(tmp_path: Path) -> None:
    sites = parties(tmp_path)
    study = run(sites, 1)
    key = str(study.site("lab").signing_key)
    assert peers.remembered(tmp_path / "clinic")[key] == 1  # it announced none, and has sent since
    run(parties(tmp_path), 2)
    assert peers.remembered(tmp_path / "clinic")[key] > 1
    restored = parties(tmp_path)[:1] + parties(tmp_path / "older")[1:]
    with pytest.raises(FederationError, match="The ledger of site 'lab' has 0 lines now and had"):
        run(restored, 3)
    # What people may do when the newest copy is lost.
    (tmp_path / "clinic" / peers.FILE).write_text(json.dumps({}), encoding="utf-8")
    run(parties(tmp_path)[:1] + parties(tmp_path / "older")[1:], 4)


def test_a_step_that_is_repeated_after_the_fit_is_no_restored_folder(tmp_path: Path) -> None:
    sites = parties(tmp_path)
    study = run(sites, 1)
    clinic = sites[0]
    announced = {site.name: site.announce(study) for site in sites}
    assert clinic.hear(study, announced)["lab"].ledger == 0


def test_a_damaged_memory_is_said(tmp_path: Path) -> None:
    """A digit that the disk changed would blame another site. What people take out, the digest with it, is as they mean it."""
    (tmp_path / peers.FILE).write_text("[", encoding="utf-8")
    with pytest.raises(DamagedFileError, match="is damaged"):
        peers.remembered(tmp_path)
    study = study_for(parties(tmp_path), m=10, id="again", run="1" * 32, fit=SHORT)
    (tmp_path / peers.FILE).unlink()
    peers.check(tmp_path, study, {"lab": 4})
    whole = (tmp_path / peers.FILE).read_text(encoding="utf-8")
    (tmp_path / peers.FILE).write_text(whole.replace(": 4", ": 5"), encoding="utf-8")
    with pytest.raises(DamagedFileError, match="is damaged"):
        peers.check(tmp_path, study, {"lab": 4})
    (tmp_path / peers.FILE).write_text("{}", encoding="utf-8")
    peers.check(tmp_path, study, {"lab": 3})
