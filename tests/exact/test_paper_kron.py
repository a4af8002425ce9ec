"""The yardstick samples the law it should: each step against a textbook solve, and the paper's slips by name."""

import numpy as np
import pytest
from experiments.rivals.paper_kron import (
    KronState,
    Variant,
    draw_A,
    draw_B,
    draw_B_structured,
    draw_eta,
    run,
    start,
    sweep,
)
from scipy import integrate, stats

from intarsia.errors import InputError

M, P, Q, R = 7, 9, 3, 2


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((M, P)), rng.standard_normal((M, Q))
    state = KronState(
        rng.standard_normal((P, R)), rng.standard_normal((Q, R)), rng.gamma(2, size=Q),
        rng.gamma(1, size=(P, R)), rng.gamma(1, size=R), np.ones(Q),
    )  # fmt: skip
    return X, Y, state


def textbook_B(X, Y, state):
    """Precision and mean of vec(Bᵀ) from the likelihood summed row by row."""
    precision = np.diag(1 / (state.lam2 * state.tau2).ravel())
    right = np.zeros(P * R)
    for i in range(M):
        for q in range(Q):
            row = np.outer(X[i], state.A[q]).ravel()
            precision += np.outer(row, row) / state.sigma2[q]
            right += row * Y[i, q] / state.sigma2[q]
    covariance = np.linalg.inv(precision)
    return covariance @ right, covariance


@pytest.mark.parametrize("step", [draw_B, draw_B_structured])
def test_B_has_the_textbook_mean_and_covariance(problem, step):
    X, Y, state = problem
    mean, covariance = textbook_B(X, Y, state)
    zero = step(X, Y, state, np.zeros(P * R), np.zeros(M * Q)).ravel()
    np.testing.assert_allclose(zero, mean, atol=1e-10)
    units = np.eye(P * R + M * Q)
    J = np.stack([step(X, Y, state, e[: P * R], e[P * R :]).ravel() - zero for e in units], axis=1)
    np.testing.assert_allclose(J @ J.T, covariance, atol=1e-10)


def test_both_solvers_turn_the_same_noise_into_the_same_B(problem):
    X, Y, state = problem
    noise = np.random.default_rng(3).standard_normal(P * R + M * Q)
    a, b = (step(X, Y, state, noise[: P * R], noise[P * R :]) for step in (draw_B, draw_B_structured))
    np.testing.assert_allclose(a, b, rtol=1e-9)
    kron, fast = (sweep(X, Y, state, np.random.default_rng(3), Variant(structured=how)) for how in (False, True))
    np.testing.assert_allclose(kron.B, fast.B, rtol=1e-9)


def test_A_has_the_textbook_mean_and_covariance(problem):
    X, Y, state = problem
    H = X @ state.B
    zero = draw_A(X, Y, state, state.B, np.zeros(Q * R))
    J = np.stack([(draw_A(X, Y, state, state.B, e) - zero).ravel() for e in np.eye(Q * R)], axis=1)
    covariance = (J @ J.T).reshape(Q, R, Q, R)
    for q in range(Q):
        omega = H.T @ H / state.sigma2[q] + np.eye(R)
        np.testing.assert_allclose(zero[q], np.linalg.solve(omega, H.T @ Y[:, q] / state.sigma2[q]), atol=1e-10)
        np.testing.assert_allclose(covariance[q, :, q], np.linalg.inv(omega), atol=1e-10)
        for other in set(range(Q)) - {q}:
            np.testing.assert_allclose(covariance[q, :, other], 0, atol=1e-10)


def eta_chain(scales, mu, count, draws=40_000):
    """Many independent slice chains, 12 steps each: the law the step leaves invariant."""
    rng = np.random.default_rng(1)
    eta = np.ones(draws)
    for _ in range(12):
        eta = draw_eta(eta, np.full(draws, mu), count, scales, rng.uniform(size=draws), rng.uniform(size=draws))
    return eta


