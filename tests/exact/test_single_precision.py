"""Many features on the CPU: products over a design in single precision, beside the noise that they are added to."""

import numpy as np
import pytest
from scipy.linalg import cholesky, solve_triangular

from intarsia.server.sampler import backends
from intarsia.server.sampler.backends import numpy as backend

BE = backends.get("numpy")
M, P, R = 60, 6000, 3


def problem():
    """A rounded design, and scales as the horseshoe has them: most small, a few large, some very large."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((M, P)).astype(np.float32)
    lam = np.abs(rng.standard_cauchy(P))
    lam[:20] *= 1e4
    return X, lam, rng.standard_normal((P, R)), rng


def error_of_system(X, lam, Z):
    """Largest relative error of I + d²G, d such that the small features together are as large as the noise."""
    G = np.tril(BE.weigh(X, lam, Z)[0])
    G = G + np.tril(G, -1).T
    exact = (X.astype(float) * lam**2) @ X.T.astype(float)
    small = np.sort(lam)[:-200]
    d2 = 1 / np.square(small).sum()
    L = cholesky(np.eye(M) + d2 * exact, lower=True)
    left = solve_triangular(L, d2 * (G - exact), lower=True)
    return np.abs(np.linalg.eigvalsh(solve_triangular(L, left.T, lower=True))).max()


def test_the_system_of_b_is_that_of_double_precision():
    X, lam, Z, _ = problem()
    assert error_of_system(X, lam, Z) < 1e-5


def test_with_every_feature_in_single_precision_it_is_not(monkeypatch):
    X, lam, Z, _ = problem()
    monkeypatch.setattr(backend, "STRONG", 1)
    assert error_of_system(X, lam, Z) > 1e-3


@pytest.mark.parametrize("product", ["times", "cross", "weigh"])
def test_products_with_a_few_columns_are_right_to_single_precision(product):
    X, lam, Z, rng = problem()
    double = X.astype(float)
    if product == "times":
        found, exact = BE.times(X, Z), double @ Z
    elif product == "cross":
        W = rng.standard_normal((M, R))
        found, exact = BE.cross(X, W), double.T @ W
    else:
        found, exact = BE.weigh(X, lam, Z)[1], (double * lam) @ Z
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, exact, atol=2e-6 * np.abs(exact).max())
