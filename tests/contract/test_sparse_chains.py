"""Chains under the sparse prior: draws depend on the seed alone, nothing is lost when a run is stopped, bad input is named."""

import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from intarsia.errors import InputError
from intarsia.server.posterior.draws import Draws
from intarsia.server.sampler import run as running
from intarsia.server.sampler.errors_in_variables import PrivacyNoise
from intarsia.server.sampler.settings import Progress, Settings, Until, looks
from intarsia.server.sampler.sparse.chain import SparseChain
from intarsia.server.sampler.sparse.sample import SparseModel, sample, sample_noisy

RNG = np.random.default_rng(0)
X = RNG.standard_normal((24, 30))
Y = X[:, :2] @ RNG.standard_normal((2, 2)) + 0.5 * RNG.standard_normal((24, 2))
GAPS = np.where(np.arange(24)[:, None] % 5 == [0, 2], np.nan, Y)
NOISE = PrivacyNoise(200, 0.5 * np.ones(30), 0.5 * np.ones(2))
SHORT = Settings(draws=12, warmup=15, chains=3, thin=2, seed=5)


def complete(settings: Settings) -> Draws:
    return sample(X, Y, settings=settings)


def with_gaps(settings: Settings) -> Draws:
    return sample(X, GAPS, settings=settings, partly=True)


def noisy(settings: Settings) -> Draws:
    return sample_noisy(X, Y, NOISE, settings=settings)


def limited_rank(settings: Settings) -> Draws:
    return sample(X, Y, SparseModel(rank=1, background=False), settings)


WAYS = pytest.mark.parametrize("way", [complete, with_gaps, noisy, limited_rank])


def same(a: Draws, b: Draws) -> bool:
    """Everything that is handed back, to the last bit."""
    pairs: list[tuple[Any, Any]] = [(a.Sigma, b.Sigma), *((a.parameters[name], b.parameters[name]) for name in a.parameters)]
    assert a.inclusion is not None
    assert b.inclusion is not None
    for name in ("offsets", "features", "effects"):
        pairs.append((getattr(a.C, name), getattr(b.C, name)))
    for name in ("pip", "offsets", "features", "probability", "expected", "acting", "pip_without"):
        pairs.append((getattr(a.inclusion, name), getattr(b.inclusion, name)))
    pairs.append((a.background, b.background))
    return all((one is None) == (other is None) and (one is None or np.array_equal(one, other)) for one, other in pairs)


@WAYS
def test_draws_depend_neither_on_the_workers_nor_on_the_threads_of_the_linear_algebra(way: Any) -> None:
    with threadpool_limits(2, "blas"):
        one = way(replace(SHORT, workers=1))
        assert same(one, way(replace(SHORT, workers=2)))
    with threadpool_limits(1, "blas"):
        assert same(one, way(SHORT))
    assert not same(one, way(replace(SHORT, seed=6)))


@WAYS
@pytest.mark.parametrize("draws", [5, 8])
def test_a_longer_run_continues_a_shorter_one_bit_for_bit(way: Any, draws: int, tmp_path: Path) -> None:
    whole = way(SHORT)
    way(replace(SHORT, draws=draws, checkpoint=tmp_path / "run"))
    assert same(whole, way(replace(SHORT, checkpoint=tmp_path / "run")))


def test_another_run_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    complete(replace(SHORT, checkpoint=tmp_path))
    for other in (
        lambda: complete(replace(SHORT, seed=9, checkpoint=tmp_path)),
        lambda: sample(X + 1.0, Y, settings=replace(SHORT, checkpoint=tmp_path)),
        lambda: sample(X, Y, SparseModel(expected_features=5.0), replace(SHORT, checkpoint=tmp_path)),
        lambda: sample(X, Y, settings=replace(SHORT, checkpoint=tmp_path), looked_at=500),
    ):
        with pytest.raises(InputError, match="another run"):
            other()


