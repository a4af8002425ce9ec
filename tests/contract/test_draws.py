"""Draws whose arrays do not fit together are refused; draws in files are read, and let go of again."""

from pathlib import Path

import numpy as np
import pytest
from intarsia.server.sampler.mapped import first_draws, let_go, recentred

from intarsia.errors import InputError
from intarsia.server.posterior.draws import Draws, diagonal


def covariances(rng, *shape):
    G = rng.standard_normal((*shape, shape[-1] + 4))
    return G @ G.swapaxes(-1, -2)


@pytest.fixture
def draws():
    rng = np.random.default_rng(0)
    return Draws(
        rng.standard_normal((2, 5, 4, 3)),
        covariances(rng, 2, 5, 3),
        {"tau": rng.gamma(2, size=(2, 5, 3))},
        rng.uniform(size=4),
        {"seconds": np.float64(1.5), "seed": 3, "model": {"local": "row"}, "bad": float("nan"), "sizes": (1, 2)},
    )


def test_variances_are_the_diagonal_of_sigma(draws):
    np.testing.assert_array_equal(draws.sigma2[1, 2], np.diag(draws.Sigma[1, 2]))
    with pytest.raises(ValueError, match="read-only"):
        draws.sigma2[0] = 1.0
    alone = diagonal(draws.sigma2)
    np.testing.assert_array_equal(alone[0, 3], np.diag(draws.sigma2[0, 3]))


def test_arrays_must_fit_together(draws):
    with pytest.raises(InputError, match="Sigma has shape"):
        Draws(draws.C, draws.Sigma[:, :, :1], draws.parameters)
    with pytest.raises(InputError, match="tau has shape"):
        Draws(draws.C, draws.Sigma, {"tau": draws.parameters["tau"][:1]})
    with pytest.raises(InputError, match="shrinkage"):
        Draws(draws.C, draws.Sigma, draws.parameters, np.zeros(3))
    with pytest.raises(InputError, match="4"):
        Draws(draws.C[0], draws.Sigma, draws.parameters)
    with pytest.raises(InputError, match="background"):
        Draws(draws.C, draws.Sigma, background=np.zeros((4, 2)))


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
