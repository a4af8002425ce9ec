"""A prior on how many features matter: the global scales' law, and what it does."""

from dataclasses import replace

import numpy as np
import pytest

from intarsia.errors import InputError
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.sample import sample
from intarsia.server.sampler.schedule import plan, with_start
from intarsia.server.sampler.settings import Settings
from intarsia.server.sampler.sparse_start import sparse_start


def test_at_its_scale_the_prior_keeps_as_many_features_as_expected() -> None:
    """By simulation from the prior: lam from C⁺(0, 1), tau at the scale, shares of effects kept added up."""
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((60, 400)) * 3, rng.standard_normal((60, 2)) * 5
    found = plan(Model(expected_features=12), X, Y).tau_scale
    lam = np.abs(np.tan(np.pi * (rng.random((4000, 400)) - 0.5)))
    t = lam**2 * found**2 * 2 * (X**2).sum(axis=0).mean() / (Y**2).mean()
    kept = (t / (1 + t)).sum(axis=1).mean()
    assert abs(kept - 12) < 0.3
    assert plan(Model(), X, Y).tau_scale == 1.0


def test_expecting_next_to_none_leaves_next_to_none() -> None:
    """Pure noise with more features than rows: without a prior the coefficients take a share of it, with one they cannot."""
    rng = np.random.default_rng(1)
    X, Y = rng.standard_normal((40, 80)), rng.standard_normal((40, 2))
    run = Settings(draws=100, warmup=150, chains=1, thin=2, seed=0, workers=1)
    free, none = (sample(X, Y, Model(expected_features=p), run) for p in (None, 1e-6))
    explained = [np.square(X @ draws.C[0]).mean() for draws in (free, none)]
    assert explained[0] > 0.05
    assert explained[1] < 0.05 * explained[0]


def test_with_many_features_per_row_some_are_expected_where_any_stand_out() -> None:
    """m/(2 log P) of them, at the noise that the sparse solution leaves; the law ends there. Else nothing is assumed."""
    rng = np.random.default_rng(2)
    X, E = rng.standard_normal((80, 1200)), rng.standard_normal((80, 2))
    signal = X[:, :4] @ np.array([[1.5, 1.0], [-1.2, 1.5], [2.0, -1.0], [1.0, 2.0]])
    found = sparse_start(X, signal + E)
    assert set(found.features) == {0, 1, 2, 3}
    made = with_start(plan(Model(), X, signal + E), found)
    assert made.expected == pytest.approx(80 / (2 * np.log(1200)))
    assert made.tau_reach == 1.0
    share = made.expected / 1200
    level = np.sqrt(np.trace(found.residual) / 2)
    assert made.tau_scale == pytest.approx(share / (1 - share) * level / (np.sqrt(np.square(X).sum() / 1200) * np.sqrt(2)))
    assert 0.85 < level < 1.15  # the noise's, not that of the responses
    asked = with_start(plan(Model(expected_features=30), X, signal + E), found)
    assert asked.expected == 30
    for few, Y in ((X, E), (X[:, :390], signal + E)):  # no feature stands out; fewer than five per row
        none = with_start(plan(Model(), few, Y), sparse_start(few, Y))
        assert (none.expected, none.tau_scale, none.tau_reach) == (None, 1.0, np.inf)


def test_the_prior_is_the_same_for_every_way_of_sampling() -> None:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((40, 1000))
    Y = X[:, :2] @ np.array([[2.0, 1.0], [1.0, -2.0]]) + rng.standard_normal((40, 2))
    run = Settings(draws=4, warmup=2, chains=1, thin=1, seed=0, workers=1)
    told = [sample(X, Y, settings=replace(run, mixing=mixing)).info["expected_features"] for mixing in (True, False)]
    assert told[0] == told[1] == pytest.approx(40 / (2 * np.log(1000)))
    assert sample(X[:, :200], Y, settings=run).info["expected_features"] is None


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
def test_nonsense_is_refused(value: float) -> None:
    with pytest.raises(InputError, match="expected_features"):
        Model(expected_features=value)
