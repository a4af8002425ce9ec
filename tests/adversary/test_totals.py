"""A total among its own parts, right for all but a few people: the server takes the smallest combination of columns, no key."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.adversary.kit import FIXED_WORDS, RogueServer
from tests.adversary.test_server import steps_until
from tests.federation import NAMES, frames

from intarsia.site.data.combinations import of_few_people
from intarsia.site.data.table import Table
from intarsia.site.self_attack import real_phi
from intarsia.site.sketch.terms import SketchTerms
from intarsia.wire.messages import Sketch

SLIP = 17  # the row in which somebody mistyped the total


def with_total(error: float = 0.1) -> dict[str, pd.DataFrame]:
    tables = frames()
    mri = tables["mri"]
    mri["mri_5"] = mri["mri_0"] + mri["mri_1"] + mri["mri_2"]
    mri.loc[SLIP, "mri_5"] += error
    return tables


def asked_for_sketch(where: Path, tables: dict[str, pd.DataFrame], override: bool = False, **options: object) -> RogueServer:
    """As far as the imaging centre's answer to the step `sketch`; `seen[-1]` is that."""
    rogue = RogueServer.before(where, tables=tables, **options)
    if override:
        rogue.sites["mri"].policy = {"override": [{"rule": "near-duplicate", "reason": "to see what the gate prevents"}]}
    steps_until(rogue, "align")
    rogue.ask("mri", "sketch")
    return rogue


def test_a_slip_in_a_total_gives_a_persons_column_of_phi_away_and_the_gate_refuses_it(tmp_path: Path) -> None:
    rogue = asked_for_sketch(tmp_path / "overridden", with_total(), override=True)
    sent, mri = Sketch.load(rogue.seen[-1]), rogue.sites["mri"]
    guess = np.linalg.svd(sent.X)[0][:, 5]  # of six columns the last: all that the server needs
    phi = real_phi(SketchTerms.of(rogue.study, "mri", sent.order_mac).design(mri.key(rogue.study), 400))
    cosine = np.abs(guess @ phi) / np.linalg.norm(phi, axis=0)
    assert cosine.max() > 0.8  # the others are below a half
    assert mri.tokens(rogue.study).rows[cosine.argmax()] == SLIP
    honest = asked_for_sketch(tmp_path / "judged", with_total())
    assert honest.seen[-1].decode() in FIXED_WORDS
    assert "among them), but for 1 subject:" in honest.reason
    assert all(name in honest.reason for name in ("mri_0", "mri_1", "mri_2", "mri_5"))


def test_in_a_gram_study_too(tmp_path: Path) -> None:
    rogue = asked_for_sketch(tmp_path, with_total(), sketch={"kind": "gram", "rows": 128})
    assert rogue.seen[-1].decode() in FIXED_WORDS
    assert "among them), but for 1 subject:" in rogue.reason


@pytest.mark.parametrize(("people", "refused"), [(3, True), (9, True), (30, False)])
def test_values_filled_in_are_slips_of_a_total(tmp_path: Path, people: int, refused: bool) -> None:
    """The parts of a few people are missing and put at the mean; their totals are there."""
    tables = with_total(0.0)
    tables["mri"].loc[: people - 1, "mri_1"] = np.nan
    rogue = RogueServer.before(tmp_path, tables=tables)
    rogue.sites["mri"].rules = type(rogue.sites["mri"].rules).of("mean", "error", {})
    steps_until(rogue, "align")
    assert rogue.ask("mri", "sketch").refused == refused
    assert not refused or "is nearly a sum of other columns" in rogue.reason


@pytest.mark.parametrize("noise", [0.0, 0.05, 1.0])
def test_a_total_that_is_right_or_wrong_for_everybody_passes(noise: float) -> None:
    rng = np.random.default_rng(1)
    parts = rng.lognormal(sigma=0.5, size=(400, 8))
    total = parts[:, :4].sum(axis=1) + noise * rng.standard_normal(400)
    levels = np.eye(3)[rng.integers(0, 3, 400)]  # indicators of all levels: their sum is the same for all
    names = [f"x{j}" for j in range(12)]
    table = Table.open(dict(zip(names, np.column_stack([parts, total, levels]).T, strict=True)))
    assert of_few_people(table, None, names, 10) is None


def test_the_three_sites_of_the_other_tests_pass() -> None:
    for name, frame in frames().items():
        table = Table.open(frame, id="id")
        assert name in NAMES
        assert of_few_people(table, None, table.labels, 10) is None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("n", "families", "alike", "sigma"), [(300, 12, 0.9, 1.5), (1300, 12, 0.9, 1.5), (300, 12, 0.99, 1.0)])
def test_exposures_with_long_tails_are_no_totals(seed: int, n: int, families: int, alike: float, sigma: float) -> None:
    """One person's extreme values are most of some combination of columns; but the columns do not cancel for the others."""
    rng = np.random.default_rng(seed)
    common = np.repeat(rng.standard_normal((n, families)), 5, axis=1)
    X = np.exp(sigma * (np.sqrt(alike) * common + np.sqrt(1 - alike) * rng.standard_normal(common.shape)))
    names = [f"x{j}" for j in range(X.shape[1])]
    assert of_few_people(Table.open(dict(zip(names, X.T, strict=True))), None, names, 10) is None
