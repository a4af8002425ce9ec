"""Running chains: the draws depend on the seed alone, and nothing is lost when a run is stopped."""

import errno
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from intarsia.errors import InputError
from intarsia.progress import words
from intarsia.server.assess.convergence import diagnose
from intarsia.server.posterior.draws import Draws
from intarsia.server.sampler import launch, run
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.sample import sample
from intarsia.server.sampler.settings import Progress, Settings
from intarsia.server.sampler.stopping import Until, looks

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


@pytest.mark.parametrize(("m", "P"), [(40, 20), (120, 1_200), (120, 2_500)])
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
    for file in tmp_path.glob("state-*.npz"):  # as if it had taken an hour
        with np.load(file) as stored:
            arrays = dict(stored)
        np.savez(file, **arrays | {"seconds": 3600.0})
    assert 3600 < sample(X, Y, settings=asked).info["seconds"] < 4000


def test_another_run_in_the_same_folder_is_refused(tmp_path):
    sample(X, Y, settings=replace(SHORT, checkpoint=tmp_path))
    with pytest.raises(InputError, match="another run"):
        sample(X, Y, settings=replace(SHORT, seed=9, checkpoint=tmp_path))
    with pytest.raises(InputError, match="another run"):
        sample(X + 1.0, Y, settings=replace(SHORT, checkpoint=tmp_path))


