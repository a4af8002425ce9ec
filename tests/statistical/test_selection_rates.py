"""Realised false discoveries and power of the default selection, on posteriors our sampler draws."""

import numpy as np
import pytest
from experiments.paper.simulate import Scenario, simulate

from intarsia.server.assess.findings import select
from intarsia.server.sampler.horseshoe.sample import sample
from intarsia.server.sampler.settings import Settings

pytestmark = pytest.mark.filterwarnings("ignore")

BRIEF = {"draws": 150, "warmup": 150}


def rates(scenario: Scenario, m: int, data_sets: int, seed: int, draws: int = 300, warmup: int = 300) -> dict[str, float]:
    """Sums over data sets of chosen, wrong and true features, and of chosen and wrong coefficients."""
    total = dict.fromkeys(("chosen", "wrong", "true", "entries", "wrong_entries", "expected"), 0.0)
    for number in range(data_sets):
        rng = np.random.default_rng([seed, number])
        data = simulate(scenario, rng)
        X = (data.X - data.X.mean(axis=0)) / data.X.std(axis=0)
        Y = (data.Y - data.Y.mean(axis=0)) / data.Y.std(axis=0)
        G = rng.standard_normal((m, scenario.n))
        G -= G.mean(axis=1, keepdims=True)
        Phi = np.linalg.solve(np.linalg.cholesky(G @ G.T), G)
        settings = Settings(draws, warmup, chains=2, thin=1, seed=number, workers=1)
        found = select(sample(Phi @ X, Phi @ Y, settings=settings))
        true, entry = data.support, data.C != 0
        total["chosen"] += found.selected.sum()
        total["wrong"] += (found.selected & ~true).sum()
        total["true"] += true.sum()
        total["entries"] += found.by_response.sum()
        total["wrong_entries"] += (found.by_response & ~entry).sum()
        total["expected"] += found.expected_fdr * found.selected.sum()
    return total


def test_pure_noise_gives_nothing():
    found = rates(Scenario(n=300, P=80, Q=3, s=0, rho=0.3), m=60, data_sets=2, seed=1, **BRIEF)
    assert found["chosen"] == 0
    assert found["entries"] == 0


def test_strong_signals_are_all_found():
    # at m = 80 one feature in six is out of reach, however long the chains are
    found = rates(Scenario(n=300, P=80, Q=3, s=8, rho=0.5), m=150, data_sets=2, seed=2, **BRIEF)
    assert found["chosen"] - found["wrong"] >= 0.9 * found["true"]
    assert found["wrong"] <= 1
    assert found["wrong_entries"] <= 1


def test_weak_signals_are_found_in_part_and_without_many_false_ones():
    found = rates(Scenario(n=300, P=80, Q=3, s=10, rho=0.3, signal=0.2), m=120, data_sets=2, seed=3, **BRIEF)
    assert 0.25 < (found["chosen"] - found["wrong"]) / found["true"] < 0.98
    assert found["wrong"] <= 0.1 * found["chosen"]


def test_a_feature_that_touches_some_responses_only():
    found = rates(Scenario(n=300, P=80, Q=4, s=8, rho=0.2, sparsity="entry"), m=100, data_sets=2, seed=4, **BRIEF)
    assert found["entries"] > 20
    assert found["wrong_entries"] <= 0.1 * found["entries"]


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.7])
@pytest.mark.parametrize("s", [10, 30, 50])
def test_simulation_two(rho, s):
    data_sets = max(3, -(-100 // s))  # a hundred true features at least, so that one that is missed is not two per cent
    found = rates(Scenario(rho=rho, s=s), m=200, data_sets=data_sets, seed=5, draws=600, warmup=500)
    assert found["wrong"] <= 0.05 * found["chosen"]
    assert found["chosen"] - found["wrong"] >= 0.98 * found["true"]


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_weak_signals_at_length(rho):
    found = rates(Scenario(n=400, P=200, Q=3, s=20, rho=rho, signal=0.25), m=100, data_sets=25, seed=6)
    assert found["wrong"] <= 0.05 * found["chosen"]
