"""Two sites hold nearly the same column: what a server gains that has both sketches, and whether each site is told before."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
from tests.adversary.kit import RogueServer
from tests.federation import NAMES, frames, gram_sites, gram_study

from intarsia.privacy.blind import matched
from intarsia.privacy.differences import difference_search
from intarsia.server.study import gram, protocol
from intarsia.site.self_attack import real_phi
from intarsia.site.sketch.terms import SketchTerms
from intarsia.wire.messages import Sketch

PAIRS = 10


def with_pairs(n: int = 400) -> dict[str, pd.DataFrame]:
    """Ten columns that clinic and mri both hold, each with another value for one person: no site sees a pair."""
    tables = frames(n)
    values = np.random.default_rng(5).standard_normal((n, PAIRS))
    ids = [f"S{i:04d}" for i in range(n)]
    for name in ("clinic", "mri"):
        here = values.copy()
        if name == "mri":
            here[np.arange(PAIRS), np.arange(PAIRS)] += 2.0
        shared = pd.DataFrame(here, columns=[f"{name}_shared{j}" for j in range(PAIRS)]).assign(id=ids)
        tables[name] = tables[name].merge(shared, on="id")
    return tables


def warned_of(rogue: RogueServer, site: str) -> set[str]:
    raw = rogue.sites[site].run_store(rogue.study).get("preflight.json")
    return {f["rule"] for f in json.loads(raw or b"{}")["findings"] if f["level"] == "warn"}


def test_a_pair_of_which_each_site_holds_one_gives_columns_of_phi_away_and_both_sites_are_told(tmp_path: Path) -> None:
    # A fixed key: of the Φ of many keys some hide one of the ten pairs.
    rogue = RogueServer.after_collect(tmp_path, tables=with_pairs(), m=40, pinned=False)
    sketches = [Sketch.load(raw) for raw in rogue.kept("sketch").values()]
    directions = difference_search(np.hstack([sketch.X for sketch in sketches]))
    site = rogue.sites["mri"]
    design = SketchTerms.of(rogue.study, "mri", sketches[0].order_mac).design(site.key(rogue.study), 400)
    assert len(matched(directions, real_phi(design))) == PAIRS
    assert all("similar-elsewhere" in warned_of(rogue, name) for name in NAMES)


def test_in_a_gram_study_such_a_pair_gives_a_persons_values_away_and_all_sites_are_told(tmp_path: Path) -> None:
    tables = with_pairs()
    parties = gram_sites(tables)
    for site in parties:
        site.folder = tmp_path / site.name
        site.folder.mkdir()
    rogue = RogueServer(parties, gram_study(parties), tmp_path / "server")
    protocol.collect(rogue.folder, rogue.carry)
    G = gram.joint(rogue.folder)
    labels = [label for site in parties for label in site.table().labels]
    one, other = labels.index("clinic_shared3"), labels.index("mri_shared3")
    values = np.hstack([tables[name].sort_values("id")[parties[k].table().labels] for k, name in enumerate(NAMES)])
    truth = ((values - values.mean(axis=0)) / values.std(axis=0))[3]  # of the person in whom the two columns differ
    others = [k for k in range(len(labels)) if k not in (one, other)]
    guess = G[other] - G[one] * G[one, other] / G[one, one]
    assert np.corrcoef(guess[others], truth[others])[0, 1] > 0.99
    assert all("similar-elsewhere" in warned_of(rogue, name) for name in NAMES)
