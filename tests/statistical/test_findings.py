"""Findings on posteriors our sampler draws: twins, confounded features, and that nothing changes where nobody has a twin."""

from dataclasses import replace

import numpy as np
import pytest
from experiments.findings import neighbours, twins

from intarsia.server.assess.findings import select
from intarsia.server.covariates import Covariates, sample_adjusted
from intarsia.server.sampler.horseshoe.sample import sample
from intarsia.server.sampler.settings import Settings

pytestmark = pytest.mark.filterwarnings("ignore")

BRIEF = Settings(draws=200, warmup=200, chains=2, thin=1, workers=1)


def standard(X, Y):
    return X / X.std(axis=0), Y / Y.std(axis=0)


@pytest.mark.parametrize("number", range(3))
def test_twins_are_found_alone_or_as_a_pair(number):
    X, Y, C = twins(0.995, 2, np.random.default_rng([21, number]))
    found = select(sample(*standard(X, Y), settings=replace(BRIEF, seed=number)), X=X)
    holding = [finding.tolist() for finding in found.findings if 0 in finding]
    assert holding in ([[0]], [[0, 1]])
    assert all(C[finding].any() for finding in found.findings)


def test_without_close_features_sets_change_nothing():
    rng = np.random.default_rng(5)
    X = np.sqrt(0.5) * rng.standard_normal((150, 1)) + np.sqrt(0.5) * rng.standard_normal((150, 60))
    C = np.zeros((60, 2))
    C[:6] = rng.normal(0, 0.6, (6, 2))
    draws = sample(*standard(X, X @ C + rng.standard_normal((150, 2))), settings=replace(BRIEF, seed=1))
    with_sets = select(draws, X=X)
    np.testing.assert_array_equal(with_sets.selected, select(draws).selected)
    assert with_sets.sets == ()


def test_a_feature_that_acts_through_a_covariate_is_not_found_once_adjusted():
    plain = 0
    for number in range(3):
        rng = np.random.default_rng([22, number])
        z, X = rng.standard_normal((120, 1)), rng.standard_normal((120, 30))
        X[:, 0] = 0.8 * z[:, 0] + 0.6 * X[:, 0]
        Y = X[:, 5:7] + z + rng.standard_normal((120, 2))

        def run(X, Y, number=number):
            return sample(X, Y, settings=replace(BRIEF, seed=number))

        plain += int(select(run(X, Y)).selected[0])
        fitted = sample_adjusted(run, X, Y, Covariates(z, ("age",)), number)
        chosen = select(fitted.draws, X=fitted.X)
        assert not any(0 in finding for finding in chosen.findings)
        assert chosen.selected[[5, 6]].all()
        mean, sd = fitted.Gamma.mean(axis=(0, 1)), fitted.Gamma.std(axis=(0, 1))
        assert (np.abs(mean - 1) < 4 * sd).all()
    assert plain >= 2


@pytest.mark.slow
def test_neighbours_false_discoveries_at_length():
    wrong = count = 0
    for number in range(10):
        X, Y, C = neighbours(np.random.default_rng([23, number]))
        found = select(sample(*standard(X, Y), settings=replace(BRIEF, seed=number, draws=400, warmup=300)), X=X)
        wrong += sum(not C[finding].any() for finding in found.findings)
        count += len(found.findings)
    assert wrong <= 0.05 * count
