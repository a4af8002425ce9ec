"""`sample(backend="jax")`: shapes, summaries and agreement with NumPy; interrupted runs; errors."""

import builtins
from dataclasses import replace

import numpy as np
import pytest
from intarsia.server.results import diagnostics

from intarsia.errors import InputError
from intarsia.server.sampler import device
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.sample import sample
from intarsia.server.sampler.schedule import plan as make_plan
from intarsia.server.sampler.settings import Settings

pytest.importorskip("jax")


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((12, 20))
    return X, X[:, :2] @ rng.standard_normal((2, 2)) + 0.5 * rng.standard_normal((12, 2))


def test_it_samples_the_same_posterior_and_goes_on_where_it_stopped(problem, tmp_path):
    seen = []
    asked = Settings(warmup=100, chains=3, thin=2, seed=5, backend="jax")
    first = sample(*problem, settings=replace(asked, draws=50, progress=seen.append, checkpoint=tmp_path))
    assert (first.C.shape, first.Sigma.shape, first.tau.shape) == ((3, 50, 20, 2), (3, 50, 2, 2), (3, 50, 2))
    assert seen[-1].sweeps == [200] * 3
    more = sample(*problem, settings=replace(asked, draws=500, checkpoint=tmp_path))
    for name in ("C", "Sigma", "tau"):
        np.testing.assert_array_equal(getattr(first, name), getattr(more, name)[:, :50])
    assert not np.array_equal(more.C[0], more.C[1])
    assert more.info["backend"] == "jax"
    there = sample(*problem, settings=Settings(draws=4000, warmup=100, chains=3, thin=2, seed=1))
    here, other = diagnostics.diagnose(more.C), diagnostics.diagnose(there.C)
    gap = (more.C.mean(axis=(0, 1)) - there.C.mean(axis=(0, 1))) / np.hypot(here.mcse, other.mcse)
    assert np.abs(gap).max() < 4.5  # 40 entries: a false alarm in 4,000 runs
    assert np.abs(more.shrinkage - there.shrinkage).max() < 0.1


def test_features_that_look_alike_exchange_their_scales_there_too(monkeypatch):
    """Two of which the data hardly say which it is: each is as likely as on the CPU, and every chain changes over."""
    monkeypatch.setattr("intarsia.server.sampler.schedule.SEARCHED", 40)
    rng = np.random.default_rng(8)
    X = rng.standard_normal((60, 50))
    X[:, 31] = X[:, 30] + 0.15 * X[:, 31]
    X, Y = np.asfortranarray(X), 0.8 * X[:, [30]] + rng.standard_normal((60, 1))
    first = []
    for backend, draws in (("numpy", 1500), ("jax", 1500)):
        run = sample(X, Y, settings=Settings(draws=draws, warmup=60, chains=2, thin=1, seed=2, workers=1, backend=backend))
        assert all({30, 31} & set(features) for features in run.info["starts"])
        first.append((np.abs(run.C[:, :, 30]) > np.abs(run.C[:, :, 31]))[..., 0])
    assert all((np.diff(chain.astype(int)) != 0).sum() > 60 for chains in first for chain in chains)
    here, there = (chains.mean() for chains in first)
    assert 0.1 < here < 0.9
    assert abs(here - there) < 0.1


@pytest.mark.slow
def test_draws_compiled_beside_the_warm_up_are_those_compiled_when_needed(problem, monkeypatch):
    asked, compiled = Settings(draws=20, warmup=20, chains=2, thin=1, seed=5, backend="jax"), []
    get = device.Runner._get

    def noted(runner, kind, *sizes):
        compiled.append((kind, (kind, *sizes) in runner._compiled))
        return get(runner, kind, *sizes)

    monkeypatch.setattr(device.Runner, "_get", noted)
    first = sample(*problem, settings=asked)
    assert ("draw", True) in compiled
    compiled.clear()
    monkeypatch.setattr(device.Runner, "compile_beside", lambda *given: None)
    second = sample(*problem, settings=asked)
    assert ("draw", False) in compiled
    np.testing.assert_array_equal(first.C, second.C)
    np.testing.assert_array_equal(first.Sigma, second.Sigma)


def test_stretches_divide_the_whole_where_they_can():
    assert device.even(1000, 50) == 50
    assert device.even(1000, 37) == 25
    assert device.even(997, 50) == 50
    assert device.even(0, 50) == 1
    assert list(device.stretches(7, 3)) == [(0, 3), (3, 6), (6, 7)]


def test_on_a_device_blocks_are_large_and_visited_in_turn():
    X, Y = np.broadcast_to(0.0, (100, 1_000_000)), np.broadcast_to(0.0, (100, 10))
    plan = make_plan(Model(), X, Y)
    large = device.on_device(plan, "gpu: any")
    assert large.refreshes  # all scales of a block at once
    assert not large.looks
    assert large.block == 400
    assert device.on_device(plan, "gpu: any", lanes=8).block % 8 == 0
    assert 1 <= device.on_device(make_plan(Model(local="element"), X, Y), "gpu: any").visits < 1000
    small = device.on_device(make_plan(Model(), X[:, :300], Y), "gpu: any")
    assert (small.block, small.visits) == (300, 0)


def test_a_large_design_is_sent_in_parts_and_is_there_once(monkeypatch):
    from intarsia.server.sampler import backends
    from intarsia.server.sampler.state import prepare

    monkeypatch.setattr("intarsia.server.sampler.state.GRAM_BYTES", 0)
    monkeypatch.setattr(device, "SENT_BYTES", 8 * 10 * 7 * 2)
    rng = np.random.default_rng(0)
    X, Y, be = rng.standard_normal((7, 50)), rng.standard_normal((7, 2)), backends.on_device()
    plan = replace(make_plan(Model(), X, Y, compiled=False), block=10)
    with be.precision():
        whole, sent = prepare(be, X, Y, block=10), device.prepare_on_device(be, plan, X, Y)
    assert sent.X is None
    np.testing.assert_array_equal(sent.blocks.Xt, whole.blocks.Xt)
    np.testing.assert_allclose(sent.norm2, whole.norm2)
    for name in ("Y", "rss0", "m", "noise_scale"):
        np.testing.assert_array_equal(getattr(sent, name), getattr(whole, name))


def test_unknown_backends_and_missing_jax_say_so(problem, monkeypatch):
    with pytest.raises(InputError, match="numpy"):
        sample(*problem, settings=Settings(backend="abacus"))
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith(("intarsia.server.sampler.backends.jax", "jax")):
            raise ModuleNotFoundError("no jax", name="jax")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match="pip install"):
        sample(*problem, settings=Settings(backend="jax"))
