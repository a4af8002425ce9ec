"""Looks, which draw F = XB in place of B: F has the law that B gives it, whatever form G is factored in."""

import numpy as np
import pytest

from intarsia.server.sampler import backends
from intarsia.server.sampler.without_b import fitted

NUMPY, JAX = backends.get("numpy"), backends.on_device()
SIZES = {"more features": (7, 12), "centred columns": (7, 12), "fewer features": (7, 3), "two rows": (2, 5)}


def problem(size):
    m, P = SIZES[size]
    rng = np.random.default_rng(4)
    X = rng.standard_normal((m, P))
    X -= X.mean(axis=0) if size == "centred columns" else 0
    return X, np.exp(rng.standard_normal(P)), rng.standard_normal((m, 2)), np.array([0.8, 0.1])


def factor(how, X, lam):
    be = NUMPY if how == "tridiagonal" else JAX
    G, _ = be.weigh(X, lam, np.zeros((X.shape[1], 0)))
    return be.factor(G, X, lam, 10.0, many=how != "Cholesky")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("how", ["tridiagonal", "diagonal", "Cholesky"])
def test_what_is_fitted_has_its_posterior_mean_and_covariance(size, how):
    X, lam, Y, d = problem(size)
    G = (X * lam**2) @ X.T
    m = len(X)
    with JAX.precision():
        system = factor(how, X, lam)
        Yr, none = system.rotate(Y), np.zeros((m, 2))

        def drawn(z, e, Yr):
            return np.asarray(system.unrotate(fitted(system, d, Yr, z, e)))

        mean = drawn(none, none, Yr)
        # The draw is linear in z and e: its covariance is that of the maps' columns.
        ones = [np.eye(m)[:, i, None] * np.ones(2) for i in range(m)]
        maps = np.array([drawn(one, none, none) for one in ones] + [drawn(none, one, none) for one in ones])
    for j in range(2):
        M = np.eye(m) + d[j] ** 2 * G
        np.testing.assert_allclose(mean[:, j], d[j] * G @ np.linalg.solve(M, Y[:, j]), atol=1e-9 * np.abs(G).max())
        covariance = maps[:, :, j].T @ maps[:, :, j]
        np.testing.assert_allclose(covariance, G @ np.linalg.inv(M), atol=1e-9 * np.abs(G).max())


@pytest.mark.parametrize("seed", range(20))
def test_the_root_of_a_singular_matrix_is_its_root(seed):
    """Centred columns of many rows: the elimination's pivots come near nought at any place."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((40, 60)) * np.exp(2 * rng.standard_normal(60))
    X -= X.mean(axis=0)
    system = NUMPY.factor(X @ X.T, X, np.ones(60), 1.0)
    root = system.unrotate(system.root(np.eye(40)))
    np.testing.assert_allclose(root @ root.T, X @ X.T, atol=1e-11 * np.abs(X @ X.T).max())
