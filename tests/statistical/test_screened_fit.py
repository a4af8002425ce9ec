"""The fit of the few features that a screen kept: it finds the effects among them, and none where there is none."""

import numpy as np

from intarsia.server.sampler.sample import sample
from intarsia.server.sampler.settings import Settings
from intarsia.server.sampler.sparse.sample import SparseModel

LENGTH = Settings(draws=150, warmup=150, chains=2, seed=1)
LOOKED_AT, KEPT, N = 400, 30, 2000


def kept_and_fitted(effects: int) -> tuple[np.ndarray, np.ndarray]:
    """Of 400 features the 30 with the largest sums, of which the first so many have an effect; how often each is in."""
    rng = np.random.default_rng(effects)
    X = rng.standard_normal((N, LOOKED_AT))
    B = np.zeros((LOOKED_AT, 2))
    B[:effects, 0] = 0.16 * rng.choice([-1, 1], effects)
    Y = X @ B + rng.standard_normal((N, 2))
    kept = np.sort(np.argsort(-np.abs(X.T @ Y).max(axis=1))[:KEPT])
    draws = sample(X[:, kept], Y, SparseModel(), LENGTH, looked_at=LOOKED_AT)
    assert draws.background is None
    return kept, (draws.effects.dense() != 0).any(axis=-1).mean(axis=(0, 1))


def test_a_dense_background_does_not_take_the_effects_of_features_that_were_kept_for_them() -> None:
    kept, within = kept_and_fitted(10)
    assert (within[kept < 10] > 0.95).all()
    assert (kept < 10).sum() == 10
    assert (within[kept >= 10] < 0.5).all()


def test_where_nothing_matters_nothing_that_was_kept_is_found() -> None:
    assert (kept_and_fitted(0)[1] < 0.5).all()
