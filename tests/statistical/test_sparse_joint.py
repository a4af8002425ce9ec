"""The sparse engine's joint law (`sparse_joint`), as it is compiled, and with bugs that the comparison must find."""

import numpy as np
import pytest
from scipy import stats
from tests.statistical.sparse_joint import case, copy_with, differences, differences_on_card

from intarsia.server.sampler.sparse import card_chain, sweep

CASES = [
    ({}, 0),
    ({"Q": 1}, 0),
    ({"Q": 3, "background": False}, 0),
    ({"independent": True}, 0),
    ({"Q": 3}, 1),
]


def test_so_do_rounds_among_few_features(monkeypatch):
    """Half of the features are near: they are scanned and placed among themselves, the others now and then."""
    copy = copy_with(("sweep", "MOST_ROUNDS, EACH_ROUND = 4, 2_500", "MOST_ROUNDS, EACH_ROUND = 1, 5"))
    z = differences(case(), copy.sweep.sweep, 3_000, near=(0, 2, 5))
    assert 2 * stats.norm.sf(np.abs(z).max()) * len(z) > 1e-3, np.round(z, 1)
    z = differences(case(), sweep.sweep, 12_000, near=(0, 2, 5))
    assert 2 * stats.norm.sf(np.abs(z).max()) * len(z) > 1e-3, np.round(z, 1)


@pytest.mark.parametrize(("options", "rank"), CASES)
def test_sweeps_leave_the_joint_law_as_it_is(options, rank):
    z = differences(case(**options), sweep.sweep, 12_000, rank=rank)
    assert 2 * stats.norm.sf(np.abs(z).max()) * len(z) > 1e-3, np.round(z, 1)


BUGS = {
    "prior odds are forgotten": ("scan", "log_in + np.log(rho).sum(), log_alone", "np.log1p(-pi), log_alone"),
    "a place forgets the features that are in": (
        "places", "                logs[i] = -np.inf", "                pass",
    ),
    "P is counted after screening": (
        "laws", "rng.beta(1.0 + k, problem.looked_at / problem.expected + problem.looked_at - k)",
        "rng.beta(1.0 + k, problem.X.shape[0] / problem.expected + problem.X.shape[0] - k)",
    ),
    "empty tries are forgotten": ("laws", "            tries += np.floor(", "            tries += 0 * np.floor("),
}  # fmt: skip
QUICK = ("prior odds are forgotten", "P is counted after screening")


@pytest.mark.parametrize("bug", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in BUGS])
def test_a_planted_bug_is_found(bug):
    """In the copy as plain Python; without the bug the copy passes (`test_the_copy_without_a_bug_passes`)."""
    copy = copy_with(BUGS[bug])
    z = differences(case(), copy.sweep.sweep, 4_000 if bug in QUICK else 20_000)
    assert 2 * stats.norm.sf(np.abs(z).max()) * len(z) < 1e-4, np.round(z, 1)


@pytest.mark.slow
def test_the_copy_without_a_bug_passes():
    z = differences(case(), copy_with().sweep.sweep, 20_000)
    assert 2 * stats.norm.sf(np.abs(z).max()) * len(z) > 1e-3, np.round(z, 1)


@pytest.mark.parametrize("near", [None, (0, 2, 5), ()], ids=["all are near", "half are near", "none is near"])
def test_an_accelerators_sweeps_leave_the_joint_law_as_it_is(near):
    z = differences_on_card(case(), 48, 60, near)
    assert 2 * stats.t.sf(np.abs(z).max(), 47) * len(z) > 1e-3, np.round(z, 1)


@pytest.mark.parametrize("bug", ["prior odds are forgotten", "rows weigh less among those near", "P is counted after screening"])
def test_a_bug_planted_in_an_accelerators_sweeps_is_found(bug, monkeypatch):
    coordinates, among_near, shares = card_chain.coordinates, card_chain.near, card_chain.draw_shares
    if bug == "prior odds are forgotten":
        forgotten = lambda made, st: (at := coordinates(made, st))._replace(log_all=at.log_out)  # noqa: E731
        monkeypatch.setattr(card_chain, "coordinates", forgotten)
    elif bug == "P is counted after screening":
        monkeypatch.setattr(card_chain, "draw_shares", lambda rng, made, st: shares(rng, made._replace(looked_at=6.0), st))
    else:
        monkeypatch.setattr(
            card_chain, "near", lambda rng, made, st, at, R, weight, n: among_near(rng, made, st, at, R, 0.6 * weight, n)
        )
    z = differences_on_card(case(), 48, 60)
    assert 2 * stats.t.sf(np.abs(z).max(), 47) * len(z) < 1e-4, np.round(z, 1)
