"""Differential privacy accounting: exact figures, its inverse, monotonicity, and the whole problem by simulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.errors import InputError
from intarsia.privacy import dp

M = st.integers(2, 2000)
T = st.floats(1e-4, 2.0)
EPSILON = st.floats(0.01, 12.0)


@pytest.mark.parametrize(("m", "expected"), [(50, (26.9, 9.7, 3.3)), (250, (52.8, 19.2, 6.6)), (1000, (100.0, 36.4, 12.6))])
def test_needed_noise(m, expected):
    found = [1 / dp.calibrate(epsilon, 1e-6, m) for epsilon in (1, 3, 10)]
    assert found == pytest.approx(expected, abs=0.055)


@given(M, T, EPSILON, st.floats(1.001, 3))
@settings(max_examples=150, deadline=None)
def test_delta_falls_with_epsilon_and_grows_with_t(m, t, epsilon, factor):
    here = dp.delta_of(epsilon, t, m)
    assert 0 <= here <= 1
    assert dp.delta_of(epsilon * factor, t, m) <= here + 1e-13
    assert dp.delta_of(epsilon, t * factor, m) >= here - 1e-13


@given(M, st.floats(0.1, 10), st.sampled_from([1e-9, 1e-6, 1e-4, 1e-2]))
@settings(max_examples=60, deadline=None)
def test_calibration_inverts_accounting(m, epsilon, delta):
    t = dp.calibrate(epsilon, delta, m)
    assert dp.delta_of(epsilon, t, m) == pytest.approx(delta, rel=1e-5)
    assert dp.epsilon_of(delta, t, m) == pytest.approx(epsilon, rel=1e-5)


@given(st.floats(0.05, 8), st.sampled_from([1e-9, 1e-6, 1e-3]))
@settings(max_examples=60, deadline=None)
def test_gaussian_dp_inverts(mu, delta):
    epsilon = dp.gdp_epsilon(mu, delta)
    if epsilon > 0:
        assert dp.gdp_delta(mu, epsilon) == pytest.approx(delta, rel=1e-5)
    assert dp.gdp_epsilon(mu * 1.1, delta) >= epsilon


def test_against_simulation_of_the_unreduced_problem():
    """Whole sketches of clipped rows with and without one person: the hockey-stick of their Gaussian laws."""
    rng = np.random.default_rng(3)
    n, m, c, bound, w, epsilon = 30, 6, 3, 1.0, 1.5, 0.3
    X = rng.standard_normal((n, c)) * 0.05
    x = np.full(c, bound / np.sqrt(c))
    base = X.T @ X + w**2 * np.eye(c)
    grown = base + np.outer(x, x)
    L = np.linalg.cholesky(grown / n)
    Z = rng.standard_normal((200_000, m, c)) @ L.T

    def log_density(Z, S):
        inverse = np.linalg.inv(S / n)
        return -m / 2 * np.linalg.slogdet(S / n)[1] - 0.5 * np.einsum("kij,jl,kil->k", Z, inverse, Z)

    loss = log_density(Z, grown) - log_density(Z, base)
    hockey = np.maximum(0, 1 - np.exp(epsilon - loss))
    t = float(x @ np.linalg.solve(base, x))
    a = dp.delta_of(epsilon, t, m)
    assert hockey.mean() == pytest.approx(a, abs=4 * hockey.std() / np.sqrt(len(loss)))
    # What is promised, from the public bound alone, is no smaller.
    assert a <= dp.delta_of(epsilon, bound**2 / w**2, m)


def test_the_reduced_simulation_agrees():
    found = dp.monte_carlo_delta(0.5, 0.3, 40, 400_000, np.random.default_rng(0))
    assert found == pytest.approx(dp.delta_of(0.5, 0.3, 40), rel=0.02)


def test_noise_is_split_over_sites():
    bounds, columns = {"a": 10.0, "b": 3.0}, {"a": 50, "b": 4}
    g = dp.guarantee(2.0, 1e-6, 200, bounds, columns)
    assert dp.signal_to_noise(g.sites) == pytest.approx(g.t)
    cost = sum(columns[s] * g.sites[s].w ** 2 for s in bounds)
    for share in (0.3, 0.5, 0.7):  # any other split of t costs more noise
        other = sum(columns[s] * bounds[s] ** 2 / (g.t * part) for s, part in (("a", share), ("b", 1 - share)))
        assert other >= cost * (1 - 1e-12)
    same = dp.guarantee(2.0, 1e-6, 200, bounds)
    assert same.sites["a"].w == pytest.approx(same.sites["b"].w)
    assert same.sites["a"].w == pytest.approx(np.sqrt(109 / same.t))


def test_guarantee_against_a_party_that_knows_phi():
    g = dp.guarantee(1.0, 1e-6, 1000, {"a": 1.0})
    assert g.mu == pytest.approx(np.sqrt(1000 * g.t))
    # A Φ whose columns have length √(m/n) gives the same μ; a longer column gives more.
    assert dp.mu_of_phi(g.t, 10**5, np.sqrt(1000 / 10**5)) == pytest.approx(g.mu)
    assert g.epsilon_known_phi > g.epsilon
    assert dp.longest_column(10**5, 1000) > np.sqrt(1000 / 10**5)


@pytest.mark.parametrize("epsilon", [0, -1.0, float("nan"), float("inf")])
def test_bad_epsilon(epsilon):
    with pytest.raises(InputError, match="epsilon"):
        dp.calibrate(epsilon, 1e-6, 100)


@pytest.mark.parametrize("delta", [0, 1, -0.1, float("nan")])
def test_bad_delta(delta):
    with pytest.raises(InputError, match="delta"):
        dp.calibrate(1.0, delta, 100)


def test_missing_and_bad_bounds():
    with pytest.raises(InputError, match="row bound"):
        dp.guarantee(1, 1e-6, 100, {})
    with pytest.raises(InputError, match="'a'"):
        dp.guarantee(1, 1e-6, 100, {"a": 0.0})
    with pytest.raises(InputError, match="different sites: b"):
        dp.guarantee(1, 1e-6, 100, {"a": 1.0}, {"a": 3, "b": 4})
