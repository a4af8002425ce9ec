"""Running chains: the draws depend on the seed alone, and nothing is lost when a run is stopped."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from intarsia import files
from intarsia.errors import ConvergenceError, InputError
from intarsia.progress import words
from intarsia.server.assess.convergence import diagnose
from intarsia.server.posterior.draws import Draws
from intarsia.server.sampler import run as running
from intarsia.server.sampler.horseshoe import sample as horseshoe
from intarsia.server.sampler.horseshoe.chain import GibbsChain
from intarsia.server.sampler.horseshoe.model import Model
from intarsia.server.sampler.horseshoe.sample import sample
from intarsia.server.sampler.settings import Progress, Settings, Until, looks

RNG = np.random.default_rng(0)
X = RNG.standard_normal((12, 20))
Y = X[:, :2] @ RNG.standard_normal((2, 2)) + 0.5 * RNG.standard_normal((12, 2))
SHORT = Settings(draws=12, warmup=15, chains=3, thin=2, seed=5)


def same(a, b):
    return all(np.array_equal(getattr(a, n), getattr(b, n)) for n in ("C", "Sigma", "tau", "shrinkage"))


def test_draws_do_not_depend_on_the_number_of_workers():
    one = sample(X, Y, settings=replace(SHORT, workers=1))
    assert same(one, sample(X, Y, settings=replace(SHORT, workers=2)))
    assert same(one, sample(X, Y, settings=SHORT))
    assert not same(one, sample(X, Y, settings=replace(SHORT, seed=6)))
    assert not np.array_equal(one.C[0], one.C[1])


@pytest.mark.parametrize(("m", "P"), [(40, 20), (120, 1_200)])
def test_draws_do_not_depend_on_the_threads_of_the_linear_algebra(m, P):
    X = RNG.standard_normal((m, P))
    Y = X[:, :2] @ np.ones((2, 3)) + RNG.standard_normal((m, 3))
    asked = Settings(draws=6, warmup=10, chains=2, thin=1, seed=5)
    with threadpool_limits(2, "blas"):
        here = sample(X, Y, settings=replace(asked, workers=1))
        beside = sample(X, Y, settings=replace(asked, workers=2))
    with threadpool_limits(1, "blas"):
        assert same(here, sample(X, Y, settings=replace(asked, workers=1)))
    assert same(here, beside)


def test_a_longer_run_continues_a_shorter_one_bit_for_bit(tmp_path):
    whole = sample(X, Y, settings=SHORT)
    sample(X, Y, settings=replace(SHORT, draws=5, checkpoint=tmp_path / "run"))
    assert same(whole, sample(X, Y, settings=replace(SHORT, checkpoint=tmp_path / "run")))


def test_the_time_of_a_run_counts_from_its_first_sweep(tmp_path):
    asked = replace(SHORT, checkpoint=tmp_path, workers=1)
    sample(X, Y, settings=replace(asked, draws=5))
    for file in tmp_path.glob("chain-*.npz"):  # as if it had taken an hour
        files.replace_arrays(file, files.read_arrays(file, "") | {"seconds": np.array(3600.0)})
    assert 3600 < sample(X, Y, settings=asked).info["seconds"] < 4000


def test_another_run_in_the_same_folder_is_refused(tmp_path):
    sample(X, Y, settings=replace(SHORT, checkpoint=tmp_path))
    with pytest.raises(InputError, match="another run"):
        sample(X, Y, settings=replace(SHORT, seed=9, checkpoint=tmp_path))
    with pytest.raises(InputError, match="another run"):
        sample(X + 1.0, Y, settings=replace(SHORT, checkpoint=tmp_path))


SCRIPT = """
import sys, numpy as np
from intarsia.server.sampler.horseshoe.sample import sample
d = np.load(sys.argv[1])
from intarsia.server.sampler.settings import Settings
sample(d["X"], d["Y"], settings=Settings(draws=60, warmup=50, chains=2, thin=5, seed=3, workers=int(sys.argv[3]),
                                         checkpoint=sys.argv[2], checkpoint_seconds=0.0))
