"""Covariates are projected out exactly, and their effects follow their exact conditional law."""

import numpy as np
import pytest

from intarsia.errors import InputError
from intarsia.server.covariates import Covariates, adjust, sample_adjusted
from intarsia.server.results.draws import Draws

m, P, Q, c = 40, 6, 3, 2
NAMES = ("age", "sex")


@pytest.fixture
def data():
    rng = np.random.default_rng(3)
    Z, X, Y = (rng.standard_normal((m, k)) for k in (c, P, Q))
    return Z, X + Z[:, :1], Y + Z @ rng.standard_normal((c, Q))


def covariance(rng):
    G = rng.standard_normal((Q, Q + 3))
    return G @ G.T / 4


def test_what_is_left_is_the_complement_of_the_covariates(data):
    Z, X, Y = data
    found = adjust(Z, X, Y, NAMES)
    N = np.linalg.qr(Z, mode="complete")[0][:, c:]
    np.testing.assert_allclose(found.X_left, N.T @ X, atol=1e-12)
    np.testing.assert_allclose(found.Y_left, N.T @ Y, atol=1e-12)
    shifted = adjust(Z, X + Z @ np.ones((c, P)), Y - 3 * Z[:, :1], NAMES)
    np.testing.assert_allclose(shifted.X_left, found.X_left, atol=1e-12)  # what a covariate explains makes no difference
    np.testing.assert_allclose(shifted.Y_left, found.Y_left, atol=1e-12)


def test_effects_are_drawn_from_their_conditional(data):
    """Mean (ZᵀZ)⁻¹Zᵀ(Y − XC), covariance Σ ⊗ (ZᵀZ)⁻¹, both exactly: the draw is linear in its noise."""
    Z, X, Y = data
    rng = np.random.default_rng(1)
    Sigma, C = covariance(rng), rng.standard_normal((P, Q))
    found = adjust(Z, X, Y, NAMES)
    number = 1 + c * Q
    draws = Draws(np.broadcast_to(C, (1, number, P, Q)), np.broadcast_to(Sigma, (1, number, Q, Q)), np.ones((1, number, Q)))

    class Unit:
        """Zero noise first, then each unit vector."""

        def standard_normal(self, shape):
            assert shape == (1, number, c, Q)
            return np.vstack([np.zeros((1, c * Q)), np.eye(c * Q)]).reshape(shape)

    Gamma = found.draw_effects(draws, Unit(), power=0.5).reshape(number, c * Q)
    S = np.linalg.inv(Z.T @ Z)
    np.testing.assert_allclose(Gamma[0], (S @ Z.T @ (Y - X @ C)).ravel(), atol=1e-12)
    J = (Gamma[1:] - Gamma[0]).T
    np.testing.assert_allclose(J @ J.T, np.kron(S, Sigma / 0.5), atol=1e-12)


def test_the_sampler_sees_only_what_is_left(data):
    Z, X, Y = data
    seen = []

    def run(X, Y):
        seen.append((X, Y))
        return Draws(np.zeros((1, 5, P, Q)), np.tile(np.eye(Q), (1, 5, 1, 1)), np.ones((1, 5, Q)))

    fitted = sample_adjusted(run, X, Y, Covariates(Z, NAMES), seed=4)
    left = adjust(Z, X, Y, NAMES)
    np.testing.assert_array_equal(seen[0][0], left.X_left)
    np.testing.assert_array_equal(seen[0][1], left.Y_left)
    assert fitted.Gamma.shape == (1, 5, c, Q)
    again = sample_adjusted(run, X, Y, Covariates(Z, NAMES), seed=4)
    np.testing.assert_array_equal(fitted.Gamma, again.Gamma)
    without = sample_adjusted(run, X, Y, Covariates(np.empty((m, 0))), seed=4)
    assert without.Gamma is None
    np.testing.assert_array_equal(seen[-1][0], X)


def test_posterior_with_covariates_is_that_of_projected_data(data):
    from intarsia.server.sampler.sample import sample

    Z, X, Y = data
    run = {"draws": 30, "warmup": 20, "chains": 2, "thin": 1, "seed": 2, "workers": 1}
    N = np.linalg.qr(Z, mode="complete")[0][:, c:]
    fitted = sample_adjusted(lambda X, Y: sample(X, Y, **run), X, Y, Covariates(Z, NAMES), seed=2)
    projected = sample(N.T @ X, N.T @ Y, **run)
    np.testing.assert_allclose(fitted.draws.C, projected.C, atol=1e-10)
    np.testing.assert_allclose(fitted.draws.Sigma, projected.Sigma, atol=1e-10)


def test_useless_covariates_are_named(data):
    Z, X, Y = data
    with pytest.raises(InputError, match=r"Constant covariates: site\. .*leave them out"):
        adjust(np.c_[Z, np.full(m, 1e-13)], X, Y, [*NAMES, "site"])
    with pytest.raises(InputError, match=r"say the same: age, height, sex\. 1 of them .* leave out \w+\.$"):
        adjust(np.c_[Z[:, 0], Z[:, 0] - 1e3 * Z[:, 1], Z[:, 1]], X, Y, ["age", "height", "sex"])
    with pytest.raises(InputError, match="14 covariate columns beside 40 rows; at most 13"):
        adjust(np.random.default_rng(0).standard_normal((m, 14)), X, Y, [f"z{j}" for j in range(14)])
    with pytest.raises(InputError, match="1 names for 2 covariates"):
        adjust(Z, X, Y, ["age"])
