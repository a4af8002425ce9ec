"""A prior on how many features matter: the global scales' law, and what it does."""

from dataclasses import replace

import numpy as np
import pytest

from intarsia.errors import InputError
from intarsia.server.sampler.horseshoe.model import Model
from intarsia.server.sampler.horseshoe.sample import sample
from intarsia.server.sampler.horseshoe.sweep import prepare
from intarsia.server.sampler.settings import Settings


def test_at_its_scale_the_prior_keeps_as_many_features_as_expected() -> None:
    """By simulation from the prior: lam from C⁺(0, 1), tau at the scale, shares of effects kept added up."""
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((60, 400)) * 3, rng.standard_normal((60, 2)) * 5
    found = prepare(Model(expected_features=12), X, Y).tau.size
    lam = np.abs(np.tan(np.pi * (rng.random((4000, 400)) - 0.5)))
    t = lam**2 * found**2 * 2 * (X**2).sum(axis=0).mean() / (Y**2).mean()
    kept = (t / (1 + t)).sum(axis=1).mean()
    assert abs(kept - 12) < 0.3
    assert prepare(Model(), X, Y).tau.size == 1.0


def test_expecting_next_to_none_leaves_next_to_none() -> None:
    """Pure noise with more features than rows: without a prior the coefficients take a share of it, with one they cannot."""
    rng = np.random.default_rng(1)
    X, Y = rng.standard_normal((40, 80)), rng.standard_normal((40, 2))
    run = Settings(draws=100, warmup=150, chains=1, thin=2, seed=0, workers=1)
    free, none = (sample(X, Y, Model(expected_features=p), run) for p in (None, 1e-6))
    explained = [np.square(X @ draws.C[0]).mean() for draws in (free, none)]
    assert explained[0] > 0.05
    assert explained[1] < 0.05 * explained[0]


def test_the_law_is_told_and_the_same_for_every_way_of_sampling() -> None:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((40, 100))
    Y = X[:, :2] @ np.array([[2.0, 1.0], [1.0, -2.0]]) + rng.standard_normal((40, 2))
    run = Settings(draws=4, warmup=2, chains=1, thin=1, seed=0, workers=1)
    for mixing in (True, False):
        assert prepare(Model(expected_features=5), X, Y, mixing=mixing).tau == prepare(Model(expected_features=5), X, Y).tau
        assert sample(X, Y, Model(expected_features=5), replace(run, mixing=mixing)).info["expected_features"] == 5
    assert sample(X, Y, settings=run).info["expected_features"] is None


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
def test_nonsense_is_refused(value: float) -> None:
    with pytest.raises(InputError, match="expected_features"):
        Model(expected_features=value)
