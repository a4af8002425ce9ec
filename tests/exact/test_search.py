"""Births and deaths keep the posterior of the local scales: against numerical integration, and a planted bug fails."""

import itertools

import numpy as np
import pytest

from intarsia.server.sampler import search as module
from intarsia.server.sampler.backends.numpy import NumpyBackend
from intarsia.server.sampler.priors import HalfCauchy
from intarsia.server.sampler.search import ATTEMPTS, Numbers, Systems, search

BE = NumpyBackend


def problem() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((12, 3))
    X[:, 2] = 0.8 * X[:, 1] + 0.6 * X[:, 2]
    d = np.array([0.6, 0.25])
    Y = np.stack([0.9 * X[:, 0] + 0.35 * X[:, 1], 0.3 * X[:, 0]], axis=1) + rng.standard_normal((12, 2))
    return X, d, Y


def log_posterior(X: np.ndarray, d: np.ndarray, Y: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Of rows of t = log lam under C⁺(0,1), by dense determinants."""
    value = -np.log(np.cosh(t)).sum(axis=1)
    G = np.einsum("mp,tp,np->tmn", X, np.exp(2 * t), X)
    for j in range(d.size):
        M = np.eye(len(X)) + d[j] ** 2 * G
        solved = np.linalg.solve(M, np.broadcast_to(Y[:, j, None], (len(t), len(X), 1)))[:, :, 0]
        value -= 0.5 * np.linalg.slogdet(M)[1] + 0.5 * solved @ Y[:, j]
    return value


def systems(X: np.ndarray, d: np.ndarray, Y: np.ndarray, lam: np.ndarray) -> Systems:
    G, _ = BE.weigh(X, lam, np.zeros((X.shape[1], 0)))
    factor = BE.factor(G, X, lam, float(d.max() ** 2))
    return Systems(factor, X, (X**2).sum(axis=0), d, factor.rotate(Y), HalfCauchy())


def run(steps: int, seed: int) -> np.ndarray:
    X, d, Y = problem()
    rng = np.random.default_rng(seed)
    lam, kept = np.ones(3), []
    for _ in range(steps):
        numbers = Numbers(*(1 - rng.random((4, ATTEMPTS))))
        lam, _ = search(BE, systems(X, d, Y, lam), lam, numbers)
        kept.append(np.log(lam))
    return np.array(kept)


def exact(limit: np.ndarray) -> np.ndarray:
    """Probabilities that each feature is in, alone and in pairs, by integration over a grid."""
    X, d, Y = problem()
    grid = 0.45 * (np.arange(-18, 18) + 0.5)  # midpoints of cells, none of which the limit cuts
    t = np.stack(np.meshgrid(*(grid + edge for edge in limit), indexing="ij"), axis=-1).reshape(-1, 3)
    log = log_posterior(X, d, Y, t)
    weight = np.exp(log - log.max())
    inside = t > limit
    return np.array([weight[inside[:, k]].sum() for k in range(3)] + [weight[inside[:, 0] & inside[:, 1]].sum()]) / weight.sum()


def found(steps: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """The same frequencies in a chain, with standard errors from its batches."""
    X, d, _ = problem()
    limit = -0.5 * np.log((X**2).sum(axis=0) * d.max() ** 2)
    inside = run(steps, seed) > limit
    seen = np.concatenate([inside, (inside[:, 0] & inside[:, 1])[:, None]], axis=1).astype(float)
    batches = seen[: len(seen) // 40 * 40].reshape(40, -1, 4).mean(axis=1)
    return seen.mean(axis=0), batches.std(axis=0, ddof=1) / np.sqrt(40)


@pytest.fixture(scope="module")
def truth() -> np.ndarray:
    X, d, _ = problem()
    return exact(-0.5 * np.log((X**2).sum(axis=0) * d.max() ** 2))


def test_the_posterior_of_the_scales_is_kept(truth: np.ndarray) -> None:
    mean, error = found(4_000)
    assert (error < 0.03).all()
    assert (np.abs(mean - truth) < 4 * error + 0.01).all(), (mean, truth, error)


def test_leaving_out_the_probability_of_the_choice_is_noticed(truth: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: deaths take the third feature eight times as often as the acceptance believes."""
    choose = module._choose
    calls = itertools.count()
    skew = np.array([1.0, 1.0, 8.0])

    def skewed(xp: object, weight: np.ndarray, u: float) -> int:
        return int(choose(np, weight if next(calls) % 2 else weight * skew, u))  # each attempt chooses a death, then a birth

    monkeypatch.setattr(module, "_choose", skewed)
    mean, error = found(4_000)
    assert (np.abs(mean - truth) > 4 * error + 0.01).any(), (mean, truth, error)


def test_a_missing_feature_is_found_among_many() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 3000))
    Y = np.stack([X[:, 17] * 1.0, X[:, 17] * -0.7], axis=1) + rng.standard_normal((80, 2))
    d = np.array([0.02, 0.01])
    lam = np.full(3000, 0.5)
    births = 0
    for _ in range(10):
        numbers = Numbers(*(1 - rng.random((4, ATTEMPTS))))
        lam, accepted = search(BE, systems(X, d, Y, lam), lam, numbers)
        births += int(accepted.sum())
        if lam[17] > 5:
            break
    assert lam[17] > 5
