"""The sparse engine's joint law (`sparse_joint`), as it is compiled, and with bugs that the comparison must find."""

import numpy as np
import pytest
from scipy import stats
from tests.statistical.sparse_joint import case, copy_with, differences

from intarsia.server.sampler.sparse import sweep

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
    "prior odds are forgotten": ("scan", "    out[1] = at.log_all +", "    out[1] = at.log_out +"),
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
