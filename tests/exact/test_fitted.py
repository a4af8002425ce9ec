"""Products of X with many draws, some features at a time."""

import numpy as np
import pytest

from intarsia.server.results import fitted as module
from intarsia.server.results.fitted import blocks, fitted


@pytest.fixture(params=[1, 200, 2**24])
def numbers(request, monkeypatch):
    """One feature at a time, some, all."""
    monkeypatch.setattr(module, "_NUMBERS", request.param)


@pytest.mark.usefixtures("numbers")
@pytest.mark.parametrize("dtype", ["<f8", "<f4"])
def test_every_draw_has_its_product(dtype, tmp_path):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((7, 23))
    file = tmp_path / "C.npy"
    np.save(file, rng.standard_normal((3, 8, 23, 2)).astype(dtype))
    there = np.load(file, mmap_mode="r")[:, :5]  # the first draws of a longer file: not side by side in memory
    expected = np.einsum("mp,cdpq->cdmq", X, np.array(there, dtype=float)).reshape(15, 7, 2)
    np.testing.assert_allclose(fitted(X, there), expected, atol=1e-12)
    np.testing.assert_allclose(fitted(X, there, np.array([14, 0, 6])), expected[[14, 0, 6]], atol=1e-12)
    np.testing.assert_allclose(fitted(X, there[1]), expected[5:10], atol=1e-12)


@pytest.mark.usefixtures("numbers")
def test_every_feature_comes_once():
    C = np.random.default_rng(2).standard_normal((4, 23, 2))
    at = np.array([3, 1])
    parts = list(blocks(C, at, 7))
    assert [p for features, _ in parts for p in range(23)[features]] == list(range(23))
    np.testing.assert_array_equal(np.concatenate([some for _, some in parts]), C[at].swapaxes(0, 1))


def test_no_features_and_no_draws_are_no_obstacle():
    assert fitted(np.zeros((3, 0)), np.zeros((2, 4, 0, 2))).tolist() == np.zeros((8, 3, 2)).tolist()
    assert fitted(np.zeros((3, 5)), np.zeros((0, 5, 2))).shape == (0, 3, 2)
