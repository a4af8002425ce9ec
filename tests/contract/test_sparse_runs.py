"""Runs of the sparse engine as users start them: told of from before the first draw, stopped, gone on with, by any number of
threads.
"""

import signal

import numpy as np
import pytest

from intarsia.errors import InputError
from intarsia.server.sampler.settings import Settings, Standing, Until
from intarsia.server.sampler.sparse.sample import SparseModel, sample

RNG = np.random.default_rng(3)
X = RNG.standard_normal((60, 40))
Y = X[:, :1] * [0.9, 0.4] + RNG.standard_normal((60, 2))
MODEL = SparseModel(compare=False)


def same(a, b):
    return (
        np.array_equal(a.C.effects, b.C.effects)
        and np.array_equal(a.C.features, b.C.features)
        and np.array_equal(a.Sigma, b.Sigma)
    )


def test_progress_is_told_before_there_are_draws_and_to_the_end(tmp_path):
    told = []
    sample(X, Y, MODEL, Settings(draws=60, checkpoint=tmp_path, progress=told.append))
    assert told[0].sweeps == [0] * 4
    assert told[-1].sweeps == [160] * 4


def test_draws_do_not_depend_on_the_number_of_threads():
    one, three = (sample(X, Y, MODEL, Settings(draws=40, workers=workers)) for workers in (1, 3))
    assert same(one, three)


def test_a_stopped_run_goes_on_bit_for_bit(tmp_path):

    sent = []

    def stop(progress):
        if sum(progress.sweeps) > 300 and not sent:
            sent.append(True)
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt, match="goes on from there"):
        sample(X, Y, MODEL, Settings(draws=20_000, seed=5, checkpoint=tmp_path, progress=stop))
    assert list(tmp_path.glob("chain-*.npz"))  # of those that had begun
    begun = sample(X, Y, MODEL, Settings(draws=300, seed=5, checkpoint=tmp_path))
    assert begun.draws >= 300  # chains may have gone further before they were stopped
    assert same(sample(X, Y, MODEL, Settings(draws=begun.draws, seed=5)), begun)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    sample(X, Y, MODEL, Settings(draws=10, checkpoint=tmp_path))
    with pytest.raises(InputError, match="seed"):
        sample(X, Y, MODEL, Settings(draws=10, seed=1, checkpoint=tmp_path))


def test_a_damaged_checkpoint_is_said_to_be_damaged(tmp_path):
    from intarsia.files import DamagedFileError

    sample(X, Y, MODEL, Settings(draws=10, checkpoint=tmp_path))
    file = tmp_path / "chain-2.npz"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(DamagedFileError, match="Remove the checkpoint"):
        sample(X, Y, MODEL, Settings(draws=10, checkpoint=tmp_path))


def test_a_run_stops_when_its_chains_agree():
    found = sample(X, Y, MODEL, Settings(until=Until(), seed=2))
    assert found.draws < 4_000


def test_chains_that_stay_apart_without_moving_are_told_of_and_run_to_the_end(monkeypatch):
    """R̂ is infinite where every chain sits still at another value, as a background's ratio may; no number of draws will do."""
    import intarsia.server.sampler.sparse.sample as module

    monkeypatch.setattr(module, "standing_of", lambda *_: Standing(50, np.inf, np.inf, 0.0))
    told = []
    run = sample(X, Y, MODEL, Settings(draws=100, until=Until(), progress=told.append))
    assert run.draws == 100
    assert any(one.standing is not None for one in told)
    assert all(np.isfinite(one.total) for one in told)


@pytest.mark.parametrize("kind", ["missing", "noisy"])
def test_rows_that_are_not_all_known(kind):
    """The strong feature is found where a tenth of the responses is missing, and where features carry privacy noise."""
    from intarsia.server.sampler.errors_in_variables import PrivacyNoise
    from intarsia.server.sampler.sparse.sample import sample_noisy

    rng = np.random.default_rng(7)
    A = rng.standard_normal((200, 8))
    B = A[:, :1] * [1.0, -1.0] + rng.standard_normal((200, 2))
    if kind == "missing":
        B[:20, 1] = np.nan
        draws = sample(A, B, MODEL, Settings(draws=150), partly=True)
    else:
        noise = PrivacyNoise(200, np.full(8, 0.3 * np.sqrt(200)))
        draws = sample_noisy(A + 0.3 * rng.standard_normal(A.shape), B, noise, MODEL, Settings(draws=150))
    assert draws.inclusion.mean()[0] > 0.99
    assert draws.mean()[0] == pytest.approx([1.0, -1.0], abs=0.25)
