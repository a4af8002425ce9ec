"""Covariates are projected out exactly, and their effects follow their exact conditional law."""

import numpy as np
import pytest

from intarsia.errors import InputError
from intarsia.server.covariates import Covariates, Fitted, adjust, adjust_in_parts, sample_adjusted
from intarsia.server.posterior.draws import Draws

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
    draws = Draws(
        np.broadcast_to(C, (1, number, P, Q)), np.broadcast_to(Sigma, (1, number, Q, Q)), {"tau": np.ones((1, number, Q))}
    )

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


def test_effects_follow_a_change_of_the_coefficients(data):
    """Γ's mean is the least-squares fit of Y − XC on Z, before the change and after it."""
    Z, X, Y = data
    rng = np.random.default_rng(2)
    C, change = rng.standard_normal((2, P, Q))
    made = adjust(Z, X, Y, NAMES)
    draws = Draws(np.zeros((1, 4, P, Q)), np.ones((1, 4, Q, Q)))
    fitted = Fitted(draws, None, made.X_left, made.Y_left, made)
    before, after = (np.linalg.lstsq(Z, Y - X @ B, rcond=None)[0] for B in (C, C + change))
    np.testing.assert_allclose(fitted.effects_follow(change), after - before, atol=1e-12)
    left = 1 - np.square(Z @ np.linalg.lstsq(Z, Y, rcond=None)[0]).sum(axis=0) / np.square(Y).sum(axis=0)
    np.testing.assert_allclose(fitted.share_left(), left * m / (m - c), rtol=1e-12)


def test_the_sampler_sees_only_what_is_left(data):
    Z, X, Y = data
    seen = []

    def run(X, Y):
        seen.append((X, Y))
        return Draws(np.zeros((1, 5, P, Q)), np.tile(np.eye(Q), (1, 5, 1, 1)))

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
    from intarsia.server.sampler.horseshoe.sample import sample
    from intarsia.server.sampler.settings import Settings

    Z, X, Y = data
    run = Settings(draws=30, warmup=20, chains=2, thin=1, seed=2, workers=1)
    N = np.linalg.qr(Z, mode="complete")[0][:, c:]
    fitted = sample_adjusted(lambda X, Y: sample(X, Y, settings=run), X, Y, Covariates(Z, NAMES), seed=2)
    projected = sample(N.T @ X, N.T @ Y, settings=run)
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


def with_gaps(Y):
    Y = np.array(Y)
    Y[25:, 0] = np.nan
    Y[:10, 2] = np.nan
    return Y


def test_with_gaps_the_covariates_are_projected_out_of_each_pattern(data):
    Z, X, Y = data
    Y = with_gaps(Y)
    found = adjust_in_parts(Z, X, Y, NAMES)
    assert len(found.X_left) == m - 3 * c
    groups = [(slice(0, 10), [0, 1]), (slice(10, 25), [0, 1, 2]), (slice(25, m), [1, 2])]
    expected = {}
    for rows, has in groups:
        N = np.linalg.qr(Z[rows], mode="complete")[0][:, c:]
        expected[tuple(has)] = (N.T @ X[rows], N.T @ Y[rows][:, has])
    for pattern, (left_X, left_Y) in expected.items():
        there = [(~np.isnan(row)).nonzero()[0].tolist() == list(pattern) for row in found.Y_left]
        # Up to a rotation, which changes no product.
        np.testing.assert_allclose(found.X_left[there].T @ found.X_left[there], left_X.T @ left_X, atol=1e-10)
        ours = found.Y_left[there][:, list(pattern)]
        np.testing.assert_allclose(found.X_left[there].T @ ours, left_X.T @ left_Y, atol=1e-10)
    shifted = adjust_in_parts(Z, X, Y + np.where(np.arange(m)[:, None] < 10, 5.0, -1.0) * Z[:, :1], NAMES)
    np.testing.assert_allclose(shifted.Y_left, found.Y_left, atol=1e-10)  # another effect in each group makes no difference


def test_with_gaps_effects_are_least_squares_over_the_rows_that_have_the_response(data):
    """Mean and covariance exactly: σ_qr A_q⁻¹ Z_qrᵀZ_qr A_r⁻¹ with A_q the products of Z over the rows that have q."""
    Z, X, Y = data
    Y = with_gaps(Y)
    rng = np.random.default_rng(1)
    Sigma, C = covariance(rng), rng.standard_normal((P, Q))
    number = 1 + m * Q
    draws = Draws(
        np.broadcast_to(C, (1, number, P, Q)), np.broadcast_to(Sigma, (1, number, Q, Q)), {"tau": np.ones((1, number, Q))}
    )

    class Unit:
        """Zero noise first, then each unit vector."""

        def __init__(self):
            self.rows = iter(np.vstack([np.zeros((1, m * Q)), np.eye(m * Q)]))

        def standard_normal(self, shape):
            assert shape == (m, Q)
            return next(self.rows).reshape(shape)

    Gamma = adjust_in_parts(Z, X, Y, NAMES).draw_effects(draws, Unit()).reshape(number, c * Q)
    there = ~np.isnan(Y)
    A = [np.linalg.inv(Z[rows].T @ Z[rows]) for rows in there.T]
    mean = np.stack([A[q] @ Z[there[:, q]].T @ (Y - X @ C)[there[:, q], q] for q in range(Q)], axis=1)
    np.testing.assert_allclose(Gamma[0], mean.ravel(), atol=1e-12)
    J = (Gamma[1:] - Gamma[0]).T
    found = (J @ J.T).reshape(c, Q, c, Q)
    for q in range(Q):
        for r in range(Q):
            both = there[:, q] & there[:, r]
            np.testing.assert_allclose(found[:, q, :, r], Sigma[q, r] * A[q] @ Z[both].T @ Z[both] @ A[r], atol=1e-12)


def test_too_few_rows_of_a_pattern_are_named(data):
    Z, X, Y = data
    Y = np.array(Y)
    Y[:4, 0] = np.nan
    with pytest.raises(InputError, match="Among the subjects who have 2 of 3 responses: 2 covariate columns beside 4 rows"):
        adjust_in_parts(Z, X, Y, NAMES)


def test_what_predictions_change_of_the_effects_is_least_squares_over_the_rows_that_have_the_response() -> None:
    rng = np.random.default_rng(5)
    Z, X, Y, change = (rng.standard_normal(shape) for shape in ((60, 2), (60, 4), (60, 3), (4, 3)))
    whole, parts = adjust(Z, X, Y, ["age", "sex"]), adjust_in_parts(Z, X, Y, ["age", "sex"])
    np.testing.assert_allclose(parts.effects_follow(change), whole.effects_follow(change), atol=1e-12)
    np.testing.assert_allclose(parts.mean_squares(58), whole.mean_squares(58), rtol=1e-12)
    Y[40:, 1] = np.nan
    found = adjust_in_parts(Z, X, Y, ["age", "sex"]).effects_follow(change)
    np.testing.assert_allclose(found[:, [0, 2]], whole.effects_follow(change)[:, [0, 2]], atol=1e-12)
    moved = np.linalg.lstsq(Z[:40], (Y - X @ change)[:40, 1], rcond=None)[0] - np.linalg.lstsq(Z[:40], Y[:40, 1], rcond=None)[0]
    np.testing.assert_allclose(found[:, 1], moved, atol=1e-12)