"""
# Python runs this when it starts: at sweep 151 a chain says so and waits, so that a signal always comes in the middle, however
# fast or busy the machine is. What it has not swept since its last checkpoint is made again.
WAIT = """
import pathlib, sys, time
from intarsia.server.sampler.horseshoe import chain

advance = chain.GibbsChain._sweep

def waiting(self):
    if self.sweeps == 150:
        (pathlib.Path(sys.argv[2]) / f"waiting-{self.k}").touch()
        while not (pathlib.Path(sys.argv[2]) / "go").exists():
            time.sleep(0.01)
    advance(self)

chain.GibbsChain._sweep = waiting
"""
LONGER = Settings(draws=60, warmup=50, chains=2, thin=5, seed=3)


@pytest.fixture(scope="module")
def unstopped():
    return sample(X, Y, settings=LONGER)


@pytest.mark.parametrize(
    ("number", "workers"), [(signal.SIGKILL, 1), (signal.SIGKILL, 2), (signal.SIGTERM, 2), (signal.SIGINT, 1)]
)
def test_a_killed_run_ends_with_the_same_draws(tmp_path, unstopped, number, workers):
    np.savez(tmp_path / "data.npz", X=X, Y=Y)
    (tmp_path / "sitecustomize.py").write_text(WAIT)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "data.npz"), str(tmp_path / "run"), str(workers)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL, env=environment)
    deadline = time.monotonic() + 120
    while len(list((tmp_path / "run").glob("waiting-*"))) < workers:
        assert time.monotonic() < deadline, "the chains did not come to sweep 151"
        time.sleep(0.01)
    process.send_signal(number)
    if number != signal.SIGKILL:
        time.sleep(0.3)  # the signal is there before the chains go on, else they might end before it
        (tmp_path / "run" / "go").touch()
    process.wait(timeout=60)
    assert process.returncode != 0
    swept = [int(np.load(file)["sweeps"]) for file in (tmp_path / "run").glob("chain-*.npz")]
    assert len(swept) == workers
    assert max(swept) < 50 + 60 * 5  # it was really in the middle
    continued = sample(X, Y, settings=replace(LONGER, checkpoint=tmp_path / "run"))
    assert same(continued, unstopped)


EASY = Settings(draws=2000, warmup=60, chains=2, thin=2, seed=1)
UNTIL = Until(rhat=1.05, folded=1.1, ess=60)
X_EASY = RNG.standard_normal((60, 4))
Y_EASY = X_EASY[:, :1] @ np.ones((1, 2)) + RNG.standard_normal((60, 2))


def test_until_goes_on_until_every_coefficient_is_settled():
    seen: list[Progress] = []
    draws = sample(X_EASY, Y_EASY, settings=replace(EASY, until=UNTIL, progress=seen.append))
    kept = draws.C.shape[1]
    assert kept in looks(2000, UNTIL)[:-1]
    whole = diagnose(draws)
    for found in (whole, whole.noise):
        assert found.rhat.max() <= 1.05
        assert found.rhat_folded.max() <= 1.1
        assert min(found.ess_bulk.min(), found.ess_tail.min()) >= 60
    first = next(n for n in looks(2000, UNTIL) if n == kept or _meets(draws, n))
    assert first == kept  # and at no look before
    assert seen[0].sweeps == [0, 0]
    told = next(now for now in seen if now.seconds_left > 0)  # before there are sweeps nobody knows
    assert told is not seen[0]
    assert 2 * told.seconds_left < told.at_most  # most runs end long before their budget does
    assert ", at most " in words(told)
    assert seen[-1].sweeps == [60 + 2 * kept] * 2
    assert seen[-1].standing.meets(UNTIL)
    assert "≤ 1.05" in words(seen[-1])


def _meets(draws, n):
    found = diagnose(Draws(draws.C[:, :n], draws.Sigma[:, :n], {"tau": draws.tau[:, :n]}))
    return all(
        f.rhat.max() <= 1.05 and f.rhat_folded.max() <= 1.1 and min(f.ess_bulk.min(), f.ess_tail.min()) >= 60
        for f in (found, found.noise)
    )


def test_a_run_stops_at_the_same_draw_whatever_the_workers(tmp_path):
    one = sample(X_EASY, Y_EASY, settings=replace(EASY, until=UNTIL, workers=1))
    two = sample(X_EASY, Y_EASY, settings=replace(EASY, until=UNTIL, workers=2, checkpoint=tmp_path))
    assert one.C.shape[1] < 2000
    assert same(one, two)
    again = sample(X_EASY, Y_EASY, settings=replace(EASY, until=UNTIL, workers=2, checkpoint=tmp_path))
    assert same(one, again)  # nothing is left to do
    whole = sample(X_EASY, Y_EASY, settings=replace(EASY, draws=500, checkpoint=tmp_path))
    np.testing.assert_array_equal(whole.C[:, : one.C.shape[1]], one.C)


# However long writing takes on this machine: it never matters, or puts off all checkpoints but the first.
@pytest.mark.parametrize(("seconds", "saving"), [(1e9, 0.0), (0.0, 0.0), (0.0, 1e9)])
def test_looks_alone_cost_no_checkpoint(tmp_path, monkeypatch, seconds, saving):
    monkeypatch.setattr(running, "SAVING", saving)
    saved, looked = [], []
    write, judged = files.replace_arrays, horseshoe.standing
    monkeypatch.setattr(
        files, "replace_arrays", lambda path, arrays: (saved.append(int(arrays["sweeps"])), write(path, arrays))[1]
    )
    monkeypatch.setattr(horseshoe, "standing", lambda C, *rest: (looked.append(C.shape[1]), judged(C, *rest))[1])
    asked = replace(EASY, until=Until(rhat=1.0001, ess=1e6), draws=350, workers=1)
    whole = sample(X_EASY, Y_EASY, settings=replace(asked, checkpoint=tmp_path, checkpoint_seconds=seconds))
    assert looked == [50, 75, 100, 125, 150, 175, 200, 250, 300]
    assert saved.count(60 + 2 * 350) == 2  # of both chains, in the end
    before = len(saved) - 2
    assert before > 12 if seconds == saving else before == 2 * (seconds == 0.0)
    longer = sample(X_EASY, Y_EASY, settings=replace(asked, draws=400, checkpoint=tmp_path))
    assert same(longer, sample(X_EASY, Y_EASY, settings=replace(asked, draws=400)))
    np.testing.assert_array_equal(longer.C[:, :350], whole.C)


def test_ctrl_c_keeps_what_every_chain_has_done_and_says_how_to_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "SLICE", 0.0)  # a sweep at a time
    monkeypatch.setattr(running, "REPORT", 0.001)
    stopped, advance, before = [], GibbsChain.advance, signal.getsignal(signal.SIGINT)

    def waiting(self, sweeps):
        while self.k == 1 and self.sweeps >= 100 and not stopped:
            time.sleep(0.001)
        advance(self, sweeps)

    monkeypatch.setattr(GibbsChain, "advance", waiting)

    def stop(now):
        if now.sweeps[1] >= 70 and not stopped:  # the first chain is at the end of its budget, the second in the middle
            stopped.append(now.sweeps)
            signal.raise_signal(signal.SIGINT)

    asked = replace(EASY, draws=2000, workers=1)
    with pytest.raises(KeyboardInterrupt, match="The same call goes on from there"):
        sample(X_EASY, Y_EASY, settings=replace(asked, checkpoint=tmp_path, checkpoint_seconds=1e9, progress=stop))
    swept = [int(np.load(tmp_path / f"chain-{k}.npz")["sweeps"]) for k in range(2)]
    assert swept[0] == 60 + 2 * 2000
    assert 70 <= swept[1] < swept[0]
    assert signal.getsignal(signal.SIGINT) is before
    assert same(sample(X_EASY, Y_EASY, settings=replace(asked, checkpoint=tmp_path)), sample(X_EASY, Y_EASY, settings=asked))


def test_a_second_signal_is_not_caught():
    """Whoever asks twice does not want to wait for the chains."""
    before, stop = signal.getsignal(signal.SIGTERM), threading.Event()
    with running._stopping(stop) as got:
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set()
        assert signal.getsignal(signal.SIGTERM) is before
    assert got == [signal.SIGTERM]


def test_an_error_in_a_chain_ends_all_of_them_with_its_words():
    broken = Y * 1e200
    with pytest.raises(ConvergenceError, match="double precision"), np.errstate(all="ignore"):
        sample(X, broken, Model(noise="jeffreys", local="row"), replace(SHORT, workers=2))


def test_the_budget_ends_an_adaptive_run():
    until = Until(ess=1e9)
    assert sample(X, Y, settings=Settings(draws=40, warmup=10, chains=2, thin=1, until=until)).C.shape[1] == 40


def test_an_impossible_target_is_refused():
    with pytest.raises(InputError, match="above 1"):
        Until(rhat=1.0)


def test_the_improper_posterior_is_warned_of():
    with pytest.warns(UserWarning, match="improper"):
        sample(X, Y, Model(noise="jeffreys"), Settings(draws=4, warmup=4, chains=1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"draws": 0}, "draws"), ({"chains": 0}, "chains"), ({"thin": 1.5}, "thin"), ({"workers": 0}, "workers"),
    ],
)  # fmt: skip
def test_bad_settings_are_named(change, words):
    with pytest.raises(InputError, match=words):
        sample(X, Y, settings=replace(SHORT, **change))


def test_a_rank_above_the_number_of_responses_is_refused():
    with pytest.raises(InputError, match="Rank 3"):
        sample(X, Y, Model(rank=3), SHORT)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_data_is_refused_without_showing_it(bad):
    Z = X.copy()
    Z[3, 4] = bad
    with pytest.raises(InputError, match="NaN or infinite"):
        sample(Z, Y)
    with pytest.raises(InputError, match="same subjects"):
        sample(X[:5], Y)


def test_a_full_disk_is_named_and_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    asked = replace(SHORT, workers=1, checkpoint=tmp_path)
    sample(X, Y, settings=replace(asked, draws=5))
    before = (tmp_path / "chain-0.npz").read_bytes()

    def full(file, **_):
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(running.np, "savez", full)
        with pytest.raises(InputError, match=r"No space left on device\. Free some space"):
            sample(X, Y, settings=asked)
    assert (tmp_path / "chain-0.npz").read_bytes() == before
    assert not list(tmp_path.glob("*.part"))
    assert same(sample(X, Y, settings=asked), sample(X, Y, settings=SHORT))


def test_draws_that_memory_cannot_take_are_refused_beforehand():
    with pytest.raises(InputError, match=r"would take 0\.0 GB, memory allows 0\.0 GB. Ask for 12 draws or fewer"):
        sample(X, Y, settings=replace(SHORT, draws=13, memory=3 * 12 * 20 * 2 * 8))
    sample(X, Y, settings=replace(SHORT, memory=3 * 12 * 20 * 2 * 8))


@pytest.mark.parametrize(("backend", "words"), [("jax", "fitted on the CPU"), ("abacus", "one of numpy, jax")])
def test_another_backend_is_refused(backend, words):
    with pytest.raises(InputError, match=words):
        sample(X, Y, settings=replace(SHORT, backend=backend))


def test_a_run_whose_sweeps_share_a_factor_keeps_one_in_four(monkeypatch):
    short = Settings(draws=4, warmup=5, chains=1)
    assert sample(X, Y, settings=short).info["thin"] == 10
    monkeypatch.setattr("intarsia.server.sampler.horseshoe.sweep.COSTLY", 0)
    assert sample(X, Y, settings=short).info["thin"] == 4


@pytest.mark.parametrize("draws", [5, 6, 7, 8, 9])
def test_it_continues_bit_for_bit_wherever_in_the_round_it_stopped(draws, tmp_path, monkeypatch):
    monkeypatch.setattr("intarsia.server.sampler.horseshoe.sweep.COSTLY", 0)
    short = Settings(draws=12, warmup=6, chains=1, thin=1, workers=1)
    sample(X, Y, settings=replace(short, draws=draws, checkpoint=tmp_path / "run"))
    assert same(sample(X, Y, settings=short), sample(X, Y, settings=replace(short, checkpoint=tmp_path / "run")))
