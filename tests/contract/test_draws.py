"""A folder of draws comes back as it was written, from disk, and a spoilt one is refused with our own error."""

import json
from pathlib import Path

import numpy as np
import pytest

from intarsia.errors import InputError, MessageError
from intarsia.server.results.draws import Draws, create, diagonal
from intarsia.server.results.mapped import first_draws, let_go, recentred
from intarsia.server.results.summaries import PER_FEATURE, Summaries


def covariances(rng, *shape):
    G = rng.standard_normal((*shape, shape[-1] + 4))
    return G @ G.swapaxes(-1, -2)


@pytest.fixture
def draws():
    rng = np.random.default_rng(0)
    return Draws(
        rng.standard_normal((2, 5, 4, 3)),
        covariances(rng, 2, 5, 3),
        rng.gamma(2, size=(2, 5, 3)),
        rng.uniform(size=4),
        {"seconds": np.float64(1.5), "seed": 3, "model": {"local": "row"}, "bad": float("nan"), "sizes": (1, 2)},
    )


def test_round_trip_is_exact_and_memory_mapped(draws, tmp_path):
    draws.save(tmp_path / "run")
    back = Draws.load(tmp_path / "run")
    assert isinstance(back.C, np.memmap)
    for name in ("C", "Sigma", "tau", "shrinkage"):
        np.testing.assert_array_equal(getattr(back, name), getattr(draws, name))
    assert back.info == {"seconds": 1.5, "seed": 3, "model": {"local": "row"}, "bad": None, "sizes": [1, 2]}
    assert (back.chains, back.draws, back.P, back.Q) == (2, 5, 4, 3)
    assert not isinstance(Draws.load(tmp_path / "run", mmap=False).C, np.memmap)


def test_variances_are_the_diagonal_of_sigma(draws):
    np.testing.assert_array_equal(draws.sigma2[1, 2], np.diag(draws.Sigma[1, 2]))
    with pytest.raises(ValueError, match="read-only"):
        draws.sigma2[0] = 1.0
    alone = diagonal(draws.sigma2)
    np.testing.assert_array_equal(alone[0, 3], np.diag(draws.sigma2[0, 3]))


def test_draws_written_in_place_are_not_copied(draws, tmp_path):
    C = create(tmp_path, 2, 5, 4, 3)
    C[:] = draws.C
    inode = (tmp_path / "C.npy").stat().st_ino
    Draws(C, draws.Sigma, draws.tau).save(tmp_path)
    assert (tmp_path / "C.npy").stat().st_ino == inode
    back = Draws.load(tmp_path)
    np.testing.assert_array_equal(back.C, draws.C)
    assert back.shrinkage is None


def test_a_run_that_has_not_finished_is_recognised(tmp_path):
    create(tmp_path, 1, 2, 3, 1)
    with pytest.raises(MessageError, match="not finished"):
        Draws.load(tmp_path)


@pytest.mark.parametrize("name", ["C.npy", "Sigma.npy", "tau.npy"])
def test_missing_truncated_or_pickled_arrays_are_refused(draws, tmp_path, name):
    draws.save(tmp_path)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(MessageError):
        Draws.load(tmp_path)
    np.save(tmp_path / name, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(MessageError):
        Draws.load(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(MessageError):
        Draws.load(tmp_path)


@pytest.mark.parametrize(
    "header",
    [
        b"\xff",
        b"[]",
        b"{",
        b'{"format": 99}',
        b'{"format": 1, "arrays": ["../x"], "info": {}}',
        b'{"format": 1, "arrays": 3}',
    ],
)
def test_a_spoilt_header_is_refused(draws, tmp_path, header):
    draws.save(tmp_path)
    (tmp_path / "draws.json").write_bytes(header)
    with pytest.raises(MessageError):
        Draws.load(tmp_path)


def test_arrays_must_fit_together(draws, tmp_path):
    with pytest.raises(InputError, match="Sigma has shape"):
        Draws(draws.C, draws.Sigma[:, :, :1], draws.tau)
    with pytest.raises(InputError, match="tau has shape"):
        Draws(draws.C, draws.Sigma, draws.tau[:1])
    with pytest.raises(InputError, match="shrinkage"):
        Draws(draws.C, draws.Sigma, draws.tau, np.zeros(3))
    with pytest.raises(InputError, match="4"):
        Draws(draws.C[0], draws.Sigma, draws.tau)
    draws.save(tmp_path)
    np.save(tmp_path / "tau.npy", np.zeros((1, 5, 3)))
    with pytest.raises(MessageError, match="tau has shape"):
        Draws.load(tmp_path)
    header = json.loads((tmp_path / "draws.json").read_text())
    header["arrays"].remove("tau")
    (tmp_path / "draws.json").write_text(json.dumps(header))
    with pytest.raises(MessageError, match="lacks tau"):
        Draws.load(tmp_path)


def resident(file: Path) -> int:
    """Bytes of the file's map that count as this process's memory."""
    seen = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            seen = line.endswith(str(file))
        elif seen and line.startswith("Rss:"):
            return 1024 * int(line.split()[1])
    raise AssertionError("the file is not mapped")


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
def test_pages_of_a_file_are_let_go_and_keep_what_was_written(tmp_path):
    file = tmp_path / "C.npy"
    np.save(file, np.zeros((1000, 1000)))
    there = np.asarray(np.load(file, mmap_mode="r+"))[10:]  # a plain view of it
    there[:] = 1.0
    assert resident(file) > 7e6
    let_go(there)
    assert resident(file) < 1e5
    assert (there == 1.0).all()
    own = np.load(file, mmap_mode="c")
    own[:] = 2.0
    for kept in (own, np.full(3, 2.0)):  # what is nowhere else stays
        let_go(kept)
        assert (kept == 2.0).all()
    assert np.load(file).sum() == 990 * 1000


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
def test_intervals_of_some_features_leave_no_pages_of_the_whole_draws_in_memory(tmp_path):
    file, P, Q = tmp_path / "whole.npy", 20_000, 3
    np.save(file, np.random.default_rng(0).standard_normal((2, 6, P, Q)).astype(np.float32))
    each = {name: np.ones((P, Q)) for name in PER_FEATURE} | {"mean": np.zeros((P, Q))}
    there = np.load(file, mmap_mode="r")
    sums = Summaries(features=np.arange(9), **each, whole=there, at=np.arange(6), total=80)
    places = np.arange(0, P, 50)
    low, high = sums.quantiles(places, [0.025, 0.975])
    assert low.shape == (len(places), Q)
    assert (low < high).all()
    np.testing.assert_array_equal(sums.whole_of(places), np.load(file)[:, :, places])
    assert resident(file) < 1e5


@pytest.mark.parametrize("dtype", ["<f8", "<f4"])
def test_the_first_draws_are_read_into_memory(tmp_path, dtype):
    every = np.random.default_rng(0).standard_normal((3, 7, 4, 2)).astype(dtype)
    np.save(tmp_path / "C.npy", every)
    found = first_draws(tmp_path / "C.npy", 5)
    np.testing.assert_array_equal(found, every[:, :5])
    assert found.dtype == every.dtype
    assert found.flags.owndata


def test_a_disk_too_full_for_the_copy_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    file = tmp_path / "whole.npy"
    np.save(file, np.ones((2, 3, 4, 1), dtype=np.float32))
    monkeypatch.setattr(np.lib.format, "write_array_header_1_0", full)
    with pytest.raises(OSError, match="No space"):
        recentred(file, 2, np.zeros((4, 1)), keep=True)
    assert [path.name for path in tmp_path.iterdir()] == ["whole.npy"]
    assert (np.load(file) == 1.0).all()
