"""A root of the Gram matrix in place of the rows: the same draws; rows of a random rotation: the same products."""

import numpy as np
import pytest
from scipy import stats

from intarsia.errors import FederationError, InputError
from intarsia.server.covariates import Covariates, sample_adjusted
from intarsia.server.pseudo_rows import root, rotated_rows
from intarsia.server.sampler.horseshoe.model import Model
from intarsia.server.sampler.horseshoe.sample import sample
from intarsia.server.sampler.settings import Settings

LENGTH = Settings(draws=12, warmup=8, chains=2, thin=1, seed=5)


def data(n=120, P=9, Q=2, c=0, seed=0):
    rng = np.random.default_rng(seed)
    D = rng.standard_normal((n, P + Q + c))
    D[:, P : P + Q] += D[:, :2] @ rng.standard_normal((2, Q))
    return D - D.mean(axis=0)


def pooled(D):
    """The n − 1 rows of the centred data in a basis of the vectors that sum to zero."""
    n = len(D)
    basis = np.linalg.qr(np.column_stack([np.ones(n), np.eye(n)[:, :-1]]))[0][:, 1:]
    return basis.T @ D


@pytest.mark.parametrize(
    "model", [Model(), Model(noise="independent"), Model(local="element"), Model(rank=1, expected_features=2.0), Model(power=0.6)]
)
def test_draws_are_those_of_the_pooled_rows(model):
    D = data()
    rows, W = pooled(D), root(D.T @ D)
    assert len(W) == 11 < len(rows) == 119
    whole = sample(rows[:, :9], rows[:, 9:], model, LENGTH)
    few = sample(W[:, :9], W[:, 9:], model, LENGTH, degrees=119)
    assert np.abs(few.C - whole.C).max() < 1e-8
    assert np.abs(few.Sigma - whole.Sigma).max() < 1e-8
    assert few.info["m"] == whole.info["m"] == 119


def test_without_the_degrees_the_noise_would_be_wrong():
    """The planted mistake: counting the root's own rows."""
    D = data()
    W = root(D.T @ D)
    right, wrong = (sample(W[:, :9], W[:, 9:], settings=LENGTH, degrees=k) for k in (119, None))
    assert np.median(wrong.Sigma[..., 0, 0]) > 2 * np.median(right.Sigma[..., 0, 0])


def test_covariates_are_projected_out_as_from_pooled_rows():
    D = data(c=2)
    rows, W = pooled(D), root(D.T @ D)

    def fit(R, degrees):
        covariates = Covariates(R[:, 11:], ("age", "sex"), ("a", "a"))
        return sample_adjusted(lambda X, Y: sample(X, Y, settings=LENGTH, degrees=degrees), R[:, :9], R[:, 9:11], covariates, 3)

    whole, few = fit(rows, None), fit(W, 119 - 2)
    assert np.abs(few.draws.C - whole.draws.C).max() < 1e-8
    # Γ's mean given C, and its covariance, do not depend on the rows' basis.
    C = whole.draws.C[0, 0]
    centres = [np.linalg.solve(f.adjusted.R, f.adjusted.Y_taken - f.adjusted.X_taken @ C) for f in (whole, few)]
    assert np.abs(centres[0] - centres[1]).max() < 1e-10
    products = [f.adjusted.R.T @ f.adjusted.R for f in (whole, few)]
    assert np.abs(products[0] - products[1]).max() < 1e-9


def test_a_singular_matrix_has_a_root_and_an_impossible_one_is_refused():
    D = data()
    D[:, 3] = D[:, 4]
    G = D.T @ D
    W = root(G)
    assert np.abs(W.T @ W - G).max() < 1e-10 * G.max()
    G[0, 1] = G[1, 0] = 2 * G[0, 0]
    with pytest.raises(FederationError, match="positive semidefinite"):
        root(G)


@pytest.mark.parametrize("most", [119, 200, 50, 115])
def test_rotated_rows_have_the_products_they_should_have(most):
    D = data()
    G = D.T @ D
    W = root(G)
    if most >= 119:
        R = rotated_rows(W, 119, np.random.default_rng(0), most)
        assert R.shape == (119, 11)
        assert np.abs(R.T @ R - G).max() < 1e-9 * G.max()
        return
    # A part of the rows has its share of the products on average.
    total = sum(np.square(rotated_rows(W, 119, np.random.default_rng(s), most)).sum(axis=0) for s in range(400)) / 400
    assert np.abs(total / np.diag(G) * 119 / most - 1).max() < 0.05


def test_rotated_rows_are_exchangeable():
    """The share of a column's length in one row is Beta(1/2, (rows − 1)/2), whichever row, drawn in part or as a whole."""
    W = root(data().T @ data())
    for most in (119, 6):
        share = np.array([rotated_rows(W, 119, np.random.default_rng(s), most)[[0, -1], 4] ** 2 for s in range(600)])
        share /= (W[:, 4] ** 2).sum()
        for k in (0, 1):
            assert stats.kstest(share[:, k], stats.beta(0.5, 59).cdf).pvalue > 1e-3


def test_degrees_are_checked():
    with pytest.raises(InputError, match="degrees"):
        sample(np.eye(4), np.ones((4, 1)), degrees=1)