@WAYS
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_keeps_what_every_chain_has_done(
    way: Any, number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "SLICE", 0.0)  # a sweep at a time
    monkeypatch.setattr(running, "REPORT", 0.001)
    stopped: list[list[int]] = []
    advance = SparseChain.advance

    def waiting(self: SparseChain, sweeps: int) -> None:
        while self.sweeps >= 100 and not stopped:
            time.sleep(0.001)
        advance(self, sweeps)

    monkeypatch.setattr(SparseChain, "advance", waiting)

    def stop(now: Progress) -> None:
        if max(now.sweeps) >= 40 and not stopped:
            stopped.append(now.sweeps)
            signal.raise_signal(number)

    asked = replace(SHORT, draws=400, workers=1)
    with pytest.raises(KeyboardInterrupt, match="The same call goes on from there"):
        way(replace(asked, checkpoint=tmp_path, checkpoint_seconds=1e9, progress=stop))
    swept = [int(np.load(tmp_path / f"chain-{k}.npz")["sweeps"]) for k in range(3) if (tmp_path / f"chain-{k}.npz").exists()]
    assert max(swept) >= 40
    assert min([*swept, 0] if len(swept) < 3 else swept) < 15 + 2 * 400  # it was really in the middle
    assert same(way(replace(asked, checkpoint=tmp_path)), way(asked))


UNTIL = Until(rhat=1.05, folded=1.1, ess=60)


def test_a_run_ends_at_the_first_look_that_meets_its_target_whatever_the_workers(tmp_path: Path) -> None:
    asked = Settings(draws=2000, warmup=50, chains=2, seed=1, until=UNTIL)
    one, two = complete(replace(asked, workers=1)), complete(replace(asked, workers=2, checkpoint=tmp_path))
    assert one.C.shape[1] in looks(2000, UNTIL)[:-1]
    assert same(one, two)
    assert same(one, complete(replace(asked, checkpoint=tmp_path)))  # nothing is left to do
    assert complete(replace(asked, draws=60, until=Until(ess=1e9))).C.shape[1] == 60


def test_what_chains_cannot_be_run_on_is_refused_without_a_value() -> None:
    bad = X.copy()
    bad[3, 4] = np.nan
    for call, words in (
        (lambda: sample(bad, Y), "not finite"),
        (lambda: sample(X, GAPS), "not finite"),
        (lambda: sample(X[:5], Y), "same m"),
        (lambda: sample(X, np.column_stack([Y, np.zeros(24)])), "Response number 3 is zero"),
        (lambda: sample(X, Y, degrees=1), "degrees"),
        (lambda: sample(X, Y, looked_at=20), "looked_at is 20"),
        (lambda: sample(X, Y, SparseModel(rank=3)), "Rank 3"),
        (lambda: sample(X, GAPS, SparseModel(power=0.9), partly=True), "power 1"),
        (lambda: SparseModel(noise="jeffreys"), "correlated, independent"),
        (lambda: SparseModel(power=0.0), "power"),
        (lambda: SparseModel(expected_features=0.0), "expected_features"),
        (lambda: complete(replace(SHORT, draws=0)), "draws"),
        (lambda: complete(replace(SHORT, chains=0)), "chains"),
        (lambda: complete(replace(SHORT, thin=1.5)), "thin"),
        (lambda: noisy(replace(SHORT, backend="jax")), "on the CPU"),
        (lambda: with_gaps(replace(SHORT, backend="jax")), "on the CPU"),
        (lambda: complete(replace(SHORT, backend="abacus")), "one of numpy, jax"),
    ):
        with pytest.raises(InputError, match=words):
            call()


def test_a_feature_looked_at_and_not_kept_counts_in_the_prior() -> None:
    """P counted after screening in place of before would find too much."""
    asked = Settings(draws=400, warmup=50, chains=2, seed=1)
    noise = RNG.standard_normal((24, 1))
    few, many = (sample(X, noise, SparseModel(background=False), asked, looked_at=n) for n in (30, 30_000))
    assert many.parameters["prior_inclusion"].mean() < few.parameters["prior_inclusion"].mean() / 100
    assert many.inclusion is not None
    assert few.inclusion is not None
    assert many.inclusion.pip.sum() < few.inclusion.pip.sum() / 20
