"""All scales of a block at once: the numbers that make its features independent, and the posterior that is kept."""

import numpy as np
import pytest

from intarsia.server.sampler import backends, moves
from intarsia.server.sampler.priors import HalfCauchy
from intarsia.server.sampler.state import Blocks

BE = backends.get("numpy")
M, P, R, K, T = 6, 5, 2, 3, 4
D = np.array([0.9, 0.3])


def problem():
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((M, P)), 1.5 * rng.standard_normal((M, R))
    Xt = np.zeros((2 * K, M))
    Xt[:P] = X.T  # the last block has a column of nothing
    Xt = Xt.reshape(2, K, M)
    bounds = [moves.bound(BE, block) for block in Xt]
    return X, Y, Blocks(Xt, None, moves.Bound(*map(np.stack, zip(*bounds, strict=True))))


@pytest.mark.parametrize("shape", [(3, 6), (6, 6), (40, 6)])
def test_the_root_of_what_the_bound_leaves(shape):
    rng = np.random.default_rng(1)
    Xt = rng.standard_normal(shape)
    for be in (BE, backends.on_device()):
        with backends.on_device().precision():
            omega, K = map(np.asarray, moves.bound(be, be.asarray(Xt)))
        left = np.eye(len(Xt)) - Xt @ Xt.T / omega
        assert np.linalg.eigvalsh(left).min() > -1e-12
        root = np.eye(len(Xt)) - Xt @ K @ Xt.T
        np.testing.assert_allclose(root @ root, left, atol=1e-7)  # the smallest eigenvalue is 1e-9, its root 3e-5


def chain(steps, seed=1, without_noise=False):
    """arctan of the scales and the coefficients w d after each draw."""
    X, Y, blocks = problem()
    rng = np.random.default_rng(seed)
    lam, w, out = np.ones(P), np.zeros((P, R)), []
    for _ in range(steps):
        xi = (not without_noise) * rng.standard_normal((P, R))
        noise = moves.Refreshed(1 - rng.random((P, T)), 1 - rng.random(P), xi, rng.standard_normal((P, R)))
        left, w, lam, _ = moves.refresh(BE, blocks, Y - X @ (w * D), D, moves.Scaled(w, lam, HalfCauchy()), noise)
        out.append(np.concatenate([np.arctan(lam), (w * D).ravel()]))
    np.testing.assert_allclose(left, Y - X @ (w * D), atol=1e-9)
    return np.array(out)


@pytest.fixture(scope="module")
def truth():
    """The same by weighting draws from the prior with dense determinants, the coefficients by their conditional means."""
    X, Y, _ = problem()
    lam = np.abs(np.random.default_rng(2).standard_cauchy((200_000, P)))
    log, mean = np.zeros(len(lam)), np.zeros((len(lam), P, R))
    for j in range(R):
        prior = lam**2 * D[j] ** 2
        S = np.eye(M) + np.einsum("mp,sp,np->smn", X, prior, X)
        solved = np.linalg.solve(S, np.broadcast_to(Y[:, j, None], (len(lam), M, 1)))[:, :, 0]
        log -= 0.5 * (np.linalg.slogdet(S)[1] + solved @ Y[:, j])
        mean[:, :, j] = prior * (solved @ X)
    weight = np.exp(log - log.max())
    values = np.concatenate([np.arctan(lam), mean.reshape(len(lam), -1)], axis=1)
    return weight @ values / weight.sum()


def distance(found, truth):
    """The largest difference in standard errors, from the chain's batches."""
    batches = found[: len(found) // 40 * 40].reshape(40, -1, found.shape[1]).mean(axis=1)
    return np.abs((found.mean(axis=0) - truth) / (batches.std(axis=0, ddof=1) / np.sqrt(40))).max()


def test_the_posterior_is_kept(truth):
    assert distance(chain(16_000), truth) < 4.5


def test_leaving_out_the_noise_that_makes_features_independent_is_noticed(truth):
    assert distance(chain(6_000, without_noise=True), truth) > 8


def test_the_same_on_a_device():
    X, Y, blocks = problem()
    rng, jax = np.random.default_rng(3), backends.on_device()
    lam, w = np.exp(rng.standard_normal(P)), rng.standard_normal((P, R))
    normal = rng.standard_normal((P, R)), rng.standard_normal((P, R))
    noise = moves.Refreshed(1 - rng.random((P, T)), 1 - rng.random(P), *normal)
    here = moves.refresh(BE, blocks, Y - X @ (w * D), D, moves.Scaled(w, lam, HalfCauchy()), noise)
    with jax.precision():
        arrays = (jax.asarray(Y - X @ (w * D)), jax.asarray(D), moves.Scaled(jax.asarray(w), jax.asarray(lam), HalfCauchy()))
        there = moves.refresh(jax, blocks._replace(bound=jax.bounds(jax.asarray(blocks.Xt))), *arrays, noise)
    for one, two in zip(here, there, strict=True):
        np.testing.assert_allclose(one, np.asarray(two), rtol=1e-7, atol=1e-9)