@pytest.mark.parametrize(("mu", "count"), [(0.7, 1), (3.0, 1), (4.0, 6), (40.0, 30)])
def test_the_corrected_scale_step_leaves_the_right_law(mu, count):
    """p(η) ∝ η^((count−1)/2) e^(−ηmu/2)/(1+η), from N(b | 0, λ²)^count C⁺(λ) with η = 1/λ²."""

    def density(eta):
        return eta ** ((count - 1) / 2) * np.exp(-eta * mu / 2) / (1 + eta)

    total = integrate.quad(density, 0, np.inf, limit=200)[0]
    grid = np.quantile(eta_chain("corrected", mu, count), [0.1, 0.3, 0.5, 0.7, 0.9])
    cdf = [integrate.quad(density, 0, g, limit=200)[0] / total for g in grid]
    np.testing.assert_allclose(cdf, [0.1, 0.3, 0.5, 0.7, 0.9], atol=0.012)


def test_the_printed_and_the_coded_steps_leave_other_laws():
    right = eta_chain("corrected", 3.0, 6)
    assert stats.ks_2samp(right, eta_chain("printed", 3.0, 6)).statistic > 0.3
    assert stats.ks_2samp(right, eta_chain("coded", 3.0, 6)).statistic > 0.3
    # for one coefficient the printed law is right, and the coded one is wrong the dangerous way round:
    small = 0.01  # a small coefficient must get a small scale, that is a large η
    assert stats.ks_2samp(eta_chain("corrected", small, 1), eta_chain("printed", small, 1)).statistic < 0.02
    assert np.median(eta_chain("coded", small, 1)) < 0.05 * np.median(eta_chain("corrected", small, 1))


def prior_tau(scales, sweeps=400):
    """The scales without data: b is drawn from its prior in each sweep, so τ must stay half-Cauchy with median 1."""
    rng = np.random.default_rng(2)
    chains, p = 300, 12
    lam2, tau2 = np.ones((chains, p)), np.ones(chains)
    for _ in range(sweeps):
        b = np.sqrt(lam2 * tau2[:, None]) * rng.standard_normal((chains, p))
        lam2 = 1 / draw_eta(1 / lam2, b**2 / tau2[:, None], 1, scales, *rng.uniform(size=(2, chains, p)))
        tau2 = 1 / draw_eta(1 / tau2, (b**2 / lam2).sum(axis=1), p, scales, *rng.uniform(size=(2, chains)))
    return np.sqrt(tau2)


def test_the_printed_tau_step_runs_away_without_data():
    assert 0.7 < np.median(prior_tau("corrected")) < 1.4
    assert np.median(prior_tau("printed")) > 1e10


def test_extreme_scales_stay_finite():
    eta = np.array([1e-240, 1e-12, 1.0, 1e12, 1e240])
    for scales in ("corrected", "printed", "coded"):
        for count in (1, 1000):
            for mu in (0.0, 1e-300, 1.0, 1e300):
                out = draw_eta(eta, np.full(5, mu), count, scales, np.full(5, 0.3), np.full(5, 0.6))
                assert np.isfinite(out).all()
                assert (out > 0).all()


def test_run_keeps_to_its_draws_and_its_time(problem):
    X, Y, _state = problem
    rng = np.random.default_rng(0)
    kept = run(X, Y, rng, draws=30, warmup=5)
    assert kept.C.shape == (30, P, Q)
    assert kept.tau.shape == (30, Q)
    assert kept.ms_per_sweep > 0
    assert len(run(X, Y, rng, draws=30, warmup=0, seconds=0.0).C) == 1
    assert np.isfinite(run(X, Y, rng, draws=20, warmup=0, variant=Variant(noise="jeffreys", rank=1)).C).all()
    assert start(X, Y, rng, rank=2).A.shape == (Q, 2)
    with pytest.raises(InputError, match="scales='wrong'"):
        Variant(scales="wrong")
