"""The simulators draw what they say."""

import numpy as np
import pytest
from experiments.paper.simulate import Scenario, features, partition, simulate

from intarsia.errors import InputError


def covariance(scenario, n=40_000, seed=0):
    X = features(n, scenario, np.random.default_rng(seed))
    return X.T @ X / n


def test_stated_design_is_equicorrelated():
    S = covariance(Scenario(P=8, s=1, rho=0.5))
    np.testing.assert_allclose(S, 0.5 * np.eye(8) + 0.5, atol=0.04)


def test_as_run_design_is_the_transposed_factor():
    """Cov(Uz) = UUᵀ, not UᵀU: the first feature's variance is 1 + (P−1)ρ², the correlations vanish."""
    P = 8
    Sigma = 0.5 * np.eye(P) + 0.5
    U = np.linalg.cholesky(Sigma).T
    np.testing.assert_allclose(U.T @ U, Sigma)
    S = covariance(Scenario(P=P, s=1, rho=0.5, design="as-run"))
    np.testing.assert_allclose(S, U @ U.T, atol=0.08)
    assert S[0, 0] == pytest.approx(1 + (P - 1) * 0.25, rel=0.05)


def test_as_run_at_the_papers_size_has_variance_251_and_no_correlation():
    U = np.linalg.cholesky(0.5 * np.eye(1000) + 0.5).T
    S = U @ U.T
    assert S[0, 0] == pytest.approx(250.75, abs=0.01)
    R = S / np.sqrt(np.outer(np.diag(S), np.diag(S)))
    assert np.median(np.abs(R[np.triu_indices(1000, 1)])) < 0.01


def test_ar1_and_block_covariances():
    S = covariance(Scenario(P=6, s=1, rho=0.6, design="ar1"))
    np.testing.assert_allclose(S, 0.6 ** np.abs(np.subtract.outer(np.arange(6), np.arange(6))), atol=0.04)
    S = covariance(Scenario(P=6, s=1, rho=0.6, design="block", block=3))
    expected = np.kron(np.eye(2), 0.4 * np.eye(3) + 0.6)
    np.testing.assert_allclose(S, expected, atol=0.04)


@pytest.mark.parametrize("s", [0, 1, 7])
def test_exactly_s_rows(s):
    d = simulate(Scenario(n=20, P=30, Q=4, s=s), np.random.default_rng(s))
    assert d.support.sum() == s


def test_low_rank_entry_sparse_and_weak():
    rng = np.random.default_rng(1)
    d = simulate(Scenario(n=20, P=50, Q=6, s=20, rank=2), rng)
    assert np.linalg.matrix_rank(d.C) == 2
    d = simulate(Scenario(n=20, P=50, Q=6, s=20, sparsity="entry"), rng)
    share = (d.C[d.support] != 0).mean()
    assert d.support.sum() == 20
    assert 0.4 < share < 0.75
    strong, weak = (simulate(Scenario(n=20, s=20, signal=f), np.random.default_rng(2)).C for f in (1.0, 0.1))
    np.testing.assert_allclose(weak, 0.1 * strong)


@pytest.mark.parametrize("law", ["normal", "t3", "correlated"])
def test_noise_has_variance_one(law):
    d = simulate(Scenario(n=200_000, P=1, Q=2, s=0, noise=law, K=1), np.random.default_rng(3))
    # t with three degrees of freedom has no fourth moment: its sample variance settles slowly.
    assert d.Y.var() == pytest.approx(1, abs=0.1)
    heavy = np.mean(np.abs(d.Y) > 4)
    assert (heavy > 1e-3) == (law == "t3")
    assert np.corrcoef(d.Y.T)[0, 1] == pytest.approx(0.6 if law == "correlated" else 0.0, abs=0.02)


def test_partitions():
    rng = np.random.default_rng(4)
    features_at, responses_at = partition(Scenario(P=10, Q=5, s=1, K=3), rng)
    assert sorted(np.bincount(features_at)) == [3, 3, 4]
    assert set(responses_at) == {2}
    _, responses_at = partition(Scenario(P=10, Q=5, s=1, K=3, layout="spread"), rng)
    assert set(responses_at) == {0, 1, 2}
    features_at, responses_at = partition(Scenario(P=10, Q=5, s=1, K=3, layout="responses-only"), rng)
    assert set(features_at) == {0, 1}
    assert set(responses_at) == {2}


def test_parts_hold_every_column_once():
    d = simulate(Scenario(n=5, P=10, s=1), np.random.default_rng(5))
    assert sum(part.shape[1] for part in d.parts()) == 10


def test_same_seed_same_data():
    a, b = (simulate(Scenario(n=10, P=20, s=3), np.random.default_rng(6)) for _ in range(2))
    np.testing.assert_array_equal(a.Y, b.Y)


@pytest.mark.parametrize(
    "wrong",
    [{"design": "x"}, {"noise": "x"}, {"s": 2000}, {"rho": 1.0}, {"K": 0}, {"K": 1, "layout": "responses-only"}],
)
def test_nonsense_is_refused(wrong):
    with pytest.raises(InputError):
        Scenario(**wrong)
