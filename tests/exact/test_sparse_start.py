"""Where chains begin: the fast sparse solution and its dispersal."""

import json

import numpy as np
import pytest

from intarsia.server.posterior.posterior import Names, Posterior
from intarsia.server.sampler import backends, chain, device, start
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.sample import sample
from intarsia.server.sampler.schedule import plan, with_start
from intarsia.server.sampler.settings import Settings
from intarsia.server.sampler.sparse_start import ADDED, LEFT_OUT, disperse, sparse_start
from intarsia.server.sampler.state import prepare


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


def test_a_run_says_where_each_chain_started(monkeypatch) -> None:
    X, Y, _ = problem(0, m=150, P=1_200)
    began = []
    initial = start.initial

    def watched(*given):
        began.append(initial(*given))
        return began[-1]

    monkeypatch.setattr(chain, "initial", watched)
    run = sample(X, Y, settings=Settings(draws=4, warmup=4, chains=3, seed=7, workers=1))
    true = [started(state.B) for state in began]
    assert [sorted(features) for features in run.info["starts"]] == true
    assert len({tuple(features) for features in true}) == 3
    names = [f"gene{p}" for p in range(1_200)]
    told = json.loads(Posterior.from_draws(run, Names(names, ["a", "b", "c"])).tree.attrs["starts"])
    assert told == [[f"gene{p}" for p in features] for features in run.info["starts"]]


def started(B) -> list[int]:
    return np.flatnonzero(np.asarray(B).any(axis=1)).tolist()


def test_chains_of_a_device_start_where_those_of_the_cpu_do() -> None:
    pytest.importorskip("jax")
    X, Y, _ = problem(0, m=150, P=1_200)
    be, found = backends.on_device(), sparse_start(X, Y)
    made = with_start(plan(Model(), X, Y, compiled=False), found)
    with be.precision():
        chains = device.Runner(made, prepare(be, X, Y, block=made.block), be=be).start(7, 3, found=found)
    for k, B in enumerate(chains.state.B):
        assert started(B) == sorted(disperse(found, 1_200, chain.generator(7, k)).features.tolist())
