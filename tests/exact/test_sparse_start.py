"""Where chains begin: the fast sparse solution and its dispersal."""

import numpy as np

from intarsia.server.sampler.sparse_start import ADDED, LEFT_OUT, disperse, sparse_start


def problem(seed: int, P: int = 3000, m: int = 200, s: int = 12) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((m, P)) * np.exp(rng.normal(0, 1, P))  # columns in different units
    true = rng.choice(P, s, replace=False)
    C = rng.choice([-1.0, 1.0], (s, 3)) * rng.uniform(0.4, 1.0, (s, 3)) / np.sqrt(np.square(X[:, true]).mean(axis=0))[:, None]
    return X, X[:, true] @ C + rng.standard_normal((m, 3)) @ np.diag([1.0, 0.5, 2.0]), true


def test_it_finds_clear_features_and_next_to_no_others() -> None:
    for seed in range(3):
        X, Y, true = problem(seed)
        start = sparse_start(X, Y)
        assert np.isin(true, start.features).sum() >= 11
        assert np.isin(start.features, true, invert=True).sum() <= 1
        expected = np.linalg.lstsq(X[:, start.features], Y, rcond=None)[0]
        assert np.allclose(start.C, expected)
        assert np.allclose(np.sqrt(np.diag(start.residual)), [1.0, 0.5, 2.0], rtol=0.2)


def test_noise_alone_gives_an_empty_start_or_nearly() -> None:
    rng = np.random.default_rng(0)
    start = sparse_start(rng.standard_normal((100, 2000)), rng.standard_normal((100, 2)))
    assert start.features.size <= 1


def test_degenerate_columns_do_not_stop_it() -> None:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((50, 200))
    X[:, 3] = 0.0
    X[:, 7] = X[:, 8]
    Y = np.stack([X[:, 8] * 3 + rng.standard_normal(50), np.zeros(50)], axis=1)
    start = sparse_start(X, Y)
    assert np.isfinite(start.C).all()
    assert {7, 8} & set(start.features.tolist())
    assert 3 not in start.features


def test_chains_start_apart() -> None:
    X, Y, _ = problem(0)
    start = sparse_start(X, Y)
    starts = [disperse(start, X.shape[1], np.random.default_rng(k)) for k in range(400)]
    kept = np.mean([np.isin(start.features, s.features).mean() for s in starts])
    added = np.mean([np.isin(s.features, start.features, invert=True).sum() for s in starts]) / start.features.size
    assert abs(kept - (1 - LEFT_OUT)) < 0.02
    assert ADDED / 2 < added < ADDED + 1.5 / start.features.size
    assert len({s.features.tobytes() for s in starts[:20]}) == 20
    for s in starts[:5]:
        assert s.features.size == np.unique(s.features).size == len(s.C)
        assert (np.diag(s.residual) >= np.diag(start.residual)).all()
