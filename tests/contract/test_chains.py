"""Running chains: the draws depend on the seed alone, and nothing is lost when a run is stopped."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from intarsia.errors import InputError
from intarsia.server.sampler.launch import Progress
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.sample import Until, sample

RNG = np.random.default_rng(0)
X = RNG.standard_normal((12, 20))
Y = X[:, :2] @ RNG.standard_normal((2, 2)) + 0.5 * RNG.standard_normal((12, 2))
SHORT = {"draws": 12, "warmup": 15, "chains": 3, "thin": 2, "seed": 5}


def same(a, b):
    return all(np.array_equal(getattr(a, n), getattr(b, n)) for n in ("C", "Sigma", "tau", "shrinkage"))


def test_draws_do_not_depend_on_the_number_of_workers():
    one = sample(X, Y, **SHORT, workers=1)
    assert same(one, sample(X, Y, **SHORT, workers=2))
    assert same(one, sample(X, Y, **SHORT))
    assert not same(one, sample(X, Y, **{**SHORT, "seed": 6}))
    assert not np.array_equal(one.C[0], one.C[1])


def test_a_longer_run_continues_a_shorter_one_bit_for_bit(tmp_path):
    whole = sample(X, Y, **SHORT)
    sample(X, Y, **{**SHORT, "draws": 5}, checkpoint=tmp_path / "run")
    assert same(whole, sample(X, Y, **SHORT, checkpoint=tmp_path / "run"))


def test_another_run_in_the_same_folder_is_refused(tmp_path):
    sample(X, Y, **SHORT, checkpoint=tmp_path)
    with pytest.raises(InputError, match="another run"):
        sample(X, Y, **{**SHORT, "seed": 9}, checkpoint=tmp_path)
    with pytest.raises(InputError, match="another run"):
        sample(X + 1.0, Y, **SHORT, checkpoint=tmp_path)


SCRIPT = """
import sys, numpy as np
from intarsia.server.sampler.sample import sample
d = np.load(sys.argv[1])
sample(d["X"], d["Y"], draws=500, warmup=50, chains=2, thin=15, seed=3, workers=int(sys.argv[3]),
       checkpoint=sys.argv[2], every=0.05)
"""


LONGER = {"draws": 500, "warmup": 50, "chains": 2, "thin": 15, "seed": 3}


@pytest.fixture(scope="module")
def unstopped():
    return sample(X, Y, **LONGER)


@pytest.mark.parametrize(
    ("number", "workers"), [(signal.SIGKILL, 1), (signal.SIGKILL, 2), (signal.SIGTERM, 2), (signal.SIGINT, 1)]
)
def test_a_killed_run_ends_with_the_same_draws(tmp_path, unstopped, number, workers):
    np.savez(tmp_path / "data.npz", X=X, Y=Y)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "data.npz"), str(tmp_path / "run"), str(workers)]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list((tmp_path / "run").glob("state-*.npz")):
        time.sleep(0.01)
    if number == signal.SIGKILL:
        os.killpg(process.pid, number)  # the chains' own processes too
    else:
        process.send_signal(number)
    process.wait(timeout=60)
    assert process.returncode != 0
    swept = [json.loads(p.read_text())["sweeps"] for p in (tmp_path / "run").glob("progress-*.json")]
    assert min(swept, default=0) < 50 + 500 * 15  # it was really in the middle
    continued = sample(X, Y, **LONGER, checkpoint=tmp_path / "run")
    assert same(continued, unstopped)


def test_until_goes_on_until_every_coefficient_is_settled():
    seen: list[Progress] = []
    until = Until(rhat=1.1, ess=60, max_draws=2000)
    draws = sample(X, Y, draws=10, warmup=60, chains=2, thin=1, seed=1, until=until, progress=seen.append)
    assert 10 < draws.C.shape[1] <= 2000
    assert seen[-1].sweeps == [60 + draws.C.shape[1]] * 2
    assert np.isfinite(seen[-1].rhat)


def test_the_budget_ends_an_adaptive_run():
    until = Until(rhat=1.0, ess=1e9, max_draws=40)
    assert sample(X, Y, draws=10, warmup=10, chains=2, thin=1, until=until).C.shape[1] == 40


def test_draws_beyond_the_memory_stay_on_disk(tmp_path):
    mapped = sample(X, Y, **SHORT, checkpoint=tmp_path / "run", memory=0)
    assert isinstance(mapped.C, np.memmap)
    np.testing.assert_array_equal(mapped.C, sample(X, Y, **SHORT).C)


def test_the_improper_posterior_is_warned_of():
    with pytest.warns(UserWarning, match="improper"):
        sample(X, Y, Model(noise="jeffreys"), draws=4, warmup=4, chains=1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"draws": 0}, "draws"), ({"chains": 0}, "chains"), ({"thin": 1.5}, "thin"), ({"workers": 0}, "workers"),
        ({"model": Model(rank=3)}, "Rank 3"),
    ],
)  # fmt: skip
def test_bad_settings_are_named(change, words):
    with pytest.raises(InputError, match=words):
        sample(X, Y, **{**SHORT, **change})


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_data_is_refused_without_showing_it(bad):
    Z = X.copy()
    Z[3, 4] = bad
    with pytest.raises(InputError, match="NaN or infinite"):
        sample(Z, Y)
    with pytest.raises(InputError, match="same subjects"):
        sample(X[:5], Y)
