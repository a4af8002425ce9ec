"""Draws whose arrays do not fit together are refused."""

import numpy as np
import pytest

from intarsia.errors import InputError
from intarsia.server.posterior.draws import Draws, diagonal


def covariances(rng, *shape):
    G = rng.standard_normal((*shape, shape[-1] + 4))
    return G @ G.swapaxes(-1, -2)


@pytest.fixture
def draws():
    rng = np.random.default_rng(0)
    return Draws(
        rng.standard_normal((2, 5, 4, 3)),
        covariances(rng, 2, 5, 3),
        {"tau": rng.gamma(2, size=(2, 5, 3))},
        rng.uniform(size=4),
        {"seconds": np.float64(1.5), "seed": 3, "model": {"local": "row"}, "bad": float("nan"), "sizes": (1, 2)},
    )


def test_variances_are_the_diagonal_of_sigma(draws):
    np.testing.assert_array_equal(draws.sigma2[1, 2], np.diag(draws.Sigma[1, 2]))
    with pytest.raises(ValueError, match="read-only"):
        draws.sigma2[0] = 1.0
    alone = diagonal(draws.sigma2)
    np.testing.assert_array_equal(alone[0, 3], np.diag(draws.sigma2[0, 3]))


def test_arrays_must_fit_together(draws):
    with pytest.raises(InputError, match="Sigma has shape"):
        Draws(draws.C, draws.Sigma[:, :, :1], draws.parameters)
    with pytest.raises(InputError, match="tau has shape"):
        Draws(draws.C, draws.Sigma, {"tau": draws.parameters["tau"][:1]})
    with pytest.raises(InputError, match="shrinkage"):
        Draws(draws.C, draws.Sigma, draws.parameters, np.zeros(3))
    with pytest.raises(InputError, match="4"):
        Draws(draws.C[0], draws.Sigma, draws.parameters)
    with pytest.raises(InputError, match="background"):
        Draws(draws.C, draws.Sigma, background=np.zeros((4, 2)))
