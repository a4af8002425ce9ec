"""A site that forgets its noise, or part of it, would be read by the server: every column of every site has its own noise."""

from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import chi2
from tests.adversary.kit import RogueServer
from tests.adversary.test_same_moment import private
from tests.adversary.test_server import steps_until
from tests.federation import NAMES

from intarsia.site.sketch.private import public_bound
from intarsia.site.sketch.stream import gaussian_columns
from intarsia.site.sketch.terms import SketchTerms
from intarsia.wire.messages import Sketch

M = 90
RARE = 1e-10  # chance at which one of the comparisons below would fail by itself


def noise_of(rogue: RogueServer, name: str) -> np.ndarray:
    """What left less what the site's rows make under the real Φ, in standard deviations of the noise the message states."""
    site, rules = rogue.sites[name], rogue.study.privacy
    sent = Sketch.load(rogue.ask(name, "sketch").message)
    order = site.tokens(rogue.study).rows
    rows = np.concatenate([np.hstack(parts) for parts in site.table().blocks(order=order)])
    clipped = public_bound(site.table().labels, name, rules.row_bound, rules.centres, rules.scales).apply(rows)
    phi = SketchTerms.of(rogue.study, name, sent.order_mac).design(site.key(rogue.study), len(order))
    exact = gaussian_columns(phi.subkey, phi.m, 0, phi.n) @ clipped / np.sqrt(phi.n)
    return (np.hstack([sent.X, sent.Y]) - exact) / (sent.noise / np.sqrt(phi.n))


def test_every_column_of_every_site_has_noise_of_its_own(tmp_path: Path) -> None:
    options: dict[str, Any] = private(8.0)
    options["sketch"] |= {"m": M, "precision": "float64"}
    rogue = RogueServer.before(tmp_path, **options)
    steps_until(rogue, "align")
    noise = {name: noise_of(rogue, name) for name in NAMES}
    low, high = chi2.ppf([RARE, 1 - RARE], M)
    for name, found in noise.items():
        sizes = np.square(found).sum(axis=0)
        assert low < sizes.min(), name
        assert sizes.max() < high, name
    alike = np.corrcoef(np.hstack(list(noise.values())).T) - np.eye(21)
    assert np.abs(alike).max() < 0.65  # 190 pairs of independent columns of 90: once in 10¹⁰