SCRIPT = """
import sys, numpy as np
from intarsia.server.sampler.sample import sample
d = np.load(sys.argv[1])
from intarsia.server.sampler.settings import Settings
sample(d["X"], d["Y"], settings=Settings(draws=60, warmup=50, chains=2, thin=5, seed=3, workers=int(sys.argv[3]),
                                         checkpoint=sys.argv[2], checkpoint_seconds=0.0))
"""
# Python runs this when it starts, in the run's process and in those of its chains: at sweep 151 a chain waits to be stopped, so
# that a signal always comes in the middle, however fast or busy the machine is. Its checkpoint is some sweeps old by then.
WAIT = """
import time
from intarsia.server.sampler import chain
from intarsia.server.sampler.run import REPORT_SECONDS, STOP

advance = chain.Chain.advance

def waiting(self, total):
    if self.sweeps == 150:
        (self.asked.folder / f"waiting-{self.name}").touch()
        while not (self.asked.folder / STOP).exists():
            time.sleep(0.01)
        time.sleep(REPORT_SECONDS)  # so often a chain looks whether it is to stop
    advance(self, total)

chain.Chain.advance = waiting
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
    if number == signal.SIGKILL:
        os.killpg(process.pid, number)  # the chains' own processes too
    else:
        process.send_signal(number)
    process.wait(timeout=60)
    assert process.returncode != 0
    swept = [int(np.load(file)["sweeps"]) for file in (tmp_path / "run").glob("state-*.npz")]
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
    assert 0 < 2 * seen[0].seconds_left < seen[0].at_most  # most runs end long before their budget does
    assert ", at most " in words(seen[0])
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
    monkeypatch.setattr(run, "SAVING", saving)
    saved, looked = [], []
    savez, enough = run.np.savez, launch.Launcher._enough
    monkeypatch.setattr(run.np, "savez", lambda file, **arrays: (saved.append(int(arrays["sweeps"])), savez(file, **arrays))[1])
    monkeypatch.setattr(launch.Launcher, "_enough", lambda self, draws: (looked.append(draws), enough(self, draws))[1])
    asked = replace(EASY, until=Until(rhat=1.0001, ess=1e6), draws=350, workers=1)
    whole = sample(X_EASY, Y_EASY, settings=replace(asked, checkpoint=tmp_path, checkpoint_seconds=seconds))
    assert looked == [100, 150, 200, 250, 300]
    assert saved.count(60 + 2 * 350) == 2  # of both chains, in the end
    before = len(saved) - 2
    assert before > 200 if seconds == saving else before == 2 * (seconds == 0.0)
    longer = sample(X_EASY, Y_EASY, settings=replace(asked, draws=400, checkpoint=tmp_path))
    assert same(longer, sample(X_EASY, Y_EASY, settings=replace(asked, draws=400)))
    np.testing.assert_array_equal(longer.C[:, :350], whole.C)


def test_ctrl_c_keeps_what_every_chain_of_this_process_has_done(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "REPORT_SECONDS", 0.0)
    stopped = []

    def stop(now):
        if now.sweeps[1] >= 70 and not stopped:  # the first chain is at the end of its budget, the second in the middle
            stopped.append(now.sweeps)
            signal.raise_signal(signal.SIGINT)

    asked = replace(EASY, draws=40, workers=1)
    with pytest.raises(KeyboardInterrupt):
        sample(X_EASY, Y_EASY, settings=replace(asked, checkpoint=tmp_path, checkpoint_seconds=1e9, progress=stop))
    swept = [int(np.load(tmp_path / f"state-{k}.npz")["sweeps"]) for k in range(2)]
    assert swept[0] == 60 + 2 * 40
    assert 70 <= swept[1] < swept[0]
    assert same(sample(X_EASY, Y_EASY, settings=replace(asked, checkpoint=tmp_path)), sample(X_EASY, Y_EASY, settings=asked))


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


@pytest.mark.parametrize("code", [launch.NO_SPACE, -signal.SIGBUS])
def test_a_full_disk_in_a_chains_process_is_named(tmp_path, code):
    (tmp_path / "error-0.txt").touch()  # there was no room for the reason
    assert "disk of the run's folder is full. Free some space" in launch.why_it_ended(tmp_path, 0, code)
    assert launch.why_it_ended(tmp_path, 0, -signal.SIGKILL) == "its process died; the same call continues it"
    (tmp_path / "error-0.txt").write_text("The noise left double precision.")
    assert launch.why_it_ended(tmp_path, 0, 8) == "The noise left double precision."


def test_a_chains_process_that_meets_a_full_disk_says_so_by_its_code(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(signal, "signal", lambda *_: None)  # a chain's process ignores Ctrl-C, this one does not
    monkeypatch.setattr(run, "Asked", lambda *_: None)
    monkeypatch.setattr(run, "opened", full)
    assert run.main([str(tmp_path), "0", "10", "60"]) == run.NO_SPACE


def test_draws_that_the_disk_cannot_take_are_refused_beforehand(tmp_path, monkeypatch):
    monkeypatch.setattr(launch.shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    launch.check_space(tmp_path, (2, 10, 50, 3), 8)
    with pytest.raises(InputError, match="take up to 16 MB, the disk of the run's folder has 1 MB free"):
        launch.make_room(tmp_path, (4, 1000, 100, 5), lambda: None)
    assert not (tmp_path / "C.npy").exists()


def test_a_run_whose_sweeps_share_a_factor_keeps_one_in_two(monkeypatch):
    short = Settings(draws=4, warmup=5, chains=1)
    assert sample(X, Y, settings=short).info["thin"] == 10
    monkeypatch.setattr("intarsia.server.sampler.schedule.COSTLY", 0)
    assert sample(X, Y, settings=short).info["thin"] == 2


@pytest.mark.parametrize("draws", [5, 6, 7, 8, 9])
def test_it_continues_bit_for_bit_wherever_in_the_round_it_stopped(draws, tmp_path, monkeypatch):
    monkeypatch.setattr("intarsia.server.sampler.schedule.COSTLY", 0)
    short = Settings(draws=12, warmup=6, chains=1, thin=1, workers=1)
    sample(X, Y, settings=replace(short, draws=draws, checkpoint=tmp_path / "run"))
    assert same(sample(X, Y, settings=short), sample(X, Y, settings=replace(short, checkpoint=tmp_path / "run")))
