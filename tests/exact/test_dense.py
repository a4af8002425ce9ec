"""Products of X with many draws, some features at a time."""

import numpy as np
import pytest

from intarsia.server.posterior import draws as module
from intarsia.server.posterior.draws import DenseEffects


@pytest.fixture(params=[1, 200, 2**24])
def numbers(request, monkeypatch):
    """One feature at a time, some, all."""
    monkeypatch.setattr(module, "NUMBERS", request.param)


@pytest.mark.usefixtures("numbers")
@pytest.mark.parametrize("dtype", ["<f8", "<f4"])
def test_every_draw_has_its_product(dtype, tmp_path):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((7, 23))
    file = tmp_path / "C.npy"
    np.save(file, rng.standard_normal((3, 8, 23, 2)).astype(dtype))
    there = np.load(file, mmap_mode="r")[:, :5]  # the first draws of a longer file: not side by side in memory
    expected = np.einsum("mp,cdpq->cdmq", X, np.array(there, dtype=float)).reshape(15, 7, 2)
    np.testing.assert_allclose(DenseEffects(there).times(X), expected, atol=1e-12)
    np.testing.assert_allclose(DenseEffects(there).times(X, np.array([14, 0, 6])), expected[[14, 0, 6]], atol=1e-12)


def test_some_features_in_some_draws():
    C = np.random.default_rng(2).standard_normal((2, 4, 23, 2))
    places, at = np.array([3, 1, 22]), np.array([5, 1])
    np.testing.assert_array_equal(DenseEffects(C).some(places, at), C.reshape(8, 23, 2)[at][:, places])


def test_no_features_and_no_draws_are_no_obstacle():
    assert DenseEffects(np.zeros((2, 4, 0, 2))).times(np.zeros((3, 0))).tolist() == np.zeros((8, 3, 2)).tolist()
    assert DenseEffects(np.zeros((1, 0, 5, 2))).times(np.zeros((3, 5))).shape == (0, 3, 2)
