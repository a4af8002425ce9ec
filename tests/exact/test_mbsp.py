"""MBSP's conditionals against the joint density that defines the model, and its slice against the law it must keep."""

import numpy as np
import pytest
from experiments.paper.simulate import Scenario, simulate
from experiments.rivals import mbsp
from experiments.rivals.mbsp import MBSP, Prior
from scipy.integrate import quad
from scipy.special import digamma
from scipy.stats import gamma, invwishart, matrix_normal

PRIOR = Prior(tau=0.3, d=5.0, k=0.7)
N, P, Q = 7, 4, 2


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((N, P)), rng.standard_normal((N, Q))
    return X, Y, rng.gamma(1.0, 1.0, P), np.array([[1.0, 0.4], [0.4, 0.6]])


def log_joint(X, Y, B, Sigma, psi):
    """log p(Y, B, Σ | ψ) as the model states it."""
    return (
        matrix_normal.logpdf(Y, X @ B, np.eye(N), Sigma)
        + matrix_normal.logpdf(B, np.zeros((P, Q)), np.diag(psi), Sigma)
        + invwishart.logpdf(Sigma, PRIOR.d, PRIOR.k * np.eye(Q))
    )


def test_B_has_its_mean_and_covariance(problem):
    X, Y, psi, Sigma = problem
    gram, cross = X.T @ X, X.T @ Y
    rows = np.linalg.inv(gram + np.diag(1 / psi))
    mean = mbsp.draw_B(gram, cross, psi, Sigma, np.zeros((P, Q)))
    np.testing.assert_allclose(mean, rows @ cross, atol=1e-12)
    units = np.eye(P * Q).reshape(P * Q, P, Q)
    moved = np.stack([(mbsp.draw_B(gram, cross, psi, Sigma, unit) - mean).ravel() for unit in units])
    np.testing.assert_allclose(moved.T @ moved, np.kron(rows, Sigma), atol=1e-12)


def test_the_laws_of_B_and_Sigma_are_the_joint_density_up_to_a_constant(problem):
    X, Y, psi, Sigma = problem
    rng = np.random.default_rng(1)
    B = rng.standard_normal((P, Q))
    degrees, scale = mbsp.sigma_terms(Y - X @ B, B, psi, PRIOR)
    others = [Sigma, np.eye(Q), np.array([[2.0, -0.9], [-0.9, 0.8]])]
    gaps = [log_joint(X, Y, B, S, psi) - invwishart.logpdf(S, degrees, scale) for S in others]
    np.testing.assert_allclose(gaps, gaps[0], atol=1e-10)
    rows = np.linalg.inv(X.T @ X + np.diag(1 / psi))
    points = [B, np.zeros((P, Q)), rng.standard_normal((P, Q))]
    gaps = [log_joint(X, Y, b, Sigma, psi) - matrix_normal.logpdf(b, rows @ X.T @ Y, rows, Sigma) for b in points]
    np.testing.assert_allclose(gaps, gaps[0], atol=1e-10)


def test_summing_out_zeta_leaves_the_three_parameter_beta():
    """ψ ~ G(u, ζ), ζ ~ G(a, τ), as the authors write it, is the density ψ^(u−1)(τ+ψ)^−(a+u) of this module."""

    def mixed(psi):
        return quad(lambda z: gamma.pdf(psi, PRIOR.u, scale=1 / z) * gamma.pdf(z, PRIOR.a, scale=1 / PRIOR.tau), 0, np.inf)[0]

    ratio = [mixed(psi) / (psi ** (PRIOR.u - 1) * (PRIOR.tau + psi) ** -(PRIOR.a + PRIOR.u)) for psi in (0.01, 0.3, 1.0, 20.0)]
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-5)


def psi_law(distance):
    """Quantiles of ψ given distance = bΣ⁻¹bᵀ by summing the density on a fine grid: inverse distribution function and itself."""
    grid = np.linspace(np.log(1e-9), np.log(1e9), 20_001)
    psi = np.exp(grid)
    log = -Q / 2 * grid - distance / (2 * psi) + PRIOR.u * grid - (PRIOR.a + PRIOR.u) * np.log(PRIOR.tau + psi)
    weight = np.cumsum(np.exp(log - log.max()))
    weight /= weight[-1]
    return lambda share: np.exp(np.interp(share, weight, grid)), lambda value: np.interp(np.log(value), grid, weight)


def kept(distance, prior):
    """How far the slice moves the law of ψ: a lattice of 50³ points (ψ, two uniforms), no chance in it."""
    inverse, law = psi_law(distance)
    steps = (np.arange(50) + 0.5) / 50
    share, one, two = (x.ravel() for x in np.meshgrid(steps, steps, steps))
    after = mbsp.draw_psi(inverse(share), np.full(share.shape, distance), Q, prior, np.stack([one, two]))
    place = np.sort(law(after))
    return np.abs(place - (np.arange(len(place)) + 0.5) / len(place)).max()


@pytest.mark.parametrize("distance", [1e-3, 0.5, 30.0])
def test_the_slice_keeps_the_law_of_psi(distance):
    assert kept(distance, PRIOR) < 0.01


def test_another_laws_slice_is_found():
    assert kept(0.5, PRIOR._replace(a=0.9)) > 0.02


def test_a_tiny_distance_has_the_limit_of_the_law():
    psi, uniform = np.full(5, 0.2), np.tile(np.linspace(0.1, 0.9, 5), (2, 1))
    near, nearer = (mbsp.draw_psi(psi, np.full(5, distance), Q, PRIOR, uniform) for distance in (1e-9, 1e-18))
    np.testing.assert_allclose(near, nearer, rtol=1e-6)


def test_inverse_wishart_draws():
    rng = np.random.default_rng(2)
    scale = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.3], [0.0, 0.3, 1.5]])
    draws = np.stack([mbsp.draw_inverse_wishart(9.0, scale, rng) for _ in range(4000)])
    error = draws.std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(axis=0) - scale / (9 - 3 - 1)) < 4 * error).all()
    log_det = np.linalg.slogdet(draws)[1]
    exact = np.linalg.slogdet(scale)[1] - 3 * np.log(2) - digamma((9.0 - np.arange(3)) / 2).sum()
    assert abs(log_det.mean() - exact) < 4 * log_det.std() / np.sqrt(len(draws))


def test_it_finds_the_support_and_its_noise():
    data = simulate(Scenario(n=200, P=40, Q=3, s=5, noise="correlated"), np.random.default_rng(3))
    model = MBSP(draws=150, warmup=100).fit(data.X + 1.0, 3 * data.Y - 2.0)
    np.testing.assert_array_equal(model.selected_, data.support)
    assert np.mean((model.coef_.T / 3 - data.C) ** 2) < 0.01
    np.testing.assert_allclose(model.sigma2_.mean(axis=(0, 1)) / 9, 1.0, atol=0.35)
    np.testing.assert_allclose(model.predict(data.X + 1.0).mean(axis=0), (3 * data.Y - 2.0).mean(axis=0), atol=1e-8)
